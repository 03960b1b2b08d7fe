// Package chancetest checks whether counts of random draws are what chance would give. It is for tests.
package chancetest

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// Uniform fails unless all cells, including those without a count, are equally likely. Free is the
// degrees of freedom.
func Uniform(t *testing.T, counts []int, cells, free int, what string) {
	t.Helper()
	Plausible(t, ChiSquared(counts, cells), free, what)
}

// ChiSquared returns the statistic of counts in equally likely cells.
func ChiSquared(counts []int, cells int) float64 {
	var total, x float64
	for _, c := range counts {
		total += float64(c)
	}
	expected := total / float64(cells)
	for _, c := range counts {
		x += (float64(c) - expected) * (float64(c) - expected) / expected
	}
	return x + float64(cells-len(counts))*expected // cells that were never hit
}

// Plausible fails if a chi-squared statistic is more than 4 standard deviations from what
// chance gives, too even as well as too uneven (Wilson and Hilferty's approximation).
func Plausible(t *testing.T, x float64, free int, what string) {
	t.Helper()
	spread := 2 / (9 * float64(free))
	z := (math.Cbrt(x/float64(free)) - (1 - spread)) / math.Sqrt(spread)
	require.LessOrEqualf(t, math.Abs(z), 4.0, "%s: chi-squared %.1f with %d degrees of freedom", what, x, free)
}
