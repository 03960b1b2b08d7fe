package files

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"time"
)

// A Held is a lock that can be lost: another process may remove its file, or assume that its holder has
// died.
type Held struct {
	file    interface{ Stat() (fs.FileInfo, error) }
	path    string
	release func() error
}

// Still reports whether the lock is held, and renews it. Call it before each write.
func (h *Held) Still() bool {
	if !IsAt(h.file, h.path) {
		return false
	}
	now := time.Now()
	_ = os.Chtimes(h.path, now, now) // has no effect with real locks
	return true
}

// Release lets others have the lock.
func (h *Held) Release() { _ = h.release() }

// Hold does what [Lock] does, and also works on file systems without locks, such as some of Lustre and
// NFS. There the file path.held is the lock. If a holder hasn't renewed it for ten minutes, the holder
// counts as dead.
func Hold(ctx context.Context, path string) (*Held, error) {
	h, err := lock(ctx, path)
	if !errors.Is(err, errors.ErrUnsupported) && !errors.Is(err, noLocks) {
		return h, err
	}
	path += ".held"
	var renewed time.Time
	for looks := 0; ; looks++ { // counted in looks, not in time: after sleep, a machine would otherwise take others for dead
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
			// Meanwhile, a process that assumed the last holder dead may have removed the file.
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
			looks = 0 // the file of the next holder may have the same time
		}
	}
}
