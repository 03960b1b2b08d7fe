package vision

import (
	"context"
	"math"
	"math/rand/v2"
)

// A step changes the colours of a picture. Its draw returns what to do with one picture; nil means
// nothing.
type step interface {
	draw(r *rand.Rand, d *drawn)
}

// drawn holds what is done with the pixels of a sample's pictures: the colour changes, in order, and the
// rectangle that is erased.
type drawn struct {
	id     int // number of the Choices
	ops    []op
	erased []erasure
}

// erasure is a rectangle of the result that is overwritten.
type erasure struct {
	left, top, width, height int
	value                    float64
}

// op is a colour change with a factor. A factor of 1 changes nothing, except for grayscale.
type op struct {
	kind   opKind
	factor float64
}

type opKind uint8

const (
	brightness opKind = iota
	contrast
	saturation
	hue // factor is a share of the circle
	grayscale
)

// colourful adds a colour step to the plan.
func (p *plan) colourful(name string, s step) error {
	if p.normalized || len(p.erasures) > 0 {
		return optionError(name, nil, "must come before Normalize and RandomErasing")
	}
	p.pixels = true
	p.colour = append(p.colour, s)
	return nil
}

// ColorJitter changes brightness, contrast and saturation by random factors from max(0, 1−x) to 1+x, where
// x is the field's value. It rotates the hue by up to ±Hue of a full turn. These changes come in a random
// order. A field that is 0 leaves its property unchanged.
type ColorJitter struct{ Brightness, Contrast, Saturation, Hue float64 }

func (t ColorJitter) check(p *plan) error {
	for _, c := range []struct {
		name  string
		value float64
		most  float64
	}{{"Brightness", t.Brightness, 255}, {"Contrast", t.Contrast, 255}, {"Saturation", t.Saturation, 255}, {"Hue", t.Hue, 0.5}} {
		if !(c.value >= 0 && c.value <= c.most) {
			return optionError("ColorJitter."+c.name, c.value, "must be 0 … %v", c.most)
		}
	}
	return p.colourful("ColorJitter", t)
}

func (t ColorJitter) draw(r *rand.Rand, d *drawn) {
	from := len(d.ops)
	for kind, x := range [...]float64{t.Brightness, t.Contrast, t.Saturation} {
		if x > 0 {
			d.ops = append(d.ops, op{opKind(kind), uniform(r, max(0, 1-x), 1+x)})
		}
	}
	if t.Hue > 0 {
		d.ops = append(d.ops, op{hue, uniform(r, -t.Hue, t.Hue)})
	}
	ops := d.ops[from:]
	for i := len(ops) - 1; i > 0; i-- {
		k := intN(r, i+1)
		ops[i], ops[k] = ops[k], ops[i]
	}
}

// Grayscale removes the colour of the picture. The result has one channel, or three equal channels if
// Channels is 3.
type Grayscale struct{ Channels int }

func (t Grayscale) check(p *plan) error {
	switch t.Channels {
	case 0, 1:
		p.grey = true
	case 3:
	default:
		return optionError("Grayscale.Channels", t.Channels, "must be 1 or 3, where 0 means 1")
	}
	return p.colourful("Grayscale", t)
}

func (Grayscale) draw(_ *rand.Rand, d *drawn) { d.ops = append(d.ops, op{kind: grayscale}) }

// RandomGrayscale removes the colour of a share P of the pictures, usually 0.1. The result keeps three
// channels.
type RandomGrayscale struct{ P float64 }

func (t RandomGrayscale) check(p *plan) error {
	if err := checkShare("RandomGrayscale", t.P); err != nil {
		return err
	}
	return p.colourful("RandomGrayscale", t)
}

func (t RandomGrayscale) draw(r *rand.Rand, d *drawn) {
	if r.Float64() < t.P {
		d.ops = append(d.ops, op{kind: grayscale})
	}
}

// pixelBand is how many pixels are changed between two checks of the context.
const pixelBand = 1 << 20

// apply changes the colours of a picture; if ctx ends, only of a part of it.
func (o op) apply(ctx context.Context, r, g, b []byte) {
	g, b = g[:len(r)], b[:len(r)]
	grey := 0.0 // the grey that contrast blends with
	if o.kind == contrast {
		sum := 0
		for from := 0; from < len(r) && ctx.Err() == nil; from += pixelBand {
			for i := from; i < min(from+pixelBand, len(r)); i++ {
				sum += int(luma(r[i], g[i], b[i]))
			}
		}
		grey = float64(sum) / float64(max(1, len(r)))
	}
	for from := 0; from < len(r) && ctx.Err() == nil; from += pixelBand {
		to := min(from+pixelBand, len(r))
		o.change(grey, r[from:to], g[from:to], b[from:to])
	}
}

func (o op) change(grey float64, r, g, b []byte) {
	g, b = g[:len(r)], b[:len(r)]
	switch o.kind {
	case brightness, contrast:
		blendLevels(o.factor, grey, r, g, b)
	case saturation:
		f := int32(math.Round(o.factor * 4096))
		rest := 4096 - f
		for i := range r {
			l := int32(luma(r[i], g[i], b[i])) * rest
			r[i], g[i], b[i] = clamp((int32(r[i])*f+l)>>12), clamp((int32(g[i])*f+l)>>12), clamp((int32(b[i])*f+l)>>12)
		}
	case hue:
		for i := range r {
			r[i], g[i], b[i] = turnHue(r[i], g[i], b[i], float32(o.factor))
		}
	case grayscale:
		for i := range r {
			l := luma(r[i], g[i], b[i])
			r[i], g[i], b[i] = l, l, l
		}
	}
}

// luma returns the grey of a colour (ITU-R BT.601, as Pillow's "L").
func luma(r, g, b byte) byte {
	return byte((uint32(r)*19595 + uint32(g)*38470 + uint32(b)*7471 + 1<<15) >> 16)
}

func clamp(v int32) byte { return byte(min(max(v, 0), 255)) }

// blendLevels replaces each value by factor × value + (1 − factor) × other.
func blendLevels(factor, other float64, planes ...[]byte) {
	var table [256]byte
	for i := range table {
		table[i] = byte(min(max(float64(factor*float64(i))+float64((1-factor)*other), 0), 255))
	}
	for _, p := range planes {
		for i, v := range p {
			p[i] = table[v]
		}
	}
}

// turnHue turns a colour's hue by a share of the circle.
func turnHue(r, g, b byte, by float32) (byte, byte, byte) {
	most, least := max(r, g, b), min(r, g, b)
	if most == least {
		return r, g, b
	}
	span := float32(most) - float32(least)
	var h float32 // in sixths of the circle
	switch most {
	case r:
		h = (float32(g) - float32(b)) / span
	case g:
		h = 2 + (float32(b)-float32(r))/span
	default:
		h = 4 + (float32(r)-float32(g))/span
	}
	h += float32(6 * by)
	if h < 0 {
		h += 6
	}
	if h >= 6 {
		h -= 6
	}
	sector := int(h)
	part := h - float32(sector)
	p, q, t := least, byte(float32(most)-float32(span*part)+0.5), byte(float32(least)+float32(span*part)+0.5)
	switch sector {
	case 0:
		return most, t, p
	case 1:
		return q, most, p
	case 2:
		return p, most, t
	case 3:
		return p, q, most
	case 4:
		return t, p, most
	}
	return most, p, q
}
