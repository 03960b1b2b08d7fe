package main

import (
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/host"
)

// BenchmarkRecipes loads the recipes with 2 workers: samples a second, bytes of the
// first field per batch, and what loading adds to the peak memory.
// benchmarks/peers/recipes.py does the same work in PyTorch.
//
//	go test -run '^$' -bench Recipes/text ./examples/recipes
func BenchmarkRecipes(b *testing.B) {
	for name, n := range map[string]int{
		"text": 20_000, "shapes": 4000, "pretrain": 400, "audio": 5000, "pictures": 1000, "metric": 5000, "rowgroups": 10_000,
	} {
		b.Run(name, func(b *testing.B) {
			ds, opts, err := made[name](b, n)
			require.NoError(b, err)
			if name == "pictures" {
				opts = append(opts, nwt.WithBatchTransform(mixup))
			}
			debug.FreeOSMemory()
			before, peak := host.Memory().RSS, host.StartPeak()
			l, err := nwt.NewLoader(ds, append(opts, nwt.WithWorkers(2))...)
			require.NoError(b, err)
			defer l.Close()
			samples, bytes, batches, epoch := 0, 0, 0, 0
			for b.Loop() {
				for batch, err := range l.Epochs(b.Context(), epoch, epoch+2) {
					require.NoError(b, err)
					samples, bytes, batches = samples+batch.Len(), bytes+len(batch.Bytes(0)), batches+1
				}
				epoch += 2
			}
			most, _ := peak.Stop()
			b.ReportMetric(float64(samples)/b.Elapsed().Seconds(), "samples/s")
			b.ReportMetric(float64(bytes)/float64(batches), "bytes/batch")
			b.ReportMetric(float64(most-min(before, most))/1e6, "added-MB")
		})
	}
}
