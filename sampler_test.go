package nwt_test

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/fairtest"
)

// order is the indices of an epoch.
func order(s nwt.Sampler, epoch int) []int {
	var indices []int
	for i := range s.Len() {
		indices = append(indices, s.At(epoch, i))
	}
	return indices
}

func TestASequentialEpochIsInOrder(t *testing.T) {
	require.Equal(t, []int{0, 1, 2, 3}, order(nwt.Sequential(4), 7))
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
	require.Equal(t, []int{2, 4, 9, 6, 5, 1, 0, 7, 3, 8}, order(nwt.Shuffled(10, 42), 0))
	s := nwt.Shuffled(1_000_000_000, 42)
	require.Equal(t, []int{429015936, 814679850, 50462666, 725626929}, []int{s.At(0, 0), s.At(0, 1), s.At(1, 0), s.At(-1, 0)})
	if last := s.At(math.MaxInt, 999_999_999); strconv.IntSize == 64 {
		require.Equal(t, 973507952, last)
	}
}

func TestEpochsAndSeedsDiffer(t *testing.T) {
	orders := map[string]string{}
	for seed := range uint64(30) {
		for epoch := -5; epoch < 30; epoch++ {
			who := fmt.Sprintf("seed %d epoch %d", seed, epoch)
			key := fmt.Sprint(order(nwt.Shuffled(50, seed), epoch))
			require.Emptyf(t, orders[key], "%s has the same order", who)
			orders[key] = who
		}
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

func TestGoroutinesAgreeOnTheOrder(t *testing.T) {
	s := nwt.Shuffled(1000, 3)
	want := order(s, 2)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if !slices.Equal(want, order(s, 2)) {
				t.Error("the order depends on who asks")
			}
		})
	}
	wg.Wait()
}

func TestEveryOrderOfAFewSamplesIsEquallyLikely(t *testing.T) {
	for n, orders := range map[int]int{2: 2, 3: 6, 4: 24, 5: 120, 6: 720} {
		counts := map[string]int{}
		perOrder := 60
		for draw := range orders * perOrder {
			counts[fmt.Sprint(order(nwt.Shuffled(n, uint64(draw%17)), draw))]++
		}
		fairtest.Uniform(t, slices.Collect(maps.Values(counts)), orders, orders-1, fmt.Sprintf("orders of %d samples", n))
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
			x := fairtest.ChiSquared(counts, n*n) * float64(n-1) / float64(n)
			fairtest.Plausible(t, x, (n-1)*(n-1), fmt.Sprintf("positions of %d samples over many %s", n, name))
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
		fairtest.Uniform(t, slices.Collect(maps.Values(pairs)), n*(n-1), n*(n-1)-1, fmt.Sprintf("neighbours among %d samples", n))
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
		fairtest.Uniform(t, position, cells*cells, free, fmt.Sprintf("position and index, n = %d", n))
		fairtest.Uniform(t, step, cells, cells-1, fmt.Sprintf("steps from one index to the next, n = %d", n))
		fairtest.Uniform(t, epochs, cells*cells, free, fmt.Sprintf("one epoch and the next, n = %d", n))
		fairtest.Uniform(t, seeds, cells*cells, free, fmt.Sprintf("one seed and the next, n = %d", n))
	}
}

func BenchmarkShuffled(b *testing.B) {
	for _, n := range []int{10, 1000, 50_000, 1_281_167, 1_000_000_000} {
		b.Run(fmt.Sprintf("a position at a time/n=%d", n), func(b *testing.B) {
			s, i := nwt.Shuffled(n, 1), 0
			for b.Loop() {
				s.At(1, i)
				if i++; i == n {
					i = 0
				}
			}
		})
		b.Run(fmt.Sprintf("a batch at a time/n=%d", n), func(b *testing.B) {
			s, i := nwt.Shuffled(n, 1).(nwt.SamplerFiller), 0
			batch := make([]int, min(n, 128))
			for b.Loop() {
				s.Fill(1, i, batch)
				if i += len(batch); i > n-len(batch) {
					i = 0
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(batch)), "ns/position")
		})
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
	_, err := nwt.NewLoader(emptyDataset(7), nwt.WithShuffle(1), nwt.WithSampler(nwt.Shuffled(7, 42)))
	require.EqualError(t, err, "nwt: WithSampler: Shuffled(7, seed 42): can't be combined with WithShuffle: a sampler is the whole order")
}
