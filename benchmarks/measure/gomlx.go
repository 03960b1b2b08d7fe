package main

import (
	"iter"
	"log"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/ml/dataset"
	"github.com/gomlx/gomlx/ml/train"
)

// indexBatches is GoMLX's dataset of a workload's batches of indices.
type indexBatches struct {
	name    string
	indices iter.Seq[[]int]
}

func (d indexBatches) Name() string { return d.name }

func (d indexBatches) Iter() iter.Seq2[train.Batch, error] {
	return func(yield func(train.Batch, error) bool) {
		for indices := range d.indices {
			if !yield(train.Batch{Spec: indices}, nil) {
				return
			}
		}
	}
}

// gomlxParallel is GoMLX's parallel map on the host, from batches of indices to
// tensors. They are loaded in place, in memory of GoMLX's own; as its trainer
// does, each is freed after use. Without workers it is the map that isn't
// parallel.
func gomlxParallel[T float32 | uint8](w *workload[T], workers int) iter.Seq[[]T] {
	dtype := dtypes.FromGenericsType[T]()
	load := func(b train.Batch) train.Batch {
		indices := b.Spec.([]int)
		shape := shapes.Make(dtype, len(indices))
		if w.size == pixels {
			shape = shapes.Make(dtype, len(indices), 3, side, side)
		}
		t := tensors.FromShape(shape)
		tensors.MustMutableFlatData(t, func(flat []T) { w.fill(flat, indices, shared) })
		return train.Batch{Inputs: []*tensors.Tensor{t}}
	}
	source := indexBatches{w.name, w.orders()}
	batches := dataset.MapOnHost(source, load)
	if workers > 0 {
		batches = dataset.ParallelMapOnHost(source, load).WithParallelism(workers)
	}
	return func(yield func([]T) bool) {
		for b, err := range batches.Iter() {
			if err != nil {
				log.Fatal(err)
			}
			more := false
			tensors.MustConstFlatData(b.Inputs[0], func(flat []T) { more = yield(flat) })
			if err := b.Finalize(); err != nil {
				log.Fatal(err)
			}
			if !more {
				return
			}
		}
	}
}
