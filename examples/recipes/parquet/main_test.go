package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

func made(t *testing.T, groups, rows int) (*table, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "table.parquet")
	require.NoError(t, writeTable(path, groups, rows))
	return opened(t, path), path
}

func opened(t *testing.T, path string, names ...string) *table {
	t.Helper()
	tab, err := openTable(path, names...)
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
			longest := b.Shape(1)[1]
			for k, label := range nwt.Values[int64](b, 2) {
				all[from+n*rank/world+k] = label
				require.Equal(t, float32(label)+0.25, nwt.Values[float32](b, 0)[k])
				require.Equal(t, fmt.Sprint("row ", label), string(b.Bytes(1)[k*longest:][:b.Lens(1, 0)[k]]))
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
	tab, _ := made(t, 8, 100)
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

// The table of testdata was written by pyarrow: see make.py there.
func TestATableIsWhatPyarrowWrote(t *testing.T) {
	tab := opened(t, "testdata/table.parquet")
	require.Equal(t, 60, tab.Len())
	for i := range 60 {
		s, err := nwt.LoadSample(t.Context(), tab, i)
		require.NoError(t, err)
		require.EqualValues(t, -i, nwt.Values[int64](s, 0)[0])
		require.Equal(t, i%5, s.Len(1, 0))
		for c, x := range nwt.Values[float32](s, 1)[:i%5] {
			require.Equal(t, float32(i)+0.25*float32(c), x)
		}
		require.Equal(t, fmt.Sprintf("row %d größer", i), string(s.Bytes(2)[:s.Len(2, 0)]))
	}
}

// nullable writes a table as pyarrow does by default: all columns may have nulls, and Arrow's
// schema is kept. Each row is a JSON object, and two are a row group.
func nullable(t *testing.T, fields []arrow.Field, rows ...string) (path string) {
	t.Helper()
	for i := range fields {
		fields[i].Nullable = true
	}
	schema := arrow.NewSchema(fields, nil)
	record, _, err := array.RecordFromJSON(memory.DefaultAllocator, schema, strings.NewReader("["+strings.Join(rows, ",")+"]"))
	require.NoError(t, err)
	path = filepath.Join(t.TempDir(), "table.parquet")
	out, err := os.Create(path)
	require.NoError(t, err)
	w, err := pqarrow.NewFileWriter(schema, out, parquet.NewWriterProperties(parquet.WithMaxRowGroupLength(2)), pqarrow.NewArrowWriterProperties(pqarrow.WithStoreSchema()))
	require.NoError(t, err)
	require.NoError(t, w.Write(record))
	require.NoError(t, w.Close())
	return path
}

func TestColumnsOfAllPlainTypesAreLoaded(t *testing.T) {
	for _, c := range []struct {
		of     arrow.DataType
		json   [3]string
		values [3]any
	}{
		{arrow.FixedWidthTypes.Boolean, [3]string{"true", "false", "true"}, [3]any{true, false, true}},
		{arrow.PrimitiveTypes.Int8, [3]string{"-1", "0", "127"}, [3]any{int8(-1), int8(0), int8(127)}},
		{arrow.PrimitiveTypes.Int64, [3]string{"-1", "0", "9"}, [3]any{int64(-1), int64(0), int64(9)}},
		{arrow.PrimitiveTypes.Uint16, [3]string{"1", "0", "65535"}, [3]any{uint16(1), uint16(0), uint16(65535)}},
		{arrow.FixedWidthTypes.Float16, [3]string{"1", "0", "-2"}, [3]any{uint16(0x3c00), uint16(0), uint16(0xc000)}},
		{arrow.PrimitiveTypes.Float64, [3]string{"0.1", "0", "-2"}, [3]any{0.1, 0.0, -2.0}},
		{arrow.FixedWidthTypes.Timestamp_us, [3]string{"7", "0", "-1"}, [3]any{int64(7), int64(0), int64(-1)}},
		{arrow.BinaryTypes.String, [3]string{`"é"`, `""`, `"abc"`}, [3]any{[]byte("é"), []byte{}, []byte("abc")}},
		{arrow.BinaryTypes.LargeString, [3]string{`"é"`, `""`, `"abc"`}, [3]any{[]byte("é"), []byte{}, []byte("abc")}},
		{arrow.BinaryTypes.Binary, [3]string{`"AQID"`, `""`, `"/w=="`}, [3]any{[]byte{1, 2, 3}, []byte{}, []byte{255}}},
		{arrow.ListOf(arrow.PrimitiveTypes.Int64), [3]string{"[1,2]", "[]", "[3]"}, [3]any{[]int64{1, 2}, []int64{}, []int64{3}}},
	} {
		t.Run(c.of.String(), func(t *testing.T) {
			var rows []string
			for _, v := range c.json {
				rows = append(rows, `{"x":`+v+`}`)
			}
			tab := opened(t, nullable(t, []arrow.Field{{Name: "x", Type: c.of}}, rows...))
			for i, value := range c.values {
				s, err := nwt.LoadSample(t.Context(), tab, i)
				require.NoError(t, err)
				want, err := binary.Append(nil, binary.NativeEndian, value)
				require.NoError(t, err)
				got := s.Bytes(0)
				if f := tab.Fields()[0]; f.RaggedDims > 0 {
					got = got[:s.Len(0, 0)*f.Type.Size()]
				}
				require.Equal(t, fmt.Sprintf("%x", want), fmt.Sprintf("%x", got))
			}
		})
	}
}

func TestARowWithANullIsABadSampleThatIsNamed(t *testing.T) {
	tab := opened(t, nullable(t, []arrow.Field{
		{Name: "x", Type: arrow.PrimitiveTypes.Float32}, {Name: "l", Type: arrow.ListOf(arrow.PrimitiveTypes.Int64)}, {Name: "s", Type: arrow.BinaryTypes.String},
	}, `{"x":1,"l":[1],"s":"a"}`, `{"x":null,"l":[1],"s":"a"}`, `{"x":1,"l":null,"s":"a"}`, `{"x":1,"l":[1,null],"s":"a"}`, `{"x":1,"l":[],"s":null}`, `{"x":9,"l":[2],"s":""}`))
	for i, want := range []string{"", `row 1: column "x" is null`, `row 2: column "l" is null`, `row 3: column "l" is null, or has a null`, `row 4: column "s" is null`, ""} {
		if _, err := nwt.LoadSample(t.Context(), tab, i); want == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, want)
		}
	}
}

func TestAColumnThatCannotBeLoadedIsNamedAndCanBeLeftOut(t *testing.T) {
	for of, json := range map[arrow.DataType]string{
		arrow.StructOf(arrow.Field{Name: "y", Type: arrow.PrimitiveTypes.Int8}): `{"y":1}`,
		arrow.ListOf(arrow.BinaryTypes.String):                                  `["a"]`,
		&arrow.Decimal128Type{Precision: 5}:                                     `"1"`,
	} {
		path := nullable(t, []arrow.Field{{Name: "x", Type: of}, {Name: "label", Type: arrow.PrimitiveTypes.Int64}}, fmt.Sprintf(`{"x":%s,"label":3}`, json))
		_, err := openTable(path)
		require.ErrorContains(t, err, `column "x": `)
		require.ErrorContains(t, err, "can't be loaded; name the columns to load after the file")
		s, err := nwt.LoadSample(t.Context(), opened(t, path, "label"), 0)
		require.NoError(t, err)
		require.Equal(t, []int64{3}, nwt.Values[int64](s, 0))
		_, err = openTable(path, "label", "lable")
		require.ErrorContains(t, err, `no column "lable"`)
	}
}

func TestATableThatCannotBeReadIsNamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.parquet")
	require.NoError(t, os.WriteFile(path, []byte("PAR1 is not enough PAR1"), 0o600))
	for _, path := range []string{path, t.TempDir(), "none.parquet"} {
		_, err := openTable(path)
		require.ErrorContains(t, err, path)
	}
}

func TestARowGroupThatCouldNotBeReadOnceIsReadAgain(t *testing.T) {
	tab, path := made(t, 20, 5000)
	whole, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.Truncate(path, 10_000))
	_, err = nwt.LoadSample(t.Context(), tab, 50_000)
	require.ErrorIs(t, err, io.EOF)
	require.ErrorContains(t, err, "row group 10")
	require.NoError(t, os.WriteFile(path, whole, 0o600))
	_, err = nwt.LoadSample(t.Context(), tab, 50_000)
	require.NoError(t, err)
}
