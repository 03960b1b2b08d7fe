package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/schema"
)

// writeTable makes a table of row groups with the given number of rows and float32
// columns. Column c of row i is i + c/8; its label is i.
func writeTable(path string, groups, rows, columns int) error {
	var nodes schema.FieldList
	for c := range columns {
		nodes = append(nodes, schema.NewFloat32Node(fmt.Sprint("x", c), parquet.Repetitions.Required, -1))
	}
	nodes = append(nodes, schema.NewInt64Node("label", parquet.Repetitions.Required, -1))
	root, err := schema.NewGroupNode("table", parquet.Repetitions.Required, nodes, -1)
	if err != nil {
		return err
	}
	out, err := os.Create(path)
	if err != nil {
		return err
	}
	w := file.NewParquetWriter(out, root, file.WithWriterProps(parquet.NewWriterProperties(parquet.WithCompression(compress.Codecs.Snappy))))
	for g := range groups {
		group, err := w.AppendRowGroupChecked()
		if err == nil {
			err = writeGroup(group, g*rows, rows, columns)
		}
		if err != nil {
			return errors.Join(err, w.Close())
		}
	}
	return w.Close() // closes the file too
}

func writeGroup(w file.SerialRowGroupWriter, from, rows, columns int) error {
	for c := range columns {
		values := make([]float32, rows)
		for i := range values {
			values[i] = float32(from+i) + float32(c)/8
		}
		if err := write(w, values); err != nil {
			return err
		}
	}
	labels := make([]int64, rows)
	for i := range labels {
		labels[i] = int64(from + i)
	}
	if err := write(w, labels); err != nil {
		return err
	}
	return w.Close()
}

// write writes the next column of a row group.
func write[T float32 | int64](w file.SerialRowGroupWriter, values []T) error {
	chunk, err := w.NextColumn()
	if err != nil {
		return err
	}
	_, err = chunk.(interface {
		WriteBatch(values []T, definitions, repetitions []int16) (int64, error)
	}).WriteBatch(values, nil, nil)
	return errors.Join(err, chunk.Close())
}
