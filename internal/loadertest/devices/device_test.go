package devices_test

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/cuda"
	"github.com/nwt-go/nwt/internal/cuda/cudatest"
	"github.com/nwt-go/nwt/internal/loadertest/kit"
)

func TestMain(m *testing.M) { kit.Main(m) }

func TestCUDASaysWhyThereIsNoGPU(t *testing.T) {
	gpu := cudatest.Load(t)
	for _, c := range []struct {
		gpus, ordinal int
		says          string
	}{
		{0, 0, "nwt: CUDA(0): no CUDA device: NVIDIA's driver is here but sees no GPU"},
		{2, 2, "nwt: CUDA(2): no CUDA device: GPU 2 asked for, and the driver has GPUs 0 to 1"},
		{1, -1, "nwt: CUDA(-1): no CUDA device: GPU -1 asked for, and the driver has GPUs 0 to 0"},
	} {
		gpu.GPUs(c.gpus)
		dev, err := nwt.CUDA(c.ordinal)
		require.Nil(t, dev)
		require.ErrorIs(t, err, nwt.ErrNoDevice)
		require.ErrorContains(t, err, c.says)
	}
}

// noDriver makes this a machine without a driver.
func noDriver(t *testing.T) {
	t.Helper()
	if cuda.Backend == "gorgonia.org/cu" {
		t.Skip("this binary is linked with a driver")
	}
	before := cuda.Library
	cuda.Library = "libnone.so.1"
	t.Cleanup(func() { cuda.Library = before })
}

func TestCUDASaysThatThereIsNoDriver(t *testing.T) {
	noDriver(t)
	_, err := nwt.CUDA(0)
	require.ErrorIs(t, err, nwt.ErrNoDevice)
	require.Regexp(t, `nwt: CUDA\(0\): no CUDA device: (NVIDIA's driver library can't be loaded: libnone.so.1|this binary was built without cgo|GPUs work on)`, err.Error())
}

func TestADeviceIsKnownByNumberAndModel(t *testing.T) {
	gpu := cudatest.Load(t)
	gpu.GPUs(2)
	dev, err := nwt.CUDA(1)
	require.NoError(t, err)
	require.Equal(t, "cuda:1 (Fake GPU 1)", dev.String())
	require.Equal(t, "host", nwt.Host().String())
}

func TestEveryDeviceHasALoaderOfItsOwn(t *testing.T) {
	gpu := cudatest.Load(t)
	gpu.GPUs(2)
	gpu.Limit(cudatest.DeviceMemory, 3*(64+192)) // what one loader needs of each
	var training sync.WaitGroup
	for ordinal := range 2 {
		dev, err := nwt.CUDA(ordinal)
		require.NoError(t, err)
		l := kit.NewLoader(t, kit.Augmented(333), nwt.WithBatchSize(8), nwt.WithRank(ordinal, 2), nwt.WithDevice(dev))
		training.Go(func() {
			t.Run(dev.String(), func(t *testing.T) {
				for b, err := range l.Epochs(t.Context(), 0, 3) {
					require.NoError(t, err)
					require.Equal(t, samples(b), arrived(t, gpu, b))
				}
			})
		})
	}
	training.Wait()
}

func TestStatsTellWhatWasCopied(t *testing.T) {
	gpu := cudatest.Load(t)
	gpu.Delay(2 * time.Millisecond)
	l := kit.NewLoader(t, kit.Augmented(50), nwt.WithBatchSize(8), nwt.WithWorkers(2), nwt.WithDevice(kit.GPU0(t)))
	require.Zero(t, l.Stats().DeviceBytes)
	for _, err := range l.Epochs(t.Context(), 0, 2) {
		require.NoError(t, err)
	}
	s := l.Stats()
	require.Equal(t, 2*7, s.Copied)
	require.EqualValues(t, 2*50*(8+24), s.CopiedBytes)
	require.EqualValues(t, 3*(64+192), s.DeviceBytes)
	require.EqualValues(t, s.Slots*(64+192), s.SlotBytes)
	require.GreaterOrEqual(t, s.Transfer, 2*time.Millisecond)
	require.NoError(t, l.Close())
	require.Zero(t, l.Stats().DeviceBytes)
}

// These two do the same: one on the GPU of this machine, if it has one.

func TestAGPUHoldsWhatTheLoaderCopied(t *testing.T) { holdsWhatWasCopied(t, kit.RealGPU(t)) }

func TestTheFakeHoldsWhatTheLoaderCopied(t *testing.T) {
	cudatest.Load(t)
	holdsWhatWasCopied(t, kit.GPU0(t))
}

func holdsWhatWasCopied(t *testing.T, dev nwt.Device) {
	for _, pinned := range []nwt.Option{nwt.WithPinned(), nwt.WithoutPinned()} {
		l := kit.NewLoader(t, kit.Augmented(9999), nwt.WithBatchSize(1000), nwt.WithShuffle(1), nwt.WithWorkers(3), nwt.WithDevice(dev), pinned)
		for b, err := range l.Epochs(t.Context(), 0, 3) {
			require.NoError(t, err)
			for f := range 2 {
				require.Equal(t, b.Bytes(f), cudatest.ReadBack(t, 0, b.DevicePtr(f), len(b.Bytes(f))))
			}
		}
	}
}

func TestBatchesLieInPageLockedMemoryWhereThatHelps(t *testing.T) {
	gpu := cudatest.Load(t)
	for name, c := range map[string]struct {
		opts []nwt.Option
		want bool
	}{
		"GPU":            {[]nwt.Option{nwt.WithDevice(kit.GPU0(t))}, true},
		"GPU, asked for": {[]nwt.Option{nwt.WithDevice(kit.GPU0(t)), nwt.WithPinned()}, true},
		"GPU, declined":  {[]nwt.Option{nwt.WithDevice(kit.GPU0(t)), nwt.WithoutPinned()}, false},
		"host":           {nil, false},
		"host, declined": {[]nwt.Option{nwt.WithoutPinned()}, false},
		// What other runtimes in the process copy from at full speed.
		"host, asked for":    {[]nwt.Option{nwt.WithPinned()}, true},
		"the last word wins": {[]nwt.Option{nwt.WithPinned(), nwt.WithoutPinned()}, false},
	} {
		t.Run(name, func(t *testing.T) {
			l := kit.NewLoader(t, kit.Augmented(70), append(c.opts, nwt.WithBatchSize(7), nwt.WithWorkers(2))...)
			kit.Collect(t, l, 0)
			slots := 0
			if c.want {
				slots = l.Stats().Slots
				require.Positive(t, slots)
			}
			require.Equal(t, slots, gpu.Left()[cudatest.HostMemory])
			require.NoError(t, l.Close())
			require.Empty(t, gpu.Left())
		})
	}
}

// The driver's page-locked memory needs a context: each rank's is on a GPU of its
// own, not all of them on the first.
func TestPageLockedMemoryOnTheHostTakesTheRanksGPU(t *testing.T) {
	gpu := cudatest.Load(t)
	gpu.GPUs(4)
	for rank := range 8 {
		l := kit.NewLoader(t, kit.Augmented(70), nwt.WithBatchSize(7), nwt.WithWorkers(0), nwt.WithPinned(), nwt.WithRank(rank, 8))
		kit.Collect(t, l, 0)
		var used []int
		for i := range 4 {
			if gpu.Retained(i) > 0 {
				used = append(used, i)
			}
		}
		require.Equal(t, []int{rank % 4}, used)
		require.NoError(t, l.Close())
	}
}
