package main

import (
	"bytes"
	"fmt"
	"math"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/nwt-go/nwt"
)

var types = map[arrow.Type]nwt.DType{
	arrow.BOOL: nwt.Bool, arrow.INT8: nwt.Int8, arrow.INT16: nwt.Int16, arrow.INT32: nwt.Int32, arrow.INT64: nwt.Int64,
	arrow.UINT8: nwt.Uint8, arrow.UINT16: nwt.Int32, arrow.UINT32: nwt.Int64, arrow.UINT64: nwt.Int64,
	arrow.FLOAT16: nwt.Float16, arrow.FLOAT32: nwt.Float32, arrow.FLOAT64: nwt.Float64,
	arrow.DATE32: nwt.Int32, arrow.TIME32: nwt.Int32, arrow.DATE64: nwt.Int64, arrow.TIME64: nwt.Int64,
	arrow.TIMESTAMP: nwt.Int64, arrow.DURATION: nwt.Int64,
}

// fieldOf returns the field that a column of a type becomes. If it is ragged, its first dimension isn't
// known yet.
func fieldOf(t arrow.DataType) (f nwt.Field, err error) {
	switch t := t.(type) {
	case arrow.ExtensionType:
		return fieldOf(t.StorageType())
	case *arrow.DictionaryType:
		return fieldOf(t.ValueType)
	case *arrow.FixedSizeBinaryType:
		return nwt.Field{Type: nwt.Uint8, Shape: []int{t.ByteWidth}}, nil
	case *arrow.FixedSizeListType:
		return listOf(t.Elem(), int(t.Len()), 0)
	case arrow.ListLikeType:
		return listOf(t.Elem(), 0, 1)
	case arrow.BinaryDataType:
		return nwt.Field{Type: nwt.Uint8, Shape: []int{0}, RaggedDims: 1}, nil
	}
	if f.Type = types[t.ID()]; f.Type == 0 {
		err = fmt.Errorf("values of type %v can't be loaded", t)
	}
	return f, err
}

func listOf(elem arrow.DataType, n, ragged int) (nwt.Field, error) {
	f, err := fieldOf(elem)
	if err == nil && f.RaggedDims > 0 {
		err = fmt.Errorf("lists of %v can't be loaded", elem)
	}
	f.Shape, f.RaggedDims = append([]int{n}, f.Shape...), ragged
	return f, err
}

// rows holds the values of a column, in the bytes of nwt's types, one row after the other.
type rows struct {
	data  []byte
	size  int            // bytes of a row
	ends  []int          // if sizes differ: where the first row begins, and where each row ends
	valid []byte         // 0 for a row that is null, whose value is 0 or empty; nil if no row is null
	bad   map[int]string // why a row has no value
}

func (r *rows) end(i int) int {
	if r.ends == nil {
		return i * r.size
	}
	return r.ends[i]
}

func (r *rows) row(i int) []byte { return r.data[r.end(i):r.end(i+1)] }

func (r *rows) spoil(i int, why string) {
	if r.bad == nil {
		r.bad = map[int]string{}
	}
	r.bad[i] = why
}

// add appends a row with variable length.
func (r *rows) add(data []byte) {
	r.data = append(r.data, data...)
	r.ends = append(r.ends, len(r.data))
}

// mask returns rows that say whether each of n rows has a value.
func (r *rows) mask(n int) rows {
	if r.valid == nil {
		return rows{data: bytes.Repeat([]byte{1}, n), size: 1}
	}
	return rows{data: r.valid, size: 1}
}

// spoilNulls marks the rows that are null as bad.
func (r *rows) spoilNulls() {
	for i, valid := range r.valid {
		if valid == 0 {
			r.spoil(i, "is null")
		}
	}
}

// gather copies rows of a column with rows of the same length to places of a batch.
func gather[T nwt.Element](from *rows, at, places []int, f int, dst []*nwt.Sample) {
	to := nwt.ValuesOf[T](dst, f)
	values, n := unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(from.data))), len(from.data)/int(unsafe.Sizeof(*new(T)))), len(to)/len(dst)
	if n == 1 {
		for k, row := range at {
			to[places[k]] = values[row]
		}
		return
	}
	for k, row := range at {
		copy(to[places[k]*n:][:n], values[row*n:])
	}
}

var gathers = map[nwt.DType]func(from *rows, at, places []int, f int, dst []*nwt.Sample){
	nwt.Bool: gather[bool], nwt.Uint8: gather[uint8], nwt.Int8: gather[int8], nwt.Int16: gather[int16], nwt.Int32: gather[int32],
	nwt.Int64: gather[int64], nwt.Float16: gather[nwt.F16], nwt.Float32: gather[float32], nwt.Float64: gather[float64],
}

// rowsOf returns the values of an array. A list that contains a null is bad.
func rowsOf(a arrow.Array) (r rows) {
	switch a := a.(type) {
	case array.ExtensionArray:
		return rowsOf(a.Storage())
	case *array.Dictionary:
		values := rowsOf(a.Dictionary())
		r.join(&values, a.Len(), func(i int) (from, to int) {
			if a.IsNull(i) {
				return 0, 0
			}
			k := a.GetValueIndex(i)
			return k, k + 1
		})
	case array.ListLike:
		values := rowsOf(a.ListValues())
		r.join(&values, a.Len(), func(i int) (from, to int) {
			if a.IsNull(i) {
				return 0, 0
			}
			first, end := a.ValueOffsets(i)
			return int(first), int(end)
		})
	case *array.FixedSizeBinary:
		r = fixed(a)
	case interface {
		arrow.Array
		Value(int) []byte
	}:
		r.ends = []int{0}
		for i := range a.Len() {
			r.add(a.Value(i))
		}
	case array.StringLike:
		r.ends = []int{0}
		for i := range a.Len() {
			r.add([]byte(a.Value(i)))
		}
	case *array.Boolean:
		r.size, r.data = 1, make([]byte, a.Len())
		for i := range r.data {
			if a.Value(i) {
				r.data[i] = 1
			}
		}
	case *array.Uint16:
		r = widened[int32](a.Uint16Values())
	case *array.Uint32:
		r = widened[int64](a.Uint32Values())
	case *array.Uint64:
		r = widened[int64](a.Uint64Values())
		for i, x := range a.Uint64Values() {
			if x > math.MaxInt64 {
				r.spoil(i, "is more than an int64 holds")
			}
		}
	default:
		r = fixed(a)
	}
	if a.NullN() > 0 {
		r.valid = make([]byte, a.Len())
		for i := range r.valid {
			if a.IsValid(i) {
				r.valid[i] = 1
			} else {
				clear(r.row(i))
			}
		}
	}
	return r
}

// fixed returns the values of an array that already has the form that nwt needs.
func fixed(a arrow.Array) (r rows) {
	d := a.Data()
	r.size = a.DataType().(arrow.FixedWidthDataType).Bytes()
	if d.Len() > 0 {
		r.data = d.Buffers()[1].Bytes()[d.Offset()*r.size:][:d.Len()*r.size]
	}
	return r
}

// join makes n rows, each of several values; none of the values may be null.
func (r *rows) join(values *rows, n int, of func(i int) (from, to int)) {
	values.spoilNulls()
	r.ends = []int{0}
	for i := range n {
		from, to := of(i)
		r.add(values.data[values.end(from):values.end(to)])
		for k := from; k < to && len(values.bad) > 0; k++ {
			if why, bad := values.bad[k]; bad {
				r.spoil(i, fmt.Sprintf("element %d %s", k-from, why))
			}
		}
	}
}

func widened[To int32 | int64, From uint16 | uint32 | uint64](values []From) rows {
	wide := make([]To, len(values))
	for i, x := range values {
		wide[i] = To(x)
	}
	var zero To
	return rows{data: arrow.GetBytes(wide), size: int(unsafe.Sizeof(zero))}
}
