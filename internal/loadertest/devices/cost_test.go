//go:build !race

// The race detector has sync.Pool drop what it is given, at random.

package devices_test

import (
	"fmt"
	"math"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/cuda"
	"github.com/nwt-go/nwt/internal/cuda/cudatest"
	"github.com/nwt-go/nwt/internal/loadertest/kit"
)

func TestABatchCostsAFewCallsAndNoAllocation(t *testing.T) {
	for _, workers := range []int{0, 2} {
		t.Run(fmt.Sprintf("%d workers", workers), func(t *testing.T) {
			gpu := cudatest.Load(t)
			gpu.Inline()
			l := kit.NewLoader(t, kit.Augmented(1<<20), deviceOptions(t, workers)...)
			const warmup, n, stretch = 500, 2000, 400
			var mem runtime.MemStats
			calls, taken := 0, 0
			last, least := uint64(0), uint64(math.MaxUint64)
			for _, err := range l.Epoch(t.Context(), 0) {
				require.NoError(t, err)
				if taken++; taken == warmup {
					calls = gpu.Calls()
				}
				if taken >= warmup && (taken-warmup)%stretch == 0 {
					runtime.ReadMemStats(&mem)
					if taken > warmup {
						least = min(least, mem.Mallocs-last)
					}
					last = mem.Mallocs
				}
				if taken == warmup+n {
					calls = gpu.Calls() - calls
					break
				}
			}
			const aBatch = 7 // enter, copy, record, leave, and enter, wait, leave
			require.InDelta(t, aBatch*n, calls, 100)
			if cuda.Backend == "purego" { // the other's wrappers allocate
				// What batches allocate is in each stretch, what the runtime does now and then isn't.
				require.Less(t, least, uint64(stretch/10))
			}
		})
	}
}

func TestAShortBatchCostsACopyForEachField(t *testing.T) {
	gpu := cudatest.Load(t)
	l := kit.NewLoader(t, kit.Augmented(6), nwt.WithBatchSize(8), nwt.WithWorkers(0), nwt.WithDevice(kit.GPU0(t)))
	kit.Collect(t, l, 0)
	before := gpu.Calls()
	kit.Collect(t, l, 1)
	require.Equal(t, 6+2, gpu.Calls()-before)
}
