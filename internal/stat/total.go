package stat

import (
	"cmp"
	"math"
	"slices"
)

// A Part is some of the values of a row: their mean and their number.
type Part struct{ Mean, Weight float64 }

// A Total is the mean of a row's values, and its standard error as shares of it.
type Total struct {
	Mean float64
	SE   float64 // of how it differs from the other rows' means
	Own  float64 // of itself, whatever the other rows say
	Free float64 // degrees of freedom behind Own
}

const (
	huber  = 1.5 // a part that is further than this many scales from its row's middle loses weight
	lent   = 3   // degrees of freedom that all rows together lend to each
	refits = 5
)

// Totals are the means of rows of parts. A mean is put together of the row's
// usual value, by Huber's estimate ("Robust estimation of a location parameter",
// 1964), and the excess of the plain mean over it. A few parts say little about a
// rare large value. So the excess is shrunk towards the excess of all rows, as far as
// chance may have made the difference between them (DerSimonian & Laird, "Meta-analysis
// in clinical trials", 1986). What remains common to all rows isn't in SE.
//
// Own supposes that the largest value of all may be missing once from the row. Otherwise
// a row that happened to have few large values would be too sure of itself.
func Totals(rows [][]Part) (totals []Total) {
	if len(rows) == 0 {
		return nil
	}
	usual := make([]float64, len(rows))
	var spread []float64 // of all parts, by weight 1
	for r, parts := range rows {
		usual[r] = middle(parts)
		for _, p := range parts {
			if len(parts) > 1 {
				// Few values lie too near to their median.
				few := math.Sqrt(float64(len(parts)) / float64(len(parts)-1))
				spread = append(spread, few*math.Abs(p.Mean/usual[r]-1)*math.Sqrt(p.Weight))
			}
		}
	}
	scale := 0.0
	if len(spread) > 0 {
		scale = madScale * Median(spread)
	}
	bounded := make([]float64, len(rows)) // sums of squares
	weight, excess := make([]float64, len(rows)), make([]float64, len(rows))
	jumpy := make([]float64, len(rows)) // sums of squares beyond the bound
	var squares, df, biggest float64
	for r, parts := range rows {
		bound := func(p Part) float64 { return huber * scale / math.Sqrt(p.Weight) }
		for range refits {
			sum, by := 0.0, 0.0
			for _, p := range parts {
				d := p.Mean/usual[r] - 1
				sum, by = sum+p.Weight*max(-bound(p), min(bound(p), d)), by+p.Weight
			}
			usual[r] *= 1 + sum/by
		}
		for _, p := range parts {
			d := p.Mean/usual[r] - 1
			inside := max(-bound(p), min(bound(p), d))
			bounded[r] += p.Weight * inside * inside
			weight[r] += p.Weight
			excess[r] += p.Weight * (d - inside)
			jump := p.Weight * p.Weight * (d - inside) * (d - inside)
			jumpy[r] += jump
			biggest = max(biggest, jump)
		}
		excess[r] /= weight[r]
		squares, df = squares+bounded[r], df+float64(len(parts)-1)
	}
	moved, left, jump := shrunk(excess, weight, jumpy)
	for r := range rows {
		mean := max(1+moved[r], least)
		total := Total{Mean: usual[r] * mean}
		if borrowed := min(lent, df); df > 0 {
			total.Free = borrowed + float64(len(rows[r])-1)
			variance := (borrowed*squares/df + bounded[r]) / total.Free
			// As a share of the mean, the error of the excess would be divided by mean twice; but a
			// few large values tell their own size badly. Once is what holds in simulation.
			apart, alone := max(left[r], leastOwn)*jump/mean, max(jump, (jumpy[r]+biggest)/weight[r])
			total.SE = math.Sqrt((inflation*variance + apart) / weight[r])
			total.Own = math.Sqrt((ownInflation*variance + alone) / weight[r])
		}
		totals = append(totals, total)
	}
	return totals
}

// middle is the median of the values, of which a part has as many as its weight.
func middle(parts []Part) float64 {
	sorted := slices.SortedFunc(slices.Values(parts), func(a, b Part) int { return cmp.Compare(a.Mean, b.Mean) })
	whole, below := 0.0, 0.0
	for _, p := range sorted {
		whole += p.Weight
	}
	for i, p := range sorted {
		below += p.Weight
		switch {
		case 2*below == whole:
			return (p.Mean + sorted[i+1].Mean) / 2
		case 2*below > whole:
			return p.Mean
		}
	}
	return math.NaN()
}

const (
	inflation    = 1.4  // makes up for what bounding and drift hide of the noise by which rows differ …
	ownInflation = 2.6  // … and of a row's own, which what all rows share is a part of
	leastOwn     = 0.02 // share of the excess's variance that may be a row's own, whatever the fit says
	least        = 0.01 // of the usual value, that is left if an excess is negative
)

// shrunk moves excesses towards their mean, as far as chance may have made the difference. It
// also returns which share of its distance each keeps, and the variance that the large values add
// to one value.
func shrunk(excess, weight, jumpy []float64) (moved, left []float64, jump float64) {
	moved, left = make([]float64, len(excess)), make([]float64, len(excess))
	jump = sum(jumpy) / sum(weight)
	if jump == 0 {
		return moved, left, 0
	}
	precision := make([]float64, len(weight))
	for r, w := range weight {
		precision[r] = w / jump
	}
	mean, between := commonMean(excess, precision, surely/2*math.Sqrt(2*float64(len(excess)-1)))
	for r, x := range excess {
		left[r] = between / (between + 1/precision[r])
		moved[r] = mean + left[r]*(x-mean)
	}
	return moved, left, jump
}

// commonMean is the mean of values of known precision (1 / variance), and the variance of the
// true values around it: what is left of their spread without chance and slack (DerSimonian &
// Laird, as above).
func commonMean(values, precision []float64, slack float64) (mean, between float64) {
	var sum, squares, q float64
	for r, x := range values {
		sum, squares, mean = sum+precision[r], squares+precision[r]*precision[r], mean+precision[r]*x
	}
	mean /= sum
	for r, x := range values {
		q += precision[r] * (x - mean) * (x - mean)
	}
	if c := sum - squares/sum; c > 0 {
		between = max(0, (q-float64(len(values)-1)-slack)/c)
	}
	return mean, between
}
