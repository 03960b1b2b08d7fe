//go:build unix

package retry

import "syscall"

// faults are errors of networks and network file systems. A failing disk also returns EIO, and keeps
// returning it.
var faults = []error{
	syscall.ECONNRESET, syscall.ECONNREFUSED, syscall.ECONNABORTED, syscall.EPIPE, syscall.ETIMEDOUT, syscall.ESHUTDOWN,
	syscall.EHOSTUNREACH, syscall.EHOSTDOWN, syscall.ENETUNREACH, syscall.ENETDOWN, syscall.ENETRESET, syscall.ENOBUFS,
	syscall.ESTALE, syscall.EIO,
}
