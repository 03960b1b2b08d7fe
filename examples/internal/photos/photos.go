// Package photos finds, decodes and augments images as those who train on
// ImageNet do.
package photos

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
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/image/draw"
)

// A File is an image file and its class.
type File struct {
	Name  string
	Class int
}

// Find finds the image files of a folder, as torchvision's ImageFolder: what lies
// below dir/cat is of class "cat". The classes are sorted.
func Find(dir string) (files []File, classes []string, err error) {
	var of []string // the class of each file
	err = fs.WalkDir(os.DirFS(dir), ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		switch strings.ToLower(path.Ext(name)) {
		case ".jpg", ".jpeg", ".png", ".gif":
			class, _, below := strings.Cut(name, "/")
			if !below {
				class = "."
			}
			files = append(files, File{Name: filepath.Join(dir, name)})
			of = append(of, class)
		}
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", dir, err)
	}
	if len(files) == 0 {
		return nil, nil, fmt.Errorf("%s: no .jpg, .jpeg, .png or .gif file in it or below", dir)
	}
	classes = slices.Compact(slices.Sorted(slices.Values(of)))
	for i := range files {
		files[i].Class, _ = slices.BinarySearch(classes, of[i])
	}
	return files, classes, nil
}

// Bundled is the folder of the images that come with Go, for its own tests.
// Some of them are corrupt on purpose.
func Bundled(ctx context.Context) (string, error) {
	root, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	dir := filepath.Join(strings.TrimSpace(string(root)), "src", "image")
	if _, missing := os.Stat(filepath.Join(dir, "testdata")); err != nil || missing != nil {
		return "", errors.New("the images that come with Go, below image in its sources, aren't here: pass a folder of images with -dir")
	}
	return dir, nil
}

// maxPixels keeps an image whose header lies from taking all memory.
const maxPixels = 100_000_000

// Decode makes an image of a file's content.
func Decode(data []byte) (img image.Image, err error) {
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
	return img, err
}

// Augment writes a random part of img, scaled to size × size and half the time
// mirrored, in CHW order, normalized.
func Augment(dst []float32, img image.Image, size int, rng *rand.Rand) {
	part := crop(rng, img.Bounds())
	scaled := image.NewRGBA(image.Rect(0, 0, size, size))
	// For smoother large photos take draw.BiLinear, which is slower.
	draw.ApproxBiLinear.Scale(scaled, scaled.Bounds(), img, part, draw.Src, nil)
	normalize(dst, scaled, rng.IntN(2) == 1)
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
	Mean      = [3]float64{0.485, 0.456, 0.406}
	Deviation = [3]float64{0.229, 0.224, 0.225}
)

// normalize writes img, mirrored if flip, one channel after the other, as
// (value − mean) / deviation with values 0 … 1.
func normalize(dst []float32, img *image.RGBA, flip bool) {
	width := img.Rect.Dx()
	for c := range 3 {
		scale := float32(1 / (255 * Deviation[c]))
		shift := float32(-Mean[c] / Deviation[c])
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
