package search

import (
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
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
	time          func(w int) float64 // nanoseconds per iteration, undisturbed
	work          float64             // CPU time of an iteration, nanoseconds
	noise         float64             // coefficient of variation of one iteration
	seed          uint64
}

func (c curve) String() string {
	return fmt.Sprintf("%s, %d CPUs, %s, noise %.0f %%, seed %d", c.kind, c.cpus, c.trouble, 100*c.noise, c.seed)
}

func (c curve) space() Space {
	sp := Space{CPUs: c.cpus, Max: c.cpus - 1, Alpha: DefaultAlpha, Iterations: 100}
	if c.grows {
		sp.Max = -1
	}
	return sp
}

// truth is what a search without noise over every count would choose.
func (c curve) truth() int {
	sp, top := c.space(), c.cpus-1
	if c.grows {
		top = 1023
	}
	best := math.Inf(1)
	for w := range top + 1 {
		best = min(best, c.time(w))
	}
	for w := range top + 1 {
		if c.time(w) <= best+sp.Alpha.Of(best, sp.Iterations) {
			return w
		}
	}
	panic("unreachable")
}

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
}

var troubles = []string{"steady", "heavy-tailed", "drifting", "neighbours", "slow start"}

// curves draws the suite: every kind, machine size and trouble, at noise levels in turn.
func curves() []curve {
	var out []curve
	for k, kind := range kinds {
		for i, cpus := range []int{2, 8, 16, 64, 64, 64, 256} {
			for t, trouble := range troubles {
				seed := uint64(10000*k + 100*i + t)
				rng := rand.New(rand.NewPCG(seed, 1))
				shape, work := kind.shape(rng, float64(cpus))
				unit, wait := 0.0, 0.0
				if kind.name == "step-bound" {
					wait = 1 // nothing overlaps where the caller loads
				}
				c := curve{kind: kind.name, trouble: trouble, cpus: cpus, seed: seed,
					noise: []float64{0, 0.05, 0.1, 0.2}[(k+i+t)%4], grows: kind.name == "latency-bound" && i%2 == 0}
				c.time = func(w int) float64 {
					if w == 0 {
						return unit * (shape(1) + wait)
					}
					return unit * shape(float64(w))
				}
				unit = 1
				best := math.Inf(1)
				for w := range cpus {
					best = min(best, c.time(w))
				}
				unit = 3e5 * math.Pow(100, rng.Float64()) / best // the fastest takes 0.3 to 30 ms
				c.work = unit * work
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

func (c curve) run(s Strategy, again uint64) tuning {
	rng := rand.New(rand.NewPCG(c.seed, 1000+again))
	var r tuning
	unit := c.time(c.truth())
	spread := math.Sqrt(math.Log(1 + c.noise*c.noise))
	burst, until := false, 0.0
	iteration := func(w int) float64 {
		t := c.time(w) * math.Exp(spread*rng.NormFloat64()-spread*spread/2)
		switch c.trouble {
		case "heavy-tailed":
			if rng.Float64() < 0.01 {
				t *= 10
			}
		case "drifting":
			t *= 1 + 0.3*min(1, r.cost/(2000*unit)) // a clock that sinks …
			if r.cost > 700*unit {                  // … and another that drops
				t *= 1.15
			}
		case "neighbours":
			for r.cost > until {
				burst = !burst
				until += unit * (20 + 200*rng.ExpFloat64()) * map[bool]float64{true: 1, false: 2}[burst]
			}
			if burst {
				t *= 1.4
			}
		case "slow start":
			t *= 1 + 2*math.Exp(-r.cost/(10*c.time(0)))
		}
		return t
	}
	seen, requests := drive(s, c.space(), func(q Request) Block {
		b, spent := Block{Round: q.Round}, 0.0
		for b.Iterations < q.Iterations && (b.Iterations == 0 || spent < float64(q.Limit)) {
			t := iteration(q.Workers)
			spent += t
			r.cost += t
			b.Iterations++
		}
		b.Mean = time.Duration(spent / float64(b.Iterations))
		b.CPU = min(1, c.work/c.time(q.Workers)/float64(c.cpus))
		return b
	})
	r.Choice, r.requests = Choose(c.space(), seen), requests
	return r
}

var reRunAll = flag.Bool("rerun.all", false, "re-run every simulated curve, not a sample of them")

// An outcome is how searching a curve went.
type outcome struct {
	cost   float64 // of the exhaustive search's; NaN but for 64 counts
	regret float64 // time at the choice over time at the best choice, less one
	above  float64 // steps of the search that the choice lies above the best choice
	sure   float64 // confidence claimed
	same   float64 // share of re-runs with the commonest choice
	near   float64 // share of re-runs within a step of it
}

// search makes a number of searches with noise of their own.
func (c curve) search(times int) []outcome {
	truth := c.truth()
	out := make([]outcome, times)
	for i := range out {
		greedy := c.run(Greedy{}, uint64(i))
		out[i].regret = max(0, c.time(greedy.Workers)/c.time(truth)-1)
		out[i].above = max(0, float64(greedy.Workers-truth)/float64(stepAt(truth)))
		out[i].cost = math.NaN()
		if c.cpus == 64 && !c.grows {
			out[i].cost = greedy.cost / c.run(Exhaustive{}, uint64(i)).cost
		}
	}
	return out
}

// reRun makes a number of searches and compares their choices.
func (c curve) reRun(times int) []outcome {
	var o outcome
	choices := make([]int, times)
	for i := range choices {
		r := c.run(Greedy{}, uint64(i))
		choices[i] = r.Workers
		o.sure += r.Confidence / float64(times)
	}
	counts := map[int]int{}
	common := choices[0]
	for _, w := range choices {
		counts[w]++
		if counts[w] > counts[common] {
			common = w
		}
	}
	o.same = float64(counts[common]) / float64(times)
	for _, w := range choices {
		if math.Abs(float64(w-common)) <= float64(stepAt(max(w, common))) {
			o.near += 1 / float64(times)
		}
	}
	return []outcome{o}
}

// groups files the outcomes under kind, trouble and all.
func groups(curves []curve, of func(curve) []outcome) (names []string, by map[string][]outcome) {
	by = map[string][]outcome{}
	for _, c := range curves {
		o := of(c)
		for _, name := range []string{c.kind, c.trouble, "all"} {
			by[name] = append(by[name], o...)
		}
	}
	for _, kind := range kinds {
		names = append(names, kind.name)
	}
	names = append(append(names, troubles...), "all")
	return slices.DeleteFunc(names, func(n string) bool { return len(by[n]) == 0 }), by
}

func columnOf(outcomes []outcome, of func(outcome) float64) []float64 {
	var out []float64
	for _, o := range outcomes {
		if x := of(o); !math.IsNaN(x) {
			out = append(out, x)
		}
	}
	return out
}

func cost(o outcome) float64   { return o.cost }
func regret(o outcome) float64 { return o.regret }
func sure(o outcome) float64   { return o.sure }
func same(o outcome) float64   { return o.same }
func near(o outcome) float64   { return o.near }
func withinAStep(o outcome) float64 {
	if o.above <= 1 {
		return 1
	}
	return 0
}

func percentOf(x float64) string { return fmt.Sprintf("%.1f %%", 100*x) }

func TestGreedyFindsTheFewestWorkersAtASmallPartOfTheSweepsCost(t *testing.T) {
	if testing.Short() {
		t.Skip("a thousand searches; no goroutine in them")
	}
	suite := curves()
	require.GreaterOrEqual(t, len(suite), 200)
	names, by := groups(suite, func(c curve) []outcome { return c.search(4) })
	fmt.Fprintln(t.Output(), "| curves | searches | cost, median | cost, worst | regret, p95 | regret, worst | within a step |")
	fmt.Fprintln(t.Output(), "| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
	for _, name := range names {
		costs, regrets := columnOf(by[name], cost), columnOf(by[name], regret)
		fmt.Fprintf(t.Output(), "| %s | %d | %s | %s | %s | %s | %s |\n", name, len(by[name]),
			percentOf(stat.Median(costs)), percentOf(stat.Quantile(costs, 1)),
			percentOf(stat.Quantile(regrets, 0.95)), percentOf(stat.Quantile(regrets, 1)),
			percentOf(stat.Mean(columnOf(by[name], withinAStep))))
	}
	costs := columnOf(by["all"], cost)
	require.LessOrEqual(t, stat.Median(costs), 0.15)
	require.LessOrEqual(t, stat.Quantile(costs, 1), 0.30)
	require.LessOrEqual(t, stat.Quantile(columnOf(by["all"], regret), 0.95), 0.02)
	require.GreaterOrEqual(t, stat.Mean(columnOf(by["all"], withinAStep)), 0.95)
}

func TestReRunsChooseTheSameAsOftenAsTheyClaim(t *testing.T) {
	if testing.Short() {
		t.Skip("a thousand searches; no goroutine in them")
	}
	suite := curves()
	if !*reRunAll {
		some := make([]curve, 40)
		for i, at := range rand.New(rand.NewPCG(3, 5)).Perm(len(suite))[:len(some)] {
			some[i] = suite[at]
		}
		suite = some
	}
	names, by := groups(suite, func(c curve) []outcome { return c.reRun(20) })
	fmt.Fprintln(t.Output(), "| curves | number | same Choice, median | same Choice, mean | claimed | within a step, mean |")
	fmt.Fprintln(t.Output(), "| --- | ---: | ---: | ---: | ---: | ---: |")
	for _, name := range names {
		fmt.Fprintf(t.Output(), "| %s | %d | %s | %s | %s | %s |\n", name, len(by[name]),
			percentOf(stat.Median(columnOf(by[name], same))), percentOf(stat.Mean(columnOf(by[name], same))),
			percentOf(stat.Mean(columnOf(by[name], sure))), percentOf(stat.Mean(columnOf(by[name], near))))
	}
	all := by["all"]
	require.GreaterOrEqual(t, stat.Median(columnOf(all, same)), 0.95)
	require.GreaterOrEqual(t, stat.Mean(columnOf(by["steady"], same)), 0.95)
	require.GreaterOrEqual(t, stat.Mean(columnOf(all, near)), 0.95)
	require.InDelta(t, stat.Mean(columnOf(all, same)), stat.Mean(columnOf(all, sure)), 0.05)
}
