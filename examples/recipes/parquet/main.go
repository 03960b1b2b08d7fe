// Parquet loads a table by row groups. A row can't be read without decoding its row
// group. So the shuffled order mixes the rows of a few groups at a time, and the
// dataset keeps the groups that were decoded last: none is decoded twice in an epoch.
//
//	go run .               # makes a table and loads two epochs of it
//	go run . table.parquet # of float32 columns and an int64 column "label"
//
// What the file says of itself is checked before anything is read: sizes that can't be
// are an error, and no row is left out. Values that were damaged within a page may go
// unnoticed, since arrow-go doesn't compare the checksums of pages.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"sort"
	"sync"
	"sync/atomic"

	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/file"

	"github.com/nwt-go/nwt"
)

const (
	mixed    = 3       // row groups whose rows are mixed
	maxGroup = 1 << 30 // bytes of a decoded row group; several are kept
)

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
	number  int
	decoded chan struct{} // closed by the first who needed the group; the others wait

	// Of who decodes until decoded is closed.
	err      error
	features [][]float32 // by column
	labels   []int64
}

func openTable(path string) (t *table, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: %w", path, err)
		}
	}()
	// A file that is mapped and then cut short would end the program.
	source, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() {
		if p := recover(); p != nil { // arrow-go's, at a damaged footer
			err = fmt.Errorf("damaged: %v", p)
		}
		if err != nil {
			source.Close()
		}
	}()
	info, err := source.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("not a regular file: %v", info.Mode())
	}
	f, err := file.NewParquetReader(source)
	if err != nil {
		return nil, err
	}
	t = &table{file: f, starts: []int{0}, label: -1}
	if err := t.findColumns(); err != nil {
		return nil, err
	}
	for g := range f.NumRowGroups() {
		rows, err := t.rows(g, info.Size())
		if err != nil {
			return nil, fmt.Errorf("row group %d: %w", g, err)
		}
		t.starts = append(t.starts, t.Len()+rows)
	}
	if int64(t.Len()) != f.NumRows() {
		return nil, fmt.Errorf("its row groups have %d rows, not %d", t.Len(), f.NumRows())
	}
	t.feature = nwt.AddField[float32](&t.schema, "features", len(t.features))
	t.expected = nwt.AddField[int64](&t.schema, "label")
	return t, nil
}

// findColumns tells the label from the features.
func (t *table) findColumns() error {
	columns := t.file.MetaData().Schema
	for c := range columns.NumColumns() {
		column := columns.Column(c)
		want := parquet.Types.Float
		if column.Path() == "label" {
			want = parquet.Types.Int64
		}
		switch {
		case column.MaxDefinitionLevel() > 0 || column.MaxRepetitionLevel() > 0:
			return fmt.Errorf("column %q must be required, without repetitions", column.Path())
		case column.PhysicalType() != want:
			return fmt.Errorf("column %q has the type %v, not %v", column.Path(), column.PhysicalType(), want)
		case want == parquet.Types.Float:
			t.features = append(t.features, c)
		case t.label >= 0:
			return errors.New("two columns are named \"label\"")
		default:
			t.label = c
		}
	}
	if t.label < 0 || len(t.features) == 0 {
		return errors.New("must have a column \"label\", and others")
	}
	return nil
}

// rows is the number of rows in a row group of a file of size bytes, if that and where its
// columns lie is possible: arrow-go allocates whatever is said to be there.
func (t *table) rows(g int, size int64) (int, error) {
	group := t.file.MetaData().RowGroup(g)
	n := group.NumRows()
	if most := maxGroup / (4*int64(len(t.features)) + 8); n < 0 || n > most {
		return 0, fmt.Errorf("%d rows, want 0 to %d", n, most)
	}
	for c := range len(t.features) + 1 {
		column, err := group.ColumnChunk(c)
		if err != nil {
			return 0, err
		}
		if column.NumValues() != n {
			return 0, fmt.Errorf("column %d has %d values for %d rows", c, column.NumValues(), n)
		}
		from, length := column.DataPageOffset(), column.TotalCompressedSize()
		if column.HasDictionaryPage() && column.DictionaryPageOffset() > 0 {
			from = min(from, column.DictionaryPageOffset())
		}
		if from < 0 || length < 0 || from > size || length > size-from {
			return 0, fmt.Errorf("column %d is said to be %d bytes from byte %d on, in a file of %d", c, length, from, size)
		}
	}
	return int(n), nil
}

func (t *table) Close() error        { return t.file.Close() }
func (t *table) Len() int            { return t.starts[len(t.starts)-1] }
func (t *table) Fields() []nwt.Field { return t.schema.Fields() }

// order mixes the rows of a few row groups at a time.
func (t *table) order(seed uint64) (nwt.Sampler, error) {
	var sizes []int
	for g, start := range t.starts[1:] {
		if size := start - t.starts[g]; size > 0 {
			sizes = append(sizes, size)
		}
	}
	return nwt.LocallyShuffled(sizes, mixed, seed)
}

func (t *table) Load(ctx context.Context, i int, dst *nwt.Sample) error {
	number := sort.SearchInts(t.starts, i+1) - 1 // the last that begins there: an empty one begins there too
	g, first := t.group(number)
	if first {
		t.decode(g) // for all who wait, so it doesn't end with the context of one
	}
	select {
	case <-g.decoded:
	case <-ctx.Done():
		return ctx.Err()
	}
	if g.err != nil {
		return fmt.Errorf("row group %d: %w", number, g.err)
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
// others load the first of the next. The first who asks for a group decodes it.
func (t *table) group(number int) (g *group, first bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if k := slices.IndexFunc(t.kept, func(g *group) bool { return g.number == number }); k >= 0 {
		return t.kept[k], false
	}
	if len(t.kept) == 2*mixed {
		t.kept = slices.Delete(t.kept, 0, 1)
	}
	g = &group{number: number, decoded: make(chan struct{}), err: errors.New("not decoded")}
	t.kept = append(t.kept, g)
	return g, true
}

// forget makes the next who needs the row group decode it anew: a disk may fail once.
func (t *table) forget(g *group) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = slices.DeleteFunc(t.kept, func(k *group) bool { return k == g })
}

// decode decodes a row group, or says in it why not.
func (t *table) decode(g *group) {
	defer close(g.decoded)
	defer func() {
		if p := recover(); p != nil {
			g.err = fmt.Errorf("damaged: %v", p)
		}
		if g.err != nil {
			t.forget(g)
		}
	}()
	t.decoded.Add(1)
	g.err = t.readColumns(g)
}

func (t *table) readColumns(g *group) error {
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
	if chunk.HasNext() {
		return nil, fmt.Errorf("column %q has more than %d values", chunk.Descriptor().Name(), n)
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
