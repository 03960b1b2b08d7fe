package nwt

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"github.com/nwt-go/nwt/internal/layout"
	"github.com/nwt-go/nwt/internal/permute"
)

// A View is a *[Sample] or a *[Batch], from which [Values] reads.
type View interface {
	Bytes(field int) []byte // returns the memory of a field
	Shape(field int) []int  // returns the shape of a field in the sample or batch
	bytesOf(field int) ([]byte, *layout.Column)
}

// Values returns the elements of a field, row-major, not copied. Generic code needs it; other code uses a
// [Column]. It panics if T isn't the field's type.
func Values[T Element](v View, field int) []T {
	b, c := v.bytesOf(field)
	if dtype := DType(c.Type); !sees[T](dtype) {
		panic(fmt.Sprintf("nwt: Values[%s] of field %d (%q), whose type is %v: want Values[%v]",
			reflect.TypeFor[T](), field, c.Name, dtype, dtypes[dtype].kind))
	}
	return elements[T](b)
}

// ValuesOf returns the elements of a field of several samples, as one slice, sample after sample. Pass it the
// samples that [BatchDataset.LoadMany] got, or successive ones of them, in the same order.
func ValuesOf[T Element](samples []*Sample, field int) []T {
	if len(samples) == 0 {
		return nil
	}
	if !adjoin(samples) {
		panic(fmt.Sprintf("nwt: ValuesOf of %d samples that don't lie one after the other: want those that LoadMany was given, or a run of them", len(samples)))
	}
	Values[T](samples[0], field) // panics for another type
	return elements[T](samples[0].common.mem.Places(field, samples[0].place, len(samples)))
}

// A Schema lists fields; [AddField] adds one and returns its [Column].
type Schema struct {
	fields []Field
	size   int     // of the fields of a sample, in bytes
	of     *Schema // whose fields they are: a copy of a Schema makes its own when it adds one
}

// Fields returns the fields in the order in which they were added.
func (s *Schema) Fields() []Field { return cloneFields(s.fields) }

// AddField adds a field with elements of type T. The argument shape describes one sample; without it, the
// field is a scalar. AddField panics if the name is empty or taken, or if the shape is bad.
func AddField[T Element](s *Schema, name string, shape ...int) Column[T] {
	return addColumn[T](s, "AddField", Field{Name: name, Type: dtypeOf[T](), Shape: slices.Clone(shape)})
}

// AddRagged adds a field whose leading dimensions vary by sample, as many as dims says. The sizes in shape are
// the largest allowed. For example, AddRagged[int32](&s, "tokens", 1, 512) adds up to 512 tokens. See [Field].
func AddRagged[T Element](s *Schema, name string, dims int, shape ...int) Column[T] {
	if dims < 1 || dims > len(shape) {
		panic(fmt.Sprintf("nwt: AddRagged: field %q: dims is %d: must be 1 … %d, the dimensions of shape %v, which comes after dims", name, dims, len(shape), slices.Clone(shape)))
	}
	return addColumn[T](s, "AddRagged", Field{Name: name, Type: dtypeOf[T](), Shape: slices.Clone(shape), RaggedDims: dims})
}

func addColumn[T Element](s *Schema, caller string, f Field) Column[T] {
	i := len(s.fields)
	if f.Name == "" {
		panic(fmt.Sprintf("nwt: %s: field %d has no name", caller, i))
	}
	if s.of != s {
		s.of, s.fields = s, slices.Clip(s.fields)
	}
	for k := range s.fields {
		if s.fields[k].Name == f.Name {
			panic(fmt.Sprintf("nwt: %s: field %q: field %d already has this name", caller, f.Name, k))
		}
	}
	l := &fieldSet{s.fields, &layout.Layout{Size: s.size}}
	if err := l.add(f); err != nil {
		panic(within(caller, err))
	}
	s.fields, s.size = l.fields, l.Size
	return Column[T]{index: i, name: f.Name, dtype: f.Type, full: l.Columns[0].Full}
}

// ColumnOf returns the column of a field by its name. It is for datasets that no [Schema] declared. If no
// field or several fields have the name, or if T isn't the element type, ColumnOf returns an
// *[ArgumentError].
func ColumnOf[T Element](of interface{ Fields() []Field }, name string) (Column[T], error) {
	var c Column[T]
	var names []string
	if of == nil {
		return c, optionError("ColumnOf", nil, "the dataset or loader is nil")
	}
	for i, f := range of.Fields() {
		if names = append(names, f.Name); f.Name != name {
			continue
		}
		size, wrong := f.bytes()
		switch {
		case c.dtype.valid():
			return Column[T]{}, optionError("ColumnOf", strconv.Quote(name), "fields %d and %d have this name", c.index, i)
		case !f.Type.valid() || wrong != "":
			return Column[T]{}, optionError("ColumnOf", strconv.Quote(name), "field %d has an impossible type or shape: %v %v", i, f.Type, f.Shape)
		case !sees[T](f.Type):
			return Column[T]{}, optionError("ColumnOf", strconv.Quote(name), "its elements are %v: want ColumnOf[%v]", f.Type, dtypes[f.Type].kind)
		}
		c = Column[T]{index: i, name: name, dtype: f.Type, full: size}
	}
	if !c.dtype.valid() {
		return c, optionError("ColumnOf", strconv.Quote(name), "no field has this name: the fields are %q", names)
	}
	return c, nil
}

// A Column is a [Schema]'s field of type T. Its methods need no field number.
type Column[T Element] struct {
	index int
	name  string
	dtype DType
	full  int // size of the longest sample allowed, in bytes
}

// Field returns the number of the field, for methods that take a field number.
func (c Column[T]) Field() int { return c.index }

// Of returns the elements of the column in a *[Sample] or a *[Batch], row-major and not copied. It panics if
// the sample or batch is of another schema.
func (c Column[T]) Of(v View) []T {
	b, there := v.bytesOf(c.index)
	c.check(there)
	return elements[T](b)
}

// Set copies values to the column's place in a sample. If only the first dimension is ragged, Set also sets
// its length. If the number of values is wrong, Set panics, and the sample is bad. Its [LoadError] names the
// field.
func (c Column[T]) Set(dst *Sample, values ...T) {
	place, there := dst.bytesOf(c.index)
	c.check(there)
	if there.Free == 1 {
		n := len(values) * c.dtype.Size() / there.Step
		dst.setLen(c.index, there, 0, n)
		place = place[:n*there.Step]
	}
	if len(values)*c.dtype.Size() != len(place) {
		c.panicLength(there, len(values))
	}
	copy(elements[T](place), values)
}

//go:noinline
func (c *Column[T]) panicLength(there *layout.Column, n int) {
	if there.Free == 1 {
		panic(fmt.Sprintf("nwt: field %q: %d values for shape %v: must be a multiple of %d", c.name, n, there.Dims, there.Step/c.dtype.Size()))
	}
	panic(fmt.Sprintf("nwt: field %q: %d values for shape %v: must be %d", c.name, n, there.Dims, there.Size/c.dtype.Size()))
}

// SetLen sets the column's length in a sample: see [Sample.SetLen].
func (c Column[T]) SetLen(s *Sample, n int) { s.SetLen(c.in(s), n) }

// SetShape sets all ragged dimensions in a sample: see [Sample.SetShape].
func (c Column[T]) SetShape(s *Sample, dims ...int) { s.SetShape(c.in(s), dims...) }

// Len returns the length that was set in a sample: see [Sample.Len].
func (c Column[T]) Len(s *Sample, dim int) int { return s.Len(c.in(s), dim) }

// Lens returns the length of each sample of a batch: see [Batch.Lens].
func (c Column[T]) Lens(b *Batch, dim int) []int32 { return b.Lens(c.in(b), dim) }

// Shape returns the shape that [Sample.Shape] or [Batch.Shape] returns.
func (c Column[T]) Shape(v View) []int { return v.Shape(c.in(v)) }

// DevicePtr returns the column's address on the device: see [Batch.DevicePtr].
func (c Column[T]) DevicePtr(b *Batch) uintptr { return b.DevicePtr(c.in(b)) }

// in returns the column's number in a view, which must be of this schema.
func (c *Column[T]) in(v View) int {
	_, there := v.bytesOf(c.index)
	c.check(there)
	return c.index
}

func (c *Column[T]) check(there *layout.Column) {
	if uint8(c.dtype) != there.Type || c.full != there.Full || c.name != there.Name {
		c.panicElsewhere(there)
	}
}

// panicElsewhere is a separate function, so that check can be inlined.
//
//go:noinline
func (c *Column[T]) panicElsewhere(there *layout.Column) {
	if !c.dtype.valid() {
		panic(fmt.Sprintf("nwt: this Column[%s] is the zero value: AddField, AddRagged and ColumnOf make columns", reflect.TypeFor[T]()))
	}
	panic(fmt.Sprintf("nwt: the column %q (%v, %d bytes) belongs to another schema: field %d of this dataset is %q (%v, %d bytes); use the column of the dataset's own schema, or ColumnOf",
		c.name, c.dtype, c.full, c.index, there.Name, DType(there.Type), there.Full))
}

// A Field is one named tensor of a sample.
type Field struct {
	Name       string // must be unique for [AddField], [FromSlices] and [Zip]
	Type       DType
	Shape      []int // shape of one sample, in row-major order; nil means a scalar
	RaggedDims int   `json:",omitempty"` // how many of the first dimensions may be smaller in a sample than in Shape. For 1, Load calls [Sample.SetLen]; for more, [Sample.SetShape]. The loader pads with 0
}

// A DType is the type of a field's elements.
type DType uint8

// The element types. F16 and BF16 hold the bits of Float16 and BFloat16.
const (
	Bool DType = iota + 1
	Uint8
	Int8
	Uint16
	Int16
	Uint32
	Int32
	Int64
	Float16
	BFloat16
	Float32
	Float64
)

// dtypes holds the name of each type, its size in bytes, its Go kind, and a pointer to the Go type of
// that kind.
var dtypes = [...]struct {
	name    string
	size    int
	kind    reflect.Kind
	pointer any
}{
	Bool:     {"Bool", 1, reflect.Bool, (*bool)(nil)},
	Uint8:    {"Uint8", 1, reflect.Uint8, (*uint8)(nil)},
	Int8:     {"Int8", 1, reflect.Int8, (*int8)(nil)},
	Uint16:   {"Uint16", 2, reflect.Uint16, (*uint16)(nil)},
	Int16:    {"Int16", 2, reflect.Int16, (*int16)(nil)},
	Uint32:   {"Uint32", 4, reflect.Uint32, (*uint32)(nil)},
	Int32:    {"Int32", 4, reflect.Int32, (*int32)(nil)},
	Int64:    {"Int64", 8, reflect.Int64, (*int64)(nil)},
	Float16:  {"Float16", 2, reflect.Uint16, (*uint16)(nil)},
	BFloat16: {"BFloat16", 2, reflect.Uint16, (*uint16)(nil)},
	Float32:  {"Float32", 4, reflect.Float32, (*float32)(nil)},
	Float64:  {"Float64", 8, reflect.Float64, (*float64)(nil)},
}

func (t DType) valid() bool { return t >= Bool && t <= Float64 }

// Size returns the size of one element in bytes, or 0 for an unknown type.
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

func (t DType) MarshalText() ([]byte, error) {
	if !t.valid() {
		return nil, fmt.Errorf("nwt: unknown type %v: must be one of Bool … Float64", t)
	}
	return []byte(t.String()), nil
}

func (t *DType) UnmarshalText(name []byte) error {
	for d := Bool; d.valid(); d++ {
		if dtypes[d].name == string(name) {
			*t = d
			return nil
		}
	}
	return fmt.Errorf("nwt: unknown type %q: must be one of Bool … Float64", name)
}

// Element constrains field elements to basic types and types defined from them. For Float16, use [F16] or
// uint16; for BFloat16, [BF16] or uint16.
type Element interface {
	~bool | ~uint8 | ~int8 | ~uint16 | ~int16 | ~uint32 | ~int32 | ~int64 | ~float32 | ~float64
}

// F16 holds the bits of a Float16 element: IEEE 754 half precision.
type F16 uint16

// BF16 holds the bits of a BFloat16 element: the upper half of a float32.
type BF16 uint16

// sees reports whether elements of type d can be read as T.
func sees[T Element](d DType) bool {
	if _, ok := dtypes[d].pointer.(*T); ok {
		return true
	}
	switch any(*new(T)).(type) {
	case F16:
		return d == Float16
	case BF16:
		return d == BFloat16
	}
	return reflect.TypeFor[T]().Kind() == dtypes[d].kind
}

// elements returns memory as elements of type T.
func elements[T Element](b []byte) []T {
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(*new(T))))
}

// A fieldSet is the fields of a dataset, checked, with their layout in memory.
type fieldSet struct {
	fields []Field
	*layout.Layout
}

// maxBatchBytes and maxSamples bound a batch and an epoch, so that sizes and
// positions never overflow.
const (
	maxBatchBytes = 1 << (30 + 10*wide)
	maxSamples    = permute.MaxLen
	wide          = ^uint(0) >> 63 // 1 if an int has 64 bits, else 0
)

// newFieldSet checks fields. The error joins everything that is wrong with them.
func newFieldSet(fields []Field) (*fieldSet, error) {
	l := &fieldSet{Layout: &layout.Layout{}}
	var errs []error
	if len(fields) == 0 {
		errs = append(errs, optionError("Dataset.Fields", nil, "there are none: a sample needs at least one field"))
	}
	for i, f := range fields {
		if errs = append(errs, l.add(f)); len(l.fields) == i {
			break // the fields are too large
		}
	}
	return l, errors.Join(errs...)
}

// add checks a field and adds it, unless the fields then are too large.
func (l *fieldSet) add(f Field) error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, optionError(fmt.Sprintf("field %d (%q)", len(l.fields), f.Name), nil, format, args...))
	}
	f.Shape = slices.Clone(f.Shape)
	if !f.Type.valid() {
		bad("unknown type %v: must be one of Bool … Float64", f.Type)
	}
	if f.RaggedDims < 0 || f.RaggedDims > len(f.Shape) {
		bad("RaggedDims is %d: must be 0 … %d, the dimensions of shape %v", f.RaggedDims, len(f.Shape), f.Shape)
	}
	size, wrong := f.bytes()
	if wrong != "" {
		bad("%s", wrong)
	}
	free := 0
	if dims := f.RaggedDims; wrong == "" && 0 <= dims && dims <= len(f.Shape) {
		for _, n := range f.Shape[:dims] {
			if n > math.MaxInt32 {
				bad("the longest length is %d: must be at most %d", n, math.MaxInt32)
			}
		}
		free = dims
	}
	if size > maxBatchBytes-l.Size {
		bad("the fields up to this one are more than %d bytes a sample", maxBatchBytes)
	} else {
		l.fields = append(l.fields, f)
		l.Add(f.Name, uint8(f.Type), size, f.Shape, free)
	}
	return errors.Join(errs...)
}

// bytes returns the size of the longest sample of a field. If the shape is impossible, wrong says why,
// and the size is 0.
func (f *Field) bytes() (size int, wrong string) {
	product := uint64(f.Type.Size())
	for d, n := range f.Shape {
		if n < 1 {
			return 0, fmt.Sprintf("dimension %d of shape %v is %d: must be at least 1", d, f.Shape, n)
		}
		hi, lo := bits.Mul64(product, uint64(n))
		if hi != 0 || lo > maxBatchBytes {
			return 0, fmt.Sprintf("shape %v of %v is more than %d bytes a sample", f.Shape, f.Type, maxBatchBytes)
		}
		product = lo
	}
	return int(product), ""
}

// panicOutOfRange is a function of its own so that its callers can be inlined.
//
//go:noinline
func panicOutOfRange(l *layout.Layout, field int) {
	var names []string
	for _, c := range l.Columns {
		names = append(names, c.Name)
	}
	panic(fmt.Sprintf("nwt: field %d is out of range: the dataset has %d (%s)", field, len(names), strings.Join(names, ", ")))
}

// difference returns the first difference between the fields wanted and those found, or "" if there is
// none.
func difference(want, got []Field) string {
	for i := range max(len(want), len(got)) {
		switch {
		case i == len(got):
			return fmt.Sprintf("field %d (%q) is missing", i, want[i].Name)
		case i == len(want):
			return fmt.Sprintf("field %d (%q) is unexpected", i, got[i].Name)
		}
		w, g := want[i], got[i]
		switch {
		case g.Name != w.Name:
			return fmt.Sprintf("field %d has the name %q, want %q", i, g.Name, w.Name)
		case g.Type != w.Type:
			return fmt.Sprintf("field %d (%q) has the type %v, want %v", i, g.Name, g.Type, w.Type)
		case !slices.Equal(g.Shape, w.Shape):
			return fmt.Sprintf("field %d (%q) has the shape %v, want %v", i, g.Name, g.Shape, w.Shape)
		case g.RaggedDims != w.RaggedDims:
			return fmt.Sprintf("field %d (%q) has %d ragged dimensions, want %d", i, g.Name, g.RaggedDims, w.RaggedDims)
		}
	}
	return ""
}

func cloneFields(fields []Field) []Field {
	fields = slices.Clone(fields)
	for i := range fields {
		fields[i].Shape = slices.Clone(fields[i].Shape)
	}
	return fields
}

// dtypeOf returns the type of the fields whose elements are T.
func dtypeOf[T Element | ~int]() DType {
	switch any(*new(T)).(type) {
	case F16:
		return Float16
	case BF16:
		return BFloat16
	}
	d := Bool // the first type of its kind: Uint16 for uint16
	for dtypes[d].kind != reflect.TypeFor[T]().Kind() {
		d++
	}
	return d
}

// String returns the layout in a line: "image Uint8[3 224 224], label Int64".
func (l *fieldSet) String() string {
	var fields []string
	for _, f := range l.fields {
		s := fmt.Sprintf("%s %v", f.Name, f.Type)
		if len(f.Shape) > 0 {
			s += fmt.Sprint(f.Shape)
		}
		s += strings.Repeat("…", f.RaggedDims)
		fields = append(fields, s)
	}
	return strings.Join(fields, ", ")
}
