package main

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// try runs an experiment, and returns what it printed.
func try(t *testing.T, args ...string) string {
	t.Helper()
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	t.Setenv("TMP", temp)
	var stdout strings.Builder
	require.NoError(t, run(t.Context(), args, &stdout))
	left, err := os.ReadDir(temp)
	require.NoError(t, err)
	require.Empty(t, left, "nothing is left behind")
	return stdout.String()
}

// row returns the cells of the last row that begins with first.
func row(t *testing.T, table, first string) []string {
	t.Helper()
	var found []string
	for line := range strings.Lines(table) {
		if cells := strings.Fields(line); len(cells) > 0 && cells[0] == first {
			found = cells
		}
	}
	require.NotEmpty(t, found, "no row %q in\n%s", first, table)
	return found
}

func TestTheGridHasEveryCellOfEachTable(t *testing.T) {
	out := try(t, "grid", "-images", "100", "-rounds", "1")
	computing, rest, both := strings.Cut(out, "Loading alone")
	require.True(t, both)
	loading, accelerator, both := strings.Cut(rest, "Loading beside an accelerator")
	require.True(t, both)
	for _, table := range []string{computing, loading, accelerator} {
		for _, workers := range []string{"0", "2", "16"} {
			require.GreaterOrEqual(t, len(row(t, table, workers)), 4)
		}
		require.Equal(t, 3+1, strings.Count(table, "◄"), "one in each column, and in the legend")
	}
}

func TestTheGridMarksTheBestAndTheFewest(t *testing.T) {
	g := &table{workers: []int{0, 1, 4, 16}, batches: []int{100, 1000}, ms: [][]float64{{20, 5}, {10.4, 7}, {10.2, 6}, {10, 6}}}
	require.Equal(t, []string{"0", "20.00", "5.00", "◄"}, row(t, g.String(), "0"))
	require.Equal(t, []string{"1", "10.40", "✓", "7.00"}, row(t, g.String(), "1"))
	require.Equal(t, []string{"4", "10.20", "6.00"}, row(t, g.String(), "4"))
	require.Equal(t, []string{"16", "10.00", "◄", "6.00"}, row(t, g.String(), "16"))
}

func TestTheChoiceHasARowForEachDataset(t *testing.T) {
	out := try(t, "choice", "-batch", "4", "-step", "100us", "-budget", "50ms")
	for _, sample := range []string{"waits", "takes", "needs", "hashes"} {
		require.Greater(t, len(row(t, out, sample)), 8)
	}
}

func TestWhatCannotRunSaysWhy(t *testing.T) {
	for want, args := range map[string][]string{
		"must be choice or grid": nil, `"fly"`: {"fly"}, `"now"`: {"choice", "now"}, "-images 0": {"grid", "-images", "0"}, "-step 1µs": {"choice", "-step", "1us"},
	} {
		require.ErrorContains(t, run(t.Context(), args, &strings.Builder{}), want)
	}
}

func TestAnInterruptEndsEveryExperiment(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for name := range experiments {
		t.Run(name, func(t *testing.T) {
			require.ErrorIs(t, run(ctx, []string{name}, &strings.Builder{}), context.Canceled)
		})
	}
}
