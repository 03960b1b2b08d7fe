package orders_test

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/chancetest"
	"github.com/nwt-go/nwt/internal/loadertest/kit"
	"github.com/nwt-go/nwt/sampler"
)

func TestMain(m *testing.M) { kit.Main(m) }

// order returns the indices of an epoch.
func order(s nwt.Sampler, epoch int) []int {
	var indices []int
	for i := range s.Len() {
		indices = append(indices, s.At(epoch, i))
	}
	return indices
}

func TestAShuffledEpochVisitsEverySampleOnce(t *testing.T) {
	sizes := []int{1 << 16, 1<<16 + 1, 1_000_000}
	for n := 1; n <= 2000; n++ {
		sizes = append(sizes, n)
	}
	for _, n := range sizes {
		seen := make([]bool, n)
		for i, index := range order(nwt.Shuffled(n, 3), n) {
			if index < 0 || index >= n || seen[index] {
				require.Failf(t, "not a permutation", "n = %d: index %d at position %d", n, index, i)
			}
			seen[index] = true
		}
	}
}

func TestShufflingCostsNothingPerSample(t *testing.T) {
	for _, n := range []int{1_000_000_000, math.MaxInt/2 + 1, math.MaxInt} {
		s := nwt.Shuffled(n, 1)
		require.Equal(t, n, s.Len())
		seen := map[int]bool{}
		for i := range 1000 {
			first, last := s.At(0, i), s.At(0, n-1-i)
			require.GreaterOrEqual(t, min(first, last), 0)
			require.Less(t, max(first, last), n)
			seen[first], seen[last] = true, true
		}
		require.Len(t, seen, 2000)
	}
	s := nwt.Shuffled(1_000_000_000, 1)
	require.Zero(t, testing.AllocsPerRun(100, func() { s.At(3, 5) }))
}

// A resumed run must find the order it left: these may never change.
func TestShuffledOrdersStayWhatTheyWere(t *testing.T) {
	require.Equal(t, []int{4, 0, 7, 3, 1, 5, 6, 8, 9, 2}, order(nwt.Shuffled(10, 42), 0))
	s := nwt.Shuffled(1_000_000_000, 42)
	require.Equal(t, []int{988074297, 622801936, 863435703, 106400876}, []int{s.At(0, 0), s.At(0, 1), s.At(1, 0), s.At(-1, 0)})
	if last := s.At(math.MaxInt, 999_999_999); strconv.IntSize == 64 {
		require.Equal(t, 820465679, last)
	}
}

// A dataset for training and one for validation often have nearly the same length.
func TestOrdersOfOneSeedAndSimilarLengthsAreUnrelated(t *testing.T) {
	split := func(n int, seed uint64) (indices []int) {
		parts, err := nwt.Split(kit.Numbers(0, n), seed, 0.8, 0.2)
		require.NoError(t, err)
		for _, index := range slices.Concat(kit.BatchesOf[int64](t, kit.NewLoader(t, parts[0]))...) {
			indices = append(indices, int(index))
		}
		return indices
	}
	for _, orders := range [][2][]int{
		{order(nwt.Shuffled(4000, 5), 1), order(nwt.Shuffled(4010, 5), 1)},
		{order(nwt.Shuffled(50_000, 5), 1), order(nwt.Shuffled(50_100, 5), 1)},
		{split(4000, 5), split(4010, 5)},
	} {
		equal := 0
		for i, index := range orders[0] {
			if i < len(orders[1]) && index == orders[1][i] {
				equal++
			}
		}
		require.Less(t, equal, len(orders[0])/100)
	}
}

func TestAPositionOutsideTheEpochPanicsWithBothNumbers(t *testing.T) {
	for _, s := range []nwt.Sampler{nwt.Sequential(3), nwt.Shuffled(3, 1)} {
		require.PanicsWithValue(t, "nwt: position 3 is outside an epoch of 3 samples", func() { s.At(0, 3) })
		require.PanicsWithValue(t, "nwt: position -1 is outside an epoch of 3 samples", func() { s.At(0, -1) })
	}
	for _, n := range []int{0, -5} {
		require.Equal(t, n, nwt.Shuffled(n, 1).Len())
		require.Panics(t, func() { nwt.Shuffled(n, 1).At(0, 0) })
		require.Panics(t, func() { nwt.Sequential(n).At(0, 0) })
	}
}

func TestEveryOrderOfAFewSamplesIsEquallyLikely(t *testing.T) {
	for n, orders := range map[int]int{2: 2, 3: 6, 4: 24, 5: 120, 6: 720} {
		counts := map[string]int{}
		perOrder := 60
		for draw := range orders * perOrder {
			counts[fmt.Sprint(order(nwt.Shuffled(n, uint64(draw%17)), draw))]++
		}
		chancetest.Uniform(t, slices.Collect(maps.Values(counts)), orders, orders-1, fmt.Sprintf("orders of %d samples", n))
	}
}

func TestEverySampleIsEquallyLikelyAtEveryPosition(t *testing.T) {
	for _, n := range []int{2, 3, 4, 5, 7, 8, 9, 10, 16, 17, 31, 64, 100} {
		byEpoch, bySeed := make([]int, n*n), make([]int, n*n)
		for draw := range 50 * n {
			for i, index := range order(nwt.Shuffled(n, 5), draw) {
				byEpoch[i*n+index]++
			}
			for i, index := range order(nwt.Shuffled(n, uint64(draw)), 5) {
				bySeed[i*n+index]++
			}
		}
		// Every row and column of the table sums to the number of draws, so its
		// chi-squared statistic has (n−1)² degrees of freedom, stretched by n/(n−1).
		for name, counts := range map[string][]int{"epochs": byEpoch, "seeds": bySeed} {
			x := chancetest.ChiSquared(counts, n*n) * float64(n-1) / float64(n)
			chancetest.Plausible(t, x, (n-1)*(n-1), fmt.Sprintf("positions of %d samples over many %s", n, name))
		}
	}
}

func TestNeighboursAreUnrelated(t *testing.T) {
	for _, n := range []int{3, 4, 5, 8, 10, 16, 17, 30} {
		pairs := map[[2]int]int{}
		draws := 200 * n * n
		for draw := range draws {
			s := nwt.Shuffled(n, 11)
			pairs[[2]int{s.At(draw, draw%(n-1)), s.At(draw, draw%(n-1)+1)}]++
		}
		chancetest.Uniform(t, slices.Collect(maps.Values(pairs)), n*(n-1), n*(n-1)-1, fmt.Sprintf("neighbours among %d samples", n))
	}
}

func TestALargeEpochIsWellMixed(t *testing.T) {
	const cells = 32
	for _, n := range []int{cells * 64, cells * 1000, 1_000_000} {
		s, next, other := nwt.Shuffled(n, 1), nwt.Shuffled(n, 1), nwt.Shuffled(n, 2)
		cell := func(i int) int { return i * cells / n }
		position, step, epochs, seeds := make([]int, cells*cells), make([]int, cells), make([]int, cells*cells), make([]int, cells*cells)
		for i := range n {
			index := s.At(0, i)
			position[cell(i)*cells+cell(index)]++
			step[cell((s.At(0, (i+1)%n)-index+n)%n)]++
			epochs[cell(index)*cells+cell(next.At(1, i))]++
			seeds[cell(index)*cells+cell(other.At(0, i))]++
		}
		free := (cells - 1) * (cells - 1)
		chancetest.Uniform(t, position, cells*cells, free, fmt.Sprintf("position and index, n = %d", n))
		chancetest.Uniform(t, step, cells, cells-1, fmt.Sprintf("steps from one index to the next, n = %d", n))
		chancetest.Uniform(t, epochs, cells*cells, free, fmt.Sprintf("one epoch and the next, n = %d", n))
		chancetest.Uniform(t, seeds, cells*cells, free, fmt.Sprintf("one seed and the next, n = %d", n))
	}
}

func TestARunOfPositionsIsWhatItsPositionsAre(t *testing.T) {
	for _, n := range []int{1, 2, 5, 37, 1000, 1 << 20, 1 << 28, 1<<28 + 1, math.MaxInt >> 23} {
		s := nwt.Shuffled(n, 9).(nwt.SamplerFiller)
		for _, from := range []int{0, n / 3, n - min(n, 333)} {
			run := make([]int, min(n-from, 333))
			s.Fill(3, from, run)
			for i, index := range run {
				require.Equal(t, s.At(3, from+i), index)
			}
		}
	}
}

func TestASamplerSaysWhatItIs(t *testing.T) {
	require.Equal(t, "Sequential(7)", fmt.Sprint(nwt.Sequential(7)))
	require.Equal(t, "Shuffled(7, seed 42)", fmt.Sprint(nwt.Shuffled(7, 42)))
	_, err := nwt.NewLoader(kit.EmptyDataset(7), nwt.WithShuffle(1), nwt.WithSampler(nwt.Shuffled(7, 42)))
	require.EqualError(t, err, "nwt: WithSampler: Shuffled(7, seed 42): can't be combined with WithShuffle: a sampler defines the whole order")
}

func TestAnOrderIsComputedOnceForAnEpoch(t *testing.T) {
	var calls atomic.Int64
	s, err := sampler.Computed(1000, func(int) []int { calls.Add(1); return make([]int, 1000) })
	require.NoError(t, err)
	l := kit.NewLoader(t, kit.Drawn(1), nwt.WithSampler(s), nwt.WithWorkers(4), nwt.WithBatchSize(10))
	for _, err := range l.Epochs(t.Context(), 0, 5) {
		require.NoError(t, err)
	}
	require.EqualValues(t, 5, calls.Load())
}

func TestAComputedOrderThatFailsEndsTheEpoch(t *testing.T) {
	for says, order := range map[string]func(int) []int{
		"returned 9 indices for epoch 0: must be 10": func(int) []int { return make([]int, 9) },
		"index 7 for position 3":                     func(int) []int { return []int{0, 0, 0, 7, 0, 0, 0, 0, 0, 0} },
		"index -1 for position 0":                    func(int) []int { return []int{-1, 0, 0, 0, 0, 0, 0, 0, 0, 0} },
		"panic: no order":                            func(int) []int { panic("no order") },
	} {
		s, err := sampler.Computed(10, order)
		require.NoError(t, err)
		for _, ds := range []nwt.Dataset{kit.Drawn(7), kit.EmptyBatches{Dataset: kit.Drawn(7)}} {
			for _, workers := range []int{0, 2} {
				_, err := kit.Epoch(t.Context(), kit.NewLoader(t, ds, nwt.WithSampler(s), nwt.WithWorkers(workers)), 0)
				var le *nwt.LoadError
				require.ErrorAs(t, err, &le)
				require.ErrorContains(t, err, says)
			}
		}
	}
}

// quickly is a sampler of a user's that knows Fill.
type quickly struct{ asked, filled *atomic.Int64 }

func (quickly) Len() int { return 100 }
func (s quickly) At(_, i int) int {
	s.asked.Add(1)
	return 99 - i
}
func (s quickly) Fill(_, from int, indices []int) {
	s.filled.Add(1)
	for i := range indices {
		indices[i] = 99 - from - i
	}
}

func TestASamplerOfTheUsersIsAskedForManyPositionsAtOnce(t *testing.T) {
	s := quickly{&atomic.Int64{}, &atomic.Int64{}}
	part, err := sampler.Select(s, slices.Repeat([]int{3}, 100))
	require.NoError(t, err)
	for _, s := range []nwt.Sampler{s, part} {
		for b, err := range kit.NewLoader(t, kit.Drawn(100), nwt.WithSampler(s), nwt.WithBatchSize(10)).Epoch(t.Context(), 0) {
			require.NoError(t, err)
			for place, i := range b.Indices() {
				require.Equal(t, s.At(0, 10*b.Number()+place), i)
			}
		}
	}
	require.EqualValues(t, 200, s.asked.Load(), "by this test alone")
	require.Positive(t, s.filled.Load())
}

func TestTheOrderChangesBetweenEpochs(t *testing.T) {
	for _, workers := range []int{0, 3} {
		l := kit.NewLoader(t, kit.Drawn(100), nwt.WithShuffle(1), nwt.WithWorkers(workers), nwt.WithBatchSize(8))
		require.Equal(t, 13, l.Len())
		got, err := kit.Epoch(t.Context(), l, 0)
		require.NoError(t, err)
		require.Len(t, got, 13)

		hard, err := sampler.Select(nwt.Sequential(5), []int{9, 8, 7, 6, 5})
		require.NoError(t, err)
		require.NoError(t, l.SetSampler(hard))
		require.Equal(t, 1, l.Len())
		got, err = kit.Epoch(t.Context(), l, 1)
		require.NoError(t, err)
		require.Equal(t, [][]int{{9, 8, 7, 6, 5}}, got)

		require.ErrorContains(t, kit.Refusal(t, l.Resume(t.Context(), nwt.State{Epoch: 1, Samples: 6})), "State.Samples: 6: an epoch has 5 samples")
		for range l.Epoch(t.Context(), 2) {
			require.ErrorIs(t, l.SetSampler(hard), nwt.ErrBusy)
		}
		require.ErrorContains(t, l.SetSampler(nil), "the sampler is nil")
		require.ErrorContains(t, l.SetSampler(nwt.Sequential(0)), "SetSampler: Sequential(0): its Len is 0: must be")
		require.NoError(t, l.Close())
		require.ErrorIs(t, l.SetSampler(hard), nwt.ErrClosed)
	}
}

func TestAnEpochOfALongerOrderIsResumedToItsEnd(t *testing.T) {
	for _, workers := range []int{0, 3} {
		l := kit.NewLoader(t, kit.Drawn(10), nwt.WithWorkers(workers), nwt.WithBatchSize(8))
		often, err := sampler.Weighted(slices.Repeat([]float64{1}, 10), 30, 1)
		require.NoError(t, err)
		require.NoError(t, l.SetSampler(often))
		whole, err := kit.Epoch(t.Context(), l, 1)
		require.NoError(t, err)
		require.Len(t, whole, 4)
		var rest [][]int
		for b, err := range l.Resume(t.Context(), nwt.State{Epoch: 1, Samples: 16}) {
			require.NoError(t, err)
			rest = append(rest, slices.Clone(b.Indices()))
		}
		require.Equal(t, whole[2:], rest)
		require.ErrorContains(t, kit.Refusal(t, l.Resume(t.Context(), nwt.State{Epoch: 1, Samples: 31})), "State.Samples: 31: an epoch has 30 samples")
	}
}

// With small batches, workers need more of them.
func TestAsManyBatchesAreAheadAsTheOrderNeeds(t *testing.T) {
	l := kit.NewLoader(t, kit.Drawn(100), nwt.WithWorkers(20), nwt.WithBatchSize(10))
	require.Equal(t, 3, l.Stats().Prefetch)
	singly := nwt.WithSampler(kit.Sizes(slices.Repeat([]int{1}, 100)))
	require.Equal(t, 21, kit.NewLoader(t, kit.Drawn(100), nwt.WithWorkers(20), nwt.WithBatchSize(10), singly).Stats().Prefetch)
	require.NoError(t, l.SetSampler(kit.Sizes(slices.Repeat([]int{1}, 100))))
	require.Equal(t, 21, l.Stats().Prefetch)
	_, err := kit.Epoch(t.Context(), l, 0)
	require.NoError(t, err)
	require.NoError(t, l.SetSampler(nwt.Sequential(100)))
	require.Equal(t, 3, l.Stats().Prefetch)
	require.LessOrEqual(t, l.Stats().Slots, 4, "the memory of the others is given back")
}

func TestAStreamHasNoSampler(t *testing.T) {
	l := kit.NewLoader(t, nwt.Streamed(&kit.Shelves{Lengths: []int{1}}))
	require.ErrorContains(t, l.SetSampler(nwt.Sequential(1)), "a stream is read in its own order")
}

type unmade struct{ n int }

func (s *unmade) Len() int        { return s.n }
func (s *unmade) At(_, i int) int { return i }
func (s *unmade) String() string  { return fmt.Sprint(s.n) }

func TestASamplerThatIsANilPointerIsAnError(t *testing.T) {
	var none *unmade
	for _, opts := range [][]nwt.Option{{nwt.WithSampler(none)}, {nwt.WithSampler(none), nwt.WithShuffle(1)}} {
		_, err := nwt.NewLoader(kit.Augmented(10), opts...)
		require.ErrorAs(t, err, new(*nwt.ArgumentError))
	}
	require.ErrorAs(t, kit.NewLoader(t, kit.Augmented(10)).SetSampler(none), new(*nwt.ArgumentError))
}

// bounded is a sampler of the program's that tells the last index.
type bounded struct {
	nwt.Sampler
	last func() int
}

func (s bounded) LastIndex() int { return s.last() }

func TestASamplerOfTheUsersMayTellItsLastIndex(t *testing.T) {
	is := func(n int) func() int { return func() int { return n } }
	order := nwt.Sequential(40)
	for want, s := range map[string]nwt.Sampler{
		"":                 bounded{order, is(39)},
		"visits index 40":  bounded{order, is(40)},
		"LastIndex: panic": bounded{order, func() int { panic("no idea") }},
	} {
		_, err := nwt.NewLoader(kit.Drawn(40), nwt.WithSampler(s))
		if want == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorAs(t, err, new(*nwt.ArgumentError))
		require.ErrorContains(t, err, want)
	}
}

func TestAStateInsideABatchIsAnError(t *testing.T) {
	l, err := nwt.NewLoader(kit.Numbers(0, 6), nwt.WithSampler(kit.Sizes{2, 3, 1}))
	require.NoError(t, err)
	defer l.Close()
	err = kit.Refusal(t, l.Resume(t.Context(), nwt.State{Epoch: 1, Samples: 3}))
	require.EqualError(t, err, "nwt: State.Samples: 3: no batch of epoch 1 begins there: the next one, batch 2, begins at 5")
	for range l.Resume(t.Context(), nwt.State{Epoch: 1, Samples: 6}) {
		t.Fatal("nothing is left")
	}
	l, err = nwt.NewLoader(kit.Numbers(0, 6), nwt.WithSampler(kit.Sizes{2, 3, 1}), nwt.WithUnordered())
	require.NoError(t, err)
	require.NoError(t, l.Close())
}

// A batch that is too large, empty, or whose Start panics ends the epoch with an error
// that names it, after the batches before it.
func TestABatchThatCantBeComesAfterThoseBeforeIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // copies are late on a busy machine
		for _, c := range []struct {
			sizes kit.Sizes
			want  string
		}{
			{kit.Sizes{2, 3, 2, 7, 1}, "batch 3 of epoch 0 has 7 samples, positions 7 to before 14: WithBatchSize allows 4"},
			{kit.Sizes{2, 3, 2, 0, 1}, "batch 3 of epoch 0 has the positions from 7 to before 7: must have at least one, below 8"},
			{kit.Sizes{2, 3, 2, 1, -3}, "BatchSampler.Start of batch 4: panic: no start"},
		} {
			for _, workers := range []int{0, 3} {
				for _, device := range []nwt.Device{nwt.Host(), &kit.FakeDevice{Took: 1}} {
					l, err := nwt.NewLoader(kit.Numbers(0, c.sizes.Len()), nwt.WithSampler(c.sizes), nwt.WithBatchSize(4), nwt.WithWorkers(workers), nwt.WithPrefetch(9), nwt.WithDevice(device))
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
	_, err := nwt.NewLoader(kit.Numbers(0, 500), nwt.WithSampler(kit.TokenBatches(t, 500, sampler.Tokens{Max: 1000})))
	require.ErrorContains(t, err, "WithBatchSize: 32: must be at least")
	half, err := sampler.Select(kit.TokenBatches(t, 50, sampler.Tokens{Max: 1000}), kit.IndicesUpTo(50))
	require.NoError(t, err)
	_, err = nwt.NewLoader(kit.Numbers(0, 500), nwt.WithSampler(half), nwt.WithBatchSize(1))
	require.ErrorContains(t, err, "WithBatchSize: 1: must be at least")
	_, err = nwt.NewLoader(kit.Numbers(0, 5), nwt.WithSampler(kit.Sizes{2, 3}), nwt.WithRank(0, 3), nwt.WithDropLast())
	require.ErrorContains(t, err, "WithDropLast: fewer batches (2) than ranks (3)")
	_, err = nwt.NewLoader(kit.Numbers(0, 5), nwt.WithSampler(kit.Sizes{5}), nwt.WithRank(0, 2), nwt.WithDropLast())
	require.ErrorContains(t, err, "WithDropLast: fewer batches (1) than ranks (2)")
	_, err = nwt.NewLoader(kit.Numbers(0, 5), nwt.WithBatchSize(3), nwt.WithRank(0, 2), nwt.WithDropLast())
	require.ErrorContains(t, err, "WithDropLast: fewer samples (5) than one batch of 3 for each of 2 ranks")
	l, err := nwt.NewLoader(kit.Numbers(0, 9))
	require.NoError(t, err)
	defer l.Close()
	for _, n := range []int{0, 6} {
		require.ErrorContains(t, l.SetSampler(so{kit.Sizes{2, 3}, func() int { return n }}), fmt.Sprintf("SetSampler: %d: an epoch of 5 samples must have 1 … 5 batches", n))
	}
	require.ErrorContains(t, l.SetSampler(so{kit.Sizes{2, 3}, func() int { panic("no batches") }}), "orders_test.so: Batches: panic: no batches")
	for _, all := range []kit.Sizes{{5}, {1, 1, 1, 1, 1}} {
		require.NoError(t, l.SetSampler(all))
		require.Equal(t, len(all), l.Len())
	}
	require.NoError(t, l.SetSampler(kit.Sizes{2, 3}))
	require.Equal(t, 2, l.Len())
	require.NoError(t, l.SetSampler(nwt.Sequential(9)))
	require.Equal(t, 1, l.Len())
}

func TestALoaderOfDifferentBatchesTakesAnyOtherOrder(t *testing.T) {
	l := kit.NewLoader(t, kit.Numbers(0, 9), nwt.WithSampler(kit.Sizes{1, 4, 2, 1}), nwt.WithBatchSize(4), nwt.WithWorkers(1))
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
	kit.Sizes
	batches func() int
}

func (s so) Batches() int { return s.batches() }

func TestWithBatchSizeMustHoldTheLargestBatch(t *testing.T) {
	for _, tokens := range []sampler.Tokens{{Max: 1000}, {Max: 1000, MaxSamples: 7}, {Max: 100_000}} {
		s, largest := kit.TokenBatches(t, 300, tokens), 0
		for b := range s.Batches() {
			largest = max(largest, len(kit.BatchOf(s, 0, b)))
		}
		_, err := nwt.NewLoader(kit.Numbers(0, 300), nwt.WithSampler(s), nwt.WithBatchSize(largest))
		require.NoError(t, err)
		_, err = nwt.NewLoader(kit.Numbers(0, 300), nwt.WithSampler(s), nwt.WithBatchSize(largest-1))
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
		{starts{0, 2, 5, 4, 7}, 0, 1, 2, "batch 2 of epoch 0 has the positions from 5 to before 4: must have at least one, below 8"},
		{starts{0, 2, 4, 20}, 0, 1, 2, "batch 2 of epoch 0 has the positions from 4 to before 20"},
		{starts{0, -1, 1, 4}, 1, 2, 0, "batch 1 of epoch 0 has the positions from -1 to before 1"},
		{starts{0, 4, 3, 6}, 0, 2, 0, "batch 0 of epoch 0 has the positions from 0 to before 4"},
		{starts{0, 4, 20, 6}, 0, 2, 0, "batch 0 of epoch 0 has the positions from 0 to before 4"},
		{starts{0, -9, 3, 6}, 0, 2, 0, "BatchSampler.Start of batch 1: panic: no start"},
		{starts{0, -9, 3, 6}, 1, 2, 0, "BatchSampler.Start of batch 1: panic: no start"},
		{starts{0, 2, -9, 6}, 0, 2, 0, "BatchSampler.Start of batch 2: panic: no start"},
		{starts{0, 1, 2, -9, 4, 5}, 1, 3, 0, "BatchSampler.Start of batch 3: panic: no start"},
	} {
		l := kit.NewLoader(t, kit.Numbers(0, 8), nwt.WithSampler(c.starts), nwt.WithRank(c.rank, c.world))
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
	l := kit.NewLoader(t, kit.Numbers(0, 8), nwt.WithSampler(starts{0, 2, -9, 6, 7}))
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

// Tune measures batches of different sizes, in order or not, and ends.
func TestTuneMeasuresBatchesOfDifferentSizes(t *testing.T) {
	s := kit.TokenBatches(t, 300, sampler.Tokens{Max: 1000, MaxSamples: 50})
	for _, order := range []nwt.Option{nwt.WithWorkers(0), nwt.WithUnordered()} {
		r, err := nwt.Tune(t.Context(), kit.Numbers(0, 300), order, nwt.WithSampler(s), nwt.WithBatchSize(50), nwt.WithRank(1, 3), nwt.WithMaxWorkers(2), nwt.WithIterations(20),
			nwt.WithStep(func(context.Context, *nwt.Batch) error { return nil }), kit.Silent)
		require.NoError(t, err)
		require.NotEmpty(t, r.Trials)
	}
}
