package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/sampler"
)

// Pretraining of a language model: windows of files of tokens, two corpora mixed by
// weights that change after a warm-up, and a checkpoint in the middle of an epoch.

const window = 32 // tokens that a sample predicts

var (
	textSchema nwt.Schema
	tokens     = nwt.AddField[uint16](&textSchema, "tokens", window+1) // inputs, and one token more for the targets
)

// corpus returns a file of tokens, 2 bytes each. A sample begins at a random place in its window, each
// time at another one.
func corpus(path string) (nwt.Dataset, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	open := func() (*os.File, error) { return os.Open(path) } // each worker has its own
	return nwt.NewDataset(int(info.Size())/2/window-2, textSchema.Fields(), func(_ context.Context, i int, dst *nwt.Sample) error {
		file, err := nwt.Scratch(dst, open)
		if err != nil {
			return err
		}
		data := dst.Bytes(tokens.Field())
		if _, err := file.ReadAt(data, int64(2*(i*window+dst.Rand().IntN(window)))); err != nil {
			return err
		}
		for k := range tokens.Of(dst) {
			tokens.Of(dst)[k] = binary.LittleEndian.Uint16(data[2*k:])
		}
		return nil
	}), nil
}

// pretraining returns the mixture and the options to load it.
func pretraining(dir string) (nwt.Dataset, []nwt.Option, error) {
	var parts []nwt.Dataset
	mix := nwt.Mix{Block: 100, Phases: []nwt.Phase{
		{Samples: 300, Weights: []float64{0.9, 0.1}},
		{Weights: []float64{0.6, 0.4}},
	}}
	for i, n := range []int{20_000, 3_000} {
		path := filepath.Join(dir, fmt.Sprintf("corpus-%d.bin", i))
		if err := writeTokens(path, n, i); err != nil {
			return nil, nil, err
		}
		part, err := corpus(path)
		if err != nil {
			return nil, nil, err
		}
		parts, mix.Parts = append(parts, part), append(mix.Parts, part.Len())
	}
	ds, err := nwt.Concat(parts...)
	if err != nil {
		return nil, nil, err
	}
	order, err := sampler.Mixed(400, mix, 42)
	return ds, []nwt.Option{nwt.WithSampler(order), nwt.WithSeed(42), nwt.WithBatchSize(16), nwt.WithDropLast()}, err
}

func pretrain(ctx context.Context, dir string, out io.Writer) error {
	ds, opts, err := pretraining(dir)
	if err != nil {
		return err
	}
	var checkpoint []byte
	train := func(steps int) error {
		loader, err := nwt.NewLoader(ds, opts...)
		if err != nil {
			return err
		}
		defer loader.Close()
		var state nwt.State // the start of training
		if checkpoint != nil {
			if err := json.Unmarshal(checkpoint, &state); err != nil {
				return err
			}
		}
		for batch, err := range loader.ResumeEpochs(ctx, state, 2) {
			if err != nil {
				return err
			}
			_ = tokens.Of(batch) // here a model is trained
			if checkpoint, err = json.Marshal(batch.State()); err != nil {
				return err
			}
			if steps--; steps == 0 {
				return nil
			}
		}
		return nil
	}
	for _, steps := range []int{10, 100} { // preempted after 10
		if err := train(steps); err != nil {
			return err
		}
		fmt.Fprintf(out, "  checkpoint: %s\n", checkpoint)
	}
	return nil
}

// writeTokens writes n tokens whose lowest bit identifies the corpus.
func writeTokens(path string, n, corpus int) error {
	rng := rand.New(rand.NewPCG(uint64(corpus), 1))
	var data []byte
	for range n {
		data = binary.LittleEndian.AppendUint16(data, uint16(rng.IntN(1<<15)*2+corpus))
	}
	return os.WriteFile(path, data, 0o644)
}
