package nwt_test

import (
	"context"
	"fmt"
	"iter"
	"log"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

// tokensOf is the length of a sample: some long ones, many short ones, some empty.
func tokensOf(i int) int {
	if i%97 == 0 {
		return 0
	}
	return 1 + int(uint64(i)*2654435761%1000)*int(uint64(i)*40503%1000)/5000
}

func tokenBatches(t *testing.T, n int, tokens nwt.Tokens) nwt.BatchSampler {
	t.Helper()
	s, err := nwt.TokenBatches(n, tokensOf, tokens, 7)
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

// Every sample comes once per epoch, and no batch has more tokens than allowed, padding
// included.
func TestATokenBatchIsWithinItsBound(t *testing.T) {
	for _, n := range []int{1, 2, 30, 1000, 5000} {
		for _, tokens := range []nwt.Tokens{{Max: 200}, {Max: 1000}, {Max: 1000, MaxSamples: 7}, {Max: 300, Window: 1}, {Max: 300, Window: 1000}} {
			s := tokenBatches(t, n, tokens)
			for epoch := range 2 {
				var all []int
				for b := range s.Batches() {
					batch := batchOf(s, epoch, b)
					require.NotEmpty(t, batch)
					longest := 1
					for _, i := range batch {
						longest = max(longest, tokensOf(i))
					}
					require.LessOrEqual(t, longest*len(batch), tokens.Max)
					if tokens.MaxSamples > 0 {
						require.LessOrEqual(t, len(batch), tokens.MaxSamples)
					}
					all = append(all, batch...)
				}
				filled := make([]int, n)
				s.(nwt.Filler).Fill(epoch, 0, filled)
				require.Equal(t, all, filled)
				for from := 0; from < n; from += 1 + n/7 {
					clear(filled)
					s.(nwt.Filler).Fill(epoch, from, filled[from:])
					require.Equal(t, all[from:], filled[from:])
				}
				slices.Sort(all)
				require.Equal(t, indicesUpTo(n), all)
			}
		}
	}
}

// Epochs and seeds differ, in the order of the batches and in what is in them.
func TestTokenBatchesAreShuffledAnewInEachEpoch(t *testing.T) {
	s := tokenBatches(t, 3000, nwt.Tokens{Max: 1000})
	first := map[string]bool{}
	for b := range s.Batches() {
		first[sortedText(batchOf(s, 0, b))] = true
	}
	same := 0
	for b := range s.Batches() {
		if first[sortedText(batchOf(s, 1, b))] {
			same++
		}
	}
	require.Less(t, same, s.Batches()/10, "batches that come again")
	other, err := nwt.TokenBatches(3000, tokensOf, nwt.Tokens{Max: 1000}, 8)
	require.NoError(t, err)
	require.NotEqual(t, batchOf(s, 0, 0), batchOf(other, 0, 0))
}

func sortedText(indices []int) string { return fmt.Sprint(slices.Sorted(slices.Values(indices))) }

// Little of a batch is padding, and most of what is allowed is used.
func TestTokenBatchesAreFull(t *testing.T) {
	s := tokenBatches(t, 5000, nwt.Tokens{Max: 1000})
	used, padded, tokens := 0, 0, 0
	for b := range s.Batches() {
		longest := 1
		for _, i := range batchOf(s, 0, b) {
			longest = max(longest, tokensOf(i))
			tokens += max(1, tokensOf(i))
		}
		used += longest * len(batchOf(s, 0, b))
		padded += 1000
	}
	require.Greater(t, float64(tokens)/float64(used), 0.85)
	require.Greater(t, float64(used)/float64(padded), 0.75)
}

func TestTokenBatchesStayWhatTheyWere(t *testing.T) {
	s := tokenBatches(t, 40, nwt.Tokens{Max: 300})
	require.Equal(t, "TokenBatches(40, 8 batches of at most 300 tokens, seed 7)", fmt.Sprint(s))
	require.Equal(t, [][]int{{13, 5}, {39, 5}, {38, 37, 7, 11, 3, 15}}, [][]int{batchOf(s, 0, 0), batchOf(s, 1, 3), batchOf(s, 5, 7)})
}

func TestTokenBatchesRefusesWhatItCantUse(t *testing.T) {
	for want, make := range map[string]func() (nwt.BatchSampler, error){
		"the number of samples must be 1 ": func() (nwt.BatchSampler, error) {
			return nwt.TokenBatches(nwt.MaxSamples+1, tokensOf, nwt.Tokens{Max: 9}, 1)
		},
		"0: the number of samples must be 1": func() (nwt.BatchSampler, error) { return nwt.TokenBatches(0, tokensOf, nwt.Tokens{Max: 9}, 1) },
		"function must not be nil":           func() (nwt.BatchSampler, error) { return nwt.TokenBatches(1, nil, nwt.Tokens{Max: 9}, 1) },
		"Tokens.Max must be at least 1":      func() (nwt.BatchSampler, error) { return nwt.TokenBatches(1, tokensOf, nwt.Tokens{}, 1) },
		"Tokens.MaxSamples must be": func() (nwt.BatchSampler, error) {
			return nwt.TokenBatches(1, tokensOf, nwt.Tokens{Max: 1, MaxSamples: -1}, 1)
		},
		"Tokens.Window must be": func() (nwt.BatchSampler, error) {
			return nwt.TokenBatches(1, tokensOf, nwt.Tokens{Max: 1, Window: -1}, 1)
		},
		"TokenBatches: 30: the length of sample 3 must be 0 … 29, Tokens.Max": func() (nwt.BatchSampler, error) {
			return nwt.TokenBatches(4, func(i int) int { return 10 * i }, nwt.Tokens{Max: 29}, 1)
		},
		"TokenBatches: -1: the length of sample 0 must be 0": func() (nwt.BatchSampler, error) {
			return nwt.TokenBatches(9, func(i int) int { return -1 }, nwt.Tokens{Max: 29}, 1)
		},
	} {
		_, err := make()
		require.ErrorContains(t, err, want)
	}
}

// The loader's batches are the sampler's, at any worker count.
func TestALoaderDeliversTheBatchesOfABatchSampler(t *testing.T) {
	s := tokenBatches(t, 500, nwt.Tokens{Max: 1000})
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
	s := tokenBatches(t, n, nwt.Tokens{Max: 1500, MaxSamples: 10})
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
				require.Equal(t, nwt.State{Epoch: 4, Samples: n}, end)
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

// sizes is batches of these sizes. A size of 0 panics.
type sizes []int

func (s sizes) Len() int        { return s.Start(0, len(s)) }
func (s sizes) At(_, i int) int { return i }
func (s sizes) Batches() int    { return len(s) }
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
	_, err := nwt.NewLoader(numbers(0, 500), nwt.WithSampler(tokenBatches(t, 500, nwt.Tokens{Max: 1000})))
	require.ErrorContains(t, err, "WithBatchSize: 32: must be at least")
	half, err := nwt.Select(tokenBatches(t, 50, nwt.Tokens{Max: 1000}), indicesUpTo(50))
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

func TestWithBatchSizeMustHoldTheLargestBatch(t *testing.T) {
	for _, tokens := range []nwt.Tokens{{Max: 1000}, {Max: 1000, MaxSamples: 7}, {Max: 100_000}} {
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

// Samples of the same window meet in a batch, sooner or later; others never do. Here all
// samples are of the same length, two in a batch.
func TestAWindowOfTokenBatchesIsAsWideAsItsDocumentationSays(t *testing.T) {
	for _, c := range []struct{ batches, window, want int }{
		{10, 1, 1}, {10, 3, 3}, {10, 1000, 10},
		{3, 0, 3}, {12, 0, 4}, {32 * 4, 0, 4}, {32 * 9, 0, 9}, {32*10 - 1, 0, 9}, {32 * 70, 0, 64},
	} {
		s, err := nwt.TokenBatches(2*c.batches, func(int) int { return 5 }, nwt.Tokens{Max: 10, Window: c.window}, 1)
		require.NoError(t, err)
		require.Equal(t, c.batches, s.Batches())
		farthest := 0
		for epoch := range 20 {
			for b := range s.Batches() {
				batch := batchOf(s, epoch, b)
				require.Len(t, batch, 2)
				require.Equal(t, batch[0]/(2*c.want), batch[1]/(2*c.want), "%+v", c)
				farthest = max(farthest, batch[0]-batch[1], batch[1]-batch[0])
			}
		}
		require.GreaterOrEqual(t, farthest, c.want, "%+v: they do meet", c)
	}
}

// A window ends where a sample is less than three quarters as long as its longest, and
// all its batches hold as many samples as the longest allows.
func TestAWindowOfTokenBatchesHoldsSimilarLengths(t *testing.T) {
	for _, longest := range []int{4, 5, 6, 7, 8, 1000} {
		for _, c := range []struct {
			shorter int
			one     bool // they are in one window
		}{{(3*longest + 3) / 4, true}, {(3*longest+3)/4 - 1, false}} {
			s, err := nwt.TokenBatches(20, func(i int) int {
				if i < 10 {
					return longest
				}
				return c.shorter
			}, nwt.Tokens{Max: 5 * longest}, 1)
			require.NoError(t, err)
			mixed := false
			for epoch := range 20 {
				for b := range s.Batches() {
					batch := slices.Sorted(slices.Values(batchOf(s, epoch, b)))
					mixed = mixed || batch[0] < 10 && batch[len(batch)-1] >= 10
					require.True(t, !c.one || len(batch) == 5)
				}
			}
			require.Equal(t, c.one, mixed, "%d and %d", longest, c.shorter)
		}
	}
}

// The shortest samples and the longest that Max allows have batches too.
func TestASampleMayHaveAllTokensOfABatch(t *testing.T) {
	s, err := nwt.TokenBatches(3, func(i int) int { return i % 2 }, nwt.Tokens{Max: 1}, 1)
	require.NoError(t, err)
	require.Equal(t, 3, s.Batches(), "a length of 0 counts as 1")
	s, err = nwt.TokenBatches(4, func(i int) int { return []int{0, 9, 1, 9}[i] }, nwt.Tokens{Max: 9, MaxSamples: 1}, 1)
	require.NoError(t, err)
	require.Equal(t, 4, s.Batches())
}

func TestBatchesOfDifferentSizesAllocateNothing(t *testing.T) {
	s := tokenBatches(t, 2000, nwt.Tokens{Max: 2000, MaxSamples: 64})
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
	s := tokenBatches(t, 300, nwt.Tokens{Max: 1000, MaxSamples: 50})
	for _, order := range []nwt.Option{nwt.WithWorkers(0), nwt.WithUnordered()} {
		r, err := nwt.Tune(t.Context(), numbers(0, 300), order, nwt.WithSampler(s), nwt.WithBatchSize(50), nwt.WithRank(1, 3), nwt.WithMaxWorkers(2), nwt.WithIterations(20),
			nwt.WithStep(func(context.Context, *nwt.Batch) error { return nil }), silent)
		require.NoError(t, err)
		require.NotEmpty(t, r.Trials)
	}
}

// Batches of at most 12 tokens, padding included: each as long as its longest text.
func ExampleTokenBatches() {
	texts := []string{"a", "to", "the", "long", "longer", "be", "or", "not", "question", "is"}
	var schema nwt.Schema
	text := nwt.AddRagged[uint8](&schema, "text", 100)
	ds := nwt.Sized(nwt.NewDataset(len(texts), schema.Fields(), func(_ context.Context, i int, dst *nwt.Sample) error {
		dst.SetLen(text.Index(), copy(text.Of(dst), texts[i]))
		return nil
	}), func(i int, sizes []int) { sizes[0] = len(texts[i]) })
	sampler, err := nwt.TokenBatches(len(texts), func(i int) int { return len(texts[i]) }, nwt.Tokens{Max: 12}, 1)
	if err != nil {
		log.Fatal(err)
	}
	loader, err := nwt.NewLoader(ds, nwt.WithSampler(sampler), nwt.WithBatchSize(12))
	if err != nil {
		log.Fatal(err)
	}
	defer loader.Close()
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%d %q\n", batch.Shape(text.Index()), text.Of(batch))
	}
	// Output:
	// [1 8] "question"
	// [3 4] "longnot\x00the\x00"
	// [5 2] "orbetoa\x00is"
	// [1 6] "longer"
}
