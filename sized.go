package nwt

import (
	"context"
	"fmt"
)

// A SizedDataset knows how large its samples are before it loads them. A loader then makes each
// batch only as long as the longest of its samples: see [Batch.Shape]. [Map] tells no sizes: wrap
// it in [Sized].
type SizedDataset interface {
	Dataset
	// Sizes sets sizes to the size of sample index: one number per ragged dimension, field
	// by field. Load may set a smaller size, but not a larger one. Rounded up, there are
	// fewer shapes. Sizes must be quick, and must always tell the same. It may be called
	// from several goroutines at once. If it panics or tells a size out of range, the sample
	// is bad.
	Sizes(index int, sizes []int)
}

// Sized makes a dataset a [SizedDataset] whose Sizes is the given function. [NewLoader] tells
// what can't be used.
func Sized(ds Dataset, sizes func(index int, sizes []int)) Dataset {
	d := &sized{ds: ds}
	_, _, d.err = checkIndexed(ds)
	switch {
	case d.err != nil:
		d.err = within("Sized", d.err)
	case sizes == nil:
		d.err = optionError("Sized", nil, "its function must not be nil")
	default:
		d.whole = overwrites(ds)
		return offer{load: ifBatched(d.loadBatch, ds), tell: sizes}.by(d)
	}
	return d
}

type sized struct {
	whole
	ds  Dataset
	err error // what is wrong with the arguments
}

func (d *sized) invalid() error   { return d.err }
func (d *sized) parts() []Dataset { return []Dataset{d.ds} }
func (d *sized) Len() int {
	if d.err != nil {
		return 0
	}
	return d.ds.Len()
}

func (d *sized) Fields() []Field {
	if d.err != nil {
		return nil
	}
	return d.ds.Fields()
}

func (d *sized) Load(ctx context.Context, index int, dst *Sample) error {
	if d.err != nil {
		return d.err
	}
	return d.ds.Load(ctx, index, dst)
}

func (d *sized) loadBatch(ctx context.Context, indices []int, dst []*Sample) error {
	return d.ds.(BatchDataset).LoadBatch(ctx, indices, dst)
}

// sizesOf is what tells the sizes of a dataset's samples, nil if nothing does.
func sizesOf(ds Dataset) func(index int, sizes []int) {
	switch d := ds.(type) {
	case SizedDataset:
		return d.Sizes
	case interface {
		tells() func(index int, sizes []int)
	}:
		return d.tells()
	}
	return nil
}

// sizesOfParts is sizesOf for each of several datasets. A dataset that doesn't know
// its sizes tells the longest allowed. The result is nil if none of them knows.
func sizesOfParts(ds []Dataset, layoutOf func(part int) *layout) []func(index int, sizes []int) {
	known := false
	tell := make([]func(index int, sizes []int), len(ds))
	for i, d := range ds {
		if tell[i] = sizesOf(d); tell[i] != nil {
			known = true
			continue
		}
		l := layoutOf(i)
		tell[i] = func(_ int, sizes []int) { l.longest(sizes) }
	}
	if !known {
		return nil
	}
	return tell
}

// longest sets sizes to those of the longest sample allowed.
func (l *layout) longest(sizes []int) {
	for i := range l.columns {
		c := &l.columns[i]
		copy(sizes[c.ragged:], c.dims[:c.free])
	}
}

// checkSizes tells what is wrong with the sizes that were told for a sample.
func (l *layout) checkSizes(index int, sizes []int) error {
	for i := range l.columns {
		c := &l.columns[i]
		for d, longest := range c.dims[:c.free] {
			if n := sizes[c.ragged+d]; n < 0 || n > longest {
				return fmt.Errorf("nwt: Sizes(%d) tells %d for dimension %d of field %d (%q): must be 0 … %d", index, n, d, i, c.name, longest)
			}
		}
	}
	return nil
}
