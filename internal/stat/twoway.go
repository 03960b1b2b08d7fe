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
	polishes  = 3
	passes    = 10
	huberDown = 2.0 // residuals below so many scales lose weight …
	huberUp   = 0.7 // … and above so many: what disturbs a measurement slows it
	madScale  = 1.4826
	colPrior  = 0.01 // pull of a column towards no effect, in mean weights: keeps the split unique
	priorRows = 4    // degrees of freedom lent to a row by all the others
)

// TwoWay splits observations into row and column effects by iteratively
// reweighted least squares with Huber's weights (Huber, "Robust estimation of
// a location parameter", 1964), starting from Tukey's median polish
// ("Exploratory data analysis", 1977), so that a few outlying values hardly
// move a row; more tightly bounded above than below, which shifts all rows
// alike. A row's variance is its own, shrunk towards that of all rows (Smyth,
// "Linear models and empirical Bayes methods", 2004): with a handful of values
// a row, its own alone would be worth little. Columns seen in one row only
// have no effect.
func TwoWay(obs []Obs, rows, cols int) []Row {
	f := newFit(obs, rows, cols)
	f.polish()
	for range passes {
		f.weigh()
		f.fitRows()
		f.fitCols()
	}
	f.weigh()
	return f.result()
}

type fit struct {
	obs          []Obs
	row, col     []float64
	inRow, inCol [][]int   // which observations
	shared       []bool    // columns seen in several rows
	weight       []float64 // of each observation, Huber's factor included
	prior        float64   // weight with which a column is no different
	inRows       float64   // observations beyond row effects
	df           float64   // and beyond column effects
}

func newFit(obs []Obs, rows, cols int) *fit {
	f := &fit{
		obs: obs, row: make([]float64, rows), col: make([]float64, cols),
		inRow: make([][]int, rows), inCol: make([][]int, cols),
		shared: make([]bool, cols), weight: make([]float64, len(obs)), df: float64(len(obs)),
	}
	for i, o := range obs {
		f.inRow[o.Row] = append(f.inRow[o.Row], i)
		f.inCol[o.Col] = append(f.inCol[o.Col], i)
		f.shared[o.Col] = f.shared[o.Col] || o.Row != obs[f.inCol[o.Col][0]].Row
		f.prior += colPrior * o.Weight / float64(len(obs))
	}
	for _, in := range f.inRow {
		if len(in) > 0 {
			f.df--
		}
	}
	f.inRows = f.df
	for _, shared := range f.shared {
		if shared {
			f.df--
		}
	}
	if slices.Contains(f.shared, true) {
		f.df++ // one column is what the others are compared with
	}
	return f
}

// polish takes medians of rows and columns in turn.
func (f *fit) polish() {
	rest := make([]float64, 0, len(f.obs))
	for range polishes {
		for r, in := range f.inRow {
			rest = rest[:0]
			for _, i := range in {
				rest = append(rest, f.obs[i].Value-f.col[f.obs[i].Col])
			}
			if len(in) > 0 {
				f.row[r] = Median(rest)
			}
		}
		for c, in := range f.inCol {
			rest = rest[:0]
			for _, i := range in {
				rest = append(rest, f.obs[i].Value-f.row[f.obs[i].Row])
			}
			if f.shared[c] {
				f.col[c] = Median(rest)
			}
		}
	}
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
	for r, in := range f.inRow {
		sum, weight := 0.0, 0.0
		for _, i := range in {
			sum += f.weight[i] * (f.obs[i].Value - f.col[f.obs[i].Col])
			weight += f.weight[i]
		}
		if weight > 0 {
			f.row[r] = sum / weight
		}
	}
}

func (f *fit) fitCols() {
	for c, in := range f.inCol {
		sum, weight := 0.0, f.prior
		for _, i := range in {
			sum += f.weight[i] * (f.obs[i].Value - f.row[f.obs[i].Row])
			weight += f.weight[i]
		}
		if f.shared[c] {
			f.col[c] = sum / weight
		}
	}
}

// result gives each row its standard error by the usual formula for Huber's
// estimate: bounded residuals, divided by the share of them that is not
// bounded, and his correction for few observations (Huber & Ronchetti, "Robust
// statistics", 2009, §7.6).
func (f *fit) result() []Row {
	bounded := make([]float64, len(f.obs)) // squares
	all, inside := 0.0, 0.0
	for i, o := range f.obs {
		b := f.weight[i] / o.Weight * f.residual(o)
		bounded[i] = b * b
		all += b * b
		if f.weight[i] == o.Weight {
			inside += 1 / float64(len(f.obs))
		}
	}
	inside = max(inside, 0.5)
	few := 1 + (1-f.df/float64(len(f.obs)))*(1-inside)/inside
	out := make([]Row, len(f.row))
	for r, in := range f.inRow {
		out[r].Effect = f.row[r]
		if f.df <= 0 || len(in) == 0 {
			continue
		}
		squares, weight := 0.0, 0.0
		for _, i := range in {
			squares += bounded[i]
			weight += f.obs[i].Weight
		}
		// Columns take their share of a row's own degrees of freedom.
		lent, own := min(priorRows, f.df), float64(len(in)-1)*f.df/f.inRows
		variance := (lent*all/f.df + squares) / (lent + own)
		out[r].SE = few * math.Sqrt(variance/weight) / inside
		out[r].DF = min(lent+own, f.df) // what is lent was partly a row's own
	}
	return out
}
