//go:build unix

package files

import (
	"os"

	"golang.org/x/sys/unix"
)

const nonblock = unix.O_NONBLOCK

// noLocks is the error of a file system that has no locks.
const noLocks = unix.ENOLCK

func open(path string) (*os.File, error) { return os.OpenFile(path, os.O_RDONLY|nonblock, 0) }

func rename(from, to string) error { return os.Rename(from, to) }

func remove(path string) error { return os.Remove(path) }

func heldOpen(error) bool { return false }
