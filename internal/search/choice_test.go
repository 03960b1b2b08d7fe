package search

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAnIntervalMovesWithItsMean(t *testing.T) {
	low, high := Estimate{Mean: 100, Low: 90, High: 120}.Around(200)
	require.Equal(t, []time.Duration{180, 240}, []time.Duration{low, high})
}

// "If time ends the search, … a smaller count is never chosen after a single look."
func TestTrainingsOwnCountIsKeptIfTimeEndsTheSearch(t *testing.T) {
	seen := []Series{visits(7, 1000), visits(15, 1010)}
	for _, tt := range []struct {
		name       string
		time, left time.Duration
		want       int
	}{
		{"there is no bound", 0, 0, 7},
		{"time is left", time.Minute, time.Second, 7},
		{"none is left", time.Minute, 0, 15},
		{"none was", time.Nanosecond, 0, 15},
	} {
		sp := sixteen()
		sp.Time, sp.Left = tt.time, tt.left
		c := Choose(sp, seen)
		require.Equal(t, tt.want, c.Workers, tt.name)
		require.Equal(t, tt.want == 15, c.Kept, tt.name)
	}
	sp := sixteen()
	sp.Time = time.Minute
	c := Choose(sp, []Series{visits(8, 2000, 2000), visits(15, 1000, 1000)})
	require.Equal(t, 15, c.Workers)
	require.False(t, c.Kept, "it is the choice")
}

func TestOfEqualsTheFewestAreTheFastest(t *testing.T) {
	c := Choose(sixteen(), []Series{visits(4, 1000), visits(8, 1000)})
	require.Equal(t, []int{4, 4}, []int{c.Workers, c.Fastest})
}

// A look that nothing was beside says nothing about another look: it may be all drift.
func TestALookThatDoesNotCountIsNoSecondLook(t *testing.T) {
	c := Choose(sixteen(), []Series{visits(7, 1000), visits(15, 1010, 1400)})
	require.Zero(t, c.Confidence, "nothing was measured twice")
	require.Zero(t, c.Slower)
	require.Equal(t, c.Estimates[0].Mean, c.Estimates[0].High)
}
