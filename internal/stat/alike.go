package stat

import (
	"math"
	"slices"
)

// sureOdds is how much more likely the events must be with a change than without one for
// it to be taken as sure.
const sureOdds = 20

// alike calls each for every stretch of rows whose events may be equally frequent, in
// order. It cuts rows in two where those after a cut surely have events more often, and so
// on in both parts (binary segmentation: Scott & Knott, "A cluster analysis method for
// grouping means in the analysis of variance", 1974). Of each row, apart is the chance that
// there is such a change in the stretch after it, if none is as likely as one.
func alike(events, weight []float64, each func(from, to int, apart []float64)) {
	var stretch func(from, to int)
	stretch = func(from, to int) {
		odds := changes(events[from:to], weight[from:to])
		all, cut := float64(len(odds)-1), 0
		for r, log := range odds {
			all += math.Exp(log)
			if log > max(math.Log(sureOdds), odds[cut]) {
				cut = r
			}
		}
		if cut > 0 {
			stretch(from, from+cut)
			stretch(from+cut, to)
			return
		}
		apart := make([]float64, len(odds))
		for r := len(odds) - 2; r >= 0; r-- {
			apart[r] = apart[r+1] + math.Exp(odds[r+1])/all
		}
		each(from, to, apart)
	}
	stretch(0, len(events))
}

// changes tells of each row how many times as likely the events are if they are more
// frequent from it on as if they are equally frequent in all rows; 0 times if they are less
// frequent. It returns logarithms, since a thousand events are beyond any number. The rates
// are drawn from a gamma distribution of shape 1 about the rate of all (Raftery & Akman,
// "Bayesian analysis of a Poisson process with a change-point", 1986).
func changes(events, weight []float64) []float64 {
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
