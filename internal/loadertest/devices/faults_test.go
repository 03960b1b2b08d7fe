package devices_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/cuda"
	"github.com/nwt-go/nwt/internal/cuda/cudatest"
	"github.com/nwt-go/nwt/internal/loadertest/kit"
)

// twoEpochs returns what a program does that goes on after an error: everything from
// opening the device to closing the loader. It returns what the epochs yielded
// and the errors that came instead.
func twoEpochs(t *testing.T, log *kit.Journal, opts ...nwt.Option) (epochs [2][][]byte, errs []error) {
	dev, err := nwt.CUDA(0)
	if err != nil {
		return epochs, []error{err}
	}
	l, err := nwt.NewLoader(kit.Augmented(17), append(opts, nwt.WithBatchSize(7), nwt.WithPrefetch(2), nwt.WithDevice(dev), log.Option())...)
	require.NoError(t, err)
	defer l.Close()
	for epoch := range epochs {
		for b, err := range l.Epoch(t.Context(), epoch) {
			if err != nil {
				errs = append(errs, err)
				continue
			}
			epochs[epoch] = append(epochs[epoch], samples(b))
		}
	}
	return epochs, errs
}

func TestEveryCallOfTheDriverThatFailsIsNamedAndTheLoaderGoesOn(t *testing.T) {
	host := kit.NewLoader(t, kit.Augmented(17), nwt.WithBatchSize(7), nwt.WithWorkers(0))
	want := [2][][]byte{kit.Collect(t, host, 0), kit.Collect(t, host, 1)}
	for name, opts := range map[string][]nwt.Option{
		"workers":         {nwt.WithWorkers(2)},
		"no workers":      {nwt.WithWorkers(0)},
		"ordinary memory": {nwt.WithWorkers(2), nwt.WithoutPinned()},
	} {
		t.Run(name, func(t *testing.T) {
			gpu := cudatest.Load(t)
			gpu.Delay(10 * time.Microsecond)
			for n := 1; n == 1 || gpu.Failed() != ""; n++ {
				gpu.Fail("", n, launchFailed)
				failedCall(t, gpu, n, want, opts)
			}
			require.NoError(t, kit.Leftover())
		})
	}
}

const launchFailed = cuda.Result(719)

// failedCall runs two epochs in which the n-th call of the driver fails, if
// there are so many.
func failedCall(t *testing.T, gpu cudatest.Driver, n int, want [2][][]byte, opts []nwt.Option) {
	var log kit.Journal
	var epochs [2][][]byte
	var errs []error
	kit.Promptly(t, func() { epochs, errs = twoEpochs(t, &log, opts...) })
	call := gpu.Failed()
	what := fmt.Sprintf("call %d, %s: errors %v, log %s", n, call, errs, &log)
	require.Empty(t, gpu.Left(), what)
	require.Zero(t, gpu.Misuses(), what)
	if call == "" {
		require.Empty(t, errs, what)
		require.Empty(t, log.String())
		require.Equal(t, want, epochs)
		require.Greater(t, n, 50)
		return
	}
	require.Contains(t, fmt.Sprint(errs)+log.String(), call+": CUDA_ERROR_LAUNCH_FAILED (719)", what)
	switch len(errs) {
	case 0: // something that could be done without, or that was freed all the same
		require.Equal(t, want, epochs, what)
	case 1:
		require.ErrorIs(t, errs[0], launchFailed)
		for e := range epochs { // the other epoch is whole, and of this one the batches before the error
			require.Equal(t, append([][]byte(nil), want[e][:len(epochs[e])]...), epochs[e], what)
		}
		require.True(t, len(epochs[0]) == 3 || len(epochs[1]) == 3 || len(epochs[0])+len(epochs[1]) == 0, what)
	default:
		t.Fatal(what)
	}
}

func TestOutOfMemorySaysHowMuchWasAskedForAndWhatToLower(t *testing.T) {
	for _, c := range []struct {
		kind cudatest.Kind
		says string
	}{
		{cudatest.DeviceMemory, "nwt: transfer to cuda:0 (Fake GPU 0): 3264 bytes for a batch: cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY (2): " +
			"3264 bytes of device memory asked for, 1000 of 1000 are free (a smaller WithBatchSize needs less)"},
		{cudatest.HostMemory, "nwt: 3264 bytes of host memory for a batch: cuMemHostAlloc: CUDA_ERROR_OUT_OF_MEMORY (2): " +
			"3264 bytes of page-locked memory asked for (a smaller WithBatchSize or WithPrefetch needs less)"},
	} {
		t.Run(c.kind.String(), func(t *testing.T) {
			gpu := cudatest.Load(t)
			gpu.Limit(c.kind, 1000)
			var log kit.Journal
			l := kit.NewLoader(t, kit.Augmented(200), nwt.WithBatchSize(100), nwt.WithDevice(kit.GPU0(t)), log.Option())
			for range 2 {
				for _, err := range l.Epoch(t.Context(), 0) {
					require.ErrorIs(t, err, cuda.OutOfMemory)
					require.EqualError(t, err, c.says)
				}
			}
			require.Empty(t, log.String(), "the error says it")
			gpu.Limit(c.kind, 1<<20)
			kit.Collect(t, l, 0)
		})
	}
}

func TestMemoryThatCannotBeFreedIsLogged(t *testing.T) {
	for call, says := range map[string]string{
		"cuMemFree_v2":        "device memory could not be freed",
		"cuEventDestroy_v2":   "device memory could not be freed",
		"cuMemFreeHost":       "the memory of a batch could not be freed",
		"cuStreamSynchronize": "a device could not be closed cleanly",
	} {
		t.Run(call, func(t *testing.T) {
			gpu := cudatest.Load(t)
			var log kit.Journal
			l := kit.NewLoader(t, kit.Augmented(31), append(deviceOptions(t, 2), log.Option())...)
			kit.Collect(t, l, 0)
			gpu.Fail(call, 1, launchFailed)
			require.NoError(t, l.Close())
			require.Contains(t, log.String(), says)
			require.Contains(t, log.String(), call+": CUDA_ERROR_LAUNCH_FAILED (719)")
		})
	}
}

// After an illegal address, say, a GPU's context is of no use any more: every call
// reports the error, the frees too. The batches that were on their way are kept.
func TestAContextThatBreaksEndsEveryEpochWithItsErrorAndNothingHangs(t *testing.T) {
	host := kit.NewLoader(t, kit.Augmented(100), nwt.WithBatchSize(7), nwt.WithShuffle(3), nwt.WithWorkers(0))
	want := kit.Collect(t, host, 0)
	for _, code := range []cuda.Result{700, cudatest.Lost} {
		for _, copies := range []int{0, 1, 2, 7} {
			for _, workers := range []int{0, 2} {
				t.Run(fmt.Sprint(code, ", copies before: ", copies, ", workers: ", workers), func(t *testing.T) {
					gpu := cudatest.Load(t)
					defer gpu.Reset() // of the batches whose copies nobody could wait for
					gpu.GPUs(2)
					other, err := nwt.CUDA(1)
					require.NoError(t, err)
					unharmed := kit.NewLoader(t, kit.Augmented(100), nwt.WithBatchSize(7), nwt.WithShuffle(3), nwt.WithDevice(other))
					l, err := nwt.NewLoader(kit.Augmented(100), append(deviceOptions(t, workers), kit.Silent)...)
					require.NoError(t, err)
					gpu.Break(gpu.Primary(0), code, copies)
					kit.Promptly(t, func() {
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
							} else {
								// Fewer if the context breaks before the stage has asked how they ended.
								require.LessOrEqual(t, len(got), copies)
								require.Equal(t, want[:len(got)], append([][]byte{}, got...))
							}
						}
						require.NoError(t, l.Close())
					})
					require.Equal(t, want, kit.Collect(t, unharmed, 0), "on the other GPU")
					require.NoError(t, unharmed.Close())
				})
			}
		}
	}
}

// If calls that wait, or those that make the context current, go on reporting an error,
// nobody knows whether the copies are done.
func TestMemoryThatACopyToAGPUMayStillTouchIsNeitherUsedNorFreed(t *testing.T) {
	host := kit.NewLoader(t, kit.Augmented(100), nwt.WithBatchSize(7), nwt.WithShuffle(3), nwt.WithWorkers(0))
	want := kit.Collect(t, host, 1)
	for _, calls := range []string{"cuEventSynchronize cuStreamSynchronize", "cuCtxPushCurrent_v2"} {
		for _, workers := range []int{0, 2} {
			t.Run(fmt.Sprint(calls, ", workers: ", workers), func(t *testing.T) {
				gpu := cudatest.Load(t)
				defer gpu.Reset()               // of what can't be given back
				gpu.Delay(5 * time.Millisecond) // a copy is under way when the calls begin to fail
				var log kit.Journal
				l, err := nwt.NewLoader(kit.Augmented(100), append(deviceOptions(t, workers), log.Option())...)
				require.NoError(t, err)
				kit.Promptly(t, func() {
					var last error
					for b, err := range l.Epoch(t.Context(), 0) {
						if last = err; err == nil && b.Number() == 2 {
							gpu.Fail(calls, -1, 906)
						}
					}
					require.ErrorIs(t, last, cuda.Result(906))
					gpu.Fail("", 0, 0)
					require.Equal(t, want, kit.Collect(t, l, 1))
					require.NoError(t, l.Close())
				})
				require.Contains(t, log.String(), "neither used again nor freed")
				require.NotZero(t, gpu.Left()[cudatest.DeviceMemory])
				require.NotZero(t, gpu.Left()[cudatest.HostMemory])
			})
		}
	}
}

// A goroutine's thread may have been left in another library's context.
func TestAnotherProgramsContextOnTheThreadIsNeitherUsedNorLost(t *testing.T) {
	host := kit.NewLoader(t, kit.Augmented(100), nwt.WithBatchSize(7), nwt.WithShuffle(3), nwt.WithWorkers(0))
	want := kit.Collect(t, host, 0)
	for _, workers := range []int{0, 2} {
		gpu := cudatest.Load(t)
		gpu.Outer(gpu.Context(0))
		l := kit.NewLoader(t, kit.Augmented(100), deviceOptions(t, workers)...)
		i := 0
		for b, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
			require.Equal(t, want[i], arrived(t, gpu, b))
			i++
		}
		require.Equal(t, len(want), i)
		require.NoError(t, l.Close())
		require.Empty(t, gpu.Left())
		require.Zero(t, gpu.Misuses())
	}
}

func TestATransferErrorComesAfterTheBatchesBeforeIt(t *testing.T) {
	for _, call := range []string{"Copy", "Wait", "copying"} {
		for _, workers := range []int{0, 2} {
			synctest.Test(t, func(t *testing.T) {
				dev := &kit.FakeDevice{Took: time.Millisecond, Fail: failing(call, 3, 3)}
				l := kit.NewLoader(t, kit.Augmented(100), nwt.WithBatchSize(10), nwt.WithWorkers(workers), nwt.WithPrefetch(8), nwt.WithDevice(dev))
				var got []int
				var last error
				for b, err := range l.Epoch(t.Context(), 0) {
					if last = err; err == nil {
						got = append(got, b.Number())
						time.Sleep(time.Second) // the call fails while the first batch is in use
					}
				}
				require.Equal(t, []int{0, 1}, got, call)
				require.EqualError(t, last, "nwt: transfer to fake: batch 2 of epoch 0: burnt")
				require.Len(t, kit.Collect(t, l, 1), 10, "the next epoch is whole")
				require.NoError(t, l.Close())
				dev.Settled(t)
			})
		}
	}
}

func TestADeviceThatCannotBeOpenedIsNamedInTheError(t *testing.T) {
	dev := &kit.FakeDevice{Fail: failing("Open", 1, 1)}
	l := kit.NewLoader(t, kit.Augmented(31), nwt.WithBatchSize(7), nwt.WithDevice(dev))
	for b, err := range l.Epoch(t.Context(), 0) {
		require.Nil(t, b)
		require.EqualError(t, err, "nwt: transfer to fake: burnt")
	}
	require.Len(t, kit.Collect(t, l, 1), 5, "the next epoch opens it again")
}

func TestACancelledEpochOnADeviceHasNoBadSamples(t *testing.T) {
	for range 50 {
		ctx, cancel := context.WithCancel(t.Context())
		ds := kit.Numbered(64, func(ctx context.Context, i int, _ *nwt.Sample) error {
			if i < 32 {
				return nil
			}
			if i == 32 {
				cancel()
			}
			<-ctx.Done()
			return ctx.Err()
		})
		l := kit.NewLoader(t, ds, nwt.WithBatchSize(4), nwt.WithWorkers(4), nwt.WithPrefetch(16), nwt.WithDevice(&kit.FakeDevice{}), nwt.WithErrorBudget(64), kit.Silent)
		var last error
		for _, err := range l.Epoch(ctx, 0) {
			last = err
		}
		require.ErrorIs(t, last, context.Canceled)
		require.Empty(t, l.BadSamples())
		require.NoError(t, l.Close())
	}
}

// The memory that a copy reads can't be taken from under it.
func TestALoopOnADeviceThatHangsHasItsContextsErrorAtOnceAndEndsWithTheCopy(t *testing.T) {
	for _, workers := range []int{0, 2} {
		synctest.Test(t, func(t *testing.T) {
			dev := &kit.FakeDevice{Took: time.Hour}
			l := kit.NewLoader(t, kit.Augmented(100), nwt.WithBatchSize(10), nwt.WithWorkers(workers), nwt.WithDevice(dev))
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			began := time.Now()
			var last error
			var told time.Duration
			for _, err := range l.Epoch(ctx, 0) {
				last, told = err, time.Since(began)
			}
			require.ErrorIs(t, last, context.DeadlineExceeded)
			require.Equal(t, time.Second, told)
			require.Less(t, time.Since(began), 4*time.Hour)
			require.NoError(t, l.Close())
			dev.Settled(t)
		})
	}
}

// A session that doesn't end properly may go on copying.
func TestWhatASessionThatDidNotEndMayStillTouchIsNeitherUsedNorFreed(t *testing.T) {
	for _, call := range []string{"Copy", "Wait", "copying"} {
		for _, workers := range []int{0, 3} {
			for n := 1; n <= 6; n++ {
				synctest.Test(t, func(t *testing.T) {
					dev := &kit.FakeDevice{Took: time.Minute}
					dev.Fail = func(c string, k int) error {
						if c == call && k == n || c == "Close" && k == 1 {
							return kit.ErrFake
						}
						return nil
					}
					var log kit.Journal
					l := kit.NewLoader(t, kit.Ragged(200), nwt.WithBatchSize(8), nwt.WithWorkers(workers), nwt.WithDevice(dev), log.Option())
					for epoch := range 2 {
						for b, err := range l.Epoch(t.Context(), epoch) {
							if err != nil {
								require.ErrorIs(t, err, kit.ErrFake)
								continue
							}
							require.True(t, dev.Holds(b))
						}
					}
					require.NoError(t, l.Close())
					dev.Settled(t, "%s %d, %d workers", call, n, workers)
					require.Contains(t, log.String(), "neither used again nor freed")
				})
			}
		}
	}
}

func TestWhateverCallOfADeviceFailsAllThatItGaveComesBackOnce(t *testing.T) {
	for _, call := range []string{"AllocHost", "FreeHost", "Alloc", "Free", "NewEvent", "FreeEvent", "Open", "Copy", "Wait", "copying", "Close"} {
		for _, workers := range []int{0, 3} {
			failed := false
			for n := 1; n <= 30; n++ {
				dev := &kit.FakeDevice{Fail: failing(call, n, n)}
				l := kit.NewLoader(t, kit.Ragged(60), nwt.WithBatchSize(4), nwt.WithWorkers(workers), nwt.WithDevice(dev), kit.Silent)
				for epoch := range 3 {
					var kept []*nwt.Batch
					for b, err := range l.Epoch(t.Context(), epoch) {
						if err != nil {
							require.ErrorIs(t, err, kit.ErrFake)
							break
						}
						switch {
						case b.Number() < 6 && epoch > 0:
							b.Retain()
							kept = append(kept, b)
						case b.Number() == 8:
							for _, b := range kept {
								b.Release()
							}
							kept = nil
							require.NoError(t, l.SetWorkers(0))
						}
					}
					for _, b := range kept {
						b.Release()
					}
					require.NoError(t, l.SetWorkers(workers))
				}
				require.NoError(t, l.Close())
				dev.Settled(t, "%s %d, %d workers", call, n, workers)
				if dev.Calls[call] < n {
					break
				}
				failed = true
			}
			require.True(t, failed, "%s, %d workers", call, workers)
		}
	}
}

// A batch whose LoadMany was given up moves to other memory.
func TestWhateverCallOfADeviceFailsABatchThatMovesKeepsNothing(t *testing.T) {
	for _, call := range []string{"AllocHost", "FreeHost"} {
		for n := 1; n <= 20; n++ {
			synctest.Test(t, func(t *testing.T) {
				dev := &kit.FakeDevice{Fail: failing(call, n, n)}
				ds := &kit.Pages{N: 40,
					OnLoadMany: func(ctx context.Context, _ []int, _ []*nwt.Sample) error { <-ctx.Done(); return ctx.Err() },
					OnLoad:     func(context.Context, int, *nwt.Sample) error { time.Sleep(time.Millisecond); return nil },
				}
				l := kit.NewLoader(t, ds, nwt.WithBatchSize(8), nwt.WithWorkers(2), nwt.WithDevice(dev), nwt.WithTimeout(time.Second), kit.Silent)
				for epoch := range 2 {
					for range l.Epoch(t.Context(), epoch) {
					}
				}
				require.NoError(t, l.Close())
				dev.Settled(t, "%s %d", call, n)
			})
		}
	}
}

func TestTuningOnADeviceThatFailsEndsWithItsErrorAndKeepsNothing(t *testing.T) {
	for _, call := range []string{"AllocHost", "Alloc", "NewEvent", "Open", "Copy", "Wait", "copying", "Free", "Close"} {
		for _, first := range []int{1, 3, 40, 150} {
			synctest.Test(t, func(t *testing.T) {
				dev := &kit.FakeDevice{Took: 2 * time.Millisecond, Fail: failing(call, first, 1<<30)}
				ds := kit.Numbered(100, func(context.Context, int, *nwt.Sample) error { time.Sleep(time.Millisecond); return nil })
				_, err := nwt.Tune(t.Context(), ds, nwt.WithBatchSize(4), nwt.WithDevice(dev), kit.Silent, nwt.WithMaxWorkers(4), nwt.WithIterations(10))
				if err != nil {
					require.ErrorIs(t, err, kit.ErrFake)
				}
				dev.Settled(t, "%s %d", call, first)
			})
		}
	}
}

// failing returns a script by which the calls first … last of a method fail.
func failing(call string, first, last int) func(string, int) error {
	return func(c string, n int) error {
		if c != call || n < first || n > last {
			return nil
		}
		return kit.ErrFake
	}
}
