package nwt

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"unsafe"
)

// A Dataset is a map-style source of samples.
//
// Load may be called from many goroutines at once, for different places of
// the same batch too. It writes sample index into dst, every element of every
// field: what it leaves unwritten holds whatever was there before (only the
// rest of a ragged field is cleared for it). It must not keep dst or a slice of
// it after it returns, nor call methods of the loader it works for.
type Dataset interface {
	// Len is the number of samples.
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
	// LoadBatch loads the samples of indices into dst, one each, under the rules
	// of Load. The loader chooses how many, at most a batch, so that all workers
	// have some. Where it fails, the samples are loaded one by one with Load, so
	// that only those that are bad are called bad.
	LoadBatch(ctx context.Context, indices []int, dst []*Sample) error
}

// A Field is one named tensor of a sample.
type Field struct {
	Name string
	Type DType
	// Shape is that of one sample, row-major; nil means a scalar.
	Shape []int
	// MaxLen makes the field ragged: the first dimension of Shape is the
	// longest allowed, Load calls [Sample.SetLen] with the real one, the rest
	// is zero, and [Batch.Lens] tells the lengths.
	MaxLen bool
}

// A DType is the type of a field's elements.
type DType uint8

// The element types. Float16 and BFloat16 are stored as uint16, since Go has
// no type for them.
const (
	Bool DType = iota + 1
	Uint8
	Int8
	Int16
	Int32
	Int64
	Float16
	BFloat16
	Float32
	Float64
)

// dtypes tells each type's name, size in bytes and Go kind.
var dtypes = [...]struct {
	name string
	size int
	kind reflect.Kind
}{
	Bool:     {"Bool", 1, reflect.Bool},
	Uint8:    {"Uint8", 1, reflect.Uint8},
	Int8:     {"Int8", 1, reflect.Int8},
	Int16:    {"Int16", 2, reflect.Int16},
	Int32:    {"Int32", 4, reflect.Int32},
	Int64:    {"Int64", 8, reflect.Int64},
	Float16:  {"Float16", 2, reflect.Uint16},
	BFloat16: {"BFloat16", 2, reflect.Uint16},
	Float32:  {"Float32", 4, reflect.Float32},
	Float64:  {"Float64", 8, reflect.Float64},
}

func (t DType) valid() bool { return t >= Bool && t <= Float64 }

// Size is the bytes of one element, 0 for an unknown type.
func (t DType) Size() int {
	if !t.valid() {
		return 0
	}
	return dtypes[t].size
}

func (t DType) String() string {
	if !t.valid() {
		return fmt.Sprintf("DType(%d)", uint8(t))
	}
	return dtypes[t].name
}

// MarshalText is the type's name.
func (t DType) MarshalText() ([]byte, error) {
	if !t.valid() {
		return nil, fmt.Errorf("nwt: unknown type %v: must be one of Bool … Float64", t)
	}
	return []byte(t.String()), nil
}

// UnmarshalText reads a type's name.
func (t *DType) UnmarshalText(name []byte) error {
	for d := Bool; d.valid(); d++ {
		if dtypes[d].name == string(name) {
			*t = d
			return nil
		}
	}
	return fmt.Errorf("nwt: unknown type %q: must be one of Bool … Float64", name)
}

// Element is the Go types that a field's elements can be seen as: bool for
// Bool, uint8 for Uint8 and so on, uint16 for Float16 and BFloat16.
type Element interface {
	~bool | ~uint8 | ~int8 | ~int16 | ~uint16 | ~int32 | ~int64 | ~float32 | ~float64
}

// A View is what [Values] can look into: a *[Sample] or a *[Batch].
type View interface {
	// Bytes is the memory of a field.
	Bytes(field int) []byte
	column(field int) *column
}

// Values is the elements of a field of a sample or a batch, row-major, without
// a copy: writing to them writes to the sample. They are valid as long as the
// view is. It panics, naming the field and both types, where T isn't the
// field's element type.
func Values[T Element](v View, field int) []T {
	c := v.column(field)
	if kind := reflect.TypeFor[T]().Kind(); kind != dtypes[c.dtype].kind {
		panic(fmt.Sprintf("nwt: Values[%s] of field %d (%q), whose type is %v: want Values[%v]",
			reflect.TypeFor[T](), field, c.name, c.dtype, dtypes[c.dtype].kind))
	}
	b := v.Bytes(field)
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/c.dtype.Size())
}

// A Sample is a place in a batch that a dataset loads a sample into. It is
// valid during that Load only.
type Sample struct {
	layout  *layout
	mem     []byte    // the slot
	lens    []int32   // ragged × capacity, field by field
	offsets []int     // of the fields in mem
	records []*Record // of the batch, for a stream
	place   int

	seedKey      uint64
	epoch, index int
	worker       int

	rand   *rand.Rand // over pcg, which is seeded when a sample first uses it
	pcg    rand.PCG
	seeded bool

	outer   *Sample   // of a scratch sample: the one it is for, whose Rand it shares
	scratch []*Sample // one for each layout that was asked for
}

// column is a field as memory.
type column struct {
	name   string
	dtype  DType
	size   int // bytes of a sample
	row    int // ragged: bytes of one step of the first dimension
	rows   int // ragged: the longest allowed
	ragged int // ragged: number among the ragged fields, else −1
}

func (s *Sample) column(field int) *column { return s.layout.column(field) }

// Bytes is the memory of a field of the sample.
func (s *Sample) Bytes(field int) []byte {
	c := s.layout.column(field)
	from := s.offsets[field] + s.place*c.size
	return s.mem[from : from+c.size : from+c.size]
}

// SetLen sets the length of a ragged field's first dimension. Load must call
// it for each ragged field. It panics where the field isn't ragged or n is out
// of range; inside Load that becomes a [LoadError].
func (s *Sample) SetLen(field, n int) {
	c := s.layout.column(field)
	switch {
	case c.ragged < 0:
		panic(fmt.Sprintf("nwt: SetLen(%d, %d): field %q is not ragged (Field.MaxLen is false)", field, n, c.name))
	case n < 0 || n > c.rows:
		panic(fmt.Sprintf("nwt: SetLen(%d, %d): length %d of field %q is out of range 0 … %d", field, n, n, c.name, c.rows))
	}
	*s.lenOf(c) = int32(n)
}

// Len is the length set for a ragged field, −1 before SetLen.
func (s *Sample) Len(field int) int {
	c := s.layout.column(field)
	if c.ragged < 0 {
		panic(fmt.Sprintf("nwt: Len(%d): field %q is not ragged (Field.MaxLen is false)", field, c.name))
	}
	return int(*s.lenOf(c))
}

func (s *Sample) lenOf(c *column) *int32 {
	return &s.lens[c.ragged*(len(s.lens)/s.layout.ragged)+s.place]
}

// Rand is the sample's source of randomness. It is seeded by (seed, epoch,
// index) alone, so that augmentation doesn't depend on workers or timing.
func (s *Sample) Rand() *rand.Rand {
	if s.outer != nil {
		return s.outer.Rand()
	}
	if !s.seeded {
		s.seeded = true
		key := epochKey(s.seedKey, s.epoch) + uint64(s.index)*golden
		s.pcg.Seed(mix64(key), mix64(key^golden))
	}
	return s.rand
}

// Index is the sample's index in the dataset.
func (s *Sample) Index() int { return s.index }

// Epoch is the epoch that the sample is loaded for.
func (s *Sample) Epoch() int { return s.epoch }

// Worker is the number of the worker that loads the sample, 0-based; 0 too
// where the caller loads. No two goroutines have the same number at a time.
func (s *Sample) Worker() int { return s.worker }

// begin turns s to another sample of its batch.
func (s *Sample) begin(place, index int) {
	s.place, s.index, s.seeded = place, index, false
	if s.layout.ragged > 0 {
		for at := place; at < len(s.lens); at += len(s.lens) / s.layout.ragged {
			s.lens[at] = -1
		}
	}
}

// end checks and completes what Load left to the loader.
func (s *Sample) end() error {
	for f := range s.layout.columns {
		c := &s.layout.columns[f]
		if c.ragged < 0 {
			continue
		}
		n := *s.lenOf(c)
		if n < 0 {
			return fmt.Errorf("nwt: Load did not call SetLen(%d, n) for the ragged field %q", f, c.name)
		}
		clear(s.Bytes(f)[int(n)*c.row:])
	}
	return nil
}

// A layout is the fields of a dataset, checked, as memory.
type layout struct {
	fields  []Field
	columns []column
	bytes   int // of a sample
	ragged  int // how many fields are
}

// maxBatchBytes and maxSamples bound a batch and an epoch, so that sizes and
// positions never overflow.
const (
	maxBatchBytes = 1 << (30 + 10*wide)
	maxSamples    = 1 << (30 + 32*wide)
	wide          = ^uint(0) >> 63 // 1 where an int has 64 bits, else 0
)

// newLayout checks fields; all that is wrong with them is in the error.
func newLayout(fields []Field) (*layout, error) {
	l := &layout{}
	var errs []error
	bad := func(i int, f Field, format string, args ...any) {
		errs = append(errs, optionError("Dataset.Fields", f, "field %d (%q): %s", i, f.Name, fmt.Sprintf(format, args...)))
	}
	if len(fields) == 0 {
		errs = append(errs, optionError("Dataset.Fields", fields, "a sample needs at least one field"))
	}
	for i, f := range fields {
		f.Shape = slices.Clone(f.Shape)
		if !f.Type.valid() {
			bad(i, f, "unknown type %v: must be one of Bool … Float64", f.Type)
		}
		if f.MaxLen && len(f.Shape) == 0 {
			bad(i, f, "MaxLen needs a Shape whose first dimension is the longest length")
		}
		size, whole := uint64(f.Type.Size()), true
		for d, n := range f.Shape {
			if n < 1 {
				bad(i, f, "dimension %d of shape %v is %d: must be at least 1", d, f.Shape, n)
				whole = false
				break
			}
			hi, lo := bits.Mul64(size, uint64(n))
			if hi != 0 || lo > maxBatchBytes {
				bad(i, f, "shape %v of %v is more than %d bytes a sample", f.Shape, f.Type, maxBatchBytes)
				whole = false
				break
			}
			size = lo
		}
		if !whole {
			size = 0
		}
		c := column{name: f.Name, dtype: f.Type, size: int(size), ragged: -1}
		if f.MaxLen && whole && len(f.Shape) > 0 {
			c.rows, c.row, c.ragged = f.Shape[0], int(size)/f.Shape[0], l.ragged
			l.ragged++
		}
		l.fields = append(l.fields, f)
		l.columns = append(l.columns, c)
		l.bytes += int(size)
		if l.bytes > maxBatchBytes {
			bad(i, f, "the fields up to this one are more than %d bytes a sample", maxBatchBytes)
			break
		}
	}
	return l, errors.Join(errs...)
}

func (l *layout) column(field int) *column {
	if uint(field) >= uint(len(l.columns)) {
		panic(fmt.Sprintf("nwt: field %d is out of range: the dataset has %d (%s)", field, len(l.columns), l.names()))
	}
	return &l.columns[field]
}

func (l *layout) names() string {
	var names []string
	for _, f := range l.fields {
		names = append(names, f.Name)
	}
	return strings.Join(names, ", ")
}

// fieldAlign is what fields are aligned to in a slot: a cache line, and as
// much as any vector instruction or copy engine wants.
const fieldAlign = 64

// offsets is where the fields of a batch of n samples lie, and their end.
func (l *layout) offsets(n int) (offsets []int, size int) {
	for _, c := range l.columns {
		offsets = append(offsets, size)
		size += (c.size*n + fieldAlign - 1) / fieldAlign * fieldAlign
	}
	return offsets, size
}

func (s *Sample) init(l *layout, offsets []int) {
	s.layout, s.offsets, s.seedKey = l, offsets, seedKey(0)
	s.rand = rand.New(&s.pcg)
}

// newSample makes a sample with memory of its own.
func newSample(l *layout) *Sample {
	offsets, size := l.offsets(1)
	s := &Sample{mem: heapBytes(size), lens: make([]int32, l.ragged)}
	s.init(l, offsets)
	return s
}

// scratchOf is a sample of another layout to load into on the way to s, of the
// same epoch, index and worker. It lives as long as s, which is a worker's, so
// that nothing is allocated or locked for each sample.
func (s *Sample) scratchOf(l *layout) *Sample {
	i := slices.IndexFunc(s.scratch, func(t *Sample) bool { return t.layout == l })
	if i < 0 {
		i = len(s.scratch)
		t := newSample(l)
		t.outer = s
		s.scratch = append(s.scratch, t)
	}
	t := s.scratch[i]
	t.epoch, t.worker = s.epoch, s.worker
	t.begin(0, s.index)
	return t
}

// NewDataset makes a dataset of n samples from a function, which must satisfy
// what [Dataset] asks of Load. Where n, fields or load can't be used,
// [NewLoader] and [Tune] say so.
func NewDataset(n int, fields []Field, load func(ctx context.Context, index int, dst *Sample) error) Dataset {
	return &funcDataset{n, fields, load}
}

type funcDataset struct {
	n      int
	fields []Field
	load   func(ctx context.Context, index int, dst *Sample) error
}

func (d *funcDataset) Len() int        { return d.n }
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

// validated is a dataset made by a function that can't report an error: it
// tells what was wrong with the arguments.
type validated interface{ invalid() error }

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
	if v, ok := ds.(validated); ok {
		if err := v.invalid(); err != nil {
			return 0, nil, err
		}
	}
	if s, ok := ds.(*streamDataset); ok {
		if err := s.check(); err != nil {
			return 0, nil, err
		}
		l, err = newLayout(ds.Fields())
		return endless, l, err
	}
	var errs []error
	if n = ds.Len(); n < 1 || n > maxSamples {
		errs = append(errs, optionError("Dataset.Len", n, "must be 1 … 2⁶²"))
	}
	l, err = newLayout(ds.Fields())
	return n, l, errors.Join(append(errs, err)...)
}

// LoadSample loads one sample by itself, for epoch 0 and seed 0: for tests and
// a look at the data. The sample has memory of its own and stays valid. Its
// errors are those of [NewLoader] for a dataset that can't be used, and
// *[LoadError].
func LoadSample(ctx context.Context, ds Dataset, index int) (*Sample, error) {
	n, l, err := checkDataset(ds)
	if err != nil {
		return nil, err
	}
	if index < 0 || index >= n {
		return nil, optionError("index", index, "is out of range 0 … %d", n-1)
	}
	s := newSample(l)
	s.begin(0, index)
	if err := s.load(ctx, ds); err != nil {
		return nil, err
	}
	return s, nil
}

// load loads the sample that begin has named.
func (s *Sample) load(ctx context.Context, ds Dataset) (err error) {
	finished := false
	defer func() {
		if !finished {
			stack, cause := recovered(recover())
			err = s.error(cause, stack)
		}
	}()
	err = ds.Load(ctx, s.index, s)
	if err == nil {
		err = s.end()
	}
	finished = true
	if err != nil {
		return s.error(err, nil)
	}
	return nil
}

// error says that the sample couldn't be loaded.
func (s *Sample) error(err error, stack []byte) *LoadError {
	return &LoadError{Index: s.index, Epoch: s.epoch, Worker: s.worker, Err: err, Stack: stack}
}

// heapBytes is n bytes of the heap, aligned for every element type.
func heapBytes(n int) []byte {
	if n == 0 {
		return nil
	}
	words := make([]uint64, (n+7)/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), n)
}
