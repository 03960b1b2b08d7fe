package vision_test

import (
	"context"
	"encoding/json"
	"fmt"
	"image/png"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/vision"
)

// load is what a pipeline makes of one file.
func load(t testing.TB, p *vision.Pipeline, data []byte) *nwt.Sample {
	t.Helper()
	s, err := nwt.LoadSample(t.Context(), one(p, data), 0)
	require.NoError(t, err)
	return s
}

// one is a dataset of one picture.
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

// decoders are the ways to decode JPEG files that there are here.
func decoders(t *testing.T) map[string][]vision.Option {
	ways := map[string][]vision.Option{"Go": {vision.WithoutTurbo()}}
	if _, err := vision.Turbo(); err == nil {
		ways["libjpeg-turbo"] = nil
	} else {
		t.Logf("without libjpeg-turbo: %v", err)
	}
	return ways
}

func TestPicturesAreAsPillowAndTorchvisionMakeThem(t *testing.T) {
	for way, opts := range decoders(t) {
		for _, e := range expectations(t) {
			t.Run(fmt.Sprintf("%s/%s/%s", way, e.File, e.Result), func(t *testing.T) {
				size := vision.Size{Height: e.Size[1], Width: e.Size[0]}
				steps := []vision.Transform{vision.Resize{Shorter: e.Shorter}, vision.CenterCrop{Size: size}}
				if e.Shorter == 0 {
					steps = []vision.Transform{vision.CenterCrop{Size: vision.Size{Height: e.Crop[1], Width: e.Crop[0]}}, vision.Resize{Size: size}}
				}
				opts := append([]vision.Option{vision.WithType(nwt.Uint8), vision.WithLayout(vision.HWC)}, opts...)
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
}
