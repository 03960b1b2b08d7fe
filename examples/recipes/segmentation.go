package main

import (
	"context"
	"fmt"
	"image"
	"image/color"
	"image/jpeg"
	"image/png"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/vision"
)

// Segmentation: photographs and their masks, photos/NAME.jpg and masks/NAME.png, cropped and mirrored
// alike. A mask's values, which are levels of grey or indices in its palette, are classes.

// noClass is the class of pixels outside of the photograph, which the loss must leave out.
const noClass = 255

var segmentationTransforms = []vision.Transform{
	vision.Resize{Shorter: 72}, vision.RandomCrop{Size: vision.Square(64), Padding: 8},
	vision.RandomHorizontalFlip{P: 0.5}, vision.ColorJitter{Brightness: .2}, vision.ImageNetNormalize,
}

// pairs lists the photographs and their masks.
func pairs(dir string) (photos, masks []string, err error) {
	photos, err = filepath.Glob(filepath.Join(dir, "photos", "*.jpg"))
	for _, photo := range photos {
		mask := filepath.Join(dir, "masks", strings.TrimSuffix(filepath.Base(photo), ".jpg")+".png")
		if _, err := os.Stat(mask); err != nil {
			return nil, nil, fmt.Errorf("%s has no mask: %w", photo, err)
		}
		masks = append(masks, mask)
	}
	return photos, masks, err
}

// segmented returns a dataset of photographs, "photo", and the class of each pixel, "classes".
func segmented(photos, masks []string, transforms ...vision.Transform) (nwt.Dataset, error) {
	pictures, err := vision.New(transforms)
	if err != nil {
		return nil, err
	}
	classes, err := pictures.Masks(nwt.Int64, noClass)
	if err != nil {
		return nil, err
	}
	fields := []nwt.Field{pictures.Field("photo"), classes.Field("classes")}
	return nwt.NewDataset(len(photos), fields, func(_ context.Context, i int, dst *nwt.Sample) error {
		photo, err := os.ReadFile(photos[i])
		if err != nil {
			return err
		}
		mask, err := os.ReadFile(masks[i])
		if err != nil {
			return err
		}
		drawn, err := pictures.Choose(dst, 0, photo)
		if err != nil {
			return fmt.Errorf("%s: %w", photos[i], err)
		}
		if err := drawn.Load(classes, 1, mask); err != nil {
			return fmt.Errorf("%s: %w", masks[i], err)
		}
		return nil
	}), nil
}

func segmentation(ctx context.Context, dir string, out io.Writer) error {
	if err := makePairs(dir, 12); err != nil {
		return err
	}
	photos, masks, err := pairs(dir)
	if err != nil {
		return err
	}
	ds, err := segmented(photos, masks, segmentationTransforms...)
	if err != nil {
		return err
	}
	loader, err := nwt.NewLoader(ds, nwt.WithShuffle(42), nwt.WithBatchSize(4))
	if err != nil {
		return err
	}
	defer loader.Close()
	classes, err := nwt.ColumnOf[int64](ds, "classes")
	if err != nil {
		return err
	}
	samples, pixels, known := 0, 0, 0
	for batch, err := range loader.Epoch(ctx, 0) {
		if err != nil {
			return err
		}
		for _, class := range classes.Of(batch) { // here a model is trained
			if class != noClass {
				known++
			}
		}
		samples, pixels = samples+batch.Len(), pixels+len(classes.Of(batch))
	}
	fmt.Fprintf(out, "  %d photographs; pixels of a class: %d of %d\n", samples, known, pixels)
	return nil
}

// makePairs writes n photographs and their masks, which have a palette.
func makePairs(dir string, n int) error {
	palette := color.Palette{color.Black, color.RGBA{200, 40, 40, 255}, color.RGBA{40, 40, 200, 255}}
	for _, folder := range []string{"photos", "masks"} {
		if err := os.MkdirAll(filepath.Join(dir, folder), 0o755); err != nil {
			return err
		}
	}
	for i := range n {
		mask := image.NewPaletted(image.Rect(0, 0, 96, 80), palette)
		for y := range 80 {
			for x := range 96 {
				mask.SetColorIndex(x, y, uint8((x/(20+i)+y/30)%3))
			}
		}
		name := fmt.Sprintf("%04d", i)
		err := write(filepath.Join(dir, "photos", name+".jpg"), func(w io.Writer) error { return jpeg.Encode(w, mask, nil) })
		if err != nil {
			return err
		}
		err = write(filepath.Join(dir, "masks", name+".png"), func(w io.Writer) error { return png.Encode(w, mask) })
		if err != nil {
			return err
		}
	}
	return nil
}

func write(name string, encode func(w io.Writer) error) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	if err := encode(f); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}
