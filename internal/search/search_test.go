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

// drive carries out what a strategy asks for, until it asks no more.
func drive(s Strategy, sp Space, visit func(Request) Block) (seen []Series, requests []Request) {
	spent := time.Duration(0)
	return driveIn(s, sp, func(q Request) Block {
		b := visit(q)
		spent += time.Duration(b.Iterations) * b.Mean
		return b
	}, func() time.Duration { return spent })
}

// driveIn is drive with a clock. It panics if the search doesn't end.
func driveIn(s Strategy, sp Space, visit func(Request) Block, spent func() time.Duration) (seen []Series, requests []Request) {
	for {
		sp.Left = max(0, sp.Time-spent())
		q, more := s.Next(sp, seen)
		if !more {
			return seen, requests
		}
		requests = append(requests, q)
		i := slices.IndexFunc(seen, func(s Series) bool { return s.Workers == q.Workers })
		if i < 0 {
			i = len(seen)
			seen = append(seen, Series{Workers: q.Workers})
		}
		if seen[i].Blocks = append(seen[i].Blocks, visit(q)); len(seen[i].Blocks) > 2*lastRound {
			panic("the search doesn't end")
		}
	}
}

// steady is a visit to a machine without noise, which stops at the limit.
func steady(mean func(workers int) time.Duration) func(Request) Block {
	return func(q Request) Block {
		one := mean(q.Workers)
		fit := min(q.Limit/one+1, time.Duration(q.Iterations))
		return Block{Round: q.Round, Iterations: int(fit), Mean: one, CPU: 1}
	}
}

func halving(workers int) time.Duration {
	return 40 * time.Millisecond / time.Duration(max(1, workers))
}

func flat(int) time.Duration { return time.Millisecond }

func sixteen() Space {
	return Space{CPUs: 16, Start: 15, Max: 15, Alpha: DefaultAlpha, Iterations: 100}
}

func counts(requests []Request) []int {
	var out []int
	for _, q := range requests {
		out = append(out, q.Workers)
	}
	return out
}

func iterationsAt(seen []Series, workers int) int {
	sum := 0
	for _, s := range seen {
		for _, b := range s.Blocks {
			if s.Workers == workers {
				sum += b.Iterations
			}
		}
	}
	return sum
}

func measured(means map[int]float64) []Series {
	var seen []Series
	for w, seconds := range means {
		mean := time.Duration(seconds / 100 * float64(time.Second))
		seen = append(seen, Series{w, []Block{{Iterations: 100, Mean: mean}}})
	}
	return seen
}

func TestThePapersTableGivesItsAnswer(t *testing.T) {
	sp := Space{CPUs: 64, Max: 63, Alpha: Alpha{Total: 500 * time.Millisecond, Share: math.Inf(1)}, Iterations: 100}
	c := Choose(sp, measured(map[int]float64{0: 14.25, 14: 1.49, 16: 1.41, 32: 1.55, 63: 2.21}))
	require.Equal(t, 14, c.Workers)
	require.Equal(t, 16, c.Fastest)
	require.Equal(t, 500*time.Millisecond, c.Alpha)
	require.Zero(t, c.Confidence, "nothing was measured twice")
	require.Equal(t, 14900*time.Microsecond, c.Estimates[1].Mean.Round(time.Microsecond))
}

func TestTheSmallerOfDurationAndShareIsIgnored(t *testing.T) {
	onlyTime := Alpha{Total: 500 * time.Millisecond, Share: math.Inf(1)}
	onlyShare := Alpha{Total: math.MaxInt64, Share: 0.25}
	for _, tt := range []struct {
		name  string
		Alpha Alpha
		want  int // of 1 → 1.5 s, 2 → 1.2 s, 4 → 1.05 s, 8 → 1 s
	}{
		{"half a second, but no more than a tenth", DefaultAlpha, 4},
		{"seconds alone", onlyTime, 1},
		{"a share alone", onlyShare, 2},
		{"nothing", Alpha{Share: math.Inf(1)}, 8},
	} {
		t.Run(tt.name, func(t *testing.T) {
			sp := Space{CPUs: 16, Start: 15, Max: 15, Alpha: tt.Alpha, Iterations: 100}
			c := Choose(sp, measured(map[int]float64{1: 1.5, 2: 1.2, 4: 1.05, 8: 1}))
			require.Equal(t, tt.want, c.Workers)
			require.Equal(t, 8, c.Fastest)
		})
	}
}

func TestGreedyHalvesFromTheStartAndThenBisects(t *testing.T) {
	seen, requests := drive(Greedy{}, sixteen(), steady(func(w int) time.Duration {
		return halving(min(w, 10))
	}))
	require.Equal(t, []int{15, 8, 4, 2}, counts(requests)[:4])
	require.Contains(t, counts(requests), 12)
	require.NotContains(t, counts(requests), 10, "closer to 8 and 12 than a step")
	require.Equal(t, 12, Choose(sixteen(), seen).Workers)
}

// "So the choice may have up to half more workers than would just do."
func TestTheChoiceHasAtMostHalfMoreWorkersThanWouldJustDo(t *testing.T) {
	sp := Space{CPUs: 64, Start: 64, Max: 64, Alpha: Alpha{Total: math.MaxInt64, Share: 0.1}, Iterations: 100}
	for serial := 1; serial <= 400; serial += 3 { // microseconds of 1 ms
		mean := func(w int) time.Duration {
			return time.Millisecond/time.Duration(max(1, w)) + time.Duration(serial)*time.Microsecond
		}
		fewest := 0
		for 10*mean(fewest) > 11*mean(64) {
			fewest++
		}
		seen, _ := drive(Greedy{}, sp, steady(mean))
		chosen := Choose(sp, seen).Workers
		require.GreaterOrEqual(t, chosen, fewest)
		require.LessOrEqual(t, 2*chosen, 3*fewest, "%d would just do", fewest)
	}
}

// One valley, wherever it lies and however steep its sides are: up to linear on the left,
// and up to 30 times its time on the right. A tenth is alpha, the rest is the step.
func TestWhereverTheBestCountLiesItIsFound(t *testing.T) {
	for seed := range uint64(150) {
		rng := rand.New(rand.NewPCG(seed, 7))
		sp := Space{CPUs: 2 + rng.IntN(255), Alpha: DefaultAlpha, Iterations: 100}
		sp.Start, sp.Max = sp.CPUs-1, sp.CPUs-1
		left := math.Pow(float64(sp.CPUs), rng.Float64())
		right := left * math.Exp(3*rng.Float64()*rng.Float64())
		fall, rise := min(1, 1.5*rng.Float64()), min(3*rng.Float64(), math.Log(30)/math.Log(max(2, float64(sp.Max)/right)))
		valley := func(w int) float64 {
			x := float64(max(1, w))
			return max(math.Pow(left/x, fall), math.Pow(x/right, rise), 1)
		}
		best := math.Inf(1)
		for w := range sp.Max + 1 {
			best = min(best, valley(w))
		}
		seen, _ := drive(Greedy{}, sp, steady(func(w int) time.Duration { return time.Duration(1e7 * valley(w)) }))
		c := Choose(sp, seen)
		require.LessOrEqual(t, valley(c.Workers)/best, 1.22, "%d CPUs, a valley of slopes %.2f and %.2f from %.1f to %.1f: %d workers", sp.CPUs, fall, rise, left, right, c.Workers)
	}
}

// Training's own count was measured first, on samples that lay in a cache.
func TestAFirstVisitThatWasTooQuickCutsOthersShortOnlyAtFirst(t *testing.T) {
	for _, fixed := range []bool{true, false} {
		for _, quick := range []int{1, 2} {
			sp := sixteen()
			sp.Fixed, sp.Iterations = fixed, 1000
			looks := 0
			seen, requests := drive(Greedy{}, sp, func(q Request) Block {
				mean := func(w int) time.Duration { return halving(min(w, 10)) }
				if q.Workers == sp.Start {
					looks++
				}
				if q.Workers == sp.Start && looks <= quick {
					return steady(func(w int) time.Duration { return mean(w) / 100 })(q)
				}
				return steady(mean)(q)
			})
			require.Less(t, len(requests), 80, "each of one iteration, it was over a thousand")
			require.Equal(t, 12, Choose(sp, seen).Workers)
		}
	}
}

// In the first look at a count, one iteration happens to take a hundred times as long.
func TestOneSlowIterationHidesNoCount(t *testing.T) {
	for _, hit := range []int{1, 2, 4, 8, 15} {
		slow := 0
		seen, _ := drive(Greedy{}, sixteen(), func(q Request) Block {
			b := steady(func(w int) time.Duration { return halving(min(w, 3)) })(q)
			b.Level = b.Mean
			if q.Workers == hit && slow == 0 {
				b.Mean += 100 * b.Mean / time.Duration(b.Iterations)
				slow++
			}
			return b
		})
		require.Equal(t, 1, slow)
		require.GreaterOrEqual(t, iterationsAt(seen, 3), 100, "slow at %d", hit)
	}
}

// More than 16 workers finish two batches at once, every 40 ms, and are no faster.
func TestTheSpaceDoesNotGrowBecauseBatchesComeInWaves(t *testing.T) {
	sp := Space{CPUs: 16, Start: 16, Max: -1, Alpha: DefaultAlpha, Iterations: 100}
	_, requests := drive(Greedy{}, sp, func(q Request) Block {
		v := Visit{Wanted: max(q.Iterations, 8), Least: 1}
		took := []time.Duration{320 / time.Duration(max(1, min(q.Workers, 16)))}
		if q.Workers > 16 {
			v.Least, took = 2, []time.Duration{40, 0}
		}
		for i := 0; v.More(); i++ {
			v.Add(took[i%len(took)] * time.Millisecond)
		}
		return Block{Round: q.Round, Iterations: v.Kept(), Mean: time.Duration(overall(v.Parts())), Level: v.Level(), Parts: v.Parts(), CPU: 0.1}
	})
	require.Equal(t, 32, slices.Max(counts(requests)))
}

// Up to 256 workers make loading faster. The first look at 32 happens to be as quick as one at 64.
func TestASpaceGrowsIfTheFirstLooksHadBadLuck(t *testing.T) {
	for _, tt := range []struct {
		name  string
		busy  float64 // share of the CPUs, from 64 workers on
		most  int     // that memory allows
		want  int
		tried int // at most
	}{
		{"", 0.1, MaxWorkers, 256, 512},
		{"not if all CPUs are in use", 0.95, MaxWorkers, 64, 64},
		{"no further than memory allows", 0.1, 128, 128, 128},
	} {
		sp := Space{CPUs: 64, Start: 64, Max: -1, Alpha: DefaultAlpha, Iterations: 100}
		sp.Allowed = func(w int) bool { return w <= tt.most }
		lucky := 0
		seen, requests := drive(Greedy{}, sp, func(q Request) Block {
			b := steady(func(w int) time.Duration { return time.Second / time.Duration(max(1, min(w, 256))) })(q)
			b.CPU = tt.busy * min(1, float64(q.Workers)/64)
			if q.Workers == 32 && lucky == 0 {
				b.Mean /= 2
				lucky++
			}
			return b
		})
		require.Equal(t, 1, lucky)
		require.Equal(t, tt.want, Choose(sp, seen).Workers, tt.name)
		require.LessOrEqual(t, slices.Max(counts(requests)), tt.tried, tt.name)
	}
}

func TestACountThatCannotWinIsLeftEarly(t *testing.T) {
	seen, _ := drive(Greedy{}, sixteen(), steady(halving))
	require.LessOrEqual(t, iterationsAt(seen, 0), 6)
	require.LessOrEqual(t, iterationsAt(seen, 1), 6)
	require.GreaterOrEqual(t, iterationsAt(seen, 15), 100)
}

func TestWorkersThatDoNotHelpAreNotChosen(t *testing.T) {
	seen, _ := drive(Greedy{}, sixteen(), steady(flat))
	require.Equal(t, 0, Choose(sixteen(), seen).Workers)

	stepBound := func(w int) time.Duration {
		if w == 0 {
			return 3 * time.Millisecond // the caller loads, then steps
		}
		return 2 * time.Millisecond
	}
	seen, _ = drive(Greedy{}, sixteen(), steady(stepBound))
	require.Equal(t, 1, Choose(sixteen(), seen).Workers)
}

func TestNoCountIsVisitedTwiceInARound(t *testing.T) {
	for _, s := range []Strategy{Greedy{}, Exhaustive{}} {
		_, requests := drive(s, sixteen(), steady(halving))
		visited := map[[2]int]bool{}
		last := 0
		for _, q := range requests {
			require.False(t, visited[[2]int{q.Round, q.Workers}], "%v: %d workers in round %d", s, q.Workers, q.Round)
			require.GreaterOrEqual(t, q.Round, last)
			visited[[2]int{q.Round, q.Workers}], last = true, q.Round
		}
		require.GreaterOrEqual(t, last, 3, s.String())
	}
}

// What a round shares is told from what a count needs only if others are beside it.
func TestNoCountIsMeasuredAlone(t *testing.T) {
	for _, c := range curves(1) {
		if c.cpus != 64 || c.trouble != "stretches" {
			continue
		}
		requests := c.run(Greedy{}, 1).requests
		in := map[int]map[int]bool{}
		for _, q := range requests {
			if in[q.Round] == nil {
				in[q.Round] = map[int]bool{}
			}
			in[q.Round][q.Workers] = true
		}
		last := requests[len(requests)-1].Round
		for round, counts := range in {
			require.True(t, len(counts) > 1 || round == last, "%v: %v in round %d", c, counts, round)
		}
	}
}

func TestExhaustiveSweepsEveryCountUpwardsAndMeasuresAllAlike(t *testing.T) {
	seen, requests := drive(Exhaustive{}, sixteen(), steady(halving))
	require.Equal(t, []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, counts(requests)[:16])
	for w := range 16 {
		require.Equal(t, 100, iterationsAt(seen, w))
	}
	require.Equal(t, 14, Choose(sixteen(), seen).Workers)
}

func TestIterationsThatTheUserSetAreKeptTo(t *testing.T) {
	for _, n := range []int{1, 3, 7, 100} {
		sp := sixteen()
		sp.Iterations, sp.Fixed = n, true
		for _, s := range []Strategy{Greedy{}, Exhaustive{}} {
			seen, requests := drive(s, sp, steady(flat))
			c := Choose(sp, seen)
			require.Equal(t, n, iterationsAt(seen, c.Workers), "%v, %d", s, n)
			for _, q := range requests {
				require.LessOrEqual(t, iterationsAt(seen, q.Workers), n, "%v, %d", s, n)
			}
		}
	}
}

// The first batches came from a cache: measured by them, all later visits take too long and
// end early.
func TestVisitsThatEndEarlyAddUpToTheIterationsThatTheUserSet(t *testing.T) {
	sp := sixteen()
	sp.Iterations, sp.Fixed = 1000, true
	visits := 0
	seen, _ := drive(Greedy{}, sp, steady(func(workers int) time.Duration {
		if visits++; visits == 1 {
			return halving(workers) / 5
		}
		return halving(workers)
	}))
	require.Equal(t, 1000, iterationsAt(seen, Choose(sp, seen).Workers))
	require.Equal(t, 1000, iterationsAt(seen, 12), "a neighbour")
}

func TestIterationsAdaptToHowLongABatchTakes(t *testing.T) {
	of := func(mean time.Duration) int {
		seen, _ := drive(Greedy{}, sixteen(), steady(func(int) time.Duration { return mean }))
		return iterationsAt(seen, 0)
	}
	require.GreaterOrEqual(t, of(50*time.Microsecond), 600, "long enough to tell it from noise")
	require.Less(t, of(time.Second), 50, "no longer than anyone waits")
}

// Where workers take all CPUs, training may get its batches in bursts. A level leaves out the wait
// before, so a visit's may be next to nothing.
func TestABurstAsksForNoMoreThanOtherVisitsDo(t *testing.T) {
	sp := Space{CPUs: 2, Start: 2, Max: 2, Alpha: DefaultAlpha, Iterations: 100}
	seen, rounds := map[int]int{}, 0
	_, requests := drive(Greedy{}, sp, func(q Request) Block {
		mean := halving(q.Workers)
		b := Block{Round: q.Round, Iterations: q.Iterations, Mean: mean, Level: mean}
		if seen[q.Workers]++; q.Workers == 2 && seen[2] == 3 {
			b.Level, rounds = 400, rounds+1
		}
		return b
	})
	require.Equal(t, 1, rounds, "%v", requests)
	for _, q := range requests {
		require.LessOrEqual(t, q.Iterations, 100, "%v", requests)
	}
}

func TestMeasuringEndsWithTheBudget(t *testing.T) {
	for _, s := range []Strategy{Greedy{}, Exhaustive{}} {
		sp := sixteen()
		sp.Time = time.Second
		seen, requests := drive(s, sp, steady(halving))
		spent, longest := time.Duration(0), time.Duration(0)
		for _, s := range seen {
			for _, b := range s.Blocks {
				spent += time.Duration(b.Iterations) * b.Mean
				longest = max(longest, b.Mean)
			}
		}
		require.Less(t, spent, sp.Time+longest, s.String())
		for _, q := range requests {
			require.LessOrEqual(t, q.Limit, sp.Time)
		}
	}
	sp := sixteen()
	sp.Time = time.Second
	_, requests := drive(Greedy{}, sp, steady(halving))
	require.Contains(t, counts(requests), 15, "the slow counts leave enough for the fast ones")
}

func TestTheSpaceGrowsWhileMoreWorkersWinAndCPUsIdle(t *testing.T) {
	waiting := func(w int) time.Duration { return halving(min(w, 40)) }
	for _, tt := range []struct {
		name          string
		Space         Space
		mean          func(int) time.Duration
		cpu           float64
		greedy, sweep int // the highest count measured
	}{
		{"waiting on storage", Space{CPUs: 2, Max: -1}, waiting, 0.1, 128, 128},
		{"all CPUs busy", Space{CPUs: 2, Max: -1}, waiting, 0.95, 2, 1},
		{"more workers don't help", Space{CPUs: 8, Max: -1}, flat, 0.1, 8, 7},
		{"the user set a bound", Space{CPUs: 2, Max: 5}, waiting, 0.1, 5, 5},
		{"for ever faster", Space{CPUs: 2, Max: -1}, halving, 0.1, MaxWorkers, MaxWorkers},
		{"one CPU", Space{CPUs: 1, Max: -1}, flat, 1, 1, 0},
	} {
		for s, top := range map[Strategy]int{Greedy{}: tt.greedy, Exhaustive{}: tt.sweep} {
			t.Run(tt.name+", "+s.String(), func(t *testing.T) {
				tt.Space.Alpha, tt.Space.Iterations = DefaultAlpha, 8
				_, requests := drive(s, tt.Space, func(q Request) Block {
					return Block{Round: q.Round, Iterations: q.Iterations, Mean: tt.mean(q.Workers), CPU: tt.cpu}
				})
				require.Equal(t, top, slices.Max(counts(requests)))
			})
		}
	}
}

func TestVisitsThatOthersDisturbDoNotMakeBusyCPUsLookIdle(t *testing.T) {
	_, requests := drive(Greedy{}, Space{CPUs: 2, Max: -1, Alpha: DefaultAlpha, Iterations: 100}, func(q Request) Block {
		b := Block{Round: q.Round, Iterations: q.Iterations, Mean: halving(min(q.Workers, 40)), CPU: 0.5 * float64(min(q.Workers, 2))}
		if q.Round%2 == 1 { // something else has half of the CPUs
			b.Mean, b.CPU = 2*b.Mean, b.CPU/2
		}
		return b
	})
	require.Equal(t, 2, slices.Max(counts(requests)))
}

func TestCountsThatNeedTooMuchMemoryAreNeitherMeasuredNorChosen(t *testing.T) {
	for _, s := range []Strategy{Greedy{}, Exhaustive{}} {
		sp := sixteen()
		sp.Allowed = func(workers int) bool { return workers <= 5 }
		seen, requests := drive(s, sp, steady(halving))
		require.LessOrEqual(t, slices.Max(counts(requests)), 5)

		sp.Allowed = func(workers int) bool { return workers <= 2 } // what was measured showed it
		require.Equal(t, 2, Choose(sp, seen).Workers)

		sp.Allowed = func(int) bool { return false }
		_, more := s.Next(sp, seen)
		require.False(t, more)
		require.Equal(t, Choice{Workers: -1, Fastest: -1}, Choose(sp, seen))
	}
}

// visits has one block of 25 iterations per mean and round; 0 is no visit.
func visits(workers int, means ...time.Duration) Series {
	s := Series{Workers: workers}
	for round, mean := range means {
		if mean > 0 {
			s.Blocks = append(s.Blocks, Block{Round: round, Iterations: 25, Mean: mean})
		}
	}
	return s
}

func TestASlowStartDoesNotCountAgainstTheFirstCount(t *testing.T) {
	c := Choose(sixteen(), []Series{visits(1, 3000, 1010, 1000, 1005), visits(2, 1000, 1005, 995, 1000)})
	require.Equal(t, 1, c.Workers)
}

func TestADriftThatAllCountsShareDoesNotMoveTheChoice(t *testing.T) {
	c := Choose(sixteen(), []Series{
		visits(1, 1500, 1800, 2200, 2600),
		visits(2, 1000, 1200, 1460, 1730),
		visits(3, 0, 0, 1530, 1810), // measured when everything was slow: five per cent above 2
		visits(4, 1045, 1255, 0, 0), // measured when nothing was
	})
	require.Equal(t, 2, c.Workers)
	require.Equal(t, 2, c.Fastest)
	require.Greater(t, c.Estimates[1].Mean, c.Estimates[0].Mean/2)
	require.InEpsilon(t, 1.045, float64(c.Estimates[2].Mean)/float64(c.Estimates[1].Mean), 0.02)
	require.Greater(t, c.Confidence, 0.95)
}

func TestConfidenceIsLowWhereAReRunMightChooseOtherwise(t *testing.T) {
	clear := Choose(sixteen(), []Series{visits(1, 2000, 2010, 1990, 2005), visits(2, 1000, 1005, 995, 1000)})
	require.Equal(t, 0.99, clear.Confidence, "never quite sure")
	close := Choose(sixteen(), []Series{visits(2, 1140, 1060, 1180, 1010), visits(3, 1000, 930, 1070, 1000)})
	require.Less(t, close.Confidence, 0.9)
	require.Positive(t, close.Confidence)
	for _, e := range close.Estimates {
		require.Less(t, e.Low, e.Mean)
		require.Less(t, e.Mean, e.High)
	}
}

func TestWhereMeasuringDoesNotTellTheRounderCountIsChosen(t *testing.T) {
	for _, tt := range []struct {
		name    string
		seen    []Series
		start   int
		want    int
		rounded bool
	}{
		{"either may be the fewest", []Series{visits(7, 1110, 1080, 1120, 1090), visits(8, 1000, 990, 1010, 1000)}, 15, 8, true},
		{"the lower one surely is", []Series{visits(7, 1060, 1050, 1070, 1060), visits(8, 1000, 990, 1010, 1000)}, 15, 7, false},
		{"the lower one surely is not", []Series{visits(7, 1160, 1150, 1170, 1160), visits(9, 1000, 990, 1010, 1000)}, 15, 9, false},
		{"the lower one is the rounder", []Series{visits(8, 1110, 1080, 1120, 1090), visits(9, 1000, 990, 1010, 1000)}, 15, 8, false},
		{"training's own count is as round as one more", []Series{visits(14, 1110, 1080, 1120, 1090), visits(15, 1000, 990, 1010, 1000)}, 15, 15, true},
		{"training's own count is as round as it is", []Series{visits(7, 1110, 1080, 1120, 1090), visits(8, 1000, 990, 1010, 1000)}, 8, 8, true},
		{"of those that are equally round, the fewest", []Series{visits(7, 1110, 1080, 1120, 1090), visits(9, 1110, 1080, 1120, 1090), visits(11, 1000, 990, 1010, 1000)}, 15, 7, false},
		{"of more that are sure, the fewest", []Series{visits(7, 1100, 1075, 1110, 1085), visits(10, 1000, 990, 1010, 1000), visits(12, 990, 990, 1000, 1000)}, 15, 10, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			sp := sixteen()
			sp.Start = tt.start
			c := Choose(sp, tt.seen)
			require.Equal(t, tt.want, c.Workers)
			require.Equal(t, tt.rounded, c.Rounded, "fewer may do")
		})
	}
}

func TestTheSameFiguresGiveTheSameAnswer(t *testing.T) {
	for _, c := range curves(1)[:20] {
		require.Equal(t, c.run(Greedy{}, 1), c.run(Greedy{}, 1))
	}
}

// Whatever is measured, a search ends, asks for sensible visits and chooses
// what it measured.
func FuzzASearchEnds(f *testing.F) {
	f.Add(uint64(1), 8, 7, 100, int64(0), false)
	f.Add(uint64(2), 2, -1, 1, int64(time.Second), true)
	f.Fuzz(func(t *testing.T, seed uint64, cpus, most, iterations int, budget int64, fixed bool) {
		sp := Space{
			CPUs: 1 + int(uint(cpus)%64), Max: max(-1, most%64), Alpha: DefaultAlpha,
			Iterations: 1 + int(uint(iterations)%200), Time: time.Duration(max(0, budget)), Fixed: fixed,
		}
		for _, s := range []Strategy{Greedy{}, Exhaustive{}} {
			rng := rand.New(rand.NewPCG(seed, 0))
			seen, requests := drive(s, sp, func(q Request) Block {
				require.Positive(t, q.Iterations)
				require.Positive(t, q.Limit)
				require.LessOrEqual(t, q.Workers, MaxWorkers)
				mean := time.Duration(math.Exp(25 * rng.Float64())) // to a minute, and 0 too
				return Block{Round: q.Round, Iterations: 1 + rng.IntN(q.Iterations), Mean: mean - 1, CPU: rng.Float64()}
			})
			require.NotEmpty(t, requests)
			c := Choose(sp, seen)
			require.Contains(t, counts(requests), c.Workers)
			require.GreaterOrEqual(t, c.Confidence, 0.0)
			require.LessOrEqual(t, c.Confidence, 1.0)
			require.GreaterOrEqual(t, c.Alpha, time.Duration(0))
		}
	})
}

func TestPartsHaveAFewIterationsAndLoseNone(t *testing.T) {
	of := func(v Visit, took ...time.Duration) []stat.Part {
		v.Wanted = len(took)
		for _, d := range took {
			v.Add(d)
		}
		return v.Parts()
	}
	ms := time.Millisecond
	twelve := []time.Duration{1 * ms, 2 * ms, 3 * ms, 4 * ms, 5 * ms, 6 * ms, 7 * ms, 8 * ms, 9 * ms, 10 * ms, 11 * ms, 12 * ms}
	require.Equal(t, []stat.Part{{Mean: 3e6, Weight: 5}, {Mean: 9e6, Weight: 7}}, of(Visit{}, twelve...))
	require.Equal(t, []stat.Part{{Mean: 3.5e6, Weight: 6}, {Mean: 9.5e6, Weight: 6}}, of(Visit{Least: 6}, twelve...), "a wave")
	require.Equal(t, []stat.Part{{Mean: 4e6, Weight: 7}, {Mean: 10e6, Weight: 5}}, of(Visit{Part: 28 * ms}, twelve...), "a clock that steps")
	require.Equal(t, []stat.Part{{Mean: 1.5e6, Weight: 2}}, of(Visit{}, twelve[:2]...))
	require.Equal(t, []stat.Part{{Mean: 5.5e6, Weight: 8}, {Mean: 90e6, Weight: 1}}, of(Visit{}, append([]time.Duration{90 * ms}, twelve[1:9]...)...), "the slowest of a short visit")
	require.Equal(t, []stat.Part{{Mean: 1.5e6, Weight: 2}, {Mean: 90e6, Weight: 1}}, of(Visit{Least: 1}, 1*ms, 90*ms, 2*ms), "of three iterations, too; a batch alone is no wave")
	require.Equal(t, []stat.Part{{Mean: 2e6, Weight: 3}}, of(Visit{Least: 3}, twelve[:3]...), "a short visit with a wave")
	require.Equal(t, []stat.Part{{Mean: 2e6, Weight: 3}}, of(Visit{Part: 2 * ms}, twelve[:3]...), "or by a clock that steps")
	require.Empty(t, of(Visit{}))
	require.Equal(t, []stat.Part{{Mean: 1, Weight: 3}}, of(Visit{}, 0, 0, 0), "a clock that steps seldom")
	sum := 0.0
	for _, p := range of(Visit{}, slices.Repeat([]time.Duration{70 * time.Microsecond}, 101)...) {
		require.GreaterOrEqual(t, p.Mean*p.Weight, 1e6, "a millisecond")
		sum += p.Weight
	}
	require.Equal(t, 101.0, sum)
}

func TestTwoStallsInARoundAreNoDrift(t *testing.T) {
	stalled := []Series{visits(7, 1100, 1110, 1090, 6000, 1100, 1105), visits(8, 1000, 990, 1010, 5900, 1005, 995)}
	mean := func() time.Duration {
		c := Choose(sixteen(), stalled)
		return c.Estimates[1].Mean
	}
	require.Less(t, mean(), 1200*time.Nanosecond, "all that is known are means: the round was slow")
	for _, s := range stalled {
		for i := range s.Blocks {
			s.Blocks[i].Level = min(s.Blocks[i].Mean, 1100)
		}
	}
	require.Greater(t, mean(), 1500*time.Nanosecond, "one iteration of each was slow")
}

func TestALevelLeavesOutTheSlowestIteration(t *testing.T) {
	v := Visit{Wanted: 4}
	for _, d := range []time.Duration{10, 12} {
		v.Add(d)
	}
	require.Zero(t, v.Level(), "too few")
	v.Add(250)
	v.Add(14)
	require.Equal(t, time.Duration(12), v.Level())
}

func TestABlockOfNoRoundCountsAsItIs(t *testing.T) {
	seen := []Series{visits(4, 2000, 2010, 1990), visits(8, 1000, 1005, 995)}
	require.Less(t, Choose(sixteen(), seen).Estimates[1].Mean, 1100*time.Nanosecond)
	seen[1].Blocks = append(seen[1].Blocks, Block{Round: -1, Iterations: 1000, Mean: 3000})
	require.Greater(t, Choose(sixteen(), seen).Estimates[1].Mean, 2000*time.Nanosecond)
	seen[1].Blocks[3].Round = 3 // in a round it would be alone in, it may be all drift
	require.Less(t, Choose(sixteen(), seen).Estimates[1].Mean, 1100*time.Nanosecond)
}

// Counts that have their iterations leave others alone.
func TestABlockAloneInItsRoundCountsIfTheUserSetIterations(t *testing.T) {
	seen := []Series{visits(8, 1000, 1005, 995, 1000, 3000, 1000, 3000, 1000), visits(15, 2000, 2010, 1990, 2000)}
	sp := sixteen()
	require.Less(t, Choose(sp, seen).Estimates[0].Mean, 1100*time.Nanosecond, "it may be all drift")
	sp.Fixed = true
	require.Greater(t, Choose(sp, seen).Estimates[0].Mean, 1300*time.Nanosecond)
	for _, again := range []time.Duration{2000, 0} { // 0: only a count that is no longer allowed was in that round
		slow := []Series{visits(8, 1000, 1005, 995, 2000, again, 2010, 1990, 2000), visits(15, 2000, 2010, 1990, 4000)}
		require.InDelta(t, 1000, Choose(sp, slow).Estimates[0].Mean, 10, "the last drift that was seen goes on")
	}
}
