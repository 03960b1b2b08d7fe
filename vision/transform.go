package vision

import (
	"cmp"
	"fmt"
	"log/slog"
	"math"
	"math/bits"
	"math/rand/v2"

	"github.com/nwt-go/nwt"
)

// A Transform is a step of a [Pipeline]. All transforms are types of this package. Their names, meanings and
// defaults are those of torchvision.transforms.v2.
type Transform interface {
	// check completes and checks the step; it returns its name.
	check(*plan) error
}

// plan holds what the steps so far do to every picture.
type plan struct {
	size       Size // of the picture; 0 if it depends on the file
	fixed      bool // size was set by another pipeline's plan
	padded     bool
	normalized bool
	pixels     bool // steps that work on pixels have begun
	grey       bool // only one channel is left

	geometric []func(g *geometry, r *rand.Rand) error
	colour    []step
	erasures  []*RandomErasing
	mean, std [3]float64
}

// geometry says where in the picture the pixels of a result come from.
type geometry struct{ x, y axis }

func (g *geometry) resize(width, height int) error {
	if g.x.padded() || g.y.padded() {
		return fmt.Errorf("a crop of %d × %d pixels is larger than the picture, and padding can't be resized", g.x.n, g.y.n)
	}
	g.x.resize(width)
	g.y.resize(height)
	return nil
}

func optionError(option string, value any, format string, args ...any) error {
	return &nwt.ArgumentError{Name: "vision." + option, Value: value, Reason: fmt.Sprintf(format, args...)}
}

// A Size is a picture's height and width in pixels.
type Size struct{ Height, Width int }

// Square returns a size of n × n pixels.
func Square(n int) Size { return Size{n, n} }

const maxSide = 1 << 14

func (s Size) check(name string) error {
	if s.Height < 1 || s.Height > maxSide || s.Width < 1 || s.Width > maxSide {
		return optionError(name, s, "height and width must be 1 … %d", maxSide)
	}
	return nil
}

// geometrical adds a geometry step, after which the picture has the given size. resizes reports whether
// the step resamples.
func (p *plan) geometrical(name string, size Size, resizes bool, f func(*geometry, *rand.Rand) error) error {
	if p.fixed {
		return optionError(name, size, "belongs in vision.New: a Companion's pictures are cropped, resized and mirrored like the first one")
	}
	if p.pixels {
		return optionError(name, size, "must come before the transforms that change colours or values")
	}
	if resizes && p.padded {
		return optionError(name, size, "can't follow a crop that pads, because padding can't be resized")
	}
	p.size = size
	p.geometric = append(p.geometric, f)
	return nil
}

// RandomResizedCrop takes a part of the picture and resizes it. The part's area and its ratio of width to
// height are random. If ten random parts don't fit, it takes the middle of the picture.
type RandomResizedCrop struct {
	Size  Size
	Scale [2]float64 // least and greatest share of the picture's area; default 0.08 and 1
	Ratio [2]float64 // least and greatest width / height; default 3/4 and 4/3
}

func (t RandomResizedCrop) check(p *plan) error {
	if err := t.Size.check("RandomResizedCrop.Size"); err != nil {
		return err
	}
	t.Scale, t.Ratio = cmp.Or(t.Scale, [2]float64{0.08, 1}), cmp.Or(t.Ratio, [2]float64{3.0 / 4, 4.0 / 3})
	if err := checkPart("RandomResizedCrop", t.Scale, t.Ratio); err != nil {
		return err
	}
	return p.geometrical("RandomResizedCrop", t.Size, true, func(g *geometry, r *rand.Rand) error {
		left, top, width, height := t.draw(r, g.x.n, g.y.n)
		g.x.crop(left, width)
		g.y.crop(top, height)
		return g.resize(t.Size.Width, t.Size.Height)
	})
}

// checkPart checks the ranges from which a random part's area and ratio are drawn.
func checkPart(name string, scale, ratio [2]float64) error {
	if !(0 < scale[0] && scale[0] <= scale[1] && scale[1] <= 1) {
		return optionError(name+".Scale", scale, "must be 0 < from ≤ to ≤ 1")
	}
	if !(0.001 <= ratio[0] && ratio[0] <= ratio[1] && ratio[1] <= 1000) {
		return optionError(name+".Ratio", ratio, "must be 0.001 ≤ from ≤ to ≤ 1000")
	}
	return nil
}

// draw corresponds to RandomResizedCrop.get_params.
func (t *RandomResizedCrop) draw(r *rand.Rand, w, h int) (left, top, width, height int) {
	area := float64(w) * float64(h)
	for range 10 {
		target := area * uniform(r, t.Scale[0], t.Scale[1])
		ratio := logUniform(r, t.Ratio[0], t.Ratio[1])
		width, height = int(math.RoundToEven(math.Sqrt(target*ratio))), int(math.RoundToEven(math.Sqrt(target/ratio)))
		if 0 < width && width <= w && 0 < height && height <= h {
			top = intN(r, h-height+1)
			return intN(r, w-width+1), top, width, height
		}
	}
	width, height = w, h
	switch ratio := float64(w) / float64(h); {
	case ratio < t.Ratio[0]:
		height = int(math.RoundToEven(float64(w) / t.Ratio[0]))
	case ratio > t.Ratio[1]:
		width = int(math.RoundToEven(float64(h) * t.Ratio[1]))
	}
	width, height = max(width, 1), max(height, 1)
	return (w - width) / 2, (h - height) / 2, width, height
}

// The same numbers are drawn on every CPU: rand's IntN depends on the size of an int, and the last bit of
// math.Exp and math.Log on the CPU.

func intN(r *rand.Rand, n int) int {
	v, _ := bits.Mul64(r.Uint64(), uint64(n))
	return int(v)
}

func uniform(r *rand.Rand, from, to float64) float64 { return from + float64((to-from)*r.Float64()) }

// logUniform draws a number whose logarithm is uniform: from × (to/from) to the power of a random share.
func logUniform(r *rand.Rand, from, to float64) float64 {
	root := to / from
	for share := r.Float64(); share > 0; {
		root = math.Sqrt(root)
		if share *= 2; share >= 1 {
			from, share = from*root, share-1
		}
	}
	return from
}

// Resize resizes the picture to Size. If Size is 0, it resizes the shorter side to Shorter pixels and keeps
// the ratio of the sides.
type Resize struct {
	Shorter int
	Size    Size
}

func (t Resize) check(p *plan) error {
	if t.Shorter != 0 {
		if t.Size != (Size{}) {
			return optionError("Resize", t, "has both Shorter and Size: set one of them")
		}
		if t.Shorter < 1 || t.Shorter > maxSide {
			return optionError("Resize.Shorter", t.Shorter, "must be 1 … %d", maxSide)
		}
	} else if err := t.Size.check("Resize.Size"); err != nil {
		return err
	}
	return p.geometrical("Resize", t.Size, true, func(g *geometry, _ *rand.Rand) error {
		width, height := t.Size.Width, t.Size.Height
		if t.Shorter != 0 {
			shorter, longer := min(g.x.n, g.y.n), max(g.x.n, g.y.n)
			if n := int64(t.Shorter) * int64(longer) / int64(shorter); n > math.MaxInt/2 { // on CPUs of 32 bits
				return fmt.Errorf("%d × %d pixels would become %d on the longer side", g.x.n, g.y.n, n)
			}
			resized := func(n int) int { return int(int64(t.Shorter) * int64(n) / int64(shorter)) }
			width, height = resized(g.x.n), resized(g.y.n)
		}
		return g.resize(width, height)
	})
}

// CenterCrop takes the middle of the picture. If the picture is smaller than Size, it gets a black border.
type CenterCrop struct{ Size Size }

func (t CenterCrop) check(p *plan) error {
	if err := t.Size.check("CenterCrop.Size"); err != nil {
		return err
	}
	return p.geometrical("CenterCrop", t.Size, false, func(g *geometry, _ *rand.Rand) error {
		middle := func(a *axis, n int) {
			if a.n < n {
				a.crop(-((n - a.n) / 2), n)
				return
			}
			a.crop(int(math.RoundToEven(float64(a.n-n)/2)), n)
		}
		middle(&g.x, t.Size.Width)
		middle(&g.y, t.Size.Height)
		return nil
	})
}

// RandomCrop first pads the picture with Padding black pixels on each side. Then it takes a part of the
// given size at a random place. If the padded picture is smaller than the part, that is an error. With
// PadIfNeeded, such a picture gets a black border instead.
type RandomCrop struct {
	Size        Size
	Padding     int
	PadIfNeeded bool
}

func (t RandomCrop) check(p *plan) error {
	if err := t.Size.check("RandomCrop.Size"); err != nil {
		return err
	}
	if t.Padding < 0 || t.Padding > maxSide {
		return optionError("RandomCrop.Padding", t.Padding, "must be 0 … %d", maxSide)
	}
	p.padded = p.padded || t.Padding > 0 || t.PadIfNeeded
	return p.geometrical("RandomCrop", t.Size, false, func(g *geometry, r *rand.Rand) error {
		dy, err := t.place(r, g.y.n, t.Size.Height)
		if err != nil {
			return fmt.Errorf("RandomCrop: the picture's height, %w", err)
		}
		dx, err := t.place(r, g.x.n, t.Size.Width)
		if err != nil {
			return fmt.Errorf("RandomCrop: the picture's width, %w", err)
		}
		g.x.crop(dx, t.Size.Width)
		g.y.crop(dy, t.Size.Height)
		return nil
	})
}

// place draws the pixel at which a part of n pixels begins, on a side of size pixels.
func (t *RandomCrop) place(r *rand.Rand, size, n int) (int, error) {
	padding := t.Padding
	if size+2*padding < n {
		if !t.PadIfNeeded {
			return 0, fmt.Errorf("%d pixels with %d of padding on each side, must be at least %d: set PadIfNeeded to pad it", size, padding, n)
		}
		padding += n - size - 2*padding
	}
	return intN(r, size+2*padding-n+1) - padding, nil
}

// RandomHorizontalFlip mirrors a share P of the pictures left to right, usually 0.5.
type RandomHorizontalFlip struct{ P float64 }

// RandomVerticalFlip turns a share P of the pictures upside down.
type RandomVerticalFlip struct{ P float64 }

func (t RandomHorizontalFlip) check(p *plan) error {
	return p.flip("RandomHorizontalFlip", t.P, func(g *geometry) *axis { return &g.x })
}

func (t RandomVerticalFlip) check(p *plan) error {
	return p.flip("RandomVerticalFlip", t.P, func(g *geometry) *axis { return &g.y })
}

func (p *plan) flip(name string, share float64, of func(*geometry) *axis) error {
	if err := checkShare(name, share); err != nil {
		return err
	}
	return p.geometrical(name, p.size, false, func(g *geometry, r *rand.Rand) error {
		if r.Float64() < share {
			a := of(g)
			a.flip = !a.flip
		}
		return nil
	})
}

// checkShare checks the share of the pictures that a transform changes.
func checkShare(name string, share float64) error {
	if share == 0 {
		return optionError(name+".P", share, "changes no picture: write the share of pictures that it shall change, such as 0.5, or leave %s out", name)
	}
	if !(share > 0 && share <= 1) {
		return optionError(name+".P", share, "must be more than 0, and at most 1")
	}
	return nil
}

// Normalize replaces each value, 0 … 1, by (value − Mean) / Std, with the Mean and Std of its channel.
type Normalize struct{ Mean, Std [3]float64 }

// ImageNetNormalize is the usual normalization of photographs.
var ImageNetNormalize = Normalize{Mean: [3]float64{0.485, 0.456, 0.406}, Std: [3]float64{0.229, 0.224, 0.225}}

func (t Normalize) check(p *plan) error {
	if p.normalized {
		return optionError("Normalize", t, "must come once")
	}
	for c := range 3 {
		if !(t.Std[c] > 0) || math.IsInf(t.Std[c], 0) || math.IsNaN(t.Mean[c]) || math.IsInf(t.Mean[c], 0) {
			return optionError("Normalize", t, "means must be finite, deviations finite and more than 0")
		}
		if t.Mean[c] > 1 && t.Std[c] > 1 {
			return optionError("Normalize", t, "Mean and Std seem to be of levels 0 … 255: divide them by 255, since Normalize gets 0 … 1")
		}
	}
	if len(p.erasures) > 0 {
		return optionError("Normalize", t, "must come before RandomErasing")
	}
	if p.grey && (t.Mean != [3]float64{t.Mean[0], t.Mean[0], t.Mean[0]} || t.Std != [3]float64{t.Std[0], t.Std[0], t.Std[0]}) {
		slog.Warn("vision: after Grayscale a picture has one channel, and Normalize uses the first Mean and Std alone, those of red: give those of grey three times, or Grayscale{Channels: 3}",
			"mean", t.Mean[0], "std", t.Std[0])
	}
	p.pixels, p.normalized, p.mean, p.std = true, true, t.Mean, t.Std
	return nil
}

// RandomErasing overwrites a random rectangle with Value, in a share P of the pictures, usually 0.5. Value
// is in the units of the result. So after Normalize, 0 is the mean.
type RandomErasing struct {
	P     float64
	Scale [2]float64 // share of the result's area, from … to; default 0.02 … 0.33
	Ratio [2]float64 // height / width, from … to; default 0.3 … 3.3
	Value float64
}

func (t RandomErasing) check(p *plan) error {
	if err := checkShare("RandomErasing", t.P); err != nil {
		return err
	}
	t.Scale, t.Ratio = cmp.Or(t.Scale, [2]float64{0.02, 0.33}), cmp.Or(t.Ratio, [2]float64{0.3, 3.3})
	if err := checkPart("RandomErasing", t.Scale, t.Ratio); err != nil {
		return err
	}
	if math.IsNaN(t.Value) || math.IsInf(t.Value, 0) {
		return optionError("RandomErasing.Value", t.Value, "must be finite")
	}
	p.pixels = true
	p.erasures = append(p.erasures, &t)
	return nil
}

// draw corresponds to RandomErasing.get_params. If height is 0, nothing is erased.
func (t *RandomErasing) draw(r *rand.Rand, size Size) (left, top, width, height int) {
	if r.Float64() >= t.P {
		return 0, 0, 0, 0
	}
	area := float64(size.Width) * float64(size.Height)
	for range 10 {
		target := area * uniform(r, t.Scale[0], t.Scale[1])
		ratio := logUniform(r, t.Ratio[0], t.Ratio[1])
		height, width = int(math.RoundToEven(math.Sqrt(target*ratio))), int(math.RoundToEven(math.Sqrt(target/ratio)))
		if height < size.Height && width < size.Width {
			top = intN(r, size.Height-height+1)
			return intN(r, size.Width-width+1), top, width, height
		}
	}
	return 0, 0, 0, 0
}
