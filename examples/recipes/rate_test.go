package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

// BenchmarkRecipes loads the recipes with 2 workers: samples a second, bytes of the
// first field per batch. benchmarks/peers/recipes.py does the same work in PyTorch.
//
//	go test -run '^$' -bench Recipes/text ./examples/recipes
func BenchmarkRecipes(b *testing.B) {
	for name, recipe := range map[string]func() (nwt.Dataset, []nwt.Option, error){
		"text":      func() (nwt.Dataset, []nwt.Option, error) { return sentences(20_000) },
		"detection": func() (nwt.Dataset, []nwt.Option, error) { return scenes(4000) },
		"pretrain":  func() (nwt.Dataset, []nwt.Option, error) { return pretraining(b.TempDir()) },
		"audio":     func() (nwt.Dataset, []nwt.Option, error) { return recordings(5000) },
		"pictures": func() (nwt.Dataset, []nwt.Option, error) {
			files, err := madePictures(1000)
			require.NoError(b, err)
			ds, opts, err := picturesForTraining(files)
			return ds, append(opts, nwt.WithFinish(mixup)), err
		},
	} {
		b.Run(name, func(b *testing.B) {
			ds, opts, err := recipe()
			require.NoError(b, err)
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
			b.ReportMetric(float64(samples)/b.Elapsed().Seconds(), "samples/s")
			b.ReportMetric(float64(bytes)/float64(batches), "bytes/batch")
		})
	}
}
