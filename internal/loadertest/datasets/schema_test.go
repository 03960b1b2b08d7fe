package datasets_test

import (
	"context"
	"fmt"
	"image"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/loadertest/kit"
)

// declare checks the field that AddField declares for T, and that its column
// sees what was written.
func declare[T nwt.Element](t *testing.T, dtype nwt.DType, v T) {
	t.Helper()
	var s nwt.Schema
	nwt.AddField[uint8](&s, "odd", 3)
	c := nwt.AddField[T](&s, "v", 2, 3)
	require.Equal(t, nwt.Field{Name: "v", Type: dtype, Shape: []int{2, 3}}, s.Fields()[1])
	require.Equal(t, 1, c.Field())
	sample, err := one(t, s.Fields(), func(dst *nwt.Sample) error {
		require.Len(t, c.Of(dst), 6)
		c.Of(dst)[5] = v
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, v, c.Of(sample)[5])
	require.Equal(t, v, nwt.Values[T](sample, 1)[5])
}

func TestAFieldIsDeclaredByItsElementType(t *testing.T) {
	declare(t, nwt.Bool, true)
	declare(t, nwt.Uint8, uint8(200))
	declare(t, nwt.Uint8, grade(3))
	declare(t, nwt.Int8, int8(-3))
	declare(t, nwt.Uint16, uint16(math.MaxUint16))
	declare(t, nwt.Int16, int16(-300))
	declare(t, nwt.Uint32, uint32(math.MaxUint32))
	declare(t, nwt.Int32, int32(math.MinInt32))
	declare(t, nwt.Int64, int64(math.MinInt64))
	declare(t, nwt.Float16, nwt.F16(0x3c00))
	declare(t, nwt.BFloat16, nwt.BF16(0x3f80))
	declare(t, nwt.Float32, float32(1.5))
	declare(t, nwt.Float64, 1.5)
}

func TestHalvesAreNotTakenForEachOther(t *testing.T) {
	fields := []nwt.Field{{Name: "f16", Type: nwt.Float16}, {Name: "bf16", Type: nwt.BFloat16}, {Name: "token", Type: nwt.Uint16}}
	type half uint16 // as a library defines it
	_, err := one(t, fields, func(dst *nwt.Sample) error {
		nwt.Values[nwt.F16](dst, 0)[0] = 1
		nwt.Values[nwt.BF16](dst, 1)[0] = 2
		require.EqualValues(t, 1, nwt.Values[uint16](dst, 0)[0])
		require.EqualValues(t, 1, nwt.Values[half](dst, 0)[0])
		require.EqualValues(t, 2, nwt.Values[half](dst, 1)[0])
		require.Panics(t, func() { nwt.Values[nwt.F16](dst, 1) })
		require.Panics(t, func() { nwt.Values[nwt.BF16](dst, 0) })
		require.Panics(t, func() { nwt.Values[nwt.F16](dst, 2) })
		require.Panics(t, func() { nwt.Values[int16](dst, 2) })
		return nil
	})
	require.NoError(t, err)
}

func TestAColumnDoesByItselfWhatSamplesAndBatchesDoByFieldNumber(t *testing.T) {
	var s, other nwt.Schema
	label := nwt.AddField[int64](&s, "label")
	text := nwt.AddRagged[uint16](&s, "text", 1, 4, 2)
	alien := nwt.AddRagged[uint16](&other, "alien", 1, 4, 2)
	l := kit.NewLoader(t, nwt.NewDataset(3, s.Fields(), func(_ context.Context, i int, dst *nwt.Sample) error {
		require.Equal(t, []int{4, 2}, text.Shape(dst))
		require.Panics(t, func() { alien.Shape(dst) })
		text.SetLen(dst, i)
		return nil
	}))
	for b, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
		require.Equal(t, []int32{0, 1, 2}, text.Lens(b, 0))
		require.Equal(t, []int{3, 4, 2}, text.Shape(b))
		require.Equal(t, []int{3}, label.Shape(b))
		require.Zero(t, label.DevicePtr(b))
		require.PanicsWithValue(t, `nwt: Lens(0, 0): field "label" has 0 ragged dimensions`, func() { label.Lens(b, 0) })
		require.Panics(t, func() { alien.Lens(b, 0) })
		require.Panics(t, func() { alien.Shape(b) })
		require.Panics(t, func() { alien.DevicePtr(b) })
	}
	_, err := one(t, s.Fields(), func(dst *nwt.Sample) error { alien.SetLen(dst, 1); return nil })
	require.ErrorContains(t, err, `the column "alien" (Uint16, 16 bytes) belongs to another schema`)
}

func TestASampleOfAnotherSizeThanItsFieldIsAnErrorThatSaysSo(t *testing.T) {
	pixels := func(p image.Image) []uint8 {
		switch p := p.(type) {
		case *image.Gray:
			return p.Pix
		case *image.NRGBA:
			return p.Pix
		}
		return nil
	}
	var s nwt.Schema
	picture := nwt.AddField[uint8](&s, "picture", 128, 128)
	label := nwt.AddField[int64](&s, "label")
	files := []image.Image{
		image.NewGray(image.Rect(0, 0, 256, 256)), image.NewGray(image.Rect(0, 0, 64, 64)), image.NewNRGBA(image.Rect(0, 0, 128, 128)), image.NewGray16(image.Rect(0, 0, 128, 128)),
		image.NewGray(image.Rect(0, 0, 128, 128)),
	}
	ds := nwt.NewDataset(len(files), s.Fields(), func(_ context.Context, i int, dst *nwt.Sample) error {
		label.Set(dst, int64(i))
		picture.Set(dst, pixels(files[i])...)
		return nil
	})
	for i, values := range []string{"65536", "4096", "65536", "0"} {
		want := `field "picture": ` + values + " values for shape [128 128]: must be 16384"
		_, err := nwt.LoadSample(t.Context(), ds, i)
		require.ErrorContains(t, err, want)
		alone, err := nwt.Subset(ds, []int{i})
		require.NoError(t, err)
		for _, err := range kit.NewLoader(t, alone).Epoch(t.Context(), 0) {
			var bad *nwt.LoadError
			require.ErrorAs(t, err, &bad)
			require.ErrorContains(t, err, want)
		}
	}
	loaded, err := nwt.LoadSample(t.Context(), ds, 4)
	require.NoError(t, err)
	require.Equal(t, []int64{4}, label.Of(loaded))
	_, err = one(t, s.Fields(), func(dst *nwt.Sample) error { label.Set(dst); return nil })
	require.ErrorContains(t, err, `field "label": 0 values for shape []: must be 1`)
}

func TestSetOfARaggedFieldSetsItsLength(t *testing.T) {
	var s nwt.Schema
	boxes := nwt.AddRagged[float32](&s, "boxes", 1, 3, 2)
	masks := nwt.AddRagged[uint8](&s, "masks", 2, 2, 2)
	load := func(values ...float32) (*nwt.Sample, error) {
		return one(t, s.Fields(), func(dst *nwt.Sample) error {
			boxes.Set(dst, values...)
			masks.SetShape(dst, 2, 1)
			masks.Set(dst, 1, 0, 1, 0) // all of its place
			return nil
		})
	}
	for n, values := range [][]float32{{}, {1, 2}, {1, 2, 3, 4}, {1, 2, 3, 4, 5, 6}} {
		sample, err := load(values...)
		require.NoError(t, err)
		require.Equal(t, n, boxes.Len(sample, 0))
		require.Equal(t, append(values, make([]float32, 6-2*n)...), boxes.Of(sample))
	}
	_, err := load(1, 2, 3)
	require.ErrorContains(t, err, `field "boxes": 3 values for shape [3 2]: must be a multiple of 2`)
	_, err = load(make([]float32, 8)...)
	require.ErrorContains(t, err, `length 4 of field "boxes" is out of range 0 … 3`)
}

func TestARaggedColumnIsSetAndReadByItsIndex(t *testing.T) {
	var s nwt.Schema
	text := nwt.AddRagged[uint16](&s, "text", 1, 4)
	require.Equal(t, 1, s.Fields()[0].RaggedDims)
	l := kit.NewLoader(t, nwt.NewDataset(3, s.Fields(), func(_ context.Context, i int, dst *nwt.Sample) error {
		dst.SetLen(text.Field(), i)
		for k := range i {
			text.Of(dst)[k] = uint16(i)
		}
		return nil
	}))
	for b, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
		require.Equal(t, []int32{0, 1, 2}, b.Lens(text.Field(), 0))
		require.Equal(t, []uint16{0, 0, 0, 0, 1, 0, 0, 0, 2, 2, 0, 0}, text.Of(b))
	}
}

func TestAColumnRefusesAViewOfOtherFields(t *testing.T) {
	var s, other nwt.Schema
	image := nwt.AddField[float32](&s, "image", 3, 8)
	elsewhere := []nwt.Column[float32]{
		nwt.AddField[float32](&other, "picture", 3, 8),
		nwt.AddField[float32](&other, "image", 3, 8), // of another number
		{},
	}
	sample, err := one(t, s.Fields(), func(*nwt.Sample) error { return nil })
	require.NoError(t, err)
	require.NotPanics(t, func() { image.Of(sample) })
	for _, c := range elsewhere {
		require.Panics(t, func() { c.Of(sample) })
	}
	require.PanicsWithValue(t, `nwt: the column "picture" (Float32, 96 bytes) belongs to another schema: field 0 of this dataset is "image" (Float32, 96 bytes); use the column of the dataset's own schema, or ColumnOf`,
		func() { elsewhere[0].Of(sample) })
	require.PanicsWithValue(t, `nwt: this Column[float32] is the zero value: AddField, AddRagged and ColumnOf make columns`, func() { elsewhere[2].Of(sample) })

	var narrow nwt.Schema // of the same name, with another shape or type
	require.Panics(t, func() { nwt.AddField[float32](&narrow, "image", 3, 4).Of(sample) })
	var whole nwt.Schema
	require.Panics(t, func() { nwt.AddField[int32](&whole, "image", 3, 8).Of(sample) })
}

func TestABadFieldIsNotAdded(t *testing.T) {
	var s nwt.Schema
	nwt.AddField[int64](&s, "label")
	for says, add := range map[string]func(){
		"AddField: field 1 has no name":                                                func() { nwt.AddField[int64](&s, "") },
		`AddRagged: field "label": field 0 already has this name`:                      func() { nwt.AddRagged[uint8](&s, "label", 1, 2) },
		`AddField: field 1 ("x"): dimension 1 of shape [2 0] is 0: must be at least 1`: func() { nwt.AddField[int64](&s, "x", 2, 0) },
		"more than": func() { nwt.AddField[int64](&s, "y", 1<<30, 1<<30, 1<<30) },
		"must be 1 … 0, the dimensions of shape": func() { nwt.AddRagged[int64](&s, "z", 1) },
		"dimension 0 of shape [-1] is ":          func() { nwt.AddField[int64](&s, "z", -1) },
	} {
		func() {
			defer func() { require.Contains(t, fmt.Sprint(recover()), says) }()
			add()
		}()
	}
	require.Len(t, s.Fields(), 1)
}

func TestACopyOfASchemaHasItsOwnFields(t *testing.T) {
	names := func(s *nwt.Schema) (all []string) {
		for _, f := range s.Fields() {
			all = append(all, f.Name)
		}
		return all
	}
	var s nwt.Schema
	for _, name := range []string{"a", "b", "c"} {
		nwt.AddField[int64](&s, name)
	}
	copied := s
	nwt.AddField[int64](&s, "d")
	nwt.AddField[int64](&copied, "e")
	nwt.AddField[int64](&copied, "d")
	nwt.AddField[int64](&s, "e")
	require.Equal(t, []string{"a", "b", "c", "d", "e"}, names(&s))
	require.Equal(t, []string{"a", "b", "c", "e", "d"}, names(&copied))
	for _, s := range []*nwt.Schema{&s, &copied} {
		require.PanicsWithValue(t, `nwt: AddField: field "b": field 1 already has this name`, func() { nwt.AddField[int64](s, "b") })
	}
}

func TestTheFieldsOfASchemaAreACopy(t *testing.T) {
	var s nwt.Schema
	x := nwt.AddField[int64](&s, "x", 2)
	f := s.Fields()
	f[0].Name, f[0].Shape[0] = "y", 9
	sample, err := one(t, s.Fields(), func(*nwt.Sample) error { return nil })
	require.NoError(t, err)
	require.Len(t, x.Of(sample), 2)
}

func TestTheNumberOfRaggedDimensionsIsOneOrMoreOfTheShape(t *testing.T) {
	for _, dims := range []int{-1, 0, 3} {
		var s nwt.Schema
		require.PanicsWithValue(t, fmt.Sprintf(`nwt: AddRagged: field "picture": dims is %d: must be 1 … 2, the dimensions of shape [4 5], which comes after dims`, dims),
			func() { nwt.AddRagged[uint8](&s, "picture", dims, 4, 5) })
		require.Empty(t, s.Fields())
	}
}

func TestAColumnIsFoundByItsName(t *testing.T) {
	ds, err := nwt.FromSlices(nwt.SliceOf("points", []float32{0, 1, 2, 3}, 2), nwt.SliceOf("grades", []grade{7, 8}))
	require.NoError(t, err)
	points, err := nwt.ColumnOf[float32](ds, "points")
	require.NoError(t, err)
	grades, err := nwt.ColumnOf[grade](ds, "grades")
	require.NoError(t, err)
	l := kit.NewLoader(t, ds)
	same, err := nwt.ColumnOf[uint8](l, "grades")
	require.NoError(t, err)
	for b, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
		require.Equal(t, []float32{0, 1, 2, 3}, points.Of(b))
		require.Equal(t, []int{2, 2}, points.Shape(b))
		require.Equal(t, []grade{7, 8}, grades.Of(b))
		require.Equal(t, []uint8{7, 8}, same.Of(b))
	}
}

func TestLabelsOfTypeIntMakeAFieldOfInt64(t *testing.T) {
	ds, err := nwt.FromSlices(nwt.SliceOf("label", []int{7, -8}))
	require.NoError(t, err)
	for b, err := range kit.NewLoader(t, ds).Epoch(t.Context(), 0) {
		require.NoError(t, err)
		require.Equal(t, []int64{7, -8}, nwt.Values[int64](b, 0))
	}
}

type fieldList []nwt.Field

func (l fieldList) Fields() []nwt.Field { return l }

func TestAColumnThatCannotBeFoundIsAnErrorThatTellsWhy(t *testing.T) {
	of := fieldList{{Name: "a", Type: nwt.Uint8}, {Name: "b"}, {Name: "c", Type: nwt.Float32, Shape: []int{0}}, {Name: "d", Type: nwt.Int8}, {Name: "d", Type: nwt.Int8}}
	for name, want := range map[string]string{
		"":  `nwt: ColumnOf: "": no field has this name: the fields are ["a" "b" "c" "d" "d"]`,
		"a": `nwt: ColumnOf: "a": its elements are Uint8: want ColumnOf[uint8]`,
		"b": `nwt: ColumnOf: "b": field 1 has an impossible type or shape: DType(0) []`,
		"c": `nwt: ColumnOf: "c": field 2 has an impossible type or shape: Float32 [0]`,
		"d": `nwt: ColumnOf: "d": fields 3 and 4 have this name`,
	} {
		c, err := nwt.ColumnOf[int8](of, name)
		require.EqualError(t, err, want)
		require.Zero(t, c)
	}
	_, err := nwt.ColumnOf[int8](nil, "a")
	require.EqualError(t, err, "nwt: ColumnOf: the dataset or loader is nil")
}

func TestArraysInMemoryAreADataset(t *testing.T) {
	const n = 101
	pixels, labels, halves := make([]uint8, n*6), make([]int64, n), make([]nwt.F16, n)
	for i := range n {
		for k := range 6 {
			pixels[i*6+k] = uint8(i + k)
		}
		labels[i], halves[i] = int64(-i), nwt.F16(i)
	}
	ds, err := nwt.FromSlices(nwt.SliceOf("image", pixels, 2, 3), nwt.SliceOf("label", labels), nwt.SliceOf("half", halves))
	require.NoError(t, err)
	require.Equal(t, n, ds.Len())
	require.Equal(t, []nwt.Field{
		{Name: "image", Type: nwt.Uint8, Shape: []int{2, 3}}, {Name: "label", Type: nwt.Int64}, {Name: "half", Type: nwt.Float16},
	}, ds.Fields())

	concat, err := nwt.Concat(ds, ds) // its calls get samples that don't lie one after the other
	require.NoError(t, err)
	for _, ds := range []nwt.Dataset{ds, concat} {
		for _, workers := range []int{0, 3} {
			l := kit.NewLoader(t, ds, nwt.WithBatchSize(8), nwt.WithShuffle(1), nwt.WithWorkers(workers))
			seen := 0
			for b, err := range l.Epoch(t.Context(), 0) {
				require.NoError(t, err)
				for place, index := range b.Indices() {
					index %= n
					require.Equal(t, pixels[index*6:index*6+6], nwt.Values[uint8](b, 0)[place*6:place*6+6])
					require.Equal(t, labels[index], nwt.Values[int64](b, 1)[place])
					require.Equal(t, halves[index], nwt.Values[nwt.F16](b, 2)[place])
					seen++
				}
			}
			require.Equal(t, ds.Len(), seen)
		}
	}
	s, err := nwt.LoadSample(t.Context(), ds, 100)
	require.NoError(t, err)
	require.Equal(t, []int64{-100}, nwt.Values[int64](s, 1))
}

func TestArraysThatDoNotFitTogetherAreNamed(t *testing.T) {
	for _, c := range []struct {
		columns []nwt.Slice
		says    []string
	}{
		{nil, []string{"at least one field"}},
		{[]nwt.Slice{{}}, []string{"unknown type"}},
		{[]nwt.Slice{nwt.SliceOf("x", []int64{})}, []string{`columns[0] = "x": has no sample`}},
		{[]nwt.Slice{nwt.SliceOf("x", make([]int64, 6), 4)}, []string{`columns[0] = "x": has 6 values: must be a multiple of 4`}},
		{[]nwt.Slice{nwt.SliceOf("x", make([]int64, 6), 0)}, []string{"must be at least 1"}},
		{
			[]nwt.Slice{nwt.SliceOf("x", make([]int64, 6), 2), nwt.SliceOf("y", make([]uint8, 4)), nwt.SliceOf("x", make([]uint8, 2))},
			[]string{`columns[1] = "y": has 4 samples, but "x" has 3`, `columns[2] = "x": has`, "column 0 has this name too"},
		},
		{ // each column that can't be used, whatever is wrong with it
			[]nwt.Slice{nwt.SliceOf("x", make([]int64, 6), 2), {}, nwt.SliceOf("y", make([]uint8, 7), 3), nwt.SliceOf("z", make([]uint8, 3), 0), nwt.SliceOf("x", make([]uint8, 4))},
			[]string{`field 1 (""): unknown type`, `columns[2] = "y": has 7 values: must be a multiple of 3`, `field 3 ("z"): dimension 0`,
				`columns[4] = "x": has 4 samples, but "x" has 3`, `columns[4] = "x": column 0 has this name too`},
		},
		{ // the first column that can be used says how many
			[]nwt.Slice{nwt.SliceOf("x", make([]int64, 6), 0), nwt.SliceOf("y", make([]uint8, 7)), nwt.SliceOf("z", make([]uint8, 3))},
			[]string{`field 0 ("x"): dimension 0`, `columns[2] = "z": has 3 samples, but "y" has 7`},
		},
	} {
		_, err := nwt.FromSlices(c.columns...)
		var oe *nwt.ArgumentError
		require.ErrorAs(t, err, &oe)
		for _, oe := range kit.ArgumentErrors(err) {
			require.Contains(t, oe.Name, "FromSlices")
		}
		for _, s := range c.says {
			require.ErrorContains(t, err, s)
		}
	}
}
