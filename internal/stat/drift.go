package stat

import (
	"cmp"
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
	fits       = 20   // passes after which weights hardly change any more
	pull       = 0.5  // a time's drift is held towards none by the weight of this many values
	leastScale = 1e-4 // of values that fit exactly

	madScale = 1.4826 // times the median deviation is the standard deviation, in a normal distribution
	surely   = 4      // two standard errors, squared: smaller drift may be noise
)

// Drift is what all values of one time share, for each of the times 0 … times−1. Rows
// and times are fitted together, by weighted least squares whose weights are Huber's
// ("Robust regression: asymptotics, conjectures and Monte Carlo", 1973). So a row that
// was there only at late times is told from them by the rows that were there before,
// and a value that is far out moves neither its row nor its time.
//
// Drift is held towards none. So if a time has two values, its drift is what both have in
// common. If a time has only one value, its drift is 0, and the value doesn't count among its
// row's: it may be all drift. Drift is shrunk by as much as noise may explain (James & Stein,
// "Estimation with quadratic loss", 1961), and then centred.
func Drift(obs []Obs, rows, times int) []float64 {
	drift, byTime := make([]float64, times), make([][]Obs, times)
	for _, o := range obs {
		byTime[o.Time] = append(byTime[o.Time], o)
	}
	var shared []weighed
	for _, in := range byTime {
		for _, o := range in {
			if len(in) > 1 {
				shared = append(shared, weighed{o, 1})
			}
		}
	}
	if len(shared) == 0 {
		return drift
	}
	f := fit{shared, newSide(rows), newSide(times)}
	for i := range shared {
		o := &shared[i]
		f.row.of[o.Row] = append(f.row.of[o.Row], term{o, o.Time})
		f.time.of[o.Time] = append(f.time.of[o.Time], term{o, o.Row})
	}
	for at := range times {
		f.time.held[at] = pull
	}
	scale := 0.0
	for range fits {
		f.solve()
		scale = f.reweigh()
	}
	for at, d := range f.time.is {
		if d != 0 {
			drift[at] = d * max(0, 1-surely*scale*scale/float64(len(f.time.of[at]))/(d*d))
		}
	}
	center(drift, byTime)
	return drift
}

// A fit is the common fit of the rows, and of the times that have several values.
type fit struct {
	shared    []weighed
	row, time side
}

type weighed struct {
	Obs
	weight float64
}

// A side of a fit is the rows or the times.
type side struct {
	is   []float64
	held []float64 // the weight by which each is held towards 0
	of   [][]term  // the values in which each takes part
}

// A term is a value, and which of the other side takes part in it.
type term struct {
	*weighed
	other int
}

func newSide(n int) side { return side{make([]float64, n), make([]float64, n), make([][]term, n)} }

// solve finds the rows and times with the least squares. Given one side, each of the other
// side is the mean of what its values are beyond the first. So only the smaller side is unknown.
func (f fit) solve() {
	few, many := f.row, f.time
	if len(few.is) > len(many.is) {
		few, many = many, few
	}
	n := len(few.is)
	equations := make([][]float64, n) // the last column is the right side
	for i := range equations {
		equations[i] = make([]float64, n+1)
		equations[i][i] = few.held[i]
	}
	beyond := make([]float64, n) // nothing
	for i, of := range many.of {
		mean, weight := many.mean(i, beyond)
		for _, o := range of {
			equation := equations[o.other]
			equation[o.other] += o.weight
			equation[n] += o.weight * (o.Value - mean)
			for _, p := range of {
				equation[p.other] -= o.weight * p.weight / weight
			}
		}
	}
	eliminate(equations, few.is)
	for i := range many.is {
		many.is[i], _ = many.mean(i, few.is)
	}
}

// mean is the weighted mean of what the values of the i-th are beyond the other side, and
// its weight.
func (s side) mean(i int, beyond []float64) (mean, weight float64) {
	weight = s.held[i]
	for _, o := range s.of[i] {
		mean, weight = mean+o.weight*(o.Value-beyond[o.other]), weight+o.weight
	}
	return mean / cmp.Or(weight, 1), weight
}

// reweigh gives values that are further out than the bound the weight with which they
// pull as hard as one at the bound. It returns the scale of what the fit leaves.
func (f fit) reweigh() float64 {
	rest := make([]float64, len(f.shared))
	for i, o := range f.shared {
		rest[i] = math.Abs(o.Value - f.row.is[o.Row] - f.time.is[o.Time])
	}
	scale := max(madScale*Median(rest), leastScale)
	weight := func(out float64) float64 { return min(1, huber*scale/math.Abs(out)) }
	for i := range f.shared {
		f.shared[i].weight = weight(rest[i])
	}
	for at, drift := range f.time.is {
		f.time.held[at] = pull * weight(drift)
	}
	return scale
}

// eliminate solves linear equations with a positive definite matrix. It leaves unknowns alone
// that stand in no equation.
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
