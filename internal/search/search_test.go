package search

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const ms = time.Millisecond

// steady returns a machine without noise, on which training always waits and all CPUs are busy. A
// window stops at its limit.
func steady(mean func(workers int) time.Duration) func(Request) Block {
	return func(q Request) Block {
		one := mean(q.Workers)
		n := int(min(q.Limit/one+1, time.Duration(q.Iterations)))
		return Block{Round: q.Round, Iterations: n, Bodies: n, Mean: one, Wait: one, CPU: 1}
	}
}

// idle is steady with CPUs to spare.
func idle(mean func(workers int) time.Duration) func(Request) Block {
	return func(q Request) Block {
		b := steady(mean)(q)
		b.CPU = 0.1
		return b
	}
}

func halving(workers int) time.Duration { return 40 * ms / time.Duration(max(1, workers)) }

// upTo halves up to so many workers.
func upTo(most int) func(int) time.Duration {
	return func(w int) time.Duration { return halving(min(w, most)) }
}

func flat(int) time.Duration { return ms }

func sixteen() Space {
	return Space{CPUs: 16, Start: 15, Max: 15, Alpha: DefaultAlpha, Iterations: 100}
}

// tenth has an alpha that is easier to reckon with.
func tenth(sp Space) Space {
	sp.Alpha = Alpha{Total: math.MaxInt64, MaxShare: 0.1}
	return sp
}

func counts(requests []Request) []int {
	var out []int
	for _, q := range requests {
		out = append(out, q.Workers)
	}
	return out
}

func iterationsAt(seen []Series, workers int) (sum int) {
	for _, s := range seen {
		for _, b := range s.Blocks {
			if s.Workers == workers {
				sum += b.Iterations
			}
		}
	}
	return sum
}

var strategies = map[string]Strategy{"greedy": Greedy, "exhaustive": Exhaustive}

// windowsOf has a window of ten iterations in each of so many rounds, all with a mean of so many
// milliseconds.
func windowsOf(workers int, mean float64, rounds int) Series {
	s := Series{Workers: workers}
	for round := range rounds {
		took := time.Duration(mean * 1e6)
		s.Blocks = append(s.Blocks, Block{Round: round, Iterations: 10, Mean: took, Wait: took, CPU: 1})
	}
	return s
}

// Each rung gets two windows, the whole ladder first.
func TestTheLadder(t *testing.T) {
	for _, tt := range []struct {
		start, top int
		want       []int
	}{
		{15, 15, []int{15, 8, 4, 2, 1, 0}},
		{3, 20, []int{3, 4, 8, 16, 20, 2, 1, 0}},
		{4, 16, []int{4, 8, 16, 2, 1, 0}},
		{0, 5, []int{0, 1, 2, 4, 5}},
		{1, 2, []int{1, 2, 0}},
		{20, 5, []int{5, 4, 2, 1, 0}},
		{2, 0, []int{0}},
	} {
		sp := Space{CPUs: 16, Start: tt.start, Max: tt.top, Alpha: DefaultAlpha, Iterations: 100}
		_, requests := drive(Greedy, sp, steady(flat))
		require.Equal(t, slices.Concat(tt.want, tt.want), counts(requests)[:2*len(tt.want)], "from %d to %d", tt.start, tt.top)
		for i, q := range requests[:2*len(tt.want)] {
			require.Equal(t, i/len(tt.want), q.Round)
		}
		sp.Time, sp.Left = 60*time.Second, 60*time.Second
		q, more := Greedy(sp, nil)
		require.True(t, more)
		require.Equal(t, min(sp.Start, sp.Max), q.Workers)
		require.GreaterOrEqual(t, q.Limit, sp.Left/time.Duration(len(tt.want)+1), "time is left for each rung")
	}
}

// More workers gain nothing where training doesn't wait, or where all CPUs are in use.
func TestWhereTheWayUpEnds(t *testing.T) {
	for _, tt := range []struct {
		name         string
		waits, idles int // up to so many workers
		want         []int
	}{
		{"training always waits, CPUs are always idle", 99, 99, []int{2, 4, 8, 16, 32, 50, 1, 0}},
		{"training doesn't wait with 2 workers", 1, 99, []int{2, 1, 0}},
		{"with 8", 7, 99, []int{2, 4, 8, 1, 0}},
		{"CPUs are always in use", 99, 0, []int{2, 4, 8, 16, 32, 50, 1, 0}},
	} {
		sp := Space{CPUs: 4, Start: 2, Max: 50, Alpha: DefaultAlpha, Iterations: 100}
		_, requests := drive(Greedy, sp, func(q Request) Block {
			b := Block{Round: q.Round, Iterations: q.Iterations, Bodies: q.Iterations, Mean: ms + ms/2, Wait: ms / 2, CPU: 0.91}
			if q.Workers > tt.waits {
				b.Mean, b.Wait = ms+ms/200, ms/200
			}
			if q.Workers <= tt.idles {
				b.CPU = 0.9
			}
			return b
		})
		require.Equal(t, slices.Concat(tt.want, tt.want), counts(requests)[:2*len(tt.want)], tt.name)
	}
}

// … at more than three times as long as the fastest of more workers.
func TestWhereTheWayDownEnds(t *testing.T) {
	for _, tt := range []struct {
		name  string
		took  map[int]float64 // milliseconds; 1 at the others
		first []int
		then  []int // of the first, those that get a second window
	}{
		{"more than three times as long", map[int]float64{8: 2, 4: 3.1, 2: 6}, []int{15, 8, 4}, []int{15, 8}},
		{"three times as long", map[int]float64{8: 2, 4: 3, 2: 6}, []int{15, 8, 4, 2}, []int{15, 8}},
		{"no workers aren't tried if one is no good", map[int]float64{8: 2, 4: 2, 2: 2, 1: 3.5, 0: 3.5}, []int{15, 8, 4, 2, 1}, []int{15, 8, 4, 2}},
		{"training's own count is no good", map[int]float64{15: 10}, []int{15, 8, 4, 2, 1, 0}, []int{8, 4, 2, 1, 0}},
		{"more workers than the fastest, and far slower", map[int]float64{15: 40, 8: 10}, []int{15, 8, 4, 2, 1, 0}, []int{4, 2, 1, 0}},
	} {
		_, requests := drive(Greedy, sixteen(), func(q Request) Block {
			b := waiting(q.Round, q.Iterations, time.Duration(max(tt.took[q.Workers], 1)*1e6))
			b.CPU = 1
			return b
		})
		want := slices.Concat(tt.first, tt.then)
		require.Equal(t, want, counts(requests)[:len(want)], tt.name)
	}
}

func TestGreedyBisectsToTheFewestWithinAlpha(t *testing.T) {
	seen, requests := drive(Greedy, sixteen(), steady(upTo(10)))
	require.Equal(t, []int{15, 8, 4, 2}, counts(requests)[:4])
	require.Contains(t, counts(requests), 12)
	require.NotContains(t, counts(requests), 10, "closer to 8 and 12 than a step")
	require.Equal(t, 12, Choose(sixteen(), seen).Workers)
}

// 12 and 16 workers are a step apart. Up to 14, times fall by a power of the count.
func TestACountWithinAStepIsTriedOnlyIfItsNeighboursPromiseThatItIsFaster(t *testing.T) {
	for power, tried := range map[float64]bool{1: true, 0.04: false} {
		sp := Space{CPUs: 16, Start: 12, Max: 16, Alpha: DefaultAlpha, Iterations: 100}
		seen, requests := drive(Greedy, sp, steady(func(w int) time.Duration {
			mean := 4e6 * math.Pow(12/float64(max(1, w)), power)
			if w > 14 {
				mean *= 1.5
			}
			return time.Duration(mean)
		}))
		require.Equal(t, tried, slices.Contains(counts(requests), 14), "%v: %v", power, counts(requests))
		if tried {
			require.Equal(t, 14, Choose(sp, seen).Workers)
		}
	}
}

func TestTheChoiceHasAtMostHalfMoreWorkersThanWouldJustDo(t *testing.T) {
	sp := tenth(Space{CPUs: 64, Start: 64, Max: 64, Iterations: 100})
	for serial := 1; serial <= 400; serial += 13 { // microseconds of 1 ms
		mean := func(w int) time.Duration {
			return ms/time.Duration(max(1, w)) + time.Duration(serial)*time.Microsecond
		}
		fewest := 0
		for 10*mean(fewest) > 11*mean(64) {
			fewest++
		}
		seen, _ := drive(Greedy, sp, steady(mean))
		chosen := Choose(sp, seen).Workers
		require.GreaterOrEqual(t, chosen, fewest)
		require.LessOrEqual(t, 2*chosen, 3*fewest, "%d would just do", fewest)
	}
}

// One valley, wherever it lies and however steep its sides are: up to linear on the left, and up
// to 30 times its time on the right. A fiftieth is alpha, the rest is the step.
func TestWhereverTheBestCountLiesItIsFound(t *testing.T) {
	for seed := range uint64(70) {
		rng := rand.New(rand.NewPCG(seed, 7))
		sp := Space{CPUs: 2 + rng.IntN(255), Alpha: DefaultAlpha, Iterations: 100}
		sp.Start, sp.Max = sp.CPUs-1, sp.CPUs-1
		if seed%3 == 0 {
			sp.Start = 1 + rng.IntN(sp.Max)
		}
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
		seen, _ := drive(Greedy, sp, steady(func(w int) time.Duration { return time.Duration(1e7 * valley(w)) }))
		c := Choose(sp, seen)
		require.LessOrEqual(t, valley(c.Workers)/best, 1.17, "%d CPUs from %d, a valley of slopes %.2f and %.2f from %.1f to %.1f: %d workers", sp.CPUs, sp.Start, fall, rise, left, right, c.Workers)
	}
}

// Up to as many workers as are tried, training waits.
func TestTheSpaceGrowsWhileMoreWorkersWinAndCPUsIdle(t *testing.T) {
	for _, tt := range []struct {
		name          string
		step          bool
		cpus, most    int
		mean          func(int) time.Duration
		measure       func(func(int) time.Duration) func(Request) Block
		greedy, sweep int // the highest count measured
	}{
		{"waiting for storage", true, 2, -1, upTo(40), idle, 128, 128},
		{"waiting for storage without a step", false, 2, -1, upTo(40), idle, 64, 64},
		{"all CPUs busy with samples: twice as many", true, 2, -1, upTo(2), steady, 4, 1},
		{"all CPUs busy with something else", true, 2, -1, upTo(40), steady, 128, 1},
		{"more workers don't help", true, 8, -1, flat, idle, 16, 7},
		{"the user set a bound", true, 2, 5, upTo(40), idle, 5, 5},
		{"ever faster", true, 2, -1, func(w int) time.Duration { return 4 * time.Second / time.Duration(max(1, w)) }, idle, MaxWorkers, MaxWorkers},
		{"one CPU", true, 1, -1, flat, steady, 2, 0},
	} {
		sp := Space{CPUs: tt.cpus, Start: min(tt.cpus, max(tt.most, tt.cpus)), Step: tt.step, Max: tt.most, Alpha: DefaultAlpha, Iterations: 8}
		for name, top := range map[string]int{"greedy": tt.greedy, "exhaustive": tt.sweep} {
			if top == MaxWorkers {
				sp.Fixed, sp.Iterations = true, 1
			}
			_, requests := drive(strategies[name], sp, tt.measure(tt.mean))
			require.Equal(t, top, slices.Max(counts(requests)), "%s, %s", tt.name, name)
		}
	}
}

// Up to 256 workers make loading faster. The first window at 64 happens to be as quick as one at 128.
func TestTheSpaceGrowsAlthoughTheFirstLooksHadBadLuck(t *testing.T) {
	sp := Space{CPUs: 64, Start: 64, Max: -1, Alpha: DefaultAlpha, Iterations: 100}
	lucky := 0
	seen, requests := drive(Greedy, sp, func(q Request) Block {
		b := idle(func(w int) time.Duration { return time.Second / time.Duration(max(1, min(w, 256))) })(q)
		if q.Workers == 64 && lucky == 0 {
			b.Mean /= 2
			lucky++
		}
		return b
	})
	require.Equal(t, 1, lucky)
	require.Equal(t, 256, Choose(sp, seen).Workers)
	require.LessOrEqual(t, slices.Max(counts(requests)), 512)
}

func TestCountsThatNeedTooMuchMemoryAreNeitherMeasuredNorChosen(t *testing.T) {
	for name, s := range strategies {
		for which, allowed := range map[string]func(int) bool{
			"up to 5": func(w int) bool { return w <= 5 }, "not 8": func(w int) bool { return w != 8 }, "not 12": func(w int) bool { return w != 12 },
		} {
			sp := sixteen()
			sp.Admit = allowed
			seen, requests := drive(s, sp, steady(upTo(10)))
			for _, w := range counts(requests) {
				require.True(t, allowed(w), "%s, %s: %d workers", name, which, w)
			}
			require.True(t, allowed(Choose(sp, seen).Workers))
		}
		sp := sixteen()
		seen, _ := drive(s, sp, steady(halving))
		sp.Admit = func(workers int) bool { return workers <= 2 } // what was measured showed it
		require.LessOrEqual(t, Choose(sp, seen).Workers, 2)
		sp.Admit = func(int) bool { return false }
		_, more := s(sp, seen)
		require.False(t, more)
		require.Equal(t, Choice{Workers: -1, Fastest: -1}, Choose(sp, seen))
	}
}

// With steps of doubling alone, memory for seven workers would be used for four.
func TestBelowACountThatMemoryRefusesMoreWorkersAreTried(t *testing.T) {
	sp := Space{CPUs: 2, Start: 2, Max: -1, Alpha: DefaultAlpha, Iterations: 100, Admit: func(w int) bool { return w <= 7 }}
	seen, _ := drive(Greedy, sp, idle(func(w int) time.Duration { return time.Second / time.Duration(max(1, w)) }))
	require.GreaterOrEqual(t, Choose(sp, seen).Workers, 6)
}

func TestMeasuringEndsWithItsTime(t *testing.T) {
	for name, s := range strategies {
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
		require.Less(t, spent, sp.Time+longest, name)
		for _, q := range requests {
			require.LessOrEqual(t, q.Limit, sp.Time)
		}
		require.Contains(t, counts(requests), 15, "the slow counts leave enough for the fast ones")
	}
}

func TestOneCountIsMeasuredWhateverTheTime(t *testing.T) {
	for _, s := range strategies {
		sp := sixteen()
		sp.Start, sp.Time = 5, 1
		q, more := s(sp, nil)
		require.True(t, more)
		require.Equal(t, 5, q.Workers, "training's own")
		_, more = s(sp, []Series{windowsOf(5, 1, 1)})
		require.False(t, more, "one is enough then")
	}
}

func TestIterationsThatTheUserSetAreKeptTo(t *testing.T) {
	for _, n := range []int{1, 3, 7, 100} {
		sp := sixteen()
		sp.Iterations, sp.Fixed = n, true
		for name, s := range strategies {
			seen, requests := drive(s, sp, steady(flat))
			require.Equal(t, n, iterationsAt(seen, Choose(sp, seen).Workers), "%s, %d", name, n)
			for _, q := range requests {
				require.LessOrEqual(t, iterationsAt(seen, q.Workers), n, "%s, %d", name, n)
			}
		}
	}
}

// Training's own count was measured first, on samples that lay in a cache.
func TestAFirstWindowThatWasTooQuickCutsOthersShortOnlyAtFirst(t *testing.T) {
	for _, fixed := range []bool{true, false} {
		for _, quick := range []int{1, 2} {
			sp := sixteen()
			sp.Fixed, sp.Iterations = fixed, 1000
			windows := 0
			seen, requests := drive(Greedy, sp, func(q Request) Block {
				if q.Workers == sp.Start {
					if windows++; windows <= quick {
						return steady(func(w int) time.Duration { return upTo(10)(w) / 100 })(q)
					}
				}
				return steady(upTo(10))(q)
			})
			require.Less(t, len(requests), 150, "each of one iteration, it was over a thousand")
			require.GreaterOrEqual(t, Choose(sp, seen).Workers, 12)
		}
	}
}

func TestACountThatCannotWinIsLeftEarly(t *testing.T) {
	seen, _ := drive(Greedy, sixteen(), steady(halving))
	require.LessOrEqual(t, iterationsAt(seen, 0), 6)
	require.LessOrEqual(t, iterationsAt(seen, 1), 6)
	require.GreaterOrEqual(t, iterationsAt(seen, 15), 40)
	q, _ := Greedy(tenth(sixteen()), []Series{windowsOf(15, 10, 1)})
	require.Equal(t, 8, q.Workers)
	require.Equal(t, time.Duration(q.Iterations)*22*ms, q.Limit, "twice as long as the fastest, alpha included")
}

func TestExhaustiveSweepsEveryCountUpwardsAndMeasuresAllAlike(t *testing.T) {
	seen, requests := drive(Exhaustive, sixteen(), steady(halving))
	require.Equal(t, []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, counts(requests)[:16])
	for w := range 16 {
		require.Equal(t, 100, iterationsAt(seen, w))
	}
	require.Equal(t, 15, Choose(sixteen(), seen).Workers, "14 take 7 %% longer")

	sp := Space{CPUs: 6, Start: 3, Max: -1, Alpha: DefaultAlpha, Iterations: 102, Time: time.Hour, Left: time.Hour}
	_, requests = drive(Exhaustive, sp, func(q Request) Block {
		require.Equal(t, []int{25, 26, 25, 26}[q.Round], q.Iterations, "102 in all")
		return steady(flat)(q)
	})
	require.Equal(t, []int{3, 0, 1, 2, 4, 5, 0, 1, 2, 3, 4, 5}, counts(requests)[:12], "if time is bounded, training's own is first")
}

// What disturbs may last as long as a shorter search.
func TestASearchIsNotOverInAMoment(t *testing.T) {
	spent := time.Duration(0)
	drive(Greedy, Space{CPUs: 2, Start: 2, Max: 2, Alpha: DefaultAlpha, Iterations: 100, MinTime: MinTime}, func(q Request) Block {
		b := steady(func(int) time.Duration { return 50 * time.Microsecond })(q)
		spent += time.Duration(b.Iterations) * b.Mean
		return b
	})
	require.InDelta(t, 750*ms, spent, float64(150*ms))
}

// A step of 300 ms that hides all loading: 73 steps were too many.
func TestASearchIsShortWhereTrainingDoesNotWait(t *testing.T) {
	for _, inline := range []time.Duration{300 * ms, 302 * ms} {
		sp := Space{CPUs: 8, Start: 8, Max: -1, Alpha: DefaultAlpha, Iterations: 100, Time: DefaultTime}
		seen, requests := drive(Greedy, sp, func(q Request) Block {
			b := steady(func(w int) time.Duration { return 300 * ms })(q)
			if b.Wait = 0; q.Workers == 0 {
				b.Mean, b.Wait = inline, inline-300*ms
			}
			return b
		})
		require.LessOrEqual(t, slices.Max(counts(requests)), 8)
		steps := 0
		for _, s := range seen {
			steps += iterationsAt(seen, s.Workers)
		}
		require.LessOrEqual(t, steps, 60, "%v", requests)
	}
}

func TestWhatIsUndecidedAfterManyRoundsStaysSo(t *testing.T) {
	unsure := []Series{{Workers: 4}, {Workers: 8}}
	for i := range unsure {
		for round := range lastRound + 1 {
			unsure[i].Blocks = append(unsure[i].Blocks, Block{Round: round, Iterations: 1, Bodies: 1, Mean: ms * time.Duration(1+(i+round)%3), Wait: ms})
		}
	}
	sp := Space{CPUs: 8, Start: 8, Max: 8, Alpha: DefaultAlpha, Iterations: 100, Admit: func(w int) bool { return w == 4 || w == 8 }}
	_, more := Greedy(sp, unsure)
	require.False(t, more)
	sp.Fixed = true
	_, more = Greedy(sp, unsure)
	require.True(t, more, "the user set iterations")
}

func TestTheSameFiguresGiveTheSameAnswer(t *testing.T) {
	for _, c := range curves(1)[:8] {
		require.Equal(t, c.greedy(1), c.greedy(1))
	}
}

// Whatever is measured, a search ends, asks for sensible windows and chooses what it measured.
func FuzzASearchEnds(f *testing.F) {
	f.Add(uint64(1), 8, 7, 100, int64(0), false)
	f.Add(uint64(2), 2, -1, 1, int64(time.Second), true)
	f.Fuzz(func(t *testing.T, seed uint64, cpus, most, iterations int, budget int64, fixed bool) {
		sp := Space{
			CPUs: 1 + int(uint(cpus)%64), Max: max(-1, most%64), Alpha: DefaultAlpha,
			Iterations: 1 + int(uint(iterations)%200), Time: time.Duration(max(0, budget)), Fixed: fixed,
		}
		for _, s := range strategies {
			rng := rand.New(rand.NewPCG(seed, 0))
			seen, requests := drive(s, sp, func(q Request) Block {
				require.Positive(t, q.Iterations)
				require.Positive(t, q.Limit)
				require.LessOrEqual(t, q.Workers, MaxWorkers)
				mean := time.Duration(math.Exp(25 * rng.Float64())) // to a minute, and 0 too
				return Block{Round: q.Round, Iterations: 1 + rng.IntN(q.Iterations), Bodies: rng.IntN(3), Mean: mean - 1, Wait: time.Duration(rng.Float64() * float64(mean)), CPU: rng.Float64()}
			})
			require.NotEmpty(t, requests)
			c := Choose(sp, seen)
			require.Contains(t, counts(requests), c.Workers)
			require.GreaterOrEqual(t, c.Repeatability, 0.0)
			require.LessOrEqual(t, c.Repeatability, 1.0)
			require.GreaterOrEqual(t, c.Alpha, time.Duration(0))
			for _, e := range c.Estimates {
				require.GreaterOrEqual(t, e.Mean, e.Low)
				require.GreaterOrEqual(t, e.High, e.Mean)
			}
		}
	})
}
