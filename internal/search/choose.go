package search

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/nwt-go/nwt/internal/stat"
)

// How hard the evidence is pressed.
const (
	doubt     = 1    // standard errors in whose favour a count with fewer workers is judged
	SureAt    = 0.98 // confidence at which measuring ends
	redraws   = 200  // re-runs drawn to find who is in the race
	persevere = 10   // times its iterations that a count in an undecided race may get …
	patience  = 10   // … while all together took no longer than so many counts as fast as the fastest,
	ofSweep   = 0.2  // or than this share of measuring every count
)

// A choice is what a search comes to.
type Choice struct {
	Workers    int           // fewest within alpha of the fastest; −1 where nothing allowed was measured
	Fastest    int           // the time-best count
	Alpha      time.Duration // accumulated over the space's iterations
	Confidence float64       // how often a re-run would choose the same, 0 … 1; 0 where nothing was measured twice
	Estimates  []Estimate    // one per count measured, ascending
}

// An estimate is what a series says of its count: free of the drift that all
// counts of a round share, and hardly moved by a few outlying blocks.
type Estimate struct {
	Workers   int
	Mean      time.Duration // per iteration
	Low, High time.Duration // its 95 % interval; both mean where nothing was measured twice
}

// Around is the estimate's interval about a plain mean, as wide in proportion:
// the estimate itself may lie elsewhere, since drift is taken out of it.
func (e Estimate) Around(mean time.Duration) (low, high time.Duration) {
	times := float64(mean) / float64(max(e.Mean, 1))
	return time.Duration(float64(e.Low) * times), time.Duration(float64(e.High) * times)
}

// Choose finds the fewest workers within alpha of the fastest.
func Choose(sp Space, seen []Series) Choice {
	e := weigh(sp, seen)
	if len(e.counts) == 0 {
		return Choice{Workers: -1, Fastest: -1}
	}
	c := Choice{Estimates: make([]Estimate, len(e.counts))}
	for i, w := range e.counts {
		mean, margin := e.mean[i], 1.0
		if e.df[i] > 0 {
			margin = math.Exp(e.se[i] * stat.StudentT(0.95, e.df[i]))
		}
		c.Estimates[i] = Estimate{w, time.Duration(mean), time.Duration(mean / margin), time.Duration(mean * margin)}
	}
	chosen, fastest := e.pick(e.mean)
	c.Workers, c.Fastest = e.counts[chosen], e.counts[fastest]
	c.Alpha = time.Duration(sp.Alpha.Of(e.mean[fastest], sp.Iterations) * float64(sp.Iterations))
	if e.df[chosen] > 0 {
		c.Confidence = e.vote(1000)[chosen]
	}
	return c
}

// The evidence is what all series together say of the counts that may be
// chosen, ascending.
type evidence struct {
	sp     Space
	counts []int
	visits []int
	done   []int     // iterations measured
	low    []float64 // the fastest visit, nanoseconds per iteration
	mean   []float64 // nanoseconds per iteration
	se     []float64 // standard error of the mean's logarithm
	df     []float64 // degrees of freedom behind se; 0: unknown
}

// weigh takes apart what belongs to a count and what all counts of a round
// share. Times multiply, so it does so with their logarithms.
func weigh(sp Space, seen []Series) evidence {
	e := evidence{sp: sp}
	var obs []stat.Obs
	rounds := 0
	for _, s := range slices.SortedFunc(slices.Values(seen), byWorkers) {
		if len(s.Blocks) == 0 || !sp.allows(s.Workers) {
			continue
		}
		done := 0
		for _, b := range s.Blocks {
			obs = append(obs, stat.Obs{
				Row: len(e.counts), Col: b.Round,
				Value: math.Log(float64(max(b.Mean, 1))), Weight: float64(max(b.Iterations, 1)),
			})
			done += b.Iterations
			rounds = max(rounds, b.Round+1)
		}
		e.counts, e.visits = append(e.counts, s.Workers), append(e.visits, len(s.Blocks))
		e.done, e.low = append(e.done, done), append(e.low, Quickest(s.Blocks))
	}
	for _, row := range stat.TwoWay(obs, len(e.counts), rounds) {
		e.mean = append(e.mean, math.Exp(row.Effect))
		e.se = append(e.se, row.SE)
		e.df = append(e.df, row.DF)
	}
	return e
}

func byWorkers(a, b Series) int { return cmp.Compare(a.Workers, b.Workers) }

// pick applies the rule to one set of times: the fewest workers that aren't
// slower than the fastest by more than alpha, as far as the measuring tells.
// The fastest is so beyond a standard error, or luck would choose among equals.
func (e evidence) pick(mean []float64) (chosen, fastest int) {
	for i, m := range mean {
		if m*(1+e.se[i]) < mean[fastest]*(1+e.se[fastest]) {
			fastest = i
		}
	}
	best := mean[fastest]
	within := best + e.sp.Alpha.Of(best, e.sp.Iterations)
	for mean[chosen] > within*(1+doubt*math.Hypot(e.se[chosen], e.se[fastest])) {
		chosen++
	}
	return chosen, fastest
}

// vote draws what re-runs would measure, and answers in which share of them
// each count would be chosen. What was measured misses the truth by its error,
// and a re-run misses it again: hence √2.
func (e evidence) vote(draws int) []float64 {
	votes := make([]float64, len(e.counts))
	rng := rand.New(rand.NewPCG(1, 2))
	mean := make([]float64, len(e.counts))
	for range draws {
		for i, m := range e.mean {
			mean[i] = m * math.Exp(math.Sqrt2*e.se[i]*rng.NormFloat64())
		}
		c, _ := e.pick(mean)
		votes[c]++
	}
	for i := range votes {
		votes[i] /= float64(draws)
	}
	return votes
}

// between finds the next count of the bisection: towards the fewest workers
// within alpha, and around the fastest, whose time sets what alpha is added to.
func (e evidence) between() (w int, found bool) {
	chosen, fastest := e.pick(e.mean)
	if w, found = e.gap(chosen-1, 1); found {
		return w, true
	}
	for _, i := range []int{chosen, fastest - 1, fastest} {
		if w, found = e.gap(i, 1.5); found {
			return w, true
		}
	}
	return 0, false
}

// gap is the middle between the i-th count and the next, if that is more than
// so many times as high.
func (e evidence) gap(i int, times float64) (w int, found bool) {
	if i < 0 || i+1 >= len(e.counts) {
		return 0, false
	}
	low, high := e.counts[i], e.counts[i+1]
	w, found = Middle(low, high)
	return w, found && float64(high) > times*float64(low) && e.sp.allows(w)
}

// undecided are the counts to measure on, ascending: those that a re-run might
// choose, and those that may be the fastest, until they have their iterations,
// and more of them while the choice isn't sure. In the end every count that
// isn't hopeless gets a last look: its first ones may have had bad luck.
func (e evidence) undecided() []int {
	chosen, fastest := e.pick(e.mean)
	best := e.mean[fastest]
	alpha := e.sp.Alpha.Of(best, e.sp.Iterations)
	want := e.sp.enough(best)
	votes := e.vote(redraws)
	patient := e.spent() < max(ofSweep*e.sweep(), patience*best)*float64(want)
	most := want
	if patient && votes[chosen] < SureAt && !e.sp.Fixed {
		most *= persevere
	}
	var race, last []int
	for i, w := range e.counts {
		mightWin := e.low[i] < best-alpha/2 || i < chosen && e.low[i] < best+alpha || e.mean[i]*(1-2*e.se[i]) < best-alpha/2
		switch {
		case i == chosen || i == fastest || patient && votes[i] > 1-SureAt:
			if e.done[i] < most {
				race = append(race, w)
			}
		case patient && mightWin:
			if e.done[i] < want {
				race = append(race, w)
			}
		case patient && e.mean[i] < hopeless*best && e.visits[i] <= firstLooks && !e.sp.Fixed:
			last = append(last, w)
		}
	}
	if len(race) == 0 {
		return last
	}
	return race
}

func (e evidence) spent() float64 {
	sum := 0.0
	for i, m := range e.mean {
		sum += float64(e.done[i]) * m
	}
	return sum
}

// sweep is about how long one iteration at every count would take.
func (e evidence) sweep() float64 {
	sum, next := 0.0, 0
	for i, w := range e.counts {
		sum += float64(w+1-next) * e.mean[i]
		next = w + 1
	}
	return sum
}
