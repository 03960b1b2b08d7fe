// Parquet loads a table by row groups. A row can't be read without decoding its row
// group. So the shuffled order mixes the rows of a few groups at a time, and the
// dataset keeps the groups that were decoded last: none is decoded twice in an epoch.
//
//	go run .               # makes a table and loads two epochs of it
//	go run . table.parquet # of float32 columns and an int64 column "label"
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/apache/arrow-go/v18/parquet/file"

	"github.com/nwt-go/nwt"
)

const mixed = 3 // row groups whose rows are mixed

// A table is a Parquet file of required float32 columns, and of one int64 column that
// is the label.
type table struct {
	file     *file.Reader
	starts   []int // first row of each row group, and the number of rows
	features []int // columns
	label    int   // column
	decoded  atomic.Int64

	schema   nwt.Schema
	feature  nwt.Column[float32]
	expected nwt.Column[int64]

	mu   sync.Mutex
	kept []*group // guarded by mu; the groups decoded last, the oldest first
}

// A group is a decoded row group.
type group struct {
	number   int
	decode   func() error // the first to call it decodes, the others wait
	features [][]float32  // by column
	labels   []int64
}

func openTable(path string) (*table, error) {
	f, err := file.OpenParquetFile(path, true)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	t := &table{file: f, starts: []int{0}, label: -1}
	for c := range f.MetaData().Schema.NumColumns() {
		switch column := f.MetaData().Schema.Column(c); {
		case column.MaxDefinitionLevel() > 0 || column.MaxRepetitionLevel() > 0:
			err = fmt.Errorf("%s: column %q must be required, without repetitions", path, column.Name())
		case column.Name() == "label":
			t.label = c
		default:
			t.features = append(t.features, c)
		}
	}
	if t.label < 0 || len(t.features) == 0 {
		err = fmt.Errorf("%s: must have a column \"label\", and others", path)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	for g := range f.NumRowGroups() {
		t.starts = append(t.starts, t.starts[g]+int(f.MetaData().RowGroup(g).NumRows()))
	}
	t.feature = nwt.AddField[float32](&t.schema, "features", len(t.features))
	t.expected = nwt.AddField[int64](&t.schema, "label")
	return t, nil
}

func (t *table) Close() error        { return t.file.Close() }
func (t *table) Len() int            { return t.starts[len(t.starts)-1] }
func (t *table) Fields() []nwt.Field { return t.schema.Fields() }

// order mixes the rows of a few row groups at a time.
func (t *table) order(seed uint64) (nwt.Sampler, error) {
	var sizes []int
	for g, start := range t.starts[1:] {
		sizes = append(sizes, start-t.starts[g])
	}
	return nwt.LocallyShuffled(sizes, mixed, seed)
}

func (t *table) Load(_ context.Context, i int, dst *nwt.Sample) error {
	number, found := slices.BinarySearch(t.starts, i)
	if !found {
		number--
	}
	g := t.group(number)
	if err := g.decode(); err != nil {
		return fmt.Errorf("row group %d: %w", number, err)
	}
	row := i - t.starts[number]
	features := t.feature.Of(dst)
	for c, values := range g.features {
		features[c] = values[row]
	}
	t.expected.Of(dst)[0] = g.labels[row]
	return nil
}

// group is a row group that is kept; another one takes the place of the oldest. Twice
// as many are kept as are mixed: while some workers load the last rows of a mixture,
// others load the first of the next.
func (t *table) group(number int) *group {
	t.mu.Lock()
	defer t.mu.Unlock()
	if k := slices.IndexFunc(t.kept, func(g *group) bool { return g.number == number }); k >= 0 {
		return t.kept[k]
	}
	if len(t.kept) == 2*mixed {
		t.kept = slices.Delete(t.kept, 0, 1)
	}
	g := &group{number: number}
	g.decode = sync.OnceValue(func() error { return t.decode(g) })
	t.kept = append(t.kept, g)
	return g
}

// decode reads a row group's columns.
func (t *table) decode(g *group) error {
	t.decoded.Add(1)
	n := t.starts[g.number+1] - t.starts[g.number]
	columns := t.file.RowGroup(g.number)
	for _, c := range t.features {
		values, err := read[float32](columns, c, n)
		if err != nil {
			return err
		}
		g.features = append(g.features, values)
	}
	var err error
	g.labels, err = read[int64](columns, t.label, n)
	return err
}

// read is the n values of a column.
func read[T float32 | int64](columns *file.RowGroupReader, c, n int) ([]T, error) {
	chunk, err := columns.Column(c)
	if err != nil {
		return nil, err
	}
	typed, ok := chunk.(interface {
		ReadBatch(n int64, values []T, definitions, repetitions []int16) (total int64, read int, err error)
	})
	if !ok {
		return nil, fmt.Errorf("column %q has the type %v", chunk.Descriptor().Name(), chunk.Type())
	}
	values := make([]T, n)
	for from := 0; from < n; {
		_, got, err := typed.ReadBatch(int64(n-from), values[from:], nil, nil)
		if err == nil && got == 0 {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return nil, fmt.Errorf("column %q: %w", chunk.Descriptor().Name(), err)
		}
		from += got
	}
	return values, nil
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
		if err := writeTable(args[0], 20, 5000, 8); err != nil {
			return err
		}
	}
	t, err := openTable(args[0])
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
		before := t.decoded.Load()
		for batch, err := range loader.Epoch(ctx, epoch) {
			if err != nil {
				return err
			}
			_, _ = t.feature.Of(batch), t.expected.Of(batch) // here a model is trained
		}
		fmt.Fprintf(out, "epoch %d: %d rows, %d row groups, decoded: %d\n", epoch, t.Len(), len(t.starts)-1, t.decoded.Load()-before)
	}
	return nil
}
