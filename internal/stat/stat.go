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
