//go:build unix

package retry

import "syscall"

// faults are those of networks and network file systems. A disk that dies says EIO too, and goes
// on saying it.
var faults = []error{
	syscall.ECONNRESET, syscall.ECONNREFUSED, syscall.ECONNABORTED, syscall.EPIPE, syscall.ETIMEDOUT, syscall.ESHUTDOWN,
	syscall.EHOSTUNREACH, syscall.EHOSTDOWN, syscall.ENETUNREACH, syscall.ENETDOWN, syscall.ENETRESET, syscall.ENOBUFS,
	syscall.ESTALE, syscall.EIO,
}
