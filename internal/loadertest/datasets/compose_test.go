package datasets_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/big"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/loadertest/kit"
	"github.com/nwt-go/nwt/internal/permute"
	"github.com/nwt-go/nwt/packing"
)

// epochOf returns the numbers of an epoch, in order.
func epochOf(t testing.TB, ds nwt.Dataset, epoch int, opts ...nwt.Option) (all []int64) {
	t.Helper()
	for b, err := range kit.NewLoader(t, ds, append(opts, nwt.WithBatchSize(3))...).Epoch(t.Context(), epoch) {
		require.NoError(t, err)
		all = append(all, nwt.Values[int64](b, 0)...)
	}
	return all
}

func TestConcatAllowsPartsWithoutSamples(t *testing.T) {
	ds, err := nwt.Concat(kit.Numbers(0, 0), kit.Numbers(0, 3), kit.Numbers(0, 0), kit.Numbers(0, 0), kit.Numbers(3, 2), kit.Numbers(0, 0))
	require.NoError(t, err)
	require.Equal(t, 5, ds.Len())
	got, err := kit.Values(t, kit.NewLoader(t, ds, nwt.WithWorkers(2), nwt.WithBatchSize(2)), 0)
	require.NoError(t, err)
	require.Equal(t, []int64{0, 1, 2, 3, 4}, got)
	_, err = nwt.Concat(kit.Numbers(0, 0), kit.Numbers(0, 0))
	require.EqualError(t, err, "nwt: Concat: none of the 2 datasets has a sample")
}

func TestASubsetIsTheSamplesAtItsIndices(t *testing.T) {
	indices := []int{9, 0, 4, 4, 7}
	ds, err := nwt.Subset(kit.Numbers(100, 10), indices)
	require.NoError(t, err)
	clear(indices)
	require.Equal(t, []int64{109, 100, 104, 104, 107}, epochOf(t, ds, 0))
}

// doubled is numbers mapped to twice themselves.
func doubled(ds nwt.Dataset) nwt.Dataset {
	return nwt.Map(ds, ds.Fields(), func(_ context.Context, src, dst *nwt.Sample) error {
		nwt.Values[int64](dst, 0)[0] = 2 * nwt.Values[int64](src, 0)[0]
		return nil
	})
}

// unchanged is samples mapped to themselves.
func unchanged(ds nwt.Dataset) nwt.Dataset {
	fields := ds.Fields()
	return nwt.Map(ds, fields, func(_ context.Context, src, dst *nwt.Sample) error {
		for f, field := range fields {
			if field.RaggedDims > 0 {
				dst.SetLen(f, src.Len(f, 0))
			}
			copy(dst.Bytes(f), src.Bytes(f))
		}
		return nil
	})
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
	l := kit.NewLoader(t, ds, nwt.WithWorkers(4), nwt.WithBatchSize(2))
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
		return nwt.NewDataset(n, kit.Scalar, func(_ context.Context, i int, _ *nwt.Sample) error {
			if i == bad {
				return kit.ErrBad
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
		"the source fails":           {nwt.Map(nwt.NewDataset(10, kit.Scalar, fail), kit.Scalar, func(context.Context, *nwt.Sample, *nwt.Sample) error { return nil }), "sample 4 of epoch 2 (position 4, worker 0): bad"},
		"the map fails":              {nwt.Map(kit.Numbers(0, 10), kit.Scalar, func(ctx context.Context, src, dst *nwt.Sample) error { return fail(ctx, 0, dst) }), "sample 4 of epoch 2 (position 4, worker 0): bad"},
		"the map panics": {nwt.Map(kit.Numbers(0, 10), kit.Scalar, func(ctx context.Context, src, dst *nwt.Sample) error {
			if dst.Index() == 4 {
				panic(bad)
			}
			return nil
		}), "sample 4 of epoch 2 (position 4, worker 0): panic: bad"},
		"the source forgets a length": {nwt.Map(forgetful, kit.Scalar, func(context.Context, *nwt.Sample, *nwt.Sample) error { return nil }), `did not call SetLen(0, n) for the ragged field "tokens"`},
	} {
		var err error
		for _, err = range kit.NewLoader(t, c.ds, nwt.WithWorkers(1)).Epoch(t.Context(), 2) {
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
	stream := nwt.Streamed(kit.NewShelves(3))
	base := nwt.Field{Name: "x", Type: nwt.Float32, Shape: []int{4}}
	for want, attempt := range map[string]func() error{
		"Subset: Dataset: is nil":                                                           failed(nwt.Subset(nil, []int{0})),
		"Subset: Dataset: is a stream, which has no sample by index":                        failed(nwt.Subset(stream, []int{0})),
		"Map: Dataset: is a stream, which has no sample by index":                           loader(nwt.Map(stream, kit.Scalar, f)),
		"Subset: needs at least one index":                                                  failed(nwt.Subset(kit.Numbers(0, 3), nil)),
		"Subset: indices[1] = 3: must be 0 … 2":                                             failed(nwt.Subset(kit.Numbers(0, 3), []int{0, 3})),
		"Subset: indices[0] = -1: must be 0 … 2":                                            failed(nwt.Subset(kit.Numbers(0, 3), []int{-1})),
		"Concat: needs at least one dataset":                                                failed(nwt.Concat()),
		"Concat: dataset 1: Dataset: is nil":                                                failed(nwt.Concat(kit.Numbers(0, 3), nil)),
		`dataset 1: differs from dataset 0: field 0 has the name "y", want "x"`:             failed(nwt.Concat(field(base), field(nwt.Field{Name: "y", Type: nwt.Float32, Shape: []int{4}}))),
		`dataset 1: differs from dataset 0: field 0 ("x") has the type Int32, want Float32`: failed(nwt.Concat(field(base), field(nwt.Field{Name: "x", Type: nwt.Int32, Shape: []int{4}}))),
		`dataset 2: differs from dataset 0: field 0 ("x") has the shape [2 2], want [4]`:    failed(nwt.Concat(field(base), field(base), field(nwt.Field{Name: "x", Type: nwt.Float32, Shape: []int{2, 2}}))),
		`dataset 1: differs from dataset 0: field 0 ("x") has 1 ragged dimensions, want 0`:  failed(nwt.Concat(field(base), field(nwt.Field{Name: "x", Type: nwt.Float32, Shape: []int{4}, RaggedDims: 1}))),
		`dataset 1: differs from dataset 0: field 1 ("noise") is unexpected`:                failed(nwt.Concat(numbersNamed("index"), kit.Augmented(1))),
		`dataset 1: differs from dataset 0: field 1 ("noise") is missing`:                   failed(nwt.Concat(kit.Augmented(1), numbersNamed("index"))),
		"Map: f is nil":                             loader(nwt.Map(kit.Numbers(0, 3), kit.Scalar, nil)),
		"Map: Dataset: is nil":                      loader(nwt.Map(nil, kit.Scalar, f)),
		"nwt: Map: Cached: NewDataset: load is nil": loader(nwt.Map(nwt.Cached(nwt.NewDataset(1, kit.Scalar, nil), 1), kit.Scalar, f)),
		"Dataset.Fields: there are none: a sample needs at least one field": loader(nwt.Map(kit.Numbers(0, 3), nil, f)),
		"Cached: 0: maxBytes must be at least 1":                            loader(nwt.Cached(kit.Numbers(0, 3), 0)),
		"Cached: Dataset: is nil":                                           loader(nwt.Cached(nil, 1)),
	} {
		err := attempt()
		require.ErrorContains(t, err, want)
		var oe *nwt.ArgumentError
		require.ErrorAs(t, err, &oe)
	}
}

func numbersNamed(name string) nwt.Dataset {
	return nwt.Map(kit.Numbers(0, 1), []nwt.Field{{Name: name, Type: nwt.Int64}}, func(context.Context, *nwt.Sample, *nwt.Sample) error { return nil })
}

func TestWhatLoadsBatchesDoesSoInACompositionToo(t *testing.T) {
	singly := func(context.Context, int, *nwt.Sample) error { return errors.New("one by one") }
	first, second := &kit.Together{Dataset: kit.Numbered(20, singly)}, &kit.Together{Dataset: kit.Numbered(20, singly)}
	between := kit.Numbered(3, func(context.Context, int, *nwt.Sample) error { return nil })
	ds, err := nwt.Concat(first, between, second)
	require.NoError(t, err)
	ds, err = nwt.Subset(doubled(ds), []int{0, 42, 21, 7, 23, 24})
	require.NoError(t, err)
	got, err := kit.Values(t, kit.NewLoader(t, ds, nwt.WithBatchSize(6), nwt.WithWorkers(0)), 0)
	require.NoError(t, err)
	require.Equal(t, []int64{0, 38, 2, 14, 0, 2}, got)
	require.EqualValues(t, 1, first.Calls.Load())
	require.EqualValues(t, 1, second.Calls.Load())

	_, batches := doubled(between).(nwt.BatchDataset)
	require.False(t, batches, "what loads one by one is shared among the workers one by one")
}

// columns is counted's samples, loaded a whole column at a time. It can't load
// them one by one.
type columns struct{ nwt.Dataset }

func (d columns) Load(context.Context, int, *nwt.Sample) error { return errors.New("one by one") }

func (d columns) LoadMany(_ context.Context, indices []int, dst []*nwt.Sample) error {
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
				want := kit.Collect(t, kit.NewLoader(t, single, nwt.WithBatchSize(8), order), 1)
				for _, workers := range []int{0, 1, 3} {
					require.Equal(t, want, kit.Collect(t, kit.NewLoader(t, many, nwt.WithBatchSize(8), nwt.WithWorkers(workers), order), 1))
				}
			}
		})
	}
}

func TestSamplesThatDoNotAdjoinAreNoColumn(t *testing.T) {
	var seen any
	ds := &kit.Together{Dataset: kit.Numbered(8, func(context.Context, int, *nwt.Sample) error { return nil })}
	ds.Look = func(dst []*nwt.Sample) {
		require.Len(t, nwt.ValuesOf[int64](dst[2:5], 0), 3)
		require.Empty(t, nwt.ValuesOf[int64](dst[:0], 0))
		require.Panics(t, func() { nwt.ValuesOf[int64]([]*nwt.Sample{dst[0], dst[2], dst[1], dst[3]}, 0) })
		defer func() { seen = recover() }()
		nwt.ValuesOf[int64]([]*nwt.Sample{dst[0], dst[2]}, 0)
	}
	_, err := kit.Values(t, kit.NewLoader(t, ds, nwt.WithWorkers(0), nwt.WithBatchSize(8)), 0)
	require.NoError(t, err)
	require.Equal(t, "nwt: ValuesOf of 2 samples that don't lie one after the other: want those that LoadMany was given, or a run of them", seen)
}

// abreast loads the samples of a batch side by side.
type abreast struct{ nwt.Dataset }

func (d abreast) LoadMany(ctx context.Context, indices []int, dst []*nwt.Sample) error {
	var wg sync.WaitGroup
	errs := make([]error, len(dst))
	for k, i := range indices {
		wg.Go(func() { errs[k] = d.Load(ctx, i, dst[k]) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// sorting is a BatchDataset whose samples hold their index. It sorts what
// LoadMany was given, in place.
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

func (d sorting) LoadMany(ctx context.Context, indices []int, dst []*nwt.Sample) error {
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

// What is decoded by Index, as an objects.Decode may do it, must be right in a Split too.
func TestASampleTellsItsIndexInTheDatasetThatLoadsIt(t *testing.T) {
	document := nwt.Sized(nwt.NewDataset(20, []nwt.Field{{Name: "i", Type: nwt.Int64, Shape: []int{1}, RaggedDims: 1}}, func(ctx context.Context, i int, dst *nwt.Sample) error {
		dst.SetLen(0, 1)
		return sorting(20).Load(ctx, i, dst)
	}), func(_ int, sizes []int) { sizes[0] = 1 })
	packed, err := packing.New(document, 3, 0)
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
		for _, err := range kit.NewLoader(t, after, nwt.WithBatchSize(3), nwt.WithShuffle(1)).Epoch(t.Context(), 0) {
			require.NoError(t, err, name)
		}
	}
}

// inAscendingOrder asks a BatchDataset for samples in the order of their indices.
type inAscendingOrder struct{ nwt.BatchDataset }

func (d inAscendingOrder) LoadMany(ctx context.Context, indices []int, dst []*nwt.Sample) error {
	places := make([]int, len(indices))
	for i := range places {
		places[i] = i
	}
	slices.SortFunc(places, func(a, b int) int { return indices[a] - indices[b] })
	there, samples := make([]int, len(indices)), make([]*nwt.Sample, len(indices))
	for k, place := range places {
		there[k], samples[k] = indices[place], dst[place]
	}
	return d.BatchDataset.LoadMany(ctx, there, samples)
}

func TestABadSampleOfAPartIsNamedAsInTheWhole(t *testing.T) {
	whole := func(n int) nwt.Dataset {
		return kit.Loads(n, func(_ context.Context, i int, _ *nwt.Sample) error {
			switch i {
			case 30:
				return kit.ErrBad
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
	parts, err := nwt.Split(nwt.Map(whole(100), kit.Scalar, identity), 3, 0.5, 0.5)
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
		var log kit.Journal
		l := kit.NewLoader(t, c.ds, nwt.WithWorkers(0), log.Option(), nwt.WithErrorBudget(2))
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

// worded is n samples with a ragged field, a random number and an index, named by
// what.
func worded(n int, what string) nwt.Dataset {
	fields := []nwt.Field{
		{Name: what + " index", Type: nwt.Int64},
		{Name: what + " words", Type: nwt.Uint16, Shape: []int{9}, RaggedDims: 1},
		{Name: what + " random", Type: nwt.Uint32},
	}
	return nwt.NewDataset(n, fields, func(_ context.Context, i int, dst *nwt.Sample) error {
		nwt.Values[int64](dst, 0)[0] = int64(i)
		dst.SetLen(1, i%10)
		for k := range i % 10 {
			nwt.Values[uint16](dst, 1)[k] = uint16(i)
		}
		nwt.Values[uint32](dst, 2)[0] = dst.Rand().Uint32()
		return nil
	})
}

func TestAFaultInAZipNamesTheSample(t *testing.T) {
	bad := nwt.NewDataset(10, kit.Scalar, func(_ context.Context, i int, _ *nwt.Sample) error {
		if i == 4 {
			return kit.ErrBad
		}
		return nil
	})
	zip, err := nwt.Zip(worded(10, "left"), bad)
	require.NoError(t, err)
	_, err = kit.Epoch(t.Context(), kit.NewLoader(t, zip), 0)
	var le *nwt.LoadError
	require.ErrorAs(t, err, &le)
	require.Equal(t, 4, le.Index)
	require.ErrorIs(t, err, kit.ErrBad)
}

func TestWhatCanNotBeZippedIsNamed(t *testing.T) {
	for _, c := range []struct {
		ds   []nwt.Dataset
		says []string
	}{
		{nil, []string{"needs at least one dataset"}},
		{[]nwt.Dataset{worded(5, "a"), worded(4, "b")}, []string{"Zip: dataset 1: has 4 samples, but dataset 0 has 5"}},
		{[]nwt.Dataset{worded(5, "a"), worded(5, "a")}, []string{`Zip: datasets 0 and 1 both have a field "a words": names must differ`}},
		{[]nwt.Dataset{nil, worded(5, "a"), nwt.Streamed(&kit.Shelves{Lengths: []int{1}})}, []string{"Zip: dataset 0: Dataset: is nil", "Zip: dataset 2: "}},
	} {
		_, err := nwt.Zip(c.ds...)
		var oe *nwt.ArgumentError
		require.ErrorAs(t, err, &oe)
		for _, s := range c.says {
			require.ErrorContains(t, err, s)
		}
	}
}

// sentences returns a dataset of one ragged field: sample i is i%7+1 long. It is a BatchDataset if
// batches is set, a SizedDataset if sized is.
func sentences(n int, batches, sized bool) nwt.Dataset {
	ds := nwt.NewDataset(n, []nwt.Field{{Name: "text", Type: nwt.Uint8, Shape: []int{7}, RaggedDims: 1}}, func(_ context.Context, i int, dst *nwt.Sample) error {
		dst.SetLen(0, i%7+1)
		dst.Bytes(0)[i%7] = uint8(i)
		return nil
	})
	if batches {
		ds = kit.Batchwise{Dataset: ds}
	}
	if sized {
		ds = nwt.Sized(ds, func(i int, sizes []int) { sizes[0] = i%7 + 1 })
	}
	return ds
}

func TestWhatIsMadeOfADatasetHasItsOptionalMethods(t *testing.T) {
	for _, batches := range []bool{false, true} {
		for _, sized := range []bool{false, true} {
			for name, ds := range made(t, sentences(20, batches, sized)) {
				t.Run(fmt.Sprintf("%s/batches=%t/sized=%t", name, batches, sized), func(t *testing.T) {
					if cache, ok := ds.(*nwt.Cache); ok { // whose sizes the loader knows
						ds = kit.Must(nwt.Subset(ds, []int{0, 1, 2, 3, 4}))(t)
						defer func() { require.NoError(t, cache.Close()) }()
					}
					tell, is := ds.(nwt.SizedDataset)
					require.Equal(t, sized, is)
					if _, is := ds.(nwt.BatchDataset); name == "Cached" {
						require.False(t, is)
					} else {
						require.Equal(t, batches, is)
					}
					if !sized {
						return
					}
					for i := range ds.Len() {
						s, err := nwt.LoadSample(t.Context(), ds, i)
						require.NoError(t, err)
						var sizes [1]int
						tell.Sizes(i, sizes[:])
						require.Equal(t, s.Len(0, 0), sizes[0])
					}
				})
			}
		}
	}
}

func TestSubsetAndSplitTellWhichSamplesTheyHold(t *testing.T) {
	for _, batches := range []bool{false, true} {
		for _, sized := range []bool{false, true} {
			whole := sentences(20, batches, sized)
			all := made(t, whole)
			all["Sized of Subset"] = nwt.Sized(all["Subset"], func(_ int, sizes []int) { sizes[0] = 7 })
			for name, ds := range all {
				if name != "Subset" && name != "Split" && name != "WritesAll of Subset" && name != "Sized of Subset" {
					_, is := ds.(nwt.SubsetDataset)
					require.Equal(t, name == "Subset of Concat", is, name)
					continue
				}
				sub := ds.(nwt.SubsetDataset)
				for i := range ds.Len() {
					s, err := nwt.LoadSample(t.Context(), ds, i)
					require.NoError(t, err)
					want, err := nwt.LoadSample(t.Context(), whole, sub.Index(i))
					require.NoError(t, err)
					require.Equal(t, want.Bytes(0), s.Bytes(0))
				}
				require.Panics(t, func() { sub.Index(-1) })
				require.PanicsWithValue(t, fmt.Sprintf("nwt: Index(%d) is out of range: the dataset has %d samples", ds.Len(), ds.Len()), func() { sub.Index(ds.Len()) })
			}
		}
	}
}

// sliced returns a dataset of the numbers 0 … n−1, made of a slice.
func sliced(t *testing.T, n int) nwt.Dataset {
	t.Helper()
	numbers := make([]int64, n)
	for i := range numbers {
		numbers[i] = int64(i)
	}
	ds, err := nwt.FromSlices(nwt.SliceOf("number", numbers))
	require.NoError(t, err)
	return ds
}

// contents returns the number that each sample of a dataset of numbers holds.
func contents(t *testing.T, ds nwt.Dataset) (all []int64) {
	t.Helper()
	for _, batch := range kit.BatchesOf[int64](t, kit.NewLoader(t, ds)) {
		all = append(all, batch...)
	}
	return all
}

func TestThePartsOfASplitAreDisjointAndComplete(t *testing.T) {
	for _, n := range []int{4, 10, 1000, 1001} {
		ds := sliced(t, n)
		parts, err := nwt.Split(ds, 7, 0.5, 0.3, 0.2)
		require.NoError(t, err)
		require.Len(t, parts, 3)
		seen := make([]bool, n)
		for i, part := range parts {
			require.Equal(t, ds.Fields(), part.Fields())
			require.InDelta(t, []float64{0.5, 0.3, 0.2}[i]*float64(n), part.Len(), 1)
			for _, number := range contents(t, part) {
				require.False(t, seen[number])
				seen[number] = true
			}
		}
		require.NotContains(t, seen, false)
	}
}

func TestASplitIsItsSeedsAndShuffled(t *testing.T) {
	ds := sliced(t, 1000)
	split := func(seed uint64) []int64 {
		parts, err := nwt.Split(ds, seed, 0.9, 0.1)
		require.NoError(t, err)
		require.Implements(t, (*nwt.BatchDataset)(nil), parts[1])
		return contents(t, parts[1])
	}
	require.Equal(t, split(1), split(1))
	require.NotEqual(t, split(1), split(2))
	part := split(1)
	require.False(t, slices.IsSorted(part))
	slices.Sort(part)
	require.Less(t, part[0], int64(200))
	require.Greater(t, part[99], int64(800))
}

func TestAPartIsWholeWhereThereIsOneShare(t *testing.T) {
	parts, err := nwt.Split(sliced(t, 5), 1, 1)
	require.NoError(t, err)
	require.ElementsMatch(t, []int64{0, 1, 2, 3, 4}, contents(t, parts[0]))
}

func TestASampleThatIsBadIsBadInItsPartToo(t *testing.T) {
	bad := kit.Numbered(10, func(_ context.Context, i int, _ *nwt.Sample) error {
		if i == 7 {
			return kit.ErrBad
		}
		return nil
	})
	for _, ds := range []nwt.Dataset{bad, batched{bad}} {
		parts, err := nwt.Split(ds, 1, 0.5, 0.5)
		require.NoError(t, err)
		failed := 0
		for _, part := range parts {
			if _, err := kit.Epoch(t.Context(), kit.NewLoader(t, part, nwt.WithBatchSize(1)), 0); err != nil {
				require.ErrorIs(t, err, kit.ErrBad)
				failed++
			}
		}
		require.Equal(t, 1, failed)
	}
}

func TestSharesThatCanNotBeUsedAreNamed(t *testing.T) {
	ds := sliced(t, 10)
	for _, c := range []struct {
		shares []float64
		says   []string
	}{
		{nil, []string{"add up to 1, not 0"}},
		{[]float64{0.5, 0.4}, []string{"[0.5 0.4]: shares are fractions that add up to 1, not 0.9"}},
		{[]float64{8, 2}, []string{"shares[0] = 8: shares are fractions", "shares[1] = 2: shares"}},
		{[]float64{1, 0}, []string{"shares[1] = 0: shares are fractions that add up to 1"}},
		{[]float64{math.NaN()}, []string{"shares[0] = NaN"}},
		{[]float64{0.99, 0.01}, []string{"shares[1] = 0.01: less than 1 of 10 samples"}},
	} {
		_, err := nwt.Split(ds, 1, c.shares...)
		var oe *nwt.ArgumentError
		require.ErrorAs(t, err, &oe)
		for _, s := range c.says {
			require.ErrorContains(t, err, s)
		}
	}
	_, err := nwt.Split(nil, 1, 1)
	require.ErrorContains(t, err, "Split: Dataset: is nil")
}

func TestAShareThatIsAWholeNumberOfSamplesIsExact(t *testing.T) {
	for _, c := range []struct {
		n      int
		shares []float64
		part   int
		want   int
	}{
		{250, []float64{0.35, 0.58, 0.01, 0.06}, 1, 145},
		{375, []float64{0.22, 0.12, 0.66}, 1, 45},
		{150, []float64{0.57, 0.38, 0.03, 0.02}, 1, 57},
		{250, []float64{0.59, 0.34, 0.03, 0.02, 0.02}, 1, 85},
	} {
		parts, err := nwt.Split(kit.Augmented(c.n), 1, c.shares...)
		require.NoError(t, err)
		require.Equal(t, c.want, parts[c.part].Len(), c)
	}
}

// However many samples there are: no sum of shares is a little off.
func TestAPartsSizeIsItsShareRoundedUpOrDown(t *testing.T) {
	none := func(context.Context, int, *nwt.Sample) error { return nil }
	for _, samples := range []int64{1000, 12_345_678, 20_000_000_000_001, 1<<62 - 1} {
		if samples > int64(permute.MaxLen) {
			continue
		}
		n := int(samples)
		ds := nwt.NewDataset(n, []nwt.Field{{Name: "x", Type: nwt.Uint8}}, none)
		for _, thousandths := range [][]int64{{1000}, {900, 100}, {333, 333, 334}, {100, 200, 300, 400}, {1, 999}, {499, 1, 499, 1}, {7, 11, 13, 17, 952}} {
			var shares []float64
			for _, s := range thousandths {
				shares = append(shares, float64(s)/1000)
			}
			parts, err := nwt.Split(ds, 1, shares...)
			require.NoError(t, err)
			all := 0
			for k, part := range parts {
				share := big.NewRat(thousandths[k], 1000)
				off := new(big.Rat).SetInt64(int64(part.Len()))
				off.Sub(off, share.Mul(share, new(big.Rat).SetInt64(int64(n))))
				require.Negative(t, off.Abs(off).Cmp(big.NewRat(1, 1)), "%d of %d: share %d has %d", k, n, thousandths[k], part.Len())
				all += part.Len()
			}
			require.Equal(t, n, all)
		}
		for thirds := range 3 { // as a program computes them, or as a person rounds them
			share := []float64{1.0 / 3, 0.3333333, 0.33333334}[thirds]
			parts, err := nwt.Split(ds, 1, share, share, share)
			require.NoError(t, err)
			for _, part := range parts {
				require.InDelta(t, 0, float64(part.Len()-n/3), 1)
			}
		}
	}
}

// halves mixes each sample of ds with a random one of others, as mixup does.
func halves(ds, others nwt.Dataset) nwt.Dataset {
	return nwt.Map(ds, []nwt.Field{{Name: "pair", Type: nwt.Float64, Shape: []int{3}}}, func(ctx context.Context, src, dst *nwt.Sample) error {
		drawn := dst.Rand().IntN(others.Len())
		part, err := nwt.LoadPart(ctx, others, drawn, dst)
		if err != nil {
			return err
		}
		if part.Index() != drawn || part.Position() != dst.Position() || part.Epoch() != dst.Epoch() || part.Worker() != dst.Worker() {
			return errors.New("the part is another sample's")
		}
		copy(nwt.Values[float64](dst, 0), []float64{nwt.Values[float64](src, 0)[0], nwt.Values[float64](part, 0)[0], float64(drawn)})
		return nil
	})
}

// tenfold is a dataset of n samples 10·i + first. A worker's Scratch says whose it is. It writes nothing where
// i is 0.
func tenfold(n, first int) nwt.Dataset {
	return nwt.NewDataset(n, []nwt.Field{{Name: "x", Type: nwt.Float64}}, func(_ context.Context, i int, dst *nwt.Sample) error {
		own, err := nwt.Scratch(dst, func() (int, error) { return first, nil })
		if own != first {
			err = fmt.Errorf("the scratch value of %d, not %d", own, first)
		}
		if i > 0 {
			nwt.Values[float64](dst, 0)[0] = float64(10*i + first)
		}
		return err
	})
}

func TestASampleIsPutTogetherFromPartsOfOtherDatasets(t *testing.T) {
	for name, ds := range map[string]nwt.Dataset{
		"plain": tenfold(40, 1), "batched": sortingFloats(40), "cached": nwt.Cached(tenfold(40, 1), 1<<20),
	} {
		both := halves(halves(ds, tenfold(7, 2)), tenfold(9, 3)) // parts within parts' datasets
		want := map[int][]float64{}
		for _, workers := range []int{0, 1, 4} {
			l := kit.NewLoader(t, both, nwt.WithBatchSize(5), nwt.WithWorkers(workers), nwt.WithShuffle(1))
			for b, err := range l.Epoch(t.Context(), 2) {
				require.NoError(t, err)
				for place, i := range b.Indices() {
					row := nwt.Values[float64](b, 0)[3*place : 3*place+3]
					if drawn := row[2]; drawn == 0 {
						require.Zero(t, row[1], "%s: what Load doesn't write is 0", name)
					} else {
						require.Equal(t, 10*drawn+3, row[1], name)
					}
					if workers == 0 {
						want[i] = slices.Clone(row)
					}
					require.Equal(t, want[i], row, "%s: sample %d with %d workers", name, i, workers)
				}
			}
		}
		require.Len(t, want, 40)
	}
}

// sortingFloats loads many samples per call.
func sortingFloats(n int) nwt.Dataset {
	return nwt.Map(sorting(n), []nwt.Field{{Name: "x", Type: nwt.Float64}}, func(_ context.Context, src, dst *nwt.Sample) error {
		nwt.Values[float64](dst, 0)[0] = float64(nwt.Values[int64](src, 0)[0])
		return nil
	})
}

func TestAPartThatCannotBeLoadedIsToldByItsSample(t *testing.T) {
	bad := nwt.NewDataset(4, []nwt.Field{{Name: "x", Type: nwt.Float64}}, func(_ context.Context, i int, _ *nwt.Sample) error {
		return fmt.Errorf("no file %d", i)
	})
	ragged := nwt.NewDataset(4, []nwt.Field{{Name: "x", Type: nwt.Float64, Shape: []int{3}, RaggedDims: 1}}, func(context.Context, int, *nwt.Sample) error { return nil })
	type uncomparable struct {
		nwt.Dataset
		_ []int
	}
	load := func(of func() nwt.Dataset, index int) error {
		ds := nwt.Map(tenfold(100, 0), tenfold(1, 0).Fields(), func(ctx context.Context, _, dst *nwt.Sample) error {
			_, err := nwt.LoadPart(ctx, of(), index, dst)
			return err
		})
		for _, err := range kit.NewLoader(t, ds, nwt.WithBatchSize(100), nwt.WithWorkers(1)).Epoch(t.Context(), 0) {
			return err
		}
		return nil
	}
	always := func(ds nwt.Dataset) func() nwt.Dataset { return func() nwt.Dataset { return ds } }
	for want, err := range map[string]error{
		"no file 2":                          load(always(bad), 2),
		"LoadPart: index: 4: must be 0 … 3":  load(always(bad), 4),
		"LoadPart: index: -1: must be 0 … 3": load(always(bad), -1),
		"did not call SetLen":                load(always(ragged), 0),
		"LoadPart: Dataset: ":                load(always(nil), 0),
		"the stream is nil":                  load(always(nwt.Streamed(nil)), 0),
		"the dataset must be comparable":     load(always(uncomparable{Dataset: tenfold(9, 1)}), 0),
		"make datasets before Load, not ":    load(func() nwt.Dataset { return tenfold(9, 1) }, 0),
	} {
		require.ErrorContains(t, err, want)
		require.ErrorAs(t, err, new(*nwt.LoadError))
	}
}

// made returns what datasets of this package make of one, by name.
func made(t *testing.T, ds nwt.Dataset) map[string]nwt.Dataset {
	t.Helper()
	subset, err := nwt.Subset(ds, []int{12, 3, 5})
	require.NoError(t, err)
	parts, err := nwt.Split(ds, 1, 0.5, 0.5)
	require.NoError(t, err)
	concat, err := nwt.Concat(ds, ds)
	require.NoError(t, err)
	zip, err := nwt.Zip(ds)
	require.NoError(t, err)
	return map[string]nwt.Dataset{
		"Subset": subset, "Split": parts[1], "Concat": concat, "Zip": zip, "Cached": nwt.Cached(ds, 1<<20),
		"Subset of Concat": kit.Must(nwt.Subset(concat, []int{1, 2}))(t), "WritesAll": nwt.WritesAll(ds), "WritesAll of Subset": nwt.WritesAll(subset),
	}
}

// batched loads together what the other loads one by one.
type batched struct{ nwt.Dataset }

func (b batched) LoadMany(ctx context.Context, indices []int, dst []*nwt.Sample) error {
	return b.Load(ctx, indices[0], dst[0])
}
