package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/sampler"
)

// Metric learning: each batch has P classes with K samples each. Classes that the model still confuses
// come twice as often.

const (
	perIdentity = 10 // samples of each class
	perBatch    = 4  // P
	ofEach      = 3  // K
)

var (
	faceSchema nwt.Schema
	_          = nwt.AddField[float32](&faceSchema, "vector", 2)
	identity   = nwt.AddField[int32](&faceSchema, "label")
)

// faces returns a dataset of vectors around the mean of their class, and the class of each.
func faces(identities int) (ds nwt.Dataset, labels []int, err error) {
	rng := rand.New(rand.NewPCG(1, 1))
	var vectors []float32
	var column []int32
	for class := range identities {
		for range perIdentity {
			vectors = append(vectors, float32(class)+0.3*rng.Float32(), float32(class%3)+0.3*rng.Float32())
			labels, column = append(labels, class), append(column, int32(class))
		}
	}
	ds, err = nwt.FromSlices(nwt.SliceOf("vector", vectors, 2), nwt.SliceOf("label", column))
	return ds, labels, err
}

// balanced returns the order for P × K batches, in which hard classes come twice as often. It is a function
// of the epoch and of hard: so save hard in the checkpoint.
func balanced(labels []int, hard []int) (nwt.Sampler, error) {
	weights := make([]float64, slices.Max(labels)+1)
	for class := range weights {
		weights[class] = 1
		if slices.Contains(hard, class) {
			weights[class] = 2
		}
	}
	return sampler.PerClass(labels, sampler.ClassBatch{Classes: perBatch, Samples: ofEach, Weights: weights}, 42)
}

func metric(ctx context.Context, _ string, out io.Writer) error {
	const identities = 12
	ds, labels, err := faces(identities)
	if err != nil {
		return err
	}
	loader, err := nwt.NewLoader(ds, nwt.WithBatchSize(perBatch*ofEach))
	if err != nil {
		return err
	}
	defer loader.Close()
	var hard []int
	for epoch := range 3 {
		order, err := balanced(labels, hard)
		if err != nil {
			return err
		}
		if err := loader.SetSampler(order); err != nil {
			return err
		}
		hard = nil
		for batch, err := range loader.Epoch(ctx, epoch) {
			if err != nil {
				return err
			}
			classes := identity.Of(batch)
			for i := 0; i < len(classes); i += ofEach {
				if class := int(classes[i]); class%3 == 0 && !slices.Contains(hard, class) {
					hard = append(hard, class) // as if the model confused them
				}
			}
		}
		slices.Sort(hard)
		fmt.Fprintf(out, "  epoch %d: %d batches of %d classes × %d; hard: %v\n", epoch, loader.Len(), perBatch, ofEach, hard)
	}
	return nil
}
