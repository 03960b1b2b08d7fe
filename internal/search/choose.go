package search

import (
	"math"
	"math/bits"
	"slices"
	"time"

	"github.com/nwt-go/nwt/internal/stat"
)

const (
	doubt    = 0.5  // a count may be within alpha if it is so with this many standard errors in its favour …
	surely   = 1    // … and surely is within if it is so with this many against it: then no rounder count with more workers is preferred
	ofAlpha  = 0.25 // this standard error counts as at most this share of alpha
	mostSure = 0.99 // the highest confidence that is claimed

	// If time ended the search, another count replaces training's own only if it is
	// worse by more than alpha and worseBy with a probability of mayBeWorse at most.
	worseBy    = 0.02
	mayBeWorse = 0.05
)

// A Choice is the outcome of a search.
type Choice struct {
	Workers    int           // fewest within alpha of the fastest; −1 if nothing allowed was measured
	Fastest    int           // the time-best count
	Alpha      time.Duration // accumulated over the space's iterations
	Confidence float64       // how often another run would choose the same, 0 … 1; 0: nothing was measured twice
	Rounded    bool          // fewer workers may be within alpha too, and Workers is the rounder count
	Kept       bool          // Workers is training's own count: time ended before another was surely better
	Slower     float64       // share by which the choice is slower than the best count tried, at most, at 95 %
	Estimates  []Estimate    // one per count measured, ascending
}

// An Estimate is what a series says about its count: total time over iterations,
// without the drift that all counts of a round share.
type Estimate struct {
	Workers   int
	Mean      time.Duration // per iteration
	Low, High time.Duration // its 95 % interval; both Mean if nothing was measured twice
}

// Around is the estimate's interval, moved to lie about a plain mean and as wide in
// proportion: the estimate itself may lie elsewhere, since drift was taken out of it.
func (e Estimate) Around(mean time.Duration) (low, high time.Duration) {
	times := float64(mean) / float64(max(e.Mean, 1))
	return time.Duration(math.Round(float64(e.Low) * times)), time.Duration(math.Round(float64(e.High) * times))
}

// Choose finds the fewest workers within alpha of the fastest.
func Choose(sp Space, seen []Series) Choice {
	e := weigh(sp, seen)
	if len(e.counts) == 0 {
		return Choice{Workers: -1, Fastest: -1}
	}
	c := Choice{Estimates: make([]Estimate, len(e.counts))}
	for i, w := range e.counts {
		mean, margin := e.mean[i], 0.0
		if e.twice {
			margin = e.own[i] * stat.StudentT(0.95, e.free[i])
		}
		c.Estimates[i] = Estimate{w, time.Duration(mean), time.Duration(mean * max(0, 1-margin)), time.Duration(min(mean*(1+margin), math.MaxInt64/2))}
	}
	chosen, fastest := e.pick(e.mean)
	for i := range chosen {
		may, _ := e.within(e.mean, i, fastest)
		c.Rounded = c.Rounded || may
	}
	if sp.Time > 0 && sp.Left <= 0 {
		own := e.orTheStart(chosen)
		c.Kept = own != chosen
		chosen = own
	}
	c.Workers, c.Fastest = e.counts[chosen], e.counts[fastest]
	c.Alpha = math.MaxInt64
	if alpha := sp.Alpha.Of(e.mean[fastest], sp.Iterations) * float64(sp.Iterations); alpha < math.MaxInt64 {
		c.Alpha = time.Duration(alpha)
	}
	if e.twice {
		done := float64(e.done[chosen]) // what is rare may not have been met in these iterations
		c.Confidence = min(max(e.vote(answers, 1, seenAgain)[chosen], 1./answers), done/(done+1), mostSure)
		c.Slower = e.slower(chosen)
	}
	return c
}

// pick applies the rule to one set of times: the fewest workers that aren't slower than the
// fastest by more than alpha. If measuring doesn't tell which of several counts that is, pick
// takes the roundest of them, because other runs then choose the same: rounding is what makes a
// result replicable (Impagliazzo, Lei, Pitassi & Sorrell, "Reproducibility in learning", STOC
// 2022).
//
// The fastest is the count with the least sum of mean and standard error: a count that is
// hardly known doesn't become the fastest by luck.
func (e evidence) pick(mean []float64) (chosen, fastest int) {
	for i, m := range mean {
		if m*(1+e.se[i]) < mean[fastest]*(1+e.se[fastest]) {
			fastest = i
		}
	}
	chosen = -1
	for i := range mean {
		may, sure := e.within(mean, i, fastest)
		if may && (chosen < 0 || e.sp.roundness(e.counts[i]) > e.sp.roundness(e.counts[chosen])) {
			chosen = i
		}
		if sure {
			break
		}
	}
	return chosen, fastest
}

// within tells whether the i-th count may be within alpha of the fastest, and whether it
// surely is, as far as the measuring tells.
func (e evidence) within(mean []float64, i, fastest int) (may, sure bool) {
	best := mean[fastest]
	alpha := e.sp.Alpha.Of(best, e.sp.Iterations)
	se := min(best*math.Hypot(e.se[i], e.se[fastest]), ofAlpha*alpha)
	may = mean[i] <= best+alpha+doubt*se
	return may, mean[i] <= best+alpha-surely*se || may && e.df == 0
}

// roundness is how often a count can be halved; 0 is the roundest. What training would
// have without tuning is at least as round as one more (63 of 64 CPUs).
func (sp Space) roundness(workers int) int {
	round := bits.TrailingZeros(uint(workers))
	if workers == sp.Start {
		round = max(round, bits.TrailingZeros(uint(workers+1)))
	}
	return round
}

// orTheStart returns the choice, unless it may well be worse than training's own count. Then
// measuring has ended too early, and it returns training's own.
func (e evidence) orTheStart(chosen int) int {
	start := slices.Index(e.counts, e.sp.Start)
	if start < 0 || start == chosen {
		return chosen
	}
	if chosen < start && e.visits[chosen] < 2 {
		return start // one look is no reason to choose fewer workers
	}
	worse := 0
	e.drawTruth(redraws, func(mean []float64) {
		best := mean[start]
		if mean[chosen] > best+e.sp.Alpha.Of(best, e.sp.Iterations)+worseBy*best {
			worse++
		}
	})
	if float64(worse) > mayBeWorse*redraws {
		return start
	}
	return chosen
}
