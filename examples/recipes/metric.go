package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/sampler"
)

// Metric learning: each batch has P classes with K samples each.

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

func metric(ctx context.Context, _ string, out io.Writer) error {
	const identities = 12
	ds, labels, err := faces(identities)
	if err != nil {
		return err
	}
	order, err := sampler.PerClass(labels, sampler.ClassBatch{Classes: perBatch, Samples: ofEach}, 42)
	if err != nil {
		return err
	}
	loader, err := nwt.NewLoader(ds, nwt.WithSampler(order), nwt.WithBatchSize(perBatch*ofEach))
	if err != nil {
		return err
	}
	defer loader.Close()
	for epoch := range 3 {
		for batch, err := range loader.Epoch(ctx, epoch) {
			if err != nil {
				return err
			}
			_ = identity.Of(batch) // here a model is trained on pairs or triplets of the batch
		}
		fmt.Fprintf(out, "  epoch %d: %d batches of %d classes × %d\n", epoch, loader.Len(), perBatch, ofEach)
	}
	return nil
}
