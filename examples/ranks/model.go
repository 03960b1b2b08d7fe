package main

import (
	"context"
	"math/rand/v2"

	"github.com/nwt-go/nwt"
)

// truth is what the model learns: y = truth · x + noise.
var truth = []float64{3, -2, 1, 0.5, -1, 2, -3, 0.25}

const learningRate = 0.05

var (
	schema nwt.Schema
	inputs = nwt.AddField[float64](&schema, "x", len(truth))
	target = nwt.AddField[float64](&schema, "y")
)

// regression returns a dataset of points x with their y. A point depends on its index
// alone.
func regression(n int) nwt.Dataset {
	return nwt.NewDataset(n, schema.Fields(), func(_ context.Context, index int, dst *nwt.Sample) error {
		random := rand.New(rand.NewPCG(7, uint64(index)))
		x, y := inputs.Of(dst), target.Of(dst)
		y[0] = 0.01 * random.NormFloat64()
		for i := range x {
			x[i] = random.NormFloat64()
			y[0] += truth[i] * x[i]
		}
		return nil
	})
}

// gradient returns the gradient of the squared error, summed over the samples of a batch.
func gradient(weights []float64, b *nwt.Batch) []float64 {
	sum := make([]float64, len(weights))
	x, y := inputs.Of(b), target.Of(b)
	for i := range y {
		x := x[i*len(weights):][:len(weights)]
		off := -y[i]
		for j := range x {
			off += weights[j] * x[j]
		}
		for j := range x {
			sum[j] += off * x[j]
		}
	}
	return sum
}

// descend makes the step from the sum of all ranks' reports, and returns whether one of them was asked to
// stop. Every rank computes the same.
func descend(weights []float64, all []report) (stop bool) {
	samples := 0
	for _, r := range all {
		samples += r.Samples
		stop = stop || r.Stop
	}
	for _, r := range all {
		for j := range weights {
			weights[j] -= learningRate * r.Gradient[j] / float64(samples)
		}
	}
	return stop
}
