package search

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt/internal/stat"
)

func TestAnIntervalMovesWithItsMean(t *testing.T) {
	low, high := Estimate{Mean: 100, Low: 90, High: 120}.Around(200)
	require.Equal(t, []time.Duration{180, 240}, []time.Duration{low, high})
	low, high = Estimate{Mean: 3, Low: 3, High: 3}.Around(49)
	require.Equal(t, []time.Duration{49, 49}, []time.Duration{low, high}, "no width stays none")
}

// "Visits of a count whose later half differs from its earlier one … aren't so many samples
// of one mean."
func TestACountWhoseVisitsShiftIsLessCertain(t *testing.T) {
	steady := func(workers int, mean time.Duration) Series {
		return visits(workers, mean, mean+1, mean, mean+1, mean, mean+1, mean, mean+1)
	}
	weighed := func(means ...time.Duration) evidence {
		return weigh(sixteen(), []Series{steady(4, 3000), visits(8, means...), steady(12, 1000), steady(15, 990)})
	}
	inTurn := weighed(700, 900, 701, 901, 700, 900, 701, 901)
	shifted := weighed(700, 700, 701, 701, 900, 900, 901, 901)
	require.InEpsilon(t, inTurn.mean[1], shifted.mean[1], 0.02)
	by := math.Log(900. / 700) // drift takes some of it
	require.InDelta(t, by/2, math.Sqrt(shifted.se[1]*shifted.se[1]-inTurn.se[1]*inTurn.se[1]), by/8)
	require.InDelta(t, by/2, math.Sqrt(shifted.own[1]*shifted.own[1]-inTurn.own[1]*inTurn.own[1]), by/8)
	for _, i := range []int{0, 2, 3} {
		require.InDelta(t, inTurn.se[i], shifted.se[i], 0.01, "the others are as certain as before")
	}
}

func TestWhenVisitsAreSaidToShift(t *testing.T) {
	for _, tt := range []struct {
		name  string
		means []time.Duration
		drift []float64
		want  float64
	}{
		{"they become slower", []time.Duration{1000, 1001, 1000, 1001, 1100, 1101, 1100, 1101}, nil, math.Log(1.1)},
		{"they become faster", []time.Duration{1100, 1101, 1100, 1101, 1000, 1001, 1000, 1001}, nil, math.Log(1.1)},
		{"by less than a twentieth", []time.Duration{1000, 1001, 1000, 1001, 1040, 1041, 1040, 1041}, nil, 0},
		{"within chance", []time.Duration{1000, 1300, 1000, 1300, 1100, 1400, 1100, 1400}, nil, 0},
		{"by 1.7 errors", []time.Duration{1000, 1100, 1000, 1100, 1070, 1177, 1070, 1177}, nil, 0},
		{"by 2.4 errors", []time.Duration{1000, 1100, 1000, 1100, 1100, 1210, 1100, 1210}, nil, math.Log(1.1)},
		{"too few", []time.Duration{1000, 1001, 1000, 1100, 1101, 1100}, nil, 0},
		{"all counts do", []time.Duration{1000, 1001, 1000, 1001, 1100, 1101, 1100, 1101}, []float64{0, 0, 0, 0, 0.0953, 0.0953, 0.0953, 0.0953}, 0},
	} {
		drift := tt.drift
		if drift == nil {
			drift = make([]float64, len(tt.means))
		}
		require.InDelta(t, tt.want, shift(visits(8, tt.means...).Blocks, drift), 0.001, tt.name)
	}
	stalls := visits(8, 1000, 1001, 1000, 1001, 1300, 1301, 1300, 1301)
	for i := range stalls.Blocks {
		stalls.Blocks[i].Level = 1000 + time.Duration(i%2)
	}
	require.Zero(t, shift(stalls.Blocks, make([]float64, 8)), "stalls aren't a shift")
}

func TestWhatMostCountsOfARoundShareIsNoShift(t *testing.T) {
	steady := []time.Duration{1000, 1001, 1000, 1001, 1000, 1001, 1000, 1001}
	slower := []time.Duration{1000, 1001, 1000, 1001, 1100, 1101, 1100, 1101}
	drift := make([]float64, 8) // none was found
	for _, tt := range []struct {
		name  string
		means [][]time.Duration
		want  float64 // by which the last one shifts
	}{
		{"two counts", [][]time.Duration{slower, slower}, 0},
		{"one of two", [][]time.Duration{steady, slower}, math.Log(1.1)},
		{"two of three", [][]time.Duration{steady, slower, slower}, 0},
		{"one of three", [][]time.Duration{steady, steady, slower}, math.Log(1.1)},
		{"one that is alone", [][]time.Duration{slower}, math.Log(1.1)},
	} {
		var rows []Series
		for i, means := range tt.means {
			rows = append(rows, visits(4*i, means...))
		}
		last := rows[len(rows)-1].Blocks
		require.InDelta(t, tt.want, shift(last, leftOver(rows, drift)), 0.002, tt.name)
	}

	// The later half is slower by 7 %, which is little beside the noise.
	var noisy []Series
	for i, workers := range []int{4, 8, 12} {
		var means []time.Duration
		for round := range 16 {
			mean := time.Duration(960 + 40*((round+i)%3))
			if round >= 8 {
				mean = mean * 107 / 100
			}
			means = append(means, mean)
		}
		noisy = append(noisy, visits(workers, means...))
	}
	for i, se := range weigh(sixteen(), noisy).se {
		require.Less(t, se, 0.02, "%d workers: a shift would be ± 3.4 %%", noisy[i].Workers)
	}
}

// "Counts that measuring can't tell from the fastest are drawn as if they were as alike as
// chance lets them be."
func TestCountsThatMayBeEqualAreDrawnNearTheirMean(t *testing.T) {
	// Alpha is a tenth; its three fifths are 0.06.
	for _, tt := range []struct {
		name  string
		known []known
		want  []float64
		left  []float64
	}{
		// Precisions are as 4 and 1.
		{"chance explains the difference", []known{{workers: 4, mean: 2, se: 0.02}, {workers: 8, mean: 1, se: 0.02}, {workers: 15, mean: 1.04, se: 0.04}}, []float64{2, 1.008, 1.008}, []float64{1, 0, 0}},
		{"it doesn't", []known{{workers: 8, mean: 1, se: 0.01}, {workers: 15, mean: 1.05, se: 0.02}}, []float64{1, 1.05}, []float64{1, 1}},
		{"the error is too large", []known{{workers: 8, mean: 1, se: 0.02}, {workers: 15, mean: 1.05, se: 0.06}}, []float64{1, 1.05}, []float64{1, 1}},
		{"one alone", []known{{workers: 8, mean: 1, se: 0.02}}, []float64{1}, []float64{1}},
	} {
		mean, left := evidenceOf(sixtyFour(), tt.known...).likely()
		for i := range mean {
			require.InEpsilon(t, tt.want[i]*1e6, mean[i], 1e-9, tt.name)
		}
		require.Equal(t, tt.left, left, tt.name)
	}
	// Five equal counts, measured to 2 %: hardly another run finds the first beyond alpha.
	e := evidenceOf(sixtyFour(), known{workers: 1, mean: 1.03, se: 0.02}, known{workers: 4, mean: 1, se: 0.02}, known{workers: 8, mean: 1.02, se: 0.02}, known{workers: 16, mean: 1.01, se: 0.02}, known{workers: 32, mean: 1.03, se: 0.02})
	require.Greater(t, e.vote(2000, 1, 0)[0], 0.9)
}

// What was measured misses the truth, and another run misses it again.
func TestAnotherRunMissesTheTruthAgain(t *testing.T) {
	e := evidenceOf(sixtyFour(), known{workers: 8, mean: 1.15, se: 0.03}, known{workers: 12, mean: 1})
	// Up to 1.1 and an eighth of alpha, 8 workers are chosen: 0.768 times √2 · 0.03 · 1.15 below 1.15.
	require.InDelta(t, 0.221, e.vote(2000, 1, 0)[0], 0.025)
	require.InDelta(t, 0.293, e.vote(2000, 2, 0)[0], 0.03, "twice the variances")
}

// "If time ends the search, … a smaller count is never chosen after a single look."
func TestTrainingsOwnCountIsKeptIfTimeEndsTheSearch(t *testing.T) {
	seen := []Series{visits(7, 1000), visits(15, 1010)}
	for _, tt := range []struct {
		name       string
		time, left time.Duration
		want       int
	}{
		{"there is no bound", 0, 0, 7},
		{"time is left", time.Minute, time.Second, 7},
		{"a nanosecond is left", time.Minute, 1, 7},
		{"none is left", time.Minute, 0, 15},
		{"none was", time.Nanosecond, 0, 15},
	} {
		sp := sixteen()
		sp.Time, sp.Left = tt.time, tt.left
		c := Choose(sp, seen)
		require.Equal(t, tt.want, c.Workers, tt.name)
		require.Equal(t, tt.want == 15, c.Kept, tt.name)
	}
	sp := sixteen()
	sp.Time = time.Minute
	c := Choose(sp, []Series{visits(8, 2000, 2000), visits(15, 1000, 1000)})
	require.Equal(t, 15, c.Workers)
	require.False(t, c.Kept, "it is the choice")
}

func TestOfEqualsTheFewestAreTheFastest(t *testing.T) {
	c := Choose(sixteen(), []Series{visits(4, 1000), visits(8, 1000)})
	require.Equal(t, []int{4, 4}, []int{c.Workers, c.Fastest})
}

// A look that nothing was beside says nothing about another look: it may be all drift.
func TestALookThatDoesNotCountIsNoSecondLook(t *testing.T) {
	c := Choose(sixteen(), []Series{visits(7, 1000), visits(15, 1010, 1400)})
	require.Zero(t, c.Confidence, "nothing was measured twice")
	require.Zero(t, c.Slower)
	require.Equal(t, c.Estimates[0].Mean, c.Estimates[0].High)
}

// Visits of no round are taken as they are. 900 and 1100 µs differ from their mean by a
// tenth: a variance of 0.02, times 2.6 for what bounding hides. The mean of two has
// an error of √(0.052/2) = 0.1612. The table of Student's t at 95 % has 4.303 for two degrees
// of freedom (one of its own, one of those lent), and 12.706 for one.
func TestAnIntervalByHand(t *testing.T) {
	once := func(means ...time.Duration) (s Series) {
		for _, mean := range means {
			s.Blocks = append(s.Blocks, Block{Round: -1, Iterations: 1, Mean: mean * time.Microsecond})
		}
		return s
	}
	twice, single := once(900, 1100), once(1000)
	twice.Workers, single.Workers = 8, 15
	c := Choose(sixteen(), []Series{twice, single})
	require.Equal(t, 8, c.Workers)
	two, one := c.Estimates[0], c.Estimates[1]
	require.Equal(t, time.Millisecond, two.Mean)
	require.InDelta(t, 1e6*(1-0.1612*4.303), float64(two.Low), 1e3)
	require.InDelta(t, 1e6*(1+0.1612*4.303), float64(two.High), 1e3)
	// One visit: √0.052 = 0.228.
	require.Equal(t, time.Millisecond, one.Mean)
	require.Zero(t, one.Low, "no time is less than none")
	require.InDelta(t, 1e6*(1+0.22804*12.706), float64(one.High), 1e3)
	require.Positive(t, c.Confidence)
	require.Positive(t, c.Slower)

	c = Choose(sixteen(), []Series{visits(8, 1000), visits(15, 1000)})
	require.Equal(t, Estimate{8, 1000, 1000, 1000}, c.Estimates[0], "nothing was measured twice")
	require.Zero(t, c.Slower)
}

func TestOneSecondLookWithoutErrorMakesSure(t *testing.T) {
	seen := []Series{visits(7, 1010), visits(15, 1000, 1000)}
	seen[1].Blocks[1].Round = -1
	c := Choose(sixteen(), seen)
	require.Equal(t, 7, c.Workers)
	require.Equal(t, 25./26, c.Confidence, "25 iterations of the choice let no more be claimed")
	require.InDelta(t, 0.01, c.Slower, 1e-9)
}

// 20 workers lie within a step, and nothing promises that they are faster.
func TestAChoiceThatNoOtherRunWouldMakeIsNotOneOfUnknownConfidence(t *testing.T) {
	c := Choose(sixtyFour(), []Series{visits(8, 1300, 1310, 1290), visits(16, 1300, 1290, 1310), visits(20, 0, 1000, 1000), visits(24, 1300, 1300, 1310)})
	require.Equal(t, 20, c.Workers)
	require.Positive(t, c.Confidence, "0 says that nothing was measured twice")
	require.Less(t, c.Confidence, 0.01)
}

// "Never more than n/(n+1) after n iterations of the choice."
func TestFewIterationsLetLittleBeClaimed(t *testing.T) {
	short := func(workers, iterations int) Series {
		s := visits(workers, 1000, 1000)
		for i := range s.Blocks {
			s.Blocks[i].Iterations = iterations
		}
		return s
	}
	for iterations, want := range map[int]float64{1: 2. / 3, 4: 8. / 9, 40: 80. / 81, 50: 0.99, 1000: 0.99} {
		require.Equal(t, want, Choose(sixteen(), []Series{short(8, iterations), short(15, 1000)}).Confidence, iterations)
	}
}

// "Near alpha's limit": half of a standard error, which counts for a quarter of alpha at
// most. After one look each, that is 1000 + 100 + 100/8 ns.
func TestACountThatWasSeenOnceMayBeALittlePastAlpha(t *testing.T) {
	for mean, want := range map[time.Duration]int{1100: 4, 1112: 4, 1113: 8} {
		require.Equal(t, want, Choose(sixteen(), []Series{visits(4, mean), visits(8, 1000)}).Workers, mean)
	}
}

// A normal distribution is beyond 1.645 standard errors in 5 % of cases.
func TestHowMuchSlowerTheChoiceMayBe(t *testing.T) {
	e := evidenceOf(sixteen(), known{workers: 8, mean: 1.09, se: 0.03}, known{workers: 15, mean: 1, se: 0.04})
	require.InDelta(t, 0.09+1.645*1.09*0.05, e.slower(0), 0.015, "√(0.03² + 0.04²) = 0.05")
	e = evidenceOf(sixteen(), known{workers: 8, mean: 1.05, se: 0.03}, known{workers: 15, mean: 1, se: 0.04})
	require.InDelta(t, 1.645*math.Sqrt(0.02)*0.05, e.slower(0), 0.005, "chance may have made the difference")
	e = evidenceOf(sixteen(), known{workers: 8, mean: 1.05}, known{workers: 15, mean: 1})
	require.InDelta(t, 0.05, e.slower(0), 1e-9)
	require.Zero(t, e.slower(1))
	e = evidenceOf(sixteen(), known{workers: 8, mean: 1.05, se: 0.03, lent: 0.1}, known{workers: 15, mean: 1, se: 0.04, lent: 0.1})
	require.InDelta(t, 1.645*0.1, e.slower(0), 0.01, "its stalls may be its own, though its usual time isn't")
	require.InDelta(t, 1.645*0.1, e.slower(1), 0.01)
	// 8 workers may not have the stalls that 15 have.
	e = evidenceOf(sixteen(), known{workers: 8, mean: 1.5}, known{workers: 15, mean: 1})
	e.elsewhere = [][]stat.Change{{{Row: 1, Means: []float64{0.8e6, 1.2e6}, Chance: 0.06}}}
	require.InDelta(t, 0.5, e.slower(1), 1e-9)
	e.elsewhere[0][0].Chance = 0.04
	require.Zero(t, e.slower(1), "in less than 5 % of cases")
	e = evidenceOf(sixteen(), known{workers: 4, mean: 2}, known{workers: 8, mean: 1.5, se: 0.05}, known{workers: 15, mean: 1})
	e.elsewhere = [][]stat.Change{{{Row: 2, From: 1, Means: []float64{0.8e6, 1e6}, Chance: 0.99}}}
	require.Greater(t, e.slower(2), 0.3, "times have an error then, too")
	// Two lists say that 8 workers have no stalls: they take 1 ms then, not half of it.
	e = evidenceOf(sixteen(), known{workers: 8, mean: 2}, known{workers: 15, mean: 1.5})
	without := []stat.Change{{Row: 1, Means: []float64{1e6, 1.5e6}, Chance: 0.99}}
	e.elsewhere = [][]stat.Change{without, without}
	require.InDelta(t, 0.5, e.slower(1), 1e-9)
}

// A list holds what can't be true together.
func TestStallsSetInElsewhereAsOftenAsTheirChanceSays(t *testing.T) {
	e := evidenceOf(sixtyFour(), known{workers: 4, mean: 3}, known{workers: 8, mean: 1.5}, known{workers: 16, mean: 1}, known{workers: 32, mean: 2})
	e.elsewhere = [][]stat.Change{
		{{Row: 2, Means: []float64{3e6, 0.5e6}, Chance: 0.2}, {Row: 1, Means: []float64{0.3e6, 1.5e6}, Chance: 0.3}},
		{{Row: 3, From: 3, Means: []float64{0.2e6}, Chance: 0.1}},
	}
	for share, want := range map[float64][]float64{0: {0, 0, 1, 0}, 1: {0.27, 0.18, 0.45, 0.1}, 0.5: {0.1425, 0.095, 0.7125, 0.05}} {
		require.InDeltaSlice(t, want, e.vote(20_000, 1, share), 0.01, share)
	}
}

func TestCountsMayHaveFewerStallsThanTheySeemTo(t *testing.T) {
	seen := make([]Series, 2)
	for i, w := range []int{8, 15} {
		seen[i].Workers = w
		for round := range 4 {
			b := Block{Round: round, Iterations: 50, Mean: 1e6, Level: 1e6}
			for k := range 5 {
				b.Parts = append(b.Parts, stat.Part{Mean: 1e6 + 1e4*float64((5*round+k)*7%5-2), Weight: 10})
			}
			if w == 15 {
				b.Parts[round].Mean += 2e6
				b.Mean += 400_000
			}
			seen[i].Blocks = append(seen[i].Blocks, b)
		}
	}
	e := weigh(sixteen(), seen)
	require.Greater(t, e.mean[0], 1.02e6, "it seems to share the other's")
	require.InDeltaSlice(t, []float64{1e6, 1e6}, e.usual, 1e4)
	require.Len(t, e.elsewhere, 1)
	require.Len(t, e.elsewhere[0], 1)
	change := e.elsewhere[0][0]
	require.Greater(t, change.Chance, 0.5)
	require.InDeltaSlice(t, []float64{1e6, 1.4e6}, change.Means, 1e4)
}

// One worker would be chosen if it had no stalls.
func TestConfidenceLosesHalfOfTheChanceThatStallsSetInElsewhere(t *testing.T) {
	sp := Space{CPUs: 2, Start: 2, Max: 2, Alpha: DefaultAlpha, Iterations: 1000}
	seen := []Series{looked(0, 9, 4), stalled(1, 0, 500, 1.15, 0), stalled(2, 0, 500, 1, 3)}
	chance := 0.0
	for _, c := range weigh(sp, seen).elsewhere[0] {
		if c.Row == 2 {
			chance = c.Chance
		}
	}
	require.InDelta(t, 0.4, chance, 0.25)
	c := Choose(sp, seen)
	require.Equal(t, 2, c.Workers)
	require.InDelta(t, 1-chance/2, c.Confidence, 0.06, "and a little to noise")
}

// Another run meets none of the stalls at a count with the chance that they leave out all of
// its iterations.
func TestConfidenceLosesTheChanceThatNoStallIsMet(t *testing.T) {
	sp := sixteen()
	series := func(workers, looks int, usual time.Duration, stalls bool) Series {
		s := Series{Workers: workers}
		for k := range looks {
			b := Block{Round: k, Iterations: 20, Mean: usual, Level: usual}
			for i := range 20 {
				p := stat.Part{Mean: float64(usual) * (1 + 0.001*float64((i+k)%3)), Weight: 1}
				if stalls && i == 0 {
					p.Mean += 100 * float64(usual) // one of 20
				}
				b.Parts = append(b.Parts, p)
			}
			b.Mean = time.Duration(overall(b.Parts))
			s.Blocks = append(s.Blocks, b)
		}
		return s
	}
	seen := []Series{series(4, 40, 2*time.Millisecond, false), series(8, 40, time.Millisecond, true)}
	for iterations, missed := range map[int]float64{20: math.Exp(-1), 40: math.Exp(-2), 100: 0.01} {
		sp.Iterations = iterations
		c := Choose(sp, seen)
		require.Equal(t, 4, c.Workers)
		require.InDelta(t, 1-missed, c.Confidence, 0.03, "%d iterations", iterations)
	}
}

// Fewer workers hide less of the same stalls: eight are truly 8 % slower than 15, which had ten
// times as many iterations. Choosing may well take both for equal.
func TestAChoiceIsNoSlowerThanSaidIfItStallsMoreThanOthers(t *testing.T) {
	const runs = 400
	held, surest := 0, 0.0
	var said []float64
	for seed := range uint64(runs) {
		rng := rand.New(rand.NewPCG(seed, 1))
		count := func(workers, iterations int, often float64) Series {
			s := Series{Workers: workers}
			for round := range 4 {
				v := Visit{Wanted: iterations / 4}
				for v.More() {
					took := 8 * time.Millisecond
					if rng.Float64() < often {
						took += 40 * time.Millisecond
					}
					v.Add(took)
				}
				s.Blocks = append(s.Blocks, Block{Round: round, Iterations: v.Kept(), Mean: time.Duration(overall(v.Parts())), Level: v.Level(), Parts: v.Parts()})
			}
			return s
		}
		c := Choose(sixteen(), []Series{count(8, 80, 0.02), count(15, 800, 0.004)})
		if c.Workers == 15 || 1.1/1.02-1 <= c.Slower {
			held++
		}
		if c.Workers == 8 {
			said, surest = append(said, c.Slower), max(surest, c.Confidence)
		}
	}
	require.Greater(t, len(said), runs/2)
	require.GreaterOrEqual(t, float64(held)/runs, 0.9)
	require.Less(t, stat.Median(said), 0.2)
	require.Equal(t, 80./81, surest, "the choice may be as sure as 80 iterations let it be")
}

func TestDrawsLieAboutTheMeanWithItsError(t *testing.T) {
	e := evidenceOf(sixteen(), known{workers: 8, mean: 1, se: 0.2})
	for _, scale := range []float64{0, 1, 2} {
		var drawn []float64
		e.draw(e.mean, []float64{scale * scale}, 2000, func(mean []float64) { drawn = append(drawn, mean[0]/1e6) })
		require.Len(t, drawn, 2000)
		require.InDelta(t, 1, stat.Median(drawn), 0.02)
		// 68.3 % of a normal distribution lie within a standard error.
		require.InDelta(t, scale*0.4, math.Log(stat.Quantile(drawn, 0.8415)/stat.Quantile(drawn, 0.1585)), 0.03)
	}
}

func TestACountThatIsHardlyKnownIsDrawnAsOftenHalfAsTwiceAsLong(t *testing.T) {
	e := evidenceOf(sixteen(), known{workers: 8, mean: 8, se: 1}, known{workers: 15, mean: 1})
	require.Less(t, e.slower(1), 0.01, "eight times as long, more or less: hardly the faster one")
	half, twice := 0, 0
	e.drawTruth(2000, func(mean []float64) {
		if mean[0] < 4e6 {
			half++
		}
		if mean[0] > 16e6 {
			twice++
		}
	})
	require.InDelta(t, half, twice, 60)
	require.InDelta(t, 2000*0.244, half, 60, "ln 2 standard errors")
}

// "If time ends the search, another count replaces training's own only if it is worse than
// that by more than alpha and 2 % with a probability of 5 % at most."
func TestWhatReplacesTrainingsOwnCount(t *testing.T) {
	for _, tt := range []struct {
		name  string
		known []known
		want  int
	}{
		// Alpha is 10 %: 12 % are 4 points above 8 %, of which an error is 2 or 4.
		{"by two errors: 2 % of cases", []known{{workers: 8, mean: 1.08, se: 0.02 / 1.08}, {workers: 15, mean: 1}}, 8},
		{"by one: 16 % of cases", []known{{workers: 8, mean: 1.08, se: 0.04 / 1.08}, {workers: 15, mean: 1}}, 15},
		{"training's own is the lowest", []known{{workers: 15, mean: 1}, {workers: 30, mean: 1.08, se: 0.04 / 1.08}}, 15},
		{"no error", []known{{workers: 8, mean: 1.08}, {workers: 15, mean: 1}}, 8},
		{"fewer workers after two looks", []known{{workers: 8, mean: 1, visits: 2}, {workers: 15, mean: 1}}, 8},
		{"fewer workers after one", []known{{workers: 8, mean: 0.5, visits: 1}, {workers: 15, mean: 1}}, 15},
		{"more workers after one", []known{{workers: 15, mean: 1}, {workers: 30, mean: 0.5, visits: 1}}, 30},
		{"training's own needs too much memory", []known{{workers: 4, mean: 2}, {workers: 8, mean: 1, visits: 1}}, 8},
	} {
		e := evidenceOf(sixteen(), tt.known...)
		e.sp.Start = 15
		chosen := slices.IndexFunc(tt.known, func(k known) bool { return k.workers != 15 && k.mean < 2 })
		require.Equal(t, tt.want, e.counts[e.orTheStart(chosen)], tt.name)
	}
}

// Total time over iterations: (1 · 900 + 3 · 1020) / 4.
func TestAnIterationCountsAsMuchAsAnother(t *testing.T) {
	c := Choose(sixteen(), []Series{{8, []Block{{Round: -1, Iterations: 1, Mean: 900}, {Round: -1, Iterations: 3, Mean: 1020}}}})
	require.InDelta(t, 990, float64(c.Estimates[0].Mean), 1)
}

func TestACountThatWasAlwaysAloneCountsAsItIs(t *testing.T) {
	c := Choose(sixteen(), []Series{visits(4, 2000), visits(8, 0, 1000)})
	require.Equal(t, []int{8, 8}, []int{c.Workers, c.Fastest})
	require.Equal(t, []time.Duration{2000, 1000}, []time.Duration{c.Estimates[0].Mean, c.Estimates[1].Mean})
}

func TestNeitherTheOrderOfBlocksNorOfCountsMatters(t *testing.T) {
	seen := []Series{visits(4, 1000, 2000, 1500), visits(8, 500, 1000, 750), visits(15, 510, 980, 760)}
	seen[1].Blocks = append(seen[1].Blocks, Block{Round: -1, Iterations: 25, Mean: 900})
	means := func() (out []float64) {
		for _, e := range Choose(sixteen(), seen).Estimates {
			out = append(out, float64(e.Mean))
		}
		return out
	}
	want := means()
	for range seen {
		seen = append(seen[1:], seen[0])
		for i := range seen {
			seen[i].Blocks = append(seen[i].Blocks[1:], seen[i].Blocks[0])
			require.InEpsilonSlice(t, want, means(), 1e-3)
		}
	}
}

func TestWhatMemoryForbidsHidesNothingElse(t *testing.T) {
	sp := sixteen()
	sp.Allowed = func(w int) bool { return w != 8 }
	c := Choose(sp, []Series{visits(4, 2000), visits(8, 500), {Workers: 12}, visits(15, 1000)})
	require.Equal(t, 15, c.Workers)
	require.Len(t, c.Estimates, 2)
}

func TestDriftIsNeitherInTheMeanNorInTheFastestVisit(t *testing.T) {
	e := weigh(sixteen(), []Series{visits(4, 4000, 8000), visits(8, 2000, 4000), visits(15, 1000, 2000)})
	middle := math.Sqrt2 * 1e3 // of a round and one twice as slow
	require.InEpsilonSlice(t, []float64{4 * middle, 2 * middle, middle}, e.mean, 1e-4)
	require.InEpsilonSlice(t, e.mean, e.low, 1e-4)
}

// A visit costs its iterations and its warm-up: two of them, and 10 ms at least.
func TestWhatASearchHasSpent(t *testing.T) {
	e := weigh(sixteen(), []Series{
		{4, []Block{{Round: 0, Iterations: 1, Mean: 30 * time.Millisecond}}},
		{8, []Block{{Round: 0, Iterations: 10, Mean: time.Millisecond}}},
	})
	require.InDelta(t, float64((30+60+10+10)*time.Millisecond), e.spent, 1)
	e = weigh(sixteen(), []Series{{8, []Block{{Round: 0, Iterations: 10, Mean: 21 * time.Millisecond, Level: 20 * time.Millisecond}}}})
	require.InDelta(t, float64((200+42)*time.Millisecond), e.spent, 1, "a stall takes no patience")
}
