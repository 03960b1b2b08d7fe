package nwt_test

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/sampler"
)

// tokensOf is the length of a sample: some long ones, many short ones, some empty.
func tokensOf(i int) int {
	if i%97 == 0 {
		return 0
	}
	return 1 + int(uint64(i)*2654435761%1000)*int(uint64(i)*40503%1000)/5000
}

func tokenBatches(t *testing.T, n int, tokens sampler.Tokens) nwt.BatchSampler {
	t.Helper()
	s, err := sampler.TokenBatches(n, tokensOf, tokens, 7)
	require.NoError(t, err)
	return s
}

// batchOf is the indices of a batch of an epoch.
func batchOf(s nwt.BatchSampler, epoch, batch int) (indices []int) {
	from, to := 0, s.Len()
	if batch > 0 {
		from = s.Start(epoch, batch)
	}
	if batch+1 < s.Batches() {
		to = s.Start(epoch, batch+1)
	}
	for i := from; i < to; i++ {
		indices = append(indices, s.At(epoch, i))
	}
	return indices
}

// The loader's batches are the sampler's, at any worker count.
func TestALoaderDeliversTheBatchesOfABatchSampler(t *testing.T) {
	s := tokenBatches(t, 500, sampler.Tokens{Max: 1000})
	for _, workers := range []int{0, 1, 4} {
		l, err := nwt.NewLoader(numbers(0, 500), nwt.WithSampler(s), nwt.WithBatchSize(1000), nwt.WithWorkers(workers))
		require.NoError(t, err)
		require.Equal(t, s.Batches(), l.Len())
		k := 0
		for b, err := range l.Epochs(t.Context(), 1, 3) {
			require.NoError(t, err)
			require.Equal(t, k%s.Batches(), b.Index())
			require.Equal(t, batchOf(s, b.Epoch(), b.Index()), b.Indices())
			k++
		}
		require.Equal(t, 2*s.Batches(), k)
		require.NoError(t, l.Close())
	}
}

// Resumed after any batch with any number of ranks, exactly the rest is delivered, and
// every rank has as many batches as the others.
func TestBatchesOfDifferentSizesResumeOnOtherRanks(t *testing.T) {
	const n = 200
	s := tokenBatches(t, n, sampler.Tokens{Max: 1500, MaxSamples: 10})
	deliver := func(world int, from nwt.State, most int) (got []int, state nwt.State) {
		batches := -1
		for rank := range world {
			l, err := nwt.NewLoader(numbers(0, n), nwt.WithSampler(s), nwt.WithBatchSize(40), nwt.WithRank(rank, world))
			require.NoError(t, err)
			k := 0
			for b, err := range l.Resume(t.Context(), from) {
				require.NoError(t, err)
				got = append(got, b.Indices()...)
				state = b.State()
				if k++; k == most {
					break
				}
			}
			require.NoError(t, l.Close())
			require.True(t, batches < 0 || batches == k)
			batches = k
		}
		return got, state
	}
	for world := 1; world <= 3; world++ {
		for _, most := range []int{1, 3} {
			before, state := deliver(world, nwt.State{Epoch: 4}, most)
			require.Equal(t, len(before), state.Samples)
			for other := 1; other <= 4; other++ {
				rest, end := deliver(other, state, -1)
				require.Equal(t, nwt.State{Epoch: 4, Samples: n}, progress(end))
				require.Equal(t, indicesUpTo(n), slices.Sorted(slices.Values(append(slices.Clone(before), rest...))), "%d ranks, then %d", world, other)
			}
		}
	}
}

func TestAStateInsideABatchIsAnError(t *testing.T) {
	l, err := nwt.NewLoader(numbers(0, 6), nwt.WithSampler(sizes{2, 3, 1}))
	require.NoError(t, err)
	defer l.Close()
	err = refusal(t, l.Resume(t.Context(), nwt.State{Epoch: 1, Samples: 3}))
	require.EqualError(t, err, "nwt: State.Samples: 3: no batch of epoch 1 begins there: the next after it, batch 2, begins at 5")
	for range l.Resume(t.Context(), nwt.State{Epoch: 1, Samples: 6}) {
		t.Fatal("nothing is left")
	}
	l, err = nwt.NewLoader(numbers(0, 6), nwt.WithSampler(sizes{2, 3, 1}), nwt.WithUnordered())
	require.NoError(t, err)
	require.NoError(t, l.Close())
}

// sizes is batches of these sizes. A negative size panics.
type sizes []int

func (s sizes) Len() int        { return s.Start(0, len(s)) }
func (s sizes) At(_, i int) int { return i }
func (s sizes) Batches() int    { return len(s) }
func (s sizes) Largest() int    { return 1 } // it doesn't tell
func (s sizes) Start(_, batch int) (n int) {
	for _, size := range s[:batch] {
		n += max(size, -size)
	}
	if batch < len(s) && s[batch] < 0 {
		panic("no start")
	}
	return n
}

// A batch that is too large, empty, or whose Start panics ends the epoch with an error
// that names it, after the batches before it.
func TestABatchThatCantBeComesAfterThoseBeforeIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // copies are late on a busy machine
		for _, c := range []struct {
			sizes sizes
			want  string
		}{
			{sizes{2, 3, 2, 7, 1}, "batch 3 of epoch 0 has 7 samples, positions 7 to before 14: WithBatchSize allows 4"},
			{sizes{2, 3, 2, 0, 1}, "batch 3 of epoch 0 is positions 7 to before 7 of 8: must have at least one, after those of the batch before"},
			{sizes{2, 3, 2, 1, -3}, "BatchSampler.Start of batch 4: panic: no start"},
		} {
			for _, workers := range []int{0, 3} {
				for _, device := range []nwt.Device{nwt.Host(), &fakeDevice{took: 1}} {
					l, err := nwt.NewLoader(numbers(0, c.sizes.Len()), nwt.WithSampler(c.sizes), nwt.WithBatchSize(4), nwt.WithWorkers(workers), nwt.WithPrefetch(9), nwt.WithDevice(device))
					require.NoError(t, err)
					var got []int
					for b, e := range l.Epoch(t.Context(), 0) {
						if err = e; e == nil {
							got = append(got, b.Len())
						}
					}
					require.ErrorContains(t, err, c.want)
					require.Equal(t, []int{2, 3, 2}, got)
					require.NoError(t, l.Close())
				}
			}
		}
	})
}

func TestABatchSamplerThatCantBeUsedIsRefused(t *testing.T) {
	_, err := nwt.NewLoader(numbers(0, 500), nwt.WithSampler(tokenBatches(t, 500, sampler.Tokens{Max: 1000})))
	require.ErrorContains(t, err, "WithBatchSize: 32: must be at least")
	half, err := sampler.Select(tokenBatches(t, 50, sampler.Tokens{Max: 1000}), indicesUpTo(50))
	require.NoError(t, err)
	_, err = nwt.NewLoader(numbers(0, 500), nwt.WithSampler(half), nwt.WithBatchSize(1))
	require.ErrorContains(t, err, "WithBatchSize: 1: must be at least")
	_, err = nwt.NewLoader(numbers(0, 5), nwt.WithSampler(sizes{2, 3}), nwt.WithRank(0, 3), nwt.WithDropLast())
	require.ErrorContains(t, err, "leaves no batch for each of 3 ranks: an epoch has 2 batches")
	_, err = nwt.NewLoader(numbers(0, 5), nwt.WithSampler(sizes{5}), nwt.WithRank(0, 2), nwt.WithDropLast())
	require.ErrorContains(t, err, "leaves no batch for each of 2 ranks: an epoch has 1 batches")
	_, err = nwt.NewLoader(numbers(0, 5), nwt.WithBatchSize(3), nwt.WithRank(0, 2), nwt.WithDropLast())
	require.ErrorContains(t, err, "leaves no batch of 3 samples for each of 2 ranks: an epoch has 5")
	l, err := nwt.NewLoader(numbers(0, 9))
	require.NoError(t, err)
	defer l.Close()
	for _, n := range []int{0, 6} {
		require.ErrorContains(t, l.SetSampler(so{sizes{2, 3}, func() int { return n }}), fmt.Sprintf("SetSampler: %d: an epoch of 5 samples must have 1 … 5 batches", n))
	}
	require.ErrorContains(t, l.SetSampler(so{sizes{2, 3}, func() int { panic("no batches") }}), "nwt_test.so: Batches panicked: no batches")
	require.ErrorContains(t, l.SetSampler(untold{nwt.Sequential(5)}), "nwt_test.untold: has Start, but isn't a BatchSampler: Batches or Largest is missing")
	for _, all := range []sizes{{5}, {1, 1, 1, 1, 1}} {
		require.NoError(t, l.SetSampler(all))
		require.Equal(t, len(all), l.Len())
	}
	require.NoError(t, l.SetSampler(sizes{2, 3}))
	require.Equal(t, 2, l.Len())
	require.NoError(t, l.SetSampler(nwt.Sequential(9)))
	require.Equal(t, 1, l.Len())
}

func TestALoaderOfDifferentBatchesTakesAnyOtherOrder(t *testing.T) {
	l := newLoader(t, numbers(0, 9), nwt.WithSampler(sizes{1, 4, 2, 1}), nwt.WithBatchSize(4), nwt.WithWorkers(1))
	lens := func() (all []int) {
		for b, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
			all = append(all, b.Len())
		}
		return all
	}
	require.Equal(t, []int{1, 4, 2, 1}, lens())
	require.NoError(t, l.SetSampler(nwt.Sequential(9)))
	require.Equal(t, []int{4, 4, 1}, lens())
}

// so is batches that are counted in another way.
type so struct {
	sizes
	batches func() int
}

func (s so) Batches() int { return s.batches() }

// untold has batches, but doesn't tell the largest.
type untold struct{ nwt.Sampler }

func (untold) Batches() int           { return 1 }
func (untold) Start(_, batch int) int { return 0 }

func TestWithBatchSizeMustHoldTheLargestBatch(t *testing.T) {
	for _, tokens := range []sampler.Tokens{{Max: 1000}, {Max: 1000, MaxSamples: 7}, {Max: 100_000}} {
		s, largest := tokenBatches(t, 300, tokens), 0
		for b := range s.Batches() {
			largest = max(largest, len(batchOf(s, 0, b)))
		}
		_, err := nwt.NewLoader(numbers(0, 300), nwt.WithSampler(s), nwt.WithBatchSize(largest))
		require.NoError(t, err)
		_, err = nwt.NewLoader(numbers(0, 300), nwt.WithSampler(s), nwt.WithBatchSize(largest-1))
		require.ErrorContains(t, err, fmt.Sprintf("WithBatchSize: %d: must be at least %d, the samples of the largest batch of TokenBatches(", largest-1, largest))
	}
}

// starts is batches that begin at these positions of 8, which a mistake has put out of
// order. The position −9 panics.
type starts []int

func (s starts) Len() int        { return 8 }
func (s starts) At(_, i int) int { return i }
func (s starts) Batches() int    { return len(s) }
func (s starts) Largest() int    { return 1 }
func (s starts) Start(_, batch int) int {
	if s[batch] == -9 {
		panic("no start")
	}
	return s[batch]
}

// Whichever of its positions is wrong, a rank says so, before it loads anything there.
func TestBatchesOutOfOrderAreAnErrorOnEveryRankThatMeetsThem(t *testing.T) {
	for _, c := range []struct {
		starts      starts
		rank, world int
		batches     int // before the error
		want        string
	}{
		{starts{0, 2, 5, 4, 7}, 0, 1, 2, "batch 2 of epoch 0 is positions 5 to before 4 of 8: must have at least one, after those of the batch before"},
		{starts{0, 2, 4, 20}, 0, 1, 2, "batch 2 of epoch 0 is positions 4 to before 20 of 8"},
		{starts{0, -1, 1, 4}, 1, 2, 0, "batch 1 of epoch 0 is positions -1 to before 1 of 8"},
		{starts{0, 4, 3, 6}, 0, 2, 0, "batch 0 of epoch 0 is positions 0 to before 4 of 8"},
		{starts{0, 4, 20, 6}, 0, 2, 0, "batch 0 of epoch 0 is positions 0 to before 4 of 8"},
		{starts{0, -9, 3, 6}, 0, 2, 0, "BatchSampler.Start of batch 1: panic: no start"},
		{starts{0, -9, 3, 6}, 1, 2, 0, "BatchSampler.Start of batch 1: panic: no start"},
		{starts{0, 2, -9, 6}, 0, 2, 0, "BatchSampler.Start of batch 2: panic: no start"},
		{starts{0, 1, 2, -9, 4, 5}, 1, 3, 0, "BatchSampler.Start of batch 3: panic: no start"},
	} {
		l := newLoader(t, numbers(0, 8), nwt.WithSampler(c.starts), nwt.WithRank(c.rank, c.world))
		n := 0
		for _, err := range l.Epoch(t.Context(), 0) {
			if n++; n > c.batches {
				require.ErrorContains(t, err, c.want, c)
				continue
			}
			require.NoError(t, err)
		}
		require.Equal(t, c.batches+1, n)
	}
	l := newLoader(t, numbers(0, 8), nwt.WithSampler(starts{0, 2, -9, 6, 7}))
	n := 0
	for _, err := range l.Resume(t.Context(), nwt.State{Epoch: 3, Samples: 6}) {
		var le *nwt.LoadError
		require.ErrorAs(t, err, &le)
		require.Equal(t, []int{-1, -1, 3}, []int{le.Index, le.Position, le.Epoch})
		require.ErrorContains(t, le.Err, "BatchSampler.Start of batch 2: panic: no start")
		require.NotNil(t, le.Stack)
		n++
	}
	require.Equal(t, 1, n)
}

func TestBatchesOfDifferentSizesAllocateNothing(t *testing.T) {
	s := tokenBatches(t, 2000, sampler.Tokens{Max: 2000, MaxSamples: 64})
	l, err := nwt.NewLoader(numbers(0, 2000), nwt.WithSampler(s), nwt.WithBatchSize(64), nwt.WithWorkers(0))
	require.NoError(t, err)
	defer l.Close()
	next, stop := iter.Pull2(l.Epochs(t.Context(), 0, 1<<20))
	defer stop()
	for range 10 {
		next()
	}
	require.Zero(t, testing.AllocsPerRun(50, func() { next() }), "within an epoch")
}

// Tune measures batches of different sizes, in order or not, and ends.
func TestTuneMeasuresBatchesOfDifferentSizes(t *testing.T) {
	s := tokenBatches(t, 300, sampler.Tokens{Max: 1000, MaxSamples: 50})
	for _, order := range []nwt.Option{nwt.WithWorkers(0), nwt.WithUnordered()} {
		r, err := nwt.Tune(t.Context(), numbers(0, 300), order, nwt.WithSampler(s), nwt.WithBatchSize(50), nwt.WithRank(1, 3), nwt.WithMaxWorkers(2), nwt.WithIterations(20),
			nwt.WithStep(func(context.Context, *nwt.Batch) error { return nil }), silent)
		require.NoError(t, err)
		require.NotEmpty(t, r.Trials)
	}
}
