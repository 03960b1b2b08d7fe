package nwt

import (
	"context"
	"errors"
	"slices"
	"unsafe"

	"github.com/nwt-go/nwt/internal/layout"
)

// A Slice is an array in memory for [FromSlices].
type Slice struct {
	field  Field
	values []byte
}

// SliceOf returns an array for [FromSlices] that holds the samples one after the other, each row-major
// with the given shape; without a shape each sample is a scalar. The array isn't copied: it must not
// change.
func SliceOf[T Element](name string, values []T, shape ...int) Slice {
	bytes := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(values))), len(values)*int(unsafe.Sizeof(*new(T))))
	return Slice{Field{Name: name, Type: dtypeOf[T](), Shape: slices.Clone(shape)}, bytes}
}

// FromSlices makes a [BatchDataset] of arrays in memory, one field per array. The error joins an
// *[OptionError] for each array that can't be used.
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
			errs = append(errs, optionError(part("FromSlices: columns", i), c.Name, "column %d has this name too", k))
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
			errs = append(errs, optionError(part("FromSlices: columns", i), c.Name, "has %d values: must be a multiple of %d, those of a sample of shape %v",
				values, c.Size/DType(c.Type).Size(), l.fields[i].Shape))
		case n == 0:
			errs = append(errs, optionError(part("FromSlices: columns", i), c.Name, "must hold at least 1 sample"))
		case n != d.n:
			errs = append(errs, optionError(part("FromSlices: columns", i), c.Name, "holds %d samples: must hold %d, as %s", n, d.n, l.Columns[first].Name))
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

func (d *arrays) Len() int         { return d.n }
func (d *arrays) Fields() []Field  { return cloneFields(d.fields) }
func (d *arrays) overwrites() bool { return true }

func (d *arrays) Load(_ context.Context, index int, dst *Sample) error {
	for f, values := range d.values {
		place := dst.Bytes(f)
		copy(place, values[index*len(place):])
	}
	return nil
}

func (d *arrays) LoadBatch(ctx context.Context, indices []int, dst []*Sample) error {
	if !adjoin(dst) {
		for i, index := range indices {
			_ = d.Load(ctx, index, dst[i]) // never fails
		}
		return nil
	}
	for f, values := range d.values {
		size := d.layout.Columns[f].Size
		places := dst[0].mem.Places(f, dst[0].place, len(dst))
		for i, index := range indices {
			copy(places[i*size:(i+1)*size], values[index*size:])
		}
	}
	return nil
}
