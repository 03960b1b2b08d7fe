package nwt

import (
	"context"
	"errors"
	"fmt"
)

// A Dataset is a map-style source of samples. Load may be called from many goroutines at
// once, also for different places of the same batch. An element of dst that it doesn't
// write is 0, except with [Overwrites]. Load must not keep dst or a slice of it after it
// returns, nor close the loader that calls it.
type Dataset interface {
	// Len is the number of samples. A loader asks for it when an epoch begins (with
	// [Loader.Epochs] the first one) and in [Loader.SetSampler]. Until an epoch is over,
	// even if it is resumed later, neither Len nor what an index stands for may change. All
	// ranks need the same Len.
	Len() int
	// Fields is the layout of one sample. It must not change.
	Fields() []Field
	// Load loads sample index, 0 ≤ index < Len. The context ends when the
	// epoch does.
	Load(ctx context.Context, index int, dst *Sample) error
}

// A BatchDataset is a Dataset that would rather load many samples in one call:
// by a database query, an HTTP range, a Parquet row group.
type BatchDataset interface {
	Dataset
	// LoadBatch loads sample indices[i] into dst[i], for each i, under the rules of Load. It
	// gets at most a batch of samples, which lie one after the other in memory, see
	// [ValuesOf]. It may sort both slices. If it fails, the loader logs that once, finds the
	// bad samples by halving, and calls Load for each of them.
	LoadBatch(ctx context.Context, indices []int, dst []*Sample) error
}

// NewDataset makes a dataset of n samples from a function, which must keep the
// rules of [Dataset]'s Load. If n, fields or load can't be used, [NewLoader] and
// [Tune] return an error.
func NewDataset(n int, fields []Field, load func(ctx context.Context, index int, dst *Sample) error) Dataset {
	return &funcDataset{n: n, fields: fields, load: load}
}

type funcDataset struct {
	whole
	n      int
	fields []Field
	load   func(ctx context.Context, index int, dst *Sample) error
}

func (d *funcDataset) Len() int { return d.n }

func (d *funcDataset) Fields() []Field { return d.fields }

func (d *funcDataset) Load(ctx context.Context, index int, dst *Sample) error {
	return d.load(ctx, index, dst)
}

func (d *funcDataset) invalid() error {
	if d.load == nil {
		return optionError("NewDataset", nil, "its load function must not be nil")
	}
	return nil
}

// Overwrites is ds with the promise that each call of Load writes every element of every
// field, of a ragged field up to its length, so the loader needn't clear the sample's
// place before. If the promise is broken, what isn't written holds values of an earlier
// sample. The result keeps ds's other interfaces.
//
// [FromSlices], [Cached], [Precompute] and vision's Folder promise that by themselves.
// [Subset], [Split], [Concat], [Zip] and [Sized] do if all their datasets do; [Map]
// doesn't. A dataset can promise it by a method Overwrites(ds Dataset) bool, which tells
// whether ds is the dataset itself and not one that embeds it.
func Overwrites(ds Dataset) Dataset {
	if ds == nil || bool(overwrites(ds)) {
		return ds
	}
	switch d := ds.(type) {
	case *funcDataset:
		c := *d
		c.whole = true
		return &c
	case *streamDataset:
		c := *d
		c.whole = true
		return &c
	case validated:
		if d.invalid() != nil {
			return ds
		}
	}
	o := offer{tell: sizesOf(ds)}
	if b, ok := ds.(BatchDataset); ok {
		o.load = b.LoadBatch
	}
	if s, ok := ds.(SubsetDataset); ok {
		o.index = s.Index
	}
	return o.by(&overwriting{ds})
}

// overwriting is a dataset that Overwrites was called for.
type overwriting struct{ Dataset }

func (d *overwriting) parts() []Dataset { return []Dataset{d.Dataset} }
func (d *overwriting) overwrites() bool { return true }

// whole is embedded in datasets. It tells whether Load writes every element.
type whole bool

func (w whole) overwrites() bool { return bool(w) }

// overwrites tells whether the Load of each dataset is known to write every element.
func overwrites(ds ...Dataset) whole {
	for _, d := range ds {
		switch o := d.(type) {
		case interface{ overwrites() bool }:
			if !o.overwrites() {
				return false
			}
		case interface{ Overwrites(ds Dataset) bool }:
			if !o.Overwrites(d) {
				return false
			}
		default:
			return false
		}
	}
	return true
}

// validated is a dataset made by a function that returns no error. invalid tells
// what is wrong with the function's arguments.
type validated interface{ invalid() error }

// lengthNow is the length of a dataset that was checked before, and may have changed.
func lengthNow(ds Dataset) (n int, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = optionError("Dataset", fmt.Sprintf("%T", ds), "Len panicked: %v", p)
		}
	}()
	if n = ds.Len(); n < 1 || n > maxSamples {
		return 0, optionError("Dataset.Len", n, "must be 1 … %d", maxSamples)
	}
	return n, nil
}

// checkDataset is what NewLoader, Tune and LoadSample require of a dataset.
func checkDataset(ds Dataset) (n int, l *layout, err error) {
	if ds == nil {
		return 0, nil, optionError("Dataset", nil, "must not be nil")
	}
	defer func() {
		if p := recover(); p != nil {
			err = optionError("Dataset", fmt.Sprintf("%T", ds), "Len or Fields panicked: %v", p)
		}
	}()
	var errs []error
	if v, ok := ds.(validated); ok {
		if err := v.invalid(); err != nil {
			if _, plain := ds.(*funcDataset); !plain { // Len and Fields may need what is wrong
				return 0, nil, err
			}
			errs = append(errs, err)
		}
	}
	if s, ok := ds.(*streamDataset); ok {
		if err := s.check(); err != nil {
			return 0, nil, err
		}
		l, err = newLayout(ds.Fields())
		return endless, l, err
	}
	if n = ds.Len(); n < 1 || n > maxSamples {
		errs = append(errs, optionError("Dataset.Len", n, "must be 1 … %d", maxSamples))
	}
	l, err = newLayout(ds.Fields())
	return n, l, errors.Join(append(errs, err)...)
}
