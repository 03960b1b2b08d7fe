package vision_test

import (
	"bytes"
	"context"
	"image"
	"image/jpeg"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/vision"
)

// apart returns by how many levels two pictures differ, on average and at most.
func apart(a, b []uint8) (mean, most float64) {
	for i, v := range a {
		d := math.Abs(float64(v) - float64(b[i]))
		mean, most = mean+d/float64(len(a)), max(most, d)
	}
	return mean, most
}

// inFull returns what a pipeline makes of a picture that is decoded at its full size.
func inFull(t *testing.T, p *vision.Pipeline, data []byte) []uint8 {
	t.Helper()
	ds := nwt.NewDataset(1, []nwt.Field{p.Field("image")}, func(_ context.Context, _ int, dst *nwt.Sample) error {
		return vision.LoadCrops(dst, data, vision.Crop{Pipeline: p})
	})
	s, err := nwt.LoadSample(t.Context(), ds, 0)
	require.NoError(t, err)
	return nwt.Values[uint8](s, 0)
}

func TestAPictureFourTimesAsLargeAsItsResultIsDecodedSmallerAndLooksAlike(t *testing.T) {
	for name, least := range map[string]int{
		"420.jpg": 4, "444.jpg": 4, "grey.jpg": 4, "photo.jpg": 4, "odd.jpg": 4, "progressive.jpg": 4, "restart.jpg": 4, "separate.jpg": 4,
		"exif3.jpg": 4, "exif6.jpg": 4, "exif7.jpg": 4,
		"422.jpg": 8, // chroma has half as many columns already
	} {
		data := read(t, name)
		config, err := jpeg.DecodeConfig(bytes.NewReader(data))
		require.NoError(t, err)
		width, height := config.Width, config.Height
		if name == "exif6.jpg" || name == "exif7.jpg" {
			width, height = height, width
		}
		for _, by := range []int{3, 4, 6, 8, 12} {
			size := vision.Size{Height: height / by, Width: width / by} // of a scale of at least by
			if by == 3 {
				size.Height, size.Width = height/3+1, width/3+1
			}
			steps := []vision.Transform{vision.Resize{Size: size}}
			p, err := vision.New(steps, vision.WithType(nwt.Uint8), vision.WithOrientation())
			require.NoError(t, err)
			mean, most := apart(nwt.Values[uint8](load(t, p, data), 0), inFull(t, p, data))
			require.Equal(t, by >= least, mean > 0, "%s, %d", name, by)
			require.LessOrEqual(t, mean, 1.2, "%s, %d", name, by)
			require.LessOrEqual(t, most, 25.0, "%s, %d", name, by)
		}
	}
}

// A ramp has no detail that could be lost: what is left is where its pixels lie, at the crop's edges too.
func TestACropOfAPictureThatIsDecodedSmallerLiesWhereItDid(t *testing.T) {
	const side = 900
	ramp := image.NewRGBA(image.Rect(0, 0, side, side))
	for i := range side * side {
		x, y := i%side, i/side
		copy(ramp.Pix[4*i:], []byte{byte(x * 255 / side), byte(y * 255 / side), byte((x + y) * 255 / side / 2), 255})
	}
	file := encoded(t, func(b *bytes.Buffer) error { return jpeg.Encode(b, ramp, &jpeg.Options{Quality: 100}) })
	for _, from := range []int{0, 1, 2, 3, 77, 163} {
		for _, n := range []int{300, 641, 737} { // 4.6 to 11 pixels each
			steps := []vision.Transform{
				vision.FixedCrop{Left: from, Top: from / 2, Size: vision.Square(n)}, vision.Resize{Size: vision.Square(64)}, vision.RandomHorizontalFlip{P: 0.5},
			}
			p, err := vision.New(steps, vision.WithType(nwt.Uint8))
			require.NoError(t, err)
			_, most := apart(nwt.Values[uint8](load(t, p, file), 0), inFull(t, p, file))
			require.LessOrEqual(t, most, 3.0, "from %d, %d pixels", from, n)
		}
	}
}

func TestAMaskIsNotDecodedSmaller(t *testing.T) {
	mask := image.NewGray(image.Rect(0, 0, 400, 400))
	for i := range mask.Pix {
		mask.Pix[i] = byte(i % 400 / 8 * 5)
	}
	file := encoded(t, func(b *bytes.Buffer) error { return jpeg.Encode(b, mask, &jpeg.Options{Quality: 100}) })
	pictures, masks := withMasks(t, nwt.Uint8, 0, vision.Resize{Size: vision.Square(25)})
	s := loadAll(t, 1, []nwt.Field{pictures.Field("image"), masks.Field("mask")}, func(dst *nwt.Sample) error {
		choices, err := pictures.Choose(dst, 0, file)
		if err != nil {
			return err
		}
		return choices.Load(masks, 1, file)
	})
	for i, v := range nwt.Values[uint8](s, 1) {
		require.InDelta(t, mask.Pix[i%25*16+8], v, 1)
	}
}
