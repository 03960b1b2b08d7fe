//go:build unix

package nwt

import "golang.org/x/sys/unix"

func mapPages(size int) ([]byte, error) {
	return unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
}

func unmapPages(mem []byte) error { return unix.Munmap(mem) }
