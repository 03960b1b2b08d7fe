package stat

import (
	"math"
	"slices"
)

// An Obs is one measured value. It is the sum of a part that belongs to its row, a part that all values
// of its time share, and noise.
type Obs struct {
	Row, Time int
	Value     float64
}

const (
	reweighed = 20  // how often the weights of values are computed …
	passes    = 5   // … after this many passes over rows and times
	pull      = 0.5 // a time's drift is pulled towards 0 with the weight of this many values
	huber     = 1.5 // a value that is further than this many scales from its fit loses weight
	minScale  = 1e-4
	madScale  = 1.4826 // in a normal distribution, the standard deviation is this many times the median deviation
	surely    = 4      // two standard errors, squared: a smaller drift may be noise
)

// Drift returns what all values of one time share, for each of the times 0 … times−1. Rows and times are
// fitted in turn, by weighted means whose weights are Huber's ("Robust regression: asymptotics,
// conjectures and Monte Carlo", 1973). So if a row was measured only at late times, the rows measured
// before separate its own value from the drift. A value that is far off moves neither its row nor its
// time.
//
// Drift is pulled towards 0. If a time has two values, it is what both have in common; if it has one
// value, it is 0, since that value may be all drift. It is reduced by as much as noise may explain (James
// & Stein, "Estimation with quadratic loss", 1961), and its median over all values is 0.
func Drift(obs []Obs, rows, times int) []float64 {
	drift, row, n := make([]float64, times), make([]float64, rows), make([]int, times)
	for _, o := range obs {
		n[o.Time]++
	}
	shared := slices.DeleteFunc(slices.Clone(obs), func(o Obs) bool { return n[o.Time] < 2 })
	if len(shared) == 0 {
		return drift
	}
	scale, rest := math.Inf(1), make([]float64, len(shared)) // what the fit leaves
	weight := func(out float64) float64 { return min(1, huber*scale/math.Abs(out)) }
	left := func(o Obs) float64 { return o.Value - row[o.Row] - drift[o.Time] }
	for range reweighed {
		for range passes {
			sum, by := make([]float64, rows), make([]float64, rows)
			for i, o := range shared {
				w := weight(rest[i])
				sum[o.Row], by[o.Row] = sum[o.Row]+w*left(o), by[o.Row]+w
			}
			for r := range row {
				row[r] += sum[r] / max(by[r], math.SmallestNonzeroFloat64)
			}
			sum, by = make([]float64, times), make([]float64, times)
			for at, d := range drift {
				by[at] = pull * weight(d)
				sum[at] = -by[at] * d
			}
			for i, o := range shared {
				w := weight(rest[i])
				sum[o.Time], by[o.Time] = sum[o.Time]+w*left(o), by[o.Time]+w
			}
			for at := range drift {
				drift[at] += sum[at] / by[at]
			}
		}
		for i, o := range shared {
			rest[i] = left(o)
		}
		deviations := make([]float64, len(rest))
		for i, out := range rest {
			deviations[i] = math.Abs(out)
		}
		scale = max(madScale*Median(deviations), minScale)
	}
	var all []float64
	for at, d := range drift {
		if d != 0 {
			drift[at] = d * max(0, 1-surely*scale*scale/float64(n[at])/(d*d))
		}
		all = append(all, slices.Repeat([]float64{drift[at]}, n[at])...)
	}
	middle := Median(all)
	for at := range drift {
		drift[at] -= middle
	}
	return drift
}
