package datasets_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/driver"
	"github.com/nwt-go/nwt/internal/loadertest/kit"
	"github.com/nwt-go/nwt/internal/permute"
	"github.com/nwt-go/nwt/sampler"
)

func TestMain(m *testing.M) { kit.Main(m) }

// one loads the only sample of a dataset with these fields.
func one(t *testing.T, fields []nwt.Field, load func(dst *nwt.Sample) error) (*nwt.Sample, error) {
	t.Helper()
	return nwt.LoadSample(t.Context(), nwt.NewDataset(1, fields, func(_ context.Context, _ int, dst *nwt.Sample) error {
		return load(dst)
	}), 0)
}

// see checks that a field of type dtype is seen as elements of type T.
func see[T nwt.Element](t *testing.T, dtype nwt.DType, size int, v T) {
	t.Helper()
	require.Equal(t, size, dtype.Size())
	fields := []nwt.Field{{Name: "odd", Type: nwt.Uint8, Shape: []int{3}}, {Name: "v", Type: dtype, Shape: []int{2, 3}}}
	s, err := one(t, fields, func(dst *nwt.Sample) error {
		values := nwt.Values[T](dst, 1)
		require.Len(t, values, 6)
		require.Len(t, dst.Bytes(1), 6*size)
		values[5] = v
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, v, nwt.Values[T](s, 1)[5])
	require.Zero(t, nwt.Values[T](s, 1)[4])
}

type grade uint8

func TestEveryElementTypeIsSeenAsItsGoType(t *testing.T) {
	see(t, nwt.Bool, 1, true)
	see(t, nwt.Uint8, 1, uint8(200))
	see(t, nwt.Uint8, 1, grade(3))
	see(t, nwt.Int8, 1, int8(-3))
	see(t, nwt.Int16, 2, int16(-300))
	see(t, nwt.Int32, 4, int32(math.MinInt32))
	see(t, nwt.Int64, 8, int64(math.MinInt64))
	see(t, nwt.Float16, 2, uint16(0x3c00))
	see(t, nwt.BFloat16, 2, uint16(0x3f80))
	see(t, nwt.Float32, 4, float32(1.5))
	see(t, nwt.Float64, 8, 1.5)
	require.Zero(t, nwt.DType(0).Size())
	require.Equal(t, "DType(77)", nwt.DType(77).String())
	require.Equal(t, "BFloat16", nwt.BFloat16.String())
}

var mixed = []nwt.Field{
	{Name: "image", Type: nwt.Uint8, Shape: []int{2}},
	{Name: "tokens", Type: nwt.Int32, Shape: []int{5}, RaggedDims: 1},
}

func TestMisuseOfASampleNamesTheFieldAndIsALoadError(t *testing.T) {
	for _, c := range []struct {
		misuse func(dst *nwt.Sample)
		says   []string
	}{
		{func(dst *nwt.Sample) { nwt.Values[float32](dst, 0) }, []string{"Values[float32]", `"image"`, "Uint8", "Values[uint8]"}},
		{func(dst *nwt.Sample) { nwt.Values[bool](dst, 0) }, []string{"Values[bool]", `"image"`, "Uint8"}},
		{func(dst *nwt.Sample) { nwt.Values[uint8](dst, 2) }, []string{"field 2", "has 2", "image, tokens"}},
		{func(dst *nwt.Sample) { dst.Bytes(-1) }, []string{"field -1", "has 2", "image, tokens"}},
		{func(dst *nwt.Sample) { dst.SetLen(0, 1) }, []string{"SetLen(0, 1)", `"image"`, "isn't ragged"}},
		{func(dst *nwt.Sample) { dst.SetLen(1, 6) }, []string{"length 6", `"tokens"`, "0 … 5"}},
		{func(dst *nwt.Sample) { dst.SetLen(1, -1) }, []string{"length -1", `"tokens"`, "0 … 5"}},
		{func(dst *nwt.Sample) { dst.SetLen(9, 1) }, []string{"field 9", "image, tokens"}},
		{func(dst *nwt.Sample) { dst.Len(0, 0) }, []string{"Len(0, 0)", `"image"`, "0 ragged dimensions"}},
		{func(dst *nwt.Sample) {}, []string{"SetLen(1, n)", `"tokens"`}},
	} {
		load := func(dst *nwt.Sample) error { c.misuse(dst); return nil }
		_, alone := one(t, mixed, load)
		l := kit.NewLoader(t, nwt.NewDataset(1, mixed, func(_ context.Context, _ int, dst *nwt.Sample) error { return load(dst) }))
		_, inLoader := kit.Epoch(t.Context(), l, 0)
		for _, err := range []error{alone, inLoader} {
			var le *nwt.LoadError
			require.ErrorAs(t, err, &le)
			require.Zero(t, le.Index)
			for _, s := range c.says {
				require.ErrorContains(t, err, s)
			}
		}
	}
}

func TestMisuseOfABatchPanicsNamingTheField(t *testing.T) {
	l := kit.NewLoader(t, nwt.NewDataset(1, mixed, func(_ context.Context, _ int, dst *nwt.Sample) error { dst.SetLen(1, 0); return nil }))
	for b, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
		require.PanicsWithValue(t, `nwt: Values[int64] of field 1 ("tokens"), whose type is Int32: want Values[int32]`, func() { nwt.Values[int64](b, 1) })
		require.PanicsWithValue(t, "nwt: field 2 is out of range: the dataset has 2 (image, tokens)", func() { b.Bytes(2) })
		require.PanicsWithValue(t, "nwt: field 2 is out of range: the dataset has 2 (image, tokens)", func() { b.DevicePtr(2) })
		require.PanicsWithValue(t, `nwt: Lens(0, 0): field "image" has 0 ragged dimensions`, func() { b.Lens(0, 0) })
		require.Panics(t, func() { b.Lens(-1, 0) })
	}
}

func TestTheMemoryOfAFieldEndsWithIt(t *testing.T) {
	_, err := one(t, mixed, func(dst *nwt.Sample) error {
		_ = append(dst.Bytes(0), 1, 2, 3, 4) // must not reach the next place or field
		dst.SetLen(1, 5)
		require.Equal(t, 2, cap(dst.Bytes(0)))
		require.Equal(t, 5, cap(nwt.Values[int32](dst, 1)))
		return nil
	})
	require.NoError(t, err)
}

// fake is a Dataset that isn't made by NewDataset.
type fake struct {
	n      int
	fields func() []nwt.Field
}

func (f *fake) Len() int                                     { return f.n }
func (f *fake) Fields() []nwt.Field                          { return f.fields() }
func (f *fake) Load(context.Context, int, *nwt.Sample) error { return nil }

func TestADatasetThatCannotBeUsedIsAnErrorEverywhere(t *testing.T) {
	nop := func(context.Context, int, *nwt.Sample) error { return nil }
	with := func(fields ...nwt.Field) nwt.Dataset { return nwt.NewDataset(1, fields, nop) }
	f32 := func(shape ...int) nwt.Field { return nwt.Field{Name: "x", Type: nwt.Float32, Shape: shape} }
	for name, c := range map[string]struct {
		ds   nwt.Dataset
		says []string
	}{
		"nil":            {nil, []string{"Dataset: is nil"}},
		"nil pointer":    {(*fake)(nil), []string{"*datasets_test.fake", "panic: "}},
		"nil function":   {nwt.NewDataset(1, kit.Scalar, nil), []string{"NewDataset", "load is nil"}},
		"empty":          {nwt.NewDataset(0, kit.Scalar, nop), []string{"Dataset.Len: the dataset has no samples"}},
		"negative":       {nwt.NewDataset(-3, kit.Scalar, nop), []string{"Dataset.Len: -3", fmt.Sprint("must be 1 … ", uint64(permute.MaxLen))}},
		"no fields":      {with(), []string{"at least one field"}},
		"panic":          {&fake{1, func() []nwt.Field { panic("not mounted") }}, []string{"Len or Fields: panic: not mounted (", "dataset_test.go:"}},
		"no type":        {with(nwt.Field{Name: "x"}), []string{`field 0 ("x")`, "unknown type DType(0)", "Bool … Float64"}},
		"unknown type":   {with(nwt.Field{Name: "x", Type: 99}), []string{"unknown type DType(99)"}},
		"zero dim":       {with(f32(3, 0, 2)), []string{`field 0 ("x")`, "dimension 1", "[3 0 2]", "is 0", "at least 1"}},
		"negative dim":   {with(f32(-7)), []string{"dimension 0", "is -7"}},
		"too big":        {with(f32(kit.MostBytes/2, 2)), []string{fmt.Sprintf("more than %d bytes", kit.MostBytes)}},
		"overflow":       {with(f32(math.MaxInt, math.MaxInt, 16)), []string{"more than"}},
		"wraps to small": {with(f32(math.MaxInt/2+1, 4)), []string{"more than"}},
		"sum too big":    {with(f32(kit.MostBytes/8), f32(kit.MostBytes/8), f32(kit.MostBytes/8)), []string{`field 2 ("x")`, "more than"}},
		"ragged scalar":  {with(nwt.Field{Name: "r", Type: nwt.Int8, RaggedDims: 1}), []string{`field 0 ("r")`, "RaggedDims is 1: must be 0 … 0"}},
		"several": {nwt.NewDataset(0, []nwt.Field{f32(0), f32(), {Name: "y", Type: 50}}, nop),
			[]string{"Dataset.Len: the dataset has no samples", `field 0 ("x")`, `field 2 ("y")`}},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := nwt.NewLoader(c.ds)
			require.Nil(t, l)
			s, alone := nwt.LoadSample(t.Context(), c.ds, 0)
			require.Nil(t, s)
			_, tuning := nwt.Tune(t.Context(), c.ds)
			for _, err := range []error{err, alone, tuning} {
				require.ErrorAs(t, err, new(*nwt.ArgumentError))
				for _, s := range c.says {
					require.ErrorContains(t, err, s)
				}
			}
		})
	}
}

// A length is an int32 in Batch.Lens: one that doesn't fit would count as another.
func TestALengthFitsIntoLens(t *testing.T) {
	longest := math.MaxInt32
	ragged := func(n int) nwt.Dataset {
		return nwt.NewDataset(1, []nwt.Field{{Name: "text", Type: nwt.Uint8, Shape: []int{n}, RaggedDims: 1}}, func(context.Context, int, *nwt.Sample) error { return nil })
	}
	_, err := nwt.NewLoader(ragged(longest), nwt.WithBatchSize(1))
	if err != nil { // more than a batch may take, where an int has 32 bits
		require.NotContains(t, err.Error(), "longest length")
	}
	if longest++; longest > 0 { // an int has 64 bits
		_, err = nwt.NewLoader(ragged(longest))
		require.ErrorContains(t, err, "the longest length is 2147483648: must be at most 2147483647")
	}
}

func TestABatchThatIsTooLargeIsAnError(t *testing.T) {
	ds := nwt.NewDataset(1<<20, []nwt.Field{{Name: "x", Type: nwt.Float64, Shape: []int{kit.MostBytes / 1024}}}, func(context.Context, int, *nwt.Sample) error { return nil })
	_, err := nwt.NewLoader(ds, nwt.WithBatchSize(1<<20))
	require.ErrorAs(t, err, new(*nwt.ArgumentError))
	require.ErrorContains(t, err, "WithBatchSize: 1048576")
	require.ErrorContains(t, err, fmt.Sprint(kit.MostBytes/128))

	// What the system refuses comes when the memory is asked for, with its size.
	l := kit.NewLoader(t, ds, nwt.WithBatchSize(128), nwt.WithWorkers(0))
	for _, err := range l.Epoch(t.Context(), 0) {
		if err != nil { // a machine may well grant pages that nobody touches
			require.ErrorContains(t, err, fmt.Sprintf("%d bytes of host memory for a batch", kit.MostBytes))
		}
		break
	}
}

func TestLoadSampleStandsByItself(t *testing.T) {
	ds := kit.Augmented(10)
	for i := range 10 {
		s, err := nwt.LoadSample(t.Context(), ds, i)
		require.NoError(t, err)
		require.Equal(t, int64(i), nwt.Values[int64](s, 0)[0])
		require.Equal(t, i, s.Index())
		require.Zero(t, s.Epoch())
		require.Zero(t, s.Worker())
	}
	for _, i := range []int{-1, 10, math.MinInt} {
		_, err := nwt.LoadSample(t.Context(), ds, i)
		require.ErrorAs(t, err, new(*nwt.ArgumentError))
		require.ErrorContains(t, err, fmt.Sprint(i))
		require.ErrorContains(t, err, "0 … 9")
		require.ErrorContains(t, err, "nwt: LoadSample: ")
	}
	boom := errors.New("boom")
	_, err := one(t, kit.Scalar, func(*nwt.Sample) error { return boom })
	require.ErrorIs(t, err, boom)
	_, err = one(t, kit.Scalar, func(*nwt.Sample) error { panic(boom) })
	var le *nwt.LoadError
	require.ErrorAs(t, err, &le)
	require.ErrorIs(t, err, boom)
	require.Contains(t, string(le.Stack), "dataset_test.go")
}

func TestRandomnessDependsOnSeedEpochAndPositionAlone(t *testing.T) {
	const n = 50
	fields := []nwt.Field{{Name: "noise", Type: nwt.Int64, Shape: []int{2}}, {Name: "position", Type: nwt.Int64}}
	ds := nwt.NewDataset(n, fields, func(_ context.Context, _ int, dst *nwt.Sample) error {
		v := nwt.Values[int64](dst, 0)
		v[0], v[1] = dst.Rand().Int64(), dst.Rand().Int64()
		nwt.Values[int64](dst, 1)[0] = int64(dst.Position())
		return nil
	})
	type key struct {
		seed            uint64
		epoch, position int
	}
	seen := map[key][2]int64{}
	firsts := map[int64]bool{}
	for _, seed := range []uint64{0, 1, 2} {
		for _, opts := range [][]nwt.Option{
			{nwt.WithShuffle(seed)},
			{nwt.WithSeed(seed), nwt.WithWorkers(3), nwt.WithBatchSize(7)},
			{nwt.WithSeed(seed), nwt.WithShuffle(99), nwt.WithRank(1, 3)},
			{nwt.WithSeed(seed), nwt.WithSampler(always(n)), nwt.WithRank(2, 4), nwt.WithBatchSize(3)},
		} {
			l := kit.NewLoader(t, ds, opts...)
			for b, err := range l.Epochs(t.Context(), 0, 3) {
				require.NoError(t, err)
				for p := range b.Len() {
					k := key{seed, b.Epoch(), int(nwt.Values[int64](b, 1)[p])}
					v := [2]int64(nwt.Values[int64](b, 0)[2*p:])
					if old, ok := seen[k]; ok {
						require.Equal(t, old, v)
					} else {
						require.False(t, firsts[v[0]])
						firsts[v[0]] = true
					}
					seen[k] = v
				}
			}
		}
	}
	require.Len(t, seen, 3*3*n)
	for i := range n { // in the order of the dataset, an index is a position
		s, err := nwt.LoadSample(t.Context(), ds, i)
		require.NoError(t, err)
		require.Equal(t, seen[key{0, 0, i}], [2]int64(nwt.Values[int64](s, 0)))
	}
	require.Equal(t, [2]int64{305374877734074388, 6328558112754417227}, seen[key{1, 2, 3}], "a resumed run must draw what it would have drawn: these may never change")
}

func TestTheRestOfARaggedFieldIsZeroHoweverTheSlotWasUsed(t *testing.T) {
	fields := []nwt.Field{
		{Name: "pairs", Type: nwt.Int16, Shape: []int{6, 2}, RaggedDims: 1},
		{Name: "x", Type: nwt.Int8},
		{Name: "text", Type: nwt.Uint8, Shape: []int{9}, RaggedDims: 1},
		{Name: "image", Type: nwt.Uint8, Shape: []int{4, 6, 3}, RaggedDims: 2},
	}
	length := func(epoch, i, field int) int { return (epoch*5 + i*3 + field) % []int{7, 0, 10, 5, 7}[field] }
	ds := nwt.NewDataset(40, fields, func(_ context.Context, i int, dst *nwt.Sample) error {
		for f := range 4 {
			for k := range dst.Bytes(f) {
				dst.Bytes(f)[k] = 0xff // more than it says
			}
		}
		require.Equal(t, -1, dst.Len(0, 0))
		dst.SetLen(0, 1)
		dst.SetLen(0, length(dst.Epoch(), i, 0)) // the last word counts
		dst.SetLen(2, length(dst.Epoch(), i, 2))
		dst.SetShape(3, length(dst.Epoch(), i, 3), length(dst.Epoch(), i, 4))
		return nil
	})
	for _, workers := range []int{0, 3} {
		l := kit.NewLoader(t, ds, nwt.WithBatchSize(7), nwt.WithWorkers(workers))
		for b, err := range l.Epochs(t.Context(), 0, 6) {
			require.NoError(t, err)
			for p, i := range b.Indices() {
				for f, row := range map[int]int{0: 4, 2: 1} {
					n := length(b.Epoch(), i, f)
					require.EqualValues(t, n, b.Lens(f, 0)[p])
					size := len(b.Bytes(f)) / b.Len()
					for k, v := range b.Bytes(f)[p*size : (p+1)*size] {
						require.Equal(t, k < n*row, v == 0xff, "field %d byte %d", f, k)
						require.True(t, v == 0 || v == 0xff)
					}
				}
				height, width := length(b.Epoch(), i, 3), length(b.Epoch(), i, 4)
				require.EqualValues(t, []int{height, width}, []int{int(b.Lens(3, 0)[p]), int(b.Lens(3, 1)[p])})
				for k, v := range b.Bytes(3)[p*72 : (p+1)*72] {
					require.Equal(t, k/18 < height && k/3%6 < width, v == 0xff, "byte %d of %d × %d", k, height, width)
					require.True(t, v == 0 || v == 0xff)
				}
			}
			require.Len(t, b.Lens(0, 0), b.Len())
		}
	}
}

// always is a sampler that knows one sample only.
type always int

func (s always) Len() int      { return int(s) }
func (always) At(int, int) int { return 7 }

func TestAPositionIsTheSamplersWhoeverAsks(t *testing.T) {
	const n = 100
	position := nwt.NewDataset(n, []nwt.Field{{Name: "position", Type: nwt.Int64}}, func(_ context.Context, _ int, dst *nwt.Sample) error {
		nwt.Values[int64](dst, 0)[0] = int64(dst.Position())
		return nil
	})
	subset, err := nwt.Subset(position, shuffledIndices(n))
	require.NoError(t, err)
	concat, err := nwt.Concat(subset, position)
	require.NoError(t, err)
	mapped := nwt.Map(concat, position.Fields(), func(_ context.Context, src, dst *nwt.Sample) error {
		require.Equal(t, src.Position(), dst.Position())
		copy(dst.Bytes(0), src.Bytes(0))
		return nil
	})
	sampler := nwt.Shuffled(mapped.Len(), 5)
	for _, world := range []int{1, 3} {
		for rank := range world {
			l := kit.NewLoader(t, mapped, nwt.WithSampler(sampler), nwt.WithRank(rank, world), nwt.WithBatchSize(7), nwt.WithWorkers(2))
			for b, err := range l.Resume(t.Context(), nwt.State{Epoch: 3, Samples: 11}) {
				require.NoError(t, err)
				for place, position := range nwt.Values[int64](b, 0) {
					require.Equal(t, sampler.At(3, int(position)), b.Indices()[place])
				}
			}
		}
	}
	for _, kept := range []nwt.Dataset{nwt.Cached(position, 1<<20), nwt.Map(nwt.Cached(position, 1<<20), position.Fields(), func(_ context.Context, src, dst *nwt.Sample) error {
		copy(dst.Bytes(0), src.Bytes(0))
		return nil
	})} {
		l := kit.NewLoader(t, kept, nwt.WithShuffle(1), nwt.WithBatchSize(7))
		for b, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
			for place, position := range nwt.Values[int64](b, 0) {
				require.EqualValues(t, b.Indices()[place], position, "what is kept is what LoadSample loads")
			}
		}
	}
}

func shuffledIndices(n int) (indices []int) {
	s := nwt.Shuffled(n, 1)
	for i := range n {
		indices = append(indices, s.At(0, i))
	}
	return indices
}

// A Weighted draw is a hash of seed, epoch and position, as Rand's seed is.
func TestRandomnessDoesNotTellWhatWasDrawn(t *testing.T) {
	const n = 20_000
	ds := nwt.NewDataset(2, []nwt.Field{{Name: "x", Type: nwt.Float64}}, func(_ context.Context, _ int, dst *nwt.Sample) error {
		nwt.Values[float64](dst, 0)[0] = dst.Rand().Float64()
		return nil
	})
	draws, err := sampler.Weighted([]float64{1, 1}, n, 42)
	require.NoError(t, err)
	sum, count := [2]float64{}, [2]float64{}
	distinct := map[float64]bool{}
	for b, err := range kit.NewLoader(t, ds, nwt.WithSampler(draws), nwt.WithSeed(42)).Epoch(t.Context(), 0) {
		require.NoError(t, err)
		for place, x := range nwt.Values[float64](b, 0) {
			sum[b.Indices()[place]] += x
			count[b.Indices()[place]]++
			distinct[x] = true
		}
	}
	require.InDelta(t, 0.5, sum[0]/count[0], 0.02)
	require.InDelta(t, 0.5, sum[1]/count[1], 0.02)
	require.Len(t, distinct, n, "no draw of an index is augmented like another")
}

func TestALoadErrorNamesThePosition(t *testing.T) {
	const n = 40
	sampler := nwt.Shuffled(n, 1)
	bad := sampler.At(0, 33)
	ds := nwt.NewDataset(n, kit.Scalar, func(_ context.Context, i int, _ *nwt.Sample) error {
		if i == bad {
			return errors.New("bad")
		}
		return nil
	})
	for _, workers := range []int{0, 2} {
		_, err := kit.Epoch(t.Context(), kit.NewLoader(t, ds, nwt.WithSampler(sampler), nwt.WithWorkers(workers), nwt.WithBatchSize(8)), 0)
		var le *nwt.LoadError
		require.ErrorAs(t, err, &le)
		require.Equal(t, 33, le.Position)
		require.ErrorContains(t, err, fmt.Sprintf("nwt: sample %d of epoch 0 (position 33, worker ", bad))

		_, err = kit.Epoch(t.Context(), kit.NewLoader(t, ds, nwt.WithSampler(panicsAt(13)), nwt.WithWorkers(workers), nwt.WithBatchSize(8)), 0)
		require.ErrorAs(t, err, &le)
		require.Equal(t, -1, le.Index)
		require.Equal(t, 13, le.Position)
		require.ErrorContains(t, err, "nwt: the sampler in epoch 0 (position 13, worker ")

		l := kit.NewLoader(t, ds, nwt.WithWorkers(workers), nwt.WithWorkerInit(func(context.Context, int) error { return errors.New("no GPU") }))
		_, err = kit.Epoch(t.Context(), l, 0)
		require.ErrorAs(t, err, &le)
		require.Equal(t, [2]int{-1, -1}, [2]int{le.Index, le.Position})
	}
}

// panicsAt is a sampler that panics at a position.
type panicsAt int

func (panicsAt) Len() int { return 40 }
func (s panicsAt) At(_, i int) int {
	if i == int(s) {
		panic("no such position")
	}
	return 0
}

func TestAPanicIsToldWithItsFileAndLine(t *testing.T) {
	_, file, line, _ := runtime.Caller(0)
	cases := []struct {
		load func(*nwt.Sample) error
		says string
	}{
		{func(*nwt.Sample) error { panic("boom") }, "panic: boom"},
		{func(dst *nwt.Sample) error { dst.SetLen(0, 3); return nil }, "isn't ragged: AddRagged or Field.RaggedDims makes it so"},
		{func(dst *nwt.Sample) error { _ = dst.Bytes(0)[dst.Index()+99]; return nil }, "index out of range [99] with length 4"},
		{func(dst *nwt.Sample) error { runtime.Goexit(); return nil }, "runtime.Goexit was called"},
	}
	for i, c := range cases {
		ds := nwt.NewDataset(1, kit.Scalar, func(_ context.Context, _ int, dst *nwt.Sample) error { return c.load(dst) })
		_, err := kit.Epoch(t.Context(), kit.NewLoader(t, ds, nwt.WithWorkers(1)), 0)
		require.ErrorContains(t, err, fmt.Sprintf("%s (%s:%d)", c.says, file, line+5+i))
	}
}

// growing is a dataset of numbers whose length changes.
type growing struct{ n atomic.Int64 }

func newGrowing(n int) *growing {
	g := &growing{}
	g.n.Store(int64(n))
	return g
}

func (g *growing) Len() int {
	if g.n.Load() == -100 {
		panic("the table is locked")
	}
	return int(g.n.Load())
}
func (g *growing) Fields() []nwt.Field { return []nwt.Field{{Name: "i", Type: nwt.Int64}} }
func (g *growing) Load(_ context.Context, i int, dst *nwt.Sample) error {
	nwt.Values[int64](dst, 0)[0] = int64(i)
	return nil
}

// numbersOfEpoch returns the numbers of an epoch, as they come.
func numbersOfEpoch(t *testing.T, l *nwt.Loader, epoch int) (all []int64) {
	t.Helper()
	for b, err := range l.Epoch(t.Context(), epoch) {
		require.NoError(t, err)
		all = append(all, nwt.Values[int64](b, 0)...)
	}
	return all
}

func TestADatasetThatGrowsOrShrinksBetweenEpochsIsTrainedOnWhole(t *testing.T) {
	for _, opts := range [][]nwt.Option{nil, {nwt.WithShuffle(3)}, {nwt.WithShuffle(3), nwt.WithWorkers(0)}, {nwt.WithShuffle(3), nwt.WithRank(1, 3), nwt.WithDropLast()}} {
		opts = append(opts, nwt.WithBatchSize(10))
		ds := newGrowing(100)
		l := kit.NewLoader(t, ds, opts...)
		for epoch, n := range []int{100, 153, 153, 47, 1000} {
			ds.n.Store(int64(n))
			fresh := kit.NewLoader(t, newGrowing(n), opts...)
			require.Equal(t, numbersOfEpoch(t, fresh, epoch), numbersOfEpoch(t, l, epoch))
			require.Equal(t, fresh.Len(), l.Len())
		}
	}
}

func TestTheLengthOfADatasetHoldsForARun(t *testing.T) {
	ds := newGrowing(20)
	l := kit.NewLoader(t, ds, nwt.WithBatchSize(10), nwt.WithShuffle(1))
	samples := 0
	for b, err := range l.Epochs(t.Context(), 0, 3) {
		require.NoError(t, err)
		ds.n.Add(7)
		samples += b.Len()
		require.ErrorIs(t, l.SetSampler(nwt.Sequential(21)), nwt.ErrBusy)
		require.Equal(t, 2, l.Len())
	}
	require.Equal(t, 60, samples)
	require.Len(t, numbersOfEpoch(t, l, 3), 62)
}

func TestADatasetThatGrowsDuringAnEpochIsToldOnce(t *testing.T) {
	for _, workers := range []int{0, 2} {
		var log kit.Journal
		ds := newGrowing(20)
		l := kit.NewLoader(t, ds, nwt.WithBatchSize(10), nwt.WithWorkers(workers), log.Option())
		beside := kit.NewLoader(t, ds, nwt.WithBatchSize(10), nwt.WithWorkers(workers), kit.Silent)
		for epoch := range 4 {
			numbersOfEpoch(t, l, epoch)
			ds.n.Add(5) // between the epochs it may
		}
		require.Empty(t, log.String())
		for range 2 {
			for _, err := range l.Epoch(t.Context(), 4) {
				require.NoError(t, err)
				numbersOfEpoch(t, beside, 0)
				ds.n.Add(5) // between the epochs of the one, and during that of the other
			}
		}
		require.Equal(t, 1, strings.Count(log.String(), "nwt: the dataset's length has changed while its epochs ran"))
		require.Contains(t, log.String(), "was=40 now=60")
	}
}

func TestASamplerMayVisitWhatADatasetHasGained(t *testing.T) {
	ds := newGrowing(100)
	l := kit.NewLoader(t, ds)
	ds.n.Store(150)
	require.NoError(t, l.SetSampler(nwt.Shuffled(150, 1)))
	all := numbersOfEpoch(t, l, 0)
	slices.Sort(all)
	require.Len(t, slices.Compact(all), 150)
	ds.n.Store(200)
	require.Len(t, numbersOfEpoch(t, l, 1), 150, "a sampler of the program's keeps its length")
	require.ErrorContains(t, l.SetSampler(nwt.Sequential(201)), "visits index 200, but the dataset has only 200 samples")
	ds.n.Store(149)
	require.ErrorContains(t, kit.Refusal(t, l.Epoch(t.Context(), 2)), "Dataset.Len: Shuffled(150, seed 1): visits index 149, but the dataset has only 149 samples")
	ds.n.Store(150)
	require.Len(t, numbersOfEpoch(t, l, 2), 150)
}

func TestAStateIsCheckedAgainstTheLengthThatTheDatasetHasNow(t *testing.T) {
	ds := newGrowing(100)
	l := kit.NewLoader(t, ds, nwt.WithBatchSize(10))
	require.ErrorContains(t, kit.Refusal(t, l.Resume(t.Context(), nwt.State{Samples: 120})), "an epoch has 100 samples")
	ds.n.Store(150)
	rest := 0
	for b, err := range l.Resume(t.Context(), nwt.State{Samples: 120}) {
		require.NoError(t, err)
		rest += b.Len()
	}
	require.Equal(t, 30, rest)
	ds.n.Store(50)
	require.ErrorContains(t, kit.Refusal(t, l.Resume(t.Context(), nwt.State{Samples: 120})), "an epoch has 50 samples")
}

func TestALengthThatCanNotBeEndsTheEpochAlone(t *testing.T) {
	ds := newGrowing(100)
	l := kit.NewLoader(t, ds)
	for n, want := range map[int64]string{0: "Dataset.Len: the dataset has no samples", -100: "Len: panic: the table is locked"} {
		ds.n.Store(n)
		require.ErrorContains(t, kit.Refusal(t, l.Epoch(t.Context(), 0)), want)
		require.ErrorContains(t, l.SetSampler(nwt.Sequential(1)), want)
		ds.n.Store(100)
		require.Len(t, numbersOfEpoch(t, l, 0), 100)
	}
	require.NoError(t, l.Close())
	require.ErrorIs(t, kit.Refusal(t, l.Epoch(t.Context(), 0)), nwt.ErrClosed)
}

func TestWhatIsMadeOfAGrowingDatasetGrowsIfItsSamplesKeepTheirPlaces(t *testing.T) {
	ds := newGrowing(10)
	for name, made := range map[string]nwt.Dataset{
		"Map":        nwt.Map(ds, ds.Fields(), func(_ context.Context, src, dst *nwt.Sample) error { copy(dst.Bytes(0), src.Bytes(0)); return nil }),
		"Map, batch": nwt.Map(kit.Batchwise{Dataset: ds}, ds.Fields(), func(_ context.Context, src, dst *nwt.Sample) error { copy(dst.Bytes(0), src.Bytes(0)); return nil }),
		"Sized":      nwt.Sized(ds, func(int, []int) {}),
		"Cached":     nwt.Cached(ds, 1<<20),
		"WritesAll":  nwt.WritesAll(ds),
	} {
		ds.n.Store(10)
		l := kit.NewLoader(t, made)
		require.Len(t, numbersOfEpoch(t, l, 0), 10, name)
		ds.n.Store(25)
		want := numbersOfEpoch(t, kit.NewLoader(t, ds), 0)
		require.Equal(t, want, numbersOfEpoch(t, l, 1), name)
		require.Equal(t, want, numbersOfEpoch(t, l, 1), name)
	}
	ds.n.Store(10)
	for name, made := range map[string]nwt.Dataset{"Concat": kit.Must(nwt.Concat(ds, ds))(t), "Zip": kit.Must(nwt.Zip(ds))(t), "Split": kit.Must(nwt.Split(ds, 1, 1))(t)[0]} {
		n := made.Len()
		ds.n.Store(25)
		require.Len(t, numbersOfEpoch(t, kit.NewLoader(t, made), 0), n, name)
		ds.n.Store(10)
	}
}

func TestADatasetThatGrowsWhileItIsPrecomputedMakesAWholeFile(t *testing.T) {
	ds := growsWhenAsked{newGrowing(10), new(atomic.Int64)}
	p, err := nwt.Precompute(t.Context(), ds, filepath.Join(t.TempDir(), "file"), "1", kit.Silent)
	require.NoError(t, err)
	defer p.Close()
	loads := ds.loads.Load()
	require.Len(t, numbersOfEpoch(t, kit.NewLoader(t, p), 0), p.Len())
	require.Equal(t, loads, ds.loads.Load(), "all samples are in the file")
}

// growsWhenAsked has 100 000 samples more each time that it is asked for its length.
type growsWhenAsked struct {
	*growing
	loads *atomic.Int64
}

func (g growsWhenAsked) Len() int { return int(g.n.Add(100_000)) }
func (g growsWhenAsked) Load(ctx context.Context, i int, dst *nwt.Sample) error {
	g.loads.Add(1)
	return g.growing.Load(ctx, i, dst)
}

const classes = 10

var oneHotFields = []nwt.Field{{Name: "class", Type: nwt.Float32, Shape: []int{classes}}, {Name: "seen", Type: nwt.Uint8, Shape: []int{9}, RaggedDims: 1}}

// markOneHot writes one element of each field, and sets a length that leaves the other's
// neighbours inside it.
func markOneHot(i int, dst *nwt.Sample) {
	nwt.Values[float32](dst, 0)[i%classes] = 1
	dst.SetLen(1, i%9+1)
	dst.Bytes(1)[i%9/2] = 1
}

// oneHots returns a dataset that sets an element and leaves all others as they are.
func oneHots(n int) nwt.Dataset {
	return nwt.NewDataset(n, oneHotFields, func(_ context.Context, i int, dst *nwt.Sample) error {
		markOneHot(i, dst)
		return nil
	})
}

// requireOneHots checks that each sample has one element set in each field, however often its
// slot was used.
func requireOneHots(t *testing.T, ds nwt.Dataset, opts ...nwt.Option) {
	t.Helper()
	l := kit.NewLoader(t, ds, append([]nwt.Option{nwt.WithBatchSize(4), nwt.WithWorkers(2), nwt.WithShuffle(1), kit.Silent}, opts...)...)
	for b, err := range l.Epochs(t.Context(), 0, 4) {
		require.NoError(t, err)
		for f := range oneHotFields {
			size := b.Shape(f)[1]
			for k := range b.Len() {
				set := 0
				for j := range size {
					if f == 0 && nwt.Values[float32](b, 0)[k*size+j] != 0 || f == 1 && b.Bytes(1)[k*size+j] != 0 {
						set++
					}
				}
				require.Equal(t, 1, set, "field %d of sample %d of batch %d of epoch %d", f, k, b.Number(), b.Epoch())
			}
		}
	}
}

// shardsOfOneHots is a stream of oneHots(50).
type shardsOfOneHots struct{ *kit.Shelves }

func (shardsOfOneHots) Fields() []nwt.Field { return oneHotFields }
func (shardsOfOneHots) Load(_ context.Context, r *nwt.Record, dst *nwt.Sample) error {
	markOneHot(int(r.Data[0]), dst)
	return nil
}

func TestWhatLoadLeavesUnwrittenIsZero(t *testing.T) {
	ds := oneHots(50)
	copied := nwt.Map(ds, oneHotFields, func(_ context.Context, src, dst *nwt.Sample) error {
		copy(dst.Bytes(0), src.Bytes(0))
		copy(dst.Bytes(1), src.Bytes(1))
		dst.SetLen(1, src.Len(1, 0))
		return nil
	})
	whole, err := nwt.Precompute(t.Context(), ds, filepath.Join(t.TempDir(), "file"), "1", kit.Silent)
	require.NoError(t, err)
	for name, ds := range map[string]nwt.Dataset{
		"NewDataset":                   ds,
		"LoadMany":                     kit.Batchwise{Dataset: ds},
		"Map":                          copied,
		"Map with LoadMany":            nwt.Map(kit.Batchwise{Dataset: ds}, oneHotFields, func(_ context.Context, src, dst *nwt.Sample) error { markOneHot(src.Index(), dst); return nil }),
		"Subset":                       kit.Must(nwt.Subset(ds, []int{0, 11, 22, 33, 44, 5, 16, 27, 38, 49}))(t),
		"Concat":                       kit.Must(nwt.Concat(ds, nwt.WritesAll(copied)))(t),
		"Concat with LoadMany":         kit.Must(nwt.Concat(kit.Batchwise{Dataset: ds}, whole, kit.Batchwise{Dataset: copied}))(t),
		"Cached":                       nwt.Cached(ds, 1<<20),
		"Cached, with room for a few":  nwt.Cached(ds, 1000),
		"Cached Map":                   nwt.Cached(copied, 1<<20),
		"Precompute":                   whole,
		"Precompute embedded":          replaced{whole},
		"Sized":                        nwt.Sized(ds, func(i int, sizes []int) { sizes[0] = i%9 + 1 }),
		"WritesAll of what overwrites": nwt.WritesAll(whole),
	} {
		t.Run(name, func(t *testing.T) {
			requireOneHots(t, ds)
			requireOneHots(t, ds, nwt.WithWorkers(0), nwt.WithBatchSize(7))
		})
	}
}

// replaced has a Load of its own in place of the embedded dataset's.
type replaced struct{ *nwt.Precomputed }

func (replaced) Load(_ context.Context, i int, dst *nwt.Sample) error {
	markOneHot(i, dst)
	return nil
}

func TestWhatAStreamsLoadLeavesUnwrittenIsZero(t *testing.T) {
	requireOneHots(t, nwt.Streamed(shardsOfOneHots{kit.NewShelves(20, 30)}))
}

// errFlaky is an error that calls itself temporary.
type errFlaky struct{ error }

func (errFlaky) Temporary() bool { return true }

// A call that fails has written something before. What comes after it is clean all the same.
func TestWhatAFailedCallHasWrittenIsCleared(t *testing.T) {
	failing := func(fail error) nwt.Dataset {
		var calls [50]atomic.Int64 // of each sample
		return nwt.NewDataset(50, oneHotFields, func(_ context.Context, i int, dst *nwt.Sample) error {
			if calls[i].Add(1)%3 != 0 {
				nwt.Values[float32](dst, 0)[(i+1)%classes] = 1
				nwt.Values[float32](dst, 0)[(i+2)%classes] = 1
				dst.SetLen(1, 9)
				copy(dst.Bytes(1), "all of it")
				return fail
			}
			markOneHot(i, dst)
			return nil
		})
	}
	t.Run("and is retried", func(t *testing.T) {
		requireOneHots(t, failing(errFlaky{kit.ErrTorn}), nwt.WithRetry(5, time.Nanosecond))
	})
	t.Run("by Load after LoadMany", func(t *testing.T) {
		requireOneHots(t, kit.Batchwise{Dataset: failing(kit.ErrTorn)}, nwt.WithErrorBudget(50))
	})
	t.Run("and its sample is bad", func(t *testing.T) {
		requireOneHots(t, failing(kit.ErrTorn), nwt.WithErrorBudget(50))
	})
}

// A call that hangs writes on when it is given up; so does one of LoadMany.
func TestWhatIsLoadedBesideACallThatWasGivenUpIsClean(t *testing.T) {
	for _, batches := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			ds := nwt.NewDataset(50, oneHotFields, func(ctx context.Context, i int, dst *nwt.Sample) error {
				if i%10 == 3 {
					for k := range classes {
						nwt.Values[float32](dst, 0)[k] = 1
					}
					<-ctx.Done()
				}
				markOneHot(i, dst)
				return nil
			})
			if batches {
				ds = kit.Batchwise{Dataset: ds}
			}
			requireOneHots(t, ds, nwt.WithErrorBudget(50), nwt.WithTimeout(time.Second))
		})
	}
}

// unclean counts the samples whose place isn't zero when their Load begins.
func unclean(t *testing.T, of func(nwt.Dataset) nwt.Dataset) int64 {
	t.Helper()
	var found atomic.Int64
	ds := of(nwt.NewDataset(50, oneHotFields[:1], func(_ context.Context, _ int, dst *nwt.Sample) error {
		for _, x := range nwt.Values[float32](dst, 0) {
			if x != 0 {
				found.Add(1)
				break
			}
		}
		nwt.Values[float32](dst, 0)[0] = 1
		return nil
	}))
	for _, err := range kit.NewLoader(t, ds, nwt.WithBatchSize(5), nwt.WithWorkers(1)).Epochs(t.Context(), 0, 20) {
		require.NoError(t, err)
	}
	return found.Load()
}

func TestOnlyADatasetThatPromisesToWriteEverythingIsNotCleared(t *testing.T) {
	plain := func(ds nwt.Dataset) nwt.Dataset { return ds }
	over := func(t *testing.T, ds nwt.Dataset) map[string]nwt.Dataset {
		all := made(t, ds)
		delete(all, "Cached")
		all["Sized"] = nwt.Sized(ds, func(int, []int) {})
		return all
	}
	require.Zero(t, unclean(t, plain))
	require.Positive(t, unclean(t, nwt.WritesAll))
	for name := range over(t, oneHots(50)) {
		t.Run(name, func(t *testing.T) {
			require.Positive(t, unclean(t, func(ds nwt.Dataset) nwt.Dataset { return over(t, nwt.WritesAll(ds))[name] }))
			require.Positive(t, unclean(t, func(ds nwt.Dataset) nwt.Dataset { return over(t, nwt.WritesAll(kit.Batchwise{Dataset: ds}))[name] }))
			if name != "WritesAll" && name != "WritesAll of Subset" {
				require.Zero(t, unclean(t, func(ds nwt.Dataset) nwt.Dataset { return over(t, ds)[name] }))
			}
		})
	}
	require.Zero(t, unclean(t, func(ds nwt.Dataset) nwt.Dataset {
		return kit.Must(nwt.Concat(nwt.WritesAll(ds), ds))(t)
	}), "a Concat of which one part may leave something out")
	require.Positive(t, unclean(t, func(ds nwt.Dataset) nwt.Dataset { return &outside{ds} }), "another package's")
	require.Zero(t, unclean(t, func(ds nwt.Dataset) nwt.Dataset { return &around{&outside{ds}} }), "a type with a Load of its own")
}

func TestTheRestOfARaggedFieldIsLeftWhereTheDatasetSaysSo(t *testing.T) {
	var schema nwt.Schema
	left, cleared := nwt.AddRagged[uint8](&schema, "left", 1, 4), nwt.AddRagged[uint8](&schema, "cleared", 1, 4)
	ds := nwt.NewDataset(1, schema.Fields(), func(_ context.Context, _ int, dst *nwt.Sample) error {
		for _, c := range []nwt.Column[uint8]{left, cleared} {
			copy(c.Of(dst), "full")
			dst.SetLen(c.Field(), 1)
		}
		return nil
	})
	for b, err := range kit.NewLoader(t, leaves{ds}, nwt.WithBatchSize(1)).Epoch(t.Context(), 0) {
		require.NoError(t, err)
		require.Equal(t, "full", string(left.Of(b)))
		require.Equal(t, "f\x00\x00\x00", string(cleared.Of(b)))
	}
}

type leaves struct{ nwt.Dataset }

func (leaves) LeavesRest(field string) bool { return field == "left" }

// outside promises, as a dataset of another package does, that its Load writes every element.
type outside struct{ nwt.Dataset }

func (d *outside) WritesAll(asked nwt.Dataset) bool { return asked == nwt.Dataset(d) }

// around has a Load of its own, and a method WritesAll that isn't.
type around struct{ *outside }

func (d *around) Load(ctx context.Context, index int, dst *nwt.Sample) error {
	return d.outside.Load(ctx, index, dst)
}

func TestTheContextOfASampleIsThatOfItsCall(t *testing.T) {
	seen := 0
	ds := kit.Numbered(4, func(ctx context.Context, _ int, dst *nwt.Sample) error {
		require.Equal(t, ctx, dst.Context())
		require.Equal(t, time.Minute, driver.TimeoutOf(ctx))
		seen++
		return nil
	})
	_, err := kit.Values(t, kit.NewLoader(t, ds, nwt.WithWorkers(1), nwt.WithTimeout(time.Minute)), 0)
	require.NoError(t, err)
	require.Equal(t, 4, seen)
	require.Zero(t, driver.TimeoutOf(t.Context()))
}

func TestOverwritesOfWhatCanNotBeUsedIsTheSameError(t *testing.T) {
	for name, ds := range map[string]nwt.Dataset{"nil": nil, "Map": nwt.Map(oneHots(1), nil, nil), "load": nwt.NewDataset(1, oneHotFields, nil), "length": oneHots(0)} {
		_, want := nwt.NewLoader(ds)
		_, err := nwt.NewLoader(nwt.WritesAll(ds))
		require.Error(t, err, name)
		require.Equal(t, want.Error(), err.Error(), name)
	}
}
