//go:build unix

package osmemory

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// MapFile maps the first size bytes of a file into memory, for reading.
func MapFile(f *os.File, size int64) ([]byte, error) {
	if int64(int(size)) != size {
		return nil, fmt.Errorf("%d bytes don't fit into the address space", size)
	}
	return unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
}

// UnmapFile ends a mapping made by MapFile.
func UnmapFile(mem []byte) error { return unix.Munmap(mem) }
