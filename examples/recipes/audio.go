package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"math/cmplx"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/sampler"
)

// Audio: a random window of each recording, its spectrum by an FFT whose tables and buffers each worker
// keeps, and batches of clips of similar length.

const frame = 64 // samples per frame; a power of 2

var (
	audioSchema nwt.Schema
	spectrum    = nwt.AddRagged[float32](&audioSchema, "spectrum", 1, 20, frame/2) // frames of a clip, at most 20
)

// plan holds what an FFT of a frame needs.
type plan struct {
	turns  [frame / 2]complex128
	buffer [frame]complex128
}

func newPlan() (*plan, error) {
	p := &plan{}
	for k := range p.turns {
		p.turns[k] = cmplx.Exp(complex(0, -2*math.Pi*float64(k)/frame))
	}
	return p, nil
}

// magnitudes writes the lower half of a signal's spectrum.
func (p *plan) magnitudes(dst []float32, signal func(i int) float64) {
	for i := range p.buffer { // in bit-reversed order
		reversed := 0
		for bit := 1; bit < frame; bit <<= 1 {
			reversed <<= 1
			if i&bit != 0 {
				reversed |= 1
			}
		}
		p.buffer[reversed] = complex(signal(i), 0)
	}
	for size := 2; size <= frame; size *= 2 {
		for from := 0; from < frame; from += size {
			for k := range size / 2 {
				a, b := p.buffer[from+k], p.buffer[from+k+size/2]*p.turns[k*frame/size]
				p.buffer[from+k], p.buffer[from+k+size/2] = a+b, a-b
			}
		}
	}
	for k := range dst {
		dst[k] = float32(cmplx.Abs(p.buffer[k]))
	}
}

// framesOf returns the length of a recording, which is known without opening it.
func framesOf(i int) int { return 1 + i*7%20 }

// recordings returns n tones, each of its own pitch.
func recordings(n int) (nwt.Dataset, []nwt.Option, error) {
	ds := nwt.NewDataset(n, audioSchema.Fields(), func(_ context.Context, i int, dst *nwt.Sample) error {
		fft, err := nwt.Scratch(dst, newPlan)
		if err != nil {
			return err
		}
		frames, start := framesOf(i), dst.Rand().IntN(1000)
		spectrum.SetLen(dst, frames)
		for f := range frames {
			fft.magnitudes(spectrum.Of(dst)[f*frame/2:(f+1)*frame/2], func(k int) float64 {
				return math.Sin(2 * math.Pi * float64(1+i%30) * float64(start+f*frame+k) / frame)
			})
		}
		return nil
	})
	order, err := sampler.Bucketed(n, framesOf, sampler.Buckets{BatchSize: 8}, 42)
	sized := nwt.Sized(ds, func(i int, sizes []int) { sizes[0] = framesOf(i) })
	return sized, []nwt.Option{nwt.WithSampler(order), nwt.WithSeed(42), nwt.WithBatchSize(8)}, err
}

func audio(ctx context.Context, _ string, out io.Writer) error {
	ds, opts, err := recordings(200)
	if err != nil {
		return err
	}
	loader, err := nwt.NewLoader(ds, opts...)
	if err != nil {
		return err
	}
	defer loader.Close()
	frames, places := 0, 0
	for batch, err := range loader.Epoch(ctx, 0) {
		if err != nil {
			return err
		}
		for _, n := range spectrum.Lens(batch, 0) {
			frames += int(n)
		}
		places += batch.Len() * spectrum.Shape(batch)[1]
	}
	fmt.Fprintf(out, "  %d frames in %d places: each batch is as long as its longest clip\n", frames, places)
	return nil
}
