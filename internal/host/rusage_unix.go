//go:build unix

package host

import (
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// cpuTime returns the CPU time that this process has used so far.
func cpuTime() (time.Duration, error) {
	accountNow()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0, os.NewSyscallError("getrusage", err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), nil
}

// lifePeak returns the largest resident set of this process in its whole life, or 0 if the system doesn't
// record it.
func lifePeak() uint64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil || u.Maxrss < 0 {
		return 0
	}
	if runtime.GOOS == "darwin" || runtime.GOOS == "ios" {
		return uint64(u.Maxrss) // in bytes here, in kB on other systems
	}
	return uint64(u.Maxrss) << 10
}
