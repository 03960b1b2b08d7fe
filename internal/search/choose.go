package search

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

const (
	doubt    = 0.5   // a count may be within alpha if it is so after allowing this many standard errors in its favour, of which one counts as at most alpha
	unhidden = 0.005 // share of an iteration that loading may take without workers, though a worker would hide it
	ofItself = 1.6   // a count's own error, as a multiple of the error of a difference between counts: it includes what all counts share
	mostSure = 0.99  // the highest repeatability that is reported
)

// A Choice is the outcome of a search.
type Choice struct {
	Workers       int           // the fewest within alpha of the fastest; −1 if no allowed count was measured
	Fastest       int           // of the counts up to Most whose times are known, the one with the shortest time
	Alpha         time.Duration // accumulated over the space's iterations
	Repeatability float64       // share of runs that would choose the same, 0 … 1; 0: nothing was measured twice
	Most          int           // counts above this were measured, but only take CPUs from other processes; 0: there are none
	Estimates     []Estimate    // one per count measured, ascending
}

// An Estimate is what a series shows of its count: total time over iterations, without the drift that all
// counts of a round share.
type Estimate struct {
	Workers   int
	Mean      time.Duration // time of an iteration
	Body      time.Duration // the part of it that is the loop's own, without waiting
	Low, High time.Duration // its 95 % interval; both equal Mean if the count wasn't measured twice
}

// Known reports whether a count was measured often enough for its time to be compared: twice, and to within
// half of it.
func Known(mean, low, high time.Duration) bool { return low < high && high-low <= mean }

// Choose finds the fewest workers within alpha of the fastest, or training's own count where the measurements
// don't tell whether it is as good. What was measured until the time was over is chosen from in the same way.
func Choose(sp Space, seen []Series) Choice {
	seen = even(seen)
	e := weigh(sp, seen)
	if len(e.counts) == 0 {
		return Choice{Workers: -1, Fastest: -1}
	}
	c := Choice{Estimates: make([]Estimate, len(e.counts))}
	for i, w := range e.counts {
		mean, margin := min(e.mean[i], math.MaxInt64/2), 0.0
		if e.twice && e.windows[i] > 1 {
			margin = max(2*ofItself*e.se[i], 1/mean)
		}
		low, high := time.Duration(mean*max(0, 1-margin)), time.Duration(min(mean*(1+margin), math.MaxInt64/2))
		c.Estimates[i] = Estimate{w, time.Duration(mean), time.Duration(max(0, mean-e.waits[i])), low, high}
	}
	chosen, fastest := e.choose(e.mean)
	// The choice allows for errors; what is reported as the fastest is the shortest time in the table.
	for i, one := range c.Estimates[:e.able] {
		known, than := Known(one.Mean, one.Low, one.High), c.Estimates[fastest]
		if known && (one.Mean < than.Mean || !Known(than.Mean, than.Low, than.High)) {
			fastest = i
		}
	}
	c.Workers, c.Fastest = e.counts[chosen], e.counts[fastest]
	if e.able < len(e.counts) {
		c.Most = e.counts[e.able-1]
	}
	c.Alpha = math.MaxInt64
	if alpha := sp.Ignores(e.mean[fastest]) * float64(sp.Iterations); alpha < math.MaxInt64 {
		c.Alpha = time.Duration(alpha)
	}
	if e.twice {
		done := float64(e.done[chosen]) // rare events may not have occurred in these iterations
		c.Repeatability = min(max(e.vote(answers, 1)[chosen], 1./answers), done/(done+1), mostSure)
	}
	return c
}

// choose applies the rule to one set of times.
//
// The fastest is the count with the smallest sum of mean and standard error, so that a count that was
// hardly measured doesn't become the fastest by luck. 0 workers aren't chosen if a worker would hide
// loading behind the step.
func (e evidence) choose(mean []float64) (chosen, fastest int) {
	for i, m := range mean[:e.able] {
		if m*(1+e.se[i]) < mean[fastest]*(1+e.se[fastest]) {
			fastest = i
		}
	}
	first := e.fewest(mean, fastest)
	for chosen = first; !e.within(mean, chosen, fastest); {
		chosen++ // the fastest is within
	}
	if start := slices.Index(e.counts[:e.able], e.sp.Start); start >= first && e.blurred(mean, chosen, start, fastest) {
		chosen = start
	}
	return chosen, fastest
}

// fewest returns the index of the lowest count that may be chosen. 0 workers may be, if even one worker
// is slower by more than alpha, or if loading takes next to nothing of a step.
func (e evidence) fewest(mean []float64, fastest int) int {
	if e.counts[0] > 0 || e.sp.Step && e.waits[0] <= unhidden*mean[0] {
		return 0
	}
	for i := 1; i < e.able; i++ {
		if e.within(mean, i, fastest) {
			return 1
		}
	}
	return 0
}

// blurred reports whether training's own count may be as good as the i-th. If the i-th has fewer workers, it
// is so only if the errors are larger than alpha, and if training's own count has at most twice as many, or if
// all counts may be as good as the fastest.
func (e evidence) blurred(mean []float64, i, start, fastest int) bool {
	best := mean[fastest]
	alpha := e.sp.Ignores(best)
	noise := func(a, b int) float64 { return best * math.Hypot(e.se[a], e.se[b]) }
	asGood := func(a, b int) bool { return mean[a]-mean[b] < alpha+2*noise(a, b) }
	switch {
	case e.df == 0:
		return false
	case i > start:
		return asGood(start, fastest)
	case noise(i, start) <= alpha || !asGood(start, i):
		return false
	case e.counts[start] <= 2*e.counts[i]:
		return true
	}
	for a := range mean[:e.able] {
		if !asGood(a, fastest) {
			return false
		}
	}
	return true
}

// within reports whether the i-th count may be within alpha of the fastest, as far as the measurements show.
func (e evidence) within(mean []float64, i, fastest int) bool {
	best := mean[fastest]
	alpha := e.sp.Ignores(best)
	return mean[i] <= best+alpha+doubt*min(best*math.Hypot(e.se[i], e.se[fastest]), alpha)
}

// vote simulates what other runs would measure, and returns the share of them in which each count would
// be chosen. A measurement differs from the truth by its error, and a measurement of another run differs
// by its own. Both variances are multiplied by times. Errors are shares, so vote draws logarithms: a time that
// was hardly measured may be half or twice as long, but never next to nothing.
func (e evidence) vote(draws int, times float64) []float64 {
	rng := rand.New(rand.NewPCG(1, 2))
	mean, votes := make([]float64, len(e.counts)), make([]float64, len(e.counts))
	for range draws {
		for i, m := range e.mean {
			mean[i] = m * math.Exp(math.Sqrt(2*times)*e.se[i]*rng.NormFloat64())
		}
		chosen, _ := e.choose(mean)
		votes[chosen] += 1 / float64(draws)
	}
	return votes
}

const (
	redraws = 200  // simulated runs to find which counts are in the race
	answers = 2000 // simulated runs to find how sure the choice is
)
