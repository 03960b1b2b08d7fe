package vision_test

import (
	"bytes"
	"context"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/vision"
)

// inBothWays returns what f returns with the assembly, and without.
func inBothWays[T any](t *testing.T, f func() T) (assembly, plain T) {
	t.Helper()
	if !vision.HasAssembly() {
		t.Skip("this CPU has no AVX2")
	}
	vision.InPlainGo(func() { plain = f() })
	return f(), plain
}

func TestTheAssemblyEqualsPlainGoToTheBit(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	pixels := make([]byte, 3*300*300)
	for i := range pixels {
		pixels[i] = byte(r.Uint32())
	}
	files := [][]byte{read(t, "420.jpg"), read(t, "422.jpg"), read(t, "444.jpg"), read(t, "odd.jpg"), read(t, "grey.jpg"), read(t, "lossy.webp")}
	for i := range 150 {
		size := vision.Size{Height: 1 + r.IntN(70), Width: 1 + r.IntN(70)}
		from := vision.Size{Height: 1 + r.IntN(300), Width: 1 + r.IntN(300)}
		channels := []int{1, 3}[r.IntN(2)]
		steps := []vision.Transform{
			vision.RandomResizedCrop{Size: size, Scale: [2]float64{0.01, 1}, Ratio: [2]float64{.1, 10}}, vision.RandomHorizontalFlip{P: 0.5}, vision.ImageNetNormalize,
		}
		if i%10 == 0 { // of padding, and weights of one pixel
			steps[0] = vision.RandomCrop{Size: size, Padding: 2, PadIfNeeded: true}
		}
		p, err := vision.New(steps, vision.WithLayout(vision.Layout(r.IntN(2))))
		require.NoError(t, err)
		load := func() []byte {
			ds := nwt.NewDataset(2, []nwt.Field{p.Field("image")}, func(_ context.Context, k int, dst *nwt.Sample) error {
				if k == 0 {
					return p.Load(dst, 0, files[i%len(files)])
				}
				return p.LoadPixels(dst, 0, pixels[:channels*from.Height*from.Width], from.Height, from.Width, vision.CHW)
			})
			l, err := nwt.NewLoader(ds, nwt.WithBatchSize(2), nwt.WithWorkers(0), nwt.WithShuffle(uint64(i)))
			require.NoError(t, err)
			defer l.Close()
			var all []byte
			for b, err := range l.Epoch(t.Context(), 0) {
				require.NoError(t, err)
				all = append(all, b.Bytes(0)...)
			}
			return all
		}
		assembly, plain := inBothWays(t, load)
		require.True(t, bytes.Equal(assembly, plain), "%v to %v", from, size)
	}
}

func TestTheAssemblyConvertsColoursAsPlainGo(t *testing.T) {
	convert := vision.Colours(vision.ImageNetNormalize)
	var y, cb, cr [256]byte
	for i := range y {
		y[i] = byte(i)
	}
	var got, want [3][256]float32
	for blue := range 256 {
		for red := blue % 3; red < 256; red += 3 {
			for i := range y {
				cb[i], cr[i] = byte(blue), byte(red)
			}
			got, want = inBothWays(t, func() (rgb [3][256]float32) {
				convert(rgb[0][:], rgb[1][:], rgb[2][:], y[:], cb[:], cr[:])
				return rgb
			})
			if got != want {
				t.Fatalf("Cb %d, Cr %d: %v, not %v", blue, red, got, want)
			}
			levels, wanted := inBothWays(t, func() (rgb [3][256]byte) {
				vision.Levels(rgb[0][:], rgb[1][:], rgb[2][:], y[:], cb[:], cr[:])
				return rgb
			})
			if levels != wanted {
				t.Fatalf("Cb %d, Cr %d: %v, not %v", blue, red, levels, wanted)
			}
		}
	}
}

func TestTheAssemblyTransformsBlocksAsPlainGo(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for i := range 100_000 {
		var block [64]int16
		var quant [64]int32
		for range r.IntN(65) {
			k := r.IntN(64)
			block[k], quant[k] = int16(r.Uint32())>>(i%16), int32(uint16(r.Uint32()))>>(i/16%16) // of damaged files too, whose sums overflow
		}
		got, want := inBothWays(t, func() (all struct {
			pixels [64 + 16]byte
			left   [2][64]int16
		}) {
			all.pixels, all.left = vision.Inverse(block, &quant)
			return all
		})
		require.Equal(t, want, got, "%v, %v", block, quant)
		require.Zero(t, got.left)
	}
}

func TestTheAssemblyKeepsToAnyLength(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for n := range 80 {
		rows := make([]byte, 8*n)
		for i := range rows {
			rows[i] = byte(r.Uint32())
		}
		assembly, plain := inBothWays(t, func() [3][]byte { return vision.Turned(rows, n) })
		require.Equal(t, plain, assembly, "%d bytes", n)
	}
}
