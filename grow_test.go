package nwt_test

import (
	"context"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

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

// numbersOfEpoch is the numbers of an epoch, as they come.
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
		l := newLoader(t, ds, opts...)
		for epoch, n := range []int{100, 153, 153, 47, 1000} {
			ds.n.Store(int64(n))
			fresh := newLoader(t, newGrowing(n), opts...)
			require.Equal(t, numbersOfEpoch(t, fresh, epoch), numbersOfEpoch(t, l, epoch))
			require.Equal(t, fresh.Len(), l.Len())
		}
	}
}

func TestTheLengthOfADatasetHoldsForARun(t *testing.T) {
	ds := newGrowing(20)
	l := newLoader(t, ds, nwt.WithBatchSize(10), nwt.WithShuffle(1))
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

func TestASamplerMayVisitWhatADatasetHasGained(t *testing.T) {
	ds := newGrowing(100)
	l := newLoader(t, ds)
	ds.n.Store(150)
	require.NoError(t, l.SetSampler(nwt.Shuffled(150, 1)))
	all := numbersOfEpoch(t, l, 0)
	slices.Sort(all)
	require.Len(t, slices.Compact(all), 150)
	ds.n.Store(200)
	require.Len(t, numbersOfEpoch(t, l, 1), 150, "a sampler of the program's keeps its length")
	require.ErrorContains(t, l.SetSampler(nwt.Sequential(201)), "visits index 200, but the dataset has only 200 samples")
	ds.n.Store(149)
	require.ErrorContains(t, refusal(t, l.Epoch(t.Context(), 2)), "Dataset.Len: Shuffled(150, seed 1): visits index 149, but the dataset has only 149 samples")
	ds.n.Store(150)
	require.Len(t, numbersOfEpoch(t, l, 2), 150)
}

func TestAStateIsCheckedAgainstTheLengthThatTheDatasetHasNow(t *testing.T) {
	ds := newGrowing(100)
	l := newLoader(t, ds, nwt.WithBatchSize(10))
	require.ErrorContains(t, refusal(t, l.Resume(t.Context(), nwt.State{Samples: 120})), "must be 0 … 100")
	ds.n.Store(150)
	rest := 0
	for b, err := range l.Resume(t.Context(), nwt.State{Samples: 120}) {
		require.NoError(t, err)
		rest += b.Len()
	}
	require.Equal(t, 30, rest)
	ds.n.Store(50)
	require.ErrorContains(t, refusal(t, l.Resume(t.Context(), nwt.State{Samples: 120})), "must be 0 … 50")
}

func TestALengthThatCanNotBeEndsTheEpochAlone(t *testing.T) {
	ds := newGrowing(100)
	l := newLoader(t, ds)
	for n, want := range map[int64]string{0: "Dataset.Len: 0: must be 1", -100: "Len panicked: the table is locked"} {
		ds.n.Store(n)
		require.ErrorContains(t, refusal(t, l.Epoch(t.Context(), 0)), want)
		require.ErrorContains(t, l.SetSampler(nwt.Sequential(1)), want)
		ds.n.Store(100)
		require.Len(t, numbersOfEpoch(t, l, 0), 100)
	}
	require.NoError(t, l.Close())
	require.ErrorIs(t, refusal(t, l.Epoch(t.Context(), 0)), nwt.ErrClosed)
}

func TestWhatIsMadeOfAGrowingDatasetGrowsIfItsSamplesKeepTheirPlaces(t *testing.T) {
	ds := newGrowing(10)
	for name, made := range map[string]nwt.Dataset{
		"Map":        nwt.Map(ds, ds.Fields(), func(_ context.Context, src, dst *nwt.Sample) error { copy(dst.Bytes(0), src.Bytes(0)); return nil }),
		"Map, batch": nwt.Map(batchwise{ds}, ds.Fields(), func(_ context.Context, src, dst *nwt.Sample) error { copy(dst.Bytes(0), src.Bytes(0)); return nil }),
		"Sized":      nwt.Sized(ds, func(int, []int) {}),
		"Cached":     nwt.Cached(ds, 1<<20),
		"Overwrites": nwt.Overwrites(ds),
	} {
		ds.n.Store(10)
		l := newLoader(t, made)
		require.Len(t, numbersOfEpoch(t, l, 0), 10, name)
		ds.n.Store(25)
		want := numbersOfEpoch(t, newLoader(t, ds), 0)
		require.Equal(t, want, numbersOfEpoch(t, l, 1), name)
		require.Equal(t, want, numbersOfEpoch(t, l, 1), name)
	}
	ds.n.Store(10)
	for name, made := range map[string]nwt.Dataset{"Concat": must(nwt.Concat(ds, ds)), "Zip": must(nwt.Zip(ds)), "Split": must(nwt.Split(ds, 1, 1))[0]} {
		n := made.Len()
		ds.n.Store(25)
		require.Len(t, numbersOfEpoch(t, newLoader(t, made), 0), n, name)
		ds.n.Store(10)
	}
}

func TestADatasetThatGrowsWhileItIsPrecomputedMakesAWholeFile(t *testing.T) {
	ds := growsWhenAsked{newGrowing(10), new(atomic.Int64)}
	p, err := nwt.Precompute(t.Context(), ds, filepath.Join(t.TempDir(), "file"), "1", silent)
	require.NoError(t, err)
	defer p.Close()
	loads := ds.loads.Load()
	require.Len(t, numbersOfEpoch(t, newLoader(t, p), 0), p.Len())
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
