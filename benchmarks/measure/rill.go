package main

import (
	"iter"
	"log"
	"math/rand/v2"

	"github.com/destel/rill"
)

// shared is a generator for functions that don't know whose goroutine they are
// in: the runtime's own, which any may use.
var shared = generator{rand.New(runtimeSource{})}

type runtimeSource struct{}

func (runtimeSource) Uint64() uint64 { return rand.Uint64() }

// rillBatches maps batches of indices, in order. A batch belongs to whoever
// gets it, so each is new.
func rillBatches[T float32 | uint8](w *workload[T], workers int) iter.Seq[[]T] {
	return func(yield func([]T) bool) {
		indices := rill.FromSeq(w.orders(), nil)
		batches := rill.OrderedMap(indices, workers, func(indices []int) ([]T, error) {
			batch := make([]T, len(indices)*w.size)
			w.fill(batch, indices, shared)
			return batch, nil
		})
		for batch, err := range rill.ToSeq2(batches) {
			if err != nil {
				log.Fatal(err)
			}
			if !yield(batch) {
				return // the pipeline has no end, and goes on until the process has
			}
		}
	}
}

// rillSamples maps indices and puts what comes out into batches: for samples
// that wait, so that a batch doesn't take as long as all of its samples.
func rillSamples[T float32 | uint8](w *workload[T], workers int) iter.Seq[[]T] {
	return func(yield func([]T) bool) {
		for {
			indices := rill.FromSlice(rand.Perm(w.samples), nil)
			samples := rill.OrderedMap(indices, workers, func(i int) (T, error) {
				var sample [1]T
				w.load(sample[:], i, shared)
				return sample[0], nil
			})
			for batch, err := range rill.ToSeq2(rill.Batch(samples, w.batch, -1)) {
				if err != nil {
					log.Fatal(err)
				}
				if !yield(batch) {
					return
				}
			}
		}
	}
}
