// Parquet loads a table by row groups. A row can't be read without decoding its row group. So the
// shuffled order mixes the rows of a few groups at a time, and the dataset keeps the groups that were
// decoded last. No group is decoded twice in an epoch.
//
//	go run .                       # makes a table and loads two epochs of it
//	go run . table.parquet         # as pyarrow writes it, for instance
//	go run . table.parquet x label # two of its columns
//	go run . table.parquet x? label # x may have nulls
//
// Each column becomes a field. Columns may hold booleans, numbers, times (as integers), strings or bytes
// (as uint8, ragged), or lists of them, fixed or ragged. A row with a null is a bad sample, unless the
// column was named with a question mark: then its value is 0, or empty, and the field x_valid says for
// each row whether it has a value. A row whose list contains a null is always bad. Columns of strings and
// lists are read once when the table is opened, for their longest row.
//
// The file's metadata is checked before anything is read: impossible sizes are an error, and no row is
// left out. Values that were damaged within a page may go unnoticed, since arrow-go doesn't check the
// checksums of pages.
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
	"strings"
	"sync"
	"sync/atomic"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/sampler"
)

const (
	mixed    = 3       // row groups whose rows are mixed
	maxGroup = 1 << 30 // bytes of a decoded row group; several are kept
)

// A table holds columns of a Parquet file.
type table struct {
	file    *pqarrow.FileReader
	starts  []int // first row of each row group, and the number of rows
	columns []column
	fields  []nwt.Field // one for each column
	decoded atomic.Int64

	mu   sync.Mutex
	kept []*group // guarded by mu; the groups decoded last, the oldest first
}

type column struct {
	number int // among the columns of the file
	leaf   int // its number as Parquet counts columns
	valid  int // the field that says which rows aren't null; 0: there is none, and nulls are bad
}

// A group is a row group. Each goroutine that needs it decodes the next column that no other has begun.
type group struct {
	number  int
	begun   atomic.Int64 // columns that a goroutine has begun
	left    atomic.Int64 // columns to be decoded
	decoded chan struct{}

	// The goroutines that decode write these, column by column, until decoded is closed.
	errs    []error
	columns []rows // of the fields
}

func (t *table) newGroup(number int) *group {
	g := &group{number: number, decoded: make(chan struct{}), errs: make([]error, len(t.columns)), columns: make([]rows, len(t.fields))}
	g.left.Store(int64(len(t.columns)))
	return g
}

func openTable(path string, names ...string) (t *table, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: %w", path, err)
		}
	}()
	// The file isn't mapped: if a mapped file were cut short, the program would crash.
	source, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() {
		if p := recover(); p != nil { // a panic of arrow-go because of a damaged footer
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
	t = &table{starts: []int{0}}
	if t.file, err = pqarrow.NewFileReader(f, pqarrow.ArrowReadProperties{}, memory.DefaultAllocator); err != nil {
		return nil, err
	}
	if err := t.findColumns(names); err != nil {
		return nil, err
	}
	for g := range f.NumRowGroups() {
		rows, err := t.rows(f, g, info.Size())
		if err != nil {
			return nil, fmt.Errorf("row group %d: %w", g, err)
		}
		t.starts = append(t.starts, t.Len()+rows)
	}
	if int64(t.Len()) != f.NumRows() {
		return nil, fmt.Errorf("its row groups have %d rows, not %d", t.Len(), f.NumRows())
	}
	return t, t.measure()
}

// findColumns finds the columns with these names, or all if there are none. A question mark after a name
// allows nulls.
func (t *table) findColumns(names []string) error {
	var masks []nwt.Field
	for number, of := range t.file.Manifest.Fields {
		name := of.Field.Name
		nulls := slices.Contains(names, name+"?")
		if len(names) > 0 && !nulls && !slices.Contains(names, name) {
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
		valid := 0
		if nulls {
			masks = append(masks, nwt.Field{Name: name + "_valid", Type: nwt.Bool})
			valid = len(masks) // an index in masks, until the masks' place is known
		}
		t.columns = append(t.columns, column{number, of.ColIndex, valid})
		t.fields = append(t.fields, field)
	}
	for c := range t.columns {
		if t.columns[c].valid > 0 {
			t.columns[c].valid += len(t.columns) - 1
		}
	}
	t.fields = append(t.fields, masks...)
	for _, name := range names {
		if !slices.ContainsFunc(t.fields, func(f nwt.Field) bool { return f.Name == strings.TrimSuffix(name, "?") }) {
			return fmt.Errorf("no column %q", name)
		}
	}
	return nil
}

// rows returns the number of rows in a row group of a file of size bytes. It first checks that this
// number, and where the columns lie, is possible, because arrow-go allocates whatever the file claims.
func (t *table) rows(f *file.Reader, g int, size int64) (int, error) {
	group := f.MetaData().RowGroup(g)
	n, bytes := group.NumRows(), int64(0)
	most := int64(maxGroup / (8 * max(len(t.columns), 1)))
	if n < 0 || n > most {
		return 0, fmt.Errorf("%d rows, want 0 to %d", n, most)
	}
	for _, c := range t.columns {
		column, err := group.ColumnChunk(c.leaf)
		if err != nil {
			return 0, err
		}
		of := f.MetaData().Schema.Column(c.leaf)
		if column.Type() != of.PhysicalType() {
			return 0, fmt.Errorf("column %d has the type %v, not %v", c.leaf, column.Type(), of.PhysicalType())
		}
		if values := column.NumValues(); values < n || values > n && (of.MaxRepetitionLevel() == 0 || values > most) {
			return 0, fmt.Errorf("column %d has %d values for %d rows", c.leaf, values, n)
		}
		from, length := column.DataPageOffset(), column.TotalCompressedSize()
		if column.HasDictionaryPage() && column.DictionaryPageOffset() > 0 {
			from = min(from, column.DictionaryPageOffset())
		}
		if from < 0 || length < 0 || from > size || length > size-from {
			return 0, fmt.Errorf("column %d is said to be %d bytes from byte %d on, in a file of %d", c.leaf, length, from, size)
		}
		unpacked := column.TotalUncompressedSize()
		if unpacked < 0 || unpacked > maxGroup-bytes {
			return 0, fmt.Errorf("%d bytes of column %d after %d of others, want at most %d: write smaller row groups", unpacked, c.leaf, bytes, maxGroup)
		}
		bytes += unpacked
	}
	return int(n), nil
}

// measure finds the longest row of each ragged column.
func (t *table) measure() error {
	for c, field := range t.fields {
		for g := 0; field.RaggedDims > 0 && g < len(t.starts)-1; g++ {
			column, err := t.read(g, c)
			if err != nil {
				return fmt.Errorf("row group %d: %w", g, err)
			}
			for i := range t.starts[g+1] - t.starts[g] {
				field.Shape[0] = max(field.Shape[0], len(column.row(i))/t.unit(c))
			}
		}
		if field.RaggedDims > 0 {
			field.Shape[0] = max(field.Shape[0], 1)
		}
	}
	return nil
}

// unit returns the size, in bytes, of one unit of a ragged column's length.
func (t *table) unit(c int) int {
	n := t.fields[c].Type.Size()
	for _, dim := range t.fields[c].Shape[1:] {
		n *= dim
	}
	return n
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
	g, err := t.group(ctx, t.numberOf(i))
	if err != nil {
		return err
	}
	return t.loadRow(g, i-t.starts[g.number], dst)
}

// numberOf returns the row group of a row: the last group that begins at or before it, since an empty
// group may begin there too.
func (t *table) numberOf(i int) int { return sort.SearchInts(t.starts, i+1) - 1 }

// loadRow makes a sample of a row of a decoded group.
func (t *table) loadRow(g *group, row int, dst *nwt.Sample) error {
	for f := range g.columns {
		if err := t.loadValue(g, f, row, dst); err != nil {
			return err
		}
	}
	return nil
}

func (t *table) loadValue(g *group, f, row int, dst *nwt.Sample) error {
	column := &g.columns[f]
	if why := column.bad[row]; why != "" {
		return fmt.Errorf("row %d: column %q %s", t.starts[g.number]+row, t.fields[f].Name, why)
	}
	data := column.row(row)
	if t.fields[f].RaggedDims > 0 {
		dst.SetLen(f, len(data)/t.unit(f))
	}
	copy(dst.Bytes(f), data) // the loader has cleared the rest of its place
	return nil
}

// A selection holds the rows of a batch that lie in one row group.
type selection struct {
	left         []int // places of the batch whose rows aren't loaded yet
	rows, places []int
}

// LoadMany loads the rows of one row group after the other, column by column.
func (t *table) LoadMany(ctx context.Context, indices []int, dst []*nwt.Sample) error {
	s, err := nwt.Scratch(dst[0], func() (*selection, error) { return &selection{}, nil })
	if err != nil {
		return err
	}
	s.left = s.left[:0]
	for place := range indices {
		s.left = append(s.left, place)
	}
	for len(s.left) > 0 {
		g, err := t.group(ctx, t.numberOf(indices[s.left[0]]))
		if err != nil {
			return err
		}
		s.choose(indices, t.starts[g.number], t.starts[g.number+1])
		for f := range g.columns {
			if column := &g.columns[f]; column.ends == nil && len(column.bad) == 0 {
				gathers[t.fields[f].Type](column, s.rows, s.places, f, dst)
				continue
			}
			for k, row := range s.rows {
				if err := t.loadValue(g, f, row, dst[s.places[k]]); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// choose removes from left the places whose rows are from … to−1 of the table.
func (s *selection) choose(indices []int, from, to int) {
	s.rows, s.places = s.rows[:0], s.places[:0]
	left := s.left[:0]
	for _, place := range s.left {
		if i := indices[place]; from <= i && i < to {
			s.rows, s.places = append(s.rows, i-from), append(s.places, place)
		} else {
			left = append(left, place)
		}
	}
	s.left = left
}

// group returns a row group that has been decoded.
func (t *table) group(ctx context.Context, number int) (*group, error) {
	g := t.find(number)
	return g, t.decode(ctx, g)
}

// find returns a row group that is kept, or a new one, which replaces the oldest. Twice as many groups
// are kept as are mixed: while some workers load the last rows of a mixture, others load the first rows
// of the next.
func (t *table) find(number int) *group {
	t.mu.Lock()
	defer t.mu.Unlock()
	if k := slices.IndexFunc(t.kept, func(g *group) bool { return g.number == number }); k >= 0 {
		return t.kept[k]
	}
	if len(t.kept) == 2*mixed {
		t.kept = slices.Delete(t.kept, 0, 1)
	}
	g := t.newGroup(number)
	t.kept = append(t.kept, g)
	return g
}

// forget makes the row group be decoded again when it is needed next, because a disk may fail once.
func (t *table) forget(g *group) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = slices.DeleteFunc(t.kept, func(k *group) bool { return k == g })
}

// decode decodes the columns of a row group that no other goroutine has begun. It does so for all that
// need the group, so the end of one caller's context doesn't stop it. Then it waits for the other
// columns.
func (t *table) decode(ctx context.Context, g *group) error {
	for all := int64(len(t.columns)); g.begun.Load() < all; {
		c := g.begun.Add(1) - 1
		if c >= all {
			break
		}
		if g.errs[c] = t.readColumn(g, int(c)); g.errs[c] != nil {
			t.forget(g)
		}
		if g.left.Add(-1) == 0 {
			t.decoded.Add(1)
			close(g.decoded)
		}
	}
	select {
	case <-g.decoded:
	case <-ctx.Done():
		return ctx.Err()
	}
	for _, err := range g.errs {
		if err != nil {
			return fmt.Errorf("row group %d: %w", g.number, err)
		}
	}
	return nil
}

func (t *table) readColumn(g *group, c int) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("damaged: %v", p)
		}
	}()
	column, err := t.read(g.number, c)
	if err != nil {
		return err
	}
	if f := t.columns[c].valid; f > 0 {
		g.columns[f] = column.mask(t.starts[g.number+1] - t.starts[g.number])
	} else {
		column.spoilNulls()
	}
	g.columns[c] = column
	return nil
}

// read reads a column of a row group.
func (t *table) read(g, c int) (rows, error) {
	n, name := t.starts[g+1]-t.starts[g], t.fields[c].Name
	reader, err := t.file.GetFieldReader(context.Background(), t.columns[c].number, map[int]bool{t.columns[c].leaf: true}, []int{g})
	if err != nil {
		return rows{}, fmt.Errorf("column %q: %w", name, err)
	}
	chunks, err := reader.NextBatch(int64(n) + 1) // one more, to check that there isn't one
	if err == nil && chunks.Len() < n {
		err = fmt.Errorf("%d rows, not %d: %w", chunks.Len(), n, io.ErrUnexpectedEOF)
	} else if err == nil && chunks.Len() > n {
		err = fmt.Errorf("has more than %d rows", n)
	}
	if err != nil {
		return rows{}, fmt.Errorf("column %q: %w", name, err)
	}
	if n == 0 {
		return rows{}, nil
	}
	whole := chunks.Chunk(0)
	if len(chunks.Chunks()) > 1 {
		if whole, err = array.Concatenate(chunks.Chunks(), memory.DefaultAllocator); err != nil {
			return rows{}, fmt.Errorf("column %q: %w", name, err)
		}
	}
	return rowsOf(whole), nil
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
		before := t.decoded.Load()
		for batch, err := range loader.Epoch(ctx, epoch) {
			if err != nil {
				return err
			}
			for f := range t.fields {
				_ = batch.Bytes(f) // here a model is trained
			}
		}
		fmt.Fprintf(out, "epoch %d: %d rows, %d row groups, decoded: %d\n", epoch, t.Len(), len(t.starts)-1, t.decoded.Load()-before)
	}
	return nil
}
