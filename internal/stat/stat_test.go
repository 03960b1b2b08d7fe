package stat

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheMedianIsTheMiddleValueOrTheMeanOfTheMiddleTwo(t *testing.T) {
	xs := []float64{9, 3, 1}
	require.Equal(t, 3.0, Median(xs))
	require.Equal(t, []float64{9, 3, 1}, xs, "the argument stays as it was")
	require.Equal(t, 2.5, Median([]float64{4, 1, 3, 2}))
	require.True(t, math.IsNaN(Median(nil)))
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
	require.InDeltaSlice(t, []float64{0, 0.5322374204, -0.2694072834, 0.158730323, 0, 0, -0.5623758974, 0.2048356931, 0, 0, 0, 0, 0}, Drift(obs, 10, 13), 0.02)
}

// Times 2 and 3 are slower by 1 than times 0 and 1, which most values are of.
func TestDriftIsCentredAlthoughRowsWereThereAtDifferentTimes(t *testing.T) {
	none := math.NaN()
	obs := table([]float64{-0.02, none, none, 0.98}, []float64{9.98, 10.01, none, 11.01}, []float64{none, 19.98}, []float64{30, 30, 31, 31}, []float64{none, 40.01, 41.01, 41.01})
	require.InDeltaSlice(t, []float64{-0.0001151096, 0, 0.9999022655, 0.9999406577}, Drift(obs, 5, 4), 0.02)
	obs = append(obs, Obs{0, 4, 5}) // alone: no drift but what centring makes of it
	require.InDeltaSlice(t, []float64{-0.2505654325, -0.2504503228, 0.7494519427, 0.7494903349, 0.2504503228}, Drift(obs, 5, 5), 0.02)
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

func TestAMeanIsThatOfAllValues(t *testing.T) {
	means, _, _ := Totals([][]Part{{{1, 10}, {4, 5}}, {{3, 1}}})
	require.Equal(t, []float64{2, 3}, means)
}

// Of 2000 repetitions, how far means lie from the truth is compared with what is said of it.
func TestStandardErrorsAreHowFarMeansLieFromTheTruth(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	off, said := 0.0, 0.0
	for range 2000 {
		rows := make([][]Part, 3)
		for r, usual := range []float64{1, 3, 0.2} {
			for range 5 {
				weight := float64(1 + rng.IntN(20))
				rows[r] = append(rows[r], Part{usual * (1 + 0.1*rng.NormFloat64()/math.Sqrt(weight)), weight})
			}
		}
		means, se, _ := Totals(rows)
		off, said = off+math.Pow(means[2]/0.2-1, 2), said+se[2]*se[2]
	}
	require.InEpsilon(t, off, said, 0.1)
}

func TestARowWithoutALargeValueIsNoSurerThanOneWithIt(t *testing.T) {
	usual := []Part{{1, 25}, {1.01, 25}, {0.99, 25}, {1.02, 25}}
	_, se, _ := Totals([][]Part{append(usual[:3:3], Part{3, 25}), usual})
	require.Equal(t, se[0], se[1])
	require.Greater(t, se[1], 0.1)
}

func TestValuesOfWhichFewAreFarOffHaveAnExcess(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	normal, few := make([]Part, 4000), make([]Part, 4000)
	for i := range normal {
		normal[i], few[i] = Part{1 + 0.1*rng.NormFloat64(), 1}, Part{1, 1}
		if i%100 == 0 {
			few[i].Mean = 2
		}
	}
	for _, c := range []struct {
		parts  []Part
		excess float64
	}{{normal, 0}, {few, 95}, {[]Part{{1, 1}, {2, 1}}, 0}, {[]Part{{1, 1}}, 0}} {
		_, _, rare := Totals([][]Part{c.parts})
		require.InDelta(t, c.excess, rare, 0.3)
	}
}

func TestWithoutRepetitionNothingIsKnownOfTheError(t *testing.T) {
	means, se, _ := Totals([][]Part{{{3, 5}}, {{4, 5}}})
	require.Equal(t, []float64{3, 4}, means)
	require.Equal(t, []float64{0, 0}, se)
	means, _, _ = Totals(nil)
	require.Empty(t, means)
}
