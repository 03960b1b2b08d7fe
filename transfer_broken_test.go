package nwt_test

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/cuda"
	"github.com/nwt-go/nwt/internal/cuda/cudatest"
)

// After an illegal address, say, a GPU's context is of no use any more: every call
// reports the error, the frees too.
func TestAContextThatBreaksEndsEveryEpochWithItsErrorAndNothingHangs(t *testing.T) {
	host := newLoader(t, augmented(100), nwt.WithBatchSize(7), nwt.WithShuffle(3), nwt.WithWorkers(0))
	want := collect(t, host, 0)
	for _, code := range []cuda.Result{700, cudatest.Lost} {
		for _, copies := range []int{0, 1, 2, 7} {
			for _, workers := range []int{0, 2} {
				for _, async := range []bool{false, true} {
					t.Run(fmt.Sprint(code, ", copies before: ", copies, ", workers: ", workers, ", async: ", async), func(t *testing.T) {
						gpu := cudatest.Load(t)
						gpu.GPUs(2)
						other, err := nwt.CUDA(1)
						require.NoError(t, err)
						unharmed := newLoader(t, augmented(100), nwt.WithBatchSize(7), nwt.WithShuffle(3), nwt.WithDevice(other))
						var log journal
						l, err := nwt.NewLoader(augmented(100), append(deviceOptions(t, workers, async), log.option())...)
						require.NoError(t, err)
						gpu.Break(gpu.Primary(0), code, copies)
						promptly(t, func() {
							for epoch := range 3 {
								var got [][]byte
								var errs []error
								for b, err := range l.Epoch(t.Context(), epoch) {
									if err != nil {
										errs = append(errs, err)
									} else {
										got = append(got, samples(b))
									}
								}
								require.Len(t, errs, 1, "epoch %d", epoch)
								require.ErrorIs(t, errs[0], code)
								if epoch > 0 {
									require.Empty(t, got)
								} else if !async { // else they are delivered before their copies end
									// Fewer if the context breaks before the stage has asked how they ended.
									require.LessOrEqual(t, len(got), copies)
									require.Equal(t, want[:len(got)], append([][]byte{}, got...))
								}
							}
							require.NoError(t, l.Close())
						})
						require.NotContains(t, log.String(), "may still be under way", "nothing runs in a broken context")
						require.Equal(t, want, collect(t, unharmed, 0), "on the other GPU")
						require.NoError(t, unharmed.Close())
					})
				}
			}
		}
	}
}

// If calls that wait, or those that make the context current, go on reporting an error,
// nobody knows whether the copies are done.
func TestMemoryThatACopyToAGPUMayStillTouchIsNeitherUsedNorFreed(t *testing.T) {
	host := newLoader(t, augmented(100), nwt.WithBatchSize(7), nwt.WithShuffle(3), nwt.WithWorkers(0))
	want := collect(t, host, 1)
	for _, calls := range []string{"cuEventSynchronize cuStreamSynchronize", "cuCtxPushCurrent_v2"} {
		for _, workers := range []int{0, 2} {
			for _, async := range []bool{false, true} {
				t.Run(fmt.Sprint(calls, ", workers: ", workers, ", async: ", async), func(t *testing.T) {
					gpu := cudatest.Load(t)
					defer gpu.Reset()               // of what can't be given back
					gpu.Delay(5 * time.Millisecond) // a copy is under way when the calls begin to fail
					var log journal
					l, err := nwt.NewLoader(augmented(100), append(deviceOptions(t, workers, async), log.option())...)
					require.NoError(t, err)
					promptly(t, func() {
						var last error
						for b, err := range l.Epoch(t.Context(), 0) {
							if last = err; err == nil && b.Index() == 2 {
								gpu.Fail(calls, -1, 906)
							}
						}
						require.ErrorIs(t, last, cuda.Result(906))
						gpu.Fail("", 0, 0)
						var got [][]byte
						for b, err := range l.Epoch(t.Context(), 1) {
							require.NoError(t, err)
							got = append(got, samples(b))
						}
						require.Equal(t, want, got)
						require.NoError(t, l.Close())
					})
					require.Contains(t, log.String(), "neither used again nor freed")
					require.NotZero(t, gpu.Left()[cudatest.DeviceMemory])
					require.NotZero(t, gpu.Left()[cudatest.HostMemory])
				})
			}
		}
	}
}

// A goroutine's thread may have been left in another library's context.
func TestAnotherProgramsContextOnTheThreadIsNeitherUsedNorLost(t *testing.T) {
	host := newLoader(t, augmented(100), nwt.WithBatchSize(7), nwt.WithShuffle(3), nwt.WithWorkers(0))
	want := collect(t, host, 0)
	for _, workers := range []int{0, 2} {
		gpu := cudatest.Load(t)
		gpu.Outer(gpu.Context(0))
		l := newLoader(t, augmented(100), deviceOptions(t, workers, false)...)
		i := 0
		for b, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
			require.Equal(t, want[i], arrived(t, gpu, b))
			i++
			b.ReleaseAfterStream(0)
		}
		require.Equal(t, len(want), i)
		require.NoError(t, l.Close())
		require.Empty(t, gpu.Left())
		require.Zero(t, gpu.Misuses())
	}
}

// A clumsy device panics in the n-th call of a method.
type clumsy struct {
	nowhere
	method string
	n      atomic.Int64
}

func (d *clumsy) call(method string) {
	if method == d.method && d.n.Add(-1) == 0 {
		panic("burnt")
	}
}

func (d *clumsy) String() string { d.call("String"); return "clumsy" }
func (d *clumsy) AllocHost(n int) ([]byte, error) {
	d.call("AllocHost")
	return d.nowhere.AllocHost(n)
}
func (d *clumsy) FreeHost([]byte) error          { d.call("FreeHost"); return nil }
func (d *clumsy) Alloc(int) (uintptr, error)     { d.call("Alloc"); return 1, nil }
func (d *clumsy) Free(uintptr) error             { d.call("Free"); return nil }
func (d *clumsy) NewEvent() (uintptr, error)     { d.call("NewEvent"); return 1, nil }
func (d *clumsy) FreeEvent(uintptr) error        { d.call("FreeEvent"); return nil }
func (d *clumsy) Open() (nwt.Session, error)     { d.call("Open"); return d, nil }
func (d *clumsy) Copy([]nwt.Copy, uintptr) error { d.call("Copy"); return nil }
func (d *clumsy) Wait(uintptr) error             { d.call("Wait"); return nil }
func (d *clumsy) WaitEvent(uintptr) error        { d.call("WaitEvent"); return nil }
func (d *clumsy) WaitStream(uintptr) error       { d.call("WaitStream"); return nil }
func (d *clumsy) Close() error                   { d.call("Close"); return nil }

func TestADeviceThatPanicsIsAnErrorInOrder(t *testing.T) {
	host := newLoader(t, augmented(31), nwt.WithBatchSize(7), nwt.WithWorkers(0))
	want := [2][][]byte{collect(t, host, 0), collect(t, host, 1)}
	fallen := func(method string, n int64, opts ...nwt.Option) (fell bool) {
		var log journal
		dev := &clumsy{method: method}
		dev.n.Store(n)
		l, err := nwt.NewLoader(augmented(31), append(opts, nwt.WithBatchSize(7), nwt.WithPrefetch(2), nwt.WithDevice(dev), log.option())...)
		require.NoError(t, err)
		var errs []error
		promptly(t, func() {
			for epoch := range want {
				var got [][]byte
				for b, err := range l.Epoch(t.Context(), epoch) {
					if err != nil {
						errs = append(errs, err)
						continue
					}
					got = append(got, samples(b))
					if b.ReleaseAfterStream(0); method == "WaitEvent" {
						b.ReleaseAfterEvent(1)
					}
				}
				require.Equal(t, want[epoch][:len(got)], append([][]byte{}, got...))
			}
			require.NoError(t, l.Close())
		})
		require.LessOrEqual(t, len(errs), 1)
		if fell = dev.n.Load() <= 0; fell && method != "String" {
			require.Contains(t, fmt.Sprint(errs)+log.String(), "panic: burnt (", method)
			require.Contains(t, fmt.Sprint(errs)+log.String(), "transfer_broken_test.go:", method)
		}
		return fell
	}
	for _, method := range []string{
		"String", "AllocHost", "FreeHost", "Alloc", "Free", "NewEvent", "FreeEvent", "Open", "Copy", "Wait", "WaitEvent", "WaitStream", "Close",
	} {
		for _, workers := range []int{0, 2} {
			require.True(t, fallen(method, 1, nwt.WithWorkers(workers)), method)
			require.True(t, fallen(method, 1, nwt.WithWorkers(workers), nwt.WithAsyncTransfer()), method)
			for n := int64(2); n < 12 && fallen(method, n, nwt.WithWorkers(workers)); n++ {
			}
		}
	}
	require.NoError(t, goleak.Find())
}

// nameless is a device that can't be opened and panics when it is asked for its name.
type nameless struct{ notebook }

func (*nameless) String() string { panic("nameless") }

func TestADeviceThatCannotBeOpenedIsNamedInTheError(t *testing.T) {
	notOnce := func(call string, n int) error {
		if call == "open" && n == 1 {
			return errBurnt
		}
		return nil
	}
	for says, dev := range map[string]nwt.Device{
		"nwt: transfer to null: burnt":               &notebook{fail: notOnce},
		"nwt: transfer to *nwt_test.nameless: burnt": &nameless{notebook{fail: notOnce}},
	} {
		l := newLoader(t, augmented(31), nwt.WithBatchSize(7), nwt.WithDevice(dev))
		for b, err := range l.Epoch(t.Context(), 0) {
			require.Nil(t, b)
			require.EqualError(t, err, says)
		}
		require.Len(t, collect(t, l, 1), 5, "the next epoch opens it again")
	}
}

// A leaver is a device that ends the goroutine of its n-th copy.
type leaver struct {
	nowhere
	n atomic.Int64
}

func (d *leaver) Open() (nwt.Session, error) { return d, nil }
func (d *leaver) Copy([]nwt.Copy, uintptr) error {
	if d.n.Add(-1) == 0 {
		runtime.Goexit()
	}
	return nil
}

func TestADeviceThatEndsItsGoroutineEndsTheEpochWithAnError(t *testing.T) {
	for _, workers := range []int{0, 2} {
		dev := &leaver{}
		l := newLoader(t, augmented(31), nwt.WithBatchSize(7), nwt.WithWorkers(workers), nwt.WithPrefetch(2), nwt.WithDevice(dev))
		for n := int64(1); n <= 5; n++ {
			dev.n.Store(n)
			endsWithGoexit(t, l, n)
		}
		require.Len(t, collect(t, l, 0), 5)
	}
}

func endsWithGoexit(t *testing.T, l *nwt.Loader, copies int64) {
	t.Helper()
	var last error
	promptly(t, func() {
		for _, err := range l.Epoch(t.Context(), 0) {
			last = err
		}
	})
	require.ErrorContains(t, last, "nwt: transfer to null: runtime.Goexit was called (", "copy %d", copies)
}

// A quitter ends the next goroutine that asks it for memory, or gives memory back.
type quitter struct {
	nowhere
	quits, leaves atomic.Bool
}

func (d *quitter) AllocHost(n int) ([]byte, error) {
	if d.quits.CompareAndSwap(true, false) {
		runtime.Goexit()
	}
	return d.nowhere.AllocHost(n)
}

func (d *quitter) FreeHost([]byte) error {
	if d.leaves.CompareAndSwap(true, false) {
		runtime.Goexit()
	}
	return nil
}

// The call frees its slot when it returns at last. Whatever becomes of that, what the
// call had is given back.
func TestADeviceThatEndsALateCallsGoroutineKeepsNothingOfIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d decoders
		dev, release := &quitter{}, make(chan struct{})
		ds := numbered(40, func(_ context.Context, i int, dst *nwt.Sample) error {
			if _, err := nwt.Scratch(dst, d.create); err != nil || i != 13 || dst.Epoch() > 0 {
				return err
			}
			<-release
			dev.leaves.Store(true)
			return nil
		})
		l := newLoader(t, ds, nwt.WithBatchSize(8), nwt.WithWorkers(2), nwt.WithDevice(dev), nwt.WithTimeout(time.Second), nwt.WithErrorBudget(1), quietLog)
		got, err := values(t, l, 0)
		require.NoError(t, err)
		require.Equal(t, upTo(40, 13), got)
		close(release)
		synctest.Wait()
		require.False(t, dev.leaves.Load(), "it was asked to free the slot")
		require.NoError(t, l.Close())
		require.Zero(t, d.open.Load(), "what Scratch kept for the call is closed")
	})
}

// A batch with a sample that hangs moves to other memory before WithFinish sees it. If
// the worker ends in that, the batch must not be taken for whole.
func TestADeviceThatEndsAWorkersGoroutineEndsTheEpochWithAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dev, release := &quitter{}, make(chan struct{})
		ds := numbered(40, func(_ context.Context, i int, dst *nwt.Sample) error {
			if i == 13 && dst.Epoch() == 0 {
				dev.quits.Store(true)
				<-release
			}
			return nil
		})
		l := newLoader(t, ds, nwt.WithBatchSize(8), nwt.WithWorkers(2), nwt.WithPrefetch(1), nwt.WithDevice(dev), nwt.WithTimeout(time.Second),
			nwt.WithErrorBudget(3), quietLog, nwt.WithFinish(func(context.Context, *nwt.Batch) error { return nil }))
		got, err := values(t, l, 0)
		require.Equal(t, upTo(8), got)
		require.ErrorContains(t, err, "runtime.Goexit was called (")
		got, err = values(t, l, 1)
		require.NoError(t, err)
		require.Equal(t, upTo(40), got)
		close(release)
		require.NoError(t, l.Close())
	})
}
