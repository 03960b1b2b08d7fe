package main

import (
	"context"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

func TestTrainingLearns(t *testing.T) {
	var stdout strings.Builder
	require.NoError(t, run(t.Context(), []string{"-points", "1000", "-batch", "20", "-epochs", "6", "-budget", "100ms"}, &stdout))
	out := stdout.String()
	require.Contains(t, out, "step", "measured with the training step")
	require.Contains(t, out, "6000 points in")
	require.Contains(t, out, "waiting for them")
	var losses []float64
	for _, m := range regexp.MustCompile(`epoch \d: loss ([\d.]+)`).FindAllStringSubmatch(out, -1) {
		loss, err := strconv.ParseFloat(m[1], 64)
		require.NoError(t, err)
		losses = append(losses, loss)
	}
	require.Len(t, losses, 6)
	require.Less(t, losses[5], losses[0]/2)
}

func TestATensorIsTheBatchesMemory(t *testing.T) {
	network, err := newNetwork(4, 2, 8, rings)
	require.NoError(t, err)
	defer network.machine.Close()
	loader, err := nwt.NewLoader(points(8), nwt.WithBatchSize(4))
	require.NoError(t, err)
	defer loader.Close()
	for b, err := range loader.Epoch(t.Context(), 0) {
		require.NoError(t, err)
		values := point.Of(b)
		x := over(b, point)
		require.Equal(t, []int{4, 2}, []int(x.Shape()))
		require.Same(t, &values[0], &x.Float32s()[0])

		before := slices.Clone(values)
		_, err := network.step(b)
		require.NoError(t, err)
		require.Same(t, &values[0], &network.x.Value().Data().([]float32)[0], "what the network trained on")
		require.Equal(t, before, values, "training leaves the batch as it is")
	}
}

func TestARetainedBatchKeepsItsTensor(t *testing.T) {
	loader, err := nwt.NewLoader(points(100), nwt.WithBatchSize(4))
	require.NoError(t, err)
	defer loader.Close()
	var first *nwt.Batch
	var want []float32
	for b, err := range loader.Epoch(t.Context(), 0) {
		require.NoError(t, err)
		if first == nil {
			b.Retain()
			first, want = b, slices.Clone(point.Of(b))
		}
	}
	require.Equal(t, want, over(first, point).Float32s())
	first.Release()
}

func TestWhatCannotRunSaysWhy(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		want string
	}{
		{"no points", []string{"-points", "0"}, "Dataset.Len"},
		{"a batch of more than all points", []string{"-points", "5"}, "WithDropLast"},
		{"fewer than no epochs", []string{"-epochs", "-1", "-budget", "10ms"}, "end: -1: must be at least 0, the first epoch"},
		{"an empty batch", []string{"-batch", "0"}, "-batch 0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.ErrorContains(t, run(t.Context(), c.args, &strings.Builder{}), c.want)
		})
	}
}

func TestAnInterruptEndsTheRun(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, run(ctx, nil, &strings.Builder{}), context.Canceled)
}
