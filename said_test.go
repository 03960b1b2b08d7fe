package nwt_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

// rotting is a BatchDataset in which every tenth sample is bad.
func rotting(n int) *pages {
	rotten := errors.New("rotten")
	return &pages{n: n,
		load: func(_ context.Context, i int, _ *nwt.Sample) error {
			if i%10 == 3 {
				return rotten
			}
			return nil
		},
		loadBatch: func(_ context.Context, indices []int, _ []*nwt.Sample) error {
			for _, i := range indices {
				if i%10 == 3 {
					return rotten
				}
			}
			return nil
		},
	}
}

func TestTuningWarnsOfABadSampleOnceAndSaysThatItTunes(t *testing.T) {
	for _, bad := range []int{1, 10} {
		var log journal
		_, err := nwt.Tune(t.Context(), rotting(10*bad), nwt.WithBatchSize(8), nwt.WithMaxWorkers(2), nwt.WithIterations(20), nwt.WithErrorBudget(100), log.option())
		require.NoError(t, err)
		for line := range strings.Lines(log.String()) {
			require.True(t, strings.Contains(line, "during=tuning") || strings.Contains(line, "the worker count") || strings.Contains(line, "worker count tuned"), line)
		}
		require.Equal(t, bad, strings.Count(log.String(), "a bad sample is left out"), &log)
		require.Equal(t, 1, strings.Count(log.String(), "LoadBatch failed:"), &log)
	}
}

func TestALoadBatchThatFailsIsLoggedOnce(t *testing.T) {
	var log journal
	l := newLoader(t, rotting(100), nwt.WithBatchSize(10), nwt.WithWorkers(0), nwt.WithErrorBudget(100), log.option())
	requirePages(t, l, 0)
	require.NoError(t, l.Close())
	require.Equal(t, 1, strings.Count(log.String(), "LoadBatch failed:"))
	require.Equal(t, 10, strings.Count(log.String(), "a bad sample is left out\" during=loading"))
}

// Without order, batches of two epochs come by turns: each has its own budget.
func TestEveryEpochHasItsBudgetWithoutOrderToo(t *testing.T) {
	bad := errors.New("bad")
	second := make(chan struct{}) // closed when a batch of the second epoch is delivered
	ds := numbered(64, func(_ context.Context, i int, dst *nwt.Sample) error {
		if i == 1 && dst.Epoch() == 0 {
			<-second
		}
		if i%4 == 0 && (dst.Epoch() == 0 || i == 8) {
			return bad
		}
		return nil
	})
	l := newLoader(t, ds, nwt.WithBatchSize(4), nwt.WithWorkers(4), nwt.WithPrefetch(40), nwt.WithUnordered(), nwt.WithErrorBudget(15), quietLog)
	var last error
	delivered := map[int]int{}
	for b, err := range l.Epochs(t.Context(), 0, 2) {
		if last = err; b == nil {
			break
		}
		if delivered[b.Epoch()]++; b.Epoch() == 1 && delivered[1] == 16 {
			close(second)
		}
	}
	require.Equal(t, map[int]int{0: 15, 1: 16}, delivered)
	require.ErrorContains(t, last, "16 bad samples in epoch 0, WithErrorBudget allows 15")
	require.ErrorIs(t, last, bad)
}

func TestSetWorkersWithThePresentNumberEndsAutoModeToo(t *testing.T) {
	l := newLoader(t, augmented(4096), nwt.WithBatchSize(16), nwt.WithWorkers(2), nwt.WithAutoWorkers(), quietLog)
	require.NoError(t, l.SetWorkers(2))
	for _, err := range l.Epochs(t.Context(), 0, 20) {
		require.NoError(t, err)
		require.Equal(t, 2, l.Workers())
	}
	require.Nil(t, l.Result())
}
