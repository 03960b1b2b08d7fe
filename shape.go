package nwt

import (
	"context"
	"fmt"

	"github.com/nwt-go/nwt/internal/guard"
)

// A SizedDataset is a [Dataset] that knows how large its samples are before it loads
// them. A loader then makes each batch only as long as the longest of its samples: see
// [Batch.Shape]. [Map] tells no sizes: wrap it in [Sized]. The other functions of this
// package keep those of their datasets.
type SizedDataset interface {
	Dataset
	// Sizes sets sizes to the size of sample index: one number per ragged dimension, field
	// by field. Load may set a smaller size, but not a larger one. Rounded up, there are
	// fewer shapes. Sizes must be quick, and must always tell the same. It may be called
	// from several goroutines at once. If it panics or tells a size out of range, the sample
	// is bad.
	Sizes(index int, sizes []int)
}

// Sized makes a dataset a [SizedDataset] whose Sizes is the given function. Sizes that
// ds itself tells are ignored. If sizes is nil, or ds can't be used or is a stream,
// [NewLoader] and [Tune] return an error.
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
	case *Precomputed:
		return sizesOf(d.ds)
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

// A geometry is how the samples of a batch lie in their slot. The goroutine that opens
// the batch writes it before workers see the batch. Then nobody changes it until the
// slot is used again, since calls that were given up may still read it.
type geometry struct {
	columns []column // the layout's; or the slot's own, for the shape of the batch
	offsets []int    // of the fields in mem
	room    int      // places
	used    int      // bytes of mem that they take
	told    []int32  // the sizes that the dataset told for each place, laid out as lens; nil if it tells none
	shapes  [][]int  // of each field of the batch, samples first
}

// untold stands in told for a sample whose sizes can't be used. It was noted as bad
// when its batch was opened.
const untold = -1

// newGeometry is the geometry of the longest batch allowed. If own is true, it may be
// changed.
func (l *Loader) newGeometry(own bool) geometry {
	g := geometry{columns: l.layout.columns, offsets: l.offsets, room: l.opts.batchSize, used: l.slotBytes}
	dims := 0
	for _, c := range g.columns {
		dims += 1 + len(c.dims)
	}
	memory := make([]int, 0, dims)
	for _, c := range g.columns {
		from := len(memory)
		memory = append(append(memory, g.room), c.dims...)
		g.shapes = append(g.shapes, memory[from:len(memory):len(memory)])
	}
	if !own {
		return g
	}
	g.columns, g.offsets = append([]column(nil), g.columns...), append([]int(nil), g.offsets...)
	for f := range g.columns {
		g.columns[f].dims = g.shapes[f][1:]
	}
	if l.sizes != nil {
		g.told = make([]int32, l.opts.batchSize*l.layout.ragged)
	}
	return g
}

// like copies another geometry to g, whose columns are the slot's own.
func (g *geometry) like(other *geometry) {
	for f := range g.columns {
		dims := g.columns[f].dims
		g.columns[f] = other.columns[f]
		g.columns[f].dims = dims
		copy(g.shapes[f], other.shapes[f])
	}
	copy(g.offsets, other.offsets)
	copy(g.told, other.told)
	g.room, g.used = other.room, other.used
}

// arrange lays out n places, each as long as the longest that was told.
func (g *geometry) arrange(l *layout, n int) {
	for f := range g.columns {
		c, full := &g.columns[f], &l.columns[f]
		c.size = full.size
		for d := range c.free {
			longest := 1 // frameworks don't like tensors without elements
			capacity := len(g.told) / l.ragged
			for _, told := range g.told[(c.ragged+d)*capacity:][:n] {
				longest = max(longest, int(told))
			}
			c.dims[d] = longest
			c.size = c.size / full.dims[d] * longest
		}
	}
	g.room, g.used = n, place(g.columns, n, g.offsets)
}

// resize notes how many samples the batch has.
func (b *Batch) resize(n int) {
	b.size = n
	for _, shape := range b.shapes {
		shape[0] = n
	}
}

// Shape is the shape of a field of the whole batch: Len, then the shape of one sample,
// padding included. A ragged dimension is as long as the field allows or, with a
// [SizedDataset], as the longest of the batch's samples (those left out included), and
// at least 1. The slice is valid as long as the batch is, and must not be changed.
func (b *Batch) Shape(field int) []int {
	b.l.layout.column(field)
	return b.shapes[field]
}

// layOut finds out which samples a batch of a SizedDataset has and how large they are,
// and makes the batch as long as the longest of them.
func (r *run) layOut(b *Batch) {
	l := r.l
	if b.known = l.askSampler(b); b.known {
		for place := 0; place < b.size; {
			place = r.askSizes(b, place)
		}
	} else {
		l.layout.longest(r.sizes)
		for place := range b.size {
			b.tell(place, r.sizes)
		}
	}
	b.arrange(l.layout, b.size)
}

// tell notes the sizes that were told for a place.
func (g *geometry) tell(place int, sizes []int) {
	capacity := len(g.told) / len(sizes)
	for dim, n := range sizes {
		g.told[dim*capacity+place] = int32(n)
	}
}

// askSampler sets which samples the batch has. It reports false if the sampler
// panics: then the worker that comes to the sample asks it again, and reports the panic.
func (l *Loader) askSampler(b *Batch) (known bool) {
	defer func() {
		if !known {
			_ = recover()
		}
	}()
	indices := b.indices[:b.size]
	if s, ok := l.sampler.(Filler); ok {
		s.Fill(b.epoch, b.from, indices)
		return true
	}
	for place := range indices {
		indices[place] = l.sampler.At(b.epoch, b.from+place)
	}
	return true
}

// askSizes asks for the sizes of a batch's samples, from a place on. It ends after a
// sample for which Sizes panics, and returns the place after the last one asked for. A
// sample whose sizes can't be used is bad.
func (r *run) askSizes(b *Batch, from int) (next int) {
	l := r.l
	next = from
	finished := false
	defer func() {
		if !finished {
			stack, err := guard.Recovered(recover())
			b.badSizes(next, err, stack)
			next++
		}
	}()
	for ; next < b.size; next++ {
		clear(r.sizes)
		b.tell(next, r.sizes)
		index := b.indices[next]
		if uint(index) >= uint(l.n) {
			continue // a bad sample in any case
		}
		if err := l.askSize(index, r.sizes); err != nil {
			b.badSizes(next, err, nil)
			continue
		}
		b.tell(next, r.sizes)
	}
	finished = true
	return next
}

// askSize asks the dataset for the sizes of a sample.
func (l *Loader) askSize(index int, sizes []int) error {
	for dim := range sizes {
		sizes[dim] = untold
	}
	l.sizes(index, sizes)
	return l.layout.checkSizes(index, sizes)
}

// badSizes notes that a sample is bad because its sizes can't be used.
func (b *Batch) badSizes(place int, err error, stack []byte) {
	b.told[place] = untold
	b.bad.add(place, &LoadError{Index: b.indices[place], Position: b.position(place), Epoch: b.epoch, Err: err, Stack: stack})
}
