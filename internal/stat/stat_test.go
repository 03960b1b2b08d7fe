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

// observe draws rows × cols values: row effects 0, 1, 2 …, the columns' own, and noise.
func observe(rng *rand.Rand, rows int, cols []float64, noise float64) []Obs {
	var obs []Obs
	for r := range rows {
		for c, effect := range cols {
			obs = append(obs, Obs{Row: r, Col: c, Value: float64(r) + effect + noise*rng.NormFloat64(), Weight: 1})
		}
	}
	return obs
}

func TestRowsAreToldFromWhatTheirColumnsShare(t *testing.T) {
	obs := observe(rand.New(rand.NewPCG(1, 1)), 3, []float64{0, 0.5, 1, 1.5}, 0.001)
	obs = append(obs, Obs{Row: 3, Col: 3, Value: 3 + 1.5, Weight: 1}) // seen only when all were high
	rows := TwoWay(obs, 4, 4)
	for r := 1; r < 4; r++ {
		require.InDelta(t, float64(r), rows[r].Effect-rows[0].Effect, 0.05)
	}
}

func TestAnOutlierHardlyMovesItsRow(t *testing.T) {
	obs := observe(rand.New(rand.NewPCG(1, 1)), 3, make([]float64, 6), 0.01)
	clean := TwoWay(obs, 3, 6)
	obs[7].Value += 3
	rows := TwoWay(obs, 3, 6)
	require.InDelta(t, clean[1].Effect, rows[1].Effect, 0.02, "the plain mean moves by 0.5")
	require.Greater(t, rows[1].SE, clean[1].SE)
}

func TestHeavierObservationsCountMore(t *testing.T) {
	obs := []Obs{
		{Row: 0, Col: 0, Value: 1, Weight: 9}, {Row: 0, Col: 1, Value: 2, Weight: 1},
		{Row: 1, Col: 2, Value: 5, Weight: 1}, {Row: 1, Col: 3, Value: 6, Weight: 1},
	}
	rows := TwoWay(obs, 2, 4)
	require.Less(t, rows[0].Effect, 1.2)
	require.Greater(t, rows[1].SE, rows[0].SE)
}

func TestWithoutRepetitionTheErrorIsUnknown(t *testing.T) {
	rows := TwoWay([]Obs{{Row: 0, Value: 3, Weight: 1}, {Row: 1, Value: 4, Weight: 1}}, 2, 1)
	require.InDelta(t, 3, rows[0].Effect, 1e-9)
	require.InDelta(t, 4, rows[1].Effect, 1e-9)
	require.Zero(t, rows[0].DF)
}

// In about 95 % of experiments the interval holds the true difference of two rows.
func TestIntervalsHoldTheTruthAsOftenAsTheySay(t *testing.T) {
	for _, size := range []struct{ rows, cols int }{{2, 2}, {3, 12}, {4, 5}, {8, 5}, {8, 10}} {
		rng := rand.New(rand.NewPCG(4, 2))
		held, last := 0, size.rows-1
		for range 2000 {
			cols := make([]float64, size.cols)
			for c := range cols {
				cols[c] = 0.2 * rng.NormFloat64()
			}
			rows := TwoWay(observe(rng, size.rows, cols, 0.1), size.rows, size.cols)
			half := StudentT(0.95, rows[0].DF) * math.Hypot(rows[0].SE, rows[last].SE)
			if math.Abs(rows[last].Effect-rows[0].Effect-float64(last)) <= half {
				held++
			}
		}
		require.InDelta(t, 0.95, float64(held)/2000, 0.03, "%d rows, %d columns", size.rows, size.cols)
		t.Logf("%d rows, %d columns: %.1f %%", size.rows, size.cols, float64(held)/20)
	}
}
