package vision_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"image/png"
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

// load returns what a pipeline makes of one file.
func load(t testing.TB, p *vision.Pipeline, data []byte) *nwt.Sample {
	t.Helper()
	s, err := nwt.LoadSample(t.Context(), one(p, data), 0)
	require.NoError(t, err)
	return s
}

// one returns a dataset of one picture.
func one(p *vision.Pipeline, data []byte) nwt.Dataset {
	return nwt.NewDataset(1, []nwt.Field{p.Field("image")}, func(_ context.Context, _ int, dst *nwt.Sample) error {
		return p.Load(dst, 0, data)
	})
}

func read(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	require.NoError(t, err)
	return data
}

type expectation struct {
	File, By, Result string
	Crop, Size       [2]int // width, height
	Shorter          int
	Orient           bool
}

func expectations(t *testing.T) []expectation {
	var e struct{ Cases []expectation }
	require.NoError(t, json.Unmarshal(read(t, "expected.json"), &e))
	require.NotEmpty(t, e.Cases)
	return e.Cases
}

func TestPicturesAreAsPillowAndTorchvisionMakeThem(t *testing.T) {
	for _, e := range expectations(t) {
		t.Run(fmt.Sprintf("%s/%s", e.File, e.Result), func(t *testing.T) {
			size := vision.Size{Height: e.Size[1], Width: e.Size[0]}
			steps := []vision.Transform{vision.Resize{Shorter: e.Shorter}, vision.CenterCrop{Size: size}}
			if e.Shorter == 0 {
				steps = []vision.Transform{vision.CenterCrop{Size: vision.Size{Height: e.Crop[1], Width: e.Crop[0]}}, vision.Resize{Size: size}}
			}
			opts := []vision.Option{vision.WithType(nwt.Uint8), vision.WithLayout(vision.HWC)}
			if e.Orient {
				opts = append(opts, vision.WithOrientation())
			}
			p, err := vision.New(steps, opts...)
			require.NoError(t, err)
			got := nwt.Values[uint8](load(t, p, read(t, e.File)), 0)

			f, err := os.Open(filepath.Join("testdata", e.Result))
			require.NoError(t, err)
			defer f.Close()
			want, err := png.Decode(f)
			require.NoError(t, err)
			sum, squares, n := 0.0, 0.0, 0
			for y := range size.Height {
				for x := range size.Width {
					r, g, b, _ := want.At(x, y).RGBA()
					for c, v := range [3]uint32{r, g, b} {
						d := float64(v>>8) - float64(got[(y*size.Width+x)*3+c])
						sum += math.Abs(d)
						squares += d * d
						n++
					}
				}
			}
			psnr := 10 * math.Log10(255*255*float64(n)/max(squares, 1e-9))
			t.Logf("mean absolute difference %.3f/255, PSNR %.1f dB", sum/float64(n), psnr)
			require.LessOrEqual(t, sum/float64(n), 1.0)
			require.GreaterOrEqual(t, psnr, 40.0)
		})
	}
}

func TestColoursChangeAsTorchvisionChangesThem(t *testing.T) {
	var e struct {
		Colours []struct {
			Kind, Result string
			Factor       float64
		}
	}
	require.NoError(t, json.Unmarshal(read(t, "expected.json"), &e))
	require.NotEmpty(t, e.Colours)
	for _, c := range e.Colours {
		got, want := planes(t, "colours.png"), planes(t, c.Result)
		vision.ChangeColours(c.Kind, c.Factor, got[0], got[1], got[2])
		sum, n := 0.0, 0
		for channel := range got {
			for i, v := range got[channel] {
				d := math.Abs(float64(v) - float64(want[channel][i]))
				require.LessOrEqual(t, d, 3.0, "%s by %v", c.Kind, c.Factor)
				sum += d
				n++
			}
		}
		require.LessOrEqual(t, sum/float64(n), 1.0, "%s by %v", c.Kind, c.Factor)
	}
}

func planes(t *testing.T, name string) (p [3][]byte) {
	img, err := png.Decode(bytes.NewReader(read(t, name)))
	require.NoError(t, err)
	for y := range img.Bounds().Dy() {
		for x := range img.Bounds().Dx() {
			r, g, b, _ := img.At(x, y).RGBA()
			p[0], p[1], p[2] = append(p[0], byte(r>>8)), append(p[1], byte(g>>8)), append(p[2], byte(b>>8))
		}
	}
	return p
}

// The test of Kolmogorov and Smirnov for 10⁵ draws of torchvision's, kept as their
// quantiles, and n of ours: at a level of 0.001 the distributions may be
// 1.95 × √(1/n + 1/10⁵) apart.
func TestCropsAndErasuresAreDrawnAsTorchvisionDrawsThem(t *testing.T) {
	var e struct{ Quantiles map[string][]float64 }
	require.NoError(t, json.Unmarshal(read(t, "expected.json"), &e))
	n := 100_000
	if testing.Short() {
		n = 10_000
	}
	apart := 1.95 * math.Sqrt(1/float64(n)+1e-5)
	r := rand.New(rand.NewPCG(5, 6))
	draws := map[string][]float64{}
	for range n {
		left, top, w, h := vision.DrawCrop(r, 500, 375)
		for name, v := range map[string]float64{"area": float64(w * h), "ratio": float64(w) / float64(h), "left": float64(left), "top": float64(top)} {
			draws["crop "+name] = append(draws["crop "+name], v)
		}
		left, top, w, h = vision.DrawErasure(r, 500, 375)
		for name, v := range map[string]float64{"area": float64(w * h), "ratio": float64(h) / float64(w), "left": float64(left), "top": float64(top)} {
			draws["erased "+name] = append(draws["erased "+name], v)
		}
	}
	require.Len(t, e.Quantiles, len(draws))
	for name, ours := range draws {
		slices.Sort(ours)
		for k, q := range e.Quantiles[name] {
			share := float64(k) / 100
			less, _ := slices.BinarySearch(ours, q-1e-4) // they are rounded
			upTo, _ := slices.BinarySearch(ours, q+1e-4)
			require.LessOrEqual(t, float64(less)/float64(n), share+apart, "%s below %v", name, q)
			require.GreaterOrEqual(t, float64(upTo)/float64(n), share-apart, "%s up to %v", name, q)
		}
	}
}

func TestHalfOfThePicturesAreMirrored(t *testing.T) {
	p, err := vision.New([]vision.Transform{vision.Resize{Size: vision.Square(8)}, vision.RandomHorizontalFlip{P: 0.5}, vision.RandomVerticalFlip{P: .2}})
	require.NoError(t, err)
	const n = 4000
	ds := nwt.NewDataset(n, []nwt.Field{p.Field("image")}, func(_ context.Context, _ int, dst *nwt.Sample) error {
		ramp := make([]byte, 64) // brighter to the right, and far more so to the bottom
		for i := range ramp {
			ramp[i] = byte(i%8 + 20*(i/8))
		}
		return p.LoadPixels(dst, 0, ramp, 8, 8, vision.CHW)
	})
	l, err := nwt.NewLoader(ds, nwt.WithBatchSize(n))
	require.NoError(t, err)
	defer l.Close()
	mirrored, upsideDown := 0, 0
	for b, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
		for v := range slices.Chunk(nwt.Values[float32](b, 0), 3*64) {
			if v[0] > v[7] {
				mirrored++
			}
			if v[0] > v[56] {
				upsideDown++
			}
		}
	}
	require.InDelta(t, 0.5, float64(mirrored)/n, 0.04)
	require.InDelta(t, 0.2, float64(upsideDown)/n, 0.04)
}
