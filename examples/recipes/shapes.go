package main

import (
	"context"
	"fmt"
	"io"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/sampler"
)

// Pictures of different height and width, each with some boxes. Pictures of similar shape
// share a batch, which is padded to the largest height and width and to the most boxes in it.

const (
	tallest, widest = 64, 96
	mostBoxes       = 8
)

var (
	sceneSchema nwt.Schema
	scene       = nwt.AddRagged[uint8](&sceneSchema, "scene", 2, tallest, widest, 3)
	boxes       = nwt.AddRagged[float32](&sceneSchema, "boxes", 1, mostBoxes, 4) // left, top, right, bottom
	things      = nwt.AddRagged[int64](&sceneSchema, "things", 1, mostBoxes)     // what is in each box
)

// sceneSize returns what a file's header or an index of the annotations says, without decoding the
// picture.
func sceneSize(i int) (height, width, n int) { return 40 + i*7%25, 60 + i*11%37, 1 + i%mostBoxes }

// scenes returns n annotated pictures, and the options to load them.
func scenes(n int) (nwt.Dataset, []nwt.Option, error) {
	ds := nwt.NewDataset(n, sceneSchema.Fields(), func(_ context.Context, i int, dst *nwt.Sample) error {
		height, width, n := sceneSize(i)
		scene.SetShape(dst, height, width)
		boxes.SetLen(dst, n)
		things.SetLen(dst, n)
		flipped := dst.Rand().IntN(2) == 1
		row := scene.Shape(dst)[1] * 3 // of the batch, whose rows may be longer than the picture's
		for y := range height {
			drawRow(scene.Of(dst)[y*row:][:width*3], i, y, flipped)
		}
		for k := range n {
			left, right := float32(k), float32(width-k)/2
			if flipped {
				left, right = float32(width)-right, float32(width)-left
			}
			copy(boxes.Of(dst)[4*k:], []float32{left, float32(k), right, float32(height - k)})
			things.Of(dst)[k] = int64(i + k)
		}
		return nil
	})
	sized := nwt.Sized(ds, func(i int, sizes []int) {
		height, width, n := sceneSize(i)
		sizes[0], sizes[1], sizes[2], sizes[3] = height, width, n, n
	})
	order, err := sampler.Bucketed(n, func(i int) int {
		height, width, _ := sceneSize(i)
		return 100 * width / height // pictures of the same aspect ratio have similar sizes here
	}, sampler.Buckets{BatchSize: 8}, 42)
	return sized, []nwt.Option{nwt.WithSampler(order), nwt.WithSeed(42), nwt.WithBatchSize(8)}, err
}

// drawRow stands for a decoder.
func drawRow(row []uint8, i, y int, flipped bool) {
	width := len(row) / 3
	for x := range width {
		from := x
		if flipped {
			from = width - 1 - x
		}
		row[3*x], row[3*x+1], row[3*x+2] = uint8(i), uint8(y), uint8(from)
	}
}

func shapes(ctx context.Context, _ string, out io.Writer) error {
	ds, opts, err := scenes(200)
	if err != nil {
		return err
	}
	loader, err := nwt.NewLoader(ds, opts...)
	if err != nil {
		return err
	}
	defer loader.Close()
	samples, found, bytes := 0, 0, 0
	for batch, err := range loader.Epoch(ctx, 0) {
		if err != nil {
			return err
		}
		for _, n := range boxes.Lens(batch, 0) { // here a model is trained
			found += int(n)
		}
		samples += batch.Len()
		bytes += len(scene.Of(batch))
	}
	fmt.Fprintf(out, "  %d pictures with %d boxes: %d kB; padded to the largest picture allowed they would be %d kB\n",
		samples, found, bytes/1000, samples*tallest*widest*3/1000)
	return nil
}
