package nwt

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"unsafe"

	"github.com/nwt-go/nwt/internal/layout"
)

// A Dataset loads samples by their index. Many goroutines call Load at once, even for one batch. Load must
// neither keep dst or slices of it nor close the loader. Elements that Load doesn't write are zero. A dataset
// may also be a [BatchDataset], [SizedDataset], [SubsetDataset], [ProcessDataset] or [Fingerprinter], and have
// the methods below. A method with another name or signature is ignored. For methods of errors, see
// [WithErrorBudget] and [WithRetry].
//   - WritesAll(asked Dataset) bool: whether Load writes all, see [WritesAll]
//   - LeavesRest(field string) bool: whether a ragged rest may be anything
//   - Classes() []string: the names of the classes, which [Concat] compares
//   - Path(index int) string: the file of a sample, for errors
//   - Unwrap() []Dataset: the datasets that it is made of, for [Tune] and [Stats]
//   - Remembers() (owner any, bytes int64): memory for [Stats], once per owner
type Dataset interface {
	// Len returns the number of samples, which must be the same on all ranks. The loader calls it when a
	// loop over an epoch, or several, begins. Until the loop is over, neither Len nor the sample of an index
	// may change. A loop that will be resumed isn't over.
	Len() int
	Fields() []Field                                        // the layout of one sample, which must not change
	Load(ctx context.Context, index int, dst *Sample) error // loads a sample into dst, 0 ≤ index < Len. ctx ends with the epoch
}

// A BatchDataset loads many samples per call, as databases do.
type BatchDataset interface {
	Dataset
	// LoadMany loads the sample of index indices[i] into dst[i], for each i, under the rules of Load. It gets
	// at most a batch of samples, contiguous in memory: see [ValuesOf]. It may sort both slices. After a
	// temporary error, the loader calls LoadMany again, as [WithRetry] says. If it still fails, the loader
	// logs that and loads by halves, down to single calls of Load, so that good samples aren't lost.
	LoadMany(ctx context.Context, indices []int, dst []*Sample) error
}

// A ProcessDataset loads samples in other processes, such as decoders. [Tune] counts their CPU time and
// memory, and [Stats] their memory.
type ProcessDataset interface {
	Dataset
	Processes() []int // returns the ids of the processes that load for it now. Any goroutine may call it
}

// NewDataset makes a dataset of n samples. Its method Load calls load, which must follow the rules of
// [Dataset]. [NewLoader] checks the arguments.
func NewDataset(n int, fields []Field, load func(ctx context.Context, index int, dst *Sample) error) Dataset {
	return &funcDataset{n: n, fields: fields, load: load}
}

type funcDataset struct {
	n         int
	fields    []Field
	load      func(ctx context.Context, index int, dst *Sample) error
	writesAll bool
}

// WritesAll implements what the function [WritesAll] describes. So do those of the other datasets.
func (d *funcDataset) WritesAll(Dataset) bool { return d.writesAll }
func (d *funcDataset) Len() int               { return d.n }
func (d *funcDataset) Fields() []Field        { return d.fields }

func (d *funcDataset) Load(ctx context.Context, index int, dst *Sample) error {
	return d.load(ctx, index, dst)
}

func (d *funcDataset) invalid() error {
	return errorIf(d.load == nil, "NewDataset", nil, "load is nil")
}

// A Slice is an array in memory for [FromSlices].
type Slice struct {
	field  Field
	values []byte
}

// SliceOf returns an array for [FromSlices] that holds the samples one after the other. Each sample is
// row-major with the given shape; without a shape, it is a scalar. Values of type int make a field of type
// [Int64]. The array must not change: SliceOf copies only a []int, and only where int has 32 bits.
func SliceOf[T Element | ~int](name string, values []T, shape ...int) Slice {
	field := Field{Name: name, Type: Int64, Shape: slices.Clone(shape)}
	first := unsafe.Pointer(unsafe.SliceData(values))
	if reflect.TypeFor[T]().Kind() != reflect.Int {
		field.Type = dtypeOf[T]()
	} else if strconv.IntSize == 32 {
		long := make([]int64, len(values))
		for i, v := range unsafe.Slice((*int)(first), len(values)) {
			long[i] = int64(v)
		}
		return SliceOf(name, long, shape...)
	}
	return Slice{field, unsafe.Slice((*byte)(first), len(values)*int(unsafe.Sizeof(*new(T))))}
}

// FromSlices makes a [BatchDataset] of arrays in memory, with one field per array. The error joins an
// *[ArgumentError] for each array that can't be used.
func FromSlices(columns ...Slice) (Dataset, error) {
	d := &arrays{}
	for _, c := range columns {
		d.fields = append(d.fields, c.field)
		d.values = append(d.values, c.values)
	}
	l, err := newFieldSet(d.fields)
	d.layout = l
	var errs []error
	if err != nil {
		errs = append(errs, within("FromSlices", err))
	}
	first := -1 // index among the columns whose fields are valid
	for i, c := range l.Columns {
		if k := slices.IndexFunc(l.Columns[:i], func(other layout.Column) bool { return other.Name == c.Name }); k >= 0 {
			errs = append(errs, optionError(part("FromSlices: columns", i), strconv.Quote(c.Name), "column %d has this name too", k))
		}
		if c.Size == 0 {
			continue
		}
		n := len(d.values[i]) / c.Size
		if first < 0 {
			first, d.n = i, n
		}
		values := len(d.values[i]) / DType(c.Type).Size()
		switch {
		case n*c.Size != len(d.values[i]):
			errs = append(errs, optionError(part("FromSlices: columns", i), strconv.Quote(c.Name), "has %d values: must be a multiple of %d, the values of a sample of shape %v",
				values, c.Size/DType(c.Type).Size(), l.fields[i].Shape))
		case n == 0:
			errs = append(errs, optionError(part("FromSlices: columns", i), strconv.Quote(c.Name), "has no sample"))
		case n != d.n:
			errs = append(errs, optionError(part("FromSlices: columns", i), strconv.Quote(c.Name), "has %d samples, but %q has %d", n, l.Columns[first].Name, d.n))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return d, nil
}

type arrays struct {
	n      int
	fields []Field
	layout *fieldSet
	values [][]byte // of each field
}

func (d *arrays) Len() int               { return d.n }
func (d *arrays) Fields() []Field        { return cloneFields(d.fields) }
func (d *arrays) WritesAll(Dataset) bool { return true }

func (d *arrays) Load(_ context.Context, index int, dst *Sample) error {
	for f, values := range d.values {
		place := dst.Bytes(f)
		copy(place, values[index*len(place):])
	}
	return nil
}

func (d *arrays) LoadMany(ctx context.Context, indices []int, dst []*Sample) error {
	if !adjoin(dst) {
		for i, index := range indices {
			_ = d.Load(ctx, index, dst[i]) // never fails
		}
		return nil
	}
	for f, values := range d.values {
		size := d.layout.Columns[f].Size
		places := dst[0].common.mem.Places(f, dst[0].place, len(dst))
		for i, index := range indices {
			copy(places[i*size:(i+1)*size], values[index*size:])
		}
	}
	return nil
}

// overwrites reports whether the Load of each dataset is known to write every element.
func overwrites(ds ...Dataset) bool {
	return !slices.ContainsFunc(ds, func(d Dataset) bool {
		o, ok := d.(interface{ WritesAll(asked Dataset) bool })
		return !ok || !o.WritesAll(d)
	})
}

// validated is a dataset made by a function that returns no error. invalid returns what is wrong with the
// function's arguments.
type validated interface{ invalid() error }

// unusable is the dataset of a function that returns no error and got arguments that can't be used.
type unusable struct {
	err    error
	fields []Field
}

func (d *unusable) invalid() error                           { return d.err }
func (d *unusable) Len() int                                 { return 0 }
func (d *unusable) Fields() []Field                          { return d.fields }
func (d *unusable) Load(context.Context, int, *Sample) error { return d.err }

// lengthNow returns the current length of a dataset that was checked before.
func lengthNow(ds Dataset) (n int, err error) {
	defer panicked(&err, "Dataset", ds, "Len")
	n = ds.Len()
	return n, checkLen(n, 1)
}

// checkLen checks the length of a dataset that must have at least so many samples.
func checkLen(n, least int) error {
	if n == 0 && least > 0 {
		return optionError("Dataset.Len", nil, "the dataset has no samples")
	}
	return between("Dataset.Len", n, least, maxSamples)
}

// checkDataset checks what NewLoader, Tune and LoadSample require of a dataset, which must have at least so many
// samples. It returns its length and fields.
func checkDataset(ds Dataset, least int) (n int, l *fieldSet, err error) {
	if ds == nil {
		return 0, nil, optionError("Dataset", nil, "is nil")
	}
	defer panicked(&err, "Dataset", ds, "Len or Fields")
	var errs []error
	if v, ok := ds.(validated); ok {
		if err := v.invalid(); err != nil {
			if _, plain := ds.(*funcDataset); !plain { // its Len and Fields may use the argument that is wrong
				return 0, nil, err
			}
			errs = append(errs, err)
		}
	}
	if _, ok := ds.(*streamDataset); ok {
		l, err = newFieldSet(ds.Fields())
		return endless, l, err
	}
	n = ds.Len()
	l, err = newFieldSet(ds.Fields())
	if d, ok := ds.(interface{ LeavesRest(field string) bool }); ok && err == nil {
		for i := range l.Columns {
			l.Columns[i].Rest = d.LeavesRest(l.Columns[i].Name)
		}
	}
	return n, l, errors.Join(append(errs, checkLen(n, least), err)...)
}

// checkIndexed is checkDataset(ds, 1) for callers that load samples by index: a stream is an error.
func checkIndexed(ds Dataset) (n int, l *fieldSet, err error) { return checkPart(ds, 1) }

func checkPart(ds Dataset, least int) (n int, l *fieldSet, err error) {
	if n, l, err = checkDataset(ds, least); err == nil && n == endless {
		err = optionError("Dataset", nil, "is a stream, which has no sample by index")
	}
	return n, l, err
}

// A SizedDataset knows the size of a sample before the sample is loaded. So a batch is only as long as its
// longest sample: see [Batch.Shape]. The result of [Map] has no sizes. To give it sizes, wrap it in [Sized].
type SizedDataset interface {
	Dataset
	// Sizes writes a sample's size to sizes: one number per ragged dimension, field by field. The size must
	// be the same at every call. Load may set a smaller size, but not a larger one. Sizes must be quick. Many
	// goroutines call it at once. If Sizes panics, or if a size is out of range, the sample is bad.
	Sizes(index int, sizes []int)
}

// Sized makes a [SizedDataset] of ds and sizes. [NewLoader] checks the arguments.
func Sized(ds Dataset, sizes func(index int, sizes []int)) Dataset {
	_, _, err := checkIndexed(ds)
	switch {
	case err != nil:
		return &unusable{err: within("Sized", err)}
	case sizes == nil:
		return &unusable{err: optionError("Sized", nil, "sizes is nil")}
	}
	o := offerOf(ds)
	o.sizes = sizes
	return o.by(&promised{ds, overwrites(ds)})
}

// sizesOf returns the Sizes function of a dataset, or nil if it has none.
func sizesOf(ds Dataset) func(index int, sizes []int) {
	switch d := ds.(type) {
	case SizedDataset:
		return d.Sizes
	case *Cache:
		return sizesOf(d.ds)
	case *Precomputed:
		return sizesOf(d.ds)
	}
	return nil
}

// sizesOfParts returns sizesOf for each of several datasets. For a dataset without sizes, the function
// sets the longest size allowed. The result is nil if no dataset has sizes.
func sizesOfParts(ds []Dataset, layoutOf func(part int) *fieldSet) []func(index int, sizes []int) {
	known := false
	all := make([]func(index int, sizes []int), len(ds))
	for i, d := range ds {
		if all[i] = sizesOf(d); all[i] != nil {
			known = true
			continue
		}
		l := layoutOf(i)
		all[i] = func(_ int, sizes []int) { l.Longest(sizes) }
	}
	if !known {
		return nil
	}
	return all
}

// A Fingerprinter is a [Dataset], [Stream] or [Sampler] that can say what its samples or its order depend on,
// such as the names, sizes and times of files. Equal fingerprints mean the same samples, in this run and
// later. An unknown fingerprint is "". Fingerprint must be quick, or remember its result.
//
// If a dataset's fingerprint has changed, [Precompute] writes its file anew. If the fingerprint of a dataset
// or sampler has changed, [Loader.Resume] in mid-epoch returns an error. A dataset that this module makes of
// others or of streams passes on their fingerprints. [Subset], [Split], [Concat] and package packing add
// their own arguments. The function of a [Map] isn't covered.
type Fingerprinter interface{ Fingerprint() string }

// fingerprint returns the fingerprint of a dataset, stream or sampler, or "" if it has none.
func fingerprint(of any) string {
	if f, ok := of.(Fingerprinter); ok {
		return f.Fingerprint()
	}
	return ""
}

// fingerprintOf returns the fingerprint of a dataset made of others. own describes what else it depends
// on. The result is "" if own is "" and no part has a fingerprint.
func fingerprintOf(own string, parts ...Dataset) string {
	told, sum := own != "", sha256.New()
	_, _ = sum.Write([]byte(own))
	for _, ds := range parts {
		part := fingerprint(ds)
		told = told || part != ""
		_, _ = fmt.Fprintf(sum, " %q", part)
	}
	if !told {
		return ""
	}
	return fmt.Sprintf("%x", sum.Sum(nil))
}
