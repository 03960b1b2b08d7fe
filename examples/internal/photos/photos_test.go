package photos

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"image"
	"image/color"
	"image/png"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

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
			require.InDelta(t, (v/255-Mean[i/4])/Deviation[i/4], got[i], 1e-5, "flip %v, value %d", c.flip, i)
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
	var b bytes.Buffer
	require.NoError(t, png.Encode(&b, image.NewGray(image.Rect(0, 0, 1, 1))))
	data := b.Bytes()
	_, err := Decode(data)
	require.NoError(t, err)
	header := data[12:29] // IHDR and its fields, before their checksum
	binary.BigEndian.PutUint32(header[4:], 1<<20)
	binary.BigEndian.PutUint32(header[8:], 1<<20)
	binary.BigEndian.PutUint32(data[29:], crc32.ChecksumIEEE(header))
	_, err = Decode(data)
	require.ErrorContains(t, err, "1048576 × 1048576 pixels")
}
