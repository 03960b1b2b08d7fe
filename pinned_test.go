package nwt_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/cuda/cudatest"
)

func TestBatchesLieInPageLockedMemoryWhereThatHelps(t *testing.T) {
	gpu := cudatest.Load(t)
	for name, c := range map[string]struct {
		opts []nwt.Option
		want bool
	}{
		"GPU":            {[]nwt.Option{nwt.WithDevice(gpu0(t))}, true},
		"GPU, asked for": {[]nwt.Option{nwt.WithDevice(gpu0(t)), nwt.WithPinned(true)}, true},
		"GPU, declined":  {[]nwt.Option{nwt.WithDevice(gpu0(t)), nwt.WithPinned(false)}, false},
		"host":           {nil, false},
		"host, declined": {[]nwt.Option{nwt.WithPinned(false)}, false},
		// What other runtimes in the process copy from at full speed.
		"host, asked for":    {[]nwt.Option{nwt.WithPinned(true)}, true},
		"the last word wins": {[]nwt.Option{nwt.WithPinned(true), nwt.WithPinned(false)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLoader(t, augmented(70), append(c.opts, nwt.WithBatchSize(7), nwt.WithWorkers(2))...)
			collect(t, l, 0)
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
		l := newLoader(t, augmented(70), nwt.WithBatchSize(7), nwt.WithWorkers(0), nwt.WithPinned(true), nwt.WithRank(rank, 8))
		collect(t, l, 0)
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
