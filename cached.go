package nwt

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/nwt-go/nwt/internal/pages"
)

// Cached keeps the samples of ds in memory once they are loaded, up to maxBytes
// of them, 8 bytes of bookkeeping for each sample included. What doesn't fit is
// loaded anew each time, and nothing is ever thrown out for it: where every
// sample is visited once an epoch, no choice of what to keep is better.
//
// However many workers and loaders ask for a sample at the same time, it is
// loaded once, and the others wait for it. A sample that can't be loaded isn't
// kept: the next to ask tries again.
//
// A kept sample is the same in every epoch, so ds is always asked for what
// [LoadSample] would load, that of epoch 0 and seed 0, whether it fits or not.
// Augmentation belongs in a [Map] over the cache. It is asked for one sample at
// a time, even if it is a [BatchDataset].
//
// The memory lies outside the Go heap. It is given back when the dataset is
// garbage, or at once when it is closed: it is an io.Closer, and its samples are
// loaded anew from then on. A bound below 1, and a dataset that can't be used,
// are reported by [NewLoader] and [Tune].
func Cached(ds Dataset, maxBytes int64) Dataset {
	c := &cached{ds: ds, maxBytes: maxBytes, blocks: &blocks{}, waiting: map[int]chan struct{}{}}
	n, l, err := checkIndexed(ds)
	switch {
	case err != nil:
		c.err = fmt.Errorf("nwt: Cached: %w", err)
		return c
	case maxBytes < 1:
		c.err = optionError("Cached", maxBytes, "maxBytes must be at least 1")
		return c
	}
	c.n = n
	// Bookkeeping may take half of the bound; samples that it can't cover are
	// loaded anew.
	c.states = make([]atomic.Uint64, min(int64(n), maxBytes/2/stateBytes))
	c.used = int64(len(c.states)) * stateBytes
	c.blocks.init(len(c.states), int64(l.packed()), maxBytes-c.used)
	runtime.AddCleanup(c, func(b *blocks) { _ = b.free() }, c.blocks)
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
	n        int
	err      error // what is wrong with the arguments
	maxBytes int64

	// memory is entered to use the blocks or states; Close has it alone.
	memory inUse
	// states tells of each sample what is known of it; nil once closed. Absent
	// becomes loading and that becomes absent or kept under mu; kept stays, so
	// that a hit needs no lock.
	states []atomic.Uint64
	blocks *blocks // added to under mu

	mu      sync.Mutex            // taken after memory, where both are
	waiting map[int]chan struct{} // closed when the sample is no longer loading
	used    int64
	full    atomic.Bool // nothing more is kept; written under mu
}

func (c *cached) Len() int         { return c.n }
func (c *cached) invalid() error   { return c.err }
func (c *cached) parts() []Dataset { return []Dataset{c.ds} }
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
	for !c.hit(index, dst) {
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
	return nil
}

// hit copies a sample that is kept.
func (c *cached) hit(index int, dst *Sample) bool {
	lock := c.memory.enter(dst.worker)
	defer lock.RUnlock()
	if index >= len(c.states) {
		return false
	}
	state := c.states[index].Load()
	if state < kept {
		return false
	}
	_, ok := dst.unpack(c.blocks.at(state - kept))
	return ok
}

// claim tells who is to load a sample that wasn't kept a moment ago: the caller,
// or others, for whom to wait; if neither, it is not to be kept.
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
		return false, settled
	}
}

// settled is what to wait for where there is nothing to wait for.
var settled = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// fill loads a claimed sample, and keeps it if it can.
func (c *cached) fill(ctx context.Context, index int, dst *Sample) error {
	state := absent
	defer func() { c.settle(index, state) }()
	if err := dst.loadAlone(ctx, c.ds, index); err != nil {
		return err
	}
	lock := c.memory.enter(dst.worker)
	defer lock.RUnlock()
	if place, ok := c.reserve(dst.packedSize()); ok {
		dst.pack(c.blocks.at(place))
		state = kept + place
	}
	return nil
}

// reserve finds a place for a sample. The caller is in memory.
func (c *cached) reserve(size int) (place uint64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.full.Load() {
		return 0, false
	}
	left := c.maxBytes - c.used
	if int64(size) <= left {
		var err error
		if place, err = c.blocks.reserve(size, left); err == nil {
			c.used += int64(size)
			return place, true
		}
		slog.Warn("nwt: there is no memory for more cached samples; the others are loaded anew", "cached bytes", c.used, "error", err)
	}
	c.full.Store(true)
	return 0, false
}

// settle ends the loading of a claimed sample.
func (c *cached) settle(index int, state uint64) {
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
	c.memory.alone(func() {
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

// inUse lets workers use memory until somebody frees it. Each has a lock on a
// cache line of its own, as long as they are no more than the locks.
type inUse [32]struct {
	sync.RWMutex
	_ [40]byte
}

// enter returns a lock that is held for reading.
func (u *inUse) enter(worker int) *sync.RWMutex {
	lock := &u[worker%len(u)].RWMutex
	lock.RLock()
	return lock
}

// alone runs f while nobody is in.
func (u *inUse) alone(f func()) {
	for i := range u {
		u[i].Lock()
		defer u[i].Unlock()
	}
	f()
}

// blocks is memory outside the Go heap, in few large pieces, for packed samples.
// A place is the number of its block and, in the low bits, the offset in it. It
// says nothing of who may use it when: that is the cache's to know.
type blocks struct {
	list  [maxBlocks][]byte
	count int
	size  int64 // of a block
	end   int64 // of what is reserved in the last block
}

const (
	minBlock   = 32 << 20 // pages of it that aren't written take no memory
	maxBlock   = 4 << 30  // or eight samples; the kernel refuses what is more than it has
	maxBlocks  = 1200
	offsetBits = 44
)

// init chooses the size of a block for n samples of at most most bytes, in at
// most limit bytes: several samples long, so that less than an eighth of it
// stays empty, and such that maxBlocks are enough for terabytes.
func (b *blocks) init(n int, most, limit int64) {
	if n > 0 && most <= limit/int64(n) {
		limit = most * int64(n)
	}
	b.size = max(minBlock, 8*most, min(limit/1024, maxBlock))
}

// reserve finds a place of size bytes, taking at most left more of the system.
func (b *blocks) reserve(size int, left int64) (place uint64, err error) {
	if b.count == 0 || int64(len(b.list[b.count-1]))-b.end < int64(size) {
		if b.count == maxBlocks {
			return 0, fmt.Errorf("nwt: all %d blocks are in use", maxBlocks)
		}
		mem, err := pages.Map(int(max(int64(size), min(b.size, left))))
		if err != nil {
			return 0, err
		}
		b.list[b.count] = mem
		b.count++
		b.end = 0
	}
	place = uint64(b.count-1)<<offsetBits | uint64(b.end)
	b.end += int64(size)
	return place, nil
}

// at is the memory from a place on.
func (b *blocks) at(place uint64) []byte {
	return b.list[place>>offsetBits][place&(1<<offsetBits-1):]
}

func (b *blocks) free() error {
	var first error
	for i := range b.count {
		if err := pages.Unmap(b.list[i]); err != nil && first == nil {
			first = err
		}
		b.list[i] = nil
	}
	b.count = 0
	return first
}

// A packed sample is the lengths of its ragged fields, as int32, and then its
// fields one after the other, ragged ones only as long as they are.

// packed is the bytes of the longest packed sample.
func (l *layout) packed() int { return l.ragged*4 + l.bytes }

// filled is the bytes of a field that the sample has set.
func (s *Sample) filled(c *column) int {
	if c.ragged < 0 {
		return c.size
	}
	return int(*s.lenOf(c)) * c.row
}

func (s *Sample) packedSize() int {
	size := s.layout.ragged * 4
	for f := range s.layout.columns {
		size += s.filled(&s.layout.columns[f])
	}
	return size
}

// pack writes packedSize bytes to dst.
func (s *Sample) pack(dst []byte) {
	for f := range s.layout.columns {
		if c := &s.layout.columns[f]; c.ragged >= 0 {
			binary.NativeEndian.PutUint32(dst, uint32(*s.lenOf(c)))
			dst = dst[4:]
		}
	}
	for f := range s.layout.columns {
		dst = dst[copy(dst, s.Bytes(f)[:s.filled(&s.layout.columns[f])]):]
	}
}

// unpack reads the sample from src and returns what follows it there; not ok
// where src isn't a packed sample of this layout.
func (s *Sample) unpack(src []byte) (rest []byte, ok bool) {
	for f := range s.layout.columns {
		c := &s.layout.columns[f]
		if c.ragged < 0 {
			continue
		}
		if len(src) < 4 {
			return nil, false
		}
		n := binary.NativeEndian.Uint32(src)
		if uint64(n) > uint64(c.rows) {
			return nil, false
		}
		*s.lenOf(c) = int32(n)
		src = src[4:]
	}
	for f := range s.layout.columns {
		n := s.filled(&s.layout.columns[f])
		if len(src) < n {
			return nil, false
		}
		copy(s.Bytes(f), src[:n])
		src = src[n:]
	}
	return src, true
}

// loadAlone loads a sample into s as LoadSample would, for epoch 0 and seed 0,
// and leaves what s is otherwise for.
func (s *Sample) loadAlone(ctx context.Context, ds Dataset, index int) error {
	was := *s
	defer func() {
		s.common, s.index, s.outer = was.common, was.index, was.outer
		s.pcg, s.seeded = was.pcg, was.seeded
	}()
	if s.alone == nil {
		s.alone = &common{}
	}
	*s.alone = *s.common
	s.alone.seedKey, s.alone.epoch = seedKey(0), 0
	s.common, s.outer = s.alone, nil
	s.begin(s.place, index)
	if err := ds.Load(ctx, index, s); err != nil {
		return err
	}
	return s.end()
}
