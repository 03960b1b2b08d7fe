//go:build unix

package osmemory

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Map returns size bytes of zeroed memory, aligned for every element type. Pages of it take no memory until
// they are written.
func Map(size int) ([]byte, error) {
	return unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
}

// Unmap frees what Map returned.
func Unmap(mem []byte) error { return unix.Munmap(mem) }

// Lock keeps mem in physical memory until it is unmapped.
func Lock(mem []byte) error { return unix.Mlock(mem) }

// LockLimit names the limit of locked memory.
func LockLimit() string {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &r); err != nil {
		return "RLIMIT_MEMLOCK: " + err.Error()
	}
	return fmt.Sprintf("RLIMIT_MEMLOCK (ulimit -l): %d bytes", r.Cur)
}

// hide gives the memory of mem back to the system and makes it unreadable.
func hide(mem []byte) error {
	return errors.Join(unix.Madvise(mem, unix.MADV_DONTNEED), unix.Mprotect(mem, unix.PROT_NONE))
}
