//go:build !unix && !windows

package files

import (
	"errors"
	"os"
)

const nonblock = 0

var noLocks = errors.ErrUnsupported

func open(path string) (*os.File, error) { return os.Open(path) }

func rename(from, to string) error { return os.Rename(from, to) }

func remove(path string) error { return os.Remove(path) }

func heldOpen(error) bool { return false }
