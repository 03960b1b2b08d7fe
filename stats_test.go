package nwt_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

func TestStatsTellWhatTheLoaderHasDone(t *testing.T) {
	l := newLoader(t, sleeping(40, time.Millisecond), nwt.WithBatchSize(10), nwt.WithWorkers(2), nwt.WithPrefetch(2))
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
	shown, err := json.Marshal(s) // as expvar does
	require.NoError(t, err)
	require.Contains(t, string(shown), `"Samples":30,`)
}

func TestWithoutWorkersNoBatchIsReadyWhenAskedFor(t *testing.T) {
	l := newLoader(t, sleeping(40, 0), nwt.WithBatchSize(10), nwt.WithWorkers(0))
	for _, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
	}
	require.Zero(t, l.Stats().Occupancy)
}

func TestTheDifferenceOfTwoSnapshotsIsWhatWasDoneBetweenThem(t *testing.T) {
	l := newLoader(t, sleeping(40, time.Millisecond), nwt.WithBatchSize(10), nwt.WithWorkers(2))
	var earlier nwt.Stats
	for epoch := range 2 {
		earlier = l.Stats()
		for _, err := range l.Epoch(t.Context(), epoch) {
			require.NoError(t, err)
		}
	}
	now := l.Stats()
	done := now.Since(earlier)
	require.Equal(t, 4, done.Batches)
	require.Equal(t, 40, done.Samples)
	require.Equal(t, now.Wait-earlier.Wait, done.Wait)
	require.InDelta(t, now.Occupancy*8, earlier.Occupancy*4+done.Occupancy*4, 1e-9)
	require.Contains(t, done.String(), "4 batches of 40 samples")
}
