package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/metadata"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

// written returns where a new table lies, and what is in it.
func written(t *testing.T, groups, rows, columns int) (path string, whole []byte) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "table.parquet")
	require.NoError(t, writeTable(path, groups, rows, columns))
	whole, err := os.ReadFile(path)
	require.NoError(t, err)
	return path, whole
}

func made(t *testing.T, groups, rows int) *table {
	t.Helper()
	path, _ := written(t, groups, rows, 4)
	tab, err := openTable(path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, tab.Close()) })
	return tab
}

// labels returns the labels from a state on, by their position in the epoch, as all ranks
// together load them, in up to so many steps.
func labels(t *testing.T, tab *table, state nwt.State, world, batch, workers, steps int) (all map[int]int64, reached nwt.State) {
	t.Helper()
	order, err := tab.order(42)
	require.NoError(t, err)
	all = map[int]int64{}
	for rank := range world {
		l, err := nwt.NewLoader(tab, nwt.WithSampler(order), nwt.WithRank(rank, world), nwt.WithBatchSize(batch), nwt.WithWorkers(workers))
		require.NoError(t, err)
		reached = state
		done := 0
		for b, err := range l.Resume(t.Context(), state) {
			require.NoError(t, err)
			from, n := reached.Samples, b.State().Samples-reached.Samples
			for k, label := range nwt.Values[int64](b, 4) {
				all[from+n*rank/world+k] = label
				for c := range 4 {
					require.Equal(t, float32(label)+float32(c)/8, nwt.Values[float32](b, c)[k])
				}
			}
			reached = b.State()
			if done++; done == steps {
				break
			}
		}
		require.NoError(t, l.Close())
	}
	return all, reached
}

func TestATableGoesOnInTheMiddleOfAnEpochOnOtherRanks(t *testing.T) {
	tab := made(t, 8, 100)
	start := nwt.State{Epoch: 1}
	whole, _ := labels(t, tab, start, 1, 32, 0, -1)
	require.Len(t, whole, 800)
	head, state := labels(t, tab, start, 2, 15, 2, 7)
	require.Equal(t, 210, state.Samples)
	tail, _ := labels(t, tab, state, 3, 20, 3, -1)
	maps.Copy(head, tail)
	require.Equal(t, whole, head)
}

func TestNoRowGroupIsDecodedTwiceInAnEpoch(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), nil, &out))
	var again int
	_, err := fmt.Sscanf(out.String(), "epoch 0: 100000 rows, 20 row groups, decoded: 20\nepoch 1: 100000 rows, 20 row groups, decoded: %d\n", &again)
	require.NoError(t, err, &out)
	require.LessOrEqual(t, again, 24, "some are found that the first epoch has left; those in use where one ends may be decoded once more")
	require.Positive(t, again)
}

// The decoder of arrow-go allocates for every column of a row group. Batches whose rows are
// decoded cost nothing more.
func TestOnlyDecodingAllocates(t *testing.T) {
	const rows, batch = 1000, 50
	tab := made(t, 20, rows)
	order, err := tab.order(42)
	require.NoError(t, err)
	l, err := nwt.NewLoader(tab, nwt.WithSampler(order), nwt.WithBatchSize(batch), nwt.WithWorkers(0), nwt.WithPrefetch(2)) // a depth that is looked for asks once for the memory left
	require.NoError(t, err)
	defer l.Close()
	next, stop := iter.Pull2(l.Epoch(t.Context(), 0))
	defer stop()
	next()
	first := tab.decoded.Load()
	var decoding, decoded uint64 // allocations in batches for which a row group was decoded, and in the others
	without := uint64(0)         // number of those others
	for range 20*rows/batch - 1 {
		before := tab.decoded.Load()
		n := allocations(func() {
			_, err, more := next()
			require.NoError(t, err)
			require.True(t, more)
		})
		if tab.decoded.Load() > before {
			decoding += n
		} else {
			decoded += n
			without++
		}
	}
	require.Greater(t, without, uint64(300))
	require.Less(t, decoded, without/10, "of %d batches", without)
	groups := uint64(tab.decoded.Load() - first)
	perGroup := uint64(testing.AllocsPerRun(5, func() { require.NoError(t, tab.decode(t.Context(), tab.newGroup(3))) }))
	t.Logf("%d allocations for each of %d row groups, %d of them in decoding 5 columns", decoding/groups, groups, perGroup)
	require.Less(t, decoding, groups*(perGroup+20))
}

func allocations(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.Mallocs - before.Mallocs
}

func TestATableThatCannotBeReadIsNamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.parquet")
	require.NoError(t, os.WriteFile(path, []byte("PAR1 is not enough PAR1"), 0o600))
	_, err := openTable(path)
	require.ErrorContains(t, err, path)
	_, err = openTable(t.TempDir())
	require.ErrorContains(t, err, "not a regular file")
}

// footer returns where a file's footer begins.
func footer(file []byte) int {
	n := len(file) - 8
	return n - int(binary.LittleEndian.Uint32(file[n:]))
}

// loads returns the number of rows that an epoch of the file at path delivers; each must be one
// that was written.
func loads(t *testing.T, path string) (rows int, err error) {
	tab, err := openTable(path)
	if err != nil {
		return 0, err
	}
	defer tab.Close()
	order, err := tab.order(42)
	if err != nil {
		return 0, err
	}
	l, err := nwt.NewLoader(tab, nwt.WithSampler(order), nwt.WithWorkers(2))
	require.NoError(t, err)
	defer l.Close()
	for b, err := range l.Epoch(t.Context(), 0) {
		if err != nil {
			return rows, err
		}
		rows += b.Len()
		for k, i := range b.Indices() {
			require.EqualValues(t, i, nwt.Values[int64](b, len(b.Fields())-1)[k])
		}
	}
	return rows, nil
}

func TestAFooterThatLiesIsAnErrorAndLosesNoRow(t *testing.T) {
	path, whole := written(t, 3, 100, 2)
	allRows := func(m *metadata.FileMetaData, rows int64) {
		m.NumRows += rows - m.RowGroups[1].NumRows
		m.RowGroups[1].NumRows = rows
		for _, c := range m.RowGroups[1].Columns {
			c.MetaData.NumValues = rows
		}
	}
	for name, c := range map[string]struct {
		lie  func(m *metadata.FileMetaData)
		want string
	}{
		"the truth": {func(*metadata.FileMetaData) {}, ""},
		"a row group without rows": {func(m *metadata.FileMetaData) {
			empty := *m.RowGroups[0]
			empty.NumRows, empty.Columns = 0, nil
			for _, c := range m.RowGroups[0].Columns {
				c, data := *c, *c.MetaData
				data.NumValues = 0
				c.MetaData = &data
				empty.Columns = append(empty.Columns, &c)
			}
			m.RowGroups = slices.Insert(m.RowGroups, 1, &empty)
		}, ""},
		"a trillion rows":           {func(m *metadata.FileMetaData) { allRows(m, 1<<40) }, "row group 1: 1099511627776 rows, want 0 to 44739242"},
		"fewer than no rows":        {func(m *metadata.FileMetaData) { allRows(m, -1) }, "row group 1: -1 rows"},
		"fewer rows than there are": {func(m *metadata.FileMetaData) { allRows(m, 60) }, "more than 60 rows"},
		"more rows than there are":  {func(m *metadata.FileMetaData) { allRows(m, 140) }, "unexpected EOF"},
		"a column of other rows":    {func(m *metadata.FileMetaData) { m.RowGroups[2].Columns[1].MetaData.NumValues = 7 }, "row group 2: column 1 has 7 values for 100 rows"},
		"another number of rows":    {func(m *metadata.FileMetaData) { m.NumRows = 299 }, "have 300 rows, not 299"},
		"a column of 32 TB":         {func(m *metadata.FileMetaData) { m.RowGroups[0].Columns[0].MetaData.TotalCompressedSize = 1 << 45 }, "column 0 is said to be 35184372088832 bytes"},
		"a column past the end": {func(m *metadata.FileMetaData) {
			c := m.RowGroups[0].Columns[0].MetaData
			c.DataPageOffset, c.DictionaryPageOffset = 1<<45, nil
		}, "from byte 35184372088832 on"},
		"a column before the start": {func(m *metadata.FileMetaData) { m.RowGroups[0].Columns[0].MetaData.DataPageOffset = -1 << 45 }, "row group 0: column 0"},
		"a label of another type":   {func(m *metadata.FileMetaData) { m.FileMetaData.Schema[3].Type = m.FileMetaData.Schema[1].Type }, "row group 0: column 2 has the type INT64, not FLOAT"},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := file.NewParquetReader(bytes.NewReader(whole))
			require.NoError(t, err)
			c.lie(r.MetaData())
			lying := bytes.NewBuffer(slices.Clone(whole[:footer(whole)]))
			n, err := r.MetaData().WriteTo(lying, nil)
			require.NoError(t, err)
			lying.Write(binary.LittleEndian.AppendUint32(nil, uint32(n)))
			lying.WriteString("PAR1")
			require.NoError(t, os.WriteFile(path, lying.Bytes(), 0o600))
			rows, err := loads(t, path)
			if c.want == "" {
				require.NoError(t, err)
				require.Equal(t, 300, rows)
				return
			}
			require.ErrorContains(t, err, c.want)
		})
	}
}

func TestWhicheverByteOfAFooterIsDamagedNoRowIsLost(t *testing.T) {
	path, whole := written(t, 2, 60, 1)
	for at := footer(whole); at < len(whole); at++ {
		for _, flip := range []byte{1, 0x80} {
			damaged := slices.Clone(whole)
			damaged[at] ^= flip
			require.NoError(t, os.WriteFile(path, damaged, 0o600))
			if rows, err := loads(t, path); err == nil {
				require.Equal(t, 120, rows, "byte %d ^ %#x", at, flip)
			}
		}
	}
}

func TestATableThatIsCutWhileItIsLoadedEndsTheEpoch(t *testing.T) {
	path := filepath.Join(t.TempDir(), "table.parquet")
	require.NoError(t, writeTable(path, 20, 5000, 8))
	tab, err := openTable(path)
	require.NoError(t, err)
	defer tab.Close()
	require.NoError(t, os.Truncate(path, 10_000))
	_, err = nwt.LoadSample(t.Context(), tab, 50_000)
	require.ErrorIs(t, err, io.EOF)
}

// reopen has the table read from source from now on.
func (t *table) reopen(tb testing.TB, source parquet.ReaderAtSeeker, opts ...file.ReadOption) {
	tb.Helper()
	require.NoError(tb, t.Close())
	f, err := file.NewParquetReader(source, opts...)
	require.NoError(tb, err)
	t.file, err = pqarrow.NewFileReader(f, pqarrow.ArrowReadProperties{}, memory.DefaultAllocator)
	require.NoError(tb, err)
}

// failing fails once.
type failing struct {
	parquet.ReaderAtSeeker
	left int // reads before it fails
}

func (f *failing) ReadAt(p []byte, at int64) (int, error) {
	if f.left--; f.left == 0 {
		return 0, errors.New("input/output error")
	}
	return f.ReaderAtSeeker.ReadAt(p, at)
}

func TestARowGroupThatCouldNotBeReadOnceIsReadAgain(t *testing.T) {
	path, whole := written(t, 2, 10, 1)
	tab, err := openTable(path)
	require.NoError(t, err)
	source := &failing{ReaderAtSeeker: bytes.NewReader(whole)}
	tab.reopen(t, source)
	source.left = 1
	_, err = nwt.LoadSample(t.Context(), tab, 3)
	require.ErrorContains(t, err, "input/output error")
	_, err = nwt.LoadSample(t.Context(), tab, 3)
	require.NoError(t, err)
}

// stuck never answers until it is closed.
type stuck struct {
	parquet.ReaderAtSeeker
	until chan struct{}
}

func (s stuck) ReadAt(p []byte, at int64) (int, error) {
	<-s.until
	return s.ReaderAtSeeker.ReadAt(p, at)
}

func TestWaitingForARowGroupThatAnotherDecodesEndsWithTheContext(t *testing.T) {
	path, whole := written(t, 2, 10, 1)
	synctest.Test(t, func(t *testing.T) {
		tab, err := openTable(path)
		require.NoError(t, err)
		source := stuck{bytes.NewReader(whole), make(chan struct{})}
		tab.reopen(t, source, file.WithMetadata(tab.file.ParquetReader().MetaData()))
		first := make(chan error, 2)
		for range 2 { // each decodes a column
			go func() {
				_, err := nwt.LoadSample(t.Context(), tab, 3)
				first <- err
			}()
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = nwt.LoadSample(ctx, tab, 4)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		close(source.until)
		require.NoError(t, errors.Join(<-first, <-first))
		_, err = nwt.LoadSample(t.Context(), tab, 4)
		require.NoError(t, err)
	})
}
