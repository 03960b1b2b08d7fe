package main

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"image"
	"image/color"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

func TestASampleIsNormalizedPlanesAndTheClassOfItsFolder(t *testing.T) {
	dir := t.TempDir()
	write(t, red, 30, 20, dir, "b", "deeper", "1.png")
	write(t, grey, 30, 20, dir, "a", "2.png")
	write(t, grey, 30, 20, dir, "z.png")
	images, err := open(dir, 4)
	require.NoError(t, err)
	require.Equal(t, []string{".", "a", "b"}, images.classes)
	images.repeat = 2
	require.Equal(t, 6, images.Len())
	for i, want := range []struct {
		label int64
		value [3]float64
	}{{1, [3]float64{.2, .2, .2}}, {2, [3]float64{1, 0, 0}}, {0, [3]float64{.2, .2, .2}}} {
		for _, index := range []int{i, i + 3} {
			s, err := nwt.LoadSample(t.Context(), images, index)
			require.NoError(t, err)
			require.Equal(t, []int64{want.label}, nwt.Values[int64](s, 1))
			for j, v := range nwt.Values[float32](s, 0) {
				c := j / 16
				require.InDelta(t, (want.value[c]-mean[c])/deviation[c], v, 1e-5)
			}
		}
	}
}

func TestNormalizeWritesChannelByChannelAndMirrors(t *testing.T) {
	img := image.NewRGBA(image.Rect(0, 0, 2, 2))
	for i := range 4 {
		img.Set(i%2, i/2, color.RGBA{uint8(10 + i), uint8(20 + i), uint8(30 + i), 255})
	}
	for _, c := range []struct {
		flip bool
		want []float64
	}{
		{false, []float64{10, 11, 12, 13, 20, 21, 22, 23, 30, 31, 32, 33}},
		{true, []float64{11, 10, 13, 12, 21, 20, 23, 22, 31, 30, 33, 32}},
	} {
		got := make([]float32, 12)
		normalize(got, img, c.flip)
		for i, v := range c.want {
			require.InDelta(t, (v/255-mean[i/4])/deviation[i/4], got[i], 1e-5, "flip %v, value %d", c.flip, i)
		}
	}
}

func TestACropLiesInTheImageAndHasTheAreaAsked(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 10_000 {
		r := image.Rect(0, 0, 1+rng.IntN(300), 1+rng.IntN(300)).Add(image.Pt(rng.IntN(9)-4, rng.IntN(9)-4))
		c := crop(rng, r)
		require.False(t, c.Empty(), "%v of %v", c, r)
		require.True(t, c.In(r), "%v of %v", c, r)
		if c != r && r.Dx() > 50 && r.Dy() > 50 {
			require.Greater(t, float64(c.Dx()*c.Dy()), 0.07*float64(r.Dx()*r.Dy()))
			require.InDelta(t, 0, math.Log(float64(c.Dx())/float64(c.Dy())), math.Log(1.5))
		}
	}
}

func TestAHeaderThatAsksForTooManyPixelsIsAnError(t *testing.T) {
	path := write(t, red, 1, 1, t.TempDir(), "huge.png")
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	header := data[12:29] // IHDR and its fields, before their checksum
	binary.BigEndian.PutUint32(header[4:], 1<<20)
	binary.BigEndian.PutUint32(header[8:], 1<<20)
	binary.BigEndian.PutUint32(data[29:], crc32.ChecksumIEEE(header))
	require.NoError(t, os.WriteFile(path, data, 0o644))
	_, err = decode(path)
	require.ErrorContains(t, err, path)
	require.ErrorContains(t, err, "1048576 × 1048576 pixels")
}

func TestDecodeErrorsNameTheFile(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "text.jpg")
	require.NoError(t, os.WriteFile(text, []byte("not a picture"), 0o644))
	for _, path := range []string{text, filepath.Join(dir, "absent.gif"), truncate(t, write(t, red, 40, 40, dir, "cut.png"))} {
		_, err := decode(path)
		require.ErrorContains(t, err, path)
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
	path := filepath.Join(t.TempDir(), "a.png")
	img := image.NewGray(image.Rect(0, 0, 16, 16))
	for i := range img.Pix {
		img.Pix[i] = uint8(i)
	}
	encode(t, img, path)
	images, err := open(filepath.Dir(path), 6)
	require.NoError(t, err)
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
	require.Len(t, slices.CompactFunc(alone, bytes.Equal), 20, "one image is augmented anew each time")
}

func TestHalfOfTheSamplesAreMirrored(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.png")
	img := image.NewGray(image.Rect(0, 0, 100, 100)) // brighter to the right
	for i := range img.Pix {
		img.Pix[i] = uint8(i % 100)
	}
	encode(t, img, path)
	images, err := open(filepath.Dir(path), 4)
	require.NoError(t, err)
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
