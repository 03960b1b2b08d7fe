package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
)

// writeTable makes a table of row groups with the given number of rows: row i has the number i + ¼, its
// text and, as its label, i.
func writeTable(path string, groups, rows int) error {
	b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema([]arrow.Field{
		{Name: "x", Type: arrow.PrimitiveTypes.Float32}, {Name: "text", Type: arrow.BinaryTypes.String}, {Name: "label", Type: arrow.PrimitiveTypes.Int64},
	}, nil))
	for i := range groups * rows {
		b.Field(0).(*array.Float32Builder).Append(float32(i) + 0.25)
		b.Field(1).(*array.StringBuilder).Append(fmt.Sprint("row ", i))
		b.Field(2).(*array.Int64Builder).Append(int64(i))
	}
	record := b.NewRecordBatch()
	out, err := os.Create(path)
	if err != nil {
		return err
	}
	w, err := pqarrow.NewFileWriter(record.Schema(), out, parquet.NewWriterProperties(parquet.WithMaxRowGroupLength(int64(rows))), pqarrow.DefaultWriterProps())
	if err != nil {
		return errors.Join(err, out.Close())
	}
	return errors.Join(w.Write(record), w.Close()) // closes the file too
}
