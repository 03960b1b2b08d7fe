package main

import (
	"bytes"
	"context"
	"image/png"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt/examples/internal/cifar"
)

// try runs an experiment with a plot, and answers what it printed.
func try(t *testing.T, args ...string) string {
	t.Helper()
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	t.Setenv("TMP", temp)
	figure := filepath.Join(t.TempDir(), "figure.png")
	var stdout strings.Builder
	require.NoError(t, run(t.Context(), append(args, "-plot", figure), &stdout, &strings.Builder{}))
	data, err := os.ReadFile(figure)
	require.NoError(t, err)
	_, err = png.Decode(bytes.NewReader(data))
	require.NoError(t, err)
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

// images returns a folder of n images in the format of CIFAR-10.
func images(t *testing.T, n int) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, cifar.WriteSynthetic(filepath.Join(dir, "data_batch_1.bin"), n, 1))
	return dir
}

func TestTheSweepMeasuresEveryCount(t *testing.T) {
	out := try(t, "sweep", "-dir", images(t, 100), "-batch", "10", "-iterations", "6", "-max-workers", "2")
	require.NotContains(t, out, "NOT CIFAR-10")
	require.Contains(t, out, "exhaustive search")
	for _, workers := range []string{"0", "1", "2"} {
		row(t, out, workers)
	}
	require.Contains(t, strings.Join(row(t, out, "1"), " "), "chosen", "half a second is more than all of it takes, but without a worker nothing overlaps a step")
}

func TestTheGridHasEveryCellOfEachTable(t *testing.T) {
	out := try(t, "grid", "-images", "60", "-rounds", "1", "-workers", "0,2", "-batches", "10,60,100")
	require.True(t, strings.HasPrefix(out, "NOT CIFAR-10"))
	training, rest, both := strings.Cut(out, "Loading alone")
	require.True(t, both)
	loading, accelerator, both := strings.Cut(rest, "Loading beside an accelerator")
	require.True(t, both)
	for _, table := range []string{training, loading, accelerator} {
		for _, workers := range []string{"0", "2"} {
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

func TestWaitingHasThreeEpochsForEachCount(t *testing.T) {
	out := try(t, "waiting", "-samples", "20", "-wait", "100us", "-batch", "8", "-workers", "0,3")
	for _, workers := range []string{"0", "3"} {
		require.Len(t, row(t, out, workers), 1+3*4, "a time and a share of the CPUs, with their units")
	}
}

func TestOverlapHasEveryRatio(t *testing.T) {
	out := try(t, "overlap", "-batches", "3", "-step", "200us", "-rounds", "1")
	for _, ratio := range []string{"1 : 4", "1 : 2", "1 : 1", "2 : 1", "4 : 1"} {
		require.Contains(t, out, ratio)
	}
}

func TestSoftmaxLearns(t *testing.T) {
	const n, inputs = 64, 8
	rng := rand.New(rand.NewPCG(1, 2))
	x, y := make([]float32, n*inputs), make([]int64, n)
	for i := range y {
		y[i] = rng.Int64N(3)
		for j := range inputs {
			x[i*inputs+j] = rng.Float32()
		}
		x[i*inputs+int(y[i])] += 40
	}
	s := newSoftmax(3, inputs)
	first := s.step(x, y)
	require.InDelta(t, 1.0986, first, 1e-3, "ln 3: it knows nothing yet")
	var last float32
	for range 100 {
		last = s.step(x, y)
	}
	require.Less(t, last, first/4)
}

func TestWhatCannotRunSaysWhy(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "none")
	for _, c := range []struct {
		name string
		args []string
		want string
	}{
		{"nothing", nil, "sweep, grid, choice, waiting or overlap"},
		{"an unknown experiment", []string{"fly"}, `"fly"`},
		{"an argument", []string{"overlap", "now"}, `"now"`},
		{"a plot of another format", []string{"overlap", "-plot", "x.svg"}, `"x.svg"`},
		{"a missing folder", []string{"sweep", "-dir", missing}, missing},
		{"no images", []string{"grid", "-dir", images(t, 1), "-images", "0"}, "Subset"},
		{"no samples", []string{"waiting", "-samples", "0"}, "Dataset.Len"},
		{"one batch", []string{"overlap", "-batches", "1"}, "-batches 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.ErrorContains(t, run(t.Context(), c.args, &strings.Builder{}, &strings.Builder{}), c.want)
		})
	}
}

func TestAnInterruptEndsEveryExperiment(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for name := range experiments {
		t.Run(name, func(t *testing.T) {
			require.ErrorIs(t, run(ctx, []string{name}, &strings.Builder{}, &strings.Builder{}), context.Canceled)
		})
	}
}
