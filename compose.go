package nwt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"

	"github.com/nwt-go/nwt/internal/classfolder"
	"github.com/nwt-go/nwt/internal/layout"
	"github.com/nwt-go/nwt/internal/mixture"
	"github.com/nwt-go/nwt/internal/permute"
)

// Subset returns the samples of ds at the indices, in that order. It copies the slice. If a sample occurs
// twice, each is augmented differently.
func Subset(ds Dataset, indices []int) (Dataset, error) {
	n, _, err := checkIndexed(ds)
	if err != nil {
		return nil, within("Subset", err)
	}
	if len(indices) == 0 {
		return nil, optionError("Subset", nil, "needs at least one index")
	}
	for i, index := range indices {
		if index < 0 || index >= n {
			return nil, optionError(part("Subset: indices", i), index, "must be 0 … %d", n-1)
		}
	}
	indices = slices.Clone(indices)
	digest := permute.Digest(len(indices), func(i int) uint64 { return uint64(indices[i]) })
	return newSubset(ds, len(indices), func(i int) int { return indices[i] }, fmt.Sprintf("Subset %x", digest)), nil
}

// A SubsetDataset is part of another dataset. [Subset] and [Split] make them.
type SubsetDataset interface {
	Dataset
	Index(i int) int // returns the index of sample i in the other dataset; panics unless 0 ≤ i < Len
}

type subset struct {
	ds    Dataset
	n     int
	at    func(i int) int // index in ds of sample i
	which string          // distinguishes at from others, for the fingerprint
}

func (d *subset) WritesAll(Dataset) bool { return overwrites(d.ds) }

// newSubset makes a subset of n samples.
func newSubset(ds Dataset, n int, at func(i int) int, which string) Dataset {
	d := &subset{ds, n, at, which}
	o := offer{load: ifBatched(d.loadBatch, ds), index: d.index}
	if whole := sizesOf(ds); whole != nil {
		o.sizes = func(index int, sizes []int) { whole(at(index), sizes) }
	}
	return o.by(d)
}

func (d *subset) Len() int            { return d.n }
func (d *subset) Fields() []Field     { return d.ds.Fields() }
func (d *subset) parts() []Dataset    { return []Dataset{d.ds} }
func (d *subset) Fingerprint() string { return fingerprintOf(d.which, d.ds) }
func (d *subset) Load(ctx context.Context, index int, dst *Sample) error {
	return dst.loadAs(ctx, d.ds, d.at(index))
}

func (d *subset) locate(index int) (ds Dataset, there int, in string) {
	return d.ds, d.at(index), "the whole"
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
	defer renumber(dst, there)()
	return d.ds.(BatchDataset).LoadMany(ctx, there, dst)
}

// Concat returns the samples of several datasets, one dataset after the other. The datasets must have the
// same fields, with the same names. Otherwise the error names the first difference. Datasets with a method
// Classes() []string, such as folders, must give each class the same number. If they don't, change the labels
// in a [Map] over each dataset. Some datasets may be empty, but not all. If a dataset grows later, Concat
// still uses its earlier length.
func Concat(ds ...Dataset) (Dataset, error) {
	if len(ds) == 0 {
		return nil, optionError("Concat", nil, "needs at least one dataset")
	}
	c := &concat{ds: slices.Clone(ds)}
	var classes []string
	end := 0
	for i, d := range ds {
		n, l, err := checkPart(d, 0)
		if err != nil {
			return nil, within(fmt.Sprintf("Concat: dataset %d", i), err)
		}
		if i == 0 {
			c.layout, classes = l, classesOf(d)
		}
		if diff := cmp.Or(difference(c.layout.fields, l.fields), classfolder.Difference(classesOf(d), classes)); diff != "" {
			return nil, optionError(fmt.Sprintf("Concat: dataset %d", i), nil, "differs from dataset 0: %s", diff)
		}
		if n > math.MaxInt-end {
			return nil, optionError("Concat", n, "the samples up to dataset %d are more than %d", i, math.MaxInt)
		}
		end += n
		c.ends = append(c.ends, end)
	}
	if end == 0 {
		return nil, optionError("Concat", nil, "none of the %d datasets has a sample", len(ds))
	}
	c.writesAll = overwrites(ds...)
	return offer{load: ifBatched(c.loadBatch, ds...), sizes: c.sizesOfAll()}.by(c), nil
}

// classesOf returns the names of a dataset's classes, nil if they aren't known.
func classesOf(ds Dataset) []string {
	if b, ok := ds.(interface{ made() composed }); ok {
		ds = b.made()
	}
	switch d := ds.(type) {
	case interface{ Classes() []string }:
		return d.Classes()
	case *mapped:
	case composed:
		for _, part := range d.parts() {
			if classes := classesOf(part); classes != nil {
				return classes
			}
		}
	}
	return nil
}

type concat struct {
	ds        []Dataset
	layout    *fieldSet
	ends      []int // the end of each dataset: the number of samples up to it, its own included
	writesAll bool
}

func (d *concat) Len() int            { return d.ends[len(d.ends)-1] }
func (d *concat) Fields() []Field     { return d.ds[0].Fields() }
func (d *concat) parts() []Dataset    { return d.ds }
func (d *concat) Fingerprint() string { return fingerprintOf(fmt.Sprint("Concat ", d.ends), d.ds...) }
func (d *concat) Load(ctx context.Context, index int, dst *Sample) error {
	part, index := d.find(index)
	outer := dst.scope
	dst.scope = inner(outer, part+1)
	err := dst.loadAs(ctx, d.ds[part], index)
	dst.scope = outer
	return err
}

func (d *concat) locate(index int) (ds Dataset, there int, in string) {
	part, there := d.find(index)
	return d.ds[part], there, fmt.Sprintf("part %d", part)
}

func (d *concat) WritesAll(Dataset) bool { return d.writesAll }

func (d *concat) sizesOfAll() func(index int, sizes []int) {
	all := sizesOfParts(d.ds, func(int) *fieldSet { return d.layout })
	if all == nil {
		return nil
	}
	return func(index int, sizes []int) {
		part, there := d.find(index)
		all[part](there, sizes)
	}
}

// find returns the dataset that a sample is in, and its index there.
func (d *concat) find(index int) (part, there int) {
	part, _ = slices.BinarySearch(d.ends, index+1) // the first dataset that ends after index
	if part > 0 {
		index -= d.ends[part-1]
	}
	return part, index
}

// loadBatch loads the samples of each dataset together, with one call per dataset
// if that is a BatchDataset.
func (d *concat) loadBatch(ctx context.Context, indices []int, dst []*Sample) error {
	there, samples := map[int][]int{}, map[int][]*Sample{} // by the number of the dataset
	for i, index := range indices {
		part, index := d.find(index)
		there[part], samples[part] = append(there[part], index), append(samples[part], dst[i])
	}
	for _, part := range slices.Sorted(maps.Keys(there)) {
		if err := d.loadPart(ctx, part, there[part], samples[part]); err != nil {
			return err
		}
	}
	return nil
}

// loadPart loads samples of one dataset.
func (d *concat) loadPart(ctx context.Context, part int, indices []int, dst []*Sample) error {
	outer := dst[0].scope
	for _, s := range dst {
		s.scope = inner(outer, part+1)
	}
	defer renumber(dst, indices)()
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
		return b.LoadMany(ctx, indices, dst)
	}
	src := scratchFor(d.layout.Layout, !overwrites(ds), dst...)
	for _, s := range src {
		s.scope = s.outer.scope // the Scratch values of the dataset, wherever its samples lie
	}
	if err := b.LoadMany(ctx, indices, src); err != nil {
		return err
	}
	for _, s := range src { // LoadMany may have sorted them
		if err := s.copyTo(s.outer); err != nil {
			return err
		}
	}
	return nil
}

// Map returns a dataset with the given fields. For each sample, it loads a sample of ds into src, and then
// calls f, which writes dst. f may also write to src. Both samples have the same Rand. [NewLoader] checks the
// arguments.
func Map(ds Dataset, fields []Field, f func(ctx context.Context, src, dst *Sample) error) Dataset {
	_, src, err := checkIndexed(ds)
	switch {
	case err != nil:
		return &unusable{within("Map", err), fields}
	case f == nil:
		return &unusable{optionError("Map", nil, "f is nil"), fields}
	}
	m := &mapped{ds, src, !overwrites(ds), fields, f}
	return offer{load: ifBatched(m.loadBatch, ds)}.by(m)
}

type mapped struct {
	ds     Dataset
	src    *fieldSet // fields of ds
	clears bool      // ds may leave elements unwritten
	fields []Field
	f      func(ctx context.Context, src, dst *Sample) error
}

func (d *mapped) Len() int            { return d.ds.Len() }
func (d *mapped) Fields() []Field     { return d.fields }
func (d *mapped) parts() []Dataset    { return []Dataset{d.ds} }
func (d *mapped) Fingerprint() string { return fingerprintOf("", d.ds) }
func (d *mapped) Load(ctx context.Context, index int, dst *Sample) error {
	src := scratchFor(d.src.Layout, d.clears, dst)[0]
	if err := d.ds.Load(ctx, index, src); err != nil {
		return err
	}
	return d.apply(ctx, src)
}

func (d *mapped) loadBatch(ctx context.Context, indices []int, dst []*Sample) error {
	src := scratchFor(d.src.Layout, d.clears, dst...)
	if err := d.ds.(BatchDataset).LoadMany(ctx, indices, src); err != nil {
		return err
	}
	for _, s := range src { // LoadMany may have sorted them
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
	src.scope = src.outer.scope // the Scratch values of f are separate from the dataset's
	return d.f(ctx, src, src.outer)
}

// LoadPart loads a sample of ds as a part of dst. It is for a Load that combines several samples in dst, as
// mixup and mosaic do. The part has the Rand, Position and Epoch of dst. It is valid until the next call for
// the same ds, which reuses the part's memory. Call LoadPart only in the goroutine in which Load was called.
// ds must be comparable, as pointers are. Don't make ds in Load; there may be up to 64 such datasets.
func LoadPart(ctx context.Context, ds Dataset, index int, dst *Sample) (*Sample, error) {
	kept, err := Scratch(dst, func() (*parts, error) { return &parts{}, nil })
	if err != nil {
		return nil, err
	}
	number, err := kept.find(ds)
	if err != nil {
		return nil, err
	}
	if n := ds.Len(); index < 0 || index >= n {
		return nil, optionError("LoadPart: index", index, "must be 0 … %d", n-1)
	}
	p := &kept.list[number]
	lend(p.block, p.clears, dst)
	s := p.block[0]
	s.index, s.scope = index, inner(dst.scope, -2-number)
	if err := ds.Load(ctx, index, s); err != nil {
		return nil, err
	}
	return s, s.end()
}

// parts holds the datasets whose samples a worker has loaded on the way to those of another dataset.
type parts struct{ list []partOf }

type partOf struct {
	ds     Dataset
	clears bool // ds may leave elements unwritten
	block  []*Sample
}

// maxParts bounds how many datasets LoadPart remembers.
const maxParts = 64

// find returns the number of a dataset, which it checks the first time.
func (p *parts) find(ds Dataset) (number int, err error) {
	for i := range p.list {
		if p.list[i].ds == ds {
			return i, nil
		}
	}
	_, l, err := checkIndexed(ds)
	switch {
	case err != nil:
		return 0, within("LoadPart", err)
	case !reflect.ValueOf(ds).Comparable():
		return 0, optionError("LoadPart", fmt.Sprintf("%T", ds), "the dataset must be comparable: pass a pointer")
	case len(p.list) == maxParts:
		return 0, optionError("LoadPart", nil, "more than %d datasets have parts in a sample: make datasets before Load, not in it", maxParts)
	}
	p.list = append(p.list, partOf{ds, !overwrites(ds), newBlock(l.Layout, 1)})
	return len(p.list) - 1, nil
}

// WritesAll returns ds with the promise that Load writes every element. Of a ragged field, it promises every
// element up to the length. The loader then needn't clear a sample's place first. If Load breaks the promise,
// elements that it leaves out hold an earlier sample's values. [FromSlices], [Cached], [Precompute] and
// vision's Folder make this promise. [Subset], [Split], [Concat], [Zip] and [Sized] make it if all their
// datasets do. A dataset of yours makes it by a method WritesAll(asked Dataset) bool. Return whether asked is
// the receiver. If not, another type embeds yours, and its Load may write less.
func WritesAll(ds Dataset) Dataset {
	if ds == nil || overwrites(ds) {
		return ds
	}
	switch d := ds.(type) {
	case *funcDataset:
		c := *d
		c.writesAll = true
		return &c
	case *streamDataset:
		c := *d
		c.writesAll = true
		return &c
	case validated:
		if d.invalid() != nil {
			return ds
		}
	}
	return offerOf(ds).by(&promised{ds, true})
}

// promised is a dataset with what WritesAll or Sized says of it.
type promised struct {
	Dataset
	writesAll bool
}

func (d *promised) WritesAll(Dataset) bool { return d.writesAll }
func (d *promised) parts() []Dataset       { return []Dataset{d.Dataset} }
func (d *promised) Fingerprint() string    { return fingerprint(d.Dataset) }

// Split cuts a dataset into random parts, one per share. The shares must be above 0 and add up to 1. No part
// may be empty. The same seed gives the same parts. If the dataset grows, all parts change, so save which
// samples are in which part. Each part is a [SubsetDataset], and a [BatchDataset] or [SizedDataset] if ds is.
// Package split divides by classes, and into folds.
func Split(ds Dataset, seed uint64, shares ...float64) ([]Dataset, error) {
	n, _, err := checkIndexed(ds)
	if err != nil {
		return nil, within("Split", err)
	}
	var errs []error
	sum := 0.0
	for i, share := range shares {
		if !(share > 0 && share <= 1) { // written so that NaN fails too
			errs = append(errs, optionError(part("Split: shares", i), share, "shares are fractions that add up to 1"))
		}
		sum += share
	}
	if len(errs) == 0 && math.Abs(sum-1) > 1e-6 {
		errs = append(errs, optionError("Split", shares, "shares are fractions that add up to 1, not %g", sum))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	perm, key := permute.New(n), permute.SeedKey(seed)
	var parts []Dataset
	ends := mixture.Divide(n, shares)
	from := 0
	for i, share := range shares {
		to := ends[i]
		if to == from {
			return nil, optionError(part("Split: shares", i), share, "less than 1 of %d samples", n)
		}
		begin := from
		which := fmt.Sprintf("Split %d…%d by seed %d", from, to, seed)
		parts = append(parts, newSubset(ds, to-from, func(i int) int { return perm.At(key, begin+i) }, which))
		from = to
	}
	return parts, nil
}

// Zip puts datasets of the same length side by side. Sample i of the result has the fields of sample i of
// each dataset. No two fields may have the same name. All datasets draw from one [Sample.Rand].
// [ColumnOf] returns the columns of the result.
func Zip(ds ...Dataset) (Dataset, error) {
	if len(ds) == 0 {
		return nil, optionError("Zip", nil, "needs at least one dataset")
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
			errs = append(errs, optionError(fmt.Sprintf("Zip: dataset %d", i), nil, "has %d samples, but dataset 0 has %d", n, z.n))
		}
		for _, f := range l.fields {
			if other, taken := owner[f.Name]; taken {
				errs = append(errs, optionError("Zip", nil, "datasets %d and %d both have a field %q: names must differ", other, i, f.Name))
			}
			owner[f.Name] = i
		}
		z.parted = append(z.parted, zipPart{l, field, ragged})
		z.fields = append(z.fields, l.fields...)
		field, ragged = field+len(l.Columns), ragged+l.Ragged
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if _, err := newFieldSet(z.fields); err != nil {
		return nil, within("Zip", err)
	}
	z.writesAll = overwrites(ds...)
	return offer{load: ifBatched(z.loadBatch, ds...), sizes: z.sizesOfAll()}.by(z), nil
}

type zipped struct {
	ds        []Dataset
	n         int
	fields    []Field
	parted    []zipPart
	writesAll bool
}

// zipPart says where the fields of a dataset lie among all fields.
type zipPart struct {
	layout        *fieldSet
	field, ragged int // index of its first field, and of its first ragged dimension
}

func (d *zipped) Len() int               { return d.n }
func (d *zipped) Fields() []Field        { return cloneFields(d.fields) }
func (d *zipped) parts() []Dataset       { return d.ds }
func (d *zipped) Fingerprint() string    { return fingerprintOf("", d.ds...) }
func (d *zipped) WritesAll(Dataset) bool { return d.writesAll }

func (d *zipped) sizesOfAll() func(index int, sizes []int) {
	all := sizesOfParts(d.ds, func(i int) *fieldSet { return d.parted[i].layout })
	if all == nil {
		return nil
	}
	return func(index int, sizes []int) {
		for i, of := range all {
			part := &d.parted[i]
			of(index, sizes[part.ragged:part.ragged+part.layout.Ragged])
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
			if err := b.LoadMany(ctx, slices.Clone(indices), views); err != nil {
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

// views returns the fields of dataset i in each of dst. Like scratchFor's samples, they live as long as
// the first sample of dst.
func (d *zipped) views(i int, dst ...*Sample) []*Sample {
	first, part := dst[0], d.parted[i]
	views := first.blockOf(part.layout.Layout, len(dst), func(l *layout.Layout, n int) []*Sample {
		return newSamples(&common{mem: layout.Memory{Layout: l}}, n)
	})
	c := *first.common
	c.mem, c.records = first.common.mem.Part(part.layout.Layout, part.field, part.ragged), nil
	*views[0].common = c
	for k, v := range views {
		v.outer = dst[k]
		v.setPlace(dst[k].place, dst[k].index)
		v.scope = inner(dst[k].scope, i+1)
	}
	return views
}

// loadAs loads a sample from ds, where it has another index. A LoadError gets the loader's index.
func (s *Sample) loadAs(ctx context.Context, ds Dataset, index int) error {
	was := s.index
	defer func() { s.index = was }()
	s.index = index
	return ds.Load(ctx, index, s)
}

// renumber does what loadAs does, for a LoadMany, which may sort both slices.
func renumber(dst []*Sample, indices []int) (restore func()) {
	dst = slices.Clone(dst)
	was := make([]int, len(dst))
	for i, s := range dst {
		was[i], s.index = s.index, indices[i]
	}
	return func() {
		for i, s := range dst {
			s.index = was[i]
		}
	}
}

// composed is a dataset made of others.
type composed interface {
	Dataset
	Fingerprinter
	parts() []Dataset
}

// origin returns the name of a sample in the datasets that ds was made of, and its file, unless the error
// names that: each with a comma after it. It returns "" if neither is known.
func origin(ds Dataset, index int, err error) (name string) {
	defer func() { _ = recover() }() // index may be out of range
	for {
		if b, ok := ds.(interface{ made() composed }); ok {
			ds = b.made()
		}
		switch d := ds.(type) {
		case interface {
			locate(index int) (ds Dataset, there int, in string)
		}:
			in := ""
			ds, index, in = d.locate(index)
			name += fmt.Sprintf("sample %d of %s, ", index, in)
		case composed:
			if len(d.parts()) > 1 {
				return name
			}
			ds = d.parts()[0]
		case interface{ Path(index int) string }: // of a dataset of files
			if file := d.Path(index); !strings.Contains(err.Error(), file) {
				name += file + ", "
			}
			return name
		default:
			return name
		}
	}
}

// An offer holds the optional methods of a dataset made of others. The dataset lacks those that are nil.
type offer struct {
	load  func(ctx context.Context, indices []int, dst []*Sample) error
	sizes func(index int, sizes []int)
	index func(i int) int
}

// ifBatched returns load if one of the datasets is a [BatchDataset], else nil.
func ifBatched(load func(ctx context.Context, indices []int, dst []*Sample) error, ds ...Dataset) func(ctx context.Context, indices []int, dst []*Sample) error {
	for _, d := range ds {
		if _, ok := d.(BatchDataset); ok {
			return load
		}
	}
	return nil
}

// manyOf returns the LoadMany of a dataset, or nil if it has none.
func manyOf(ds Dataset) func(ctx context.Context, indices []int, dst []*Sample) error {
	if b, ok := ds.(BatchDataset); ok {
		return b.LoadMany
	}
	return nil
}

// offerOf returns what a dataset offers.
func offerOf(ds Dataset) offer {
	o := offer{load: manyOf(ds), sizes: sizesOf(ds)}
	if s, ok := ds.(SubsetDataset); ok {
		o.index = s.Index
	}
	return o
}

// by returns d with the methods of the offer.
func (o offer) by(d composed) Dataset {
	b, l, s, i := base{d}, batcher{o.load}, sizer{o.sizes}, indexer{o.index}
	switch [3]bool{o.load != nil, o.sizes != nil, o.index != nil} {
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
	sizer   struct{ sizes func(index int, sizes []int) }
	indexer struct{ at func(i int) int }
)

func (b base) made() composed                { return b.composed }
func (b base) WritesAll(Dataset) bool        { return overwrites(b.composed) }
func (s sizer) Sizes(index int, sizes []int) { s.sizes(index, sizes) }
func (x indexer) Index(i int) int            { return x.at(i) }
func (b batcher) LoadMany(ctx context.Context, indices []int, dst []*Sample) error {
	return b.load(ctx, indices, dst)
}
