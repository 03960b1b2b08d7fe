package nwt_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

// numbers is a dataset of the numbers from … from+n−1.
func numbers(from, n int) nwt.Dataset {
	return nwt.NewDataset(n, []nwt.Field{{Name: "number", Type: nwt.Int64}}, func(_ context.Context, i int, dst *nwt.Sample) error {
		nwt.Values[int64](dst, 0)[0] = int64(from + i)
		return nil
	})
}

// epochOf is the numbers of an epoch, in order.
func epochOf(t testing.TB, ds nwt.Dataset, epoch int, opts ...nwt.Option) (all []int64) {
	t.Helper()
	for b, err := range newLoader(t, ds, append(opts, nwt.WithBatchSize(3))...).Epoch(t.Context(), epoch) {
		require.NoError(t, err)
		all = append(all, nwt.Values[int64](b, 0)...)
	}
	return all
}

func TestASubsetIsTheSamplesAtItsIndices(t *testing.T) {
	indices := []int{9, 0, 4, 4, 7}
	ds, err := nwt.Subset(numbers(100, 10), indices)
	require.NoError(t, err)
	clear(indices)
	require.Equal(t, []int64{109, 100, 104, 104, 107}, epochOf(t, ds, 0))
}

func TestAConcatenationIsOneDatasetAfterTheOther(t *testing.T) {
	ds, err := nwt.Concat(numbers(0, 3), numbers(50, 1), numbers(70, 4))
	require.NoError(t, err)
	require.Equal(t, []int64{0, 1, 2, 50, 70, 71, 72, 73}, epochOf(t, ds, 0))
}

func TestEveryCopyOfASampleIsAugmentedDifferently(t *testing.T) {
	source := augmented(5)
	twice, err := nwt.Concat(source, source)
	require.NoError(t, err)
	thrice, err := nwt.Subset(source, []int{2, 2, 2})
	require.NoError(t, err)
	for _, ds := range []nwt.Dataset{twice, thrice} {
		seen := map[float32]bool{}
		for b, err := range newLoader(t, ds).Epoch(t.Context(), 0) {
			require.NoError(t, err)
			for _, x := range nwt.Values[float32](b, 1) {
				require.False(t, seen[x])
				seen[x] = true
			}
		}
		require.Len(t, seen, ds.Len()*6)
	}
}

func TestCompositionKeepsRaggedFields(t *testing.T) {
	source, _ := counted(30)
	ds := nwt.Dataset(nwt.Map(source, source.Fields(), func(_ context.Context, src, dst *nwt.Sample) error {
		dst.SetLen(0, src.Len(0))
		copy(nwt.Values[int32](dst, 0), nwt.Values[int32](src, 0))
		return nil
	}))
	ds, err := nwt.Concat(ds, ds)
	require.NoError(t, err)
	ds, err = nwt.Subset(ds, []int{0, 8, 29, 1, 7, 2})
	require.NoError(t, err)
	for b, err := range newLoader(t, ds, nwt.WithWorkers(2)).Epoch(t.Context(), 0) {
		require.NoError(t, err)
		require.Equal(t, []int32{0, 8, 2, 1, 7, 2}, b.Lens(0))
		require.Equal(t, append(slices.Repeat([]int32{29}, 6), make([]int32, 18)...), nwt.Values[int32](b, 0)[48:72])
	}
}

func TestMapSeesWhatTheRestOfARaggedFieldIsIn(t *testing.T) {
	source, _ := counted(9)
	ds := nwt.Map(source, []nwt.Field{{Name: "sum", Type: nwt.Int64}}, func(_ context.Context, src, dst *nwt.Sample) error {
		nwt.Values[int64](dst, 0)[0] = 0
		for _, x := range nwt.Values[int32](src, 0) {
			nwt.Values[int64](dst, 0)[0] += int64(x)
		}
		return nil
	})
	require.Equal(t, []int64{0, 3, 12, 27, 48, 75, 108, 147, 192}, epochOf(t, ds, 0, nwt.WithWorkers(1)))
}

// doubled is numbers mapped to twice themselves.
func doubled(ds nwt.Dataset) nwt.Dataset {
	return nwt.Map(ds, ds.Fields(), func(_ context.Context, src, dst *nwt.Sample) error {
		nwt.Values[int64](dst, 0)[0] = 2 * nwt.Values[int64](src, 0)[0]
		return nil
	})
}

func TestMapsNestAndStandSideBySide(t *testing.T) {
	ds, err := nwt.Concat(doubled(doubled(numbers(1, 2))), doubled(numbers(10, 2)), numbers(7, 1))
	require.NoError(t, err)
	for _, workers := range []int{0, 1, 5} {
		require.Equal(t, []int64{4, 8, 20, 22, 7}, epochOf(t, ds, 0, nwt.WithWorkers(workers)))
	}
}

// unchanged is samples mapped to themselves.
func unchanged(ds nwt.Dataset) nwt.Dataset {
	fields := ds.Fields()
	return nwt.Map(ds, fields, func(_ context.Context, src, dst *nwt.Sample) error {
		for f, field := range fields {
			if field.Ragged {
				dst.SetLen(f, src.Len(f))
			}
			copy(dst.Bytes(f), src.Bytes(f))
		}
		return nil
	})
}

func TestAMapThatChangesNothingChangesNoRandomness(t *testing.T) {
	source := augmented(50)
	same := unchanged(source)
	opts := []nwt.Option{nwt.WithBatchSize(7), nwt.WithShuffle(3), nwt.WithWorkers(4)}
	require.Equal(t, collect(t, newLoader(t, source, opts...), 2), collect(t, newLoader(t, same, opts...), 2))
}

func TestMapGoesOnWithTheNumbersThatTheSourceLeft(t *testing.T) {
	drawing := nwt.NewDataset(20, []nwt.Field{{Name: "x", Type: nwt.Float64}}, func(_ context.Context, _ int, dst *nwt.Sample) error {
		nwt.Values[float64](dst, 0)[0] = dst.Rand().Float64()
		return nil
	})
	pair := []nwt.Field{{Name: "of the source", Type: nwt.Float64}, {Name: "of the map", Type: nwt.Float64, Shape: []int{2}}}
	ds := nwt.Map(drawing, pair, func(_ context.Context, src, dst *nwt.Sample) error {
		copy(nwt.Values[float64](dst, 0), nwt.Values[float64](src, 0))
		nwt.Values[float64](dst, 1)[0] = src.Rand().Float64()
		nwt.Values[float64](dst, 1)[1] = dst.Rand().Float64()
		return nil
	})
	seen := map[float64]bool{}
	for b, err := range newLoader(t, ds).Epoch(t.Context(), 0) {
		require.NoError(t, err)
		for _, x := range slices.Concat(nwt.Values[float64](b, 0), nwt.Values[float64](b, 1)) {
			seen[x] = true
		}
	}
	require.Len(t, seen, 3*20, "no number is drawn twice")
}

func TestTheSourceOfAMapIsLoadedForTheSameSampleEpochAndWorker(t *testing.T) {
	same := func(_ context.Context, _ int, dst *nwt.Sample) error {
		copy(nwt.Values[int64](dst, 0), []int64{int64(dst.Index()), int64(dst.Epoch()), int64(dst.Worker())})
		return nil
	}
	who := []nwt.Field{{Name: "who", Type: nwt.Int64, Shape: []int{3}}}
	ds := nwt.Map(nwt.NewDataset(50, who, same), who, func(_ context.Context, src, dst *nwt.Sample) error {
		want := nwt.Values[int64](src, 0)
		if got := []int64{int64(dst.Index()), int64(dst.Epoch()), int64(dst.Worker())}; !slices.Equal(want, got) {
			t.Errorf("the source was loaded for %d, the map for %d", want, got)
		}
		if src.Index() != dst.Index() || src.Epoch() != dst.Epoch() || src.Worker() != dst.Worker() {
			t.Error("src and dst differ")
		}
		return nil
	})
	l := newLoader(t, ds, nwt.WithWorkers(4), nwt.WithBatchSize(2))
	for epoch := range 3 {
		for _, err := range l.Epoch(t.Context(), epoch) {
			require.NoError(t, err)
		}
	}
}

func TestAFaultInAMapNamesTheSample(t *testing.T) {
	bad := errors.New("bad")
	forgetful, _ := counted(1)
	forgetful = nwt.NewDataset(10, forgetful.Fields(), func(context.Context, int, *nwt.Sample) error { return nil })
	fail := func(_ context.Context, i int, dst *nwt.Sample) error {
		if dst.Index() == 4 {
			return bad
		}
		return nil
	}
	of := func(n, bad int) nwt.Dataset { // by the dataset's own index
		return nwt.NewDataset(n, scalar, func(_ context.Context, i int, _ *nwt.Sample) error {
			if i == bad {
				return errBad
			}
			return nil
		})
	}
	concat, err := nwt.Concat(of(3, -1), of(7, 1))
	require.NoError(t, err)
	subset, err := nwt.Subset(of(10, 8), []int{1, 2, 3, 7, 8, 9})
	require.NoError(t, err)
	for name, c := range map[string]struct {
		ds   nwt.Dataset
		want string
	}{
		"a part of a Concat fails":   {concat, "sample 4 of epoch 2 (sample 1 of part 1, position 4, worker 0): bad"},
		"a sample of a Subset fails": {subset, "sample 4 of epoch 2 (sample 8 of the whole, position 4, worker 0): bad"},
		"the source fails":           {nwt.Map(nwt.NewDataset(10, scalar, fail), scalar, func(context.Context, *nwt.Sample, *nwt.Sample) error { return nil }), "sample 4 of epoch 2 (position 4, worker 0): bad"},
		"the map fails":              {nwt.Map(numbers(0, 10), scalar, func(ctx context.Context, src, dst *nwt.Sample) error { return fail(ctx, 0, dst) }), "sample 4 of epoch 2 (position 4, worker 0): bad"},
		"the map panics": {nwt.Map(numbers(0, 10), scalar, func(ctx context.Context, src, dst *nwt.Sample) error {
			if dst.Index() == 4 {
				panic(bad)
			}
			return nil
		}), "sample 4 of epoch 2 (position 4, worker 0): panic: bad"},
		"the source forgets a length": {nwt.Map(forgetful, scalar, func(context.Context, *nwt.Sample, *nwt.Sample) error { return nil }), `did not call SetLen(0, n) for the ragged field "tokens"`},
	} {
		var err error
		for _, err = range newLoader(t, c.ds, nwt.WithWorkers(1)).Epoch(t.Context(), 2) {
		}
		var le *nwt.LoadError
		require.ErrorAs(t, err, &le, name)
		require.ErrorContains(t, err, c.want, name)
	}
}

func TestWhatCannotBeComposedIsNamed(t *testing.T) {
	f := func(context.Context, *nwt.Sample, *nwt.Sample) error { return nil }
	field := func(f nwt.Field) nwt.Dataset {
		return nwt.NewDataset(1, []nwt.Field{f}, func(context.Context, int, *nwt.Sample) error { return nil })
	}
	failed := func(_ nwt.Dataset, err error) func() error { return func() error { return err } }
	loader := func(ds nwt.Dataset) func() error {
		return func() error { _, err := nwt.NewLoader(ds); return err }
	}
	stream := nwt.Streamed(newShelves(3))
	base := nwt.Field{Name: "x", Type: nwt.Float32, Shape: []int{4}}
	for want, attempt := range map[string]func() error{
		"Subset: Dataset: must not be nil": failed(nwt.Subset(nil, []int{0})),
		"Subset: Dataset: *nwt.streamDataset: must not be a stream, which has no sample by index": failed(nwt.Subset(stream, []int{0})),
		"Map: Dataset: *nwt.streamDataset: must not be a stream, which has no sample by index":    loader(nwt.Map(stream, scalar, f)),
		"Subset: []: needs at least one index":                                                    failed(nwt.Subset(numbers(0, 3), nil)),
		"Subset: indices[1] = 3: must be 0 … 2":                                                   failed(nwt.Subset(numbers(0, 3), []int{0, 3})),
		"Subset: indices[0] = -1: must be 0 … 2":                                                  failed(nwt.Subset(numbers(0, 3), []int{-1})),
		"Concat: []: needs at least one dataset":                                                  failed(nwt.Concat()),
		"Concat: dataset 1: Dataset: must not be nil":                                             failed(nwt.Concat(numbers(0, 3), nil)),
		`dataset 1: differs from dataset 0: field 0 has the name "y", want "x"`:                   failed(nwt.Concat(field(base), field(nwt.Field{Name: "y", Type: nwt.Float32, Shape: []int{4}}))),
		`dataset 1: differs from dataset 0: field 0 ("x") has the type Int32, want Float32`:       failed(nwt.Concat(field(base), field(nwt.Field{Name: "x", Type: nwt.Int32, Shape: []int{4}}))),
		`dataset 2: differs from dataset 0: field 0 ("x") has the shape [2 2], want [4]`:          failed(nwt.Concat(field(base), field(base), field(nwt.Field{Name: "x", Type: nwt.Float32, Shape: []int{2, 2}}))),
		`dataset 1: differs from dataset 0: field 0 ("x") has Ragged true, want false`:            failed(nwt.Concat(field(base), field(nwt.Field{Name: "x", Type: nwt.Float32, Shape: []int{4}, Ragged: true}))),
		`dataset 1: differs from dataset 0: field 1 ("noise") is one too many`:                    failed(nwt.Concat(numbersNamed("index"), augmented(1))),
		`dataset 1: differs from dataset 0: field 1 ("noise") is missing`:                         failed(nwt.Concat(augmented(1), numbersNamed("index"))),
		"Map: load must not be nil":                                                               loader(nwt.Map(numbers(0, 3), scalar, nil)),
		"Map: Dataset: must not be nil":                                                           loader(nwt.Map(nil, scalar, f)),
		"nwt: Map: Cached: NewDataset: load must not be nil":                                      loader(nwt.Map(nwt.Cached(nwt.NewDataset(1, scalar, nil), 1), scalar, f)),
		"Dataset.Fields: []: a sample needs at least one field":                                   loader(nwt.Map(numbers(0, 3), nil, f)),
		"Cached: 0: maxBytes must be at least 1":                                                  loader(nwt.Cached(numbers(0, 3), 0)),
		"Cached: Dataset: must not be nil":                                                        loader(nwt.Cached(nil, 1)),
	} {
		err := attempt()
		require.ErrorContains(t, err, want)
		var oe *nwt.OptionError
		require.ErrorAs(t, err, &oe)
	}
}

func numbersNamed(name string) nwt.Dataset {
	return nwt.Map(numbers(0, 1), []nwt.Field{{Name: name, Type: nwt.Int64}}, func(context.Context, *nwt.Sample, *nwt.Sample) error { return nil })
}

func TestWhatLoadsBatchesDoesSoInACompositionToo(t *testing.T) {
	singly := func(context.Context, int, *nwt.Sample) error { return errors.New("one by one") }
	first, second := &together{Dataset: numbered(20, singly)}, &together{Dataset: numbered(20, singly)}
	between := numbered(3, func(context.Context, int, *nwt.Sample) error { return nil })
	ds, err := nwt.Concat(first, between, second)
	require.NoError(t, err)
	ds, err = nwt.Subset(doubled(ds), []int{0, 42, 21, 7, 23, 24})
	require.NoError(t, err)
	got, err := values(t, newLoader(t, ds, nwt.WithBatchSize(6), nwt.WithWorkers(0)), 0)
	require.NoError(t, err)
	require.Equal(t, []int64{0, 38, 2, 14, 0, 2}, got)
	require.EqualValues(t, 1, first.calls.Load())
	require.EqualValues(t, 1, second.calls.Load())

	_, batches := doubled(between).(nwt.BatchDataset)
	require.False(t, batches, "what loads one by one is shared among the workers one by one")
}

func TestABatchThatFailsInACompositionIsLoadedOneByOne(t *testing.T) {
	fail := func(i int) error {
		if i == 4 {
			return errors.New("rotten")
		}
		return nil
	}
	source := &together{Dataset: numbered(6, func(_ context.Context, i int, _ *nwt.Sample) error { return fail(i) }), fail: fail}
	got, err := values(t, newLoader(t, doubled(source), nwt.WithWorkers(2), nwt.WithErrorBudget(1)), 0)
	require.NoError(t, err)
	require.Equal(t, []int64{0, 2, 4, 6, 10}, got)
}

// columns is counted's samples, loaded a whole column at a time. It can't load
// them one by one.
type columns struct{ nwt.Dataset }

func (d columns) Load(context.Context, int, *nwt.Sample) error { return errors.New("one by one") }

func (d columns) LoadBatch(_ context.Context, indices []int, dst []*nwt.Sample) error {
	tokens, noise := nwt.ValuesOf[int32](dst, 0), nwt.ValuesOf[float64](dst, 1)
	for k, i := range indices {
		dst[k].SetLen(0, i%9)
		for j := range 24 {
			tokens[k*24+j] = int32(i)
		}
		noise[k] = dst[k].Rand().Float64()
	}
	return nil
}

func TestAColumnOfManySamplesIsOneSlice(t *testing.T) {
	for name, compose := range map[string]func(ds nwt.Dataset) (nwt.Dataset, error){
		"alone":  func(ds nwt.Dataset) (nwt.Dataset, error) { return ds, nil },
		"subset": func(ds nwt.Dataset) (nwt.Dataset, error) { return nwt.Subset(ds, []int{9, 3, 4, 5, 8, 3, 11, 0, 1, 2}) },
		"map":    func(ds nwt.Dataset) (nwt.Dataset, error) { return unchanged(ds), nil },
		"concat": func(ds nwt.Dataset) (nwt.Dataset, error) { return nwt.Concat(ds, ds, ds) },
		"a maze": func(ds nwt.Dataset) (nwt.Dataset, error) {
			both, err := nwt.Concat(ds, unchanged(ds))
			require.NoError(t, err)
			return nwt.Concat(unchanged(both), both)
		},
	} {
		t.Run(name, func(t *testing.T) {
			source, _ := counted(50)
			single, err := compose(source)
			require.NoError(t, err)
			many, err := compose(columns{source})
			require.NoError(t, err)
			for _, order := range []nwt.Option{nwt.WithShuffle(3), nwt.WithSampler(nwt.Sequential(single.Len()))} {
				want := collect(t, newLoader(t, single, nwt.WithBatchSize(8), order), 1)
				for _, workers := range []int{0, 1, 3} {
					require.Equal(t, want, collect(t, newLoader(t, many, nwt.WithBatchSize(8), nwt.WithWorkers(workers), order), 1))
				}
			}
		})
	}
}

func TestSamplesThatDoNotAdjoinAreNoColumn(t *testing.T) {
	var seen any
	ds := &together{Dataset: numbered(8, func(context.Context, int, *nwt.Sample) error { return nil })}
	ds.look = func(dst []*nwt.Sample) {
		require.Len(t, nwt.ValuesOf[int64](dst[2:5], 0), 3)
		require.Empty(t, nwt.ValuesOf[int64](dst[:0], 0))
		require.Panics(t, func() { nwt.ValuesOf[int64]([]*nwt.Sample{dst[0], dst[2], dst[1], dst[3]}, 0) })
		defer func() { seen = recover() }()
		nwt.ValuesOf[int64]([]*nwt.Sample{dst[0], dst[2]}, 0)
	}
	_, err := values(t, newLoader(t, ds, nwt.WithWorkers(0), nwt.WithBatchSize(8)), 0)
	require.NoError(t, err)
	require.Equal(t, "nwt: ValuesOf of 2 samples that don't lie one after the other: want those that LoadBatch was given, or a run of them", seen)
}

// abreast loads the samples of a batch side by side.
type abreast struct{ nwt.Dataset }

func (d abreast) LoadBatch(ctx context.Context, indices []int, dst []*nwt.Sample) error {
	var wg sync.WaitGroup
	errs := make([]error, len(dst))
	for k, i := range indices {
		wg.Go(func() { errs[k] = d.Load(ctx, i, dst[k]) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func TestALoadBatchMayLoadItsSamplesSideBySide(t *testing.T) {
	source := augmented(64)
	for _, ds := range []nwt.Dataset{unchanged(source), nwt.Cached(source, 1<<20)} {
		opts := []nwt.Option{nwt.WithBatchSize(16), nwt.WithShuffle(3), nwt.WithWorkers(2)}
		for epoch := range 2 {
			got := collect(t, newLoader(t, abreast{ds}, opts...), epoch) // first, when nothing is cached
			require.Equal(t, collect(t, newLoader(t, ds, opts...), epoch), got)
		}
	}
}

// sorting is a BatchDataset whose samples hold their index. It sorts what
// LoadBatch was given, in place.
type sorting int

func (d sorting) Len() int            { return int(d) }
func (d sorting) Fields() []nwt.Field { return []nwt.Field{{Name: "i", Type: nwt.Int64}} }
func (d sorting) Load(_ context.Context, i int, dst *nwt.Sample) error {
	if dst.Index() != i {
		return fmt.Errorf("Index is %d, Load was given %d", dst.Index(), i)
	}
	nwt.Values[int64](dst, 0)[0] = int64(i)
	return nil
}

func (d sorting) LoadBatch(ctx context.Context, indices []int, dst []*nwt.Sample) error {
	for i := range indices {
		for k := i; k > 0 && indices[k] < indices[k-1]; k-- {
			indices[k], indices[k-1] = indices[k-1], indices[k]
			dst[k], dst[k-1] = dst[k-1], dst[k]
		}
	}
	for k, i := range indices {
		if err := d.Load(ctx, i, dst[k]); err != nil {
			return err
		}
	}
	return nil
}

// What is decoded by Index, as a blob.Decode may do it, must be right in a Split too.
func TestASampleTellsItsIndexInTheDatasetThatLoadsIt(t *testing.T) {
	document := nwt.Sized(nwt.NewDataset(20, []nwt.Field{{Name: "i", Type: nwt.Int64, Shape: []int{1}, Ragged: true}}, func(ctx context.Context, i int, dst *nwt.Sample) error {
		dst.SetLen(0, 1)
		return sorting(20).Load(ctx, i, dst)
	}), func(_ int, sizes []int) { sizes[0] = 1 })
	packed, err := nwt.Packed(document, 3, 0)
	require.NoError(t, err)
	for name, ds := range map[string]nwt.Dataset{"Batch": sorting(20), "Cached": nwt.Cached(sorting(20), 40), "Sized": document, "Packed": packed} {
		both, err := nwt.Concat(ds, ds)
		require.NoError(t, err)
		parts, err := nwt.Split(both, 1, 0.5, 0.5)
		require.NoError(t, err)
		after := nwt.Map(parts[1], []nwt.Field{{Name: "i", Type: nwt.Int64}}, func(_ context.Context, src, dst *nwt.Sample) error {
			if src.Index() != dst.Index() {
				return fmt.Errorf("Index is %d in Map, %d after it", src.Index(), dst.Index())
			}
			return nil
		})
		for _, err := range newLoader(t, after, nwt.WithBatchSize(3), nwt.WithShuffle(1)).Epoch(t.Context(), 0) {
			require.NoError(t, err, name)
		}
	}
}

func TestADatasetMaySortWhatLoadBatchWasGiven(t *testing.T) {
	same := func(_ context.Context, src, dst *nwt.Sample) error {
		copy(dst.Bytes(0), src.Bytes(0))
		return nil
	}
	mapped := nwt.Map(sorting(64), sorting(64).Fields(), same)
	concat, err := nwt.Concat(sorting(30), mapped)
	require.NoError(t, err)
	named := nwt.Map(sorting(64), []nwt.Field{{Name: "j", Type: nwt.Int64}}, same)
	zip, err := nwt.Zip(named, sorting(64))
	require.NoError(t, err)
	parts, err := nwt.Split(concat, 1, 0.5, 0.5)
	require.NoError(t, err)
	for name, ds := range map[string]nwt.Dataset{"alone": sorting(64), "Map": mapped, "Concat": concat, "Zip": zip, "Split": parts[0]} {
		l := newLoader(t, ds, nwt.WithShuffle(3), nwt.WithBatchSize(8))
		for b, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
			for k, i := range b.Indices() {
				s, err := nwt.LoadSample(t.Context(), ds, i)
				require.NoError(t, err)
				for f := range ds.Fields() {
					require.Equal(t, nwt.Values[int64](s, f)[0], nwt.Values[int64](b, f)[k], "%s, field %d", name, f)
				}
			}
		}
	}
}

// inAscendingOrder asks a BatchDataset for samples in the order of their indices.
type inAscendingOrder struct{ nwt.BatchDataset }

func (d inAscendingOrder) LoadBatch(ctx context.Context, indices []int, dst []*nwt.Sample) error {
	places := make([]int, len(indices))
	for i := range places {
		places[i] = i
	}
	slices.SortFunc(places, func(a, b int) int { return indices[a] - indices[b] })
	there, samples := make([]int, len(indices)), make([]*nwt.Sample, len(indices))
	for k, place := range places {
		there[k], samples[k] = indices[place], dst[place]
	}
	return d.BatchDataset.LoadBatch(ctx, there, samples)
}

func TestLoadBatchMayBeGivenSamplesInAnyOrder(t *testing.T) {
	values := make([]int64, 4000)
	for i := range values {
		values[i] = int64(i)
	}
	array, err := nwt.FromSlices(nwt.SliceOf("i", values))
	require.NoError(t, err)
	concat, err := nwt.Concat(array, array)
	require.NoError(t, err)
	for _, ds := range []nwt.Dataset{array, concat} {
		l := newLoader(t, inAscendingOrder{ds.(nwt.BatchDataset)}, nwt.WithShuffle(3), nwt.WithBatchSize(5))
		for b, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
			for k, i := range b.Indices() {
				require.EqualValues(t, i%4000, nwt.Values[int64](b, 0)[k])
			}
		}
	}
}

func TestABadSampleOfAPartIsNamedAsInTheWhole(t *testing.T) {
	whole := func(n int) nwt.Dataset {
		return loads(n, func(_ context.Context, i int, _ *nwt.Sample) error {
			switch i {
			case 30:
				return errBad
			case 31:
				panic("rotten")
			}
			return nil
		})
	}
	subset := func(ds nwt.Dataset, indices ...int) nwt.Dataset {
		part, err := nwt.Subset(ds, indices)
		require.NoError(t, err)
		return part
	}
	concat := func(ds ...nwt.Dataset) nwt.Dataset {
		all, err := nwt.Concat(ds...)
		require.NoError(t, err)
		return all
	}
	identity := func(_ context.Context, _, _ *nwt.Sample) error { return nil }
	parts, err := nwt.Split(nwt.Map(whole(100), scalar, identity), 3, 0.5, 0.5)
	require.NoError(t, err)
	at := func(ds nwt.Dataset, index int) int {
		for i := range ds.Len() {
			if ds.(nwt.SubsetDataset).Index(i) == index {
				return i
			}
		}
		return -1
	}
	of := parts[0]
	if at(of, 30) < 0 {
		of = parts[1]
	}
	for _, c := range []struct {
		ds    nwt.Dataset
		index int
		want  string
	}{
		{whole(40), 30, "sample 30 of epoch 0 (position 30, worker 0)"},
		{subset(whole(40), 1, 30, 2), 1, "sample 1 of epoch 0 (sample 30 of the whole, position 1, worker 0)"},
		{subset(whole(40), 1, 31, 2), 1, "sample 1 of epoch 0 (sample 31 of the whole, position 1, worker 0)"},
		{of, at(of, 30), "sample 30 of the whole, position"},
		{concat(whole(10), whole(35)), 40, "sample 40 of epoch 0 (sample 30 of part 1, position 40, worker 0)"},
		{nwt.Cached(subset(concat(whole(10), whole(35)), 7, 41), 1<<20), 1, "sample 1 of epoch 0 (sample 41 of the whole, sample 31 of part 1, position 1, worker 0)"},
	} {
		var log journal
		l := newLoader(t, c.ds, nwt.WithWorkers(0), log.option(), nwt.WithErrorBudget(2))
		for _, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
		}
		var told []string
		for _, bad := range l.BadSamples() {
			told = append(told, bad.Error())
		}
		require.Contains(t, strings.Join(told, "\n"), c.want)
		_, err := nwt.LoadSample(t.Context(), c.ds, c.index)
		require.ErrorContains(t, err, c.want)
		if strings.Contains(c.want, "the whole") {
			require.Contains(t, log.String(), `origin="sample `)
		}
	}
}
