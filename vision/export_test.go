package vision

import (
	"context"
	"math/rand/v2"
)

// DrawCrop returns what RandomResizedCrop takes of a picture.
func DrawCrop(r *rand.Rand, w, h int) (left, top, width, height int) {
	return (&RandomResizedCrop{Scale: [2]float64{0.08, 1}, Ratio: [2]float64{3.0 / 4, 4.0 / 3}}).draw(r, w, h)
}

// DrawErasure returns what RandomErasing overwrites.
func DrawErasure(r *rand.Rand, w, h int) (left, top, width, height int) {
	t := &RandomErasing{P: 1, Scale: [2]float64{0.02, 0.33}, Ratio: [2]float64{0.3, 3.3}}
	return t.draw(r, Size{h, w})
}

// ChangeColours does to the planes of a picture what a part of ColorJitter does.
func ChangeColours(kind string, factor float64, r, g, b []byte) {
	kinds := map[string]opKind{"brightness": brightness, "contrast": contrast, "saturation": saturation, "hue": hue, "grayscale": grayscale}
	op{kinds[kind], factor}.apply(context.Background(), r, g, b)
}

// Halves are the 16-bit forms of a number.
func Halves(v float64) (half, brain uint16) { return float16(v), bfloat16(v) }

// FixedCrop takes a part of the picture; what lies beyond the picture is black.
type FixedCrop struct {
	Left, Top int
	Size      Size
}

func (t FixedCrop) check(p *plan) error {
	return p.geometrical("FixedCrop", t.Size, false, func(g *geometry, _ *rand.Rand) error {
		g.x.crop(t.Left, t.Size.Width)
		g.y.crop(t.Top, t.Size.Height)
		return nil
	})
}

// Scale returns how many pixels of the file one of the result has, per row and per column.
func (d Choices) Scale() [2]float32 {
	return [2]float32{float32(d.geometry.x.scale()), float32(d.geometry.y.scale())}
}

// Remembered returns how many places in files a pipeline remembers.
func Remembered(p *Pipeline) (n int) {
	if p.rows != nil {
		for _, chunk := range p.rows.words {
			for i := range chunk {
				if chunk[i].Load() != 0 {
					n++
				}
			}
		}
	}
	return n
}

// RememberedInAll returns how many bytes all pipelines take for what they remember.
func RememberedInAll() int64 { return rowBytes.Load() }
