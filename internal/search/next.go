package search

import (
	"math"
	"slices"
)

const certain = 0.12 // a standard error below this share of alpha is small

// between finds the next count of the bisection: towards the fewest workers within
// alpha, and wherever a faster one may be.
func (e evidence) between() (w int, found bool) {
	chosen, fastest := e.choose(e.mean)
	if w, found = e.gap(chosen - 1); found {
		return w, true
	}
	for i := range e.counts {
		if w, found = e.gap(i); found && e.promises(i, w, fastest) {
			return w, true
		}
	}
	return 0, false
}

// gap returns the middle between the i-th count and the next.
func (e evidence) gap(i int) (w int, found bool) {
	if i < 0 || i+1 >= e.able {
		return 0, false
	}
	w, found = middle(e.counts[i], e.counts[i+1])
	return w, found && e.sp.allows(w)
}

// finer finds a count within a step, beside the fastest or beside the choice, that promises
// to be faster than the fastest by half of alpha, if the errors are small compared with alpha.
func (e evidence) finer() (w int, found bool) {
	chosen, fastest := e.choose(e.mean)
	best := e.mean[fastest]
	sure := func(i int) bool { return e.se[i]*best < certain*e.sp.Alpha.Of(best, e.sp.Iterations) }
	for _, i := range []int{fastest - 1, fastest, chosen - 1, chosen} {
		if i < 0 || i+1 == len(e.counts) || !sure(i) || !sure(fastest) {
			continue
		}
		high := e.counts[i+1]
		w = (e.counts[i] + high + 1) / 2
		if stepAt(w) > 1 && w < high && e.sp.allows(w) && e.promises(i, w, fastest) {
			return w, true
		}
	}
	return 0, false
}

// promises reports whether w workers, more than the i-th count, would be faster than
// the fastest by more than half of alpha if times went on falling as they do up to the i-th.
func (e evidence) promises(i, w, fastest int) bool {
	if i == 0 {
		return false
	}
	falling := math.Log(e.mean[i-1]/e.mean[i]) / math.Log(float64(e.counts[i])/float64(e.counts[i-1]))
	best := e.mean[fastest]
	return e.mean[i]*math.Pow(float64(e.counts[i])/float64(w), falling) < best-0.5*e.sp.Alpha.Of(best, e.sp.Iterations)
}

// of returns the time of w workers; +Inf if it isn't known.
func (e evidence) of(w int) float64 {
	if i := slices.Index(e.counts, w); i >= 0 {
		return e.mean[i]
	}
	return math.Inf(1)
}
