package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/sampler"
)

// Text: sentences of similar length share a batch, which is padded to its longest sentence, rounded up.
// Batch.Lens gives an attention mask: it says which tokens are real.

const longestSentence = 128

var (
	sentenceSchema nwt.Schema
	sentence       = nwt.AddRagged[uint16](&sentenceSchema, "sentence", 1, longestSentence)
	tone           = nwt.AddField[int32](&sentenceSchema, "tone")
)

// A library holds sentences one after the other, as a memory-mapped file would.
type library struct {
	tokens []uint16
	ends   []int
}

func (l *library) sentence(i int) []uint16 {
	if i == 0 {
		return l.tokens[:l.ends[0]]
	}
	return l.tokens[l.ends[i-1]:l.ends[i]]
}

// sentences returns n sentences, and the options to load them.
func sentences(n int) (nwt.Dataset, []nwt.Option, error) {
	lib := madeSentences(n)
	length := func(i int) int { return len(lib.sentence(i)) }
	ds := nwt.NewDataset(n, sentenceSchema.Fields(), func(_ context.Context, i int, dst *nwt.Sample) error {
		sentence.Set(dst, lib.sentence(i)...)
		tone.Set(dst, int32(i%2))
		return nil
	})
	sized := nwt.Sized(ds, func(i int, sizes []int) { sizes[0] = (length(i) + 7) / 8 * 8 })
	order, err := sampler.Bucketed(n, length, sampler.Buckets{BatchSize: 16}, 42)
	return sized, []nwt.Option{nwt.WithSampler(order), nwt.WithBatchSize(16)}, err
}

func text(ctx context.Context, _ string, out io.Writer) error {
	ds, opts, err := sentences(400)
	if err != nil {
		return err
	}
	loader, err := nwt.NewLoader(ds, opts...)
	if err != nil {
		return err
	}
	defer loader.Close()
	words, places, samples := 0, 0, 0
	for batch, err := range loader.Epoch(ctx, 0) {
		if err != nil {
			return err
		}
		for _, n := range sentence.Lens(batch, 0) {
			words += int(n)
		}
		places += len(sentence.Of(batch)) // here a model is trained
		samples += batch.Len()
	}
	fmt.Fprintf(out, "  %d tokens in %d places; padded to the longest sentence allowed they would be %d\n", words, places, samples*longestSentence)
	return nil
}

// madeSentences returns n sentences, most of them short.
func madeSentences(n int) *library {
	rng, lib := rand.New(rand.NewPCG(3, 3)), &library{}
	for range n {
		for range 1 + int(rng.Float64()*rng.Float64()*(longestSentence-1)) {
			lib.tokens = append(lib.tokens, uint16(rng.IntN(1<<15)))
		}
		lib.ends = append(lib.ends, len(lib.tokens))
	}
	return lib
}
