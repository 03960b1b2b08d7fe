package nwt_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

// notebook is a device that notes what is asked of it, and fails when it is told.
type notebook struct {
	nowhere
	mu    sync.Mutex
	notes []string
	fail  func(call string, n int) error // n counts from 1, by call
	calls map[string]int
}

func (d *notebook) note(call string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.calls == nil {
		d.calls = map[string]int{}
	}
	d.calls[call]++
	d.notes = append(d.notes, call)
	if d.fail == nil {
		return nil
	}
	return d.fail(call, d.calls[call])
}

func (d *notebook) Alloc(int) (uintptr, error)         { return 1, d.note("alloc") }
func (d *notebook) Open() (nwt.Session, error)         { return d, d.note("open") }
func (d *notebook) Copy([]nwt.Copy, uintptr) error     { return d.note("copy") }
func (d *notebook) Wait(uintptr) error                 { return d.note("wait") }
func (d *notebook) WaitEvent(uintptr) error            { return d.note("wait event") }
func (d *notebook) WaitStream(uintptr) error           { return d.note("wait stream") }
func (d *notebook) Close() error                       { return d.note("close") }
func (d *notebook) Free(uintptr) error                 { return d.note("free") }
func (d *notebook) since(call string) (notes []string) { return d.notes[d.last(call):] }
func (d *notebook) last(call string) (at int) {
	for i, note := range d.notes {
		if note == call {
			at = i
		}
	}
	return at
}

var errBurnt = errors.New("burnt")

// failing fails the n-th call and then closes done.
func failing(call string, n int, done chan<- struct{}) func(string, int) error {
	return func(c string, k int) error {
		if c != call || k != n {
			return nil
		}
		close(done)
		return errBurnt
	}
}

func TestATransferErrorComesAfterTheBatchesBeforeIt(t *testing.T) {
	for _, call := range []string{"copy", "wait"} {
		for _, workers := range []int{0, 2} {
			failed := make(chan struct{})
			dev := &notebook{fail: failing(call, 3, failed)}
			l := newLoader(t, augmented(100), nwt.WithBatchSize(10), nwt.WithWorkers(workers), nwt.WithPrefetch(8), nwt.WithDevice(dev))
			var got []int
			var last error
			for b, err := range l.Epoch(t.Context(), 0) {
				if last = err; err != nil {
					break
				}
				got = append(got, b.Index())
				if workers > 0 {
					<-failed // which happens while the first batch is in use
				}
			}
			require.Equal(t, []int{0, 1}, got, call)
			require.ErrorIs(t, last, errBurnt)
			require.ErrorContains(t, last, "batch 2 of epoch 0")
			require.Len(t, collect(t, l, 1), 10, "the next epoch is whole")
		}
	}
}

// An asynchronous batch is delivered before its copy has ended. One that isn't
// taken by then must not pass for a good one.
func TestAnAsynchronousBatchWhoseCopyHasFailedIsNotDelivered(t *testing.T) {
	for _, call := range []string{"copy", "wait"} {
		failed := make(chan struct{})
		closed := make(chan struct{})
		fail := failing(call, 3, failed)
		dev := &notebook{fail: func(c string, n int) error {
			if c == "close" && n == 1 {
				close(closed)
			}
			return fail(c, n)
		}}
		l := newLoader(t, augmented(100), nwt.WithBatchSize(10), nwt.WithWorkers(2), nwt.WithPrefetch(8), nwt.WithDevice(dev), nwt.WithAsyncTransfer())
		var got []int
		var last error
		for b, err := range l.Epoch(t.Context(), 0) {
			if last = err; err == nil {
				got = append(got, b.Index())
				<-closed // the session, with everything that it had queued, while the first batch is in use
			}
		}
		require.Equal(t, []int{0, 1}, got, call)
		require.ErrorIs(t, last, errBurnt)
		require.ErrorContains(t, last, "batch 2 of epoch 0")
		require.Len(t, collect(t, l, 1), 10, "the next epoch is whole")
	}
}

// The error comes in place of a batch, which has to be loaded for that.
func TestAnAsynchronousCopyThatFailsWhileTheNextBatchLoadsIsToldAfterwards(t *testing.T) {
	for _, workers := range []int{0, 2} {
		delivered, closed := make(chan struct{}), make(chan struct{})
		dev := &notebook{fail: func(call string, n int) error {
			switch {
			case call == "wait" && n == 1:
				<-delivered
				return errBurnt
			case call == "close" && n == 1:
				close(closed)
			}
			return nil
		}}
		ds := numbered(12, func(_ context.Context, i int, _ *nwt.Sample) error {
			if i >= 4 {
				<-closed
			}
			return nil
		})
		l := newLoader(t, ds, nwt.WithBatchSize(4), nwt.WithWorkers(workers), nwt.WithPrefetch(1), nwt.WithDevice(dev), nwt.WithAsyncTransfer())
		var got []int
		var last error
		promptly(t, func() {
			for b, err := range l.Epoch(t.Context(), 0) {
				if last = err; err == nil {
					got = append(got, b.Index())
					close(delivered)
				}
			}
		})
		require.Equal(t, []int{0}, got)
		require.ErrorIs(t, last, errBurnt)
		require.ErrorContains(t, last, "batch 0 of epoch 0")
		whole, err := values(t, l, 1)
		require.NoError(t, err)
		require.Equal(t, upTo(12), whole, "the next epoch")
	}
}

func TestABufferThatRetainedBatchesLeftIsFreedAfterAllIfTheWaitForTheProgramFails(t *testing.T) {
	for _, call := range []string{"wait stream", "copy", "wait"} {
		var armed atomic.Bool
		dev := &notebook{}
		dev.fail = func(c string, _ int) error {
			if c == call && armed.Swap(false) {
				return errBurnt
			}
			return nil
		}
		l := newLoader(t, augmented(200), nwt.WithBatchSize(10), nwt.WithWorkers(0), nwt.WithDevice(dev))
		var kept []*nwt.Batch
		var last error
		for b, err := range l.Epoch(t.Context(), 0) {
			if last = err; err != nil {
				break
			}
			if b.Index() < 8 {
				b.Retain()
				b.ReleaseAfterStream(77)
				kept = append(kept, b)
			}
			if b.Index() == 8 {
				armed.Store(true)
				for _, b := range kept {
					b.Release()
				}
			}
		}
		require.ErrorIs(t, last, errBurnt, call)
		require.Len(t, collect(t, l, 1), 20, "the next epoch is whole")
		require.NoError(t, l.Close())
		require.Equal(t, dev.calls["alloc"], dev.calls["free"], call)
	}
}

// A stage that spins keeps the bubble's clock from going on.
func TestADeviceIsWaitedForAndItsCopiesAreTimedWithoutSpinning(t *testing.T) {
	for name, c := range map[string]struct {
		load time.Duration
		opts []nwt.Option
	}{
		"slow samples":               {load: time.Second},
		"slow copies":                {},
		"slow samples, asynchronous": {time.Second, []nwt.Option{nwt.WithAsyncTransfer()}},
		"slow copies, asynchronous":  {0, []nwt.Option{nwt.WithAsyncTransfer()}},
	} {
		for _, workers := range []int{0, 2} {
			synctest.Test(t, func(t *testing.T) {
				dev := newCopier(0)
				ds := numbered(28, func(context.Context, int, *nwt.Sample) error { time.Sleep(c.load); return nil })
				l := newLoader(t, ds, append(c.opts, nwt.WithBatchSize(4), nwt.WithWorkers(workers), nwt.WithDevice(dev))...)
				for b, err := range l.Epochs(t.Context(), 0, 2) {
					require.NoError(t, err)
					if len(c.opts) > 0 {
						dev.wait(b.Event())
					}
					require.Equal(t, b.Bytes(0), dev.read(b.DevicePtr(0), len(b.Bytes(0))))
				}
				s := l.Stats()
				require.Equal(t, 14, s.Copied)
				require.Equal(t, 2*28*8, s.CopiedBytes)
				require.Equal(t, 14*2*7*time.Millisecond, s.Transfer, name)
				require.NoError(t, l.Close())
			})
		}
	}
}

func TestWhatToWaitForIsRememberedUntilItWasWaitedFor(t *testing.T) {
	failed := make(chan struct{})
	dev := &notebook{fail: failing("wait event", 1, failed)}
	l := newLoader(t, augmented(100), nwt.WithBatchSize(10), nwt.WithWorkers(2), nwt.WithDevice(dev))
	var last error
	for b, err := range l.Epoch(t.Context(), 0) {
		if last = err; err == nil && b.Index() == 0 {
			b.ReleaseAfterEvent(77)
		}
	}
	require.ErrorIs(t, last, errBurnt)
	require.Len(t, collect(t, l, 1), 10)
	require.Equal(t, 2, dev.calls["wait event"], "the next session waits")
	require.NoError(t, l.Close())
}

func TestClosingWaitsForTheProgramBeforeItFreesEvenAfterAnError(t *testing.T) {
	failed := make(chan struct{})
	dev := &notebook{fail: failing("wait stream", 1, failed)}
	l := newLoader(t, augmented(100), nwt.WithBatchSize(10), nwt.WithWorkers(2), nwt.WithDevice(dev))
	for b, err := range l.Epoch(t.Context(), 0) {
		if err == nil && b.Index() == 0 {
			b.ReleaseAfterStream(77)
		}
	}
	require.NoError(t, l.Close())
	want := append([]string{"open", "wait stream", "close"}, slices.Repeat([]string{"free"}, dev.calls["alloc"])...)
	require.Equal(t, want, dev.since("open"))
}

func TestMemoryThatCannotBeWaitedForIsNotFreed(t *testing.T) {
	for name, c := range map[string]struct {
		batch int // whose memory it is; that of the last one, 9, comes back for no other batch
		fails func(call string, n int) bool
	}{
		"no other session opens":  {0, func(call string, n int) bool { return call == "wait stream" || call == "open" && n > 1 }},
		"no session waits for it": {9, func(call string, _ int) bool { return call == "wait stream" }},
		"no session ends":         {9, func(call string, _ int) bool { return call == "close" }},
	} {
		t.Run(name, func(t *testing.T) {
			dev := &notebook{fail: func(call string, n int) error {
				if c.fails(call, n) {
					return errBurnt
				}
				return nil
			}}
			var log journal
			l := newLoader(t, augmented(100), nwt.WithBatchSize(10), nwt.WithWorkers(2), nwt.WithDevice(dev), log.option())
			for b, err := range l.Epoch(t.Context(), 0) {
				if err == nil && b.Index() == c.batch {
					b.ReleaseAfterStream(77)
				}
			}
			require.NoError(t, l.Close())
			require.Equal(t, dev.calls["alloc"]-1, dev.calls["free"])
			require.Contains(t, log.String(), "device memory isn't freed, since the training program may still use it")
		})
	}
}

func TestWhatOneSessionFailedToWaitForAnotherOneWaitsForBeforeItIsFreed(t *testing.T) {
	for _, call := range []string{"wait stream", "close"} {
		dev := &notebook{fail: failing(call, 1, make(chan struct{}))}
		var log journal
		l := newLoader(t, augmented(100), nwt.WithBatchSize(10), nwt.WithWorkers(2), nwt.WithDevice(dev), log.option())
		for b, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
			if b.Index() == 9 {
				b.ReleaseAfterStream(77)
			}
		}
		require.NoError(t, l.Close())
		want := append([]string{"open", "wait stream", "close"}, slices.Repeat([]string{"free"}, dev.calls["alloc"])...)
		require.Equal(t, want, dev.since("open"))
		require.Contains(t, log.String(), "a device could not be closed cleanly")
	}
}

func TestACancelledEpochOnADeviceHasNoBadSamples(t *testing.T) {
	for range 50 {
		ctx, cancel := context.WithCancel(t.Context())
		ds := numbered(64, func(ctx context.Context, i int, _ *nwt.Sample) error {
			if i < 32 {
				return nil
			}
			if i == 32 {
				cancel()
			}
			<-ctx.Done()
			return ctx.Err()
		})
		l := newLoader(t, ds, nwt.WithBatchSize(4), nwt.WithWorkers(4), nwt.WithPrefetch(16), nwt.WithDevice(nowhere{}), nwt.WithErrorBudget(64), quietLog)
		var last error
		for _, err := range l.Epoch(ctx, 0) {
			last = err
		}
		require.ErrorIs(t, last, context.Canceled)
		require.Empty(t, l.BadSamples())
		require.NoError(t, l.Close())
	}
}

// The stage sleeps while every buffer has a batch, and must learn that one which
// is retained no longer counts: nothing else would wake it.
func TestASlowLoopThatRetainsItsBatchesIsServedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoader(t, augmented(60), nwt.WithBatchSize(4), nwt.WithWorkers(2), nwt.WithDevice(newCopier(0)))
		var kept []*nwt.Batch
		for b, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
			time.Sleep(time.Second) // until everything is full
			b.Retain()
			kept = append(kept, b)
		}
		require.Len(t, kept, 15)
		for _, b := range kept {
			b.Release()
		}
	})
}
