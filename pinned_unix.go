//go:build unix

package nwt

import (
	"fmt"

	"golang.org/x/sys/unix"
)

func mapPages(size int) ([]byte, error) {
	return unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
}

func unmapPages(mem []byte) error { return unix.Munmap(mem) }

// lockPages locks mem into memory until it is unmapped.
func lockPages(mem []byte) error { return unix.Mlock(mem) }

// lockLimit says what bounds locked memory.
func lockLimit() string {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &r); err != nil {
		return "RLIMIT_MEMLOCK: " + err.Error()
	}
	return fmt.Sprintf("RLIMIT_MEMLOCK (ulimit -l): %d bytes", r.Cur)
}
