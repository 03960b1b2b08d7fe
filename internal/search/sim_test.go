package search

import (
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt/internal/stat"
)

// A curve is a made-up machine and dataset: how long an iteration takes at
// each worker count, and what disturbs the measuring of it.
type curve struct {
	kind, trouble string
	cpus          int
	grows         bool                // the space may pass the CPUs
	shared        bool                // there are more CPUs, of other ranks, which idle while this one tunes
	free, time    func(w int) float64 // nanoseconds per iteration in the long run, its own stalls included; without and with a pause
	work          float64             // CPU time of an iteration, nanoseconds
	noise         float64             // coefficient of variation of one iteration
	stall         func(w int) (often, long float64)
	pause         float64 // the least time of an iteration in the long run, if a bucket, a quota or a share sets it
	body          float64 // of an iteration, the training step
	warm          float64 // samples of each worker until it is warm, as a share of a batch; 0: none
	seed          uint64
}

func (c curve) String() string {
	return fmt.Sprintf("%s, %d CPUs, %s, noise %.0f %%, seed %d", c.kind, c.cpus, c.trouble, 100*c.noise, c.seed)
}

func (c curve) space() Space {
	sp := Space{CPUs: c.cpus, Shared: c.shared, Start: c.cpus - 1, Max: c.cpus - 1, Alpha: DefaultAlpha, Iterations: 100, Step: true, MinTime: MinTime, Time: DefaultTime, Left: DefaultTime}
	if c.grows {
		sp.Start, sp.Max = c.cpus, -1
	}
	return sp
}

// highest returns the highest count that may be the answer.
func (c curve) highest() int {
	if c.grows {
		return 1023
	}
	return c.cpus - 1
}

// truth returns what a search without noise over every count would choose.
func (c curve) truth() int { return c.within(0) }

// best returns the fastest count.
func (c curve) best() (best int) {
	for w := range c.highest() + 1 {
		if c.time(w) < c.time(best) {
			best = w
		}
	}
	return best
}

// within returns the truth if alpha were larger by a share of the fastest.
func (c curve) within(more float64) int {
	sp, top := c.space(), c.highest()
	best := math.Inf(1)
	for w := range top + 1 {
		best = min(best, c.time(w))
	}
	for w := range top + 1 {
		if c.time(w) <= best+sp.Ignores(best)+more*best {
			return w
		}
	}
	panic("unreachable")
}

// clear reports whether the curve has one answer: no step of the search's lies so
// near to alpha that its truth would change with 3 % of time.
func (c curve) clear() bool {
	low, high := c.within(0.03), c.within(-0.015)
	return high-low < stepAt(high)
}

// margin returns how near to alpha's limit a count lies that the search tells apart, as a
// share of the fastest's time.
func (c curve) margin() float64 {
	sp, top := c.space(), c.highest()
	best := math.Inf(1)
	for w := range top + 1 {
		best = min(best, c.time(w))
	}
	limit, nearest := best+sp.Ignores(best), math.Inf(1)
	for w := range top + 1 {
		if w%stepAt(w) == 0 || w == sp.Start {
			nearest = min(nearest, math.Abs(c.time(w)-limit)/best)
		}
	}
	return nearest
}

// longStalls is the kind of curve on which the search is often wrong. It is a group of its
// own, and part of no other.
const longStalls = "long stalls"

// kinds are the shapes of curves; each draws its own parameters.
var kinds = []struct {
	name  string
	shape func(rng *rand.Rand, cpus float64) (time func(w float64) float64, work float64)
}{
	{"CPU-bound", func(rng *rand.Rand, cpus float64) (func(float64) float64, float64) {
		serial := rng.Float64() * 0.02
		return func(w float64) float64 { return (1-serial)/min(w, cpus) + serial }, 1
	}},
	{"latency-bound", func(rng *rand.Rand, cpus float64) (func(float64) float64, float64) {
		floor := 1 / (16 + rng.Float64()*200)
		return func(w float64) float64 { return max(1/w+floor, 0.01/cpus) }, 0.01
	}},
	{"bandwidth-limited", func(rng *rand.Rand, cpus float64) (func(float64) float64, float64) {
		knee := 1 + rng.Float64()*cpus
		return func(w float64) float64 { return 1 / min(w, knee) }, 0.5
	}},
	{"contended", func(rng *rand.Rand, cpus float64) (func(float64) float64, float64) {
		sigma, kappa := rng.Float64()*0.05, math.Exp(-3-5*rng.Float64())/cpus // Gunther's universal scalability law
		return func(w float64) float64 { return (1 + sigma*(w-1) + kappa*w*(w-1)) / w }, 1
	}},
	{"step-bound", func(rng *rand.Rand, cpus float64) (func(float64) float64, float64) {
		load := 0.1 + 3*rng.Float64()
		return func(w float64) float64 { return max(1, load/w) }, 0.3
	}},
	{"flat", func(rng *rand.Rand, cpus float64) (func(float64) float64, float64) {
		return func(w float64) float64 { return 1 }, 0
	}},
	{"dip past the optimum", func(rng *rand.Rand, cpus float64) (func(float64) float64, float64) {
		cores, loss := max(1, cpus/2), 0.05+0.4*rng.Float64()
		return func(w float64) float64 { return (1 + loss*max(0, w/cores-1)) / min(w, cores) }, 1
	}},
	{"two minima", func(rng *rand.Rand, cpus float64) (func(float64) float64, float64) {
		first, bump, rise := cpus*(0.2+0.2*rng.Float64()), 0.3+0.3*rng.Float64(), 0.4*rng.Float64()
		return func(w float64) float64 {
			apart := (math.Log(w) - math.Log(first*1.8)) / 0.25
			return (1 + bump*math.Exp(-apart*apart) + rise*w/cpus) / min(w, first)
		}, 1
	}},
	{"thrashing", func(rng *rand.Rand, cpus float64) (func(float64) float64, float64) {
		knee, steep := 1+cpus*(0.2+0.7*rng.Float64()), 1+3*rng.Float64()
		return func(w float64) float64 { return 1 / min(w, knee) * (1 + steep*max(0, w/knee-1)) }, 1
	}},
	{"rank's share", func(rng *rand.Rand, cpus float64) (func(float64) float64, float64) {
		serial := rng.Float64() * 0.02
		return func(w float64) float64 { return (1-serial)/min(w, 8*cpus) + serial }, 1
	}},
	{"stalls", func(rng *rand.Rand, cpus float64) (func(float64) float64, float64) {
		return func(w float64) float64 { return 1 / min(w, cpus) }, 0.1 // see curves
	}},
	{longStalls, func(rng *rand.Rand, cpus float64) (func(float64) float64, float64) {
		return func(w float64) float64 { return 1 / min(w, cpus) }, 0.1 // see curves
	}},
}

var margins = []string{"a count within 1 % of the limit", "within 1 to 2 %", "none within 2 %"}

var troubles = []string{"steady", "heavy-tailed", "drifting", "neighbours", "slow start", "cold workers", "stretches", "sorted", "token bucket", "quota"}

// curves draws a suite: every kind, machine size and trouble, at noise levels in turn.
func curves(draw uint64) []curve {
	var out []curve
	for k, kind := range kinds {
		for i, cpus := range []int{2, 8, 16, 64, 64, 64, 256} {
			for t, trouble := range troubles {
				seed := uint64(10000*k + 100*i + t)
				rng := rand.New(rand.NewPCG(seed, draw))
				shape, work := kind.shape(rng, float64(cpus))
				unit, wait := 0.0, 0.0
				if kind.name == "step-bound" {
					wait = 1 // nothing overlaps if the caller loads
				}
				c := curve{kind: kind.name, trouble: trouble, cpus: cpus, seed: seed,
					noise: []float64{0, 0.05, 0.1, 0.2}[(k+i+t)%4], grows: kind.name == "latency-bound" && i%2 == 0 || kind.name == "rank's share", shared: kind.name == "rank's share"}
				c.stall = func(int) (float64, float64) { return 0, 0 }
				if kind.name == "stalls" || kind.name == longStalls {
					// More requests at once than the store likes, and it stalls now and then.
					likes, often, costs := 0.3*float64(cpus), 0.02, rng.Float64()
					if kind.name == longStalls {
						costs = math.Pow(4, costs)
					} else {
						costs = 0.28 + 0.72*costs
					}
					c.stall = func(w int) (float64, float64) {
						if float64(w) <= likes {
							return 0, 0
						}
						return often, costs / often / likes
					}
				}
				if trouble == "cold workers" {
					c.warm = 10.0 / 32
				}
				stall := c.stall
				c.time = func(w int) float64 {
					if w == 0 {
						return unit * (shape(1) + wait)
					}
					often, long := stall(w)
					return unit * (shape(float64(w)) + often*long)
				}
				unit = 1
				best := math.Inf(1)
				for w := range cpus {
					best = min(best, c.time(w))
				}
				unit = 3e5 * math.Pow(100, rng.Float64()) / best // the fastest takes 0.3 to 30 ms
				c.stall = func(w int) (float64, float64) {
					often, long := stall(w)
					return often, long * unit
				}
				c.work = unit * work
				if kind.name == "step-bound" {
					c.body = unit
				}
				c.free = c.time
				switch trouble {
				case "token bucket":
					c.pause = (1.1 + rng.Float64()) * best * unit
				case "quota":
					c.pause = c.work / (0.5 * float64(cpus)) // half of the CPUs
				}
				if c.shared {
					c.pause = max(c.pause, c.work/float64(cpus))
				}
				c.time = func(w int) float64 { return max(c.free(w), c.pause) }
				out = append(out, c)
			}
		}
	}
	return out
}

// A tuning is one search on one curve, in virtual time.
type tuning struct {
	Choice
	cost     float64 // nanoseconds measured
	requests []Request
}

// A window is the iterations of one.
type window struct {
	took []float64
	sum  float64
}

func (v *window) add(t float64) { v.took, v.sum = append(v.took, t), v.sum+t }

// block returns what package tune makes of a window.
func (v *window) block(q Request) Block {
	b := Block{Iterations: len(v.took), Bodies: len(v.took), Mean: time.Duration(v.sum / float64(len(v.took)))}
	sum, n := 0.0, 0
	for _, t := range v.took {
		if sum, n = sum+t, n+1; float64(n) >= float64(q.Iterations)/12 {
			b.Parts, sum, n = append(b.Parts, stat.Part{Mean: max(1, sum/float64(n)), Weight: float64(n)}), 0, 0
		}
	}
	if len(b.Parts) < 2 {
		b.Parts = nil
	}
	return b
}

// A clock is where a simulated search stands.
type clock struct {
	curve
	rng     *rand.Rand
	spent   float64 // nanoseconds
	burst   bool
	until   float64 // the end of a burst, or of the quiet before it
	unit    float64
	loaded  []float64 // batches' worth of samples that each worker has loaded
	stretch float64   // of the dataset's samples, in the round
	tokens  float64   // batches that the store delivers at full speed
	at      float64   // when they were counted
}

func (c *clock) iteration(w int) float64 {
	often, long := c.stall(w)
	spread := math.Sqrt(math.Log(1 + c.noise*c.noise))
	t := (c.free(w) - often*long) * math.Exp(spread*c.rng.NormFloat64()-spread*spread/2)
	if c.rng.Float64() < often {
		t += long
	}
	switch c.trouble {
	case "heavy-tailed":
		if c.rng.Float64() < 0.01 {
			t *= 10
		}
	case "drifting":
		if c.spent > 700*c.unit { // a clock that drops …
			t *= 1.15
		}
		t *= 1 + 0.3*min(1, c.spent/(2000*c.unit)) // … and another that sinks
	case "neighbours":
		for c.spent > c.until {
			c.burst = !c.burst
			c.until += c.unit * (20 + 200*c.rng.ExpFloat64()) * map[bool]float64{true: 1, false: 2}[c.burst]
		}
		if c.burst {
			t *= 1.4
		}
	case "slow start":
		t *= 1 + 2*math.Exp(-c.spent/(10*c.time(0)))
	case "cold workers":
		cold := 0.0
		for i := range max(1, w) {
			if c.loaded[i] < c.warm {
				cold++
			}
			c.loaded[i] += 1 / float64(max(1, w))
		}
		t *= 1 + 4*cold/float64(max(1, w))
	case "stretches", "sorted":
		t *= c.stretch
	case "token bucket": // a store that delivers 100 batches at full speed once it has rested
		c.tokens, c.at = min(100, c.tokens+(c.spent-c.at)/c.pause)-1, c.spent
		t = max(t, -c.tokens*c.pause)
	case "quota": // in each 100 ms, all work until their CPU time is used up
		if c.pause > 0 {
			const period = 100e6
			c.tokens, c.at = min(period/c.pause, c.tokens+math.Floor(c.spent/period-c.at)*period/c.pause)-1, math.Floor(c.spent/period)
			if c.tokens < 0 {
				t = max(t, math.Ceil(-c.tokens*c.pause/period)*period-math.Mod(c.spent, period))
			}
		}
	}
	c.spent += t
	return t
}

func (c curve) greedy(again uint64) tuning { return c.run(Greedy, c.space(), again) }

func (c curve) exhaustive(again uint64) tuning {
	sp := c.space()
	sp.Time = 0 // as Tune has it
	return c.run(Exhaustive, sp, again)
}

func (c curve) run(s Strategy, sp Space, again uint64) tuning {
	m := clock{curve: c, rng: rand.New(rand.NewPCG(c.seed, 1000+again)), unit: c.time(c.truth()), loaded: make([]float64, MaxWorkers)}
	warm := 0
	seen, requests := driveIn(s, sp, func(q Request) Block {
		// The same places of the dataset for all counts of a round.
		m.stretch = 0.5 + 3*rand.New(rand.NewPCG(c.seed+again, uint64(q.Round))).Float64()
		if c.trouble == "sorted" {
			_, place := math.Modf(float64(q.Round) * 0.6180339887498949) // as Tune places rounds
			m.stretch = 0.5 + 3*place
		}
		// Before a window come two batches and 10 ms that it leaves out. Workers are warm once
		// each has loaded some samples, 32 of which are a batch.
		began, cold := m.spent, 0
		if q.Workers > warm {
			cold = (q.Workers*WarmSamples + 31) / 32
			warm = q.Workers
		}
		for n := 0; n < max(WarmBatches, cold) || m.spent-began < float64(WarmTime); n++ {
			m.iteration(q.Workers)
		}
		var v window
		for len(v.took) < q.Iterations && (len(v.took) == 0 || v.sum < float64(q.Limit)) {
			v.add(m.iteration(q.Workers))
		}
		b := v.block(q)
		b.Wait = time.Duration(max(0, float64(b.Mean)-c.body))
		for i := range b.Parts {
			b.Parts[i].Mean -= c.body
		}
		b.Round, b.CPU = q.Round, min(1, c.work/c.time(q.Workers)/float64(c.cpus))
		if c.shared {
			b.CPU = c.work / c.free(q.Workers) / float64(c.cpus)
		}
		return b
	}, func() time.Duration { return time.Duration(m.spent) })
	sp.Left = max(0, sp.Time-time.Duration(m.spent))
	return tuning{Choose(sp, seen), m.spent, requests}
}

// drive carries out what a strategy asks for, until it asks no more.
func drive(s Strategy, sp Space, measure func(Request) Block) (seen []Series, requests []Request) {
	spent := time.Duration(0)
	return driveIn(s, sp, func(q Request) Block {
		b := measure(q)
		spent += time.Duration(b.Iterations) * b.Mean
		return b
	}, func() time.Duration { return spent })
}

// driveIn is drive with a clock. It panics if the search doesn't end.
func driveIn(s Strategy, sp Space, measure func(Request) Block, spent func() time.Duration) (seen []Series, requests []Request) {
	for {
		sp.Left = max(0, sp.Time-spent())
		q, more := s(sp, seen)
		if !more {
			return seen, requests
		}
		requests = append(requests, q)
		i := slices.IndexFunc(seen, func(s Series) bool { return s.Workers == q.Workers })
		if i < 0 {
			i = len(seen)
			seen = append(seen, Series{Workers: q.Workers})
		}
		if seen[i].Blocks = append(seen[i].Blocks, measure(q)); len(seen[i].Blocks) > 2*lastRound {
			panic("the search doesn't end")
		}
	}
}

var (
	calibrate = flag.Bool("calibrate", false, "search half of the simulated curves, and print how it went")
	reRunAll  = flag.Bool("rerun.all", false, "with -calibrate, search every simulated curve, and more often")
	drawn     = flag.Uint64("drawn", 1, "number of the suite; the constants of the search were chosen on the second")
)

// An outcome is how searching a curve went, in the mean of the searches.
type outcome struct {
	cost   []float64 // of the exhaustive search's, for 64 counts
	regret []float64 // time at the choice over that of the fastest count, less one
	sure   float64   // repeatability claimed
	same   float64   // share of pairs of runs that choose the same
	ranges float64   // share of the intervals that hold the truth
}

// search makes a number of searches with noise of their own.
func (c curve) search(times int) outcome {
	best := c.time(c.best())
	var o outcome
	choices := make([]int, times)
	ranges, intervals := 0, 0
	for i := range choices {
		r := c.greedy(uint64(i))
		choices[i] = r.Workers
		if slower := c.time(r.Workers) - best; slower > float64(Unnoticed) {
			o.regret = append(o.regret, slower/best)
		} else {
			o.regret = append(o.regret, 0)
		}
		o.sure += r.Repeatability / float64(times)
		if c.trouble == "steady" || c.trouble == "heavy-tailed" {
			shared := 1.0
			if c.trouble == "heavy-tailed" {
				shared = 1.09
			}
			for _, e := range r.Estimates {
				if e.Workers == r.Workers || e.Workers == r.Fastest {
					intervals++
					if truth := shared * c.time(e.Workers); float64(e.Low) <= truth*1.0001 && truth <= float64(e.High)*1.0001 {
						ranges++
					}
				}
			}
		}
		if c.cpus == 64 && !c.grows && i < 4 {
			o.cost = append(o.cost, r.cost/c.exhaustive(uint64(i)).cost)
		}
	}
	pairs := 0
	for i, a := range choices {
		for _, b := range choices[:i] {
			pairs++
			if a == b {
				o.same++
			}
		}
	}
	o.same /= float64(pairs)
	o.ranges = math.NaN()
	if intervals > 0 {
		o.ranges = float64(ranges) / float64(intervals)
	}
	return o
}

func percentOf(x float64) string {
	if math.IsNaN(x) {
		return "–"
	}
	return fmt.Sprintf("%.1f %%", 100*x)
}

func meanOf(outcomes []outcome, of func(outcome) float64) float64 {
	var xs []float64
	for _, o := range outcomes {
		if x := of(o); !math.IsNaN(x) {
			xs = append(xs, x)
		}
	}
	return mean(xs)
}

func all(outcomes []outcome, of func(outcome) []float64) (xs []float64) {
	for _, o := range outcomes {
		xs = append(xs, of(o)...)
	}
	return xs
}

func TestTheSearchIsRightAsOftenAsItSays(t *testing.T) {
	suite, times := curves(*drawn), 12
	require.GreaterOrEqual(t, len(suite), 400)
	switch {
	case !*calibrate: // a sample, to see that nothing is badly wrong
		n := 0
		suite = slices.DeleteFunc(suite, func(c curve) bool { n++; return n%23 != 0 || c.cpus > 64 })
		times = 2
	case !*reRunAll:
		suite = slices.DeleteFunc(suite, func(c curve) bool { return c.seed/100%2 == 1 })
		times = 4
	}
	outcomes := make([]outcome, len(suite))
	var searches sync.WaitGroup
	for part := range runtime.GOMAXPROCS(0) {
		searches.Go(func() {
			for i := part; i < len(suite); i += runtime.GOMAXPROCS(0) {
				outcomes[i] = suite[i].search(times)
			}
		})
	}
	searches.Wait()
	by := map[string][]outcome{}
	for i, c := range suite {
		if c.kind == longStalls {
			by[longStalls] = append(by[longStalls], outcomes[i])
			continue
		}
		if c.kind == "stalls" {
			by[c.kind] = append(by[c.kind], outcomes[i])
			continue
		}
		names := []string{c.kind, c.trouble, "all"}
		if c.clear() {
			names = append(names, "one answer")
		}
		switch near := c.margin(); {
		case near < 0.01:
			names = append(names, margins[0])
		case near < 0.02:
			names = append(names, margins[1])
		default:
			names = append(names, margins[2])
		}
		for _, name := range names {
			by[name] = append(by[name], outcomes[i])
		}
	}
	every, same, sure := by["all"], func(o outcome) float64 { return o.same }, func(o outcome) float64 { return o.sure }
	cost := func(o outcome) []float64 { return o.cost }
	regret := func(o outcome) []float64 { return o.regret }
	if !*calibrate {
		require.LessOrEqual(t, quantile(all(every, regret), 0.9), 0.05)
		require.GreaterOrEqual(t, meanOf(every, same), 0.7)
		require.Greater(t, meanOf(every, sure), 0.7)
		return
	}
	var names []string
	for _, kind := range kinds {
		names = append(names, kind.name)
	}
	names = append(append(append(names, troubles...), margins...), "one answer", "all")
	fmt.Fprintln(t.Output(), "| curves | number | cost, median | worst | regret, p95 | worst | same choice | claimed | interval holds |")
	fmt.Fprintln(t.Output(), "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
	for _, name := range names {
		os := by[name]
		fmt.Fprintf(t.Output(), "| %s | %d | %s | %s | %s | %s | %s | %s | %s |\n", name, len(os),
			percentOf(stat.Median(all(os, cost))), percentOf(quantile(all(os, cost), 1)),
			percentOf(quantile(all(os, regret), 0.95)), percentOf(quantile(all(os, regret), 1)),
			percentOf(meanOf(os, same)), percentOf(meanOf(os, sure)),
			percentOf(meanOf(os, func(o outcome) float64 { return o.ranges })))
	}
	// What is reached, the groups of stalls apart.
	require.LessOrEqual(t, stat.Median(all(every, cost)), 0.065)
	require.LessOrEqual(t, quantile(all(every, cost), 1), 0.4)
	require.LessOrEqual(t, quantile(all(every, regret), 0.95), 0.06)
	require.LessOrEqual(t, quantile(all(every, regret), 1), 0.85)
	require.LessOrEqual(t, quantile(all(by["stalls"], regret), 0.95), 0.4)
	require.GreaterOrEqual(t, meanOf(every, same), 0.85)
	require.InDelta(t, meanOf(every, same), meanOf(every, sure), 0.03, "what is claimed is seen")
	require.InDelta(t, meanOf(by["one answer"], same), meanOf(by["one answer"], sure), 0.03)
	require.GreaterOrEqual(t, meanOf(every, func(o outcome) float64 { return o.ranges }), 0.90, "intervals at 95 %")
}

// quantile returns the value below which the share p of xs lies, interpolated linearly.
func quantile(xs []float64, p float64) float64 {
	sorted := slices.Sorted(slices.Values(xs))
	if len(sorted) == 0 {
		return math.NaN()
	}
	at := p * float64(len(sorted)-1)
	i := int(at)
	if i+1 == len(sorted) {
		return sorted[i]
	}
	return sorted[i] + (at-float64(i))*(sorted[i+1]-sorted[i])
}

func mean(xs []float64) (sum float64) {
	for _, x := range xs {
		sum += x
	}
	return sum / float64(len(xs))
}
