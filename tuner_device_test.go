package nwt_test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/cuda/cudatest"
)

// slowGPU is a GPU whose copies take about a millisecond.
func slowGPU(t *testing.T) nwt.Device {
	t.Helper()
	cudatest.Load(t).Delay(2 * time.Millisecond)
	return gpu0(t)
}

func tuneDevice(t *testing.T, opts ...nwt.Option) *nwt.Result {
	t.Helper()
	r, err := nwt.Tune(t.Context(), augmented(1000), append(opts, nwt.WithBatchSize(8), nwt.WithMaxWorkers(1), nwt.WithIterations(20))...)
	require.NoError(t, err)
	return r
}

func TestAResultIsThatOfTheDevice(t *testing.T) {
	cudatest.Load(t)
	path := nwt.WithResultCache(filepath.Join(t.TempDir(), "tuning.json"))
	require.False(t, tuneDevice(t, nwt.WithDevice(gpu0(t)), path).Cached)
	require.True(t, tuneDevice(t, nwt.WithDevice(gpu0(t)), path).Cached)
	require.False(t, tuneDevice(t, path).Cached, "on the host")
}

func TestATrialTellsWaitingFromCopying(t *testing.T) {
	r := tuneDevice(t, nwt.WithDevice(slowGPU(t)))
	require.Equal(t, "cuda:0 (Fake GPU 0)", r.Device)
	for _, trial := range r.Trials {
		require.Positive(t, trial.Transfer)
		require.GreaterOrEqual(t, trial.Wait, time.Duration(0))
		require.InEpsilon(t, float64(8*(8+24))/trial.Copy.Seconds(), trial.Bandwidth, 0.01)
	}
}

func TestACopyThatTheStepHidesIsNoTransfer(t *testing.T) {
	r := tuneDevice(t, nwt.WithDevice(slowGPU(t)), nwt.WithStep(func(context.Context, *nwt.Batch) error {
		time.Sleep(5 * time.Millisecond)
		return nil
	}))
	for _, trial := range r.Trials {
		if trial.Workers == 0 {
			require.Greater(t, trial.Transfer, trial.Copy/2, "nothing is copied ahead")
		} else {
			require.Less(t, trial.Transfer, trial.Copy/2)
		}
	}
}

func TestTheTableOfADeviceShowsItsCopies(t *testing.T) {
	r := tuneDevice(t, nwt.WithDevice(slowGPU(t)))
	table := r.String()
	require.Regexp(t, `waiting +transfer +copy +bandwidth`, table)
	require.Regexp(t, ` [µm]s +[µm]s +[µm]s +kB/s`, table)

	var csv strings.Builder
	require.NoError(t, r.WriteCSV(&csv))
	lines := strings.Split(strings.TrimSpace(csv.String()), "\n")
	require.Len(t, lines, 1+len(r.Trials))
	require.Contains(t, lines[0], ",transfer_s,copy_s,bandwidth,")
}

func TestATableOfTheHostShowsNoCopies(t *testing.T) {
	require.NotContains(t, tuneDevice(t).String(), "bandwidth")
}
