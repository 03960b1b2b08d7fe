package nwt

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// drive carries out what a strategy asks for, until it asks no more.
func drive(s Strategy, sp space, visit func(request) block) (seen []series, requests []request) {
	for {
		q, more := s.next(sp, seen)
		if !more {
			return seen, requests
		}
		requests = append(requests, q)
		i := slices.IndexFunc(seen, func(s series) bool { return s.workers == q.workers })
		if i < 0 {
			i = len(seen)
			seen = append(seen, series{workers: q.workers})
		}
		seen[i].blocks = append(seen[i].blocks, visit(q))
	}
}

// steady is a visit to a machine without noise, which stops at the limit.
func steady(mean func(workers int) time.Duration) func(request) block {
	return func(q request) block {
		one := mean(q.workers)
		fit := min(q.limit/one+1, time.Duration(q.iterations))
		return block{round: q.round, iterations: int(fit), mean: one, cpu: 1}
	}
}

func halving(workers int) time.Duration {
	return 40 * time.Millisecond / time.Duration(max(1, workers))
}

func flat(int) time.Duration { return time.Millisecond }

func sixteen() space {
	return space{cpus: 16, max: 15, alpha: defaultAlpha, iterations: 100}
}

func counts(requests []request) []int {
	var out []int
	for _, q := range requests {
		out = append(out, q.workers)
	}
	return out
}

func iterationsAt(seen []series, workers int) int {
	sum := 0
	for _, s := range seen {
		for _, b := range s.blocks {
			if s.workers == workers {
				sum += b.iterations
			}
		}
	}
	return sum
}

func measured(means map[int]float64) []series {
	var seen []series
	for w, seconds := range means {
		mean := time.Duration(seconds / 100 * float64(time.Second))
		seen = append(seen, series{w, []block{{iterations: 100, mean: mean}}})
	}
	return seen
}

func TestThePapersTableGivesItsAnswer(t *testing.T) {
	sp := space{cpus: 64, max: 63, alpha: alpha{500 * time.Millisecond, math.Inf(1)}, iterations: 100}
	c := choose(sp, measured(map[int]float64{0: 14.25, 14: 1.49, 16: 1.41, 32: 1.55, 63: 2.21}))
	require.Equal(t, 14, c.workers)
	require.Equal(t, 16, c.fastest)
	require.Equal(t, 500*time.Millisecond, c.alpha)
	require.Zero(t, c.confidence, "nothing was measured twice")
	require.Equal(t, 14900*time.Microsecond, c.estimates[1].mean.Round(time.Microsecond))
}

func TestTheSmallerOfDurationAndShareIsIgnored(t *testing.T) {
	onlyTime := alpha{500 * time.Millisecond, math.Inf(1)}
	onlyShare := alpha{math.MaxInt64, 0.25}
	for _, tt := range []struct {
		name  string
		alpha alpha
		want  int // of 1 → 1.5 s, 2 → 1.2 s, 4 → 1.05 s, 8 → 1 s
	}{
		{"half a second, but no more than a tenth", defaultAlpha, 4},
		{"seconds alone", onlyTime, 1},
		{"a share alone", onlyShare, 2},
		{"nothing", alpha{0, math.Inf(1)}, 8},
	} {
		t.Run(tt.name, func(t *testing.T) {
			sp := space{cpus: 16, max: 15, alpha: tt.alpha, iterations: 100}
			c := choose(sp, measured(map[int]float64{1: 1.5, 2: 1.2, 4: 1.05, 8: 1}))
			require.Equal(t, tt.want, c.workers)
			require.Equal(t, 8, c.fastest)
		})
	}
}

func TestGreedyClimbsByPowersOfTwoAndThenBisects(t *testing.T) {
	seen, requests := drive(Greedy(), sixteen(), steady(func(w int) time.Duration {
		return halving(min(w, 10))
	}))
	require.Equal(t, []int{0, 1, 2, 4, 8, 15}, counts(requests)[:6])
	require.Contains(t, counts(requests), 10)
	require.NotContains(t, counts(requests), 9, "closer to 8 and 10 than a step")
	require.Equal(t, 10, choose(sixteen(), seen).workers)
}

func TestACountThatCannotWinIsLeftEarly(t *testing.T) {
	seen, _ := drive(Greedy(), sixteen(), steady(halving))
	require.LessOrEqual(t, iterationsAt(seen, 0), 6)
	require.LessOrEqual(t, iterationsAt(seen, 1), 6)
	require.GreaterOrEqual(t, iterationsAt(seen, 15), 100)
}

func TestWorkersThatDoNotHelpAreNotChosen(t *testing.T) {
	seen, _ := drive(Greedy(), sixteen(), steady(flat))
	require.Equal(t, 0, choose(sixteen(), seen).workers)

	stepBound := func(w int) time.Duration {
		if w == 0 {
			return 3 * time.Millisecond // the caller loads, then steps
		}
		return 2 * time.Millisecond
	}
	seen, _ = drive(Greedy(), sixteen(), steady(stepBound))
	require.Equal(t, 1, choose(sixteen(), seen).workers)
}

func TestNoCountIsVisitedTwiceInARound(t *testing.T) {
	for _, s := range []Strategy{Greedy(), Exhaustive()} {
		_, requests := drive(s, sixteen(), steady(halving))
		visited := map[[2]int]bool{}
		last := 0
		for _, q := range requests {
			require.False(t, visited[[2]int{q.round, q.workers}], "%v: %d workers in round %d", s, q.workers, q.round)
			require.GreaterOrEqual(t, q.round, last)
			visited[[2]int{q.round, q.workers}], last = true, q.round
		}
		require.GreaterOrEqual(t, last, 3, s.String())
	}
}

func TestExhaustiveSweepsEveryCountUpwardsAndMeasuresAllAlike(t *testing.T) {
	seen, requests := drive(Exhaustive(), sixteen(), steady(halving))
	require.Equal(t, []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, counts(requests)[:16])
	for w := range 16 {
		require.Equal(t, 100, iterationsAt(seen, w))
	}
	require.Equal(t, 14, choose(sixteen(), seen).workers)
}

func TestIterationsThatTheUserSetAreKeptTo(t *testing.T) {
	for _, n := range []int{1, 3, 7, 100} {
		sp := sixteen()
		sp.iterations, sp.fixed = n, true
		for _, s := range []Strategy{Greedy(), Exhaustive()} {
			seen, requests := drive(s, sp, steady(flat))
			c := choose(sp, seen)
			require.Equal(t, n, iterationsAt(seen, c.workers), "%v, %d", s, n)
			for _, q := range requests {
				require.LessOrEqual(t, iterationsAt(seen, q.workers), n, "%v, %d", s, n)
			}
		}
	}
}

func TestIterationsAdaptToHowLongABatchTakes(t *testing.T) {
	of := func(mean time.Duration) int {
		seen, _ := drive(Greedy(), sixteen(), steady(func(int) time.Duration { return mean }))
		return iterationsAt(seen, 0)
	}
	require.GreaterOrEqual(t, of(50*time.Microsecond), 600, "long enough to tell it from noise")
	require.Less(t, of(time.Second), 50, "no longer than anyone waits")
}

func TestMeasuringEndsWithTheBudget(t *testing.T) {
	for _, s := range []Strategy{Greedy(), Exhaustive()} {
		sp := sixteen()
		sp.budget = time.Second
		seen, requests := drive(s, sp, steady(halving))
		spent, longest := time.Duration(0), time.Duration(0)
		for _, s := range seen {
			for _, b := range s.blocks {
				spent += time.Duration(b.iterations) * b.mean
				longest = max(longest, b.mean)
			}
		}
		require.Less(t, spent, sp.budget+longest, s.String())
		for _, q := range requests {
			require.LessOrEqual(t, q.limit, sp.budget)
		}
	}
	sp := sixteen()
	sp.budget = time.Second
	_, requests := drive(Greedy(), sp, steady(halving))
	require.Contains(t, counts(requests), 15, "the slow counts leave enough for the fast ones")
}

func TestTheSpaceGrowsWhileMoreWorkersWinAndCPUsIdle(t *testing.T) {
	waiting := func(w int) time.Duration { return halving(min(w, 40)) }
	for _, tt := range []struct {
		name          string
		space         space
		mean          func(int) time.Duration
		cpu           float64
		greedy, sweep int // the highest count measured
	}{
		{"waiting on storage", space{cpus: 2, max: -1}, waiting, 0.1, 128, 128},
		{"all CPUs busy", space{cpus: 2, max: -1}, waiting, 0.9, 2, 1},
		{"more workers don't help", space{cpus: 8, max: -1}, flat, 0.1, 8, 7},
		{"the user set a bound", space{cpus: 2, max: 5}, waiting, 0.1, 5, 5},
		{"for ever faster", space{cpus: 2, max: -1}, halving, 0.1, mostWorkers, mostWorkers},
		{"one CPU", space{cpus: 1, max: -1}, flat, 1, 1, 0},
	} {
		for s, top := range map[Strategy]int{Greedy(): tt.greedy, Exhaustive(): tt.sweep} {
			t.Run(tt.name+", "+s.String(), func(t *testing.T) {
				tt.space.alpha, tt.space.iterations = defaultAlpha, 8
				_, requests := drive(s, tt.space, func(q request) block {
					return block{round: q.round, iterations: q.iterations, mean: tt.mean(q.workers), cpu: tt.cpu}
				})
				require.Equal(t, top, slices.Max(counts(requests)))
			})
		}
	}
}

func TestCountsThatNeedTooMuchMemoryAreNeitherMeasuredNorChosen(t *testing.T) {
	for _, s := range []Strategy{Greedy(), Exhaustive()} {
		sp := sixteen()
		sp.allowed = func(workers int) bool { return workers <= 5 }
		seen, requests := drive(s, sp, steady(halving))
		require.LessOrEqual(t, slices.Max(counts(requests)), 5)

		sp.allowed = func(workers int) bool { return workers <= 2 } // what was measured showed it
		require.Equal(t, 2, choose(sp, seen).workers)

		sp.allowed = func(int) bool { return false }
		_, more := s.next(sp, seen)
		require.False(t, more)
		require.Equal(t, -1, choose(sp, seen).workers)
	}
}

// visits has one block of 25 iterations per mean and round; 0 is no visit.
func visits(workers int, means ...time.Duration) series {
	s := series{workers: workers}
	for round, mean := range means {
		if mean > 0 {
			s.blocks = append(s.blocks, block{round: round, iterations: 25, mean: mean})
		}
	}
	return s
}

func TestASlowStartDoesNotCountAgainstTheFirstCount(t *testing.T) {
	c := choose(sixteen(), []series{visits(1, 3000, 1010, 1000, 1005), visits(2, 1000, 1005, 995, 1000)})
	require.Equal(t, 1, c.workers)
}

func TestADriftThatAllCountsShareDoesNotMoveTheChoice(t *testing.T) {
	c := choose(sixteen(), []series{
		visits(1, 1500, 1800, 2200, 2600),
		visits(2, 1000, 1200, 1460, 1730),
		visits(3, 0, 0, 1530, 1810), // measured when everything was slow: five per cent above 2
		visits(4, 1045, 1255, 0, 0), // measured when nothing was
	})
	require.Equal(t, 2, c.workers)
	require.Equal(t, 2, c.fastest)
	require.Greater(t, c.estimates[1].mean, c.estimates[0].mean/2)
	require.InEpsilon(t, 1.045, float64(c.estimates[2].mean)/float64(c.estimates[1].mean), 0.02)
	require.Greater(t, c.confidence, 0.95)
}

func TestConfidenceIsLowWhereAReRunMightChooseOtherwise(t *testing.T) {
	clear := choose(sixteen(), []series{visits(1, 2000, 2010, 1990, 2005), visits(2, 1000, 1005, 995, 1000)})
	require.Greater(t, clear.confidence, 0.99)
	close := choose(sixteen(), []series{visits(1, 1250, 1070, 1190, 1120), visits(2, 1000, 930, 1070, 1000)})
	require.Less(t, close.confidence, 0.9)
	require.Positive(t, close.confidence)
	for _, e := range close.estimates {
		require.Less(t, e.low, e.mean)
		require.Less(t, e.mean, e.high)
	}
}

func TestTheSameFiguresGiveTheSameAnswer(t *testing.T) {
	for _, c := range curves()[:20] {
		require.Equal(t, c.run(Greedy(), 1), c.run(Greedy(), 1))
	}
}

// Whatever is measured, a search ends, asks for sensible visits and chooses
// what it measured.
func FuzzASearchEnds(f *testing.F) {
	f.Add(uint64(1), 8, 7, 100, int64(0), false)
	f.Add(uint64(2), 2, -1, 1, int64(time.Second), true)
	f.Fuzz(func(t *testing.T, seed uint64, cpus, most, iterations int, budget int64, fixed bool) {
		sp := space{
			cpus: 1 + int(uint(cpus)%64), max: max(-1, most%64), alpha: defaultAlpha,
			iterations: 1 + int(uint(iterations)%200), budget: time.Duration(max(0, budget)), fixed: fixed,
		}
		for _, s := range []Strategy{Greedy(), Exhaustive()} {
			rng := rand.New(rand.NewPCG(seed, 0))
			seen, requests := drive(s, sp, func(q request) block {
				require.Positive(t, q.iterations)
				require.Positive(t, q.limit)
				require.LessOrEqual(t, q.workers, mostWorkers)
				mean := time.Duration(math.Exp(25 * rng.Float64())) // to a minute, and 0 too
				return block{q.round, 1 + rng.IntN(q.iterations), mean - 1, rng.Float64()}
			})
			require.NotEmpty(t, requests)
			c := choose(sp, seen)
			require.Contains(t, counts(requests), c.workers)
			require.GreaterOrEqual(t, c.confidence, 0.0)
			require.LessOrEqual(t, c.confidence, 1.0)
			require.GreaterOrEqual(t, c.alpha, time.Duration(0))
		}
	})
}
