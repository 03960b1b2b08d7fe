package nwt_test

import (
	"flag"
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

var soak = flag.Bool("soak", false, "run ten million batches instead of 100 000, and require flat throughput")

// raceDetector tells whether the test runs under the race detector.
var raceDetector = false

func TestMillionsOfBatchesTakeNoMoreMemoryAndTimeThanTheFirst(t *testing.T) {
	batches := 100_000
	if *soak {
		batches = 10_000_000
	}
	// The runtime's own memory grows for a while, on more CPUs by more.
	const warmup, parts = 5, 10
	type part struct {
		rss, objects uint64
		took         time.Duration
	}
	var all [warmup + parts]part
	l := newLoader(t, emptyDataset(1<<20), nwt.WithBatchSize(8), nwt.WithShuffle(1), nwt.WithWorkers(2))
	began, n := time.Now(), 0
	var kept *nwt.Batch
	for b, err := range l.Epochs(t.Context(), 0, 1<<30) {
		require.NoError(t, err)
		if n%1000 == 0 { // what a program does now and then
			if kept != nil {
				kept.Release()
			}
			b.Retain()
			kept = b
			require.NoError(t, l.SetWorkers(1+n/1000%3))
		}
		if n++; n%(batches/parts) != 0 {
			continue
		}
		p := &all[n/(batches/parts)-1]
		p.took = time.Since(began)
		debug.FreeOSMemory()
		var mem runtime.MemStats
		runtime.ReadMemStats(&mem)
		p.rss = nwt.ResidentMemory()
		p.objects = mem.HeapObjects
		began = time.Now()
		if n/(batches/parts) == len(all) {
			break
		}
	}
	kept.Release()
	noSlotLost(t, l, 0)
	first, last := all[warmup], all[len(all)-1]
	t.Logf("resident %d → %d bytes, heap objects %d → %d, %v → %v a batch", first.rss, last.rss, first.objects, last.objects,
		first.took/time.Duration(batches/parts), last.took/time.Duration(batches/parts))
	// The runtime keeps a little for each goroutine there ever was at once.
	require.LessOrEqual(t, last.objects, first.objects+500)
	if !raceDetector { // its own memory comes and goes by megabytes
		require.LessOrEqual(t, last.rss, first.rss+max(first.rss/100, 1<<20))
	}
	if *soak {
		require.Less(t, last.took, 2*first.took)
	}
}
