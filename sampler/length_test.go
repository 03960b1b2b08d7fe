package sampler_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/sampler"
)

// A dataset for training and one for validation often have nearly the same length, or one grows. With one
// seed, their orders must still be as different as those of two seeds.
func TestOrdersOfOneSeedAndSimilarLengthsAreUnrelated(t *testing.T) {
	same := func(n int) []float64 { return slices.Repeat([]float64{1}, n) }
	for name, order := range map[string]func(n int) (nwt.Sampler, error){
		"Select": func(n int) (nwt.Sampler, error) {
			return sampler.Select(nwt.Shuffled(n, 7), orderOf(nwt.Sequential(n), 0))
		},
		"Weighted":                   func(n int) (nwt.Sampler, error) { return sampler.Weighted(same(n), n, 7) },
		"Weighted, draws":            func(n int) (nwt.Sampler, error) { return sampler.Weighted(same(4000), n, 7) },
		"WeightedWithoutReplacement": func(n int) (nwt.Sampler, error) { return sampler.WeightedWithoutReplacement(same(n), n, 7) },
		"Bucketed": func(n int) (nwt.Sampler, error) {
			return sampler.Bucketed(n, func(int) int { return 1 }, sampler.Buckets{BatchSize: 8}, 7)
		},
		"TokenBatches": func(n int) (nwt.Sampler, error) {
			return sampler.TokenBatches(n, func(int) int { return 1 }, sampler.Tokens{Max: 8}, 7)
		},
		"PerClass": func(n int) (nwt.Sampler, error) {
			labels := make([]int, n)
			for i := range labels {
				labels[i] = i % 400
			}
			return sampler.PerClass(labels, sampler.ClassBatch{Classes: 8, Samples: 2}, 7)
		},
		"Mixed": func(n int) (nwt.Sampler, error) {
			return sampler.Mixed(n, nwt.Mix{Parts: []int{n}, Phases: []nwt.Phase{{Weights: []float64{1}}}, Block: 100}, 7)
		},
		"LocallyShuffled": func(n int) (nwt.Sampler, error) {
			return sampler.LocallyShuffled(append(slices.Repeat([]int{10}, 399), n-3990), 2, 7)
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, err := order(4000)
			require.NoError(t, err)
			b, err := order(4010)
			require.NoError(t, err)
			for epoch := range 2 {
				requireUnrelated(t, orderOf(a, epoch), orderOf(b, epoch))
			}
		})
	}
}

// requireUnrelated fails if two orders have much in common: the indices at their positions, or the pairs
// of indices that come one after the other.
func requireUnrelated(t *testing.T, a, b []int) {
	t.Helper()
	follows, equal, pairs := map[int]int{}, 0, 0
	for i, index := range a[1:] {
		follows[a[i]] = index
	}
	for i := range min(len(a), len(b)) {
		if a[i] == b[i] {
			equal++
		}
		if next, ok := follows[b[i]]; ok && i+1 < len(b) && next == b[i+1] {
			pairs++
		}
	}
	require.Less(t, equal, 40, "of 4000 positions have the same index")
	require.Less(t, pairs, 400, "of 4000 pairs follow each other in both")
}
