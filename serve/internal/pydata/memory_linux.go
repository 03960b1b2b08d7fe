package pydata

import (
	"os"

	"golang.org/x/sys/unix"
)

// newMemory makes a file of memory without a name.
func newMemory() (*os.File, error) {
	fd, err := unix.MemfdCreate("nwt-sample", unix.MFD_CLOEXEC)
	return os.NewFile(uintptr(fd), "memory"), err
}
