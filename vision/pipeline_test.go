package vision_test

import (
	"bytes"
	"context"
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/vision"
)

// recipe is ImageNet's.
var recipe = []vision.Transform{
	vision.RandomResizedCrop{Size: vision.Square(224)},
	vision.RandomHorizontalFlip{P: 0.5},
	vision.ImageNetNormalize,
}

// repeated returns a dataset of n times one picture.
func repeated(p *vision.Pipeline, n int, data []byte) nwt.Dataset {
	return nwt.NewDataset(n, []nwt.Field{p.Field("image")}, func(_ context.Context, _ int, dst *nwt.Sample) error {
		return p.Load(dst, 0, data)
	})
}

func TestBatchesAreTheSameAtAnyWorkerCount(t *testing.T) {
	p, err := vision.New([]vision.Transform{
		vision.RandomResizedCrop{Size: vision.Square(40)},
		vision.RandomHorizontalFlip{P: 0.5}, vision.RandomVerticalFlip{P: 0.5},
		vision.ColorJitter{Brightness: .4, Contrast: .4, Saturation: .4, Hue: .1},
		vision.RandomGrayscale{P: 0.1}, vision.ImageNetNormalize, vision.RandomErasing{P: 0.5},
	})
	require.NoError(t, err)
	ds := repeated(p, 50, read(t, "photo.jpg"))
	epoch := func(workers, epoch int) (all []byte) {
		l, err := nwt.NewLoader(ds, nwt.WithBatchSize(8), nwt.WithWorkers(workers))
		require.NoError(t, err)
		defer l.Close()
		for b, err := range l.Epoch(t.Context(), epoch) {
			require.NoError(t, err)
			all = append(all, b.Bytes(0)...)
		}
		return all
	}
	alone := epoch(0, 3)
	require.True(t, bytes.Equal(alone, epoch(5, 3)))
	require.False(t, bytes.Equal(alone, epoch(0, 4)), "another epoch, other crops")
}

func TestElementTypesAndLayoutsHoldTheSameValues(t *testing.T) {
	data := read(t, "photo.jpg")
	steps := []vision.Transform{vision.Resize{Size: vision.Size{Height: 24, Width: 31}}}
	values := func(opts ...vision.Option) *nwt.Sample {
		p, err := vision.New(steps, opts...)
		require.NoError(t, err)
		return load(t, p, data)
	}
	bytes := nwt.Values[uint8](values(vision.WithType(nwt.Uint8)), 0)
	floats := nwt.Values[float32](values(), 0)
	halves := nwt.Values[uint16](values(vision.WithType(nwt.Float16)), 0)
	brains := nwt.Values[uint16](values(vision.WithType(nwt.BFloat16)), 0)
	last := nwt.Values[uint8](values(vision.WithType(nwt.Uint8), vision.WithLayout(vision.HWC)), 0)
	for i, v := range bytes {
		require.InDelta(t, float64(v)/255, floats[i], 1e-7)
		require.InDelta(t, floats[i], half(halves[i]), 1.0/2048)
		require.InDelta(t, floats[i], math.Float32frombits(uint32(brains[i])<<16), 1.0/256)
		require.Equal(t, v, last[i%(24*31)*3+i/(24*31)])
	}
}

// half returns the value of a positive half-precision number.
func half(b uint16) float64 {
	if b>>10 == 0 {
		return math.Ldexp(float64(b), -24)
	}
	return math.Ldexp(float64(b&1023|1024), int(b>>10)-25)
}

func TestPixelsThatAreDecodedAlreadyAreLoadedAlike(t *testing.T) {
	store, err := vision.New([]vision.Transform{vision.Resize{Size: vision.Size{Height: 90, Width: 121}}}, vision.WithType(nwt.Uint8))
	require.NoError(t, err)
	pixels := nwt.Values[uint8](load(t, store, read(t, "photo.jpg")), 0)
	interleaved := make([]byte, len(pixels))
	for i, v := range pixels {
		interleaved[i%(90*121)*3+i/(90*121)] = v
	}
	p, err := vision.New(recipe)
	require.NoError(t, err)
	from := func(pixels []byte, layout vision.Layout) []float32 {
		ds := nwt.NewDataset(1, []nwt.Field{p.Field("image")}, func(_ context.Context, _ int, dst *nwt.Sample) error {
			return p.LoadPixels(dst, 0, pixels, 90, 121, layout)
		})
		s, err := nwt.LoadSample(t.Context(), ds, 0)
		require.NoError(t, err)
		return nwt.Values[float32](s, 0)
	}
	require.Equal(t, from(pixels, vision.CHW), from(interleaved, vision.HWC))
}

func TestWhatCannotBeMadeSaysWhy(t *testing.T) {
	crop := vision.RandomResizedCrop{Size: vision.Square(8)}
	for _, c := range []struct {
		want  string
		steps []vision.Transform
		opts  []vision.Option
	}{
		{"vision: New: no transform fixes the size", nil, nil},
		{"no transform fixes the size", []vision.Transform{vision.Resize{Shorter: 8}}, nil},
		{"vision: transforms[1]: is nil", []vision.Transform{crop, nil}, nil},
		{"must be 1 … 16384", []vision.Transform{vision.CenterCrop{}}, nil},
		{"before the transforms that change colours", []vision.Transform{crop, vision.ImageNetNormalize, crop}, nil},
		{"can't follow a crop that pads", []vision.Transform{vision.RandomCrop{Size: vision.Square(8), Padding: 4}, crop}, nil},
		{"must come once", []vision.Transform{crop, vision.ImageNetNormalize, vision.ImageNetNormalize}, nil},
		{"deviations finite and more than 0", []vision.Transform{crop, vision.Normalize{}}, nil},
		{"divide them by 255", []vision.Transform{crop, vision.Normalize{Mean: [3]float64{123.7, 116.3, 103.5}, Std: [3]float64{58.4, 57.1, 57.4}}}, nil},
		{"must be 0 < from ≤ to ≤ 1", []vision.Transform{vision.RandomResizedCrop{Size: vision.Square(8), Scale: [2]float64{.5, 2}}}, nil},
		{"set one of them", []vision.Transform{vision.Resize{Shorter: 3, Size: vision.Square(3)}}, nil},
		{"before Normalize", []vision.Transform{crop, vision.ImageNetNormalize, vision.Grayscale{}}, nil},
		{"must be 0 … 0.5", []vision.Transform{crop, vision.ColorJitter{Hue: .6}}, nil},
		{"vision: options[1]: is nil", []vision.Transform{crop}, []vision.Option{vision.WithType(nwt.Uint8), nil}},
		{"can't be combined with Normalize", []vision.Transform{crop, vision.ImageNetNormalize}, []vision.Option{vision.WithType(nwt.Uint8)}},
		{"must be Float32", []vision.Transform{crop}, []vision.Option{vision.WithType(nwt.Int64)}},
		{"must be CHW or HWC", []vision.Transform{crop}, []vision.Option{vision.WithLayout(7)}},
		{"WithMaxPixels", []vision.Transform{crop}, []vision.Option{vision.WithMaxPixels(0)}},
	} {
		_, err := vision.New(c.steps, c.opts...)
		require.ErrorContains(t, err, c.want)
		var option *nwt.ArgumentError
		require.True(t, errors.As(err, &option), "%v", err)
	}
}
