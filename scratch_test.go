package nwt_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

// decoders makes decoders and knows which are open.
type decoders struct {
	made, open atomic.Int64
	fail       atomic.Bool
}

// A decoder must not be used by two goroutines at once.
type decoder struct {
	mu     sync.Mutex
	of     *decoders
	closed atomic.Bool
}

func (d *decoders) create() (*decoder, error) {
	if d.fail.Load() {
		return nil, errors.New("no decoder")
	}
	d.made.Add(1)
	d.open.Add(1)
	return &decoder{of: d}, nil
}

func (d *decoder) use() error {
	if d.closed.Load() {
		return errors.New("used after it was closed")
	}
	if !d.mu.TryLock() {
		return errors.New("used by two at once")
	}
	runtime.Gosched()
	d.mu.Unlock()
	return nil
}

func (d *decoder) Close() error {
	if d.closed.Swap(true) {
		panic("closed twice")
	}
	d.of.open.Add(-1)
	return nil
}

// decoded is a dataset that loads with decoders, and after that with load.
func (d *decoders) decoded(n int, load func(context.Context, int) error) nwt.Dataset {
	return nwt.NewDataset(n, scalar, func(ctx context.Context, i int, dst *nwt.Sample) error {
		dec, err := nwt.Scratch(dst, d.create)
		if err != nil {
			return err
		}
		if err := dec.use(); err != nil || load == nil {
			return err
		}
		return load(ctx, i)
	})
}

func TestEveryWorkerHasItsOwnScratchUntilItEnds(t *testing.T) {
	for _, workers := range []int{0, 1, 5} {
		var d decoders
		ds := d.decoded(1000, nil)
		training, validation := newLoader(t, ds, nwt.WithWorkers(workers)), newLoader(t, ds, nwt.WithWorkers(workers))
		for e := range 3 {
			for range training.Epoch(t.Context(), e) {
				for _, err := range validation.Epoch(t.Context(), e) { // at the same time
					require.NoError(t, err)
					break
				}
			}
		}
		made := d.made.Load()
		require.LessOrEqual(t, made, int64(2*max(1, workers)), "one for each worker of each loader")
		require.Equal(t, made, d.open.Load())
		require.NoError(t, training.SetWorkers(0))
		require.NoError(t, training.Close())
		require.NoError(t, validation.Close())
		require.Zero(t, d.open.Load())
	}
}

func TestScratchOfAWorkerThatIsTooManyIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d decoders
		l := newLoader(t, d.decoded(1000, func(context.Context, int) error { time.Sleep(time.Millisecond); return nil }), nwt.WithWorkers(6), nwt.WithBatchSize(8))
		_, err := epoch(t.Context(), l, 0)
		require.NoError(t, err)
		require.EqualValues(t, 6, d.open.Load())
		require.NoError(t, l.SetWorkers(2))
		synctest.Wait()
		require.EqualValues(t, 2, d.open.Load())
		require.NoError(t, l.Close())
		require.Zero(t, d.open.Load())
	})
}

func TestAReplacedWorkerHasNewScratchAndTheCallThatHangsKeepsIts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d decoders
		release := make(chan struct{})
		ds := nwt.NewDataset(40, scalar, func(_ context.Context, i int, dst *nwt.Sample) error {
			dec, err := nwt.Scratch(dst, d.create)
			if err != nil {
				return err
			}
			if i == 13 {
				<-release
			}
			return dec.use()
		})
		l := newLoader(t, ds, nwt.WithBatchSize(8), nwt.WithWorkers(1), nwt.WithTimeout(time.Second), nwt.WithErrorBudget(1))
		_, err := epoch(t.Context(), l, 0)
		require.NoError(t, err)
		require.EqualValues(t, 2, d.made.Load())
		require.NoError(t, l.Close())
		require.EqualValues(t, 1, d.open.Load(), "the call that hangs still uses it")
		close(release)
		synctest.Wait()
		require.Zero(t, d.open.Load())
	})
}

// An opening is no sample's fault.
func TestWhatScratchNeedsForCreateIsNotTheSamplesTime(t *testing.T) {
	for name, takes := range map[string]time.Duration{"longer than the timeout": 300 * time.Millisecond, "nearly ten times as long": 1900 * time.Millisecond} {
		for _, slow := range []time.Duration{time.Millisecond, 150 * time.Millisecond} {
			synctest.Test(t, func(t *testing.T) {
				var d decoders
				ds := nwt.NewDataset(100, scalar, func(_ context.Context, _ int, dst *nwt.Sample) error {
					time.Sleep(slow)
					_, err := nwt.Scratch(dst, func() (*decoder, error) { time.Sleep(takes); return d.create() })
					return err
				})
				l := newLoader(t, ds, nwt.WithBatchSize(8), nwt.WithWorkers(2), nwt.WithTimeout(200*time.Millisecond))
				batches, err := epoch(t.Context(), l, 0)
				require.NoError(t, err, name)
				require.Len(t, batches, 13)
				require.EqualValues(t, 2, d.made.Load())
				require.NoError(t, l.Close())
				require.Zero(t, d.open.Load())
			})
		}
	}
}

func TestASampleThatHangsAfterCreateIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ds := nwt.NewDataset(16, scalar, func(ctx context.Context, i int, dst *nwt.Sample) error {
			_, err := nwt.Scratch(dst, func() (int, error) { time.Sleep(time.Second); return 0, nil })
			if i == 0 {
				<-ctx.Done()
			}
			return err
		})
		l := newLoader(t, ds, nwt.WithBatchSize(8), nwt.WithWorkers(1), nwt.WithTimeout(200*time.Millisecond), nwt.WithErrorBudget(1), quietLog)
		batches, err := epoch(t.Context(), l, 0)
		require.NoError(t, err)
		require.Len(t, slices.Concat(batches...), 15)
		require.NoError(t, l.Close())
	})
}

func TestWhatCreateMakesTooLateIsKeptForTheWorkerThatTookOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d decoders
		ds := nwt.NewDataset(100, scalar, func(_ context.Context, _ int, dst *nwt.Sample) error {
			dec, err := nwt.Scratch(dst, func() (*decoder, error) { time.Sleep(3 * time.Second); return d.create() })
			if err != nil {
				return err
			}
			return dec.use()
		})
		l := newLoader(t, ds, nwt.WithBatchSize(8), nwt.WithWorkers(1), nwt.WithTimeout(200*time.Millisecond), nwt.WithErrorBudget(2), quietLog)
		for e, want := range []int{98, 100} {
			batches, err := epoch(t.Context(), l, e)
			require.NoError(t, err)
			require.Len(t, slices.Concat(batches...), want)
		}
		time.Sleep(time.Minute)
		require.EqualValues(t, 2, d.made.Load(), "the second was begun before the first was there")
		require.NoError(t, l.Close())
		require.Zero(t, d.open.Load())
	})
}

func TestACreateThatHangsIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var d decoders
		ds := nwt.NewDataset(16, scalar, func(_ context.Context, i int, dst *nwt.Sample) error {
			_, err := nwt.Scratch(dst, func() (*decoder, error) {
				if i == 0 {
					<-release
				}
				return d.create()
			})
			return err
		})
		l := newLoader(t, ds, nwt.WithBatchSize(8), nwt.WithWorkers(1), nwt.WithTimeout(time.Second), nwt.WithErrorBudget(1), quietLog)
		batches, err := epoch(t.Context(), l, 0)
		require.NoError(t, err)
		require.Len(t, slices.Concat(batches...), 15)
		require.NoError(t, l.Close())
		close(release)
		synctest.Wait()
		require.Zero(t, d.open.Load(), "nobody is left to keep it for")
	})
}

func TestScratchIsMadeAnewAfterAPanicAndAfterAnError(t *testing.T) {
	for _, workers := range []int{0, 1} {
		var d decoders
		ds := d.decoded(100, func(_ context.Context, i int) error {
			if i == 50 {
				panic("half decoded")
			}
			return nil
		})
		l := newLoader(t, ds, nwt.WithWorkers(workers), nwt.WithErrorBudget(100), nwt.WithLogger(slog.New(slog.DiscardHandler)))
		d.fail.Store(true)
		batches, err := epoch(t.Context(), l, 0)
		require.NoError(t, err)
		require.Empty(t, batches)
		require.ErrorContains(t, l.BadSamples()[0], "no decoder")
		d.fail.Store(false)
		_, err = epoch(t.Context(), l, 1)
		require.NoError(t, err)
		require.EqualValues(t, 2, d.made.Load())
		require.EqualValues(t, 1, d.open.Load())
		require.NoError(t, l.Close())
		require.Zero(t, d.open.Load())
	}
}

func TestDatasetsThatAreComposedHaveScratchOfTheirOwn(t *testing.T) {
	var here, there, above decoders
	concat, err := nwt.Concat(here.decoded(50, nil), there.decoded(50, nil))
	require.NoError(t, err)
	ds := nwt.Map(concat, scalar, func(_ context.Context, _, dst *nwt.Sample) error {
		dec, err := nwt.Scratch(dst, above.create)
		if err != nil {
			return err
		}
		return dec.use()
	})
	for _, ds := range []nwt.Dataset{ds, nwt.Cached(ds, 1<<20)} {
		l := newLoader(t, ds, nwt.WithWorkers(0))
		_, err = epoch(t.Context(), l, 0)
		require.NoError(t, err)
		require.NoError(t, l.Close())
	}
	for _, d := range []*decoders{&here, &there, &above} {
		require.EqualValues(t, 2, d.made.Load(), "one with each loader that loads")
		require.Zero(t, d.open.Load())
	}
}

func TestLoadSampleLeavesNoScratchOpen(t *testing.T) {
	var d decoders
	_, err := nwt.LoadSample(t.Context(), d.decoded(1, nil), 0)
	require.NoError(t, err)
	require.EqualValues(t, 1, d.made.Load())
	require.Zero(t, d.open.Load())
}

// A broken can't be closed.
type broken struct{ panics bool }

func (b broken) Close() error {
	if b.panics {
		panic("stuck")
	}
	return errors.New("disk full")
}

func TestScratchThatCanNotBeClosedIsLogged(t *testing.T) {
	for _, b := range []broken{{false}, {true}} {
		var log bytes.Buffer
		ds := nwt.NewDataset(1, scalar, func(_ context.Context, _ int, dst *nwt.Sample) error {
			_, err := nwt.Scratch(dst, func() (broken, error) { return b, nil })
			return err
		})
		l := newLoader(t, ds, nwt.WithWorkers(1), nwt.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		_, err := epoch(t.Context(), l, 0)
		require.NoError(t, err)
		require.NoError(t, l.Close())
		require.Contains(t, log.String(), "could not be closed")
	}
}

func TestScratchAllocatesOnceOnly(t *testing.T) {
	ds := nwt.NewDataset(1<<20, scalar, func(_ context.Context, i int, dst *nwt.Sample) error {
		plan, err := nwt.Scratch(dst, func() ([]float32, error) { return make([]float32, 64), nil })
		plan[i%64]++
		return err
	})
	l := newLoader(t, ds, nwt.WithWorkers(0))
	next, stop := iter.Pull2(l.Epochs(t.Context(), 0, 9))
	defer stop()
	next()
	require.Zero(t, testing.AllocsPerRun(100, func() { next() }))
}

func TestAMapsFunctionKeepsWhatTheDatasetDoesntSee(t *testing.T) {
	owned := func(s *nwt.Sample, by string) error {
		owner, err := nwt.Scratch(s, func() (string, error) { return by, nil })
		if err == nil && owner != by {
			err = fmt.Errorf("%s got what %s keeps", by, owner)
		}
		return err
	}
	inner := loads(40, func(_ context.Context, _ int, dst *nwt.Sample) error { return owned(dst, "the dataset") })
	ds := nwt.Map(inner, scalar, func(_ context.Context, src, dst *nwt.Sample) error {
		return errors.Join(owned(src, "the function"), owned(dst, "the function"))
	})
	l := newLoader(t, ds, nwt.WithWorkers(1))
	for _, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
	}
}

func TestADatasetInAConcatKeepsOneForEachWorkerHoweverItsSamplesLie(t *testing.T) {
	var d decoders
	part := func() nwt.Dataset {
		return &pages{n: 64,
			load: func(_ context.Context, _ int, dst *nwt.Sample) error {
				_, err := nwt.Scratch(dst, d.create)
				return err
			},
			loadBatch: func(_ context.Context, _ []int, dst []*nwt.Sample) error {
				_, err := nwt.Scratch(dst[0], d.create)
				return err
			}}
	}
	ds, err := nwt.Concat(part(), part())
	require.NoError(t, err)
	l := newLoader(t, ds, nwt.WithWorkers(1), nwt.WithShuffle(1), nwt.WithBatchSize(7))
	for epoch := range 5 {
		for _, err := range l.Epoch(t.Context(), epoch) {
			require.NoError(t, err)
		}
	}
	require.EqualValues(t, 2, d.made.Load())
}

// Slow to close: what a worker that ends still has to do.
type unhurried struct{ closed *atomic.Int32 }

func (u unhurried) Close() error { time.Sleep(time.Hour); u.closed.Add(1); return nil }

// It is Close that waits for workers to end, not something that follows it.
func TestNoCloseReturnsBeforeTheWorkersHaveEnded(t *testing.T) {
	for _, workers := range []int{0, 1, 4} {
		for _, during := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				var made, closed atomic.Int32
				l := newLoader(t, loads(400, func(_ context.Context, _ int, dst *nwt.Sample) error {
					_, err := nwt.Scratch(dst, func() (unhurried, error) { made.Add(1); return unhurried{&closed}, nil })
					time.Sleep(time.Millisecond)
					return err
				}), nwt.WithBatchSize(4), nwt.WithWorkers(workers))
				closeIt := func() {
					require.NoError(t, l.Close())
					require.Equal(t, made.Load(), closed.Load())
				}
				for b, err := range l.Epoch(t.Context(), 0) {
					if during && err == nil && b.Index() == 10 {
						closeIt()
					}
				}
				closeIt()
				require.EqualValues(t, max(1, workers), made.Load())
			})
		}
	}
}
