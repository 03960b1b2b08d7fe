package nwt_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

func sleeping(n int, d time.Duration) nwt.Dataset {
	return nwt.NewDataset(n, scalar, func(ctx context.Context, _ int, _ *nwt.Sample) error {
		select {
		case <-time.After(d):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
}

func TestADatasetThatWaitsGetsMoreWorkersThanCPUs(t *testing.T) {
	r, err := nwt.Tune(t.Context(), sleeping(10_000, time.Millisecond), nwt.WithMaxWorkers(32), nwt.WithIterations(10))
	require.NoError(t, err)
	require.GreaterOrEqual(t, r.Workers, 8, "%v", r)
	require.Contains(t, r.String(), "chosen")
}

func TestTuningReportsWhereItStands(t *testing.T) {
	var seen []nwt.Progress
	r, err := nwt.Tune(t.Context(), emptyDataset(1000), nwt.WithMaxWorkers(2), nwt.WithProgress(func(p nwt.Progress) { seen = append(seen, p) }))
	require.NoError(t, err)
	require.NotEmpty(t, seen)
	for i := range seen[1:] {
		require.LessOrEqual(t, seen[i].Done, seen[i+1].Done)
	}
	require.Equal(t, "done", seen[len(seen)-1].Phase)
	require.Equal(t, 1.0, seen[len(seen)-1].Done)
	for _, trial := range r.Trials {
		require.Positive(t, trial.Mean)
		require.Positive(t, trial.PeakRSS)
		require.Len(t, r.Trials, 3)
		require.LessOrEqual(t, trial.Low, trial.High)
	}
}

func TestTuningRunsTheStepAndItsErrorsComeBack(t *testing.T) {
	boom := errors.New("boom")
	steps := 0
	r, err := nwt.Tune(t.Context(), emptyDataset(1000), nwt.WithMaxWorkers(1), nwt.WithIterations(10),
		nwt.WithStep(func(_ context.Context, b *nwt.Batch) error { steps++; return nil }))
	require.NoError(t, err)
	require.Positive(t, steps)
	require.True(t, r.Step)
	_, err = nwt.Tune(t.Context(), emptyDataset(1000), nwt.WithStep(func(context.Context, *nwt.Batch) error { return boom }))
	require.ErrorIs(t, err, boom)
	_, err = nwt.Tune(t.Context(), emptyDataset(1000), nwt.WithStep(func(context.Context, *nwt.Batch) error { panic(boom) }))
	require.ErrorIs(t, err, boom)
}

func TestTuningEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	_, err := nwt.Tune(ctx, sleeping(1000, time.Millisecond), nwt.WithProgress(func(nwt.Progress) { cancel() }))
	require.ErrorIs(t, err, context.Canceled)
}
