package stat

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestQuantilesInterpolateBetweenNeighbours(t *testing.T) {
	xs := []float64{4, 1, 3, 2}
	for p, want := range map[float64]float64{-1: 1, 0: 1, 0.25: 1.75, 0.5: 2.5, 0.99: 3.97, 1: 4, 2: 4} {
		require.InDelta(t, want, Quantile(xs, p), 1e-12, "p = %v", p)
	}
	require.Equal(t, []float64{4, 1, 3, 2}, xs, "the argument stays as it was")
	require.Equal(t, 3.0, Median([]float64{9, 3, 1}))
	require.Equal(t, 2.5, Mean(xs))
}

func TestNothingHasNoMeanAndNoQuantile(t *testing.T) {
	require.True(t, math.IsNaN(Mean(nil)))
	require.True(t, math.IsNaN(Median(nil)))
}

func TestStudentsQuantilesAgreeWithTheTables(t *testing.T) {
	for _, tt := range []struct{ confidence, df, want float64 }{
		{0.95, 1, 12.7062}, {0.95, 2, 4.3027}, {0.95, 3, 3.1824}, {0.95, 4, 2.7764}, {0.95, 5, 2.5706},
		{0.95, 10, 2.2281}, {0.95, 30, 2.0423}, {0.95, 1e6, 1.9600},
		{0.99, 1, 63.6567}, {0.99, 3, 5.8409}, {0.99, 7, 3.4995}, {0.999, 4, 8.6103},
		{0.5, 3, 0.7649}, {0.5, 20, 0.6870},
	} {
		require.InEpsilon(t, tt.want, StudentT(tt.confidence, tt.df), 2e-3, "%v with %v", tt.confidence, tt.df)
	}
	require.True(t, math.IsInf(StudentT(0.95, 0), 1))
}

// observe draws rows × times values: row effects 0, 1, 2 …, the times' own, and noise.
func observe(rng *rand.Rand, rows int, times []float64, noise float64) []Obs {
	var obs []Obs
	for r := range rows {
		for at, effect := range times {
			obs = append(obs, Obs{Row: r, Time: at, Value: float64(r) + effect + noise*rng.NormFloat64()})
		}
	}
	return obs
}

func TestWhatAllRowsShareIsDrift(t *testing.T) {
	times := []float64{0, 0.5, 1, 1.5, 2}
	drift := Drift(observe(rand.New(rand.NewPCG(1, 1)), 4, times, 0.001), 4, 5)
	for at := range times {
		require.InDelta(t, times[at]-1, drift[at], 0.01, "centred")
	}
}

func TestAValueThatIsAloneInItsTimeSaysNothingOfItsRow(t *testing.T) {
	var obs []Obs
	for at, effect := range []float64{0, 0.3, 0.6} {
		obs = append(obs, Obs{Row: 0, Time: at, Value: effect}, Obs{Row: 1, Time: at, Value: 1 + effect})
	}
	for at := 3; at < 12; at++ {
		obs = append(obs, Obs{Row: 0, Time: at, Value: 5})
	}
	drift := Drift(obs, 2, 12)
	require.InDelta(t, 0.3, drift[1]-drift[0], 1e-9)
	require.InDelta(t, 0.6, drift[2]-drift[0], 1e-9)
}

func TestWhatHappensToOneRowIsNoDrift(t *testing.T) {
	obs := observe(rand.New(rand.NewPCG(1, 1)), 3, make([]float64, 6), 0.01)
	obs[7].Value += 3
	for _, d := range Drift(obs, 3, 6) {
		require.InDelta(t, 0, d, 0.02)
	}
	// Of two rows, neither is the measure of the other.
	obs = observe(rand.New(rand.NewPCG(1, 1)), 2, make([]float64, 6), 0.01)
	obs[7].Value += 3
	for _, d := range Drift(obs, 2, 6) {
		require.InDelta(t, 0, d, 0.03)
	}
}

func TestNoiseIsNoDrift(t *testing.T) {
	sum := 0.0
	for _, d := range Drift(observe(rand.New(rand.NewPCG(3, 1)), 6, make([]float64, 40), 0.1), 6, 40) {
		sum += math.Abs(d) / 40
	}
	require.Less(t, sum, 0.01, "a tenth of the noise")
}

// parts draws the parts of a row: noise of one value, and stalls.
func parts(rng *rand.Rand, n int, mean, noise, often, long float64) []Part {
	const values = 25
	out := make([]Part, n)
	for i := range out {
		sum := 0.0
		for range values {
			sum += mean * (1 + noise*rng.NormFloat64())
			if rng.Float64() < often {
				sum += long
			}
		}
		out[i] = Part{Mean: sum / values, Weight: values}
	}
	return out
}

func TestARowsOwnStallsAreInItsMean(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	totals := Totals([][]Part{
		parts(rng, 40, 1, 0.05, 0, 0), parts(rng, 40, 0.8, 0.05, 0, 0), parts(rng, 40, 0.5, 0.05, 0.02, 40), parts(rng, 40, 0.4, 0.05, 0.02, 40),
	})
	require.InDelta(t, 1, totals[0].Mean, 0.2)
	require.InDelta(t, 1.3, totals[2].Mean, 0.5)
	require.Greater(t, totals[3].Mean, totals[0].Mean)
}

func TestARareStallThatAllShareDoesNotSetRowsApart(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 1))
	worst := 0.0
	for range 50 {
		rows := make([][]Part, 6)
		for i := range rows {
			rows[i] = parts(rng, 6, 1, 0.05, 0.01, 10)
		}
		totals := Totals(rows)
		for _, one := range totals {
			worst += math.Abs(one.Mean/totals[0].Mean-1) / 300
		}
	}
	require.Less(t, worst, 0.04, "plain means differ by 9 %")
}

func TestARowWithoutALargeValueIsNoSurerThanOneWithIt(t *testing.T) {
	usual := []Part{{1, 25}, {1.01, 25}, {0.99, 25}, {1.02, 25}}
	totals := Totals([][]Part{append(usual[:3:3], Part{3, 25}), usual})
	require.Greater(t, 1.96*totals[1].Own, 0.5, "a mean of 1.5 isn't ruled out")
	require.Less(t, totals[1].SE, totals[1].Own, "what all rows may meet sets them less apart")
}

func TestWithoutRepetitionTheErrorIsNothing(t *testing.T) {
	totals := Totals([][]Part{{{3, 5}}, {{4, 5}}})
	require.Equal(t, []Total{{Mean: 3}, {Mean: 4}}, totals)
}
