package nwt

import (
	"context"
	"log/slog"
	"slices"

	"github.com/nwt-go/nwt/internal/cache"
)

// Cached keeps samples of ds in memory outside the Go heap, in at most maxBytes plus 8 bytes per sample. A
// sample that doesn't fit is loaded anew each time. A kept sample is what [LoadSample] returns, the same in
// every epoch, so augment it in a [Map] over the cache. The cache calls Load, not LoadMany. [Stats] counts
// the memory. [NewLoader] checks the arguments.
func Cached(ds Dataset, maxBytes int64) *Cache {
	n, l, err := checkIndexed(ds)
	switch {
	case err != nil:
		err = within("Cached", err)
	case maxBytes < 1:
		err = optionError("Cached", maxBytes, "maxBytes must be at least 1")
	default:
		c := &Cache{ds: ds, kept: cache.New(n, int64(l.Packed()), maxBytes), drawn: warnOfDraws("Cached")}
		if !c.kept.Fits(l.Shortest()) {
			slog.Warn("nwt: Cached keeps nothing: maxBytes is less than a sample takes", "maxBytes", maxBytes, "a sample", l.Shortest())
		}
		return c
	}
	return &Cache{ds: &unusable{err: err}, err: err}
}

// A Cache is a dataset that keeps samples in memory: see [Cached].
type Cache struct {
	ds   Dataset
	err  error        // what is wrong with the arguments
	kept *cache.Cache // holds packed samples; nil if err isn't

	drawn func(*slog.Logger)
}

func (c *Cache) cache() *Cache    { return c }
func (c *Cache) invalid() error   { return c.err }
func (c *Cache) parts() []Dataset { return []Dataset{c.ds} }

// WritesAll tells loaders that Load writes every element: see [WritesAll].
func (c *Cache) WritesAll(asked Dataset) bool { return asked == Dataset(c) }
func (c *Cache) Fingerprint() string          { return fingerprint(c.ds) }
func (c *Cache) Len() int                     { return c.ds.Len() }
func (c *Cache) Fields() []Field              { return c.ds.Fields() }

// Load copies a kept sample. It loads others, and keeps them if there is room.
func (c *Cache) Load(ctx context.Context, index int, dst *Sample) error {
	if c.err != nil {
		return c.err
	}
	take := func(packed []byte) error {
		_, err := dst.unpack(packed) // fails if the sample is larger than the dataset says
		return err
	}
	load := func() (size int, err error) {
		if err := dst.loadAlone(ctx, c.ds, index, c.drawn); err != nil {
			return 0, err
		}
		return dst.common.mem.PackedSize(dst.place), nil
	}
	full, err := c.kept.Get(ctx, dst.common.worker, index, take, load, func(to []byte) { dst.common.mem.Pack(dst.place, to) })
	if full != nil {
		dst.common.log.Warn("nwt: there is no memory for more cached samples; the others are loaded anew", "error", full)
	}
	return err
}

// Close frees the memory. After Close, samples are loaded anew.
func (c *Cache) Close() error {
	if c.err != nil {
		return nil
	}
	return c.kept.Close()
}

func (c *Cache) bytes() int64 {
	if c.err != nil {
		return 0
	}
	return c.kept.Bytes()
}

// cacheBytes returns the memory of the caches that ds is made of, each counted once, and what else its
// datasets remember, as a vision.Folder does.
func cacheBytes(ds Dataset) int64 {
	var sum int64
	seen := map[any]bool{}
	visit(ds, func(ds Dataset) {
		if d, ok := ds.(interface{ cache() *Cache }); ok && !seen[d.cache()] {
			seen[d.cache()] = true
			sum += d.cache().bytes()
		}
		if d, ok := ds.(interface {
			Remembers() (owner any, bytes int64)
		}); ok {
			if owner, bytes := d.Remembers(); !seen[owner] {
				seen[owner] = true
				sum += bytes
			}
		}
	})
	return sum
}

// processesOf returns the processes that load for ds, or for a dataset that it is made of.
func processesOf(ds Dataset) (ids []int) {
	visit(ds, func(ds Dataset) {
		if d, ok := ds.(ProcessDataset); ok {
			ids = append(ids, d.Processes()...)
		}
	})
	slices.Sort(ids)
	return slices.Compact(ids)
}

// visit calls f for ds and for all datasets that it is made of.
func visit(ds Dataset, f func(Dataset)) {
	f(ds)
	var parts []Dataset
	switch d := ds.(type) {
	case composed:
		parts = d.parts()
	case interface{ Unwrap() []Dataset }:
		parts = d.Unwrap()
	}
	for _, part := range parts {
		visit(part, f)
	}
}
