package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/sampler"
)

// A file of row groups, like those of Parquet and HDF5: a row can't be read without decoding its group.
// The shuffled order mixes the rows of a few groups at a time, and the dataset keeps that many groups.

const (
	groupRows = 50
	mixGroups = 3
)

var (
	rowSchema nwt.Schema
	row       = nwt.AddField[uint32](&rowSchema, "row", 2)
)

// table keeps the groups of a file that were decoded last, for all workers together.
type table struct {
	file    *os.File
	rows    int
	decoded atomic.Int64

	mu     sync.Mutex
	groups map[int]func() ([]uint32, error) // guarded by mu; the first caller decodes
	oldest []int                            // guarded by mu
}

// group returns the rows of a group.
func (t *table) group(g int) ([]uint32, error) {
	t.mu.Lock()
	decode, ok := t.groups[g]
	if !ok {
		decode = sync.OnceValues(func() ([]uint32, error) { return t.decode(g) })
		t.groups[g], t.oldest = decode, append(t.oldest, g)
		if len(t.oldest) > 2*mixGroups { // the previous window may still be in use
			delete(t.groups, t.oldest[0])
			t.oldest = t.oldest[1:]
		}
	}
	t.mu.Unlock()
	rows, err := decode()
	if err != nil { // the next caller tries again, because a disk may fail once
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.groups, g)
		t.oldest = slices.DeleteFunc(t.oldest, func(k int) bool { return k == g })
	}
	return rows, err
}

// decode stands for the work of a Parquet library.
func (t *table) decode(g int) ([]uint32, error) {
	t.decoded.Add(1)
	data := make([]byte, 8*min(groupRows, t.rows-g*groupRows)) // the last group may have fewer rows
	if _, err := t.file.ReadAt(data, 8*groupRows*int64(g)); err != nil {
		return nil, err // also for io.EOF, because then the file was cut
	}
	rows := make([]uint32, len(data)/4)
	for i := range rows {
		rows[i] = binary.LittleEndian.Uint32(data[4*i:])
	}
	return rows, nil
}

func (t *table) Len() int            { return t.rows }
func (t *table) Fields() []nwt.Field { return rowSchema.Fields() }

func (t *table) Load(_ context.Context, i int, dst *nwt.Sample) error {
	rows, err := t.group(i / groupRows)
	if err != nil {
		return err
	}
	row.Set(dst, rows[i%groupRows*2:][:2]...)
	return nil
}

// openTable makes a file of rows and opens it.
func openTable(dir string, rows int) (*table, []nwt.Option, error) {
	var data []byte
	for i := range rows {
		data = binary.LittleEndian.AppendUint32(data, uint32(i))
		data = binary.LittleEndian.AppendUint32(data, uint32(i*i))
	}
	path := filepath.Join(dir, "table.bin")
	if err := os.WriteFile(path, data, 0o644); err != nil {
		return nil, nil, err
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	var sizes []int
	for from := 0; from < rows; from += groupRows {
		sizes = append(sizes, min(groupRows, rows-from))
	}
	order, err := sampler.LocallyShuffled(sizes, mixGroups, 42)
	t := &table{file: file, rows: rows, groups: map[int]func() ([]uint32, error){}}
	return t, []nwt.Option{nwt.WithSampler(order), nwt.WithBatchSize(16)}, err
}

func rowGroups(ctx context.Context, dir string, out io.Writer) error {
	t, opts, err := openTable(dir, 680)
	if err != nil {
		return err
	}
	defer t.file.Close()
	loader, err := nwt.NewLoader(t, opts...)
	if err != nil {
		return err
	}
	defer loader.Close()
	for batch, err := range loader.Epoch(ctx, 0) {
		if err != nil {
			return err
		}
		_ = row.Of(batch) // here a model is trained
	}
	fmt.Fprintf(out, "  %d rows of 14 groups; groups decoded: %d\n", t.rows, t.decoded.Load())
	return nil
}
