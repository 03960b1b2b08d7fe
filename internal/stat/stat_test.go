package stat

import (
	"math"
	"math/rand/v2"
	"slices"
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
	require.Empty(t, Totals(nil))
	require.Equal(t, []float64{0, 0}, Drift(nil, 3, 2))
}

// outside is the probability that a variable of Student's distribution is beyond ±t: its
// density, integrated by Simpson's rule over the angle whose tangent is t/√df.
func outside(t, df float64) float64 {
	const n = 2000
	lg := func(x float64) float64 { y, _ := math.Lgamma(x); return y }
	h, sum := math.Atan(t/math.Sqrt(df))/n, 0.0
	for i := range n + 1 {
		weight := []float64{2, 4}[i%2]
		if i == 0 || i == n {
			weight = 1
		}
		sum += weight * math.Pow(math.Cos(float64(i)*h), df-1)
	}
	return 1 - 2*math.Exp(lg((df+1)/2)-lg(df/2))/math.Sqrt(math.Pi)*sum*h/3
}

func TestStudentsQuantilesAreWhereTheirDistributionSays(t *testing.T) {
	require.InDelta(t, 2.776, StudentT(0.95, 4), 0.0005)
	for _, df := range []float64{1, 2, 2.5, 3, 3.7, 4, 4.9, 5, 6, 10.5, 30, 100} {
		for _, confidence := range []float64{0.5, 0.68, 0.9, 0.95, 0.99, 0.999} {
			require.InEpsilon(t, 1-confidence, outside(StudentT(confidence, df), df), 8e-5, "%v with %v", confidence, df)
		}
	}
	require.InDelta(t, 1.95996, StudentT(0.95, 1e9), 1e-4, "that of a normal distribution")
	require.Less(t, StudentT(0.95, 1.5), StudentT(0.95, 1))
	for _, df := range []float64{-1, 0, 0.99} {
		require.True(t, math.IsInf(StudentT(0.95, df), 1))
	}
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

// table is values by row and time; NaN: none.
func table(rows ...[]float64) (obs []Obs) {
	for r, values := range rows {
		for at, v := range values {
			if !math.IsNaN(v) {
				obs = append(obs, Obs{r, at, v})
			}
		}
	}
	return obs
}

// Worked out apart from this code, with rows and times as unknowns alike. Most times
// have values of two to six rows, some have one. Row 4 has one value, row 8 only values
// that are alone in their time, row 9 none.
func TestDriftIsHubersFitOfRowsAndTimes(t *testing.T) {
	none := math.NaN()
	obs := table(
		[]float64{0, 0.52, -0.32, 0.22, 0.85, none, -0.52}, []float64{1.96, 2.5, 1.66, 2.16, none, 2.01, 1.42},
		[]float64{4.03, 4.61, 3.74, none, none, 3.97, 3.37}, []float64{6.07, 6.49, none, none, none, none, 5.35}, []float64{none, 9.31},
		[]float64{none, none, none, none, none, none, 11.7, 12.4, 12.1, 12.2, 12.3}, []float64{none, none, none, none, none, none, 13.7, 14.6, 14.3, 14.1, 14.2},
		[]float64{none, none, none, none, none, none, 15.7, 16.5, 16.2, 16.3, 16.2},
	)
	obs = append(obs, Obs{8, 11, 3.5}, Obs{8, 12, 3.9})
	require.InDeltaSlice(t, []float64{0, 0.5322374204, -0.2694072834, 0.158730323, 0, 0, -0.5623758974, 0.2048356931, 0, 0, 0, 0, 0}, Drift(obs, 10, 13), 1e-9)
}

// Times 2 and 3 are slower by 1 than times 0 and 1, which most values are of.
func TestDriftIsCentredAlthoughRowsWereThereAtDifferentTimes(t *testing.T) {
	none := math.NaN()
	obs := table([]float64{-0.02, none, none, 0.98}, []float64{9.98, 10.01, none, 11.01}, []float64{none, 19.98}, []float64{30, 30, 31, 31}, []float64{none, 40.01, 41.01, 41.01})
	require.InDeltaSlice(t, []float64{-0.0001151096, 0, 0.9999022655, 0.9999406577}, Drift(obs, 5, 4), 1e-9)
	obs = append(obs, Obs{0, 4, 5}) // alone: no drift but what centring makes of it
	require.InDeltaSlice(t, []float64{-0.2505654325, -0.2504503228, 0.7494519427, 0.7494903349, 0.2504503228}, Drift(obs, 5, 5), 1e-9)
	require.InDeltaSlice(t, []float64{-1, 0, 1}, Drift(table([]float64{0, 1, 2}, []float64{10, 11, 12}, []float64{20, 21, 22}), 3, 3), 1e-4)
}

func TestOfTwoValuesOfATimeOnlyWhatBothShareIsDrift(t *testing.T) {
	for _, c := range []struct{ first, second, drift float64 }{
		{0.3, 0.2, 0.2}, {0.2, 0.3, 0.2}, {-0.3, -0.2, -0.2}, {0.3, -0.2, 0}, {-0.2, 0.3, 0}, {0.3, 0, 0},
	} {
		var obs []Obs
		for r := range 2 {
			for at := range 5 {
				obs = append(obs, Obs{r, at, float64(10 * r)})
			}
		}
		obs = append(obs, Obs{0, 5, c.first}, Obs{1, 5, 10 + c.second})
		require.InDeltaSlice(t, []float64{0, 0, 0, 0, 0, c.drift}, Drift(obs, 2, 6), 1e-4, "%+v", c)
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
	require.InDelta(t, 0.3, drift[1]-drift[0], 1e-3)
	require.InDelta(t, 0.6, drift[2]-drift[0], 1e-3)
}

// Each side is many in turn: what grows with the cube of the larger would take minutes.
func TestDriftOfThousandsOfRowsOrTimesIsFoundSoon(t *testing.T) {
	times := []float64{0, 0.5, 1, 1.5, 2}
	for at, drift := range Drift(observe(rand.New(rand.NewPCG(1, 1)), 3000, times, 0.01), 3000, 5) {
		require.InDelta(t, times[at]-1, drift, 0.01)
	}
	times = slices.Repeat(times, 600)
	for at, drift := range Drift(observe(rand.New(rand.NewPCG(1, 1)), 5, times, 0.001), 5, 3000) {
		require.InDelta(t, times[at]-1, drift, 0.01)
	}
}

// Row 2 was there only while all was slower; what it has for itself shows beside the others.
func TestARowThatCameLateIsMeasuredByThoseThatWereThereBefore(t *testing.T) {
	none := math.NaN()
	drift := Drift(table(
		[]float64{0, 0, 0, 0, 0.4, 0.4, 0.4, none},
		[]float64{1, 1, 1, 1, none, none, none, none},
		[]float64{none, none, none, none, 2.4, 2.4, 2.4, 2.4},
	), 3, 8)
	require.InDeltaSlice(t, []float64{0, 0, 0, 0, 0.4, 0.4, 0.4}, drift[:7], 1e-3)
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

// Each of two short windows met a stall: all iterations but two took 8 ms, as elsewhere.
func TestAStallInEachOfAFewPartsIsNotTheUsualTime(t *testing.T) {
	steady := []Part{{8, 10}, {8.1, 10}, {7.9, 10}, {8, 10}}
	totals := Totals([][]Part{steady, {{8, 4}, {72, 1}, {8, 2}, {110, 1}}})
	require.Less(t, totals[1].Mean, 25.0, "the plain mean is 28")
	require.Greater(t, totals[1].SE, 0.2)
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

// Worked out apart from this code, by the formulas of the papers that it names.
// Worked out apart from this code, by the formulas of the paper that it names.
// Each row weighs 1.
// Whatever the rows are.
// Thousands of events make odds beyond any number.
// Values far below the usual one are no events, nor fewer than none.

// Worked out apart from this code, by the formulas of the papers that it names.
func TestTotalsAreWhatTheirEstimatorsSay(t *testing.T) {
	stalls, huge := make([][]Part, 3), make([][]Part, 2)
	for r, usual := range []float64{1, 0.7, 0.5} {
		for k := range 24 {
			p := Part{usual * (1 + 0.01*float64(k*7%5-2)), float64(20 + k%3)}
			if r == 1 && k%3 == 0 || r == 2 && k == 3 {
				p.Mean += 0.6 * usual
			}
			stalls[r] = append(stalls[r], p)
		}
	}
	stalls[2] = stalls[2][:9]
	for k := range 20 {
		p := Part{1 + 0.01*float64(k*7%5-2), 1}
		huge[0] = append(huge[0], p)
		if k%5 < 2 {
			p.Mean += 12
		}
		huge[1] = append(huge[1], p)
	}
	for name, c := range map[string]struct {
		rows [][]Part
		want []Total
	}{
		"noise alone": {
			[][]Part{{{1, 10}, {1.02, 12}, {0.97, 8}}, {{0.8, 10}, {0.82, 10}}, {{0.5, 20}}},
			[]Total{{1, 0.015888705, 0.0216526551, 5}, {0.81, 0.0177958156, 0.0242516088, 4}, {0.5, 0.0187383929, 0.0255361251, 3}},
		},
		"fewer degrees of freedom than are lent": {
			[][]Part{{{1, 4}, {1.1, 4}}, {{3, 9}, {2.5, 4}}},
			[]Total{{1.05, 0.084272136, 0.114843563, 3}, {2.84615385, 0.0823836528, 0.112269994, 3}},
		},
		"one stall, which could have been anyone's": {
			[][]Part{{{1, 10}, {1.02, 12}, {0.97, 8}, {1.6, 10}}, {{0.8, 10}, {0.82, 10}, {0.79, 5}}, {{0.5, 20}, {0.52, 7}}},
			[]Total{{1.07486913, 0.024036147, 0.187017043, 6}, {0.851800805, 0.0248550526, 0.210852756, 5}, {0.533892243, 0.0263907819, 0.195952837, 4}},
		},
		"stalls that are mostly one row's": {
			stalls,
			[]Total{{1.02856404, 0.0314939245, 0.0403539157, 26}, {0.810208466, 0.0308422926, 0.0626236749, 26}, {0.537745406, 0.0403793715, 0.0813645897, 11}},
		},
		"stalls of many times a value": {
			huge,
			[]Total{{1.44715418, 0.862673091, 1.15560365, 22}, {5.33828568, 0.456296265, 1.7335761, 22}},
		},
		"one row alone": {
			[][]Part{{{1, 10}, {1.02, 10}, {1.5, 10}, {0.99, 10}}},
			[]Total{{1.12749455, 0.0222471653, 0.156479333, 6}},
		},
	} {
		for r, got := range Totals(c.rows) {
			want := c.want[r]
			require.InEpsilonSlice(t, []float64{want.Mean, want.SE, want.Own, want.Free}, []float64{got.Mean, got.SE, got.Own, got.Free}, 1e-7, "%s, row %d: %+v", name, r, got)
		}
	}
}

func TestWithoutRepetitionNothingIsKnownOfTheError(t *testing.T) {
	require.Equal(t, []Total{{Mean: 3}, {Mean: 4}}, Totals([][]Part{{{3, 5}}, {{4, 5}}}))
}

// Values far below the usual one are no stalls that others may have met.
func TestAMeanIsPositiveHoweverFastSomeValuesAre(t *testing.T) {
	for _, total := range Totals([][]Part{{{1, 1}, {1, 1}, {1.01, 1}, {1e-9, 90}, {1, 90}}, {{1, 9}, {1, 9}, {1.01, 9}}}) {
		require.Positive(t, total.Mean)
	}
	rng := rand.New(rand.NewPCG(1, 1))
	for range 500 {
		rows := make([][]Part, 1+rng.IntN(6))
		often, size := rng.Float64(), math.Exp(20*rng.Float64()-10)
		for r := range rows {
			for range 1 + rng.IntN(12) {
				p := Part{1e6 * (1 + 0.1*rng.Float64()), 1 + float64(rng.IntN(1000))}
				if rng.Float64() < often {
					p.Mean *= size
				}
				rows[r] = append(rows[r], p)
			}
		}
		totals := Totals(rows)
		require.Equal(t, totals, Totals(rows))
		for _, total := range totals {
			require.Positive(t, total.Mean)
			require.Less(t, total.Mean, 1e18)
			require.GreaterOrEqual(t, min(total.SE, total.Own), 0.0, "%+v", total)
		}
	}
}
