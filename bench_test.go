package nwt_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/nwt-go/nwt"
)

var scalar = []nwt.Field{{Name: "x", Type: nwt.Float32}}

func emptyDataset(n int) nwt.Dataset {
	return nwt.NewDataset(n, scalar, func(context.Context, int, *nwt.Sample) error { return nil })
}

func BenchmarkEmpty(b *testing.B) {
	for _, workers := range []int{0, 1, 2, 4, 16} {
		b.Run(fmt.Sprintf("loader=nwt/workers=%d", workers), func(b *testing.B) {
			l, err := nwt.NewLoader(emptyDataset(1<<30), nwt.WithBatchSize(128), nwt.WithWorkers(workers))
			if err != nil {
				b.Fatal(err)
			}
			defer l.Close()
			b.ReportAllocs()
			n := 0
			for _, err := range l.Epochs(b.Context(), 0, 1000) {
				if err != nil {
					b.Fatal(err)
				}
				if n++; n == 100 {
					b.ResetTimer()
				}
				if n == b.N+100 {
					break
				}
			}
		})
		if workers > 0 {
			b.Run(fmt.Sprintf("loader=hand/workers=%d", workers), func(b *testing.B) {
				b.ReportAllocs()
				handLoop(b, workers, 128, b.N)
			})
		}
	}
}

func handLoop(b *testing.B, workers, batch, n int) {
	jobs := make(chan int, 2*workers)
	type res struct {
		i    int
		data []float32
	}
	out := make(chan res, 2*workers)
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for i := range jobs {
				r := res{i, make([]float32, batch)}
				for k := range r.data {
					r.data[k] = float32(k)
				}
				out <- r
			}
		})
	}
	go func() {
		for i := range n {
			jobs <- i
		}
		close(jobs)
		wg.Wait()
		close(out)
	}()
	next := 0
	pending := map[int]res{}
	for r := range out {
		pending[r.i] = r
		for {
			if _, ok := pending[next]; !ok {
				break
			}
			delete(pending, next)
			next++
		}
	}
}
