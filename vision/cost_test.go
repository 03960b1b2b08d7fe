//go:build !race

package vision_test

import (
	"bytes"
	"context"
	"image"
	"image/png"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/vision"
)

func TestAPictureCostsNoAllocation(t *testing.T) {
	for _, name := range []string{"photo.jpg", "restarts-progressive.jpg"} {
		p, err := vision.New(append([]vision.Transform{recipe[0], recipe[1], vision.ColorJitter{Brightness: .4, Hue: .1}}, recipe[2:]...))
		require.NoError(t, err)
		const n = 100
		l, err := nwt.NewLoader(repeated(p, n, read(t, name)), nwt.WithBatchSize(n), nwt.WithWorkers(0))
		require.NoError(t, err)
		defer l.Close()
		epoch := func() {
			for _, err := range l.Epoch(t.Context(), 0) {
				require.NoError(t, err)
			}
		}
		require.Less(t, testing.AllocsPerRun(3, epoch)/n, 0.2, "%s; an epoch itself has some", name)
	}
}

func TestPicturesOfOneDrawCostNoAllocation(t *testing.T) {
	p, err := vision.New(append([]vision.Transform{recipe[0], recipe[1], vision.ColorJitter{Brightness: .4, Hue: .1}}, recipe[2:]...))
	require.NoError(t, err)
	masks, err := p.Masks(nwt.Int64, 255)
	require.NoError(t, err)
	const n = 50
	photo, mask := read(t, "420.jpg"), read(t, "grey.jpg")
	ds := nwt.NewDataset(n, []nwt.Field{p.Frames("clip", 4), masks.Field("mask"), p.Field("image")}, func(_ context.Context, _ int, dst *nwt.Sample) error {
		draw, err := p.Choose(dst, 0, photo, photo, photo, photo)
		if err != nil {
			return err
		}
		draw.Box(vision.Box{1, 2, 3, 4})
		if err := draw.Load(masks, 1, mask); err != nil {
			return err
		}
		return draw.Load(p, 2, photo)
	})
	l, err := nwt.NewLoader(ds, nwt.WithBatchSize(n), nwt.WithWorkers(0))
	require.NoError(t, err)
	defer l.Close()
	epoch := func() {
		for _, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
		}
	}
	require.Less(t, testing.AllocsPerRun(3, epoch)/n, 0.5, "an epoch itself has some")
}

// Decoders of the standard library allocate for each file, but nothing may allocate for
// each pixel.
func TestPixelsOfOtherKindsAreConvertedWithoutAllocations(t *testing.T) {
	p, err := vision.New([]vision.Transform{vision.Resize{Size: vision.Square(16)}})
	require.NoError(t, err)
	area := image.Rect(0, 0, 100, 100)
	wide := func(img image.Image) []byte {
		return encoded(t, func(b *bytes.Buffer) error { return png.Encode(b, img) })
	}
	for name, data := range map[string][]byte{
		"inks":               read(t, "cmyk.jpg"),
		"grey of 16 bits":    wide(&image.Gray16{Pix: noise(20_000), Stride: 200, Rect: area}),
		"colours of 16 bits": wide(opaque{&image.RGBA64{Pix: noise(80_000), Stride: 800, Rect: area}}),
		"see-through":        wide(&image.NRGBA64{Pix: noise(80_000), Stride: 800, Rect: area}),
	} {
		var perPicture float64
		_, err = loadOf(t, p.Field("image"), func(dst *nwt.Sample) error {
			perPicture = testing.AllocsPerRun(5, func() { _ = p.Load(dst, 0, data) })
			return nil
		})
		require.NoError(t, err)
		require.Less(t, perPicture, 100.0, name)
	}
}

// opaque is an image that says that nothing shines through.
type opaque struct{ *image.RGBA64 }

func (opaque) Opaque() bool { return true }
