package main

import (
	"bytes"
	"context"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/jpeg"
	"io"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/vision"
)

// Detection: photographs and the boxes of the objects in them, cropped and mirrored alike. A box that
// becomes less than a pixel wide or high is left out, as torchvision's SanitizeBoundingBoxes does.

const mostFound = 10

var (
	roadSchema nwt.Schema
	road       = nwt.AddField[float32](&roadSchema, "road", 3, 64, 64)
	found      = nwt.AddRagged[float32](&roadSchema, "found", 1, mostFound, 4) // left, top, right, bottom
	kinds      = nwt.AddRagged[int64](&roadSchema, "kinds", 1, mostFound)      // what is in each box
)

var detectionTransforms = []vision.Transform{
	vision.RandomResizedCrop{Size: vision.Square(64), Scale: [2]float64{.3, 1}},
	vision.RandomHorizontalFlip{P: 0.5}, vision.ColorJitter{Brightness: .2}, vision.ImageNetNormalize,
}

// An annotated is a JPEG file with its boxes.
type annotated struct {
	file  []byte
	boxes []vision.Box
	kinds []int64
}

// detected returns a dataset of annotated photographs.
func detected(all []annotated, transforms ...vision.Transform) (nwt.Dataset, error) {
	pictures, err := vision.New(transforms)
	if err != nil {
		return nil, err
	}
	return nwt.NewDataset(len(all), roadSchema.Fields(), func(_ context.Context, i int, dst *nwt.Sample) error {
		drawn, err := pictures.Choose(dst, road.Field(), all[i].file)
		if err != nil {
			return err
		}
		n := 0
		for k, b := range all[i].boxes {
			box, share := drawn.Box(b)
			if share == 0 || box[2]-box[0] < 1 || box[3]-box[1] < 1 { // share < 0.3 would also leave out boxes that are mostly cut off
				continue
			}
			if n == mostFound {
				return fmt.Errorf("more than %d boxes", mostFound)
			}
			copy(found.Of(dst)[4*n:], box[:])
			kinds.Of(dst)[n] = all[i].kinds[k]
			n++
		}
		found.SetLen(dst, n)
		kinds.SetLen(dst, n)
		return nil
	}), nil
}

func detection(ctx context.Context, _ string, out io.Writer) error {
	roads, err := madeRoads(40)
	if err != nil {
		return err
	}
	ds, err := detected(roads, detectionTransforms...)
	if err != nil {
		return err
	}
	loader, err := nwt.NewLoader(ds, nwt.WithShuffle(42), nwt.WithBatchSize(8))
	if err != nil {
		return err
	}
	defer loader.Close()
	samples, kept, all := 0, 0, 0
	for batch, err := range loader.Epoch(ctx, 0) {
		if err != nil {
			return err
		}
		for i, n := range found.Lens(batch, 0) { // here a model is trained
			kept, all = kept+int(n), all+len(roads[batch.Indices()[i]].boxes)
		}
		samples += batch.Len()
	}
	fmt.Fprintf(out, "  %d photographs; boxes kept: %d of %d\n", samples, kept, all)
	return nil
}

// madeRoads returns n photographs in memory, with up to three boxes each.
func madeRoads(n int) (all []annotated, err error) {
	for i := range n {
		img, a := image.NewRGBA(image.Rect(0, 0, 120, 90)), annotated{}
		for k := range i % 4 {
			at := image.Rect(10+30*k, 5+i%40, 35+30*k, 40+i%40)
			draw.Draw(img, at, image.NewUniform(color.RGBA{uint8(80 * k), 200, uint8(5 * i), 255}), image.Point{}, draw.Src)
			a.boxes = append(a.boxes, vision.Box{float32(at.Min.X), float32(at.Min.Y), float32(at.Max.X), float32(at.Max.Y)})
			a.kinds = append(a.kinds, int64(k))
		}
		var file bytes.Buffer
		if err := jpeg.Encode(&file, img, nil); err != nil {
			return nil, err
		}
		a.file = file.Bytes()
		all = append(all, a)
	}
	return all, nil
}
