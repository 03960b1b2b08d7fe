package files

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"sync"
	"time"
)

// A Held is a lock that can be lost: somebody removes its file, or takes its holder for dead.
// Ask whether it is still held before each write.
type Held struct {
	file    interface{ Stat() (fs.FileInfo, error) }
	path    string
	release func()
}

// Still reports whether the lock is held.
func (h *Held) Still() bool { return IsAt(h.file, h.path) }

// Release lets others have the lock.
func (h *Held) Release() { h.release() }

// Hold is [Lock], also where the file system has no locks, as some of Lustre and NFS. There the
// file path.held is the lock while its holder renews it. Its holder is taken for dead if it hasn't
// for two minutes.
func Hold(ctx context.Context, path string) (*Held, error) {
	h, err := lock(ctx, path)
	if err == nil || !noLocks(err) {
		return h, err
	}
	path += ".held"
	var renewed time.Time
	for looks := 0; ; looks++ {
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		// Meanwhile, another that took the holder before for dead may remove a new file.
		pause(ctx, lookEvery)
		if err == nil {
			h := renew(f, path)
			if ctx.Err() == nil && h.Still() {
				return h, nil
			}
			h.Release()
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		info, err := os.Stat(path)
		switch {
		case err != nil || !info.ModTime().Equal(renewed):
			looks = 0
			if err == nil {
				renewed = info.ModTime()
			}
		case looks >= mostLooks:
			_ = os.Remove(path)
		}
	}
}

// Looks are counted, rather than time, so that a machine that slept finds nobody dead.
const (
	renewEvery = 5 * time.Second
	lookEvery  = time.Second
	mostLooks  = 120 // NFS may tell for a minute what was before
)

// renew renews the file of a lock until the lock is released.
func renew(f *os.File, path string) *Held {
	ctx, stop := context.WithCancel(context.Background())
	var renewing sync.WaitGroup
	h := &Held{file: f, path: path, release: func() {
		stop()
		renewing.Wait()
		still := IsAt(f, path)
		if _ = f.Close(); still {
			_ = os.Remove(path)
		}
	}}
	renewing.Go(func() {
		for pause(ctx, renewEvery); ctx.Err() == nil; pause(ctx, renewEvery) {
			if now := time.Now(); h.Still() {
				_ = os.Chtimes(path, now, now)
			}
		}
	})
	return h
}

// pause waits, at most until ctx ends.
func pause(ctx context.Context, wait time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(wait):
	}
}
