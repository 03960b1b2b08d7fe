package nwt_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

// hangsTwiceUntil is 64 pages, of which two hang until release is closed.
func hangsTwiceUntil(release chan struct{}) *pages {
	return &pages{n: 64, loadBatch: func(_ context.Context, indices []int, _ []*nwt.Sample) error {
		if slices.Contains(indices, 5) || slices.Contains(indices, 40) {
			<-release
		}
		return nil
	}}
}

func TestALoadBatchThatHangsIsLoggedOnceWithItsReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		ds := hangsTwiceUntil(release)
		var log journal
		l := newLoader(t, ds, nwt.WithBatchSize(16), nwt.WithWorkers(2), nwt.WithTimeout(time.Second), log.option())
		for b, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
			require.False(t, nwt.HasRefuge(b), "what is delivered keeps no second slot")
		}
		synctest.Wait() // the watchdog logs
		require.Equal(t, 1, strings.Count(log.String(), "nwt: LoadBatch failed: "))
		require.Contains(t, log.String(), `error="no answer within WithTimeout(1s): context deadline exceeded"`)
		close(release)
		require.NoError(t, l.Close())
	})
}

// slowJournal is a log that takes its time.
type slowJournal struct{ journal }

func (j *slowJournal) Write(p []byte) (int, error) {
	time.Sleep(time.Minute)
	return j.journal.Write(p)
}

func TestALoadBatchThatHangsIsToldOfThoughTheEpochEndsMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		ds := hangsTwiceUntil(release)
		var log slowJournal
		l := newLoader(t, ds, nwt.WithBatchSize(16), nwt.WithWorkers(2), nwt.WithTimeout(time.Second),
			nwt.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		require.Equal(t, indicesUpTo(64), requirePages(t, l, 0)) // while the first of both is logged
		close(release)
		require.NoError(t, l.Close())
		require.Contains(t, log.String(), "nwt: LoadBatch failed:")
	})
}

func TestACallThatWasGivenUpIsToldSoByItsContextWhileTheEpochGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var cause atomic.Value
		ds := numbered(64, func(ctx context.Context, i int, _ *nwt.Sample) error {
			if i == 5 {
				<-ctx.Done()
				cause.Store(context.Cause(ctx))
			}
			return nil
		})
		l := newLoader(t, ds, nwt.WithBatchSize(8), nwt.WithWorkers(2), nwt.WithTimeout(time.Second), nwt.WithErrorBudget(1), quietLog)
		for b, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
			synctest.Wait()
			if b.Index() == 1 {
				require.ErrorContains(t, cause.Load().(error), "no answer within WithTimeout(1s)")
			}
		}
		require.NoError(t, l.Close())
	})
}

func TestTheNumberOfACallThatHasReturnedIsTakenAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var most atomic.Int32
		ds := numbered(16, func(_ context.Context, i int, dst *nwt.Sample) error {
			most.Store(max(most.Load(), int32(dst.Worker())))
			if i == 5 {
				time.Sleep(1500 * time.Millisecond)
			}
			return nil
		})
		l := newLoader(t, ds, nwt.WithBatchSize(8), nwt.WithWorkers(2), nwt.WithTimeout(time.Second), nwt.WithErrorBudget(1), quietLog)
		for epoch := range 10 {
			got, err := values(t, l, epoch)
			require.NoError(t, err)
			require.Len(t, got, 15)
			time.Sleep(time.Second)
		}
		require.EqualValues(t, 2, most.Load(), "two workers, and one that goes on for a call that was given up")
		require.NoError(t, l.Close())
	})
}

func TestCallsThatNeverReturnEndTheEpochBeforeTheyTakeTheMemory(t *testing.T) {
	for _, hanging := range []int{1023, 1024} {
		t.Run(fmt.Sprint(hanging), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				release := make(chan struct{})
				ds := numbered(4000, func(_ context.Context, i int, _ *nwt.Sample) error {
					if i < hanging {
						<-release
					}
					return nil
				})
				l := newLoader(t, ds, nwt.WithBatchSize(8), nwt.WithWorkers(64), nwt.WithTimeout(time.Second), nwt.WithErrorBudget(4000), quietLog)
				got, err := values(t, l, 0)
				if hanging == 1023 {
					require.NoError(t, err)
					require.Len(t, got, 4000-1023)
				} else {
					require.ErrorContains(t, err, "1024 calls that WithTimeout(1s) gave up haven't returned, the bound is 1024")
				}
				close(release)
				synctest.Wait()
				got, err = values(t, l, 1)
				require.NoError(t, err, "they have returned")
				require.Len(t, got, 4000)
				require.NoError(t, l.Close())
			})
		})
	}
}
