package main

import (
	"context"
	"iter"
	"log"
	"math"
	"time"

	"github.com/nwt-go/nwt"
)

// nwtDataset returns a workload as a dataset, vectorised or by sample, and the options
// to load it with.
func nwtDataset[T float32 | uint8](w *workload[T], variant string) (nwt.Dataset, []nwt.Option) {
	opts := []nwt.Option{nwt.WithBatchSize(w.batch), nwt.WithShuffle(1)}
	if w.size == photoSize {
		open := func() (nwt.Dataset, error) { return photoDataset(w.name, variant) }
		if w.name == "shards" {
			open = shardDataset
		}
		ds, err := open()
		if err != nil {
			log.Fatal(err)
		}
		return ds, opts
	}
	field := nwt.Field{Name: w.name, Type: nwt.Float32}
	if _, bytes := any(w).(*workload[uint8]); bytes {
		field.Type = nwt.Uint8
	}
	if w.size == pixels {
		field.Shape = []int{3, side, side}
	}
	ds := nwt.NewDataset(w.samples, []nwt.Field{field}, func(_ context.Context, i int, dst *nwt.Sample) error {
		w.load(nwt.Values[T](dst, 0), i, dst)
		return nil
	})
	switch variant {
	case "vectorised":
		ds = filled[T]{ds, w}
	case "unordered":
		opts = append(opts, nwt.WithUnordered())
	}
	return ds, opts
}

// filled loads many samples in one call, as the other Go loaders do. None of them
// may need randomness.
type filled[T float32 | uint8] struct {
	nwt.Dataset
	w *workload[T]
}

func (f filled[T]) LoadMany(_ context.Context, indices []int, dst []*nwt.Sample) error {
	f.w.fill(nwt.ValuesOf[T](dst, 0), indices, nil)
	return nil
}

// nwtLoader returns the subject.
func nwtLoader[T float32 | uint8](w *workload[T], variant string, workers int) iter.Seq[[]T] {
	return func(yield func([]T) bool) {
		ds, opts := nwtDataset(w, variant)
		l, err := nwt.NewLoader(ds, append(opts, nwt.WithWorkers(workers))...)
		if err != nil {
			log.Fatal(err)
		}
		defer l.Close()
		for b, err := range l.Epochs(context.Background(), 0, math.MaxInt32) {
			if err != nil {
				log.Fatal(err)
			}
			if !yield(nwt.Values[T](b, 0)) {
				return
			}
		}
	}
}

// tune returns the count that nwt finds for a workload, and for a step that takes so long.
func tune[T float32 | uint8](w *workload[T], variant string, step time.Duration) *nwt.Result {
	ds, opts := nwtDataset(w, variant)
	if step > 0 {
		opts = append(opts, nwt.WithStep(func(context.Context, *nwt.Batch) error {
			time.Sleep(step)
			return nil
		}))
	}
	if w.name == "photos" { // iterations take long
		opts = append(opts, nwt.WithTuningTime(20*time.Second))
	}
	r, err := nwt.Tune(context.Background(), ds, opts...)
	if err != nil {
		log.Fatal(err)
	}
	return r
}
