package nwt

import (
	"context"
	"fmt"
	"math"
	"slices"
)

// Subset is the samples of ds at indices, in the order of indices. An index may
// occur more than once; its occurrences are augmented differently, since
// [Sample.Rand] depends on the position. The indices are copied.
func Subset(ds Dataset, indices []int) (Dataset, error) {
	n, _, err := checkIndexed(ds)
	if err != nil {
		return nil, within("Subset", err)
	}
	if len(indices) == 0 {
		return nil, optionError("Subset", indices, "needs at least one index")
	}
	for i, index := range indices {
		if index < 0 || index >= n {
			return nil, optionError("Subset", index, "index number %d is out of range 0 … %d", i, n-1)
		}
	}
	indices = slices.Clone(indices)
	return newSubset(ds, len(indices), func(i int) int { return indices[i] }), nil
}

// A SubsetDataset holds samples of another dataset: it is what [Subset] and [Split]
// return.
type SubsetDataset interface {
	Dataset
	// Index is where sample i is in the dataset that the subset was made of. It panics
	// if i isn't 0 … Len−1.
	Index(i int) int
}

type subset struct {
	whole
	ds Dataset
	n  int
	at func(i int) int // index in ds of sample i
}

// newSubset makes a subset of n samples.
func newSubset(ds Dataset, n int, at func(i int) int) Dataset {
	d := &subset{overwrites(ds), ds, n, at}
	o := offer{load: ifBatched(d.loadBatch, ds), index: d.index}
	if tell := sizesOf(ds); tell != nil {
		o.tell = func(index int, sizes []int) { tell(at(index), sizes) }
	}
	return o.by(d)
}

func (d *subset) Len() int         { return d.n }
func (d *subset) Fields() []Field  { return d.ds.Fields() }
func (d *subset) parts() []Dataset { return []Dataset{d.ds} }
func (d *subset) Load(ctx context.Context, index int, dst *Sample) error {
	return d.ds.Load(ctx, d.at(index), dst)
}

func (d *subset) index(i int) int {
	if i < 0 || i >= d.n {
		panic(fmt.Sprintf("nwt: Index(%d) is out of range: the dataset has %d samples", i, d.n))
	}
	return d.at(i)
}

func (d *subset) loadBatch(ctx context.Context, indices []int, dst []*Sample) error {
	there := make([]int, len(indices))
	for i, index := range indices {
		there[i] = d.at(index)
	}
	return d.ds.(BatchDataset).LoadBatch(ctx, there, dst)
}

// Concat is the samples of several datasets, one after the other. Their fields
// must be the same, names included; the error names the first difference.
func Concat(ds ...Dataset) (Dataset, error) {
	if len(ds) == 0 {
		return nil, optionError("Concat", ds, "needs at least one dataset")
	}
	c := &concat{ds: slices.Clone(ds)}
	end := 0
	for i, d := range ds {
		n, l, err := checkIndexed(d)
		if err != nil {
			return nil, within(fmt.Sprintf("Concat: dataset %d", i), err)
		}
		if i == 0 {
			c.layout = l
		}
		if diff := difference(c.layout.fields, l.fields); diff != "" {
			return nil, optionError("Concat", i, "dataset %d differs from dataset 0: %s", i, diff)
		}
		if n > math.MaxInt-end {
			return nil, optionError("Concat", n, "the samples up to dataset %d are more than %d", i, math.MaxInt)
		}
		end += n
		c.ends = append(c.ends, end)
	}
	c.whole = overwrites(ds...)
	return offer{load: ifBatched(c.loadBatch, ds...), tell: c.sizes()}.by(c), nil
}

// difference is the first difference between what fields should be and what they
// are; "" if there is none.
func difference(want, got []Field) string {
	for i := range max(len(want), len(got)) {
		switch {
		case i == len(got):
			return fmt.Sprintf("field %d (%q) is missing", i, want[i].Name)
		case i == len(want):
			return fmt.Sprintf("field %d (%q) is one too many", i, got[i].Name)
		}
		w, g := want[i], got[i]
		switch {
		case g.Name != w.Name:
			return fmt.Sprintf("field %d has the name %q, want %q", i, g.Name, w.Name)
		case g.Type != w.Type:
			return fmt.Sprintf("field %d (%q) has the type %v, want %v", i, g.Name, g.Type, w.Type)
		case !slices.Equal(g.Shape, w.Shape):
			return fmt.Sprintf("field %d (%q) has the shape %v, want %v", i, g.Name, g.Shape, w.Shape)
		case g.Ragged != w.Ragged:
			return fmt.Sprintf("field %d (%q) has Ragged %t, want %t", i, g.Name, g.Ragged, w.Ragged)
		case g.raggedDims() != w.raggedDims():
			return fmt.Sprintf("field %d (%q) has %d ragged dimensions, want %d", i, g.Name, g.raggedDims(), w.raggedDims())
		}
	}
	return ""
}

type concat struct {
	whole
	ds     []Dataset
	layout *layout
	ends   []int // the number of samples up to each dataset, itself included
}

func (d *concat) Len() int         { return d.ends[len(d.ends)-1] }
func (d *concat) Fields() []Field  { return d.ds[0].Fields() }
func (d *concat) parts() []Dataset { return d.ds }
func (d *concat) Load(ctx context.Context, index int, dst *Sample) error {
	part, index := d.find(index)
	outer := dst.scope
	dst.scope = inner(outer, part+1)
	err := d.ds[part].Load(ctx, index, dst)
	dst.scope = outer
	return err
}

func (d *concat) sizes() func(index int, sizes []int) {
	tell := sizesOfParts(d.ds, func(int) *layout { return d.layout })
	if tell == nil {
		return nil
	}
	return func(index int, sizes []int) {
		part, there := d.find(index)
		tell[part](there, sizes)
	}
}

// find is the dataset that a sample is in, and its index there.
func (d *concat) find(index int) (part, there int) {
	part, last := slices.BinarySearch(d.ends, index)
	if last {
		part++ // the end of a dataset is the first index of the next one
	}
	if part > 0 {
		index -= d.ends[part-1]
	}
	return part, index
}

// loadBatch loads the samples of each dataset together, with one call per dataset
// if that is a BatchDataset.
func (d *concat) loadBatch(ctx context.Context, indices []int, dst []*Sample) error {
	there, samples := make([][]int, len(d.ds)), make([][]*Sample, len(d.ds))
	for i, index := range indices {
		part, index := d.find(index)
		there[part], samples[part] = append(there[part], index), append(samples[part], dst[i])
	}
	for part := range d.ds {
		if err := d.loadPart(ctx, part, there[part], samples[part]); err != nil {
			return err
		}
	}
	return nil
}

// loadPart loads samples of one dataset.
func (d *concat) loadPart(ctx context.Context, part int, indices []int, dst []*Sample) error {
	if len(dst) == 0 {
		return nil
	}
	outer := dst[0].scope
	for _, s := range dst {
		s.scope = inner(outer, part+1)
	}
	err := d.loadHere(ctx, d.ds[part], indices, dst)
	for _, s := range dst {
		s.scope = outer
	}
	return err
}

func (d *concat) loadHere(ctx context.Context, ds Dataset, indices []int, dst []*Sample) error {
	b, ok := ds.(BatchDataset)
	switch {
	case !ok:
		for i, index := range indices {
			if err := ds.Load(ctx, index, dst[i]); err != nil {
				return err
			}
		}
		return nil
	case adjoin(dst):
		return b.LoadBatch(ctx, indices, dst)
	}
	src := scratchFor(d.layout, !bool(overwrites(ds)), dst...)
	for _, s := range src {
		s.scope = s.outer.scope // the dataset's, wherever its samples lie
	}
	if err := b.LoadBatch(ctx, indices, src); err != nil {
		return err
	}
	for _, s := range src { // LoadBatch may have sorted them
		if err := s.copyTo(s.outer); err != nil {
			return err
		}
	}
	return nil
}

// Map is a dataset whose samples, with the given fields, f makes from the samples of ds:
// it augments, decodes or selects. For each sample, ds loads into src, then f writes
// dst; f may write to src too. Both draw from the same Rand. If f is nil, or ds or
// fields can't be used, [NewLoader] and [Tune] return an error.
func Map(ds Dataset, fields []Field, f func(ctx context.Context, src, dst *Sample) error) Dataset {
	m := &mapped{ds: ds, clears: !bool(overwrites(ds)), fields: fields, f: f}
	_, m.src, m.err = checkIndexed(ds)
	switch {
	case m.err != nil:
		m.err = within("Map", m.err)
	case f == nil:
		m.err = optionError("Map", nil, "its function must not be nil")
	default:
		return offer{load: ifBatched(m.loadBatch, ds)}.by(m)
	}
	return m
}

type mapped struct {
	ds     Dataset
	src    *layout // of ds
	clears bool    // ds may leave elements unwritten
	fields []Field
	f      func(ctx context.Context, src, dst *Sample) error
	err    error // what is wrong with the arguments
}

func (d *mapped) Fields() []Field  { return d.fields }
func (d *mapped) invalid() error   { return d.err }
func (d *mapped) parts() []Dataset { return []Dataset{d.ds} }
func (d *mapped) Len() int {
	if d.err != nil {
		return 0
	}
	return d.ds.Len()
}

func (d *mapped) Load(ctx context.Context, index int, dst *Sample) error {
	if d.err != nil {
		return d.err
	}
	src := scratchFor(d.src, d.clears, dst)[0]
	if err := d.ds.Load(ctx, index, src); err != nil {
		return err
	}
	return d.apply(ctx, src)
}

func (d *mapped) loadBatch(ctx context.Context, indices []int, dst []*Sample) error {
	src := scratchFor(d.src, d.clears, dst...)
	if err := d.ds.(BatchDataset).LoadBatch(ctx, indices, src); err != nil {
		return err
	}
	for _, s := range src { // LoadBatch may have sorted them
		if err := d.apply(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// apply calls f for a loaded sample and the sample that it was loaded for.
func (d *mapped) apply(ctx context.Context, src *Sample) error {
	if err := src.end(); err != nil {
		return err
	}
	src.scope = src.outer.scope // f's Scratch is apart from the dataset's
	return d.f(ctx, src, src.outer)
}

// checkIndexed is checkDataset for callers that ask for samples by index: a stream
// is an error.
func checkIndexed(ds Dataset) (n int, l *layout, err error) {
	if n, l, err = checkDataset(ds); err == nil && n == endless {
		err = optionError("Dataset", fmt.Sprintf("%T", ds), "must not be a stream, which has no sample by index")
	}
	return n, l, err
}

// composed is a dataset made of others.
type composed interface {
	Dataset
	parts() []Dataset
}

// An offer is the optional methods of a dataset made of others. It hasn't those that are
// nil.
type offer struct {
	load  func(ctx context.Context, indices []int, dst []*Sample) error
	tell  func(index int, sizes []int)
	index func(i int) int
}

// ifBatched is load if one of the datasets is a [BatchDataset], else nil.
func ifBatched(load func(ctx context.Context, indices []int, dst []*Sample) error, ds ...Dataset) func(ctx context.Context, indices []int, dst []*Sample) error {
	for _, d := range ds {
		if _, ok := d.(BatchDataset); ok {
			return load
		}
	}
	return nil
}

// by is d with the methods of the offer.
func (o offer) by(d composed) Dataset {
	b, l, s, i := base{d}, batcher{o.load}, sizer{o.tell}, indexer{o.index}
	switch [3]bool{o.load != nil, o.tell != nil, o.index != nil} {
	case [3]bool{true, false, false}:
		return &struct {
			base
			batcher
		}{b, l}
	case [3]bool{false, true, false}:
		return &struct {
			base
			sizer
		}{b, s}
	case [3]bool{true, true, false}:
		return &struct {
			base
			batcher
			sizer
		}{b, l, s}
	case [3]bool{false, false, true}:
		return &struct {
			base
			indexer
		}{b, i}
	case [3]bool{true, false, true}:
		return &struct {
			base
			batcher
			indexer
		}{b, l, i}
	case [3]bool{false, true, true}:
		return &struct {
			base
			sizer
			indexer
		}{b, s, i}
	case [3]bool{true, true, true}:
		return &struct {
			base
			batcher
			sizer
			indexer
		}{b, l, s, i}
	}
	return d
}

type (
	base    struct{ composed }
	batcher struct {
		load func(ctx context.Context, indices []int, dst []*Sample) error
	}
	sizer   struct{ tell func(index int, sizes []int) }
	indexer struct{ at func(i int) int }
)

func (b base) overwrites() bool              { return bool(overwrites(b.composed)) }
func (s sizer) Sizes(index int, sizes []int) { s.tell(index, sizes) }
func (x indexer) Index(i int) int            { return x.at(i) }
func (b batcher) LoadBatch(ctx context.Context, indices []int, dst []*Sample) error {
	return b.load(ctx, indices, dst)
}

// cacheBytes is the memory of the caches that ds is made of, each counted once.
func cacheBytes(ds Dataset) int64 {
	var sum int64
	seen := map[*cached]bool{}
	var visit func(Dataset)
	visit = func(ds Dataset) {
		if d, ok := ds.(interface{ cache() *cached }); ok && !seen[d.cache()] {
			seen[d.cache()] = true
			sum += d.cache().bytes()
		}
		if d, ok := ds.(composed); ok {
			for _, part := range d.parts() {
				visit(part)
			}
		}
	}
	visit(ds)
	return sum
}
