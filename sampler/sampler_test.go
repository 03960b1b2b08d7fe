package sampler_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/permute"
	"github.com/nwt-go/nwt/sampler"
)

func orderOf(s nwt.Sampler, epoch int) []int {
	indices := make([]int, s.Len())
	for i := range indices {
		indices[i] = s.At(epoch, i)
	}
	return indices
}

func TestSelectShufflesAPartOfTheDataset(t *testing.T) {
	part := []int{40, 10, 30, 10}
	s, err := sampler.Select(nwt.Shuffled(len(part), 1), part)
	require.NoError(t, err)
	clear(part)
	require.Equal(t, 4, s.Len())
	require.ElementsMatch(t, []int{40, 10, 30, 10}, orderOf(s, 0))
	require.NotEqual(t, orderOf(s, 0), orderOf(s, 1))
}

func TestSelectSaysWhatIsWrong(t *testing.T) {
	_, err := sampler.Select(nil, []int{1})
	require.ErrorContains(t, err, "the sampler is nil")
	_, err = sampler.Select(nwt.Sequential(1), nil)
	require.ErrorContains(t, err, "needs at least one index")
	_, err = sampler.Select(nwt.Sequential(2), []int{3, -4})
	require.ErrorContains(t, err, "indices[1] = -4: must be at least 0")
	s, err := sampler.Select(unprinted{nwt.Sequential(3)}, []int{5, 6})
	require.NoError(t, err)
	require.PanicsWithValue(t, "sampler: Select: position 2 of epoch 4 is entry 2 of 2", func() { s.At(4, 2) })
}

// An order for more samples than were selected would fail somewhere in its first epoch.
func TestSelectRefusesAnOrderForMoreSamplesThanItSelects(t *testing.T) {
	three := []int{40, 10, 30}
	heavyEnd, err := sampler.Weighted([]float64{1, 1, 1, 0.001}, 2, 1)
	require.NoError(t, err)
	outer, err := sampler.Select(nwt.Shuffled(2, 1), []int{0, 3})
	require.NoError(t, err)
	for _, s := range []nwt.Sampler{nwt.Shuffled(10, 1), nwt.Sequential(4), heavyEnd, outer} {
		_, err := sampler.Select(s, three)
		require.ErrorAs(t, err, new(*nwt.ArgumentError), "%v", s)
		require.ErrorContains(t, err, "Select: "+fmt.Sprint(s)+": visits index ")
		require.ErrorContains(t, err, ", but only 3 indices are selected")
	}
	often, err := sampler.Weighted([]float64{1, 2, 3}, 50, 1)
	require.NoError(t, err)
	zeroEnd, err := sampler.Weighted([]float64{1, 1, 1, 0}, 50, 1)
	require.NoError(t, err)
	for _, s := range []nwt.Sampler{nwt.Shuffled(3, 1), nwt.Shuffled(2, 1), often, zeroEnd} {
		part, err := sampler.Select(s, three)
		require.NoError(t, err, "%v", s)
		require.Subset(t, three, orderOf(part, 0))
	}
}

func TestAComputedOrderThatCanNotBeUsedIsNamed(t *testing.T) {
	_, err := sampler.Computed(0, nil)
	require.ErrorContains(t, err, "0: the length of an epoch must be 1")
	require.ErrorContains(t, err, "the function is nil")
	_, err = sampler.Computed(permute.MaxLen+1, func(int) []int { return nil })
	require.ErrorContains(t, err, fmt.Sprintf("the length of an epoch must be 1 … %d", permute.MaxLen))
	for _, n := range []int{1, permute.MaxLen} {
		s, err := sampler.Computed(n, func(int) []int { return nil })
		require.NoError(t, err)
		require.Equal(t, fmt.Sprintf("Computed(%d)", n), fmt.Sprint(s))
	}
}

func TestAPositionOutsideTheEpochPanicsWithBothNumbers(t *testing.T) {
	local, err := sampler.LocallyShuffled([]int{2, 1}, 2, 1)
	require.NoError(t, err)
	tokens, err := sampler.TokenBatches(3, lengthOf, sampler.Tokens{Max: 1000}, 1)
	require.NoError(t, err)
	computed, err := sampler.Computed(3, func(int) []int { return make([]int, 3) })
	require.NoError(t, err)
	for _, s := range []nwt.Sampler{local, tokens, computed} {
		require.PanicsWithValue(t, "nwt: position 3 is outside an epoch of 3 samples", func() { s.At(0, 3) })
		require.PanicsWithValue(t, "nwt: position -1 is outside an epoch of 3 samples", func() { s.At(0, -1) })
	}
}

func TestASamplerSaysWhatItIs(t *testing.T) {
	weights := []float64{1, 2, 3}
	weighted, err := sampler.Weighted(weights, 9, 1)
	require.NoError(t, err)
	once, err := sampler.WeightedWithoutReplacement(weights, 2, 7)
	require.NoError(t, err)
	buckets, err := sampler.Bucketed(100, lengthOf, sampler.Buckets{BatchSize: 4, World: 2}, 42)
	require.NoError(t, err)
	part, err := sampler.Select(nwt.Shuffled(2, 42), []int{5, 6})
	require.NoError(t, err)
	for want, s := range map[string]nwt.Sampler{
		"Weighted(9 draws by 3 weights, seed 1)":                   weighted,
		"WeightedWithoutReplacement(2 draws by 3 weights, seed 7)": once,
		"Bucketed(100, steps of 8, windows of 64, seed 42)":        buckets,
		"Select(Shuffled(2, seed 42), 2 indices)":                  part,
	} {
		require.Equal(t, want, fmt.Sprint(s))
	}
}

// States that were kept hold hashes of them: a state of today is resumed by every later version.
func TestFingerprintsStayWhatTheyAre(t *testing.T) {
	weights, length := []float64{1, 2, 0, 4}, func(i int) int { return 1 + i%3 }
	of := func(s nwt.Sampler, err error) string {
		require.NoError(t, err)
		return s.(nwt.Fingerprinter).Fingerprint()
	}
	tokens, err := sampler.TokenBatches(10, length, sampler.Tokens{Max: 6}, 1)
	require.NoError(t, err)
	require.Equal(t, []string{
		"Sequential",
		"Shuffled, seed 7",
		"Weighted(8 draws by 4 weights, seed 7), weights eae762850166082b",
		"WeightedWithoutReplacement(3 draws by 4 weights, seed 7), weights eae762850166082b",
		"LocallyShuffled(7 in 2 blocks, windows of 2, seed 7), blocks 8f57ae1fb20a2c29",
		"Bucketed(10, steps of 2, windows of 64, seed 7)",
		"TokenBatches(10, 4 batches of at most 6 tokens, seed 1), {Max:6 MaxSamples:0 Window:0}, lengths 106d2a53a596eca1",
		"Mixed(10, 2 parts, 2 phases, blocks of 1000, seed 7) [5 0] [[1 2] [2 1]] 3 4",
		"Computed(10)",
		"Select(Shuffled, seed 7, eb5aa532310516d4)",
		"Select(, eb5aa532310516d4)",
	}, []string{
		of(nwt.Sequential(10), nil),
		of(nwt.Shuffled(10, 7), nil),
		of(sampler.Weighted(weights, 8, 7)),
		of(sampler.WeightedWithoutReplacement(weights, 3, 7)),
		of(sampler.LocallyShuffled([]int{3, 4}, 2, 7)),
		of(sampler.Bucketed(10, length, sampler.Buckets{BatchSize: 2}, 7)),
		of(tokens, nil),
		of(sampler.Mixed(10, nwt.Mix{Parts: []int{3, 4}, Phases: []nwt.Phase{{Samples: 5, Weights: []float64{1, 2}}, {Weights: []float64{2, 1}}}}, 7)),
		of(sampler.Computed(10, func(int) []int { return nil })),
		of(sampler.Select(nwt.Shuffled(3, 7), []int{5, 1, 2})),
		of(sampler.Select(unprinted{nwt.Shuffled(3, 7)}, []int{5, 1, 2})),
	})
}

type unprinted struct{ s nwt.Sampler }

func (u unprinted) Len() int            { return u.s.Len() }
func (u unprinted) At(epoch, i int) int { return u.s.At(epoch, i) }
