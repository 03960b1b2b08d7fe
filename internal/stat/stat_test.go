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
	totals, changes := Totals(nil)
	require.Empty(t, totals)
	require.Empty(t, changes)
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
	totals, _ := Totals([][]Part{
		parts(rng, 40, 1, 0.05, 0, 0), parts(rng, 40, 0.8, 0.05, 0, 0), parts(rng, 40, 0.5, 0.05, 0.02, 40), parts(rng, 40, 0.4, 0.05, 0.02, 40),
	})
	require.InDelta(t, 1, totals[0].Mean, 0.2)
	require.InDelta(t, 1.3, totals[2].Mean, 0.5)
	require.Greater(t, totals[3].Mean, totals[0].Mean)
}

// Each of two short visits met a stall: all iterations but two took 8 ms, as elsewhere.
func TestAStallInEachOfAFewPartsIsNotTheUsualTime(t *testing.T) {
	steady := []Part{{8, 10}, {8.1, 10}, {7.9, 10}, {8, 10}}
	totals, _ := Totals([][]Part{steady, {{8, 4}, {72, 1}, {8, 2}, {110, 1}}})
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
		totals, _ := Totals(rows)
		for _, one := range totals {
			worst += math.Abs(one.Mean/totals[0].Mean-1) / 300
		}
	}
	require.Less(t, worst, 0.04, "plain means differ by 9 %")
}

func TestARowWithoutALargeValueIsNoSurerThanOneWithIt(t *testing.T) {
	usual := []Part{{1, 25}, {1.01, 25}, {0.99, 25}, {1.02, 25}}
	totals, _ := Totals([][]Part{append(usual[:3:3], Part{3, 25}), usual})
	require.Greater(t, 1.96*totals[1].Own, 0.5, "a mean of 1.5 isn't ruled out")
	require.Less(t, totals[1].SE, totals[1].Own, "what all rows may meet sets them less apart")
}

// Worked out apart from this code, by the formulas of the papers that it names.
func TestTotalsAreWhatTheirEstimatorsSay(t *testing.T) {
	stalls := make([][]Part, 3)
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
	huge := make([][]Part, 2)
	for k := range 20 {
		p := Part{1 + 0.01*float64(k*7%5-2), 1}
		huge[0] = append(huge[0], p)
		if k%5 < 2 {
			p.Mean += 12
		}
		huge[1] = append(huge[1], p)
	}
	upwards := make([][]Part, 3)
	for k := range 20 {
		for r, usual := range []float64{1, 0.9, 0.7} {
			p := Part{1 + 0.01*float64(k*7%5-2), 1}
			if r == 2 && k%10 == 3 || r == 1 && k == 7 {
				p.Mean += 12
			}
			p.Mean *= usual
			upwards[r] = append(upwards[r], p)
		}
	}
	twice := make([][]Part, 4)
	for k := range 40 {
		for r, usual := range []float64{1, 0.9, 0.8, 0.7} {
			p := Part{1 + 0.01*float64(k*7%5-2), 1}
			if r == 3 && k%8 < 3 || r == 2 && k%10 == 3 {
				p.Mean += 12
			}
			p.Mean *= usual
			twice[r] = append(twice[r], p)
		}
	}
	for name, c := range map[string]struct {
		rows    [][]Part
		want    []Total
		changes [][]Change
	}{
		"noise alone": {
			rows: [][]Part{{{1, 10}, {1.02, 12}, {0.97, 8}}, {{0.8, 10}, {0.82, 10}}, {{0.5, 20}}},
			want: []Total{{1, 1, 0.015888705, 0.0216526551, 0, 5, 0}, {0.81, 0.81, 0.0177958156, 0.0242516088, 0, 4, 0}, {0.5, 0.5, 0.0187383929, 0.0255361251, 0, 3, 0}},
		},
		"fewer degrees of freedom than are lent": {
			rows: [][]Part{{{1, 4}, {1.1, 4}}, {{3, 9}, {2.5, 4}}},
			want: []Total{{1.05, 1.05, 0.084272136, 0.114843563, 0, 3, 0}, {2.84615385, 2.84615385, 0.0823836528, 0.112269994, 0, 3, 0}},
		},
		"one stall, that could have been anyone's": {
			rows: [][]Part{{{1, 10}, {1.02, 12}, {0.97, 8}, {1.6, 10}}, {{0.8, 10}, {0.82, 10}, {0.79, 5}}, {{0.5, 20}, {0.52, 7}}},
			want: []Total{{1.07486913, 1.01707408, 0.024036147, 0.187017043, 0.17449293, 6, 0}, {0.851800805, 0.806, 0.0248550526, 0.210852756, 0.19730227, 5, 0}, {0.533892243, 0.505185185, 0.0263907819, 0.195952837, 0.182645068, 4, 0}},
		},
		"stalls that are mostly one row's": {
			rows: stalls,
			want: []Total{{0.999623016, 0.999623016, 0.00392812708, 0.0220302353, 0.0213699606, 26, 0}, {0.812177384, 0.71592824, 0.0105909933, 0.0626236749, 0.0539167068, 26, 0.0128810804}, {0.570319879, 0.502732673, 0.0146356684, 0.0867481447, 0.0748049489, 11, 0.0128810804}},
		},
		"stalls of many times a value": {
			rows: huge,
			want: []Total{{1, 1, 0.00422380454, 0.578307667, 0.57827902, 22, 0}, {5.79964235, 1.03176196, 0.0977743156, 1.7335761, 0.292587652, 22, 0.399891527}},
		},
		"stalls that may be more frequent in later rows": {
			rows:    upwards,
			want:    []Total{{1.59709197, 1, 0.0669364391, 0.599785593, 0.369540637, 22, 0}, {1.43759612, 0.900133585, 0.066939431, 0.848209066, 0.526864469, 22, 0}, {1.12229465, 0.702711344, 0.0669541766, 1.03432542, 0.644163843, 22, 0}},
			changes: [][]Change{{{1, 0, []float64{1, 1.58871177, 1.39128953}, 0.340784393}, {2, 0, []float64{1.26993321, 1.17006679, 1.5400013}, 0.223293554}}},
		},
		"stalls that are less frequent in later rows": {
			rows: [][]Part{upwards[2], upwards[1], upwards[0]},
			want: []Total{{1.12229465, 0.702711344, 0.0669541766, 1.03432542, 0.644163843, 22, 0}, {1.43759612, 0.900133585, 0.066939431, 0.848209066, 0.526864469, 22, 0}, {1.59709197, 1, 0.0669364391, 0.599785593, 0.369540637, 22, 0}},
		},
		"stalls that surely become more frequent, perhaps elsewhere or twice": {
			rows:    twice,
			want:    []Total{{1, 1, 0.00275899406, 0.297361344, 0.297337573, 42, 0}, {0.9, 0.9, 0.00275899406, 0.297361344, 0.297337573, 42, 0}, {2.13650813, 0.80389146, 0.466099813, 0.903949263, 0, 42, 0.236697027}, {3.51487432, 0.715355624, 0.342827715, 1.170054, 0, 42, 0.236697027}},
			changes: [][]Change{{{3, 0, []float64{1.15935142, 1.05935142, 1.44129715, 3.84991607}, 0.192088771}}, {{3, 2, []float64{1.76, 3.84991607}, 0.851685716}}},
		},
		"one row alone": {
			rows: [][]Part{{{1, 10}, {1.02, 10}, {1.5, 10}, {0.99, 10}}},
			want: []Total{{1.12749455, 1.01624515, 0.0222471653, 0.156479333, 0.138763604, 6, 0}},
		},
	} {
		totals, changes := Totals(c.rows)
		for r, got := range totals {
			want := c.want[r]
			require.InEpsilonSlice(t, []float64{want.Mean, want.Usual, want.SE, want.Own, want.Free}, []float64{got.Mean, got.Usual, got.SE, got.Own, got.Free}, 1e-7, "%s, row %d: %+v", name, r, got)
			require.InDelta(t, want.Lent, got.Lent, 1e-7*want.Own, "%s, row %d", name, r)
			require.InDelta(t, want.Often, got.Often, 1e-9, "%s, row %d", name, r)
		}
		require.Len(t, changes, len(c.changes), name)
		for i, list := range changes {
			require.Len(t, list, len(c.changes[i]), name)
			for k, got := range list {
				want := c.changes[i][k]
				require.Equal(t, [2]int{want.Row, want.From}, [2]int{got.Row, got.From}, name)
				require.InEpsilonSlice(t, append(want.Means, want.Chance), append(got.Means, got.Chance), 1e-7, "%s: %+v", name, got)
			}
		}
	}
}

// Worked out apart from this code, by the formulas of the paper that it names.
func TestPooledValuesMoveTowardsTheirMean(t *testing.T) {
	// Precisions of 10⁴, 2500 and 1111.1; mean 1.02449; Q = 23.84, of which 2 are chance; C = 5714.3.
	pooled, left := Pooled([]float64{1, 1.08, 1.12}, []float64{0.01, 0.02, 0.03})
	require.InEpsilonSlice(t, []float64{1.00062451, 1.07474015, 1.10179382}, pooled, 1e-7)
	require.InEpsilonSlice(t, []float64{0.974499089, 0.905245347, 0.809379728}, left, 1e-7)
	// Chance may have made all of the difference.
	pooled, left = Pooled([]float64{1, 1.01, 1.03}, []float64{0.02, 0.02, 0.04})
	require.InEpsilonSlice(t, []float64{1.00777778, 1.00777778, 1.00777778}, pooled, 1e-7)
	require.Equal(t, []float64{0, 0, 0}, left)
}

func TestValuesWithoutAnErrorStay(t *testing.T) {
	pooled, left := Pooled([]float64{1, 1.01}, []float64{0, 0})
	require.InEpsilonSlice(t, []float64{1, 1.01}, pooled, 1e-9)
	require.Equal(t, []float64{1, 1}, left)
	pooled, left = Pooled([]float64{1, 1.05}, []float64{0, 0.1})
	require.InDeltaSlice(t, []float64{1, 1}, pooled, 1e-6)
	require.Equal(t, []float64{1, 0}, left)
}

func TestWithoutRepetitionTheErrorIsNothing(t *testing.T) {
	totals, changes := Totals([][]Part{{{3, 5}}, {{4, 5}}})
	require.Equal(t, []Total{{Mean: 3, Usual: 3}, {Mean: 4, Usual: 4}}, totals)
	require.Empty(t, changes)
}

// Each row weighs 1.
func TestRowsPartWhereEventsSurelyBecomeMoreFrequent(t *testing.T) {
	for _, tt := range []struct {
		name   string
		events []float64
		want   []int
	}{
		{"none", []float64{0, 0, 0}, []int{0, 3}},
		{"13 times as likely", []float64{0, 6}, []int{0, 2}},
		{"22 times", []float64{0, 7}, []int{0, 1, 2}},
		{"less frequent", []float64{99, 99, 0, 0}, []int{0, 4}},
		{"at the likeliest of several cuts", []float64{0, 0, 0, 99, 99}, []int{0, 3, 5}},
		{"both parts again", []float64{0, 0, 20, 20, 200, 200}, []int{0, 2, 4, 6}},
		{"the later part again", []float64{0, 0, 200, 200, 300, 300}, []int{0, 2, 4, 6}},
		{"so many that a likelihood is beyond any number", []float64{0, 0, 0, 9999, 9999}, []int{0, 3, 5}},
		{"one row", []float64{9}, []int{0, 1}},
	} {
		rows := large{usual: tt.events, weight: slices.Repeat([]float64{1}, len(tt.events)), events: tt.events}
		require.Equal(t, tt.want, rows.stretches(), tt.name)
	}
}

func TestEventsAreMoreFrequentIfEachValueHasMoreOfThem(t *testing.T) {
	never := math.Inf(-1)
	require.Equal(t, []float64{never, never}, oddsOfChange([]float64{5, 9}, []float64{1, 10}))
	require.Greater(t, oddsOfChange([]float64{9, 5}, []float64{10, 1})[1], 0.0)
}

// Whatever the rows are.
func TestAChangeHasAChanceAndAMeanOfEachRow(t *testing.T) {
	for seed := range uint64(2000) {
		rng := rand.New(rand.NewPCG(seed, 1))
		rows := make([][]Part, 1+rng.IntN(10))
		often, size, weight := rng.Float64(), math.Exp(40*rng.Float64()-20), math.Exp(14*rng.Float64())
		for r := range rows {
			for range 1 + rng.IntN(20) {
				p := Part{1e6 * (1 + 0.1*rng.Float64()), 1 + math.Floor(weight*rng.Float64())}
				if rng.Float64() < often*float64(r)/float64(len(rows)) {
					p.Mean *= size
				}
				rows[r] = append(rows[r], p)
			}
		}
		totals, changes := Totals(rows)
		again, same := Totals(rows)
		require.Equal(t, totals, again)
		require.Equal(t, changes, same)
		for _, list := range changes {
			sum := 0.0
			for _, c := range list {
				sum += c.Chance
				require.Positive(t, c.Chance, seed)
				require.Greater(t, c.Row, c.From, seed)
				require.Less(t, c.Row, c.From+len(c.Means), seed)
				require.LessOrEqual(t, c.From+len(c.Means), len(rows), seed)
				for _, mean := range c.Means {
					require.Positive(t, mean, seed)
					require.Less(t, mean, 1e18, seed)
				}
			}
			require.LessOrEqual(t, sum, 1+1e-9, seed)
		}
	}
}

func TestAMeanIsPositiveHoweverFastSomeValuesAre(t *testing.T) {
	two := []float64{1, 1}
	require.Equal(t, []float64{0.01, 0.01}, large{usual: two, weight: two, excess: []float64{-3, -3}, jumpy: []float64{9, 9}}.means(0, 2))
}

// Thousands of events make odds beyond any number.
func TestChancesOfAChangeElsewhereAddUpToOne(t *testing.T) {
	ones := slices.Repeat([]float64{1}, 4)
	for _, events := range [][]float64{{0, 0, 0, 1}, {0, 3, 2, 4}, {0, 1, 3000, 3000}, {1, 4, 3000, 3000}, {5000, 3, 3000, 3000}} {
		sum := 0.0
		for _, c := range (large{ones, ones, events, ones, events}).within(0, 4, 0) {
			require.Len(t, c.Means, 4)
			sum += c.Chance
		}
		require.LessOrEqual(t, sum, 1+1e-9, "%v", events)
		require.Greater(t, sum, 0.3, "%v", events)
	}
}

// Values far below the usual one are no events, nor fewer than none.
func TestARowThatIsOftenFastHasItsOwnMean(t *testing.T) {
	rows := make([][]Part, 3)
	for k := range 20 {
		for r := range rows {
			p := Part{1 + 0.01*float64(k*7%5-2), 10}
			switch {
			case r == 0 && k%4 == 1:
				p.Mean = 0.1
			case r == 2 && k%10 == 3:
				p.Mean += 5
			}
			rows[r] = append(rows[r], p)
		}
	}
	_, changes := Totals(rows)
	_, alone := Totals([][]Part{rows[1], rows[1], rows[2]})
	for i, change := range alone[0] {
		require.InDelta(t, change.Chance, changes[0][i].Chance, 0.02)
	}
}
