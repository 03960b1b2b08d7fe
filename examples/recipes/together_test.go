package main

import (
	"encoding/json"
	"image"
	"image/png"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/vision"
)

var (
	photoFile = filepath.Join("..", "..", "vision", "testdata", "photo.jpg")
	maskFile  = filepath.Join("..", "..", "vision", "testdata", "mask.png")
)

// alike are testdata/together.py's transforms.
var alike = []vision.Transform{
	vision.CenterCrop{Size: vision.Size{Height: 200, Width: 300}}, vision.Resize{Size: vision.Square(64)}, vision.RandomHorizontalFlip{P: 1}, vision.ImageNetNormalize,
}

func picture64(t *testing.T, name string) image.Image {
	f, err := os.Open(filepath.Join("testdata", name))
	require.NoError(t, err)
	defer f.Close()
	img, err := png.Decode(f)
	require.NoError(t, err)
	require.Equal(t, image.Rect(0, 0, 64, 64), img.Bounds())
	return img
}

// requirePhoto compares a normalized photograph to torchvision's.
func requirePhoto(t *testing.T, got []float32) {
	want, sum := picture64(t, "together.png"), 0.0
	for i, v := range got {
		r, g, b, _ := want.At(i%64, i/64%64).RGBA()
		c := i / (64 * 64)
		level := 255 * (float64(v)*vision.ImageNetNormalize.Std[c] + vision.ImageNetNormalize.Mean[c])
		sum += math.Abs(level - float64([3]uint32{r, g, b}[c]>>8))
	}
	require.LessOrEqual(t, sum/float64(len(got)), 0.6, "mean absolute difference, of 255")
}

func TestSegmentationMakesOfPhotographsAndMasksWhatTorchvisionMakes(t *testing.T) {
	ds, err := segmented([]string{photoFile}, []string{maskFile}, alike...)
	require.NoError(t, err)
	s, err := nwt.LoadSample(t.Context(), ds, 0)
	require.NoError(t, err)
	requirePhoto(t, nwt.Values[float32](s, 0))
	want := picture64(t, "together-mask.png").(*image.Gray)
	for i, class := range nwt.Values[int64](s, 1) {
		require.EqualValues(t, want.Pix[i], class, "pixel %d", i)
	}
}

func TestDetectionKeepsTheBoxesThatTorchvisionKeeps(t *testing.T) {
	var e struct {
		Boxes, Kept []vision.Box
		Labels      []int64
	}
	data, err := os.ReadFile(filepath.Join("testdata", "together.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &e))
	photo, err := os.ReadFile(photoFile)
	require.NoError(t, err)
	all := []annotated{{file: photo, boxes: e.Boxes, kinds: []int64{0, 1, 2, 3, 4, 5}}, {file: photo}}
	ds, err := detected(all, alike...)
	require.NoError(t, err)
	l, err := nwt.NewLoader(ds, nwt.WithBatchSize(2))
	require.NoError(t, err)
	defer l.Close()
	for b, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
		requirePhoto(t, road.Of(b)[:3*64*64])
		require.Equal(t, []int32{int32(len(e.Kept)), 0}, found.Lens(b, 0), "the second has no boxes")
		require.Equal(t, e.Labels, kinds.Of(b)[:len(e.Labels)])
		for i, want := range e.Kept {
			require.InDeltaSlice(t, want[:], found.Of(b)[4*i:][:4], 1e-3)
		}
	}
}

func TestAPhotographWithoutItsMaskIsNamed(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, makePairs(dir, 3))
	require.NoError(t, os.Remove(filepath.Join(dir, "masks", "0001.png")))
	_, _, err := pairs(dir)
	require.ErrorContains(t, err, filepath.Join("photos", "0001.jpg")+" has no mask")
}
