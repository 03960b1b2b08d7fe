package nwt_test

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

func TestStatsTellWhatTheLoaderHasDone(t *testing.T) {
	l := newLoader(t, sleeping(40, time.Millisecond), nwt.WithBatchSize(10), nwt.WithWorkers(2))
	for b, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
		if b.Index() == 2 {
			break
		}
	}
	s := l.Stats()
	require.Equal(t, 3, s.Batches)
	require.Equal(t, 30, s.Samples)
	require.Equal(t, 2, s.Workers)
	require.Equal(t, 3, s.Slots)
	require.Equal(t, 3*64, s.SlotBytes)
	require.Positive(t, s.Wait)
	require.GreaterOrEqual(t, s.LoadMedian, 900*time.Microsecond)
	require.GreaterOrEqual(t, s.LoadP99, s.LoadMedian)
	require.LessOrEqual(t, s.Occupancy, 1.0)
}

// A batch whose samples were all left out was ready too, but never delivered.
func TestOccupancyIsAShareOfTheBatchesThatWereDelivered(t *testing.T) {
	ds := nwt.NewDataset(64, []nwt.Field{{Name: "x", Type: nwt.Uint8}}, func(_ context.Context, i int, _ *nwt.Sample) error {
		if i%8 > 0 {
			return errBoom
		}
		return nil
	})
	synctest.Test(t, func(t *testing.T) {
		l := newLoader(t, ds, nwt.WithBatchSize(1), nwt.WithWorkers(1), nwt.WithPrefetch(16), nwt.WithErrorBudget(64), nwt.WithLogger(slog.New(slog.DiscardHandler)))
		for _, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
			time.Sleep(time.Second) // until as much is loaded ahead as may be
		}
		require.Equal(t, 8, l.Stats().Batches)
		require.LessOrEqual(t, l.Stats().Occupancy, 1.0)
		require.GreaterOrEqual(t, l.Stats().Occupancy, 0.5)
	})
}
