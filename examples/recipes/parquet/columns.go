package main

import (
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/nwt-go/nwt"
)

var types = map[arrow.Type]nwt.DType{
	arrow.BOOL: nwt.Bool, arrow.INT8: nwt.Int8, arrow.INT16: nwt.Int16, arrow.INT32: nwt.Int32, arrow.INT64: nwt.Int64,
	arrow.UINT8: nwt.Uint8, arrow.UINT16: nwt.Uint16, arrow.FLOAT16: nwt.Float16, arrow.FLOAT32: nwt.Float32, arrow.FLOAT64: nwt.Float64,
	arrow.DATE32: nwt.Int32, arrow.TIME32: nwt.Int32, arrow.DATE64: nwt.Int64, arrow.TIME64: nwt.Int64,
	arrow.TIMESTAMP: nwt.Int64, arrow.DURATION: nwt.Int64,
}

// fieldOf returns the field that a column of a type becomes. If it is ragged, its length isn't known yet.
func fieldOf(t arrow.DataType) (f nwt.Field, err error) {
	switch of := t.(type) {
	case *arrow.ListType:
		if f, err = fieldOf(of.Elem()); err == nil && (f.RaggedDims > 0 || f.Type == nwt.Bool) {
			err = fmt.Errorf("lists of %v can't be loaded", of.Elem())
		}
		f.Shape, f.RaggedDims = []int{1}, 1
		return f, err
	case *arrow.StringType, *arrow.BinaryType, *arrow.LargeStringType, *arrow.LargeBinaryType:
		return nwt.Field{Type: nwt.Uint8, Shape: []int{1}, RaggedDims: 1}, nil
	}
	if f.Type = types[t.ID()]; f.Type == 0 {
		err = fmt.Errorf("values of type %v can't be loaded", t)
	}
	return f, err
}

// valueOf returns the bytes of a row: one number, or several.
func valueOf(column arrow.Array, row int) []byte {
	switch of := column.(type) {
	case *array.List:
		from, to := of.ValueOffsets(row)
		return numbers(of.ListValues(), int(from), int(to))
	case array.BinaryLike: // strings too
		from := of.ValueOffset64(row) - of.ValueOffset64(0)
		return of.ValueBytes()[from:][:of.ValueLen(row)]
	case *array.Boolean:
		if of.Value(row) {
			return []byte{1}
		}
		return []byte{0}
	}
	return numbers(column, row, row+1)
}

// numbers returns the bytes of the numbers from … to−1, which lie as nwt needs them.
func numbers(column arrow.Array, from, to int) []byte {
	size, at := column.DataType().(arrow.FixedWidthDataType).Bytes(), column.Data().Offset()
	return column.Data().Buffers()[1].Bytes()[(at+from)*size : (at+to)*size]
}

// hasNull reports whether a row is null, or a list with a null.
func hasNull(column arrow.Array, row int) bool {
	if column.IsNull(row) {
		return true
	}
	of, ok := column.(*array.List)
	if !ok || of.ListValues().NullN() == 0 {
		return false
	}
	for from, to := of.ValueOffsets(row); from < to; from++ {
		if of.ListValues().IsNull(int(from)) {
			return true
		}
	}
	return false
}
