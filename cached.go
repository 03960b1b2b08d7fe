package nwt

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/nwt-go/nwt/internal/pages"
)

// Cached keeps the samples of ds in memory once they are loaded. They take at most
// maxBytes, including 8 bytes of bookkeeping per sample. A sample that doesn't fit
// is loaded anew each time, and so is one that ds gains later. No sample is ever thrown out for another: if every
// sample is visited once per epoch, no choice of what to keep is better.
//
// If several workers or loaders ask for a sample at the same time, one of them
// loads it, and the others wait for it; [WithTimeout] counts that as their own time. A
// sample that can't be loaded isn't kept: the next worker that asks for it tries again.
//
// A kept sample is the same in every epoch. So ds always loads what [LoadSample]
// would load, the sample of epoch 0 and seed 0, whether it fits or not. Augmentation
// belongs in a [Map] over the cache. ds loads one sample at a time, even if it is a
// [BatchDataset].
//
// The memory lies outside the Go heap. It is given back when the dataset is garbage
// or closed. The dataset is an [io.Closer]; after Close, its samples are loaded anew
// each time. If maxBytes is below 1 or ds can't be used, [NewLoader] and [Tune]
// return an error.
func Cached(ds Dataset, maxBytes int64) Dataset {
	c := &cached{ds: ds, maxBytes: maxBytes, blocks: &blocks{}, waiting: map[int]chan struct{}{}}
	n, l, err := checkIndexed(ds)
	switch {
	case err != nil:
		c.err = within("Cached", err)
		return c
	case maxBytes < 1:
		c.err = optionError("Cached", maxBytes, "maxBytes must be at least 1")
		return c
	}
	// Bookkeeping may take half of the bound. Samples without bookkeeping are loaded
	// anew each time.
	c.states = c.blocks.states(min(int64(n), maxBytes/2/stateBytes))
	c.used = int64(len(c.states)) * stateBytes
	c.blocks.init(len(c.states), int64(l.packed()), maxBytes-c.used)
	runtime.AddCleanup(c, func(b *blocks) { _ = b.free() }, c.blocks)
	if tell := sizesOf(ds); tell != nil {
		return &struct {
			*cached
			sizer
		}{c, sizer{tell}}
	}
	return c
}

const stateBytes = 8

// A state is absent, loading, or where the sample is kept.
const (
	absent  uint64 = iota
	loading        // somebody loads the sample; written under mu
	kept           // plus a place in blocks
)

type cached struct {
	ds       Dataset
	err      error // what is wrong with the arguments
	maxBytes int64

	// users is entered by those who use the blocks or states; Close waits until
	// nobody else is in.
	users pages.Users
	// states has the state of each sample; nil once closed. Under mu, absent becomes
	// loading, and loading becomes absent or kept. A kept sample stays kept, so a hit
	// needs no lock.
	states []atomic.Uint64
	blocks *blocks // added to under mu

	mu      sync.Mutex            // taken after users, if both are taken
	waiting map[int]chan struct{} // closed when the sample is no longer loading
	used    int64
	full    atomic.Bool // nothing more is kept; written under mu
}

func (c *cached) cache() *cached   { return c }
func (c *cached) overwrites() bool { return true }
func (c *cached) invalid() error   { return c.err }
func (c *cached) parts() []Dataset { return []Dataset{c.ds} }
func (c *cached) Len() int {
	if c.err != nil {
		return 0
	}
	return c.ds.Len()
}

func (c *cached) Fields() []Field {
	if c.err != nil {
		return nil
	}
	return c.ds.Fields()
}

func (c *cached) Load(ctx context.Context, index int, dst *Sample) error {
	if c.err != nil {
		return c.err
	}
	for {
		if hit, err := c.hit(index, dst); hit {
			return err
		}
		mine, others := c.claim(index)
		switch {
		case mine:
			return c.fill(ctx, index, dst)
		case others == nil:
			return dst.loadAlone(ctx, c.ds, index)
		}
		select {
		case <-others:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// hit copies a sample that is kept. It fails if the sample is larger than the dataset tells.
func (c *cached) hit(index int, dst *Sample) (hit bool, err error) {
	lock := c.users.Enter(dst.worker)
	defer lock.RUnlock()
	if index >= len(c.states) {
		return false, nil
	}
	state := c.states[index].Load()
	if state < kept {
		return false, nil
	}
	_, err = dst.unpack(c.blocks.at(state - kept))
	return true, err
}

// claim tells who loads a sample that wasn't kept a moment ago. If mine is true, the
// caller does. If others isn't nil, somebody else does or has done so, and the caller
// waits for the channel. If neither, the sample is not to be kept.
func (c *cached) claim(index int) (mine bool, others <-chan struct{}) {
	if c.full.Load() {
		return false, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if index >= len(c.states) {
		return false, nil
	}
	switch c.states[index].Load() {
	case absent:
		c.states[index].Store(loading)
		return true, nil
	case loading:
		done := c.waiting[index]
		if done == nil {
			done = make(chan struct{})
			c.waiting[index] = done
		}
		return false, done
	default:
		return false, notLoading
	}
}

// notLoading is a closed channel: nobody needs to wait.
var notLoading = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// fill loads a claimed sample, and keeps it if it can.
func (c *cached) fill(ctx context.Context, index int, dst *Sample) error {
	state := absent
	defer func() { c.loaded(index, state) }()
	if err := dst.loadAlone(ctx, c.ds, index); err != nil {
		return err
	}
	lock := c.users.Enter(dst.worker)
	defer lock.RUnlock()
	place, ok, full := c.reserve(dst.packedSize())
	if ok {
		dst.pack(c.blocks.at(place))
		state = kept + place
	}
	if full != nil {
		dst.log.Warn("nwt: there is no memory for more cached samples; the others are loaded anew", "error", full)
	}
	return nil
}

// reserve finds a place for a sample. The caller has entered users. full is an error if
// there is no memory.
func (c *cached) reserve(size int) (place uint64, ok bool, full error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.full.Load() {
		return 0, false, nil
	}
	left := c.maxBytes - c.used
	if int64(size) <= left {
		if place, full = c.blocks.reserve(size, left); full == nil {
			c.used += int64(size)
			return place, true, nil
		}
		full = fmt.Errorf("%d bytes are cached: %w", c.used, full)
	}
	c.full.Store(true)
	return 0, false, full
}

// loaded ends the loading of a claimed sample.
func (c *cached) loaded(index int, state uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if index < len(c.states) {
		c.states[index].Store(state)
	}
	if done := c.waiting[index]; done != nil {
		delete(c.waiting, index)
		close(done)
	}
}

// Close gives the memory back.
func (c *cached) Close() error {
	var err error
	c.users.Alone(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.full.Store(true)
		c.states, c.used = nil, 0
		err = c.blocks.free()
	})
	return err
}

func (c *cached) bytes() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.used
}
