//go:build unix

package host

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// cpuTime is what this process has used of all CPUs so far.
func cpuTime() (time.Duration, error) {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0, os.NewSyscallError("getrusage", err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), nil
}
