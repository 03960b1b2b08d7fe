package nwt_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/cuda"
	"github.com/nwt-go/nwt/internal/cuda/cudatest"
)

func TestADeviceThatIsShortOfMemoryHasFewerBatchesAtOnce(t *testing.T) {
	for _, async := range []bool{false, true} {
		for fit := 1; fit <= 3; fit++ {
			t.Run(fmt.Sprintf("async %v, room for %d", async, fit), func(t *testing.T) {
				gpu := cudatest.Load(t)
				p := newTrainer(t, gpu, 1<<20)
				var log journal
				gpu.Fail("cuMemAlloc_v2", fit+1, cuda.OutOfMemory)
				l := newLoader(t, augmented(101), append(deviceOptions(t, 2, async), log.option())...)
				var want []byte
				promptly(t, func() {
					for b, err := range l.Epochs(t.Context(), 0, 2) {
						require.NoError(t, err)
						if b.Epoch() == 0 && b.Index() == 0 {
							require.Eventually(t, func() bool {
								s := l.Stats()
								return s.DeviceBytes == fit*s.SlotBytes/s.Slots && (fit == 3 || log.String() != "")
							}, time.Minute, time.Millisecond)
						}
						want = append(want, samples(b)...)
						p.step(b)
						b.ReleaseAfterEvent(p.record())
					}
					s := l.Stats()
					require.Equal(t, fit*s.SlotBytes/s.Slots, s.DeviceBytes)
					require.NoError(t, l.Close())
				})
				require.Equal(t, want, p.end())
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
}

// To wait for a retained batch would be to wait for a program that may let go of it
// only after the next.
func TestMemoryThatIsShortForRetainedBatchesIsAnError(t *testing.T) {
	for _, async := range []bool{false, true} {
		gpu := cudatest.Load(t)
		var log journal
		l := newLoader(t, augmented(100), append(deviceOptions(t, 2, async), log.option())...)
		want := collect(t, l, 0)
		size := l.Stats().DeviceBytes / 3
		gpu.Limit(cudatest.DeviceMemory, uint64(5*size))
		for range 2 {
			var kept []*nwt.Batch
			var last error
			promptly(t, func() {
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
		require.Equal(t, want, collect(t, l, 0), "with what is left")
		require.NoError(t, l.Close())
	}
}
