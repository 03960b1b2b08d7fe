package vision

import "math/rand/v2"

// DrawCrop is what RandomResizedCrop takes of a picture.
func DrawCrop(r *rand.Rand, w, h int) (left, top, width, height int) {
	return (&RandomResizedCrop{Scale: [2]float64{0.08, 1}, Ratio: [2]float64{3.0 / 4, 4.0 / 3}}).draw(r, w, h)
}

// DrawErasure is what RandomErasing overwrites.
func DrawErasure(r *rand.Rand, w, h int) (left, top, width, height int) {
	t := &RandomErasing{P: 1, Scale: [2]float64{0.02, 0.33}, Ratio: [2]float64{0.3, 3.3}}
	return t.draw(r, Size{h, w})
}

// ChangeColours does to the planes of a picture what a part of ColorJitter does.
func ChangeColours(kind string, factor float64, r, g, b []byte) {
	kinds := map[string]opKind{"brightness": brightness, "contrast": contrast, "saturation": saturation, "hue": hue, "grayscale": grayscale}
	op{kinds[kind], factor}.apply(r, g, b)
}

// Halves are the 16-bit forms of a number.
func Halves(v float64) (half, brain uint16) { return float16(v), bfloat16(v) }
