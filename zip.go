package nwt

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// Zip puts datasets side by side: its sample i has the fields of sample i of each. They must have
// the same length and no field name in common. All draw from one [Sample.Rand]. To read the
// whole, declare a [Schema] of all fields, in order.
func Zip(ds ...Dataset) (Dataset, error) {
	if len(ds) == 0 {
		return nil, optionError("Zip", ds, "needs at least one dataset")
	}
	z := &zipped{ds: slices.Clone(ds)}
	var errs []error
	field, ragged := 0, 0
	owner := map[string]int{}
	for i, d := range ds {
		n, l, err := checkIndexed(d)
		if err != nil {
			errs = append(errs, within(fmt.Sprintf("Zip: dataset %d", i), err))
			continue
		}
		if z.n == 0 {
			z.n = n
		}
		if n != z.n {
			errs = append(errs, optionError("Zip", n, "dataset %d must be as long as those before, %d samples", i, z.n))
		}
		for _, f := range l.fields {
			if other, taken := owner[f.Name]; taken {
				errs = append(errs, optionError("Zip", f.Name, "a field of dataset %d must not have the name of a field of dataset %d", i, other))
			}
			owner[f.Name] = i
		}
		z.parted = append(z.parted, zipPart{l, field, ragged})
		z.fields = append(z.fields, l.fields...)
		field, ragged = field+len(l.columns), ragged+l.ragged
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if _, err := newLayout(z.fields); err != nil {
		return nil, within("Zip", err)
	}
	z.whole = overwrites(ds...)
	return offer{load: ifBatched(z.loadBatch, ds...), tell: z.sizes()}.by(z), nil
}

type zipped struct {
	whole
	ds     []Dataset
	n      int
	fields []Field
	parted []zipPart
}

// zipPart is where the fields of a dataset lie among those of all.
type zipPart struct {
	layout        *layout
	field, ragged int // the first of them, and the first ragged dimension
}

func (d *zipped) Len() int         { return d.n }
func (d *zipped) Fields() []Field  { return cloneFields(d.fields) }
func (d *zipped) parts() []Dataset { return d.ds }

func (d *zipped) sizes() func(index int, sizes []int) {
	tells := sizesOfParts(d.ds, func(i int) *layout { return d.parted[i].layout })
	if tells == nil {
		return nil
	}
	return func(index int, sizes []int) {
		for i, tell := range tells {
			part := &d.parted[i]
			tell(index, sizes[part.ragged:part.ragged+part.layout.ragged])
		}
	}
}

func (d *zipped) Load(ctx context.Context, index int, dst *Sample) error {
	for i, ds := range d.ds {
		if err := ds.Load(ctx, index, d.views(i, dst)[0]); err != nil {
			return err
		}
	}
	return nil
}

func (d *zipped) loadBatch(ctx context.Context, indices []int, dst []*Sample) error {
	for i, ds := range d.ds {
		views := d.views(i, dst...)
		if b, ok := ds.(BatchDataset); ok {
			if err := b.LoadBatch(ctx, slices.Clone(indices), views); err != nil {
				return err
			}
			continue
		}
		for k, index := range indices {
			if err := ds.Load(ctx, index, views[k]); err != nil {
				return err
			}
		}
	}
	return nil
}

// views is the fields of dataset i in each of dst. Like scratchFor's samples they
// live as long as the first of dst.
func (d *zipped) views(i int, dst ...*Sample) []*Sample {
	first, part := dst[0], d.parted[i]
	views := first.blockOf(part.layout, len(dst), func(l *layout, n int) []*Sample { return newSamples(&common{layout: l}, n) })
	lens := 0
	if first.layout.ragged > 0 {
		lens = len(first.lens) / first.layout.ragged // of each ragged dimension
	}
	c := *first.common
	c.layout, c.records = part.layout, nil
	fields := len(part.layout.columns)
	c.columns, c.offsets = first.columns[part.field:part.field+fields], first.offsets[part.field:part.field+fields]
	ragged, end := part.ragged*lens, (part.ragged+part.layout.ragged)*lens
	c.first, c.lens = first.first+part.ragged, first.lens[ragged:end]
	if c.told != nil {
		c.told = first.told[ragged:end]
	}
	*views[0].common = c
	for k, v := range views {
		v.outer = dst[k]
		v.turnTo(dst[k].place, dst[k].index)
		v.scope = inner(dst[k].scope, i+1)
	}
	return views
}
