package nwt

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"reflect"
	"slices"
	"strings"
	"unsafe"

	"github.com/nwt-go/nwt/internal/layout"
	"github.com/nwt-go/nwt/internal/permute"
)

// A Field is one named tensor of a sample.
type Field struct {
	Name       string // must be unique for [AddField], [FromSlices] and [Zip]
	Type       DType
	Shape      []int // of one sample, in row-major order; nil means a scalar
	RaggedDims int   `json:",omitempty"` // how many of the first dimensions may be smaller in a sample than in Shape: Load then calls [Sample.SetLen] or, for 2 or more, [Sample.SetShape]; the loader pads with 0
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

// Element constrains the Go types of field elements: the basic types and types defined from them. For
// Float16 and BFloat16 they are [F16] and [BF16], or uint16.
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
	bad := func(i int, f Field, format string, args ...any) {
		errs = append(errs, optionError(fmt.Sprintf("field %d (%q)", i, f.Name), nil, format, args...))
	}
	if len(fields) == 0 {
		errs = append(errs, optionError("Dataset.Fields", nil, "there are none: a sample needs at least one field"))
	}
	for i, f := range fields {
		f.Shape = slices.Clone(f.Shape)
		if !f.Type.valid() {
			bad(i, f, "unknown type %v: must be one of Bool … Float64", f.Type)
		}
		if f.RaggedDims < 0 || f.RaggedDims > len(f.Shape) {
			bad(i, f, "RaggedDims is %d: must be 0 … %d, the dimensions of shape %v", f.RaggedDims, len(f.Shape), f.Shape)
		}
		size, wrong := f.bytes()
		if wrong != "" {
			bad(i, f, "%s", wrong)
		}
		free := 0
		if dims := f.RaggedDims; wrong == "" && 0 <= dims && dims <= len(f.Shape) {
			for _, n := range f.Shape[:dims] {
				if n > math.MaxInt32 {
					bad(i, f, "the longest length is %d: must be at most %d", n, math.MaxInt32)
				}
			}
			free = dims
		}
		if size > maxBatchBytes-l.Size {
			bad(i, f, "the fields up to this one are more than %d bytes a sample", maxBatchBytes)
			break
		}
		l.fields = append(l.fields, f)
		l.Add(f.Name, uint8(f.Type), size, f.Shape, free)
	}
	return l, errors.Join(errs...)
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
