package loading_test

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/loadertest/kit"
)

// tallied returns a dataset of n samples that take a moment each and of which
// running are being loaded.
func tallied(n int, running *atomic.Int32) nwt.Dataset {
	return kit.Loads(n, func(ctx context.Context, i int, _ *nwt.Sample) error {
		running.Add(1)
		defer running.Add(-1)
		if i%3 == 0 {
			time.Sleep(time.Duration(i%4) * time.Microsecond)
		}
		return ctx.Err()
	})
}

// The ways in which a loop is left in the middle.
var exits = map[string]func(cancel context.CancelCauseFunc){
	"break":  nil,
	"panic":  func(context.CancelCauseFunc) { panic(kit.ErrBoom) },
	"Goexit": func(context.CancelCauseFunc) { runtime.Goexit() },
	"cancel": func(cancel context.CancelCauseFunc) { cancel(kit.ErrBoom) },
}

func TestALoopLeftAnywhereLeavesNothingBehind(t *testing.T) {
	const n, batch = 40, 3
	for _, workers := range []int{0, 1, 3} {
		for name, exit := range exits {
			var running atomic.Int32
			l := kit.NewLoader(t, tallied(n, &running), nwt.WithBatchSize(batch), nwt.WithWorkers(workers), nwt.WithShuffle(1))
			for cut := range 2 * l.Len() {
				cut %= l.Len()
				ctx, cancel := context.WithCancelCause(context.Background())
				var after error
				done := make(chan struct{})
				go func() {
					defer close(done)
					defer func() { _ = recover() }()
					for b, err := range l.Epoch(ctx, cut) {
						if after = err; err != nil {
							continue
						}
						kit.Intact(t, b)
						if b.Number() < cut {
							continue
						}
						if exit == nil {
							break
						}
						exit(cancel)
					}
				}()
				<-done
				require.Zero(t, running.Load(), "%s at batch %d", name, cut)
				require.Zero(t, l.Stats().Retained)
				if name == "cancel" && cut < l.Len()-1 {
					require.ErrorIs(t, after, context.Canceled)
					require.ErrorIs(t, after, kit.ErrBoom, "the cause")
				} else {
					require.NoError(t, after)
				}
				cancel(nil)
			}
			all, err := kit.Epoch(t.Context(), l, 0)
			require.NoError(t, err)
			require.Len(t, all, l.Len())
			require.NoError(t, l.Close())
			require.Zero(t, l.Stats().Slots)
			require.NoError(t, kit.Leftover())
		}
	}
}

func TestClosingAtAnyMomentFromAnywhereLeavesNothingBehind(t *testing.T) {
	tries := 300
	if testing.Short() {
		tries = 60
	}
	for _, workers := range []int{0, 1, 4} {
		for try := range tries {
			var running atomic.Int32
			l, err := nwt.NewLoader(tallied(60, &running), nwt.WithBatchSize(3), nwt.WithWorkers(workers))
			require.NoError(t, err)
			var wg sync.WaitGroup
			for range 1 + try%2 {
				wg.Go(func() {
					time.Sleep(time.Duration(try) * 2 * time.Microsecond)
					require.NoError(t, l.Close())
					require.Zero(t, running.Load())
				})
			}
			var last error
			n := 0
			for b, err := range l.Epoch(t.Context(), 0) {
				if last = err; err == nil {
					n++
					kit.Intact(t, b)
				}
			}
			wg.Wait()
			if last == nil {
				require.Equal(t, 20, n)
			} else {
				require.ErrorIs(t, last, nwt.ErrClosed)
			}
			require.Zero(t, l.Stats().Slots)
			_, err = kit.Epoch(t.Context(), l, 0)
			require.ErrorIs(t, err, nwt.ErrClosed)
			require.ErrorIs(t, l.SetWorkers(1), nwt.ErrClosed)
			require.NoError(t, l.Close())
		}
		require.NoError(t, kit.Leftover())
	}
}

func TestACancelledContextEndsTheEpochWithItsErrorAndCause(t *testing.T) {
	for _, workers := range []int{0, 2} {
		l := kit.NewLoader(t, kit.EmptyDataset(100), nwt.WithWorkers(workers))
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(kit.ErrBoom)
		batches, err := kit.Epoch(ctx, l, 0)
		require.Empty(t, batches)
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, kit.ErrBoom)

		past, stop := context.WithTimeout(t.Context(), -1)
		_, err = kit.Epoch(past, l, 0)
		require.Equal(t, context.DeadlineExceeded, err)
		stop()
		batches, err = kit.Epoch(t.Context(), l, 0)
		require.NoError(t, err)
		require.Len(t, batches, l.Len())
	}
}

// What Load makes of a context that ends must not pass for a bad sample.
func TestACancelledLoadIsNotABadSample(t *testing.T) {
	for name, end := range map[string]func(l *nwt.Loader, cancel func()) error{
		"cancel": func(_ *nwt.Loader, cancel func()) error { cancel(); return context.Canceled },
		"Close":  func(l *nwt.Loader, _ func()) error { go l.Close(); return nwt.ErrClosed },
	} {
		for _, workers := range []int{0, 1, 3} {
			for range 100 {
				synctest.Test(t, func(t *testing.T) {
					ctx, cancel := context.WithCancel(t.Context())
					ds := kit.Loads(40, func(ctx context.Context, i int, _ *nwt.Sample) error {
						if i < 20 {
							return nil
						}
						<-ctx.Done()
						return ctx.Err()
					})
					l := kit.NewLoader(t, ds, nwt.WithBatchSize(10), nwt.WithWorkers(workers), nwt.WithErrorBudget(40),
						nwt.WithLogger(slog.New(slog.DiscardHandler)))
					var want error
					var wg sync.WaitGroup
					wg.Go(func() {
						time.Sleep(time.Second)
						want = end(l, cancel)
					})
					batches, err := kit.Epoch(ctx, l, 0)
					wg.Wait()
					require.ErrorIs(t, err, want, name)
					require.NotErrorAs(t, err, new(*nwt.LoadError))
					require.Len(t, batches, 2)
					require.Empty(t, l.BadSamples())
				})
			}
		}
	}
}

func TestCancellingAtAnyMomentNeverDeliversAPartOfABatch(t *testing.T) {
	tries := 600
	if testing.Short() {
		tries = 200
	}
	var running atomic.Int32
	for _, workers := range []int{0, 1, 4} {
		l := kit.NewLoader(t, tallied(60, &running), nwt.WithBatchSize(3), nwt.WithWorkers(workers))
		for try := range tries {
			ctx, cancel := context.WithCancel(t.Context())
			timer := time.AfterFunc(time.Duration(try%300)*time.Microsecond, cancel)
			for b, err := range l.Epoch(ctx, try) {
				if err != nil {
					require.Equal(t, context.Canceled, err)
					continue
				}
				require.Equal(t, 3, b.Len())
				kit.Intact(t, b)
			}
			require.Zero(t, running.Load())
			timer.Stop()
			cancel()
		}
		require.Zero(t, l.Stats().Retained)
	}
}

func TestTwoEpochsAtOnceAreRefused(t *testing.T) {
	for _, workers := range []int{0, 2} {
		l := kit.NewLoader(t, kit.EmptyDataset(100), nwt.WithWorkers(workers))
		for _, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
			for _, nested := range l.Epoch(t.Context(), 1) {
				require.Equal(t, nwt.ErrBusy, nested)
			}
			var wg sync.WaitGroup
			wg.Go(func() {
				_, err := kit.Epoch(t.Context(), l, 1)
				require.Equal(t, nwt.ErrBusy, err)
			})
			wg.Wait()
		}
		_, err := kit.Epoch(t.Context(), l, 1)
		require.NoError(t, err)
	}
}

func TestOfManyWhoStartAnEpochOneAtATimeHasIt(t *testing.T) {
	l := kit.NewLoader(t, kit.EmptyDataset(200), nwt.WithBatchSize(10), nwt.WithWorkers(2))
	var wg sync.WaitGroup
	var holders, finished atomic.Int32
	for range 8 {
		wg.Go(func() {
			for n := range 50 {
				batches := 0
				for _, err := range l.Epoch(t.Context(), n) {
					if errors.Is(err, nwt.ErrBusy) {
						continue
					}
					require.NoError(t, err)
					require.EqualValues(t, 1, holders.Add(1))
					batches++
					runtime.Gosched()
					holders.Add(-1)
				}
				if batches > 0 {
					require.Equal(t, l.Len(), batches)
					finished.Add(1)
				}
			}
		})
	}
	wg.Wait()
	require.Positive(t, finished.Load())
	require.Zero(t, l.Stats().Retained)
}
