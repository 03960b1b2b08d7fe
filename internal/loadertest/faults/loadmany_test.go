package faults_test

import (
	"bytes"
	"context"
	"errors"
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
	"github.com/nwt-go/nwt/internal/loadertest/kit"
)

func TestOnlyTheBadSamplesOfABatchDatasetAreBad(t *testing.T) {
	bad := errors.New("bad")
	fail := func(i int) error {
		if i == 7 || i == 90 {
			return bad
		}
		return nil
	}
	ds := &kit.Together{Dataset: kit.Numbered(100, func(_ context.Context, i int, _ *nwt.Sample) error { return fail(i) }), Fail: fail}
	l := kit.NewLoader(t, ds, nwt.WithBatchSize(32), nwt.WithWorkers(2), nwt.WithErrorBudget(2))
	got, err := kit.Values(t, l, 0)
	require.NoError(t, err)
	require.Equal(t, kit.UpTo(100, 7, 90), got)
}

func TestALoadManyThatFailsWhereLoadDoesNotIsLoggedLessAndLessOften(t *testing.T) {
	for want, fail := range map[string]func(dst []*nwt.Sample){
		"panic: runtime error: index out of range": func(dst []*nwt.Sample) { _ = dst[64] },
	} {
		for _, workers := range []int{0, 2} {
			var log bytes.Buffer
			ds := &kit.Together{Dataset: kit.Numbered(100, func(context.Context, int, *nwt.Sample) error { return nil }), Look: fail}
			l := kit.NewLoader(t, ds, nwt.WithBatchSize(10), nwt.WithWorkers(workers), nwt.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
			got, err := kit.Values(t, l, 0)
			require.NoError(t, err)
			require.Equal(t, kit.UpTo(100), got)
			require.Equal(t, 4, strings.Count(log.String(), "(LoadMany) failed"), "of ten: 1, 2, 4 and 8")
			require.Contains(t, log.String(), "failures=8")
			require.Contains(t, log.String(), want)
		}
	}
}

func TestALoadManyThatForgetsALengthIsNoticedInEveryEpoch(t *testing.T) {
	ds := kit.InOneCall{Dataset: &kit.Pages{N: 8}, Call: func(_ []int, dst []*nwt.Sample) error {
		for _, s := range dst {
			if s.Epoch() == 0 {
				s.SetLen(1, 2)
			}
		}
		return nil
	}}
	l := kit.NewLoader(t, ds, nwt.WithBatchSize(4), nwt.WithWorkers(0))
	_, err := kit.Epoch(t.Context(), l, 0)
	require.NoError(t, err)
	_, err = kit.Epoch(t.Context(), l, 1)
	require.ErrorContains(t, err, "did not call SetLen(1, n)")
}

func TestScratchIsMadeAnewAfterAPanicInLoadMany(t *testing.T) {
	var d kit.Decoders
	var used []*kit.Decoder
	ds := kit.InOneCall{Dataset: d.Decoded(8, nil), Call: nil}
	ds.Call = func(_ []int, dst []*nwt.Sample) error {
		dec, err := nwt.Scratch(dst[0], d.Create)
		used = append(used, dec)
		if len(used) == 1 {
			panic(kit.ErrBoom)
		}
		return err
	}
	l := kit.NewLoader(t, ds, nwt.WithBatchSize(4), nwt.WithWorkers(0), kit.Silent)
	_, err := kit.Epoch(t.Context(), l, 0)
	require.NoError(t, err)
	require.True(t, used[0].Closed.Load())
	require.NotSame(t, used[0], used[1])
	require.NoError(t, l.Close())
	require.Zero(t, d.Open.Load())
}

func TestALoadManyThatFailsForABadSampleIsNotLoggedBesideIt(t *testing.T) {
	var log kit.Journal
	l := kit.NewLoader(t, rotting(100), nwt.WithBatchSize(10), nwt.WithWorkers(0), nwt.WithErrorBudget(100), log.Option())
	requirePages(t, l, 0)
	require.NoError(t, l.Close())
	require.NotContains(t, log.String(), "(LoadMany)")
	require.Equal(t, 10, strings.Count(log.String(), "a bad sample is left out\" during=loading"))
}

func TestALoadManyThatFailsIsHalvedUntilTheBadSamplesAreFound(t *testing.T) {
	rotten := errors.New("rotten")
	var calls, together, alone int
	ds := &kit.Pages{N: 4096,
		OnLoad: func(_ context.Context, i int, _ *nwt.Sample) error {
			alone++
			if i == 1717 {
				return rotten
			}
			return nil
		},
		OnLoadMany: func(_ context.Context, indices []int, _ []*nwt.Sample) error {
			calls++
			together += len(indices)
			if slices.Contains(indices, 1717) {
				return rotten
			}
			return nil
		},
	}
	l := kit.NewLoader(t, ds, nwt.WithBatchSize(1024), nwt.WithWorkers(0), nwt.WithErrorBudget(1), kit.Silent)
	require.Equal(t, kit.IndicesUpTo(4096, 1717), requirePages(t, l, 0))
	require.Equal(t, 1, alone, "Load is left the bad one")
	require.LessOrEqual(t, calls, 4+2*10)
	require.LessOrEqual(t, together, 4096+2*1024)
	require.Equal(t, 1717, l.BadSamples()[0].Index)
}

func TestALoadManyIsRepeatedAfterItsWaitsBeforeItIsHalved(t *testing.T) {
	const restarts = 250 * time.Millisecond // of a database: after the waits of 100 and 200 ms it answers again
	down := nwt.Retryable(errors.New("the database is restarted"))
	for name, c := range map[string]struct {
		down    time.Duration
		calls   int           // of LoadMany for a batch of 8 samples
		waits   time.Duration // in all
		failure string
	}{
		"it comes back":      {restarts, 3, 300 * time.Millisecond, ""},
		"it doesn't in time": {310 * time.Millisecond, 3 + 3 + 3, 400 * time.Millisecond, "the database is restarted (attempt 3)"},
	} {
		for _, workers := range []int{0, 1} {
			t.Run(fmt.Sprintf("%s/workers=%d", name, workers), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var log kit.Journal
					began, calls := time.Now(), 0
					ds := &kit.Pages{N: 8, OnLoad: func(context.Context, int, *nwt.Sample) error {
						if time.Since(began) < c.down {
							return down
						}
						return nil
					}}
					ds.OnLoadMany = func(_ context.Context, indices []int, dst []*nwt.Sample) error {
						calls++
						slices.Reverse(indices) // which it may, together
						slices.Reverse(dst)
						return ds.OnLoad(t.Context(), 0, nil)
					}
					l := kit.NewLoader(t, ds, nwt.WithBatchSize(8), nwt.WithWorkers(workers), nwt.WithPrefetch(1), nwt.WithRetry(2, 100*time.Millisecond), log.Option())
					require.Equal(t, kit.IndicesUpTo(8), requirePages(t, l, 0))
					require.Equal(t, c.waits, time.Since(began))
					require.Equal(t, c.calls, calls)
					require.Equal(t, c.failure != "", strings.Contains(log.String(), "(LoadMany) failed"))
					require.Contains(t, log.String(), c.failure)
				})
			})
		}
	}
}

// Otherwise each sample of a batch would wait for a database that is down.
func TestWhereNoSampleMayBeBadThoseAfterABadOneAreNotLoaded(t *testing.T) {
	for _, workers := range []int{0, 1} {
		alone := 0
		down := errors.New("the database is down")
		ds := &kit.Pages{N: 1024,
			OnLoad:     func(context.Context, int, *nwt.Sample) error { alone++; return down },
			OnLoadMany: func(context.Context, []int, []*nwt.Sample) error { return down },
		}
		l := kit.NewLoader(t, ds, nwt.WithBatchSize(1024), nwt.WithWorkers(workers), kit.Silent)
		require.ErrorIs(t, kit.Refusal(t, l.Epoch(t.Context(), 0)), down)
		require.Equal(t, 1, alone)
		require.NoError(t, l.Close())
	}
}

func TestALoadManyThatFailsWithItsContextIsNotHalved(t *testing.T) {
	for _, workers := range []int{0, 2} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			var calls atomic.Int32
			ds := &kit.Pages{N: 4096, OnLoadMany: func(ctx context.Context, _ []int, _ []*nwt.Sample) error {
				calls.Add(1)
				cancel()
				<-ctx.Done()
				time.Sleep(time.Second) // the loader has seen it too
				return ctx.Err()
			}}
			var log kit.Journal
			l := kit.NewLoader(t, ds, nwt.WithBatchSize(1024), nwt.WithWorkers(workers), log.Option())
			require.ErrorIs(t, kit.Refusal(t, l.Epoch(ctx, 0)), context.Canceled)
			require.LessOrEqual(t, calls.Load(), int32(2), "workers %d", workers)
			require.Empty(t, log.String())
			require.NoError(t, l.Close())
		})
	}
}
