package sampler_test

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/sampler"
)

// partOf tells which of some parts an index is in, and its place there.
func partOf(parts []int, index int) (part, there int) {
	for index >= parts[part] {
		index -= parts[part]
		part++
	}
	return part, index
}

func TestEveryBlockOfAMixtureHasItsExactShares(t *testing.T) {
	parts := []int{17, 1000, 3}
	s, err := sampler.Mixed(130, nwt.Mix{Parts: parts, Phases: []nwt.Phase{{Weights: []float64{0.5, 0.3, 0.2}}}, Block: 10}, 1)
	require.NoError(t, err)
	for block := range 100 {
		count := [3]int{}
		for i := range 10 {
			position := 10*block + i
			part, _ := partOf(parts, s.At(position/130, position%130))
			count[part]++
		}
		require.Equal(t, [3]int{5, 3, 2}, count)
	}
}

// What a block rounds off, later ones make up for: no part has too much or too little for long.
func TestAMixtureKeepsItsSharesHoweverLongItRuns(t *testing.T) {
	many := slices.Repeat([]float64{1}, 300)
	many[7], many[150] = 1000, 0.01
	for _, c := range []struct {
		block   int
		weights []float64
		within  float64
	}{
		{1000, []float64{0.0014, 0.9986}, 1.5},
		{10, []float64{1, 1, 1}, 1.5},
		{10, []float64{0.01, 0.09, 0.9}, 1.5}, // less than one per block
		{1, []float64{0.3, 0.3, 0.4}, 1.5},
		{7, []float64{3, 0, 5, 1, 0}, 1.5},
		{1000, many, 3},
	} {
		parts, sum := slices.Repeat([]int{10}, len(c.weights)), 0.0
		for _, w := range c.weights {
			sum += w
		}
		s, err := sampler.Mixed(50*c.block, nwt.Mix{Parts: parts, Phases: []nwt.Phase{{Weights: c.weights}}, Block: c.block}, 1)
		require.NoError(t, err)
		counts := make([]int, len(parts))
		for block := range 200 {
			for i := range c.block {
				position := block*c.block + i
				part, _ := partOf(parts, s.At(position/s.Len(), position%s.Len()))
				counts[part]++
			}
			for part, w := range c.weights {
				require.InDelta(t, w/sum*float64((block+1)*c.block), counts[part], c.within, "part %d after block %d of %d", part, block, c.block)
			}
		}
	}
}

func TestEachPartOfAMixtureHasEpochsOfItsOwn(t *testing.T) {
	parts := []int{17, 40, 3}
	phases := []nwt.Phase{
		{Samples: 55, Weights: []float64{1, 0, 1}},
		{Samples: 203, Weights: []float64{5, 4, 1}},
		{Samples: 20, Weights: []float64{0, 0, 7}},
		{Weights: []float64{1, 1, 2}},
	}
	s, err := sampler.Mixed(31, nwt.Mix{Parts: parts, Phases: phases, Block: 20}, 1)
	require.NoError(t, err)
	var draws [3][]int
	var inPhase [4][3]int
	for position := range 2000 {
		part, there := partOf(parts, s.At(position/31, position%31))
		draws[part] = append(draws[part], there)
		switch {
		case position < 55:
			inPhase[0][part]++
		case position < 55+203:
			inPhase[1][part]++
		case position < 55+203+20:
			inPhase[2][part]++
		}
	}
	require.Zero(t, inPhase[0][1])
	require.InDelta(t, 27.5, inPhase[0][0], 1)
	require.InDelta(t, 101, inPhase[1][0], 1.5)
	require.InDelta(t, 81, inPhase[1][1], 1.5)
	require.Equal(t, [3]int{0, 0, 20}, inPhase[2])
	for part, length := range parts {
		// A block of 20 mixes the end of an epoch with the start of the next.
		require.Greater(t, len(draws[part]), 3*length)
		count := make([]int, length)
		for i, there := range draws[part] {
			count[there]++
			require.LessOrEqual(t, count[there], (i+20)/length+1, "no sample comes early")
		}
		for _, c := range count {
			require.GreaterOrEqual(t, c, (len(draws[part])-20)/length, "nor late")
		}
	}
}

func TestAMixtureIsItsSeeds(t *testing.T) {
	mix := nwt.Mix{Parts: []int{50, 50}, Phases: []nwt.Phase{{Weights: []float64{1, 1}}}}
	at := func(seed uint64) []int {
		s, err := sampler.Mixed(100, mix, seed)
		require.NoError(t, err)
		return orderOf(s, 3)
	}
	require.Equal(t, at(1), at(1))
	require.NotEqual(t, at(1), at(2))
}

func TestAPartWithoutSamplesHasTheWeight0(t *testing.T) {
	s, err := sampler.Mixed(100, nwt.Mix{Parts: []int{0, 3, 0, 2, 0}, Phases: []nwt.Phase{{Weights: []float64{0, 1, 0, 1, 0}}}, Block: 10}, 1)
	require.NoError(t, err)
	require.Equal(t, 4, s.(interface{ LastIndex() int }).LastIndex())
	drawn := map[int]int{}
	for i := range s.Len() {
		drawn[s.At(0, i)]++
	}
	require.Len(t, drawn, 5)
	require.Equal(t, 50, drawn[0]+drawn[1]+drawn[2])
	require.Equal(t, 50, drawn[3]+drawn[4])
}

func TestAMixtureThatCanNotBeUsedIsNamed(t *testing.T) {
	one := []nwt.Phase{{Weights: []float64{1}}}
	for _, c := range []struct {
		n    int
		mix  nwt.Mix
		says string
	}{
		{0, nwt.Mix{Parts: []int{1}, Phases: one}, "0: the length of an epoch must be 1"},
		{1, nwt.Mix{Phases: one}, "Mix.Parts must have at least 1 part"},
		{1, nwt.Mix{Parts: []int{-1}, Phases: one}, "-1: Mix.Parts[0] must be at least 0"},
		{1, nwt.Mix{Parts: []int{0}, Phases: one}, "1: Mix.Phases[0].Weights[0] must be 0: part 0 has no samples"},
		{1, nwt.Mix{Parts: []int{math.MaxInt, 1}, Phases: one}, "1: Mix.Parts[1] must be at least 0, and all parts at most"},
		{1, nwt.Mix{Parts: []int{1}}, "Mix.Phases must have at least 1 phase"},
		{1, nwt.Mix{Parts: []int{1}, Phases: one, Block: -1}, "-1: Mix.Block must be 1"},
		{1, nwt.Mix{Parts: []int{1, 2}, Phases: one}, "[1]: Mix.Phases[0].Weights must be 2 numbers, one for each part"},
		{1, nwt.Mix{Parts: []int{1}, Phases: []nwt.Phase{{Weights: []float64{1}}, {Weights: []float64{1}}}}, "0: Mix.Phases[0].Samples must be 1"},
		{1, nwt.Mix{Parts: []int{1}, Phases: []nwt.Phase{{Weights: []float64{math.NaN()}}}}, "NaN: Mix.Phases[0].Weights[0] must be 0"},
		{1, nwt.Mix{Parts: []int{1}, Phases: []nwt.Phase{{Weights: []float64{0}}}}, "the sum of Mix.Phases[0].Weights must be more than 0"},
		{1, nwt.Mix{Parts: []int{1, 1}, Phases: []nwt.Phase{{Weights: []float64{math.MaxFloat64, math.MaxFloat64}}}}, "the sum of Mix.Phases[0].Weights must be"},
		{1, nwt.Mix{Parts: []int{1, 1}, Phases: []nwt.Phase{{Samples: 4000, Weights: []float64{1e-4, 1}}, {Weights: []float64{1, 1}}}}, "0.0001: Mix.Phases[0].Weights[0] gives part 0 no sample among 4000"},
		{1, nwt.Mix{Parts: []int{1, 1}, Phases: []nwt.Phase{{Samples: 100, Weights: []float64{1e-3, 1}}, {Weights: []float64{1, 1}}}}, "0.001: Mix.Phases[0].Weights[0] gives part 0 no sample among 100"},
		{1, nwt.Mix{Parts: []int{1, 1}, Phases: []nwt.Phase{{Weights: []float64{1, 1e-30}}}}, "1e-30: Mix.Phases[0].Weights[1] gives part 1 no sample among"},
	} {
		_, err := sampler.Mixed(c.n, c.mix, 1)
		var oe *nwt.ArgumentError
		require.ErrorAs(t, err, &oe)
		require.ErrorContains(t, err, c.says)
	}
}

func TestAnErrorOfManyPartsIsShort(t *testing.T) {
	_, err := sampler.Mixed(1, nwt.Mix{Parts: make([]int, 3000), Phases: []nwt.Phase{{Weights: slices.Repeat([]float64{1}, 3000)}}}, 1)
	require.ErrorContains(t, err, "part 9 has no samples\nsampler: Mixed: 2990 more such numbers can't be used")
	require.Less(t, len(err.Error()), 1000)
}

func TestMixedOrdersStayWhatTheyWere(t *testing.T) {
	mix := nwt.Mix{Parts: []int{4, 9}, Phases: []nwt.Phase{{Samples: 13, Weights: []float64{1, 3}}, {Weights: []float64{1, 1}}}, Block: 8}
	s, err := sampler.Mixed(12, mix, 42)
	require.NoError(t, err)
	require.Equal(t, []int{9, 10, 2, 11, 7, 4, 12, 1, 4, 8, 0, 6}, orderOf(s, 0))
	require.Equal(t, []int{9, 1, 11, 10, 3, 0, 5, 7, 9, 2, 4, 0}, orderOf(s, 2))
}
