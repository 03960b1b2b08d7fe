package main

import (
	"context"
	"fmt"
	"image"
	"log/slog"
	"math"
	"os"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/examples/internal/photos"
)

// A folder is a dataset of image files. Each sample is a random part of its
// image, scaled and half the time mirrored, in CHW order, with its class.
type folder struct {
	files   []photos.File
	classes []string // sorted; a label is a place here
	size    int      // width and height of a sample
	repeat  int      // an epoch goes over the files so often
}

// open finds the image files of a folder.
func open(dir string, size int) (*folder, error) {
	files, classes, err := photos.Find(dir)
	return &folder{files: files, classes: classes, size: size, repeat: 1}, err
}

// check leaves out the files that can't be decoded, and says why (of 10 000 at
// most). That takes an epoch: where a dataset is too large for it, train with
// nwt.WithErrorBudget, which leaves such files out as it meets them.
func (f *folder) check(ctx context.Context, report func(nwt.Progress)) (bad []error, err error) {
	fields := []nwt.Field{{Name: "decodes", Type: nwt.Bool}}
	files := nwt.NewDataset(len(f.files), fields, func(_ context.Context, i int, _ *nwt.Sample) error {
		_, err := decode(f.files[i].Name)
		return err
	})
	loader, err := nwt.NewLoader(files, nwt.WithErrorBudget(len(f.files)), nwt.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return nil, err
	}
	defer loader.Close()
	var good []photos.File
	for batch, err := range loader.Epoch(ctx, 0) {
		if err != nil {
			return nil, err
		}
		for _, i := range batch.Indices() {
			good = append(good, f.files[i])
		}
		report(nwt.Progress{Phase: "checking files", Workers: loader.Workers(), Done: float64(batch.Index()+1) / float64(loader.Len())})
	}
	for _, e := range loader.BadSamples() {
		bad = append(bad, e.Err)
	}
	if len(good) == 0 {
		return nil, fmt.Errorf("none of the %d images can be decoded: %w", len(f.files), bad[0])
	}
	f.files = good
	return bad, nil
}

func (f *folder) Len() int { return len(f.files) * f.repeat }

func (f *folder) Fields() []nwt.Field {
	return []nwt.Field{
		{Name: "image", Type: nwt.Float32, Shape: []int{3, f.size, f.size}},
		{Name: "class", Type: nwt.Int64},
	}
}

func (f *folder) Load(_ context.Context, index int, dst *nwt.Sample) error {
	file := f.files[index%len(f.files)]
	img, err := decode(file.Name)
	if err != nil {
		return err
	}
	// The same part whenever this epoch is loaded, by whatever worker.
	photos.Augment(nwt.Values[float32](dst, 0), img, f.size, dst.Rand())
	nwt.Values[int64](dst, 1)[0] = int64(file.Class)
	return nil
}

// decode reads an image. Its errors name the file.
func decode(name string) (image.Image, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	img, err := photos.Decode(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return img, nil
}

// moments are of the values added so far: Welford's method, in the form of
// Chan, Golub and LeVeque that adds many at a time.
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
