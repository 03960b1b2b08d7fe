package nwt

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func orderOf(s Sampler, epoch int) []int {
	indices := make([]int, s.Len())
	for i := range indices {
		indices[i] = s.At(epoch, i)
	}
	return indices
}

func TestASequentialEpochIsInOrder(t *testing.T) {
	require.Equal(t, []int{0, 1, 2, 3}, orderOf(Sequential(4), 7))
}

func TestAShuffledEpochVisitsEverySampleOnce(t *testing.T) {
	sizes := []int{1 << 16, 1<<16 + 1, 1_000_000}
	for n := 1; n <= 2000; n++ {
		sizes = append(sizes, n)
	}
	for _, n := range sizes {
		seen := make([]bool, n)
		for i, index := range orderOf(Shuffled(n, 3), n) {
			if index < 0 || index >= n || seen[index] {
				require.Failf(t, "not a permutation", "n = %d: index %d at position %d", n, index, i)
			}
			seen[index] = true
		}
	}
}

func TestShufflingCostsNothingPerSample(t *testing.T) {
	for _, n := range []int{1_000_000_000, math.MaxInt/2 + 1, math.MaxInt} {
		s := Shuffled(n, 1)
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
	s := Shuffled(1_000_000_000, 1)
	require.Zero(t, testing.AllocsPerRun(100, func() { s.At(3, 5) }))
}

// A resumed run must find the order it left: these may never change.
func TestShuffledOrdersStayWhatTheyWere(t *testing.T) {
	require.Equal(t, []int{2, 4, 9, 6, 5, 1, 0, 7, 3, 8}, orderOf(Shuffled(10, 42), 0))
	s := Shuffled(1_000_000_000, 42)
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
			key := fmt.Sprint(orderOf(Shuffled(50, seed), epoch))
			require.Emptyf(t, orders[key], "%s has the same order", who)
			orders[key] = who
		}
	}
}

func TestAPositionOutsideTheEpochPanicsWithBothNumbers(t *testing.T) {
	local, err := LocallyShuffled([]int{2, 1}, 2, 1)
	require.NoError(t, err)
	tokens, err := TokenBatches(3, lengthOf, Tokens{Max: 1000}, 1)
	require.NoError(t, err)
	computed, err := Computed(3, func(int) []int { return make([]int, 3) })
	require.NoError(t, err)
	for _, s := range []Sampler{Sequential(3), Shuffled(3, 1), local, tokens, computed} {
		require.PanicsWithValue(t, "nwt: position 3 is outside an epoch of 3 samples", func() { s.At(0, 3) })
		require.PanicsWithValue(t, "nwt: position -1 is outside an epoch of 3 samples", func() { s.At(0, -1) })
	}
	for _, n := range []int{0, -5} {
		require.Equal(t, n, Shuffled(n, 1).Len())
		require.Panics(t, func() { Shuffled(n, 1).At(0, 0) })
		require.Panics(t, func() { Sequential(n).At(0, 0) })
	}
}

func TestGoroutinesAgreeOnTheOrder(t *testing.T) {
	s := Shuffled(1000, 3)
	want := orderOf(s, 2)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if !slices.Equal(want, orderOf(s, 2)) {
				t.Error("the order depends on who asks")
			}
		})
	}
	wg.Wait()
}

func TestSelectShufflesAPartOfTheDataset(t *testing.T) {
	part := []int{40, 10, 30, 10}
	s, err := Select(Shuffled(len(part), 1), part)
	require.NoError(t, err)
	clear(part)
	require.Equal(t, 4, s.Len())
	require.ElementsMatch(t, []int{40, 10, 30, 10}, orderOf(s, 0))
	require.NotEqual(t, orderOf(s, 0), orderOf(s, 1))
}

func TestSelectSaysWhatIsWrong(t *testing.T) {
	_, err := Select(nil, []int{1})
	require.ErrorContains(t, err, "the sampler must not be nil")
	_, err = Select(Sequential(1), nil)
	require.ErrorContains(t, err, "there must be at least 1 index")
	_, err = Select(Sequential(2), []int{3, -4})
	require.ErrorContains(t, err, "-4: index number 1 must be at least 0")
	s, err := Select(Sequential(3), []int{5, 6})
	require.NoError(t, err)
	require.PanicsWithValue(t, "nwt: position 2 of epoch 4 selects index 2 of 2", func() { s.At(4, 2) })
}

func TestEveryOrderOfAFewSamplesIsEquallyLikely(t *testing.T) {
	for n, orders := range map[int]int{2: 2, 3: 6, 4: 24, 5: 120, 6: 720} {
		counts := map[string]int{}
		perOrder := 60
		for draw := range orders * perOrder {
			counts[fmt.Sprint(orderOf(Shuffled(n, uint64(draw%17)), draw))]++
		}
		requireUniform(t, values(counts), orders, orders-1, fmt.Sprintf("orders of %d samples", n))
	}
}

func TestEverySampleIsEquallyLikelyAtEveryPosition(t *testing.T) {
	for _, n := range []int{2, 3, 4, 5, 7, 8, 9, 10, 16, 17, 31, 64, 100} {
		byEpoch, bySeed := make([]int, n*n), make([]int, n*n)
		for draw := range 50 * n {
			for i, index := range orderOf(Shuffled(n, 5), draw) {
				byEpoch[i*n+index]++
			}
			for i, index := range orderOf(Shuffled(n, uint64(draw)), 5) {
				bySeed[i*n+index]++
			}
		}
		// Every row and column of the table sums to the number of draws, so its
		// chi-squared statistic has (n−1)² degrees of freedom, stretched by n/(n−1).
		for name, counts := range map[string][]int{"epochs": byEpoch, "seeds": bySeed} {
			x := chiSquared(counts, n*n) * float64(n-1) / float64(n)
			requirePlausible(t, x, (n-1)*(n-1), fmt.Sprintf("positions of %d samples over many %s", n, name))
		}
	}
}

func TestNeighboursAreUnrelated(t *testing.T) {
	for _, n := range []int{3, 4, 5, 8, 10, 16, 17, 30} {
		pairs := map[[2]int]int{}
		draws := 200 * n * n
		for draw := range draws {
			s := Shuffled(n, 11)
			pairs[[2]int{s.At(draw, draw%(n-1)), s.At(draw, draw%(n-1)+1)}]++
		}
		requireUniform(t, values(pairs), n*(n-1), n*(n-1)-1, fmt.Sprintf("neighbours among %d samples", n))
	}
}

func TestALargeEpochIsWellMixed(t *testing.T) {
	const cells = 32
	for _, n := range []int{cells * 64, cells * 1000, 1_000_000} {
		s, next, other := Shuffled(n, 1), Shuffled(n, 1), Shuffled(n, 2)
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
		requireUniform(t, position, cells*cells, free, fmt.Sprintf("position and index, n = %d", n))
		requireUniform(t, step, cells, cells-1, fmt.Sprintf("steps from one index to the next, n = %d", n))
		requireUniform(t, epochs, cells*cells, free, fmt.Sprintf("one epoch and the next, n = %d", n))
		requireUniform(t, seeds, cells*cells, free, fmt.Sprintf("one seed and the next, n = %d", n))
	}
}

func chiSquared(counts []int, cells int) float64 {
	var total, x float64
	for _, c := range counts {
		total += float64(c)
	}
	expected := total / float64(cells)
	for _, c := range counts {
		x += (float64(c) - expected) * (float64(c) - expected) / expected
	}
	return x + float64(cells-len(counts))*expected // cells never hit
}

func requireUniform(t *testing.T, counts []int, cells, free int, what string) {
	t.Helper()
	requirePlausible(t, chiSquared(counts, cells), free, what)
}

// requirePlausible fails where a chi-squared statistic is more than 4 standard
// deviations from what chance gives, too even as well as too uneven (Wilson and
// Hilferty's approximation).
func requirePlausible(t *testing.T, x float64, free int, what string) {
	t.Helper()
	spread := 2 / (9 * float64(free))
	z := (math.Cbrt(x/float64(free)) - (1 - spread)) / math.Sqrt(spread)
	require.LessOrEqualf(t, math.Abs(z), 4.0, "%s: chi-squared %.1f with %d degrees of freedom", what, x, free)
}

func values[K comparable](counts map[K]int) []int {
	var all []int
	for _, c := range counts {
		all = append(all, c)
	}
	return all
}

func BenchmarkShuffled(b *testing.B) {
	for _, n := range []int{10, 1000, 50_000, 1_281_167, 1_000_000_000} {
		b.Run(fmt.Sprintf("a position at a time/n=%d", n), func(b *testing.B) {
			s, i := Shuffled(n, 1), 0
			for b.Loop() {
				s.At(1, i)
				if i++; i == n {
					i = 0
				}
			}
		})
		b.Run(fmt.Sprintf("a batch at a time/n=%d", n), func(b *testing.B) {
			s, i := Shuffled(n, 1).(Filler), 0
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
		s := Shuffled(n, 9).(*shuffled)
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
	weights := []float64{1, 2, 3}
	weighted, err := Weighted(weights, 9, 1)
	require.NoError(t, err)
	once, err := WeightedWithoutReplacement(weights, 2, 7)
	require.NoError(t, err)
	buckets, err := Bucketed(100, lengthOf, Buckets{BatchSize: 4, World: 2}, 42)
	require.NoError(t, err)
	part, err := Select(Shuffled(2, 42), []int{5, 6})
	require.NoError(t, err)
	for want, s := range map[string]Sampler{
		"Sequential(7)":                                            Sequential(7),
		"Shuffled(7, seed 42)":                                     Shuffled(7, 42),
		"Weighted(9 draws by 3 weights, seed 1)":                   weighted,
		"WeightedWithoutReplacement(2 draws by 3 weights, seed 7)": once,
		"Bucketed(100, steps of 8, windows of 64, seed 42)":        buckets,
		"Select(Shuffled(2, seed 42), 2 indices)":                  part,
	} {
		require.Equal(t, want, fmt.Sprint(s))
	}
	ds := NewDataset(7, []Field{{Name: "x", Type: Int64}}, func(context.Context, int, *Sample) error { return nil })
	_, err = NewLoader(ds, WithShuffle(1), WithSampler(Shuffled(7, 42)))
	require.EqualError(t, err, "nwt: WithSampler: Shuffled(7, seed 42): can't be combined with WithShuffle: a sampler is the whole order")
}
