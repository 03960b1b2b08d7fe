package devices_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/cuda"
	"github.com/nwt-go/nwt/internal/cuda/cudatest"
	"github.com/nwt-go/nwt/internal/loadertest/kit"
)

// samples returns the bytes of a batch.
func samples(b *nwt.Batch) []byte { return slices.Concat(b.Bytes(0), b.Bytes(1)) }

// arrived returns the bytes of a batch in the GPU's memory.
func arrived(t testing.TB, gpu cudatest.Driver, b *nwt.Batch) []byte {
	t.Helper()
	return slices.Concat(gpu.Read(t, b.DevicePtr(0), len(b.Bytes(0))), gpu.Read(t, b.DevicePtr(1), len(b.Bytes(1))))
}

// holey is augmented(n), but every seventh sample can't be loaded, nor any of a
// whole batch of eight.
func holey(n int) nwt.Dataset {
	good := kit.Augmented(n)
	return nwt.NewDataset(n, good.Fields(), func(ctx context.Context, i int, dst *nwt.Sample) error {
		if i%7 == 3 || i/8 == 5 {
			return errors.New("a hole")
		}
		return good.Load(ctx, i, dst)
	})
}

func TestBatchesArriveOnTheDeviceAsTheyWereLoaded(t *testing.T) {
	for name, ds := range map[string]nwt.Dataset{"plain": kit.Augmented(96), "short last batch": kit.Augmented(99), "last batch of one": kit.Augmented(97), "ragged": kit.Ragged(99), "bad samples": holey(99)} {
		for _, workers := range []int{0, 1, 3} {
			t.Run(fmt.Sprintf("%s, %d workers", name, workers), func(t *testing.T) {
				gpu := cudatest.Load(t)
				opts := []nwt.Option{nwt.WithBatchSize(8), nwt.WithWorkers(workers), nwt.WithErrorBudget(50), nwt.WithLogger(slog.New(slog.DiscardHandler))}
				host := kit.NewLoader(t, ds, opts...)
				l := kit.NewLoader(t, ds, append(opts, nwt.WithDevice(kit.GPU0(t)))...)
				var want, got [][]byte
				for b, err := range host.Epochs(t.Context(), 0, 3) {
					require.NoError(t, err)
					want = append(want, samples(b))
				}
				for b, err := range l.Epochs(t.Context(), 0, 3) {
					require.NoError(t, err)
					require.Equal(t, samples(b), arrived(t, gpu, b))
					got = append(got, samples(b))
				}
				require.Equal(t, want, got)
				require.Equal(t, len(want), l.Stats().Copied, "a batch without samples isn't copied")
			})
		}
	}
}

func TestTheHostHasNoDeviceMemory(t *testing.T) {
	l := kit.NewLoader(t, kit.Augmented(10))
	for b, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
		require.Zero(t, b.DevicePtr(0))
	}
	s := l.Stats()
	require.Zero(t, s.CopiedBytes)
	require.Zero(t, int64(s.Copied)+s.DeviceBytes)
	host := nwt.Host()
	ptr, err := host.Alloc(8)
	require.Zero(t, ptr)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	event, err := host.NewEvent()
	require.Zero(t, event)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	_, err = host.Open()
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorIs(t, host.Free(0), errors.ErrUnsupported)
	require.ErrorIs(t, host.FreeEvent(0), errors.ErrUnsupported)
}

func TestABadSampleEndsTheEpochAfterTheBatchesBeforeItOnADeviceToo(t *testing.T) {
	boom := errors.New("boom")
	ds := nwt.NewDataset(100, kit.Scalar, func(_ context.Context, i int, _ *nwt.Sample) error {
		if i == 47 {
			return boom
		}
		return nil
	})
	for _, workers := range []int{0, 1, 4} {
		cudatest.Load(t)
		l := kit.NewLoader(t, ds, nwt.WithBatchSize(10), nwt.WithWorkers(workers), nwt.WithDevice(kit.GPU0(t)))
		n := 0
		var last error
		for _, err := range l.Epoch(t.Context(), 0) {
			if last = err; err == nil {
				n++
			}
		}
		require.Equal(t, 4, n)
		require.ErrorIs(t, last, boom)
		require.NoError(t, l.Close())
	}
}

func deviceOptions(t testing.TB, workers int) []nwt.Option {
	return []nwt.Option{nwt.WithBatchSize(7), nwt.WithShuffle(3), nwt.WithWorkers(workers), nwt.WithDevice(kit.GPU0(t))}
}

func TestLeavingADevicesEpochAnywhereLosesNothing(t *testing.T) {
	for _, workers := range []int{0, 1, 3} {
		t.Run(fmt.Sprintf("%d workers", workers), func(t *testing.T) {
			gpu := cudatest.Load(t)
			l := kit.NewLoader(t, kit.Augmented(50), deviceOptions(t, workers)...)
			want := kit.Collect(t, l, 5)
			for cut := range 9 {
				kit.Promptly(t, func() {
					for b, err := range l.Epoch(t.Context(), cut) {
						require.NoError(t, err)
						if b.Number() == cut%7 {
							break
						}
					}
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(cut)*50*time.Microsecond)
					defer cancel()
					for _, err := range l.Epochs(ctx, 0, 100) {
						if err != nil {
							require.ErrorIs(t, err, context.DeadlineExceeded)
						}
					}
					require.Equal(t, want, kit.Collect(t, l, 5))
				})
			}
			require.NoError(t, l.Close())
			require.Empty(t, gpu.Left())
		})
	}
}

func TestALoaderWithADeviceCanBeClosedAtAnyTime(t *testing.T) {
	for _, workers := range []int{0, 3} {
		for cut := range 12 {
			t.Run(fmt.Sprintf("%d workers, at %d", workers, cut), func(t *testing.T) {
				gpu := cudatest.Load(t)
				l := kit.NewLoader(t, kit.Augmented(60), deviceOptions(t, workers)...)
				var closing sync.WaitGroup
				closing.Go(func() {
					time.Sleep(time.Duration(cut) * 70 * time.Microsecond)
					_ = l.Close()
				})
				kit.Promptly(t, func() {
					for b, err := range l.Epochs(t.Context(), 0, 1000) {
						if err != nil {
							require.ErrorIs(t, err, nwt.ErrClosed)
							break
						}
						_ = b.Bytes(0)[0] // still the batch's
						gpu.Read(t, b.DevicePtr(0), 1)
					}
					closing.Wait()
				})
				require.Empty(t, gpu.Left())
			})
		}
	}
}

func TestABatchOnADeviceCanBeRetainedPastClose(t *testing.T) {
	gpu := cudatest.Load(t)
	l := kit.NewLoader(t, kit.Augmented(70), deviceOptions(t, 2)...)
	var kept []*nwt.Batch
	var want [][]byte
	for b, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
		b.Retain()
		kept = append(kept, b)
		want = append(want, samples(b))
	}
	require.NoError(t, l.Close())
	require.Equal(t, 10, gpu.Left()[cudatest.DeviceMemory])
	require.Equal(t, 10, gpu.Left()[cudatest.HostMemory])
	var releasing sync.WaitGroup
	for i, b := range kept {
		require.Equal(t, want[i], samples(b))
		require.Equal(t, want[i], arrived(t, gpu, b))
		releasing.Go(b.Release)
	}
	releasing.Wait()
	require.Empty(t, gpu.Left())
}

func TestTheMemoryOfRetainedBatchesIsGivenBack(t *testing.T) {
	cudatest.Load(t)
	l := kit.NewLoader(t, kit.Augmented(700), append(deviceOptions(t, 2), nwt.WithPrefetch(2))...)
	var kept []*nwt.Batch
	peak := 0
	for b, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
		if b.Number() < 20 {
			b.Retain()
			kept = append(kept, b)
		}
		if b.Number() == 20 {
			for _, b := range kept {
				b.Release()
			}
		}
		peak = max(peak, int(l.Stats().DeviceBytes))
	}
	s := l.Stats()
	slot := int(s.SlotBytes) / s.Slots
	require.GreaterOrEqual(t, peak, 20*slot)
	require.EqualValues(t, 3*slot, s.DeviceBytes)
	require.LessOrEqual(t, s.Slots, 3)
	require.Zero(t, s.Retained)
	require.NoError(t, l.Close())
}

func TestBatchesThatAreNeverReleasedEndADevicesEpoch(t *testing.T) {
	cudatest.Load(t)
	l := kit.NewLoader(t, kit.Augmented(700), deviceOptions(t, 2)...)
	var kept []*nwt.Batch
	var last error
	for b, err := range l.Epoch(t.Context(), 0) {
		if last = err; err == nil {
			b.Retain()
			kept = append(kept, b)
		}
	}
	require.ErrorIs(t, last, nwt.ErrRetained)
	for _, b := range kept {
		b.Release()
	}
	kit.Collect(t, l, 0)
}

// The stage sleeps while every buffer has a batch, and must learn that one which
// is retained no longer counts: nothing else would wake it.
func TestASlowLoopThatRetainsItsBatchesIsServedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := kit.NewLoader(t, kit.Augmented(60), nwt.WithBatchSize(4), nwt.WithWorkers(2), nwt.WithDevice(&kit.FakeDevice{}))
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

func TestADeviceThatIsShortOfMemoryHasFewerBatchesAtOnce(t *testing.T) {
	for fit := 1; fit <= 3; fit++ {
		t.Run(fmt.Sprintf("room for %d", fit), func(t *testing.T) {
			gpu := cudatest.Load(t)
			var log kit.Journal
			gpu.Fail("cuMemAlloc_v2", fit+1, cuda.OutOfMemory)
			l := kit.NewLoader(t, kit.Augmented(101), append(deviceOptions(t, 2), log.Option())...)
			kit.Promptly(t, func() {
				for b, err := range l.Epochs(t.Context(), 0, 2) {
					require.NoError(t, err)
					if b.Epoch() == 0 && b.Number() == 0 {
						require.Eventually(t, func() bool {
							s := l.Stats()
							return int(s.DeviceBytes) == fit*int(s.SlotBytes)/s.Slots && (fit == 3 || log.String() != "")
						}, time.Minute, time.Millisecond)
					}
					require.Equal(t, samples(b), arrived(t, gpu, b))
				}
				s := l.Stats()
				require.EqualValues(t, fit*int(s.SlotBytes)/s.Slots, s.DeviceBytes)
				require.NoError(t, l.Close())
			})
			if fit == 3 {
				require.Empty(t, log.String())
				return
			}
			require.Equal(t, 1, strings.Count(log.String(), "level=WARN"), log.String())
			require.Contains(t, log.String(), fmt.Sprintf("only %d of 3 batches fit into the memory of the device", fit))
			require.Contains(t, log.String(), "cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY (2)")
		})
	}
}

// To wait for a retained batch would be to wait for a program that may let go of it
// only after the next.
func TestMemoryThatIsShortForRetainedBatchesIsAnError(t *testing.T) {
	gpu := cudatest.Load(t)
	l := kit.NewLoader(t, kit.Augmented(100), append(deviceOptions(t, 2), kit.Silent)...)
	want := kit.Collect(t, l, 0)
	size := l.Stats().DeviceBytes / 3
	gpu.Limit(cudatest.DeviceMemory, uint64(5*size))
	for range 2 {
		var kept []*nwt.Batch
		var last error
		kit.Promptly(t, func() {
			for b, err := range l.Epoch(t.Context(), 0) {
				if last = err; err == nil {
					b.Retain()
					kept = append(kept, b)
				}
			}
		})
		require.ErrorIs(t, last, cuda.OutOfMemory)
		require.Len(t, kept, 5)
		for _, b := range kept {
			b.Release()
		}
	}
	require.Equal(t, want, kit.Collect(t, l, 0), "with what is left")
	require.NoError(t, l.Close())
}

// A stage that spins keeps the bubble's clock from going on.
func TestADeviceIsWaitedForAndItsCopiesAreTimedWithoutSpinning(t *testing.T) {
	for name, load := range map[string]time.Duration{"slow samples": time.Second, "slow copies": 0} {
		for _, workers := range []int{0, 2} {
			synctest.Test(t, func(t *testing.T) {
				dev := &kit.FakeDevice{Took: 14 * time.Millisecond}
				ds := kit.Numbered(28, func(context.Context, int, *nwt.Sample) error { time.Sleep(load); return nil })
				l := kit.NewLoader(t, ds, nwt.WithBatchSize(4), nwt.WithWorkers(workers), nwt.WithDevice(dev))
				for b, err := range l.Epochs(t.Context(), 0, 2) {
					require.NoError(t, err)
					require.True(t, dev.Holds(b))
				}
				s := l.Stats()
				require.Equal(t, 14, s.Copied)
				require.EqualValues(t, 2*28*8, s.CopiedBytes)
				require.Equal(t, 14*14*time.Millisecond, s.Transfer, name)
				require.NoError(t, l.Close())
				dev.Settled(t)
			})
		}
	}
}

// A program may end the device's context once Close has returned, in any goroutine.
func TestNoCloseReturnsWhileAnotherOneIsStillFreeing(t *testing.T) {
	begun, returned, freed := make(chan struct{}), make(chan struct{}), make(chan struct{})
	dev := &kit.FakeDevice{Fail: func(call string, _ int) error {
		if call == "FreeHost" {
			close(begun)
			select {
			case <-returned:
				t.Error("a Close returned before the memory was free")
			case <-time.After(50 * time.Millisecond):
			}
		}
		return nil
	}}
	l := kit.NewLoader(t, kit.Augmented(50), nwt.WithBatchSize(10), nwt.WithWorkers(0), nwt.WithDevice(dev))
	kit.Collect(t, l, 0)
	go func() {
		defer close(freed)
		_ = l.Close()
	}()
	<-begun
	require.NoError(t, l.Close())
	close(returned)
	<-freed
}
