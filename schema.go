package nwt

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"

	"github.com/nwt-go/nwt/internal/layout"
)

// A View is what [Values] reads: a *[Sample] or a *[Batch].
type View interface {
	Bytes(field int) []byte // returns the memory of a field
	bytesOf(field int) ([]byte, *layout.Column)
}

// Values returns the elements of a field, row-major, without a copy. It is for generic code; other code
// uses a [Column]. It panics if T is another type.
func Values[T Element](v View, field int) []T {
	b, c := v.bytesOf(field)
	if dtype := DType(c.Type); !sees[T](dtype) {
		panic(fmt.Sprintf("nwt: Values[%s] of field %d (%q), whose type is %v: want Values[%v]",
			reflect.TypeFor[T](), field, c.Name, dtype, dtypes[dtype].kind))
	}
	return elements[T](b)
}

// ValuesOf does what [Values] does, for several samples at once: it returns one slice, sample after
// sample. Pass it the samples that [BatchDataset].LoadMany was given, or a run of them, in that order.
func ValuesOf[T Element](samples []*Sample, field int) []T {
	if len(samples) == 0 {
		return nil
	}
	if !adjoin(samples) {
		panic(fmt.Sprintf("nwt: ValuesOf of %d samples that don't lie one after the other: want those that LoadMany was given, or a run of them", len(samples)))
	}
	Values[T](samples[0], field) // panics for another type
	return elements[T](samples[0].mem.Places(field, samples[0].place, len(samples)))
}

// A Schema lists fields; [AddField] adds one and returns its [Column].
type Schema struct {
	fields []Field
}

// Fields returns the fields in the order in which they were added.
func (s *Schema) Fields() []Field { return cloneFields(s.fields) }

// AddField adds a field with elements of type T. Give the shape of one sample; without it the field is a
// scalar. AddField panics if the name is empty or taken, or if the shape is bad.
func AddField[T Element](s *Schema, name string, shape ...int) Column[T] {
	return addColumn[T](s, "AddField", Field{Name: name, Type: dtypeOf[T](), Shape: slices.Clone(shape)})
}

// AddRagged does what [AddField] does, for a field whose size varies by sample: dims is in how many
// dimensions, from the first, and shape the largest size. See [Field].
func AddRagged[T Element](s *Schema, name string, dims int, shape ...int) Column[T] {
	if dims < 1 || dims > len(shape) {
		panic(fmt.Sprintf("nwt: AddRagged: field %q: dims is %d: must be 1 … %d, the dimensions of shape %v", name, dims, len(shape), slices.Clone(shape)))
	}
	return addColumn[T](s, "AddRagged", Field{Name: name, Type: dtypeOf[T](), Shape: slices.Clone(shape), RaggedDims: dims})
}

func addColumn[T Element](s *Schema, caller string, f Field) Column[T] {
	i := len(s.fields)
	if f.Name == "" {
		panic(fmt.Sprintf("nwt: %s: field %d has no name", caller, i))
	}
	if k := slices.IndexFunc(s.fields, func(other Field) bool { return other.Name == f.Name }); k >= 0 {
		panic(fmt.Sprintf("nwt: %s: field %q: field %d already has this name", caller, f.Name, k))
	}
	fields := append(slices.Clip(s.fields), f)
	l, err := newFieldSet(fields)
	if err != nil {
		panic(within(caller, err))
	}
	s.fields = fields
	return Column[T]{index: i, name: f.Name, dtype: f.Type, full: l.Columns[i].Full}
}

// ColumnOf returns the column of a field by its name, for datasets that no [Schema] declared. It returns
// an *[ArgumentError] if not exactly one field has the name, or if T isn't its element type.
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

// A Column is a field of a [Schema], with elements of type T. Its methods do the same as those of
// [Sample] and [Batch], without a field number.
type Column[T Element] struct {
	index int
	name  string
	dtype DType
	full  int // size of the longest sample allowed, in bytes
}

// Field returns the number of the field, for methods that take one.
func (c Column[T]) Field() int { return c.index }

// Of returns the elements of the column in a *[Sample] or a *[Batch], row-major, without a copy. It
// panics if the sample or batch is of another schema.
func (c Column[T]) Of(v View) []T {
	b, there := v.bytesOf(c.index)
	c.check(there)
	return elements[T](b)
}

// Set copies values to the column's place in a sample. If only the field's first dimension is ragged,
// Set also sets its length. If the number of values doesn't fit the place, Set panics. The sample is
// then bad, with a [LoadError] that names the field.
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

func (c Column[T]) SetLen(s *Sample, n int) { s.SetLen(c.in(s), n) }

func (c Column[T]) SetShape(s *Sample, dims ...int) { s.SetShape(c.in(s), dims...) }

func (c Column[T]) Len(s *Sample, dim int) int { return s.Len(c.in(s), dim) }

func (c Column[T]) Lens(b *Batch, dim int) []int32 { return b.Lens(c.in(b), dim) }

func (c Column[T]) Shape(b *Batch) []int { return b.Shape(c.in(b)) }

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
