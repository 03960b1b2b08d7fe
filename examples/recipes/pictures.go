package main

import (
	"bytes"
	"context"
	"fmt"
	"image"
	"image/color"
	"image/jpeg"
	"io"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/sampler"
	"github.com/nwt-go/nwt/vision"
)

// ImageNet's recipe: random crops and flips of JPEG files, each picture twice in an epoch (repeated
// augmentation), and mixup within a batch. For validation, the same files are loaded without any of it.

const classes = 4

var (
	pictureSchema nwt.Schema
	picture       = nwt.AddField[float32](&pictureSchema, "picture", 3, 32, 32)
	share         = nwt.AddField[float32](&pictureSchema, "share", classes) // of each class in the picture
)

// photographs returns a dataset of JPEG files, loaded by a pipeline.
func photographs(files [][]byte, transforms ...vision.Transform) (nwt.Dataset, error) {
	pipeline, err := vision.New(transforms)
	if err != nil {
		return nil, err
	}
	return nwt.NewDataset(len(files), pictureSchema.Fields(), func(_ context.Context, i int, dst *nwt.Sample) error {
		clear(share.Of(dst))
		share.Of(dst)[i%classes] = 1
		return pipeline.Load(dst, picture.Field(), files[i])
	}), nil
}

// mixup mixes each picture, and its shares of the classes, with the next one of its batch. The share is
// drawn once per batch.
func mixup(_ context.Context, b *nwt.Batch) error {
	weight := b.Rand().Float32()
	for _, values := range [][]float32{picture.Of(b), share.Of(b)} {
		size := len(values) / b.Len()
		for i := range values[size:] { // except for the last, which has no next one
			values[i] += weight * (values[i+size] - values[i])
		}
	}
	return nil
}

// twice returns the order of repeated augmentation: a picture comes twice in a row, and is
// cropped and flipped differently each time.
func twice(n int) (nwt.Sampler, error) {
	shuffled := nwt.Shuffled(n, 42)
	return sampler.Computed(2*n, func(epoch int) (order []int) {
		for i := range n {
			index := shuffled.At(epoch, i)
			order = append(order, index, index)
		}
		return order
	})
}

// picturesForTraining returns the augmented dataset, without mixup.
func picturesForTraining(files [][]byte) (nwt.Dataset, []nwt.Option, error) {
	ds, err := photographs(files, vision.RandomResizedCrop{Size: vision.Square(32)}, vision.RandomHorizontalFlip{P: 0.5}, vision.ImageNetNormalize)
	if err != nil {
		return nil, nil, err
	}
	order, err := twice(len(files))
	return ds, []nwt.Option{nwt.WithSampler(order), nwt.WithSeed(42), nwt.WithBatchSize(8)}, err
}

func pictures(ctx context.Context, _ string, out io.Writer) error {
	files, err := madePictures(24)
	if err != nil {
		return err
	}
	ds, opts, err := picturesForTraining(files)
	if err != nil {
		return err
	}
	training, err := nwt.NewLoader(ds, append(opts, nwt.WithBatchTransform(mixup))...)
	if err != nil {
		return err
	}
	defer training.Close()
	plain, err := photographs(files, vision.Resize{Size: vision.Square(36)}, vision.CenterCrop{Size: vision.Square(32)}, vision.ImageNetNormalize)
	if err != nil {
		return err
	}
	validation, err := nwt.NewLoader(plain, nwt.WithBatchSize(8))
	if err != nil {
		return err
	}
	defer validation.Close()
	for epoch := range 2 {
		for name, loader := range map[string]*nwt.Loader{"training": training, "validation": validation} {
			n := 0
			for batch, err := range loader.Epoch(ctx, epoch) {
				if err != nil {
					return err
				}
				n += len(share.Of(batch)) / classes // here a model is trained, or validated
			}
			if epoch == 1 {
				fmt.Fprintf(out, "  %s: %d pictures an epoch\n", name, n)
			}
		}
	}
	return nil
}

// madePictures returns n JPEG files in memory.
func madePictures(n int) (files [][]byte, err error) {
	for i := range n {
		img := image.NewRGBA(image.Rect(0, 0, 48, 40))
		for y := range 40 {
			for x := range 48 {
				img.Set(x, y, color.RGBA{uint8(5 * x), uint8(6 * y), uint8(10 * i), 255})
			}
		}
		var file bytes.Buffer
		if err := jpeg.Encode(&file, img, nil); err != nil {
			return nil, err
		}
		files = append(files, file.Bytes())
	}
	return files, nil
}
