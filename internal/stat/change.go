package stat

import (
	"math"
	"slices"
)

// A Change is a possibility that Totals didn't take for sure: large values become more frequent
// at this row. Then rows have other means.
type Change struct {
	Row    int       // the first at which they are more frequent
	From   int       // the first row whose mean would be another
	Means  []float64 // of rows From …
	Chance float64
}

const (
	sureOdds    = 20   // a change is sure if events are this many times as likely with it as without it
	leastChance = 1e-3 // a less likely change is ignored
)

// A large is what large values add to rows.
type large struct {
	usual  []float64 // values
	weight []float64
	excess []float64 // what they add to the mean, as a share of the usual value
	jumpy  []float64 // the sum of their squares, as shares of the usual value squared
	events []float64 // their number
}

// stretches cuts the rows into stretches within which events may be equally frequent. It
// returns where each stretch begins, and where the last one ends. Rows are cut in two if events
// are surely more frequent after the cut, and each part may be cut again (binary segmentation:
// Scott & Knott, "A cluster analysis method for grouping means in the analysis of variance",
// 1974).
func (l large) stretches() []int {
	at := []int{0}
	var cut func(from, to int)
	cut = func(from, to int) {
		odds := oddsOfChange(l.events[from:to], l.weight[from:to])
		if most := slices.Max(odds); most > math.Log(sureOdds) {
			at := from + slices.Index(odds, most)
			cut(from, at)
			cut(at, to)
			return
		}
		at = append(at, to)
	}
	cut(0, len(l.usual))
	return at
}

// changes are the possible changes: one within a stretch, or one at another row of two
// neighbouring stretches than where they meet. At most one change of each list is true.
func (l large) changes(stretches []int) (lists [][]Change) {
	for i := 1; i < len(stretches); i++ {
		from, to := stretches[i-1], stretches[i]
		lists = append(lists, l.within(from, to, from))
		if i+1 < len(stretches) {
			lists = append(lists, l.within(from, stretches[i+1], to))
		}
	}
	return slices.DeleteFunc(lists, func(list []Change) bool { return len(list) == 0 })
}

// within are the possible changes among some rows, except at the row where one is granted.
// Beforehand, a change is as likely as none. If there is one, the store makes events frequent, so
// an event takes the same time in all rows.
func (l large) within(from, to, granted int) (list []Change) {
	odds := oddsOfChange(l.events[from:to], l.weight[from:to])
	most := max(0, slices.Max(odds))
	all := float64(len(odds)-1) * math.Exp(-most)
	for r, log := range odds {
		odds[r] = math.Exp(log - most)
		all += odds[r]
	}
	for r, of := range odds {
		if at := from + r; at != granted && of > leastChance*all {
			list = append(list, Change{at, from, append(l.means(from, at), l.means(at, to)...), of / all})
		}
	}
	return list
}

// means are the means of rows whose events take the same time; each is moved towards the mean
// of all.
func (l large) means(from, to int) []float64 {
	excess, jumpy := slices.Clone(l.excess[from:to]), slices.Clone(l.jumpy[from:to])
	for r, usual := range l.usual[from:to] {
		excess[r] *= usual
		jumpy[r] *= usual * usual
	}
	means, _, _ := shrunk(excess, l.weight[from:to], jumpy)
	for r, usual := range l.usual[from:to] {
		means[r] = max(usual+means[r], least*usual)
	}
	return means
}

// oddsOfChange compares, for each row, two cases: events become more frequent at this row, or
// they are equally frequent in all rows. It returns how many times as likely the events are in
// the first case; 0 times if they are less frequent from the row on. It returns logarithms,
// because a thousand events make the odds overflow. The rates
// are drawn from a gamma distribution of shape 1 about the rate of all (Raftery & Akman,
// "Bayesian analysis of a Poisson process with a change-point", 1986).
func oddsOfChange(events, weight []float64) []float64 {
	odds := slices.Repeat([]float64{math.Inf(-1)}, len(events))
	all, whole := sum(events), sum(weight)
	likelihood := func(events, weight float64) float64 { // its logarithm
		gamma, _ := math.Lgamma(1 + events)
		return math.Log(whole/all) + gamma - (1+events)*math.Log(whole/all+weight)
	}
	before, weightBefore := 0.0, 0.0
	for r := 1; r < len(odds); r++ {
		before, weightBefore = before+events[r-1], weightBefore+weight[r-1]
		after, weightAfter := all-before, whole-weightBefore
		if before/weightBefore < after/weightAfter {
			odds[r] = likelihood(before, weightBefore) + likelihood(after, weightAfter) - likelihood(all, whole)
		}
	}
	return odds
}

func sum(xs []float64) (sum float64) {
	for _, x := range xs {
		sum += x
	}
	return sum
}
