package vision_test

import (
	"bytes"
	"context"
	"log/slog"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/vision"
)

// through returns what a pipeline makes of random grey pixels, and these.
func through(t *testing.T, width, height, n int, steps ...vision.Transform) (results [][]uint8, pixels []byte) {
	t.Helper()
	p, err := vision.New(steps, vision.WithType(nwt.Uint8))
	require.NoError(t, err)
	r := rand.New(rand.NewPCG(1, 1))
	pixels = make([]byte, width*height)
	for i := range pixels {
		pixels[i] = byte(1 + r.IntN(255))
	}
	ds := nwt.NewDataset(n, []nwt.Field{p.Field("image")}, func(_ context.Context, _ int, dst *nwt.Sample) error {
		return p.LoadPixels(dst, 0, pixels, height, width, vision.CHW)
	})
	l, err := nwt.NewLoader(ds, nwt.WithBatchSize(1))
	require.NoError(t, err)
	defer l.Close()
	for b, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
		results = append(results, append([]uint8(nil), nwt.Values[uint8](b, 0)...))
	}
	return results, pixels
}

func TestAShareOfNoPictureIsAnErrorThatSaysWhatToWrite(t *testing.T) {
	size := vision.Resize{Size: vision.Square(4)}
	for _, none := range []vision.Transform{vision.RandomHorizontalFlip{}, vision.RandomVerticalFlip{}, vision.RandomGrayscale{}, vision.RandomErasing{}} {
		_, err := vision.New([]vision.Transform{size, none})
		require.ErrorContains(t, err, ".P", "%T", none)
		require.ErrorContains(t, err, "such as 0.5, or leave Random")
	}
}

func TestAMeanPerColourAfterGrayscaleIsTold(t *testing.T) {
	var said bytes.Buffer
	defer slog.SetDefault(slog.Default())
	slog.SetDefault(slog.New(slog.NewTextHandler(&said, nil)))
	size, alike := vision.Resize{Size: vision.Square(4)}, vision.Normalize{Mean: [3]float64{.4, .4, .4}, Std: [3]float64{.2, .2, .2}}
	for _, steps := range [][]vision.Transform{{size, vision.Grayscale{}, alike}, {size, vision.Grayscale{Channels: 3}, vision.ImageNetNormalize}} {
		_, err := vision.New(steps)
		require.NoError(t, err)
		require.Empty(t, said.String())
	}
	_, err := vision.New([]vision.Transform{size, vision.Grayscale{}, vision.ImageNetNormalize})
	require.NoError(t, err)
	require.Contains(t, said.String(), "after Grayscale a picture has one channel")
}

func TestACropIsPixelByPixelThePicture(t *testing.T) {
	results, pixels := through(t, 37, 29, 1, vision.CenterCrop{Size: vision.Size{Height: 11, Width: 20}})
	for c := range 3 {
		for y := range 11 {
			for x := range 20 {
				// Python rounds 8.5 to 8.
				require.Equal(t, pixels[(y+9)*37+x+8], results[0][(c*11+y)*20+x])
			}
		}
	}
}

func TestARandomCropMovesThePictureOverBlackPadding(t *testing.T) {
	const n, padding, samples = 16, 4, 400
	results, pixels := through(t, n, n, samples, vision.RandomCrop{Size: vision.Square(n), Padding: padding}, vision.RandomHorizontalFlip{P: 0.5})
	at := func(x, y int) uint8 {
		if x < 0 || x >= n || y < 0 || y >= n {
			return 0
		}
		return pixels[y*n+x]
	}
	places := map[[3]int]bool{}
	for _, got := range results {
		found := false
		for dy := -padding; dy <= padding && !found; dy++ {
			for dx := -padding; dx <= padding && !found; dx++ {
				for flip := range 2 {
					same := true
					for i := 0; i < n*n && same; i++ {
						x, y := i%n, i/n
						if flip == 1 {
							x = n - 1 - x
						}
						same = got[i] == at(x+dx, y+dy)
					}
					if same {
						places[[3]int{dx, dy, flip}], found = true, true
					}
				}
			}
		}
		require.True(t, found, "no crop of the padded picture")
	}
	require.Greater(t, len(places), 130, "of 162")
}

func TestAPictureThatIsTooSmallIsPaddedOrAnError(t *testing.T) {
	results, _ := through(t, 3, 2, 1, vision.CenterCrop{Size: vision.Square(5)})
	filled := 0
	for _, v := range results[0][:25] {
		if v > 0 {
			filled++
		}
	}
	require.Equal(t, 6, filled)
	through(t, 3, 2, 20, vision.RandomCrop{Size: vision.Square(5), PadIfNeeded: true})

	for want, steps := range map[string][]vision.Transform{
		"must be at least 5":      {vision.RandomCrop{Size: vision.Square(5)}},
		"larger than the picture": {vision.CenterCrop{Size: vision.Square(5)}, vision.Resize{Size: vision.Square(2)}},
		"WithMaxPixels":           {vision.Resize{Size: vision.Square(2)}},
	} {
		p, err := vision.New(steps, vision.WithMaxPixels(100))
		require.NoError(t, err)
		w := 3
		if want == "WithMaxPixels" {
			w = 101
		}
		ds := nwt.NewDataset(1, []nwt.Field{p.Field("image")}, func(_ context.Context, _ int, dst *nwt.Sample) error {
			return p.LoadPixels(dst, 0, make([]byte, 2*w), 2, w, vision.CHW)
		})
		_, err = nwt.LoadSample(t.Context(), ds, 0)
		require.ErrorContains(t, err, want)
	}
}

func TestErasedRectanglesHoldTheValueGiven(t *testing.T) {
	results, _ := through(t, 16, 16, 200, vision.Resize{Size: vision.Square(16)}, vision.RandomErasing{P: 1, Value: 0})
	for _, got := range results {
		top, bottom, left, right, n := 16, -1, 16, -1, 0
		for i, v := range got[:256] {
			require.Equal(t, v, got[256+i], "in all channels alike")
			if v == 0 {
				n++
				top, bottom, left, right = min(top, i/16), max(bottom, i/16), min(left, i%16), max(right, i%16)
			}
		}
		require.Equal(t, n, (bottom-top+1)*(right-left+1), "a rectangle")
		require.NotZero(t, n)
	}
}

func TestGrayscaleLeavesOneChannel(t *testing.T) {
	p, err := vision.New([]vision.Transform{vision.Resize{Size: vision.Size{Height: 5, Width: 6}}, vision.Grayscale{}}, vision.WithType(nwt.Uint8))
	require.NoError(t, err)
	require.Equal(t, []int{1, 5, 6}, p.Field("image").Shape)
	three, err := vision.New([]vision.Transform{vision.Resize{Size: vision.Size{Height: 5, Width: 6}}, vision.Grayscale{Channels: 3}}, vision.WithType(nwt.Uint8))
	require.NoError(t, err)
	one := nwt.Values[uint8](load(t, p, read(t, "photo.jpg")), 0)
	same := nwt.Values[uint8](load(t, three, read(t, "photo.jpg")), 0)
	require.Equal(t, append(append(append([]uint8(nil), one...), one...), one...), same)
}

func TestHalfPrecisionRoundsToTheNearest(t *testing.T) {
	for b := range uint16(0x7c00) { // all that are finite and positive
		v := half(b)
		got, _ := vision.Halves(v)
		require.Equal(t, b, got)
		got, _ = vision.Halves(-v)
		require.Equal(t, b|1<<15, got)
		if b < 0x7bff { // between two: to the even one
			middle := (v + half(b+1)) / 2
			got, _ = vision.Halves(middle)
			require.Equal(t, (b+1)&^1, got)
			got, _ = vision.Halves(math.Nextafter(middle, 0))
			require.Equal(t, b, got)
		}
	}
	infinite, _ := vision.Halves(1e9)
	require.EqualValues(t, 0x7c00, infinite)
	for b := range uint16(0x7f7f) {
		_, got := vision.Halves(float64(math.Float32frombits(uint32(b) << 16)))
		require.Equal(t, b, got)
		_, got = vision.Halves(float64(math.Float32frombits(uint32(b)<<16 | 0x8000)))
		require.Equal(t, (b+1)&^1, got)
	}
}

// Fine patterns, which weights of 1/256ths would favour or pass over.
func TestStripesBecomeTheirMeanHoweverMuchSmallerTheyAre(t *testing.T) {
	for _, c := range []struct{ width, to int }{{448, 28}, {1000, 8}, {4096, 64}, {4096, 8}, {10000, 20}, {500, 1}} {
		for period := 2; period <= 5; period++ {
			pixels := make([]byte, c.width)
			for x := 0; x < c.width; x += period {
				pixels[x] = 255
			}
			for _, turned := range []bool{false, true} {
				from, size := vision.Size{Height: 1, Width: c.width}, vision.Size{Height: 1, Width: c.to}
				if turned {
					from, size = vision.Size{Height: c.width, Width: 1}, vision.Size{Height: c.to, Width: 1}
				}
				p, err := vision.New([]vision.Transform{vision.Resize{Size: size}}, vision.WithType(nwt.Uint8))
				require.NoError(t, err)
				s, err := loadOf(t, p.Field("image"), func(dst *nwt.Sample) error {
					return p.LoadPixels(dst, 0, pixels, from.Height, from.Width, vision.CHW)
				})
				require.NoError(t, err)
				sum := 0.0
				for i, v := range nwt.Values[uint8](s, 0)[:c.to] {
					sum += math.Abs(float64(v) - triangle(pixels, i, c.to))
				}
				require.Less(t, sum/float64(c.to), 1.0, "%d to %d, every %d. pixel, turned %v", c.width, c.to, period, turned)
			}
		}
	}
}

// triangle is pixel i of a line that is resized to n pixels, as Pillow defines it.
func triangle(line []byte, i, n int) float64 {
	scale := float64(len(line)) / float64(n)
	sum, all := 0.0, 0.0
	for x, v := range line {
		weight := max(0, 1-math.Abs(float64(x)+0.5-(float64(i)+0.5)*scale)/scale)
		sum, all = sum+weight*float64(v), all+weight
	}
	return sum / all
}

// torchvision's crops pad with black what lies beyond what an earlier crop has left.
func TestACropShowsNothingThatAnEarlierCropHasCutOff(t *testing.T) {
	pixels := make([]byte, 36)
	for i := range pixels {
		pixels[i] = byte(10*(i/6) + i%6)
	}
	for name, test := range map[string]struct {
		steps []vision.Transform
		want  []byte
	}{
		"wider":    {[]vision.Transform{vision.CenterCrop{Size: vision.Square(2)}, vision.CenterCrop{Size: vision.Size{Height: 2, Width: 4}}}, []byte{0, 22, 23, 0, 0, 32, 33, 0}},
		"mirrored": {[]vision.Transform{vision.CenterCrop{Size: vision.Square(2)}, vision.RandomHorizontalFlip{P: 1}, vision.CenterCrop{Size: vision.Size{Height: 2, Width: 3}}}, []byte{23, 22, 0, 33, 32, 0}},
		"all":      {[]vision.Transform{vision.CenterCrop{Size: vision.Square(4)}, vision.CenterCrop{Size: vision.Square(2)}}, []byte{22, 23, 32, 33}},
	} {
		p, err := vision.New(append(test.steps, vision.Grayscale{}), vision.WithType(nwt.Uint8))
		require.NoError(t, err)
		s, err := loadOf(t, p.Field("image"), func(dst *nwt.Sample) error { return p.LoadPixels(dst, 0, pixels, 6, 6, vision.CHW) })
		require.NoError(t, err)
		require.Equal(t, test.want, nwt.Values[uint8](s, 0), name)
	}
	p, err := vision.New([]vision.Transform{vision.CenterCrop{Size: vision.Square(2)}, vision.CenterCrop{Size: vision.Square(4)}, vision.Resize{Size: vision.Square(4)}})
	require.NoError(t, err)
	_, err = loadOf(t, p.Field("image"), func(dst *nwt.Sample) error { return p.LoadPixels(dst, 0, pixels, 6, 6, vision.CHW) })
	require.ErrorContains(t, err, "padding can't be resized")
}
