package nwt_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

// A beginning is what WithWorkerInit does: the first workers are ready at once, the others
// take a while, unless their context ends before.
type beginning struct {
	first int
	takes time.Duration
	fails error

	calls, under, ready atomic.Int32
}

func (b *beginning) option() nwt.Option {
	return nwt.WithWorkerInit(func(ctx context.Context, worker int) error {
		b.calls.Add(1)
		b.under.Add(1)
		defer b.under.Add(-1)
		if worker >= b.first {
			if err := heed(ctx, b.takes); err != nil {
				return err
			}
			if b.fails != nil {
				return b.fails
			}
		}
		b.ready.Add(1)
		return nil
	})
}

func TestWorkersThatBeginHoldUpNoBatch(t *testing.T) {
	const load, batch, takes = 10 * time.Millisecond, 8, 5 * time.Second
	ds := sleeping(1_000_000, load)
	for name, c := range map[string]struct {
		ds  nwt.Dataset
		opt nwt.Option
	}{
		"in order":      {ds, silent},
		"without order": {ds, nwt.WithUnordered()},
		"whole batches": {slowTogether{ds, load}, nwt.WithPrefetch(32)}, // without checks of the depth, one of which may fall into the second
		"a timeout":     {ds, nwt.WithTimeout(time.Second)},
		"a device":      {ds, nwt.WithDevice(nowhere{})},
		"a stream":      {nwt.Streamed(heeding{time.Microsecond, load}), silent},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := &beginning{first: 2, takes: takes}
				l := newLoader(t, c.ds, nwt.WithBatchSize(batch), nwt.WithWorkers(2), b.option(), c.opt)
				var n, atOnce int
				var longest time.Duration
				last, more := time.Now(), time.Time{}
				for _, err := range l.Epochs(t.Context(), 0, 1000) {
					require.NoError(t, err)
					now := time.Now()
					if n++; n == 20 {
						require.NoError(t, l.SetWorkers(16))
						more = now
					}
					if n >= 20 {
						longest = max(longest, now.Sub(last))
						if now.Sub(more) >= takes+time.Second {
							atOnce++
						}
						if now.Sub(more) >= takes+2*time.Second {
							break
						}
					}
					last = now
				}
				require.LessOrEqual(t, longest, 2*batch*load)
				require.InDelta(t, int(16*time.Second/(batch*load)), atOnce, 20, "the new ones load too: two load 25")
				require.EqualValues(t, 16, b.calls.Load())
				require.EqualValues(t, 16, b.ready.Load())
			})
		})
	}
}

// An epoch that ended before them would have them begin again and again.
func TestAnEpochWaitsInTheEndForWorkersThatBegin(t *testing.T) {
	for _, opt := range []nwt.Option{silent, nwt.WithUnordered(), nwt.WithDevice(nowhere{})} {
		synctest.Test(t, func(t *testing.T) {
			b := &beginning{first: 1, takes: 3 * time.Second}
			l := newLoader(t, sleeping(80, 10*time.Millisecond), nwt.WithBatchSize(8), nwt.WithWorkers(6), b.option(), opt)
			for n := range 4 {
				batches, err := epoch(t.Context(), l, n)
				require.NoError(t, err)
				require.Len(t, batches, 10)
				require.Zero(t, b.under.Load())
			}
			require.EqualValues(t, 6, b.calls.Load())
			require.EqualValues(t, 6, b.ready.Load())
		})
	}
}

func TestWorkersThatBeginEndWithTheirEpoch(t *testing.T) {
	for name, end := range map[string]func(l *nwt.Loader, cancel func()){
		"break":        func(*nwt.Loader, func()) {},
		"cancellation": func(_ *nwt.Loader, cancel func()) { cancel() },
		"Close":        func(l *nwt.Loader, _ func()) { _ = l.Close() },
	} {
		for _, when := range []int{3, 10} { // in the middle, and at the last batch
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b := &beginning{first: 1, takes: time.Hour}
					l := newLoader(t, sleeping(80, 10*time.Millisecond), nwt.WithBatchSize(8), nwt.WithWorkers(3), b.option())
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					began, n := time.Now(), 0
					for _, err := range l.Epoch(ctx, 0) {
						if err != nil {
							break
						}
						if n++; n == when {
							if end(l, cancel); name == "break" {
								break
							}
						}
					}
					require.Equal(t, when, n)
					require.Zero(t, b.under.Load())
					require.Less(t, time.Since(began), time.Minute)
					noSlotLost(t, l, 0)
					if name == "Close" {
						return
					}
					b.takes = 0
					_, err := epoch(t.Context(), l, 1)
					require.NoError(t, err)
					require.EqualValues(t, 3, b.ready.Load())
				})
			})
		}
	}
}

func TestAWorkerThatIsAskedToLeaveWhileItBeginsLeaves(t *testing.T) {
	for fewer, calls := range []int{9, 7} { // the caller prepares too
		synctest.Test(t, func(t *testing.T) {
			b := &beginning{first: 1, takes: time.Second}
			l := newLoader(t, sleeping(1_000_000, 10*time.Millisecond), nwt.WithBatchSize(8), nwt.WithWorkers(1), b.option())
			n := 0
			for _, err := range l.Epoch(t.Context(), 0) {
				require.NoError(t, err)
				switch n++; n {
				case 10:
					require.NoError(t, l.SetWorkers(4))
				case 12:
					require.EqualValues(t, 3, b.under.Load())
					require.NoError(t, l.SetWorkers(fewer))
				case 100:
					require.Zero(t, b.under.Load())
					require.NoError(t, l.SetWorkers(4))
				case 102: // others have come in their place
					require.EqualValues(t, calls, b.calls.Load())
				}
				if n == 102 {
					break
				}
			}
		})
	}
}

func TestAWorkerThatCannotBeginEndsTheEpochThatIsOn(t *testing.T) {
	for _, batches := range []int{10, 10_000} { // the last batch is delivered before, or not
		synctest.Test(t, func(t *testing.T) {
			b := &beginning{first: 1, takes: 3 * time.Second, fails: errBoom}
			l := newLoader(t, sleeping(8*batches, 10*time.Millisecond), nwt.WithBatchSize(8), nwt.WithWorkers(3), b.option())
			got, err := epoch(t.Context(), l, 7)
			require.Less(t, len(got), 40)
			var failed *nwt.LoadError
			require.ErrorAs(t, err, &failed)
			require.ErrorIs(t, err, errBoom)
			require.Equal(t, -1, failed.Index)
			require.Equal(t, 7, failed.Epoch)
			require.Positive(t, failed.Worker)
			noSlotLost(t, l, 0)
			b.fails = nil
			for range l.Epoch(t.Context(), 8) {
				if b.under.Load() == 0 {
					break
				}
			}
			require.EqualValues(t, 3, b.ready.Load())
		})
	}
}

// Batches of the next epoch are loaded by then, but the last that was delivered is of this one.
func TestAWorkerThatCannotBeginSaysInWhichEpoch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &beginning{first: 1, takes: time.Second, fails: errBoom}
		l := newLoader(t, sleeping(16, 10*time.Millisecond), nwt.WithBatchSize(8), nwt.WithWorkers(1), b.option())
		last := 0
		for batch, err := range l.Epochs(t.Context(), 0, 1000) {
			if err != nil {
				var failed *nwt.LoadError
				require.ErrorAs(t, err, &failed)
				require.Equal(t, last, failed.Epoch)
				break
			}
			if last = batch.Epoch(); last == 20 {
				require.NoError(t, l.SetWorkers(2))
			}
		}
		require.Greater(t, last, 20)
	})
}

func TestNobodyBeginsOnceAnEpochWaitsForItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &beginning{first: 1, takes: 3 * time.Second}
		l := newLoader(t, sleeping(80, 10*time.Millisecond), nwt.WithBatchSize(8), nwt.WithWorkers(2), b.option())
		began := time.Now()
		time.AfterFunc(2900*time.Millisecond, func() { require.NoError(t, l.SetWorkers(6)) })
		_, err := epoch(t.Context(), l, 0)
		require.NoError(t, err)
		require.Equal(t, b.takes, time.Since(began))
		require.EqualValues(t, 2, b.calls.Load())
		_, err = epoch(t.Context(), l, 1)
		require.NoError(t, err)
		require.EqualValues(t, 6, b.ready.Load())
	})
}

func TestAWorkerThatCannotBeginDoesNotTryAgainInThatEpoch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		l := newLoader(t, sleeping(800, 10*time.Millisecond), nwt.WithBatchSize(8), nwt.WithWorkers(1), nwt.WithWorkerInit(func(_ context.Context, worker int) error {
			if calls++; calls == 1 || calls > 100 {
				return nil
			}
			return errBoom
		}))
		var last error
		for _, err := range l.Epoch(t.Context(), 0) {
			if last = err; err == nil {
				require.NoError(t, l.SetWorkers(2))
				time.Sleep(time.Minute)
				require.NoError(t, l.SetWorkers(2))
				time.Sleep(time.Minute)
			}
		}
		require.ErrorIs(t, last, errBoom)
		require.Equal(t, 2, calls)
	})
}
