// Package cache keeps the bytes of loaded items outside the Go heap, up to a bound. A kept item is never
// dropped for another.
package cache

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/nwt-go/nwt/internal/osmemory"
)

const stateBytes = 8

// A state is absent, loading, or the place where the item is kept.
const (
	absent  uint64 = iota
	loading        // a goroutine loads the item; written under mu
	kept           // plus a place in blocks
)

// A Cache frees its memory when it is collected or closed.
type Cache struct {
	maxBytes int64

	// Whoever uses the blocks or states enters users; Close waits until nobody else is in.
	users osmemory.Users
	// states holds the state of each item; it is nil once the cache is closed. Under mu, absent becomes
	// loading, and loading becomes absent or kept. A kept item stays kept, so a hit needs no lock.
	states []atomic.Uint64
	blocks *blocks // added to under mu

	mu      sync.Mutex            // taken after users, if both are taken
	waiting map[int]chan struct{} // closed when the item is no longer loading
	used    int64
	full    atomic.Bool // no more items can be kept; written under mu
}

// New returns a cache for n items. most is the size of the largest item in bytes. The cache takes at most
// maxBytes, including stateBytes of bookkeeping per item. Bookkeeping may take half of maxBytes. An item
// without bookkeeping isn't kept.
func New(n int, most, maxBytes int64) *Cache {
	c := &Cache{maxBytes: maxBytes, blocks: &blocks{}, waiting: map[int]chan struct{}{}}
	c.states = c.blocks.states(min(int64(n), maxBytes/2/stateBytes))
	c.used = int64(len(c.states)) * stateBytes
	c.blocks.init(len(c.states), most, maxBytes-c.used)
	runtime.AddCleanup(c, func(b *blocks) { _ = b.free() }, c.blocks)
	return c
}

// Fits reports whether an item fits that has size bytes, as long as no other is kept.
func (c *Cache) Fits(size int) bool { return len(c.states) > 0 && int64(size) <= c.maxBytes-c.used }

// Get passes to take the bytes of an item that is kept, and whatever follows them. If it isn't kept, Get
// calls load, which returns how many bytes the item has, and, if the item fits, keep, which writes them.
// If another goroutine is loading the item, Get waits for it, or until ctx ends. full says why no more
// items can be kept, if memory is short; it is returned once. worker is the caller's number: workers with
// different numbers seldom contend.
func (c *Cache) Get(ctx context.Context, worker, index int, take func([]byte) error, load func() (size int, err error), keep func([]byte)) (full, err error) {
	for {
		if hit, err := c.hit(worker, index, take); hit {
			return nil, err
		}
		mine, others := c.claim(index)
		switch {
		case mine:
			return c.fill(worker, index, load, keep)
		case others == nil:
			_, err := load()
			return nil, err
		}
		select {
		case <-others:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (c *Cache) hit(worker, index int, take func([]byte) error) (hit bool, err error) {
	lock := c.users.Enter(worker)
	defer lock.RUnlock()
	if index >= len(c.states) {
		return false, nil
	}
	state := c.states[index].Load()
	if state < kept {
		return false, nil
	}
	return true, take(c.blocks.at(state - kept))
}

// claim decides who loads an item that wasn't kept a moment ago. If mine is true, the caller does. If
// others isn't nil, another goroutine is loading it or has loaded it, and the caller waits for the
// channel. Otherwise the item can't be kept.
func (c *Cache) claim(index int) (mine bool, others <-chan struct{}) {
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

// notLoading is a closed channel, so that nobody waits for it.
var notLoading = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// fill loads a claimed item, and keeps it if it can.
func (c *Cache) fill(worker, index int, load func() (int, error), keep func([]byte)) (full, err error) {
	state := absent
	defer func() { c.loaded(index, state) }()
	size, err := load()
	if err != nil {
		return nil, err
	}
	lock := c.users.Enter(worker)
	defer lock.RUnlock()
	place, ok, full := c.reserve(size)
	if ok {
		keep(c.blocks.at(place))
		state = kept + place
	}
	return full, nil
}

// reserve finds a place for an item. The caller has entered users. full is the error if there is no
// memory.
func (c *Cache) reserve(size int) (place uint64, ok bool, full error) {
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

// loaded ends the loading of a claimed item.
func (c *Cache) loaded(index int, state uint64) {
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

// Close frees the memory.
func (c *Cache) Close() error {
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

// Bytes returns how much memory is in use, including bookkeeping.
func (c *Cache) Bytes() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.used
}
