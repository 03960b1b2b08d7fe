package nwt_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

func TestATunedLoaderHasTheCountThatWasFoundAndTellsHow(t *testing.T) {
	t.Setenv("RANK", "0")
	t.Setenv("WORLD_SIZE", "1")
	var logged bytes.Buffer
	steps := 0
	l, err := nwt.NewTunedLoader(t.Context(), numbersTo(t, 1000), nwt.WithBatchSize(10), nwt.WithShuffle(1), nwt.WithWorkers(9),
		nwt.WithMaxWorkers(1), nwt.WithIterations(3), nwt.WithLauncher(), nwt.WithLogger(slog.New(slog.NewTextHandler(&logged, nil))),
		nwt.WithStep(func(context.Context, *nwt.Batch) error { steps++; return nil }))
	require.NoError(t, err)
	defer l.Close()
	r := l.Result()
	require.NotNil(t, r)
	require.Equal(t, r.Workers, l.Workers())
	require.LessOrEqual(t, l.Workers(), 1)
	require.True(t, r.Step)
	require.Positive(t, steps)
	require.Equal(t, 1, strings.Count(logged.String(), "launcher: torchrun"))
	require.Equal(t, []nwt.Field{{Name: "number", Type: nwt.Int64, Shape: nil}}, l.Fields())
	require.Len(t, batchesOf[int64](t, l), 100, "the epoch is whole: tuning took nothing of it")
	require.Same(t, r, l.Result())
}

func TestATunedLoaderReportsWhatTuneAndNewLoaderWould(t *testing.T) {
	ds := numbersTo(t, 10)
	_, err := nwt.NewTunedLoader(t.Context(), ds, nwt.WithBatchSize(0), nwt.WithAlpha(-1))
	require.ErrorContains(t, err, "WithBatchSize")
	require.ErrorContains(t, err, "WithAlpha")
	_, err = nwt.NewTunedLoader(t.Context(), ds, nwt.WithBatchSize(11), nwt.WithDropLast())
	require.ErrorContains(t, err, "WithDropLast")
	_, err = nwt.NewLoader(ds, nwt.WithBatchSize(11), nwt.WithDropLast())
	require.ErrorContains(t, err, "leaves no batch of 11 samples for each of 1 ranks: an epoch has 10")
	l := newLoader(t, ds, nwt.WithBatchSize(5), nwt.WithDropLast())
	require.ErrorContains(t, l.SetSampler(nwt.Sequential(4)), "WithDropLast")
	_, err = nwt.NewTunedLoader(t.Context(), nil)
	require.ErrorContains(t, err, "must not be nil")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = nwt.NewTunedLoader(ctx, ds)
	require.ErrorIs(t, err, context.Canceled)
}

func TestATunedLoaderOutlivesTheContextOfTuning(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	l, err := nwt.NewTunedLoader(ctx, numbersTo(t, 1000), nwt.WithMaxWorkers(1), nwt.WithIterations(3), nwt.WithAutoWorkers())
	require.NoError(t, err)
	defer l.Close()
	cancel()
	require.Len(t, batchesOf[int64](t, l), 32)
	require.NotNil(t, l.Result())
}

func TestALoaderThatWasNotTunedHasNoResult(t *testing.T) {
	require.Nil(t, newLoader(t, numbersTo(t, 10)).Result())
}
