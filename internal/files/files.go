// Package files opens, locks and replaces files at paths that a user gave. Such a file may be anything
// and belong to anybody, and several processes may want it.
//
// Nothing here waits for the other end of a FIFO. Only Replace overwrites a file: a caller of Replace
// must know that the file is its own.
package files

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gofrs/flock"
)

// Resolve returns the absolute path of the file that path leads to, or would lead to if the file existed.
// Links at its end are followed, so that writing there doesn't replace the links.
func Resolve(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	for range 40 { // Linux follows as many links
		info, err := os.Lstat(path)
		if err != nil || info.Mode()&fs.ModeSymlink == 0 {
			return path, nil // opening it will report what is wrong
		}
		to, err := os.Readlink(path)
		if err != nil {
			return "", err
		}
		if !filepath.IsAbs(to) {
			dir, err := filepath.EvalSymlinks(filepath.Dir(path))
			if err != nil {
				return "", err
			}
			to = filepath.Join(dir, to)
		}
		path = to
	}
	return "", fmt.Errorf("%s: too many links", path)
}

// Open opens a regular file for reading; anything else is an error. Other processes may replace or remove
// the file meanwhile, on Windows too.
func Open(path string) (*os.File, error) {
	// Stat comes first, because opening a device may already have an effect.
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if err := regular(path, info); err != nil {
		return nil, err
	}
	f, err := open(path)
	if err != nil {
		return nil, err
	}
	if info, err = f.Stat(); err == nil {
		err = regular(path, info)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func regular(path string, info fs.FileInfo) error {
	if info.IsDir() {
		return fmt.Errorf("%s is a folder", path)
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file: %v", path, info.Mode())
	}
	return nil
}

// leftovers are the names, in lower case, of what macOS, file servers, Windows and file systems leave
// among a user's files.
var leftovers = []string{
	"__macosx", "@eadir", "#recycle", "#snapshot", "$recycle.bin", "system volume information", "lost+found",
	"thumbs.db", "ehthumbs.db", "desktop.ini",
}

// IsLeftover reports whether files or folders of this name are never made on purpose: it begins with a
// dot, or a system leaves it behind.
func IsLeftover(name string) bool {
	return strings.HasPrefix(name, ".") || slices.Contains(leftovers, strings.ToLower(name))
}

// Lock waits for the lock on the file at path. It makes the file if it doesn't exist. Whoever may read
// the file may lock it. Waiting ends with ctx. Don't remove the file: another process may be about to
// lock it.
func Lock(ctx context.Context, path string) (unlock func(), err error) {
	h, err := lock(ctx, path)
	if err != nil {
		return nil, err
	}
	return h.Release, nil
}

func lock(ctx context.Context, path string) (*Held, error) {
	lock, err := lockable(path)
	if err != nil {
		return nil, err
	}
	for wait := firstPause; ; wait = min(2*wait, longestPause) {
		err := ctx.Err()
		locked := false
		if err == nil {
			locked, err = tryLock(lock)
		}
		switch {
		case err != nil:
			return nil, errors.Join(err, lock.Close())
		case locked:
			return &Held{lock, path, lock.Close}, nil
		}
		pause(ctx, wait)
	}
}

// pause waits, at most until ctx ends.
func pause(ctx context.Context, wait time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(wait):
	}
}

// tryLock is a variable for tests of file systems without locks.
var tryLock = (*flock.Flock).TryLock

// lockable makes the file at path, unless it exists, and returns its lock.
func lockable(path string) (*flock.Flock, error) {
	// The file is made by a separate call: in a directory with the sticky bit, such as /tmp, Linux may
	// refuse to open another user's file if the call could have made it.
	made, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	switch {
	case err == nil:
		if err := made.Close(); err != nil {
			return nil, err
		}
	case !errors.Is(err, fs.ErrExist):
		return nil, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if err := regular(path, info); err != nil {
		return nil, err
	}
	return flock.New(path, flock.SetFlag(os.O_RDONLY|nonblock)), nil
}

// These are the waits between two attempts to get a lock that another process has.
const (
	firstPause   = 20 * time.Millisecond
	longestPause = time.Second
)

// SetAside moves a file to an unused name beside it: its name with suffix, or with suffix and a number.
func SetAside(path, suffix string) (kept string, err error) {
	for i := range 100 {
		kept = path + suffix
		if i > 0 {
			kept += strconv.Itoa(i)
		}
		// A link fails if the name exists; a rename would replace the file.
		if err = os.Link(path, kept); err == nil {
			return kept, os.Remove(path)
		}
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		// The file system has no links, or doesn't allow links to other users' files.
		if _, missing := os.Lstat(kept); errors.Is(missing, fs.ErrNotExist) {
			return kept, os.Rename(path, kept)
		}
	}
	return kept, fmt.Errorf("%s can't be moved out of the way: %w", path, err)
}

// Replace gives the file from the name to. It replaces a file that is there, even while others have it
// open. On Windows, if a program doesn't allow that, Replace tries again for some seconds or until ctx
// ends.
func Replace(ctx context.Context, from, to string) error {
	return whileShared(ctx, func() error { return rename(from, to) })
}

// Remove removes a file, even while others have it open.
func Remove(ctx context.Context, path string) error {
	return whileShared(ctx, func() error { return remove(path) })
}

// patience is how long to wait for a program that has a file open: virus scanners and indexers open files
// for a moment.
const patience = 5 * time.Second

// whileShared repeats f while it fails because another program has a file open.
func whileShared(ctx context.Context, f func() error) error {
	start := time.Now()
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		err := f()
		if err == nil || !heldOpen(err) || time.Since(start) > patience {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		}
	}
}

// IsAt reports whether f is the file at path.
func IsAt(f interface{ Stat() (fs.FileInfo, error) }, path string) bool {
	is, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(path)
	return err == nil && os.SameFile(is, there)
}
