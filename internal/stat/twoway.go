package stat

import (
	"math"
	"slices"
)

// An Obs is one measured value: what belongs to its row, plus what all values
// of its column share, plus noise whose variance is inverse to the weight.
type Obs struct {
	Row, Col      int
	Value, Weight float64
}

// A Row is what the observations say of one row.
type Row struct {
	Effect float64
	SE     float64 // standard error of Effect
	DF     float64 // degrees of freedom behind SE; 0: nothing was measured twice, SE is unknown
}

// The shape of the robust fit.
const (
	passes    = 10
	huberDown = 2.0 // residuals below so many scales lose weight …
	huberUp   = 0.7 // … and above so many: what disturbs a measurement slows it
	madScale  = 1.4826
	colPrior  = 0.25 // pull of a column towards no effect, in mean weights: keeps the split unique
	priorRows = 4    // degrees of freedom lent to a row by all the others
)

// TwoWay splits observations into row and column effects by iteratively
// reweighted least squares with Huber's weights (Huber, "Robust estimation of
// a location parameter", 1964), so that a few outlying values hardly move a
// row; more tightly bounded above than below, which shifts all rows alike. A row's variance is its own, shrunk towards that of all rows (Smyth,
// "Linear models and empirical Bayes methods", 2004): with a handful of values
// a row, its own alone would be worth little. Columns seen in one row only
// have no effect.
func TwoWay(obs []Obs, rows, cols int) []Row {
	f := newFit(obs, rows, cols)
	for range passes {
		f.fitRows()
		f.fitCols()
		f.weigh()
	}
	return f.result()
}

type fit struct {
	obs       []Obs
	row, col  []float64
	weight    []float64 // of each observation, Huber's factor included
	df        float64   // observations beyond parameters
	shared    []bool    // columns seen in several rows
	colWeight float64
}

func newFit(obs []Obs, rows, cols int) *fit {
	f := &fit{
		obs: obs, row: make([]float64, rows), col: make([]float64, cols),
		weight: make([]float64, len(obs)), shared: make([]bool, cols),
	}
	first := make([]int, cols) // a column's first row, plus one
	seen := make([]bool, rows)
	effects := 0
	for i, o := range obs {
		f.weight[i] = o.Weight
		f.colWeight += colPrior * o.Weight / float64(len(obs))
		if !seen[o.Row] {
			seen[o.Row] = true
			effects++
		}
		switch {
		case first[o.Col] == 0:
			first[o.Col] = o.Row + 1
		case first[o.Col] != o.Row+1 && !f.shared[o.Col]:
			f.shared[o.Col] = true
			effects++
		}
	}
	if slices.Contains(f.shared, true) {
		effects-- // one column is what the others are compared with
	}
	f.df = float64(len(obs) - effects)
	return f
}

// residual is what is left of an observation, in units of weight 1.
func (f *fit) residual(o Obs) float64 {
	return (o.Value - f.row[o.Row] - f.col[o.Col]) * math.Sqrt(o.Weight)
}

func (f *fit) weigh() {
	rest, abs := make([]float64, len(f.obs)), make([]float64, len(f.obs))
	for i, o := range f.obs {
		rest[i] = f.residual(o)
		abs[i] = math.Abs(rest[i])
	}
	scale := madScale * Median(abs)
	if f.df > 0 {
		scale *= math.Sqrt(float64(len(f.obs)) / f.df)
	}
	for i, o := range f.obs {
		f.weight[i] = o.Weight
		bound := huberUp * scale
		if rest[i] < 0 {
			bound = huberDown * scale
		}
		if abs[i] > bound && bound > 0 {
			f.weight[i] *= bound / abs[i]
		}
	}
}

func (f *fit) fitRows() {
	sum, weight := make([]float64, len(f.row)), make([]float64, len(f.row))
	for i, o := range f.obs {
		sum[o.Row] += f.weight[i] * (o.Value - f.col[o.Col])
		weight[o.Row] += f.weight[i]
	}
	for r := range f.row {
		if weight[r] > 0 {
			f.row[r] = sum[r] / weight[r]
		}
	}
}

func (f *fit) fitCols() {
	sum, weight := make([]float64, len(f.col)), make([]float64, len(f.col))
	for i, o := range f.obs {
		sum[o.Col] += f.weight[i] * (o.Value - f.row[o.Row])
		weight[o.Col] += f.weight[i]
	}
	for c := range f.col {
		if f.shared[c] {
			f.col[c] = sum[c] / (weight[c] + f.colWeight)
		}
	}
}

// result gives each row its standard error by the usual formula for Huber's
// estimate: bounded residuals, divided by the share of them that is not bounded.
func (f *fit) result() []Row {
	squares, weight, count := make([]float64, len(f.row)), make([]float64, len(f.row)), make([]float64, len(f.row))
	all, inside := 0.0, 0.0
	for i, o := range f.obs {
		bounded := f.weight[i] / o.Weight * f.residual(o)
		squares[o.Row] += bounded * bounded
		all += bounded * bounded
		weight[o.Row] += o.Weight
		count[o.Row]++
		if f.weight[i] == o.Weight {
			inside += 1 / float64(len(f.obs))
		}
	}
	out := make([]Row, len(f.row))
	for r := range out {
		out[r].Effect = f.row[r]
		if f.df <= 0 || count[r] == 0 {
			continue
		}
		lent := min(priorRows, f.df)
		own := max(count[r]-1, 0)
		variance := (lent*all/f.df + squares[r]) / (lent + own)
		out[r].SE = math.Sqrt(variance/weight[r]) / max(inside, 0.5)
		out[r].DF = lent + own
	}
	return out
}
