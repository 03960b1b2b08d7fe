package stat

import "math"

// A Part stands for some of the values of a row: their mean and their number.
type Part struct{ Mean, Weight float64 }

// Totals returns the means of rows of parts, and their standard errors as shares of the means. It assumes
// that values vary by the same share in all rows, so a row that happened to have few large values doesn't
// get a smaller error than the others.
func Totals(rows [][]Part) (means, se []float64) {
	var squares, df float64
	for _, parts := range rows {
		sum, weight := 0.0, 0.0
		for _, p := range parts {
			sum, weight = sum+p.Mean*p.Weight, weight+p.Weight
		}
		mean := sum / weight
		for _, p := range parts {
			off := p.Mean/mean - 1
			squares += p.Weight * off * off
		}
		df += float64(len(parts) - 1)
		means, se = append(means, mean), append(se, 1/weight)
	}
	for r := range se {
		se[r] = math.Sqrt(se[r] * squares / max(df, 1))
	}
	return means, se
}
