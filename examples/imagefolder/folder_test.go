package main

import (
	"bytes"
	"image"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/vision"
)

// opened returns a folder all of whose files can be decoded.
func opened(t *testing.T, dir string, size int) *images {
	t.Helper()
	found, err := open(t.Context(), dir, size)
	require.NoError(t, err)
	bad, err := found.check(t.Context(), func(nwt.Progress) {})
	require.NoError(t, err)
	require.Empty(t, bad)
	return found
}

func TestASampleIsNormalizedPlanesAndTheClassOfItsFolder(t *testing.T) {
	dir := t.TempDir()
	write(t, red, 30, 20, dir, "b", "deeper", "1.png")
	write(t, grey, 30, 20, dir, "a", "2.png")
	write(t, grey, 30, 20, dir, "a", "z.png")
	images := opened(t, dir, 4)
	require.Equal(t, []string{"a", "b"}, images.Classes())
	images.repeat = 2
	require.Equal(t, 6, images.Len())
	for i, want := range []struct {
		label int64
		value [3]float64
	}{{0, [3]float64{.2, .2, .2}}, {0, [3]float64{.2, .2, .2}}, {1, [3]float64{1, 0, 0}}} {
		for _, index := range []int{i, i + 3} {
			s, err := nwt.LoadSample(t.Context(), images, index)
			require.NoError(t, err)
			require.Equal(t, []int64{want.label}, nwt.Values[int64](s, 1))
			for j, v := range nwt.Values[float32](s, 0) {
				c := j / 16
				require.InDelta(t, (want.value[c]-vision.ImageNetNormalize.Mean[c])/vision.ImageNetNormalize.Std[c], v, 1e-5)
			}
		}
	}
}

func TestMomentsAgreeWithTwoPassesOverEverything(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	var m moments
	var all []float64
	for n := range 40 {
		values := make([]float32, n+1)
		for i := range values {
			values[i] = float32(1000 + rng.NormFloat64()*float64(n))
			all = append(all, float64(values[i]))
		}
		m.add(values)
	}
	sum, squares := 0.0, 0.0
	for _, v := range all {
		sum += v
	}
	average := sum / float64(len(all))
	for _, v := range all {
		squares += (v - average) * (v - average)
	}
	require.InEpsilon(t, average, m.mean, 1e-12)
	require.InEpsilon(t, math.Sqrt(squares/float64(len(all))), m.deviation(), 1e-12)
}

func TestAugmentationDependsOnTheEpochAndNotOnTheWorkers(t *testing.T) {
	dir := t.TempDir()
	img := image.NewGray(image.Rect(0, 0, 16, 16))
	for i := range img.Pix {
		img.Pix[i] = uint8(i)
	}
	require.NoError(t, os.Mkdir(filepath.Join(dir, "class"), 0o755))
	encode(t, img, filepath.Join(dir, "class", "a.png"))
	images := opened(t, dir, 6)
	images.repeat = 20
	load := func(workers, epoch int) (samples [][]byte) {
		l, err := nwt.NewLoader(images, nwt.WithBatchSize(1), nwt.WithWorkers(workers))
		require.NoError(t, err)
		defer l.Close()
		for batch, err := range l.Epoch(t.Context(), epoch) {
			require.NoError(t, err)
			samples = append(samples, bytes.Clone(batch.Bytes(0)))
		}
		return samples
	}
	alone := load(0, 3)
	require.Len(t, alone, 20)
	require.Equal(t, alone, load(5, 3))
	require.NotEqual(t, alone, load(0, 4))
	slices.SortFunc(alone, bytes.Compare)
	require.Greater(t, len(slices.CompactFunc(alone, bytes.Equal)), 17, "one image is augmented anew each time; two crops of so small a one may be the same")
}

func TestHalfOfTheSamplesAreMirrored(t *testing.T) {
	dir := t.TempDir()
	img := image.NewGray(image.Rect(0, 0, 100, 100)) // brighter to the right
	for i := range img.Pix {
		img.Pix[i] = uint8(i % 100)
	}
	require.NoError(t, os.Mkdir(filepath.Join(dir, "class"), 0o755))
	encode(t, img, filepath.Join(dir, "class", "a.png"))
	images := opened(t, dir, 4)
	images.repeat = 200
	mirrored := 0
	for i := range images.Len() {
		s, err := nwt.LoadSample(t.Context(), images, i)
		require.NoError(t, err)
		if pixels := nwt.Values[float32](s, 0); pixels[0] > pixels[3] {
			mirrored++
		}
	}
	require.InDelta(t, 100, mirrored, 30)
}
