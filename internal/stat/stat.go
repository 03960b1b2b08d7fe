// Package stat holds the statistics behind the choice of a worker count.
package stat

import (
	"math"
	"slices"
)

// Median returns the middle value, or the mean of the middle two, or NaN if there is none.
func Median(xs []float64) float64 {
	if len(xs) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(xs))
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}

// A Part stands for some of the values of a row: their mean and their number.
type Part struct{ Mean, Weight float64 }

// Mean returns the mean of the values that parts stand for, and their number.
func Mean(parts []Part) (mean, weight float64) {
	sum := 0.0
	for _, p := range parts {
		sum, weight = sum+p.Mean*p.Weight, weight+p.Weight
	}
	return sum / weight, weight
}

// Totals returns the means of rows of parts, and their standard errors as shares of the means. It assumes
// that values vary by the same share in all rows, so a row that happened to have few large values doesn't
// get a smaller error than the others. rare is the excess kurtosis of parts: it is large if few of them are
// far off, and 0 if they vary as in a normal distribution, or less.
func Totals(rows [][]Part) (means, se []float64, rare float64) {
	var squares, fourths, n, df float64
	for _, parts := range rows {
		mean, weight := Mean(parts)
		for _, p := range parts {
			off := p.Mean/mean - 1
			square := p.Weight * off * off
			squares, fourths, n = squares+square, fourths+square*square, n+1
		}
		df += float64(len(parts) - 1)
		means, se = append(means, mean), append(se, 1/weight)
	}
	for r := range se {
		se[r] = math.Sqrt(se[r] * squares / max(df, 1))
	}
	if squares > 0 {
		rare = max(0, n*fourths/(squares*squares)-3)
	}
	return means, se, rare
}
