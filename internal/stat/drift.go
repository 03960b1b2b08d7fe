package stat

import (
	"math"
	"slices"
)

// An Obs is one measured value: what belongs to its row, plus what all values
// of its time share, plus noise.
type Obs struct {
	Row, Time int
	Value     float64
}

const (
	polishes = 12
	driftFew = 3 // number of values from which on their median counts

	madScale    = 1.4826 // standard deviations of a normal distribution in a median deviation
	medianError = 1.2533 // standard error of its median in those of its mean
	surely      = 4      // two standard errors, squared
)

// Drift is what all values of one time share, for each of the times 0 … times−1. It
// is Tukey's median polish ("Exploratory data analysis", 1977) of rows against times.
// A value that is far out moves neither its row's nor its time's median, so what
// happens to one row alone isn't taken for drift. If a time has two values, drift is
// what both have in common; if it has one, drift is 0, and the value doesn't count
// among its row's: it may be all drift. Then drift is centred.
func Drift(obs []Obs, rows, times int) []float64 {
	row, drift := make([]float64, rows), make([]float64, times)
	byRow, byTime := make([][]Obs, rows), make([][]Obs, times)
	for _, o := range obs {
		byRow[o.Row], byTime[o.Time] = append(byRow[o.Row], o), append(byTime[o.Time], o)
	}
	rest := make([]float64, 0, len(obs))
	for range polishes {
		for r, in := range byRow {
			rest = rest[:0]
			for _, o := range in {
				if len(byTime[o.Time]) > 1 {
					rest = append(rest, o.Value-drift[o.Time])
				}
			}
			row[r] = Median(rest) // NaN of a row that was always alone, whose times have no drift
		}
		for at := range drift {
			rest = rest[:0]
			for _, o := range byTime[at] {
				if len(byRow[o.Row]) > 1 {
					rest = append(rest, o.Value-row[o.Row])
				}
			}
			switch {
			case len(rest) >= driftFew:
				drift[at] = beyondNoise(rest)
			case len(rest) == 2 && rest[0]*rest[1] > 0:
				drift[at] = rest[0]
				if math.Abs(rest[1]) < math.Abs(rest[0]) {
					drift[at] = rest[1]
				}
			default:
				drift[at] = 0
			}
		}
		center(drift, byTime)
	}
	return drift
}

// beyondNoise is the median of xs, shrunk by as much as their own spread may
// explain (James & Stein, "Estimation with quadratic loss", 1961): noise must not
// be taken for drift.
func beyondNoise(xs []float64) float64 {
	m := Median(xs)
	spread := make([]float64, len(xs))
	for i, x := range xs {
		spread[i] = math.Abs(x - m)
	}
	error := medianError * madScale * Median(spread) / math.Sqrt(float64(len(xs)))
	if m == 0 {
		return 0
	}
	return m * max(0, 1-surely*error*error/(m*m))
}

// center makes the drift 0 in the median of all values.
func center(drift []float64, byTime [][]Obs) {
	var all []float64
	for at, in := range byTime {
		all = append(all, slices.Repeat([]float64{drift[at]}, len(in))...)
	}
	if len(all) == 0 {
		return
	}
	middle := Median(all)
	for at := range drift {
		drift[at] -= middle
	}
}
