package files

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"

	"golang.org/x/sys/windows"
)

const nonblock = 0

const noLocks = windows.ERROR_NOT_SUPPORTED

// An os.Root opens files such that other processes may rename or remove them. It also renames and removes
// files as POSIX does, if Windows can. Package os does neither.

func open(path string) (f *os.File, err error) {
	err = inRoot(path, func(dir *os.Root, name string) error {
		f, err = dir.Open(name)
		return err
	})
	return f, err
}

func rename(from, to string) error {
	if filepath.Dir(from) != filepath.Dir(to) {
		return os.Rename(from, to)
	}
	return inRoot(to, func(dir *os.Root, name string) error {
		err := dir.Rename(filepath.Base(from), name)
		if err == nil || !heldOpen(err) {
			return err
		}
		// Some file systems don't replace an open file, but allow it to be renamed.
		if remove(to) != nil {
			return err
		}
		return dir.Rename(filepath.Base(from), name)
	})
}

// remove frees the name at once. Otherwise a file that a process has open would keep its name until it is
// closed.
func remove(path string) error {
	aside := fmt.Sprintf("%s.%x.removed", path, rand.Uint64())
	if err := inRoot(path, func(dir *os.Root, name string) error { return dir.Rename(name, filepath.Base(aside)) }); err != nil {
		return err
	}
	err := inRoot(aside, func(dir *os.Root, name string) error { return dir.Remove(name) })
	if err != nil && os.Remove(aside) == nil {
		return nil
	}
	return err
}

func inRoot(path string, f func(dir *os.Root, name string) error) error {
	dir, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	return f(dir, filepath.Base(path))
}

func heldOpen(err error) bool {
	for _, known := range []error{windows.ERROR_SHARING_VIOLATION, windows.ERROR_LOCK_VIOLATION, windows.ERROR_ACCESS_DENIED, windows.ERROR_USER_MAPPED_FILE} {
		if errors.Is(err, known) {
			return true
		}
	}
	return false
}
