//go:build !race

// The race detector has sync.Pool drop what it is given, at random.

package nwt_test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/cuda"
	"github.com/nwt-go/nwt/internal/cuda/cudatest"
)

func TestABatchCostsAFewCallsAndNoAllocation(t *testing.T) {
	for _, workers := range []int{0, 2} {
		for _, async := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d workers, async %v", workers, async), func(t *testing.T) {
				gpu := cudatest.Load(t)
				gpu.Inline()
				l := newLoader(t, augmented(1<<20), deviceOptions(t, workers, async)...)
				const warmup, n = 500, 2000
				var before, after runtime.MemStats
				calls, taken := 0, 0
				for _, err := range l.Epoch(t.Context(), 0) {
					require.NoError(t, err)
					switch taken++; taken {
					case warmup:
						runtime.ReadMemStats(&before)
						calls = gpu.Calls()
					case warmup + n:
						calls = gpu.Calls() - calls
						runtime.ReadMemStats(&after)
					}
					if taken == warmup+n {
						break
					}
				}
				const aBatch = 7 // enter, copy, record, leave, and enter, wait, leave
				require.InDelta(t, aBatch*n, calls, 100)
				if cuda.Backend == "purego" { // the other's wrappers allocate
					require.Less(t, after.Mallocs-before.Mallocs, uint64(n/10), "of the test and of the runtime")
				}
			})
		}
	}
}

func TestAShortBatchCostsACopyForEachField(t *testing.T) {
	gpu := cudatest.Load(t)
	l := newLoader(t, augmented(6), nwt.WithBatchSize(8), nwt.WithWorkers(0), nwt.WithDevice(gpu0(t)))
	collect(t, l, 0)
	before := gpu.Calls()
	collect(t, l, 1)
	require.Equal(t, 6+2, gpu.Calls()-before)
}
