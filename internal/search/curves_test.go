package search

import (
	"encoding/csv"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Others measured these curves, with PyTorch's workers: see the file.
func TestTheChoiceFromTwoRunsOfPublicCurvesIsRightInTheThird(t *testing.T) {
	file, err := os.Open("testdata/imread.csv")
	require.NoError(t, err)
	defer file.Close()
	r := csv.NewReader(file)
	r.Comment = '#'
	curves, err := r.ReadAll()
	require.NoError(t, err)
	require.Len(t, curves, 55)
	workers := []int{0, 2, 4, 8}
	sp := Space{CPUs: 16, Start: 16, Max: 16, Alpha: DefaultAlpha, Iterations: 100}
	choices, right, same, claimed := 0.0, 0.0, 0.0, 0.0
	for _, order := range [][3]int{{0, 1, 2}, {1, 0, 2}, {0, 2, 1}, {2, 0, 1}, {1, 2, 0}, {2, 1, 0}} {
		for _, c := range curves {
			mean := func(at, run int) time.Duration {
				perSecond, err := strconv.ParseFloat(c[2+3*at+run], 64)
				require.NoError(t, err)
				return time.Duration(32 / perSecond * 1e9)
			}
			choose := func(runs ...int) (index int, c Choice) {
				var seen []Series
				for at, w := range workers {
					s := Series{Workers: w}
					for round, run := range runs {
						s.Blocks = append(s.Blocks, waiting(round, 100, mean(at, run)))
					}
					seen = append(seen, s)
				}
				c = Choose(sp, seen)
				for at, w := range workers {
					if w == c.Workers {
						return at, c
					}
				}
				panic("unreachable")
			}
			third, best := order[2], time.Hour
			for at := range workers {
				best = min(best, mean(at, third))
			}
			at, c := choose(order[0], order[1])
			if float64(mean(at, third)-best) <= sp.Ignores(float64(best)) {
				right++
			}
			other, _ := choose(order[1], third)
			if choices++; at == other {
				same++
			}
			claimed += c.Repeatability
		}
	}
	t.Logf("of %.0f choices %.0f are right; %.3f are the same from two other runs, %.3f claimed", choices, right, same/choices, claimed/choices)
	require.GreaterOrEqual(t, right/choices, 51./55)
	require.InDelta(t, same/choices, claimed/choices, 0.05)
}
