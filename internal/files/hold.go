package files

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"time"
)

// A Held is a lock that can be lost: somebody removes its file, or takes its holder for dead.
type Held struct {
	file    interface{ Stat() (fs.FileInfo, error) }
	path    string
	release func() error
}

// Still reports whether the lock is held, and renews it. Ask before each write.
func (h *Held) Still() bool {
	if !IsAt(h.file, h.path) {
		return false
	}
	now := time.Now()
	_ = os.Chtimes(h.path, now, now) // of no use to those who have locks
	return true
}

// Release lets others have the lock.
func (h *Held) Release() { _ = h.release() }

// Hold is [Lock], also where the file system has no locks, as some of Lustre and NFS. There the
// file path.held is the lock. A holder that hasn't renewed it for ten minutes is taken for dead.
func Hold(ctx context.Context, path string) (*Held, error) {
	h, err := lock(ctx, path)
	if !errors.Is(err, errors.ErrUnsupported) && !errors.Is(err, noLocks) {
		return h, err
	}
	path += ".held"
	var renewed time.Time
	for looks := 0; ; looks++ { // not time, or a machine that slept would find others dead
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		pause(ctx, time.Second)
		if err == nil {
			h := &Held{f, path, func() error {
				if still, err := IsAt(f, path), f.Close(); !still {
					return err
				}
				return os.Remove(path)
			}}
			// Meanwhile, another that took the last holder for dead may have removed the file.
			if ctx.Err() == nil && IsAt(f, path) {
				return h, nil
			}
			h.Release()
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		info, err := os.Stat(path)
		switch {
		case err != nil:
		case !info.ModTime().Equal(renewed):
			renewed, looks = info.ModTime(), 0
		case looks > 600:
			_ = os.Remove(path)
		}
	}
}
