package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"image"
	_ "image/gif"
	_ "image/jpeg"
	_ "image/png"
	"io/fs"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/image/draw"

	"github.com/nwt-go/nwt"
)

// A folder is a dataset of image files, as torchvision's ImageFolder: what lies
// below dir/cat is of class "cat". Each is a random part of its image, scaled
// and half the time mirrored, in CHW order, with its class.
type folder struct {
	files   []file
	classes []string // sorted; a label is a place here
	size    int      // width and height of a sample
	repeat  int      // an epoch goes over the files so often
}

type file struct {
	name  string
	class string
}

// open finds the image files of a folder.
func open(dir string, size int) (*folder, error) {
	f := &folder{size: size, repeat: 1}
	err := fs.WalkDir(os.DirFS(dir), ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		switch strings.ToLower(path.Ext(name)) {
		case ".jpg", ".jpeg", ".png", ".gif":
			class, _, below := strings.Cut(name, "/")
			if !below {
				class = "."
			}
			f.files = append(f.files, file{filepath.Join(dir, name), class})
			f.classes = append(f.classes, class)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	if len(f.files) == 0 {
		return nil, fmt.Errorf("%s: no .jpg, .jpeg, .png or .gif file in it or below", dir)
	}
	slices.Sort(f.classes)
	f.classes = slices.Compact(f.classes)
	return f, nil
}

// check leaves out the files that can't be decoded, and says why (of 10 000 at
// most). That takes an epoch: where a dataset is too large for it, train with
// nwt.WithErrorBudget, which leaves such files out as it meets them.
func (f *folder) check(ctx context.Context, report func(nwt.Progress)) (bad []error, err error) {
	fields := []nwt.Field{{Name: "decodes", Type: nwt.Bool}}
	files := nwt.NewDataset(len(f.files), fields, func(_ context.Context, i int, _ *nwt.Sample) error {
		_, err := decode(f.files[i].name)
		return err
	})
	loader, err := nwt.NewLoader(files, nwt.WithErrorBudget(len(f.files)), nwt.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return nil, err
	}
	defer loader.Close()
	var good []file
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
	img, err := decode(file.name)
	if err != nil {
		return err
	}
	rng := dst.Rand() // the same part whenever this epoch is loaded, by whatever worker
	part := crop(rng, img.Bounds())
	scaled := image.NewRGBA(image.Rect(0, 0, f.size, f.size))
	// For smoother large photos take draw.BiLinear, which is slower.
	draw.ApproxBiLinear.Scale(scaled, scaled.Bounds(), img, part, draw.Src, nil)
	normalize(nwt.Values[float32](dst, 0), scaled, rng.IntN(2) == 1)
	label, _ := slices.BinarySearch(f.classes, file.class)
	nwt.Values[int64](dst, 1)[0] = int64(label)
	return nil
}

// maxPixels keeps a file whose header lies from taking all memory.
const maxPixels = 100_000_000

// decode reads an image. Its errors name the file.
func decode(name string) (img image.Image, err error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	header, _, err := image.DecodeConfig(bytes.NewReader(data))
	if err == nil && int64(header.Width)*int64(header.Height) > maxPixels {
		err = fmt.Errorf("%d × %d pixels: must be at most %d in all", header.Width, header.Height, maxPixels)
	}
	if err == nil {
		img, _, err = image.Decode(bytes.NewReader(data))
	}
	if err == nil && img.Bounds().Empty() {
		err = errors.New("no pixels")
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return img, nil
}

// crop is a random part of r as torchvision's RandomResizedCrop picks it: 8 to
// 100 % of the area and between 3:4 and 4:3, or all of r if no try fits.
func crop(rng *rand.Rand, r image.Rectangle) image.Rectangle {
	for range 10 {
		area := (0.08 + 0.92*rng.Float64()) * float64(r.Dx()) * float64(r.Dy())
		ratio := math.Exp((2*rng.Float64() - 1) * math.Log(4.0/3))
		w, h := int(math.Round(math.Sqrt(area*ratio))), int(math.Round(math.Sqrt(area/ratio)))
		if 0 < w && w <= r.Dx() && 0 < h && h <= r.Dy() {
			at := r.Min.Add(image.Pt(rng.IntN(r.Dx()-w+1), rng.IntN(r.Dy()-h+1)))
			return image.Rectangle{Min: at, Max: at.Add(image.Pt(w, h))}
		}
	}
	return r
}

// The usual normalization of photos, from ImageNet, by channel.
var (
	mean      = [3]float64{0.485, 0.456, 0.406}
	deviation = [3]float64{0.229, 0.224, 0.225}
)

// normalize writes img, mirrored if flip, one channel after the other, as
// (value − mean) / deviation with values 0 … 1.
func normalize(dst []float32, img *image.RGBA, flip bool) {
	width := img.Rect.Dx()
	for c := range 3 {
		scale := float32(1 / (255 * deviation[c]))
		shift := float32(-mean[c] / deviation[c])
		for row := range slices.Chunk(img.Pix, img.Stride) {
			out := dst[:width]
			dst = dst[width:]
			for x := range out {
				out[x] = float32(row[4*x+c])*scale + shift
			}
			if flip {
				slices.Reverse(out)
			}
		}
	}
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
