package sampler_test

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt/internal/chancetest"
	"github.com/nwt-go/nwt/sampler"
)

func weightedOrder(t *testing.T, weights []float64, n int, seed uint64, epoch int) []int {
	t.Helper()
	s, err := sampler.Weighted(weights, n, seed)
	require.NoError(t, err)
	return orderOf(s, epoch)
}

func TestWeightedDrawsInProportion(t *testing.T) {
	rising := make([]float64, 100)
	for i := range rising {
		rising[i] = float64(i)
	}
	for name, weights := range map[string][]float64{
		"one":           {3},
		"equal":         {2, 2, 2},
		"with zeros":    {0, 1, 0, 3, 0},
		"rising":        rising,
		"one of many":   {1e-300, 1, 1e-300, 1e-300},
		"huge":          {math.MaxFloat64, math.MaxFloat64, math.MaxFloat64 / 2},
		"tiny":          {5e-324, 1e-323, 5e-324},
		"hardly uneven": {1, 1 + 1e-15, 1 - 1e-15, 0},
	} {
		const draws = 50_000
		counts := make([]int, len(weights))
		for _, index := range weightedOrder(t, weights, draws, 3, 1) {
			counts[index]++
		}
		var total float64
		for _, w := range weights {
			total += w / slices.Max(weights)
		}
		var x float64
		free := -1
		for i, w := range weights {
			expected := draws * (w / slices.Max(weights)) / total
			if expected < 1 {
				require.Zerof(t, counts[i], "%s: index %d has weight %g", name, i, w)
				continue
			}
			x += (float64(counts[i]) - expected) * (float64(counts[i]) - expected) / expected
			free++
		}
		if free > 0 {
			chancetest.Plausible(t, x, free, name)
		}
	}
}

func TestWeightedDrawsAreIndependent(t *testing.T) {
	const n = 5
	weights := []float64{1, 1, 1, 1, 1}
	next, epochs, seeds := make([]int, n*n), make([]int, n*n), make([]int, n*n)
	draws := weightedOrder(t, weights, 50_000, 1, 0)
	other, seeded := weightedOrder(t, weights, 50_000, 1, 1), weightedOrder(t, weights, 50_000, 2, 0)
	for i, index := range draws {
		next[index*n+draws[(i+1)%len(draws)]]++
		epochs[index*n+other[i]]++
		seeds[index*n+seeded[i]]++
	}
	chancetest.Uniform(t, next, n*n, n*n-1, "one draw and the next")
	chancetest.Uniform(t, epochs, n*n, n*n-1, "one epoch and the next")
	chancetest.Uniform(t, seeds, n*n, n*n-1, "one seed and the next")
}

func TestWeightedOrdersStayWhatTheyWere(t *testing.T) {
	weights := []float64{1, 2, 0, 4, 0.5}
	require.Equal(t, []int{3, 3, 4, 3, 3, 3, 3, 3}, weightedOrder(t, weights, 8, 42, 3))
	s, err := sampler.WeightedWithoutReplacement(weights, 4, 42)
	require.NoError(t, err)
	require.Equal(t, [][]int{{3, 1, 0, 4}, {0, 3, 1, 4}, {0, 3, 1, 4}}, [][]int{orderOf(s, 0), orderOf(s, 1), orderOf(s, -1)})
}

func TestWithoutReplacementNoSampleComesTwice(t *testing.T) {
	weights := make([]float64, 500)
	for i := range weights {
		weights[i] = float64(i % 7)
	}
	s, err := sampler.WeightedWithoutReplacement(weights, 400, 1)
	require.NoError(t, err)
	for epoch := range 20 {
		indices := orderOf(s, epoch)
		seen := map[int]bool{}
		for _, index := range indices {
			require.False(t, seen[index], "index %d twice", index)
			require.NotZero(t, weights[index])
			seen[index] = true
		}
		require.NotEqual(t, indices, orderOf(s, epoch+1))
	}
}

func TestWithoutReplacementEachDrawIsInProportionToWhatIsLeft(t *testing.T) {
	for name, weights := range map[string][]float64{
		"few":  {1, 2, 0, 3, 4},
		"huge": {1e307, 2e307, 0, 3e307, 4e307},
		"tiny": {1e-320, 2e-320, 0, 3e-320, 4e-320},
	} {
		s, err := sampler.WeightedWithoutReplacement(weights, 2, 9)
		require.NoError(t, err)
		const epochs = 20_000
		counts := map[[2]int]int{}
		for epoch := range epochs {
			counts[[2]int{s.At(epoch, 0), s.At(epoch, 1)}]++
		}
		share := []float64{0.1, 0.2, 0, 0.3, 0.4}
		var x float64
		for i, first := range share {
			for k, second := range share {
				if i == k || first == 0 || second == 0 {
					require.Zero(t, counts[[2]int{i, k}])
					continue
				}
				expected := epochs * first * second / (1 - first)
				c := float64(counts[[2]int{i, k}])
				x += (c - expected) * (c - expected) / expected
			}
		}
		chancetest.Plausible(t, x, 11, name)
	}
}

func TestWeightsOfTheCallerMayChangeAfterwards(t *testing.T) {
	weights := []float64{1, 1, 1, 1}
	s, err := sampler.WeightedWithoutReplacement(weights, 2, 1)
	require.NoError(t, err)
	want := orderOf(s, 0)
	clear(weights)
	s.At(2, 0) // takes the place of epoch 0
	require.Equal(t, want, orderOf(s, 0))
}

func TestBadWeightsAreNamed(t *testing.T) {
	for _, c := range []struct {
		weights []float64
		n       int
		want    string
	}{
		{nil, 1, "0: the number of weights must be 1 … 2147483647"},
		{[]float64{1}, 0, "0: the draws of an epoch must be at least 1"},
		{[]float64{1}, -3, "-3: the draws of an epoch must be at least 1"},
		{[]float64{1, -2}, 1, "weights[1] = -2: must be 0 or more, and finite"},
		{[]float64{math.NaN()}, 1, "weights[0] = NaN: must be 0"},
		{[]float64{0, 1, math.Inf(1)}, 1, "weights[2] = +Inf: must be 0"},
		{[]float64{0, 0, 0}, 1, "one of the 3 weights must be above 0"},
	} {
		s, err := sampler.Weighted(c.weights, c.n, 1)
		require.ErrorContains(t, err, c.want)
		require.Nil(t, s)
		s, err = sampler.WeightedWithoutReplacement(c.weights, c.n, 1)
		require.ErrorContains(t, err, c.want)
		require.Nil(t, s)
	}
	_, err := sampler.WeightedWithoutReplacement([]float64{1, 0, 2}, 3, 1)
	require.ErrorContains(t, err, "3: the draws of an epoch must be at most 2, the number of weights above 0")
}
