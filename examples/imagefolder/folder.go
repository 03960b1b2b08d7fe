package main

import (
	"context"
	"fmt"
	"log/slog"
	"math"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/folder"
	"github.com/nwt-go/nwt/vision"
)

// images is the dataset of the pictures in a folder that can be decoded.
type images struct {
	*vision.Folder
	good   []int // their indices in the folder
	size   int   // width and height of a sample
	repeat int   // how many times an epoch goes through the files
}

// recipe returns the usual training pipeline for ImageNet: a random part of the picture,
// scaled, mirrored half the time, normalized, in CHW order.
func recipe(size int) []vision.Transform {
	return []vision.Transform{
		vision.RandomResizedCrop{Size: vision.Square(size)},
		vision.RandomHorizontalFlip{P: 0.5},
		vision.ImageNetNormalize,
	}
}

// open finds the pictures of a folder.
func open(ctx context.Context, dir string, size int, opts ...folder.Option) (*images, error) {
	pipeline, err := vision.New(recipe(size))
	if err != nil {
		return nil, err
	}
	folder, err := vision.OpenFolder(ctx, dir, pipeline, opts...)
	if err != nil {
		return nil, err
	}
	return &images{Folder: folder, size: size, repeat: 1}, nil
}

// check leaves out the files that can't be decoded, and says why (for 10 000 files at most). This takes
// an epoch. If a dataset is too large for that, train with nwt.WithErrorBudget instead, which leaves such
// files out during training.
func (f *images) check(ctx context.Context, report func(nwt.Progress)) (bad []error, err error) {
	pipeline, err := vision.New([]vision.Transform{vision.Resize{Size: vision.Square(8)}}, vision.WithType(nwt.Uint8))
	if err != nil {
		return nil, err
	}
	files, err := f.With(pipeline) // it looks at each picture as a whole
	if err != nil {
		return nil, err
	}
	loader, err := nwt.NewLoader(files, nwt.WithErrorBudget(files.Len()), nwt.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return nil, err
	}
	defer loader.Close()
	for batch, err := range loader.Epoch(ctx, 0) {
		if err != nil {
			return nil, err
		}
		f.good = append(f.good, batch.Indices()...)
		report(nwt.Progress{Phase: "checking files", Workers: loader.Workers(), Done: float64(batch.Number()+1) / float64(loader.Len())})
	}
	for _, e := range loader.BadSamples() {
		bad = append(bad, e.Err)
	}
	if len(f.good) == 0 {
		return nil, fmt.Errorf("none of the %d images can be decoded: %w", files.Len(), bad[0])
	}
	return bad, nil
}

func (f *images) Len() int { return len(f.good) * f.repeat }

func (f *images) Load(ctx context.Context, index int, dst *nwt.Sample) error {
	return f.Folder.Load(ctx, f.good[index%len(f.good)], dst)
}

// moments describe the values added so far. They use Welford's method, in the form of Chan, Golub and
// LeVeque that adds many values at a time.
type moments struct{ n, mean, squares float64 }

func (m *moments) add(values []float32) {
	n, sum, squares := float64(len(values)), 0.0, 0.0
	for _, v := range values {
		sum += float64(v)
	}
	for _, v := range values {
		d := float64(v) - sum/n
		squares += d * d
	}
	apart := sum/n - m.mean
	m.squares += squares + apart*apart*m.n*n/(m.n+n)
	m.mean += apart * n / (m.n + n)
	m.n += n
}

func (m *moments) deviation() float64 { return math.Sqrt(m.squares / m.n) }
