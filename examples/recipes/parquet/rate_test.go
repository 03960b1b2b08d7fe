package main

import (
	"path/filepath"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/host"
)

// BenchmarkTable loads a table of 20 row groups of 5000 rows with 2 workers: samples a
// second, bytes of the features per batch, allocations per batch, and what loading adds
// to the peak memory.
// benchmarks/peers/recipes.py does the same work in PyTorch, as "parquet".
func BenchmarkTable(b *testing.B) {
	path := filepath.Join(b.TempDir(), "table.parquet")
	require.NoError(b, writeTable(path, 20, 5000, 8))
	t, err := openTable(path)
	require.NoError(b, err)
	defer t.Close()
	order, err := t.order(42)
	require.NoError(b, err)
	debug.FreeOSMemory()
	before, peak := host.Memory().RSS, host.StartPeak()
	l, err := nwt.NewLoader(t, nwt.WithSampler(order), nwt.WithBatchSize(256), nwt.WithWorkers(2))
	require.NoError(b, err)
	defer l.Close()
	samples, bytes, batches, epoch := 0, 0, 0, 0
	allocated := allocations(func() {
		for b.Loop() {
			for batch, err := range l.Epochs(b.Context(), epoch, epoch+2) {
				require.NoError(b, err)
				samples, batches = samples+batch.Len(), batches+1
				for f := range 8 {
					bytes += len(batch.Bytes(f))
				}
			}
			epoch += 2
		}
	})
	most, _ := peak.Stop()
	b.ReportMetric(float64(samples)/b.Elapsed().Seconds(), "samples/s")
	b.ReportMetric(float64(bytes)/float64(batches), "bytes/batch")
	b.ReportMetric(float64(allocated)/float64(batches), "allocs/batch")
	b.ReportMetric(float64(most-min(before, most))/1e6, "added-MB")
}
