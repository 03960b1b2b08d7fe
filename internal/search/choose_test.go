package search

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt/internal/stat"
)

// windows has one block of 25 iterations per mean, in microseconds, and round; 0: none.
func windows(workers int, means ...time.Duration) Series {
	s := Series{Workers: workers}
	for round, mean := range means {
		if mean > 0 {
			s.Blocks = append(s.Blocks, waiting(round, 25, mean*time.Microsecond))
		}
	}
	return s
}

// waiting returns a window in which training does nothing but wait.
func waiting(round, iterations int, mean time.Duration) Block {
	return Block{Round: round, Iterations: iterations, Bodies: iterations, Mean: mean, Wait: mean}
}

func measured(means map[int]float64) (seen []Series) {
	for w, seconds := range means {
		seen = append(seen, Series{Workers: w, Blocks: []Block{waiting(0, 100, time.Duration(seconds/100*float64(time.Second)))}})
	}
	return seen
}

func TestThePapersTableGivesItsAnswer(t *testing.T) {
	sp := Space{CPUs: 64, Start: 63, Max: 63, Alpha: Alpha{Total: 500 * ms, MaxShare: math.Inf(1)}, Iterations: 100}
	c := Choose(sp, measured(map[int]float64{0: 14.25, 14: 1.49, 16: 1.41, 32: 1.55, 63: 2.21}))
	require.Equal(t, 14, c.Workers)
	require.Equal(t, 16, c.Fastest)
	require.Equal(t, 500*ms, c.Alpha)
	require.Zero(t, c.Repeatability, "nothing was measured twice")
	require.Equal(t, 14900*time.Microsecond, c.Estimates[1].Mean.Round(time.Microsecond))
}

func TestWhatAlphaIgnores(t *testing.T) {
	for mean, want := range map[time.Duration]time.Duration{
		10 * ms:     200 * time.Microsecond, // a fiftieth
		300 * ms:    5 * ms,                 // half a second over 100 iterations
		time.Second: 10 * ms,                // a hundredth
		0:           5 * time.Microsecond,   // no training step notices less
	} {
		require.InDelta(t, float64(want), DefaultAlpha.Of(float64(mean), 100), 1, mean)
	}
}

// A worker too many costs nothing, one too few costs training.
func TestWhereMeasuringDoesNotTell(t *testing.T) {
	same := func(workers ...int) (seen []Series) {
		for i, w := range workers {
			seen = append(seen, windows(w, 1000+time.Duration(i), 1001, 999, 1000))
		}
		return seen
	}
	near := []time.Duration{1110, 1080, 1120, 1090} // a tenth, give or take
	for _, tt := range []struct {
		name  string
		seen  []Series
		start int
		want  int
	}{
		{"either may be the fewest", []Series{windows(7, near...), windows(8, 1000, 990, 1010, 1000)}, 15, 7},
		{"the lower one surely is", []Series{windows(7, 1060, 1050, 1070, 1060), windows(8, 1000, 990, 1010, 1000)}, 15, 7},
		{"the lower one surely isn't", []Series{windows(7, 1160, 1150, 1170, 1160), windows(9, 1000, 990, 1010, 1000)}, 15, 9},
		{"fewer than training's own count", []Series{windows(14, near...), windows(15, 1000, 990, 1010, 1000)}, 15, 14},
		{"training's own count, fewer as it is", []Series{windows(7, near...), windows(8, 1000, 990, 1010, 1000)}, 7, 7},
		{"of three, the fewest", []Series{windows(7, near...), windows(9, near...), windows(11, 1000, 990, 1010, 1000)}, 15, 7},
		{"no workers, or one: there is no step to hide", []Series{windows(0, near...), windows(1, 1000, 990, 1010, 1000)}, 15, 1},
	} {
		sp := tenth(sixteen())
		sp.Start = tt.start
		c := Choose(sp, tt.seen)
		require.Equal(t, tt.want, c.Workers, tt.name)
	}
	require.Equal(t, 2, Choose(Space{CPUs: 2, Start: 2, Max: 2, Alpha: DefaultAlpha, Iterations: 100}, []Series{windows(0, 1100, 1040, 1070, 1020), windows(1, 1100, 1040, 1070, 1020), windows(2, 1000, 990, 1010, 1000)}).Workers)
	require.Equal(t, 1, Choose(sixteen(), same(1, 2, 4, 8, 15)).Workers, "surely the fewest that do")
}

// Without workers nothing overlaps: loading is added to each step.
func TestWithoutWorkersOnlyWhatTheyWouldNotHideIsLoaded(t *testing.T) {
	for _, tt := range []struct {
		name       string
		step       bool
		body       time.Duration         // of the loop, in microseconds
		wait       map[int]time.Duration // in microseconds
		start, max int
		want       int
	}{
		{"a lock: one worker loads as fast", false, 0, map[int]time.Duration{0: 6400, 1: 6400, 2: 6500, 4: 6400}, 2, -1, 1},
		{"a lock, and handing over takes a little", false, 0, map[int]time.Duration{0: 6350, 1: 6400, 2: 6500, 4: 6400}, 2, -1, 1},
		{"workers are in each other's way", false, 0, map[int]time.Duration{0: 5000, 1: 6400, 2: 7000, 4: 8000}, 2, -1, 0},
		{"loading is nothing", false, 0, map[int]time.Duration{0: 2, 1: 20, 2: 15, 4: 18}, 2, -1, 0},
		{"no worker is allowed", false, 0, map[int]time.Duration{0: 6400}, 0, 0, 0},
		{"a worker would hide 3.1 % of the step", true, 47_550, map[int]time.Duration{0: 1520, 1: 0, 2: 0}, 2, -1, 1},
		{"… 0.6 % of it", true, 47_550, map[int]time.Duration{0: 285, 1: 0, 2: 0}, 2, -1, 1},
		{"… 0.4 % of it", true, 47_550, map[int]time.Duration{0: 190, 1: 0, 2: 0}, 2, -1, 0},
		{"a step that workers slow down", true, 5000, map[int]time.Duration{0: 1000, 1: 1500, 2: 2000}, 2, -1, 0},
	} {
		var seen []Series
		for w, wait := range tt.wait {
			s := Series{Workers: w}
			for round := range time.Duration(4) {
				b := waiting(int(round), 25, (tt.body+wait+round%2)*time.Microsecond)
				b.Wait = (wait + round%2) * time.Microsecond
				s.Blocks = append(s.Blocks, b)
			}
			seen = append(seen, s)
		}
		sp := Space{CPUs: 2, Start: tt.start, Max: tt.max, Alpha: DefaultAlpha, Iterations: 100, Step: tt.step}
		require.Equal(t, tt.want, Choose(sp, seen).Workers, tt.name)
	}
}

// Errors are larger than alpha here: then the default is as good as another, unless it is far larger and
// something is known to be slower.
func TestTheDefaultIsPreferredToCountsOfAboutItsSize(t *testing.T) {
	shift := 0
	noisy := func(workers int, times time.Duration) Series { // not in step with the others
		shift++
		means := slices.Repeat([]time.Duration{1000 * times, 1400 * times, 700 * times, 900 * times}, 2)[shift%3:]
		return windows(workers, means[:4]...)
	}
	for _, tt := range []struct {
		name string
		seen []Series
		want int
	}{
		{"about as large", []Series{noisy(4, 1), noisy(8, 1), noisy(1, 4)}, 8},
		{"far larger", []Series{noisy(2, 1), noisy(8, 1), noisy(1, 4)}, 2},
		{"far smaller, and as good as far as is known", []Series{noisy(8, 1), noisy(32, 1), noisy(64, 4)}, 8},
		{"far larger, and nothing is known", []Series{noisy(2, 1), noisy(8, 1), noisy(1, 1)}, 8},
		{"far smaller", []Series{noisy(8, 6), noisy(32, 5), noisy(64, 4)}, 64},
		{"far smaller, and nothing is known", []Series{noisy(8, 5), noisy(32, 5), noisy(64, 4)}, 8},
	} {
		sp := Space{CPUs: 8, Start: 8, Max: 64, Alpha: DefaultAlpha, Iterations: 100}
		require.Equal(t, tt.want, Choose(sp, tt.seen).Workers, tt.name)
	}
}

func TestRepeatabilityIsLowWhereAnotherRunMightChooseOtherwise(t *testing.T) {
	clear := Choose(sixteen(), []Series{windows(1, 2000, 2010, 1990, 2005), windows(2, 1000, 1005, 995, 1000)})
	require.Equal(t, 0.99, clear.Repeatability, "never quite sure")
	close := Choose(tenth(sixteen()), []Series{windows(2, 1140, 1060, 1180, 1010), windows(3, 1000, 930, 1070, 1000)})
	require.Less(t, close.Repeatability, 0.9)
	require.Positive(t, close.Repeatability)
	for _, e := range close.Estimates {
		require.Less(t, e.Low, e.Mean)
		require.Less(t, e.Mean, e.High)
	}
	// Never more than n/(n+1) after n iterations of the choice.
	for iterations, want := range map[int]float64{1: 2. / 3, 4: 8. / 9, 40: 80. / 81, 1000: 0.99} {
		few := windows(8, 1000, 1000)
		for i := range few.Blocks {
			few.Blocks[i].Iterations = iterations
		}
		require.Equal(t, want, Choose(sixteen(), []Series{few, windows(15, 2000, 2000)}).Repeatability, iterations)
	}
}

func TestADriftThatAllCountsShareDoesNotMoveTheChoice(t *testing.T) {
	c := Choose(sixteen(), []Series{
		windows(1, 1500, 1800, 2200, 2600),
		windows(2, 1000, 1200, 1460, 1730),
		windows(3, 0, 0, 1530, 1810), // measured when everything was slow: five per cent above 2
		windows(4, 1045, 1255, 0, 0), // measured when nothing was
	})
	require.Equal(t, []int{2, 2}, []int{c.Workers, c.Fastest})
	require.InEpsilon(t, 1.045, float64(c.Estimates[3].Mean)/float64(c.Estimates[1].Mean), 0.02)
	require.InEpsilon(t, 1.05, float64(c.Estimates[2].Mean)/float64(c.Estimates[1].Mean), 0.02)
	require.Greater(t, c.Repeatability, 0.95)
}

// hidden is two windows whose bodies, in milliseconds, differ.
func hidden(workers int, wait time.Duration, bodies ...time.Duration) (s Series) {
	s.Workers = workers
	for round, body := range bodies {
		s.Blocks = append(s.Blocks, Block{Round: round, Iterations: 50, Bodies: 50, Mean: body*ms + wait, Wait: wait})
	}
	return s
}

func TestLoadingSetsThePaceWhereverItTakesLongerThanTheStep(t *testing.T) {
	c := Choose(sixteen(), []Series{hidden(4, 2*ms, 10, 10), hidden(8, 0, 10, 10)})
	require.Equal(t, 8, c.Workers)
	require.Equal(t, 12*ms, c.Estimates[0].Mean)
}

// A step that computes takes longer beside workers that do.
func TestACountHasAStepOfItsOwn(t *testing.T) {
	c := Choose(sixteen(), []Series{hidden(0, 22*ms, 5, 6, 5, 4), hidden(2, 5*ms, 10, 11, 10, 9), hidden(4, 0, 16, 15, 16, 17), hidden(8, 0, 17, 16, 15, 16)})
	require.Equal(t, 2, c.Fastest)
	for i, body := range []time.Duration{5, 10, 16, 16} {
		require.InEpsilon(t, float64(body*ms), float64(c.Estimates[i].Body), 0.06)
	}
	require.Equal(t, c.Estimates[2].Body, c.Estimates[2].Mean, "training doesn't wait")
}

// The machine was slow for a while, which met 2 workers more often than 16.
func TestWhatChangesBetweenWindowsIsPartOfTheError(t *testing.T) {
	sp := Space{CPUs: 2, Start: 2, Max: 64, Alpha: DefaultAlpha, Iterations: 100, Step: true}
	none := hidden(0, 3*ms, 54, 54, 54, 54)
	for name, wait := range map[string]time.Duration{"training hardly waits": 0, "it always waits": 1} {
		seen := []Series{none, hidden(2, 0, 54, 72, 54, 70), hidden(16, 0, 54, 54, 70, 54), hidden(32, 0, 72, 54, 54, 71)}
		for _, s := range seen[1:] {
			for i := range s.Blocks {
				b := &s.Blocks[i]
				b.Wait = wait * b.Mean
				b.Parts = slices.Repeat([]stat.Part{{Mean: float64(b.Wait), Weight: 5}}, 10) // windows, not batches, differ
			}
		}
		c := Choose(sp, seen)
		require.Equal(t, 2, c.Workers, name)
		require.Less(t, c.Repeatability, 0.9, name)
		for _, e := range c.Estimates[1:] {
			require.Greater(t, float64(e.High-e.Low), 0.2*float64(e.Mean), name)
		}
	}
}

func TestWhichBlocksCountAsTheyAre(t *testing.T) {
	seen := []Series{windows(4, 2000, 2010, 1990), windows(8, 1000, 1005, 995)}
	of8 := func(sp Space) time.Duration { return Choose(sp, seen).Estimates[1].Mean }
	seen[1].Blocks = append(seen[1].Blocks, waiting(-1, 1000, 3*ms))
	require.Greater(t, of8(sixteen()), 2*ms, "a block of no round")
	seen[1].Blocks[3].Round = 3
	require.Less(t, of8(sixteen()), 1100*time.Microsecond, "alone in its round, it may be all drift")
	fixed := sixteen()
	fixed.Fixed = true
	require.Greater(t, of8(fixed), 1300*time.Microsecond, "counts that have their iterations leave others alone")
	c := Choose(sixteen(), []Series{windows(4, 2000), windows(8, 0, 1000)})
	require.Equal(t, ms, c.Estimates[1].Mean, "always alone")
	c = Choose(sixteen(), []Series{{Workers: 8, Blocks: []Block{waiting(-1, 1, 900*time.Microsecond), waiting(-1, 3, 1020*time.Microsecond)}}})
	require.InDelta(t, 990e3, float64(c.Estimates[0].Mean), 1, "an iteration counts as much as another")
}

func TestNeitherTheOrderOfBlocksNorOfCountsMatters(t *testing.T) {
	seen := []Series{windows(4, 1000, 2000, 1500), windows(8, 500, 1000, 750), windows(15, 510, 980, 760)}
	seen[1].Blocks = append(seen[1].Blocks, waiting(-1, 25, 900*time.Microsecond))
	want := Choose(sixteen(), seen)
	for range seen {
		seen = append(seen[1:], seen[0])
		for i := range seen {
			seen[i].Blocks = append(seen[i].Blocks[1:], seen[i].Blocks[0])
			got := Choose(sixteen(), seen)
			require.Equal(t, []int{want.Workers, want.Fastest}, []int{got.Workers, got.Fastest})
			for k, e := range got.Estimates {
				require.InEpsilon(t, float64(want.Estimates[k].Mean), float64(e.Mean), 1e-3)
			}
		}
	}
}

func TestWhatWasMeasuredOnceHasNoInterval(t *testing.T) {
	require.Equal(t, Estimate{8, ms, 0, ms, ms}, Choose(sixteen(), []Series{windows(8, 1000)}).Estimates[0])
}

// Two CPUs: 2 workers want both, and those that are more are faster by what others lose.
func TestWorkersThatOnlyTakeCPUsFromOthersAreLeftOut(t *testing.T) {
	for _, tt := range []struct {
		name        string
		cpu, queued map[int]float64
		want        int
	}{
		{"others wait for nobody", map[int]float64{1: 0.5, 2: 0.98, 4: 1, 8: 1}, nil, 8},
		{"2 workers want both CPUs", map[int]float64{1: 0.3, 2: 0.5, 4: 0.7, 8: 0.8}, map[int]float64{1: 0.2, 2: 0.5, 4: 1.3, 8: 3}, 2},
		{"4 do: they wait for other things too", map[int]float64{1: 0.1, 2: 0.2, 4: 0.5, 8: 0.6}, map[int]float64{1: 0.1, 2: 0.2, 4: 0.5, 8: 1}, 4},
		{"1 does, with a step that computes", map[int]float64{1: 0.25, 2: 0.5, 4: 0.7, 8: 0.8}, map[int]float64{1: 0.75, 2: 0.5, 4: 1.3, 8: 3}, 2},
		{"samples wait", map[int]float64{1: 0.01, 2: 0.02, 4: 0.04, 8: 0.08}, map[int]float64{1: 0.1, 2: 0.1, 4: 0.2, 8: 0.3}, 8},
		{"it isn't known", map[int]float64{1: 0.3, 2: 0.5, 4: 0.7, 8: 0.8}, nil, 8},
	} {
		var seen []Series
		for w, mean := range map[int]time.Duration{1: 2000, 2: 1000, 4: 700, 8: 600} {
			s := windows(w, mean, mean+1, mean-1)
			for i := range s.Blocks {
				s.Blocks[i].CPU, s.Blocks[i].Queued = tt.cpu[w], tt.queued[w]
			}
			s.Blocks = append(s.Blocks, Block{Round: -1, Iterations: 100, Mean: mean * time.Microsecond, Wait: mean * time.Microsecond}) // of a loader that is watched
			seen = append(seen, s)
		}
		sp := Space{CPUs: 2, Start: 2, Max: 8, Alpha: DefaultAlpha, Iterations: 100}
		c := Choose(sp, seen)
		require.Equal(t, []int{tt.want, tt.want}, []int{c.Workers, c.Fastest}, tt.name)
		require.Equal(t, tt.want < 8, c.Most == tt.want, tt.name)
		require.Len(t, c.Estimates, 4)
		sp.Start = 8
		require.Equal(t, tt.want, Choose(sp, seen).Workers, "%s: the default is left out too", tt.name)
	}
}

// The CPUs of other ranks idle while one tunes, so nobody waits for a CPU.
func TestARankLeavesTheOtherRanksTheirCPUs(t *testing.T) {
	for _, tt := range []struct {
		name   string
		worker float64 // share of this rank's two CPUs that a worker uses
		want   int
	}{
		{"samples compute", 0.5, 2}, {"samples wait as long", 0.25, 4}, {"samples wait", 0.01, 8},
	} {
		var seen []Series
		for w := 1; w <= 8; w *= 2 {
			mean := time.Duration(8000 / w)
			s := windows(w, mean, mean+1, mean-1)
			for i := range s.Blocks {
				s.Blocks[i].CPU = tt.worker * float64(w)
			}
			seen = append(seen, s)
		}
		sp := Space{CPUs: 2, Shared: true, Start: 2, Max: 8, Alpha: DefaultAlpha, Iterations: 100}
		require.Equal(t, tt.want, Choose(sp, seen).Workers, tt.name)
		sp.Shared = false
		require.Equal(t, 8, Choose(sp, seen).Workers, tt.name)
	}
}

// Other programs keep a part of both CPUs, and what the process gets varies.
func TestFullCPUsAreNoLimitIfSamplesDoNotUseThem(t *testing.T) {
	got := map[int]float64{1: 0.5, 2: 0.55, 4: 0.35, 8: 0.43, 16: 0.67, 32: 0.68, 64: 0.4}
	for _, tt := range []struct {
		name string
		mean func(w int) float64 // milliseconds per batch
		want int
	}{
		{"samples wait, while other goroutines of the process compute", func(w int) float64 { return 350 / float64(w) }, 64},
		{"and no batch is ready before the step ends", func(w int) float64 { return max(29, 350/float64(w)) }, 16},
		{"samples compute", func(w int) float64 { return 50 / got[w] }, 2},
	} {
		var seen []Series
		for w := 1; w <= 64; w *= 2 {
			mean := time.Duration(1000 * tt.mean(w))
			s := windows(w, mean, mean+1, mean-1)
			for i := range s.Blocks {
				s.Blocks[i].CPU, s.Blocks[i].Queued = got[w], 1
			}
			seen = append(seen, s)
		}
		sp := Space{CPUs: 2, Start: 2, Max: 64, Alpha: DefaultAlpha, Iterations: 100}
		require.Equal(t, tt.want, Choose(sp, seen).Workers, tt.name)
	}
}

// The row that is called the fastest has the smallest figure of those that can be compared.
func TestTheFastestIsTheShortestTimeThatIsKnown(t *testing.T) {
	for _, tt := range []struct {
		name string
		seen []Series
		want int
	}{
		{"the errors overlap", []Series{windows(1, 18_800, 18_700, 18_600, 18_900), windows(2, 9540, 9500, 9600, 9520), windows(4, 9260, 9700, 8800, 9280)}, 4},
		{"seen once", []Series{windows(1, 1800, 1790, 1810, 1800), windows(2, 900, 880, 860, 870), windows(4, 36)}, 2},
		{"hardly measured", []Series{windows(1, 1800, 1790, 1810, 1800), windows(2, 900, 880, 860, 870, 880, 860), {Workers: 4, Blocks: []Block{waiting(0, 1, 36*time.Microsecond), waiting(1, 1, 800*time.Microsecond)}}}, 2},
		{"none was seen twice", []Series{windows(2, 900), windows(4, 850)}, 4},
	} {
		sp := Space{CPUs: 2, Start: 2, Max: 4, Alpha: DefaultAlpha, Iterations: 100}
		require.Equal(t, tt.want, Choose(sp, tt.seen).Fastest, tt.name)
	}
}
