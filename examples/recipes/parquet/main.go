// Parquet loads a table by row groups. A row can't be read without decoding its row group. So the
// shuffled order mixes the rows of a few groups at a time, and the dataset keeps the groups that were
// decoded last. No group is decoded twice in an epoch.
//
//	go run .                       # makes a table and loads two epochs of it
//	go run . table.parquet         # as pyarrow writes it, for instance
//	go run . table.parquet x label # two of its columns
//
// Each column becomes a field. Columns may hold booleans, numbers, times (as integers), strings or bytes
// (as uint8, ragged), or lists of numbers (ragged). A row with a null is a bad sample. Columns of strings
// and lists are read once when the table is opened, for their longest row.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"sort"
	"sync"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/sampler"
)

// mixed is how many row groups are mixed, row by row.
const mixed = 3

// A table holds columns of a Parquet file.
type table struct {
	file    *pqarrow.FileReader
	starts  []int // first row of each row group, and the number of rows
	columns []int // their numbers, as Parquet counts columns
	fields  []nwt.Field

	mu      sync.Mutex
	kept    []*group // the groups decoded last, the oldest first; guarded by mu
	decoded int      // groups so far; guarded by mu
}

// A group is a row group, decoded by the first goroutine that needs it. The others wait.
type group struct {
	once    sync.Once
	number  int
	columns []arrow.Array
	err     error
}

func openTable(path string, names ...string) (t *table, err error) {
	// The file isn't mapped: if a mapped file were cut short, the program would crash.
	source, err := file.OpenParquetFile(path, false)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	t = &table{starts: []int{0}}
	if err = t.open(source, names); err != nil {
		source.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}

func (t *table) open(source *file.Reader, names []string) (err error) {
	if t.file, err = pqarrow.NewFileReader(source, pqarrow.ArrowReadProperties{Parallel: true}, memory.DefaultAllocator); err != nil {
		return err
	}
	for _, of := range t.file.Manifest.Fields {
		name := of.Field.Name
		if len(names) > 0 && !slices.Contains(names, name) {
			continue
		}
		field, err := fieldOf(of.Field.Type)
		if err != nil {
			return fmt.Errorf("column %q: %w; name the columns to load after the file", name, err)
		}
		for !of.IsLeaf() { // a list
			of = of.Children[0]
		}
		field.Name = name
		t.columns, t.fields = append(t.columns, of.ColIndex), append(t.fields, field)
	}
	for _, name := range names {
		if !slices.ContainsFunc(t.fields, func(f nwt.Field) bool { return f.Name == name }) {
			return fmt.Errorf("no column %q", name)
		}
	}
	for g := range source.NumRowGroups() {
		t.starts = append(t.starts, t.Len()+int(source.MetaData().RowGroup(g).NumRows()))
	}
	return t.measure()
}

// measure finds the longest row of each ragged column.
func (t *table) measure() error {
	for f, field := range t.fields {
		for g := 0; field.RaggedDims > 0 && g < len(t.starts)-1; g++ {
			if t.starts[g] == t.starts[g+1] {
				continue
			}
			columns, err := t.read(context.Background(), g, t.columns[f:f+1])
			if err != nil {
				return err
			}
			for row := range columns[0].Len() {
				field.Shape[0] = max(field.Shape[0], len(valueOf(columns[0], row))/field.Type.Size())
			}
		}
	}
	return nil
}

func (t *table) Close() error        { return t.file.ParquetReader().Close() }
func (t *table) Len() int            { return t.starts[len(t.starts)-1] }
func (t *table) Fields() []nwt.Field { return t.fields }

// order mixes the rows of a few row groups at a time.
func (t *table) order(seed uint64) (nwt.Sampler, error) {
	var sizes []int
	for g, start := range t.starts[1:] {
		if size := start - t.starts[g]; size > 0 {
			sizes = append(sizes, size)
		}
	}
	return sampler.LocallyShuffled(sizes, mixed, seed)
}

func (t *table) Load(ctx context.Context, i int, dst *nwt.Sample) error {
	number := sort.SearchInts(t.starts, i+1) - 1 // the last that begins at or before i: an empty group may begin there too
	g, row := t.group(ctx, number), i-t.starts[number]
	if g.err != nil {
		return g.err
	}
	for f, column := range g.columns {
		if hasNull(column, row) {
			return fmt.Errorf("row %d: column %q is null, or has a null", i, t.fields[f].Name)
		}
		data := valueOf(column, row)
		if t.fields[f].RaggedDims > 0 {
			dst.SetLen(f, len(data)/t.fields[f].Type.Size())
		}
		copy(dst.Bytes(f), data) // the loader has cleared the rest of its place
	}
	return nil
}

// group returns a row group that has been decoded. Twice as many groups are kept as are mixed: while some
// workers load the last rows of a mixture, others load the first rows of the next.
func (t *table) group(ctx context.Context, number int) *group {
	t.mu.Lock()
	k := slices.IndexFunc(t.kept, func(g *group) bool { return g.number == number })
	if k < 0 {
		if len(t.kept) == 2*mixed {
			t.kept = slices.Delete(t.kept, 0, 1)
		}
		k = len(t.kept)
		t.kept = append(t.kept, &group{number: number})
	}
	g := t.kept[k]
	t.mu.Unlock()
	g.once.Do(func() {
		g.columns, g.err = t.read(context.WithoutCancel(ctx), number, t.columns)
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.decoded++; g.err != nil { // a disk may fail once
			t.kept = slices.DeleteFunc(t.kept, func(k *group) bool { return k == g })
		}
	})
	return g
}

// read reads columns of a row group.
func (t *table) read(ctx context.Context, number int, columns []int) (all []arrow.Array, err error) {
	defer func() {
		if p := recover(); p != nil { // of arrow-go, because of a damaged file
			err = fmt.Errorf("damaged: %v", p)
		}
		if err != nil {
			err = fmt.Errorf("row group %d: %w", number, err)
		}
	}()
	read, err := t.file.ReadRowGroups(ctx, columns, []int{number})
	if err != nil {
		return nil, err
	}
	want := t.starts[number+1] - t.starts[number]
	for c := range columns {
		column, err := array.Concatenate(read.Column(c).Data().Chunks(), memory.DefaultAllocator)
		if err != nil {
			return nil, err
		}
		if column.Len() != want {
			return nil, fmt.Errorf("column %q has %d rows: must be %d", read.Column(c).Name(), column.Len(), want)
		}
		all = append(all, column)
	}
	return all, nil
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "parquet:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	if len(args) == 0 {
		dir, err := os.MkdirTemp("", "parquet-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		args = append(args, filepath.Join(dir, "table.parquet"))
		if err := writeTable(args[0], 20, 5000); err != nil {
			return err
		}
	}
	t, err := openTable(args[0], args[1:]...)
	if err != nil {
		return err
	}
	defer t.Close()
	order, err := t.order(42)
	if err != nil {
		return err
	}
	loader, err := nwt.NewLoader(t, nwt.WithSampler(order), nwt.WithBatchSize(256))
	if err != nil {
		return err
	}
	defer loader.Close()
	for epoch := range 2 {
		before := t.decodedSoFar()
		for batch, err := range loader.Epoch(ctx, epoch) {
			if err != nil {
				return err
			}
			for f := range t.fields {
				_ = batch.Bytes(f) // here a model is trained
			}
		}
		fmt.Fprintf(out, "epoch %d: %d rows, %d row groups, decoded: %d\n", epoch, t.Len(), len(t.starts)-1, t.decodedSoFar()-before)
	}
	return nil
}

func (t *table) decodedSoFar() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.decoded
}
