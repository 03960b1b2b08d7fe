package nwt_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/cuda"
	"github.com/nwt-go/nwt/internal/cuda/cudatest"
)

// A journal is a log that a test reads.
type journal struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.Write(p)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.String()
}

func (j *journal) option() nwt.Option { return nwt.WithLogger(slog.New(slog.NewTextHandler(j, nil))) }

// twoEpochs is what a program does that goes on after an error: everything from
// opening the device to closing the loader. It returns what the epochs yielded
// and the errors that came instead.
func twoEpochs(t *testing.T, log *journal, opts ...nwt.Option) (epochs [2][][]byte, errs []error) {
	dev, err := nwt.CUDA(0)
	if err != nil {
		return epochs, []error{err}
	}
	l, err := nwt.NewLoader(augmented(17), append(opts, nwt.WithBatchSize(7), nwt.WithPrefetch(2), nwt.WithDevice(dev), log.option())...)
	require.NoError(t, err)
	defer l.Close()
	for epoch := range epochs {
		for b, err := range l.Epoch(t.Context(), epoch) {
			if err != nil {
				errs = append(errs, err)
				continue
			}
			epochs[epoch] = append(epochs[epoch], samples(b))
			b.ReleaseAfterStream(0)
		}
	}
	return epochs, errs
}

func TestEveryCallOfTheDriverThatFailsIsNamedAndTheLoaderGoesOn(t *testing.T) {
	host := newLoader(t, augmented(17), nwt.WithBatchSize(7), nwt.WithWorkers(0))
	want := [2][][]byte{collect(t, host, 0), collect(t, host, 1)}
	for name, opts := range map[string][]nwt.Option{
		"workers":           {nwt.WithWorkers(2)},
		"no workers":        {nwt.WithWorkers(0)},
		"async":             {nwt.WithWorkers(2), nwt.WithAsyncTransfer()},
		"async, no workers": {nwt.WithWorkers(0), nwt.WithAsyncTransfer()},
		"ordinary memory":   {nwt.WithWorkers(2), nwt.WithPinned(false)},
	} {
		t.Run(name, func(t *testing.T) {
			gpu := cudatest.Load(t)
			gpu.Delay(10 * time.Microsecond)
			for n := 1; n == 1 || gpu.Failed() != ""; n++ {
				gpu.Fail("", n, launchFailed)
				failedCall(t, gpu, n, want, opts)
			}
			require.NoError(t, leftover())
		})
	}
}

const launchFailed = cuda.Result(719)

// failedCall runs two epochs in which the n-th call of the driver fails, if
// there are so many.
func failedCall(t *testing.T, gpu cudatest.Driver, n int, want [2][][]byte, opts []nwt.Option) {
	var log journal
	var epochs [2][][]byte
	var errs []error
	promptly(t, func() { epochs, errs = twoEpochs(t, &log, opts...) })
	call := gpu.Failed()
	what := fmt.Sprintf("call %d, %s: errors %v, log %s", n, call, errs, &log)
	require.Empty(t, gpu.Left(), what)
	require.Zero(t, gpu.Misuses(), what)
	if call == "" {
		require.Empty(t, errs, what)
		require.Empty(t, log.String())
		require.Equal(t, want, epochs)
		require.Greater(t, n, 100)
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

// lateFailure is a device whose tenth copy fails, once it is let go.
type lateFailure struct {
	nowhere
	opened, closed, copies int
	letGo                  chan struct{}
}

func (d *lateFailure) Open() (nwt.Session, error) {
	d.opened++
	return d, nil
}

func (d *lateFailure) Close() error {
	d.closed++
	return nil
}

func (d *lateFailure) Wait(uintptr) error {
	if d.copies++; d.copies != 10 {
		return nil
	}
	<-d.letGo
	return launchFailed
}

func TestAnAsynchronousCopyThatFailsIsToldAfterTheLastBatch(t *testing.T) {
	for _, workers := range []int{0, 2} {
		dev := &lateFailure{letGo: make(chan struct{})}
		l := newLoader(t, augmented(100), nwt.WithBatchSize(10), nwt.WithWorkers(workers), nwt.WithDevice(dev), nwt.WithAsyncTransfer())
		var errs []error
		for b, err := range l.Epoch(t.Context(), 0) {
			if err != nil {
				errs = append(errs, err)
			} else if b.Index() == 9 {
				close(dev.letGo)
			}
		}
		require.Len(t, errs, 1)
		require.EqualError(t, errs[0], "nwt: transfer to null: batch 9 of epoch 0: CUDA_ERROR_LAUNCH_FAILED (719)")
		require.Equal(t, [2]int{1, 1}, [2]int{dev.opened, dev.closed})
		collect(t, l, 1)
		require.Equal(t, [2]int{2, 1}, [2]int{dev.opened, dev.closed})
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
			var log journal
			l := newLoader(t, augmented(200), nwt.WithBatchSize(100), nwt.WithDevice(gpu0(t)), log.option())
			for range 2 {
				for _, err := range l.Epoch(t.Context(), 0) {
					require.ErrorIs(t, err, cuda.OutOfMemory)
					require.EqualError(t, err, c.says)
				}
			}
			require.Empty(t, log.String(), "the error says it")
			gpu.Limit(c.kind, 1<<20)
			collect(t, l, 0)
		})
	}
}

func TestMemoryThatCannotBeFreedIsLogged(t *testing.T) {
	for call, says := range map[string]string{
		"cuMemFree_v2":        "device memory could not be freed",
		"cuEventDestroy_v2":   "a device could not be closed cleanly",
		"cuMemFreeHost":       "the memory of a batch could not be freed",
		"cuStreamSynchronize": "a device could not be closed cleanly",
	} {
		t.Run(call, func(t *testing.T) {
			gpu := cudatest.Load(t)
			var log journal
			l := newLoader(t, augmented(31), append(deviceOptions(t, 2, false), log.option())...)
			collect(t, l, 0)
			gpu.Fail(call, 1, launchFailed)
			require.NoError(t, l.Close())
			require.Contains(t, log.String(), says)
			require.Contains(t, log.String(), call+": CUDA_ERROR_LAUNCH_FAILED (719)")
		})
	}
}
