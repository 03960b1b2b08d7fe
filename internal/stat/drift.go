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
	fits       = 20   // after which weights hardly change any more
	pull       = 0.5  // weight, in values, by which a time's drift is held towards none
	leastScale = 1e-4 // of values that fit exactly

	madScale = 1.4826 // standard deviations of a normal distribution in a median deviation
	surely   = 4      // two standard errors, squared
)

// Drift is what all values of one time share, for each of the times 0 … times−1. Rows
// and times are fitted together, by weighted least squares whose weights are Huber's
// ("Robust regression: asymptotics, conjectures and Monte Carlo", 1973). So a row that
// was there only at late times is told from them by the rows that were there before,
// and a value that is far out moves neither its row nor its time.
//
// Drift is held towards none, so if a time has two values, it is what both have in
// common. If a time has one, drift is 0, and the value doesn't count among its row's: it
// may be all drift. Drift is shrunk by as much as noise may explain (James & Stein,
// "Estimation with quadratic loss", 1961), and then centred.
func Drift(obs []Obs, rows, times int) []float64 {
	drift, byTime := make([]float64, times), make([][]Obs, times)
	for _, o := range obs {
		byTime[o.Time] = append(byTime[o.Time], o)
	}
	f := fit{row: make([]float64, rows), drift: drift, held: make([]float64, times), shared: make([][]weighed, times)}
	for at, in := range byTime {
		for _, o := range in {
			if len(in) > 1 {
				f.shared[at] = append(f.shared[at], weighed{o, 1})
			}
		}
		f.held[at] = pull
	}
	scale := 0.0
	for range fits {
		f.solve()
		if scale = f.reweigh(); scale == 0 {
			break // no time has several values
		}
	}
	for at, in := range f.shared {
		if d := drift[at]; d != 0 {
			drift[at] = d * max(0, 1-surely*scale*scale/float64(len(in))/(d*d))
		}
	}
	center(drift, byTime)
	return drift
}

// A fit is that of the rows and the drift of the times that have several values.
type fit struct {
	row, drift []float64
	held       []float64   // weight of a drift of none, of each time
	shared     [][]weighed // by time; nil if it has one value
}

type weighed struct {
	Obs
	weight float64
}

// solve finds the rows and times of the least squares. Given the rows, a time is the
// mean of what its values are beyond them, so only the rows are unknown.
func (f fit) solve() {
	n := len(f.row)
	equations := make([][]float64, n) // the last column is the right side
	for r := range equations {
		equations[r] = make([]float64, n+1)
	}
	for at, in := range f.shared {
		sum, by := 0.0, f.held[at]
		for _, o := range in {
			sum, by = sum+o.weight*o.Value, by+o.weight
		}
		for _, o := range in {
			equations[o.Row][o.Row] += o.weight
			equations[o.Row][n] += o.weight * (o.Value - sum/by)
			for _, other := range in {
				equations[o.Row][other.Row] -= o.weight * other.weight / by
			}
		}
	}
	eliminate(equations, f.row)
	for at, in := range f.shared {
		f.drift[at] = 0
		by := f.held[at]
		for _, o := range in {
			by += o.weight
		}
		for _, o := range in {
			f.drift[at] += o.weight * (o.Value - f.row[o.Row]) / by
		}
	}
}

// reweigh gives values that are further out than the bound the weight with which they
// pull as hard as one at the bound. It returns the scale of what the fit leaves.
func (f fit) reweigh() float64 {
	var rest []float64
	for at, in := range f.shared {
		for _, o := range in {
			rest = append(rest, math.Abs(o.Value-f.row[o.Row]-f.drift[at]))
		}
	}
	if len(rest) == 0 {
		return 0
	}
	scale := max(madScale*Median(rest), leastScale)
	weight := func(out float64) float64 { return min(1, huber*scale/math.Abs(out)) }
	for at, in := range f.shared {
		for i, o := range in {
			in[i].weight = weight(o.Value - f.row[o.Row] - f.drift[at])
		}
		f.held[at] = pull * weight(f.drift[at])
	}
	return scale
}

// eliminate solves linear equations whose matrix is positive definite but for unknowns
// that stand in none, which it leaves alone.
func eliminate(equations [][]float64, unknown []float64) {
	n := len(unknown)
	for i, pivot := range equations {
		for _, below := range equations[i+1:] {
			if pivot[i] == 0 {
				break
			}
			times := below[i] / pivot[i]
			for k := i; k <= n; k++ {
				below[k] -= times * pivot[k]
			}
		}
	}
	for i, pivot := range slices.Backward(equations) {
		if pivot[i] == 0 {
			continue
		}
		rest := pivot[n]
		for k := i + 1; k < n; k++ {
			rest -= pivot[k] * unknown[k]
		}
		unknown[i] = rest / pivot[i]
	}
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
