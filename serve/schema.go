package serve

import (
	"errors"
	"fmt"
	"math"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/nwt-go/nwt"
)

// typeKey is the metadata of a field that names its element type: Arrow has no tensors of Bool8,
// and no BFloat16.
const typeKey = "nwt.type"

var arrowTypes = [...]arrow.DataType{
	nwt.Bool: arrow.PrimitiveTypes.Uint8, nwt.Uint8: arrow.PrimitiveTypes.Uint8, nwt.Int8: arrow.PrimitiveTypes.Int8,
	nwt.Uint16: arrow.PrimitiveTypes.Uint16, nwt.Int16: arrow.PrimitiveTypes.Int16, nwt.Uint32: arrow.PrimitiveTypes.Uint32,
	nwt.Int32: arrow.PrimitiveTypes.Int32, nwt.Int64: arrow.PrimitiveTypes.Int64, nwt.Float16: arrow.FixedWidthTypes.Float16,
	nwt.BFloat16: arrow.PrimitiveTypes.Uint16, nwt.Float32: arrow.PrimitiveTypes.Float32, nwt.Float64: arrow.PrimitiveTypes.Float64,
}

// ragged returns how many ragged dimensions the fields have.
func ragged(fields []nwt.Field) (n int) {
	for _, f := range fields {
		n += f.RaggedDims
	}
	return n
}

func elements(shape []int) int {
	n := 1
	for _, dim := range shape {
		n *= dim
	}
	return n
}

// bytesPerSample returns how many bytes a sample and its lengths take at most.
func bytesPerSample(fields []nwt.Field) (total int) {
	for _, f := range fields {
		total += elements(f.Shape)*f.Type.Size() + 4*f.RaggedDims
	}
	return total
}

// fitsArrow returns an error if a field has more elements than Arrow's type of tensors can hold.
func fitsArrow(fields []nwt.Field) (err error) {
	for _, f := range fields {
		if n := elements(f.Shape); n > math.MaxInt32 {
			err = errors.Join(err, fmt.Errorf("serve: New: field %q of shape %v has %d elements: must be at most %d to be served, however few samples have; declare a smaller longest length", f.Name, f.Shape, n, math.MaxInt32))
		}
	}
	return err
}

// schemaOf returns the schema of batches whose samples have the given shapes. The columns of lengths
// follow those of fields.
func schemaOf(fields []nwt.Field, shape func(field int) []int) *arrow.Schema {
	var columns, lens []arrow.Field
	for i, f := range fields {
		elem, keys, values := arrowTypes[f.Type], []string{typeKey}, []string{f.Type.String()}
		column := arrow.Field{Name: f.Name, Type: elem}
		if dims := shape(i); len(dims) > 0 {
			column.Type = arrow.FixedSizeListOfNonNullable(int32(elements(dims)), elem)
			keys = append(keys, "ARROW:extension:name", "ARROW:extension:metadata")
			values = append(values, "arrow.fixed_shape_tensor", string(jsonOf(map[string][]int{"shape": dims})))
		}
		column.Metadata = arrow.NewMetadata(keys, values)
		columns = append(columns, column)
		for dim := range f.RaggedDims {
			lens = append(lens, arrow.Field{Name: fmt.Sprintf("%s.len%d", f.Name, dim), Type: arrow.PrimitiveTypes.Int32})
		}
	}
	return arrow.NewSchema(append(columns, lens...), nil)
}

// recordOf returns a batch in place: nothing is copied.
func recordOf(schema *arrow.Schema, n int, columns [][]byte) arrow.RecordBatch {
	var data []arrow.Array
	for i, f := range schema.Fields() {
		buffer, elements, elem := memory.NewBufferBytes(columns[i]), n, f.Type
		list, ok := f.Type.(*arrow.FixedSizeListType)
		if ok {
			elements, elem = n*int(list.Len()), list.Elem()
		}
		values := array.NewData(elem, elements, []*memory.Buffer{nil, buffer}, nil, 0, 0)
		if ok {
			values = array.NewData(f.Type, n, []*memory.Buffer{nil}, []arrow.ArrayData{values}, 0, 0)
		}
		data = append(data, array.MakeFromData(values))
	}
	return array.NewRecordBatch(schema, data, int64(n))
}

// encode makes the message of a batch, whose body is the columns where they are, and what aligns them.
// It also returns where in the body each column begins.
func encode(schema *arrow.Schema, n int, columns [][]byte) (header []byte, body pieces, at []int, err error) {
	record, err := ipc.GetRecordBatchPayload(recordOf(schema, n, columns))
	if err != nil {
		return nil, nil, nil, err
	}
	err = record.SerializeBody(&body)
	size := 0
	if n == 0 { // all samples are bad: the body has no pieces
		at = make([]int, len(columns))
	}
	for _, piece := range body {
		if len(at) < len(columns) && unsafe.SliceData(piece) == unsafe.SliceData(columns[len(at)]) {
			at = append(at, size)
		}
		size += len(piece)
	}
	switch {
	case err == nil && len(at) != len(columns):
		err = fmt.Errorf("the body has %d columns, not %d", len(at), len(columns))
	case size > maxBody:
		err = fmt.Errorf("a batch of %d bytes is too large for gRPC, which takes %d: make batches smaller, or take them in shared memory", size, maxBody)
	}
	return record.Meta().Bytes(), body, at, err
}

// pieces are what is written, where it is.
type pieces [][]byte

func (p *pieces) Write(b []byte) (int, error) {
	*p = append(*p, b)
	return len(b), nil
}
