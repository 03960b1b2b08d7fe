package main

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
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

// nullable writes a table as pyarrow does by default: all columns may have nulls, and Arrow's
// schema is kept. Each row is a JSON object, and 60 are a row group.
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
	w, err := pqarrow.NewFileWriter(schema, out, parquet.NewWriterProperties(parquet.WithMaxRowGroupLength(60)), pqarrow.NewArrowWriterProperties(pqarrow.WithStoreSchema()))
	require.NoError(t, err)
	require.NoError(t, w.Write(record))
	require.NoError(t, w.Close())
	return path
}

// bytesOf is numbers as they lie in a batch.
func bytesOf(values any) []byte {
	b, err := binary.Append(nil, binary.NativeEndian, values)
	if err != nil {
		panic(err)
	}
	return b
}

func TestNullableColumnsOfAllPlainTypesAreLoaded(t *testing.T) {
	for _, c := range []struct {
		of     arrow.DataType
		json   [3]string
		as     nwt.Field
		values [3]any
	}{
		{arrow.FixedWidthTypes.Boolean, [3]string{"true", "false", "true"}, nwt.Field{Type: nwt.Bool}, [3]any{true, false, true}},
		{arrow.PrimitiveTypes.Int8, [3]string{"-1", "0", "127"}, nwt.Field{Type: nwt.Int8}, [3]any{int8(-1), int8(0), int8(127)}},
		{arrow.PrimitiveTypes.Int16, [3]string{"-1", "0", "32767"}, nwt.Field{Type: nwt.Int16}, [3]any{int16(-1), int16(0), int16(32767)}},
		{arrow.PrimitiveTypes.Int32, [3]string{"-1", "0", "9"}, nwt.Field{Type: nwt.Int32}, [3]any{int32(-1), int32(0), int32(9)}},
		{arrow.PrimitiveTypes.Int64, [3]string{"-1", "0", "9"}, nwt.Field{Type: nwt.Int64}, [3]any{int64(-1), int64(0), int64(9)}},
		{arrow.PrimitiveTypes.Uint8, [3]string{"1", "0", "255"}, nwt.Field{Type: nwt.Uint8}, [3]any{uint8(1), uint8(0), uint8(255)}},
		{arrow.PrimitiveTypes.Uint16, [3]string{"1", "0", "65535"}, nwt.Field{Type: nwt.Int32}, [3]any{int32(1), int32(0), int32(65535)}},
		{arrow.PrimitiveTypes.Uint32, [3]string{"1", "0", "4294967295"}, nwt.Field{Type: nwt.Int64}, [3]any{int64(1), int64(0), int64(4294967295)}},
		{arrow.PrimitiveTypes.Uint64, [3]string{"1", "0", "4294967296"}, nwt.Field{Type: nwt.Int64}, [3]any{int64(1), int64(0), int64(4294967296)}},
		{arrow.FixedWidthTypes.Float16, [3]string{"1", "0", "-2"}, nwt.Field{Type: nwt.Float16}, [3]any{uint16(0x3c00), uint16(0), uint16(0xc000)}},
		{arrow.PrimitiveTypes.Float32, [3]string{"1.5", "0", "-2"}, nwt.Field{Type: nwt.Float32}, [3]any{float32(1.5), float32(0), float32(-2)}},
		{arrow.PrimitiveTypes.Float64, [3]string{"0.1", "0", "-2"}, nwt.Field{Type: nwt.Float64}, [3]any{0.1, 0.0, -2.0}},
		{arrow.FixedWidthTypes.Timestamp_us, [3]string{"7", "0", "-1"}, nwt.Field{Type: nwt.Int64}, [3]any{int64(7), int64(0), int64(-1)}},
		{arrow.BinaryTypes.String, [3]string{`"é"`, `""`, `"abc"`}, nwt.Field{Type: nwt.Uint8, Shape: []int{3}, RaggedDims: 1}, [3]any{[]byte("é"), []byte{}, []byte("abc")}},
		{arrow.BinaryTypes.LargeString, [3]string{`"é"`, `""`, `"abc"`}, nwt.Field{Type: nwt.Uint8, Shape: []int{3}, RaggedDims: 1}, [3]any{[]byte("é"), []byte{}, []byte("abc")}},
		{arrow.BinaryTypes.Binary, [3]string{`"AQID"`, `""`, `"/w=="`}, nwt.Field{Type: nwt.Uint8, Shape: []int{3}, RaggedDims: 1}, [3]any{[]byte{1, 2, 3}, []byte{}, []byte{255}}},
		{&arrow.FixedSizeBinaryType{ByteWidth: 2}, [3]string{`"AQI="`, `"AAA="`, `"//8="`}, nwt.Field{Type: nwt.Uint8, Shape: []int{2}}, [3]any{[]byte{1, 2}, []byte{0, 0}, []byte{255, 255}}},
		{&arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8, ValueType: arrow.BinaryTypes.String}, [3]string{`"red"`, `"blue"`, `"red"`}, nwt.Field{Type: nwt.Uint8, Shape: []int{4}, RaggedDims: 1}, [3]any{[]byte("red"), []byte("blue"), []byte("red")}},
		{arrow.ListOf(arrow.PrimitiveTypes.Int64), [3]string{"[1,2]", "[]", "[3]"}, nwt.Field{Type: nwt.Int64, Shape: []int{2}, RaggedDims: 1}, [3]any{[]int64{1, 2}, []int64{}, []int64{3}}},
		{arrow.LargeListOf(arrow.FixedWidthTypes.Boolean), [3]string{"[true,false]", "[]", "[true]"}, nwt.Field{Type: nwt.Bool, Shape: []int{2}, RaggedDims: 1}, [3]any{[]bool{true, false}, []bool{}, []bool{true}}},
		{arrow.ListOf(arrow.PrimitiveTypes.Float32), [3]string{"[]", "[]", "[]"}, nwt.Field{Type: nwt.Float32, Shape: []int{1}, RaggedDims: 1}, [3]any{[]float32{}, []float32{}, []float32{}}},
		{arrow.FixedSizeListOf(2, arrow.PrimitiveTypes.Float32), [3]string{"[1,2]", "[3,4]", "[5,6]"}, nwt.Field{Type: nwt.Float32, Shape: []int{2}}, [3]any{[]float32{1, 2}, []float32{3, 4}, []float32{5, 6}}},
		{arrow.ListOf(arrow.FixedSizeListOf(2, arrow.PrimitiveTypes.Int16)), [3]string{"[[1,2],[3,4]]", "[]", "[[5,6]]"}, nwt.Field{Type: nwt.Int16, Shape: []int{2, 2}, RaggedDims: 1}, [3]any{[]int16{1, 2, 3, 4}, []int16{}, []int16{5, 6}}},
	} {
		t.Run(c.of.String(), func(t *testing.T) {
			var rows []string
			for _, v := range c.json {
				rows = append(rows, `{"x":`+v+`}`)
			}
			tab, err := openTable(nullable(t, []arrow.Field{{Name: "x", Type: c.of}}, rows...))
			require.NoError(t, err)
			defer tab.Close()
			c.as.Name = "x"
			require.Equal(t, []nwt.Field{c.as}, tab.Fields())
			for i, want := range c.values {
				s, err := nwt.LoadSample(t.Context(), tab, i)
				require.NoError(t, err)
				want := bytesOf(want)
				got := s.Bytes(0)
				if c.as.RaggedDims > 0 {
					require.Equal(t, len(want), s.Len(0, 0)*tab.unit(0))
					got = got[:len(want)]
				}
				require.Equal(t, fmt.Sprintf("%x", want), fmt.Sprintf("%x", got))
			}
		})
	}
}

func TestARowWithANullIsABadSampleThatIsNamed(t *testing.T) {
	list := arrow.ListOf(arrow.PrimitiveTypes.Int64)
	path := nullable(t, []arrow.Field{
		{Name: "x", Type: arrow.PrimitiveTypes.Float32}, {Name: "l", Type: list}, {Name: "s", Type: arrow.BinaryTypes.String}, {Name: "u", Type: arrow.PrimitiveTypes.Uint64},
		{Name: "c", Type: &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8, ValueType: arrow.BinaryTypes.String}},
	},
		`{"x":1,"l":[1],"s":"a","u":1,"c":"a"}`,
		`{"x":null,"l":[1],"s":"a","u":1,"c":"a"}`,
		`{"x":1,"l":null,"s":"a","u":1,"c":"a"}`,
		`{"x":1,"l":[1,null],"s":"a","u":1,"c":"a"}`,
		`{"x":1,"l":[],"s":null,"u":1,"c":"a"}`,
		`{"x":1,"l":[],"s":"","u":18446744073709551615,"c":"a"}`,
		`{"x":1,"l":[],"s":"","u":1,"c":null}`,
		`{"x":1,"l":[2],"s":"b","u":9,"c":"b"}`)
	tab, err := openTable(path)
	require.NoError(t, err)
	defer tab.Close()
	for i, want := range []string{
		"", `row 1: column "x" is null`, `row 2: column "l" is null`, `row 3: column "l" element 1 is null`,
		`row 4: column "s" is null`, `row 5: column "u" is more than an int64 holds`, `row 6: column "c" is null`, "",
	} {
		_, err := nwt.LoadSample(t.Context(), tab, i)
		if want == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, want)
	}
	l, err := nwt.NewLoader(tab, nwt.WithErrorBudget(6), nwt.WithBatchSize(8))
	require.NoError(t, err)
	defer l.Close()
	for b, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
		require.Equal(t, []int64{1, 9}, nwt.Values[int64](b, 3))
	}
	require.Len(t, l.BadSamples(), 6)
}

func TestNullsOfAColumnThatMayHaveThemAreTold(t *testing.T) {
	path := nullable(t, []arrow.Field{
		{Name: "x", Type: arrow.PrimitiveTypes.Float32}, {Name: "l", Type: arrow.ListOf(arrow.PrimitiveTypes.Int64)}, {Name: "s", Type: arrow.BinaryTypes.String},
	},
		`{"x":1,"l":[1],"s":"a"}`, `{"x":null,"l":[1,2],"s":"bc"}`, `{"x":3,"l":null,"s":null}`, `{"x":4,"l":[1,null],"s":"a"}`)
	tab, err := openTable(path, "s?", "x?", "l?")
	require.NoError(t, err)
	defer tab.Close()
	for name, ds := range map[string]nwt.Dataset{"by index": tab, "as a stream": nwt.Streamed(tab.stream())} {
		t.Run(name, func(t *testing.T) {
			l, err := nwt.NewLoader(ds, nwt.WithErrorBudget(1), nwt.WithBatchSize(4))
			require.NoError(t, err)
			defer l.Close()
			for epoch := range 2 { // the second in places that were used
				for b, err := range l.Epoch(t.Context(), epoch) {
					require.NoError(t, err)
					require.Equal(t, []float32{1, 0, 3}, nwt.Values[float32](b, 0))
					require.Equal(t, []int32{1, 2, 0}, b.Lens(1, 0))
					require.Equal(t, []int64{1, 0, 1, 2, 0, 0}, nwt.Values[int64](b, 1))
					require.Equal(t, "a\x00bc\x00\x00", string(b.Bytes(2)))
					for field, valid := range map[string][]bool{"x": {true, false, true}, "l": {true, true, false}, "s": {true, true, false}} {
						column, err := nwt.ColumnOf[bool](tab, field+"_valid")
						require.NoError(t, err)
						require.Equal(t, valid, column.Of(b))
					}
				}
			}
			require.ErrorContains(t, l.BadSamples()[0], `row 3: column "l" element 1 is null`)
		})
	}
	_, err = openTable(path, "y?")
	require.ErrorContains(t, err, `no column "y?"`)
}

func TestAColumnThatCannotBeLoadedIsNamedAndCanBeLeftOut(t *testing.T) {
	for of, json := range map[arrow.DataType]string{
		arrow.StructOf(arrow.Field{Name: "y", Type: arrow.PrimitiveTypes.Int8}): `{"y":1}`,
		arrow.ListOf(arrow.BinaryTypes.String):                                  `["a"]`,
		arrow.ListOf(arrow.ListOf(arrow.PrimitiveTypes.Int8)):                   `[[1]]`,
		&arrow.Decimal128Type{Precision: 5}:                                     `"1"`,
	} {
		path := nullable(t, []arrow.Field{{Name: "x", Type: of}, {Name: "label", Type: arrow.PrimitiveTypes.Int64}}, fmt.Sprintf(`{"x":%s,"label":3}`, json))
		_, err := openTable(path)
		require.ErrorContains(t, err, `column "x": `)
		require.ErrorContains(t, err, "can't be loaded; name the columns to load after the file")
		tab, err := openTable(path, "label")
		require.NoError(t, err)
		s, err := nwt.LoadSample(t.Context(), tab, 0)
		require.NoError(t, err)
		require.Equal(t, []int64{3}, nwt.Values[int64](s, 0))
		require.NoError(t, tab.Close())
		_, err = openTable(path, "label", "lable")
		require.ErrorContains(t, err, `no column "lable"`)
	}
}

func TestABatchHoldsWhatItsRowsHoldAlone(t *testing.T) {
	fields := []arrow.Field{
		{Name: "b", Type: arrow.FixedWidthTypes.Boolean}, {Name: "i8", Type: arrow.PrimitiveTypes.Int8}, {Name: "u16", Type: arrow.PrimitiveTypes.Uint16},
		{Name: "f16", Type: arrow.FixedWidthTypes.Float16}, {Name: "f", Type: arrow.PrimitiveTypes.Float32}, {Name: "i", Type: arrow.PrimitiveTypes.Int64},
		{Name: "two", Type: &arrow.FixedSizeBinaryType{ByteWidth: 2}}, {Name: "pair", Type: arrow.FixedSizeListOf(2, arrow.PrimitiveTypes.Int16)},
		{Name: "c", Type: &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8, ValueType: arrow.PrimitiveTypes.Int32}},
		{Name: "l", Type: arrow.ListOf(arrow.PrimitiveTypes.Int32)}, {Name: "s", Type: arrow.BinaryTypes.String},
	}
	rng := rand.New(rand.NewPCG(1, 2))
	var rows []string
	for i := range 200 {
		values := []string{
			fmt.Sprint(i%2 == 0), fmt.Sprint(i - 100), fmt.Sprint(300 * i), fmt.Sprint(i), fmt.Sprint(float32(i) / 4), fmt.Sprint(i), `"AQI="`,
			fmt.Sprintf("[%d,%d]", i, -i), fmt.Sprint(i % 5), strings.ReplaceAll(fmt.Sprint(slices.Repeat([]int{i}, i%4)), " ", ","), fmt.Sprintf("%q", strings.Repeat("é", i%3)),
		}
		for f := range values {
			if rng.IntN(4) == 0 && fields[f].Name != "pair" { // which Arrow can't write
				values[f] = "null"
			}
			values[f] = fmt.Sprintf("%q:%s", fields[f].Name, values[f])
		}
		rows = append(rows, "{"+strings.Join(values, ",")+"}")
	}
	path := nullable(t, fields, rows...)
	for name, nulls := range map[string]string{"nulls are told": "?", "nulls are bad": ""} {
		t.Run(name, func(t *testing.T) {
			var names []string
			for _, f := range fields {
				names = append(names, f.Name+nulls)
			}
			if nulls == "" {
				names = names[:3] // else no row is good
			}
			tab, err := openTable(path, names...)
			require.NoError(t, err)
			defer tab.Close()
			require.Greater(t, len(tab.starts), 3)
			order, err := tab.order(7)
			require.NoError(t, err)
			l, err := nwt.NewLoader(tab, nwt.WithSampler(order), nwt.WithBatchSize(23), nwt.WithWorkers(2), nwt.WithErrorBudget(200))
			require.NoError(t, err)
			defer l.Close()
			good := 0
			for b, err := range l.Epoch(t.Context(), 0) {
				require.NoError(t, err)
				good += b.Len()
				for k, i := range b.Indices() {
					alone, err := nwt.LoadSample(t.Context(), tab, i)
					require.NoError(t, err)
					for f := range tab.fields {
						size := len(b.Bytes(f)) / b.Len()
						require.Equal(t, alone.Bytes(f), b.Bytes(f)[k*size:][:size], "row %d, field %d", i, f)
						if tab.fields[f].RaggedDims > 0 {
							require.EqualValues(t, alone.Len(f, 0), b.Lens(f, 0)[k])
						}
					}
				}
			}
			require.Equal(t, 200, good+len(l.BadSamples()))
			require.Greater(t, good, 50)
		})
	}
}
