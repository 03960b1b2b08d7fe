package vision

import (
	"context"
	"math"

	"github.com/nwt-go/nwt"
)

// element constrains the element types of a result. Float16 and BFloat16 are uint16, too.
type element interface{ float32 | uint16 | uint8 }

// levels holds, for each level of a channel, the value in the result. The value of level v is at index
// v+below. Indices beyond levels 0 … 255 hold the value of the nearer end, so that sums needn't be
// clamped.
type levels[T element] struct {
	of [1024]T
	affine
}

const below = 384

// affine says how levels become numbers: level*scale + shift, rounded after each step. If scale is 0,
// only the table can be used.
type affine struct{ scale, shift float32 }

func newLevels[T element](of func(level int) T) *levels[T] {
	t := new(levels[T])
	for i := range t.of {
		t.of[i] = of(min(max(i-below, 0), 255))
	}
	return t
}

// normalized returns the levels of a channel as numbers.
func normalized(mean, std float64) *levels[float32] {
	a := affine{float32(1 / (255 * std)), float32(-mean / std)}
	if !(a.scale >= 0x1p-126 && a.scale <= math.MaxFloat32/512 && a.shift >= -math.MaxFloat32/2 && a.shift <= math.MaxFloat32/2) { // the formula isn't exact
		return newLevels(func(level int) float32 { return float32((float64(level)/255 - mean) / std) })
	}
	t := newLevels(func(level int) float32 { return float32(float32(level)*a.scale) + a.shift })
	t.affine = a
	return t
}

// identity leaves levels as they are.
var identity = newLevels(func(level int) uint8 { return uint8(level) })

// chroma holds what a pixel's components add to its levels, plus lift, so that nothing is negative. The
// lower 32 bits hold red from Cr and blue from Cb; the upper bits hold green from both, in 1/65536ths.
type chroma struct {
	cr, cb [256]uint64
	full   bool       // as in JFIF; the assembly handles only these
	luma   [256]int32 // the grey part + below − lift; if full, that is y + below − lift
}

const lift = 256

// The conversions of JFIF (ITU-T T.871, 7), rounded as in libjpeg, and of BT.601.
var (
	fullRange  = newChroma(1, 1, 0)
	videoRange = newChroma(255.0/219, 255.0/224, 16)
)

func newChroma(lumaScale, scale float64, black int) *chroma {
	t := &chroma{full: lumaScale == 1}
	both := func(whole, green int32) uint64 { return uint64(uint32(green))<<32 | uint64(uint32(whole)) }
	parts := func(v float64) int32 { return int32(math.Round(v * scale * 65536)) }
	for i := range int32(256) {
		d := i - 128
		t.luma[i] = int32(math.Floor(float64(float64(int(i)-black)*lumaScale)+0.5)) + below - lift
		t.cr[i] = both((parts(1.402)*d+1<<15)>>16+lift, -parts(0.71414)*d)
		t.cb[i] = both((parts(1.772)*d+1<<15)>>16+lift, -parts(0.34414)*d+1<<15+lift<<16)
	}
	return t
}

// fromYCCPlain converts a row of pixels.
func fromYCCPlain[T element](r, g, b []T, y, cb, cr []byte, t *chroma, tables *[3]*levels[T]) {
	n := len(r)
	g, b, y, cb, cr = g[:n], b[:n], y[:n], cb[:n], cr[:n]
	red, green, blue := tables[0], tables[1], tables[2]
	if !t.full {
		for i := range r {
			l, fromBlue, fromRed := t.luma[y[i]], t.cb[cb[i]], t.cr[cr[i]]
			r[i] = red.of[(l+int32(fromRed))&1023]
			g[i] = green.of[(l+int32(int64(fromBlue+fromRed)>>48))&1023]
			b[i] = blue.of[(l+int32(fromBlue))&1023]
		}
		return
	}
	for i := range r {
		l, fromBlue, fromRed := int32(y[i])+below-lift, t.cb[cb[i]], t.cr[cr[i]]
		r[i] = red.of[(l+int32(fromRed))&1023]
		g[i] = green.of[(l+int32(int64(fromBlue+fromRed)>>48))&1023]
		b[i] = blue.of[(l+int32(fromBlue))&1023]
	}
}

// fromLevelsPlain converts a row of one channel.
func fromLevelsPlain[T element](dst []T, src []byte, table *levels[T]) {
	src = src[:len(dst)]
	for i := range dst {
		dst[i] = table.of[below+int(src[i])]
	}
}

// A writer writes rows of pixels to a result.
type writer interface {
	// begin selects picture k of a sample's field for writing, and fills it with black if blank is set,
	// until ctx ends.
	begin(ctx context.Context, dst *nwt.Sample, field, k int, blank bool)
	// ycc and rgb write n pixels of row y, beginning at column x.
	ycc(x, y, n int, luma, cb, cr []byte, t *chroma)
	rgb(x, y, n int, r, g, b []byte)
	// exact writes values of channel c to row y, beginning at column x.
	exact(c, x, y int, values []float64)
	// erase overwrites a rectangle, until ctx ends.
	erase(ctx context.Context, e erasure)
}

// format describes a result.
type format struct {
	Size
	channels int
	layout   Layout
}

// output is the writer of one element type. Each worker has its own.
type output[T element] struct {
	format
	tables *[3]*levels[T]
	of     func(float64) T
	dst    []T
	bytes  [3][]byte // one row
}

func (o *output[T]) begin(ctx context.Context, dst *nwt.Sample, field, k int, blank bool) {
	n := o.channels * o.Height * o.Width
	if o.dst = nwt.Values[T](dst, field)[k*n:][:n]; !blank {
		return
	}
	for c := range o.channels {
		for y := range o.Height {
			if y%rowsBetweenLooks == 0 && ctx.Err() != nil {
				return
			}
			for x := range o.Width {
				o.dst[o.at(c, x, y)] = o.tables[c].of[below]
			}
		}
	}
}

// rowsBetweenLooks is how many rows of a result are filled between two checks of the context.
const rowsBetweenLooks = 64

func (o *output[T]) at(c, x, y int) int {
	if o.layout == HWC {
		return (y*o.Width+x)*o.channels + c
	}
	return (c*o.Height+y)*o.Width + x
}

// row returns n elements of a channel of a result in CHW order.
func (o *output[T]) row(c, x, y, n int) []T { return o.dst[o.at(c, x, y):][:n] }

func (o *output[T]) ycc(x, y, n int, luma, cb, cr []byte, t *chroma) {
	if o.layout == CHW && o.channels == 3 {
		fromYCC(o.row(0, x, y, n), o.row(1, x, y, n), o.row(2, x, y, n), luma, cb, cr, t, o.tables)
		return
	}
	for c := range o.bytes {
		if len(o.bytes[c]) < n {
			o.bytes[c] = make([]byte, o.Width)
		}
	}
	r, g, b := o.bytes[0][:n], o.bytes[1][:n], o.bytes[2][:n]
	fromYCC(r, g, b, luma, cb, cr, t, &unchanged)
	o.rgb(x, y, n, r, g, b)
}

// unchanged leaves all three channels as they are.
var unchanged = [3]*levels[uint8]{identity, identity, identity}

func (o *output[T]) rgb(x, y, n int, r, g, b []byte) {
	switch {
	case o.channels == 1:
		fromLevels(o.dst[y*o.Width+x:][:n], r, o.tables[0])
	case o.layout == CHW:
		fromLevels(o.row(0, x, y, n), r, o.tables[0])
		fromLevels(o.row(1, x, y, n), g, o.tables[1])
		fromLevels(o.row(2, x, y, n), b, o.tables[2])
	default:
		dst := o.dst[o.at(0, x, y):][:3*n]
		r, g, b = r[:n], g[:n], b[:n]
		red, green, blue := o.tables[0], o.tables[1], o.tables[2]
		for i := range r {
			p := dst[3*i : 3*i+3 : 3*i+3]
			p[0], p[1], p[2] = red.of[below+int(r[i])], green.of[below+int(g[i])], blue.of[below+int(b[i])]
		}
	}
}

func (o *output[T]) exact(c, x, y int, values []float64) {
	for i, v := range values {
		o.dst[o.at(c, x+i, y)] = o.of(v)
	}
}

func (o *output[T]) erase(ctx context.Context, e erasure) {
	v := o.of(e.value)
	for c := range o.channels {
		for y := e.top; y < e.top+e.height; y++ {
			if y%rowsBetweenLooks == 0 && ctx.Err() != nil {
				return
			}
			for x := e.left; x < e.left+e.width; x++ {
				o.dst[o.at(c, x, y)] = v
			}
		}
	}
}

// float16 returns the nearest half-precision number (IEEE 754 binary16), ties to even.
func float16(v float64) uint16 {
	sign := uint16(0)
	if math.Signbit(v) {
		sign, v = 1<<15, -v
	}
	switch {
	case v >= 65520:
		return sign | 0x7c00
	case v < 0x1p-14: // subnormal, in steps of 2⁻²⁴
		return sign | uint16(math.RoundToEven(v*0x1p24))
	}
	fraction, exponent := math.Frexp(v) // 0.5 ≤ fraction < 1
	// A fraction that rounds up to 2 carries into the exponent.
	return sign | (uint16(exponent+14)<<10 + uint16(math.RoundToEven(fraction*2048)) - 1024)
}

// bfloat16 returns the nearest bfloat16, ties to even.
func bfloat16(v float64) uint16 {
	b := math.Float32bits(float32(v))
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}
