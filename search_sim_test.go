package nwt

import (
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

func (c curve) space() space {
	sp := space{cpus: c.cpus, max: c.cpus - 1, alpha: defaultAlpha, iterations: 100}
	if c.grows {
		sp.max = -1
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
		if c.time(w) <= best+sp.alpha.of(best, sp.iterations) {
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
	choice
	cost   float64 // nanoseconds measured
	visits int
	top    int // highest count measured
}

func (c curve) run(s Strategy, again uint64) tuning {
	rng := rand.New(rand.NewPCG(c.seed, 1000+again))
	var r tuning
	var seen []series
	sp := c.space()
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
	for {
		q, more := s.next(sp, seen)
		if !more {
			r.choice = choose(sp, seen)
			return r
		}
		r.visits++
		r.top = max(r.top, q.workers)
		b, spent := block{round: q.round}, 0.0
		for b.iterations < q.iterations && (q.limit == 0 || b.iterations == 0 || spent < float64(q.limit)) {
			t := iteration(q.workers)
			spent += t
			r.cost += t
			b.iterations++
		}
		b.mean = time.Duration(spent / float64(b.iterations))
		b.cpu = min(1, c.work/c.time(q.workers)/float64(c.cpus))
		i := slices.IndexFunc(seen, func(s series) bool { return s.workers == q.workers })
		if i < 0 {
			i = len(seen)
			seen = append(seen, series{workers: q.workers})
		}
		seen[i].blocks = append(seen[i].blocks, b)
	}
}

func TestGreedyFindsWhatExhaustiveWouldAtASmallPartOfTheCost(t *testing.T) {
	all := curves()
	require.GreaterOrEqual(t, len(all), 200)
	type row struct{ cost, regret, above, agree, claimed []float64 }
	rows := map[string]*row{}
	order := []string{}
	at := func(name string) *row {
		if rows[name] == nil {
			rows[name] = &row{}
			order = append(order, name)
		}
		return rows[name]
	}
	for _, c := range all {
		g := c.run(Greedy(), 0)
		truth := c.truth()
		regret := max(0, c.time(g.workers)/c.time(truth)-1)
		above := max(0, float64(g.workers-truth)/float64(step(truth)))
		cost := math.NaN()
		if c.cpus == 64 && !c.grows {
			cost = g.cost / c.run(Exhaustive(), 0).cost
		}
		same := map[int]int{}
		most := 0
		for again := range 20 {
			w := c.run(Greedy(), uint64(again)).workers
			same[w]++
			most = max(most, same[w])
		}
		if regret > 0.02 || above > 1 || cost > 0.15 || most < 15 {
			t.Logf("%v: truth %d, choice %d (fastest %d), regret %.3f, above %.1f, cost %.3f, visits %d, confidence %.2f, same %v", c, truth, g.workers, g.fastest, regret, above, cost, g.visits, g.confidence, same)
		}
		for _, name := range []string{c.kind, c.trouble, "all"} {
			r := at(name)
			if !math.IsNaN(cost) {
				r.cost = append(r.cost, cost)
			}
			r.regret = append(r.regret, regret)
			r.above = append(r.above, above)
			r.agree = append(r.agree, float64(most)/20)
			r.claimed = append(r.claimed, g.confidence)
		}
	}
	for _, name := range order {
		r := rows[name]
		within := 0.0
		for _, a := range r.above {
			if a <= 1 {
				within += 1 / float64(len(r.above))
			}
		}
		t.Logf("%-22s n=%d cost median %.3f max %.3f; regret p95 %.4f max %.3f; within a step %.3f; agree mean %.3f; claimed %.3f", name, len(r.regret),
			stat.Median(r.cost), stat.Quantile(r.cost, 1), stat.Quantile(r.regret, 0.95), stat.Quantile(r.regret, 1), within, stat.Mean(r.agree), stat.Mean(r.claimed))
	}
}
