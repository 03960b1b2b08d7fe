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
// come more than once in an epoch.

const (
	perIdentity = 10 // samples of each class, one class after the other
	perBatch    = 4  // P
	ofEach      = 3  // K
)

var (
	faceSchema nwt.Schema
	_          = nwt.AddField[float32](&faceSchema, "vector", 2)
	identity   = nwt.AddField[int32](&faceSchema, "class")
)

// faces returns a dataset of vectors around the mean of their class, with the class.
func faces(identities int) (nwt.Dataset, error) {
	rng := rand.New(rand.NewPCG(1, 1))
	var vectors []float32
	var labels []int32
	for class := range identities {
		for range perIdentity {
			vectors = append(vectors, float32(class)+0.3*rng.Float32(), float32(class%3)+0.3*rng.Float32())
			labels = append(labels, int32(class))
		}
	}
	return nwt.FromSlices(nwt.SliceOf("vector", vectors, 2), nwt.SliceOf("class", labels))
}

// balanced returns the order for P × K batches. Each class comes once and, if it is hard, once more. The
// order is a function of the epoch and of hard: so save hard in the checkpoint.
func balanced(identities int, hard []int) (nwt.Sampler, error) {
	turns := slices.Clone(hard)
	for class := range identities {
		turns = append(turns, class)
	}
	turns = turns[:len(turns)/perBatch*perBatch]
	return sampler.Computed(len(turns)*ofEach, func(epoch int) (order []int) {
		classes := nwt.Shuffled(len(turns), 42)
		for i := range turns {
			class := turns[classes.At(epoch, i)]
			samples := nwt.Shuffled(perIdentity, uint64(i)) // for this turn of the class
			for k := range ofEach {
				order = append(order, class*perIdentity+samples.At(epoch, k))
			}
		}
		return order
	})
}

func metric(ctx context.Context, _ string, out io.Writer) error {
	const identities = 12
	ds, err := faces(identities)
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
		order, err := balanced(identities, hard)
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
			labels := identity.Of(batch)
			for i := 0; i < len(labels); i += ofEach {
				if class := int(labels[i]); class%3 == 0 && !slices.Contains(hard, class) {
					hard = append(hard, class) // as if the model confused them
				}
			}
		}
		slices.Sort(hard)
		fmt.Fprintf(out, "  epoch %d: %d batches of %d classes × %d; hard: %v\n", epoch, loader.Len(), perBatch, ofEach, hard)
	}
	return nil
}
