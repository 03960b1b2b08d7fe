package vision

import (
	"encoding/binary"
	"math"
)

// Pixels are resampled as in Pillow, and in torchvision with antialias=True: each value of the result is
// the mean of the values around its place, weighted by a triangle whose half width is one pixel of the
// source or of the result, whichever is wider (https://pillow.readthedocs.io, Image.resize, BILINEAR).
//
// Planes are resampled one by one, before colours are converted: a chroma plane
// that has a quarter of the pixels costs a quarter of the work. Weights are 1/256ths,
// so that a weighted sum of bytes fits 16 bits and a uint64 holds four of them.
//
// Here and wherever pixels are computed from floating-point numbers, a product is converted to its own
// type before something is added: otherwise some CPUs would round only the sum.

// taps are the weights that turn a line of one length into a line of another: value i is the sum of
// weights[i*stride+k] × source[from[i]+k] over 0 ≤ k < count[i], in 1/256ths.
type taps struct {
	from    []int
	count   []int
	weights []uint64
	stride  int

	lo, hi int // the part of the source that is used; lo is a multiple of eight
	most   int // the largest count; weights beyond a count are 0; hi−lo is at least as large

	exact []float64 // weights of one value, before they are rounded
	half  []float64 // the same, for a subsampled plane
}

// An axis describes what happens to rows or to columns: the part from … to of a picture becomes full
// pixels. Of these, the pixels first … first+n−1 are wanted, in reverse order if flip is set. Pixels
// outside of left … end−1 are padding: the picture has no such pixels, or an earlier crop has cut them
// off.
type axis struct {
	from, to  float64
	full      int
	first, n  int
	left, end int
	flip      bool
}

// whole returns the axis that changes nothing.
func whole(size int) axis { return axis{to: float64(size), full: size, n: size, end: size} }

func (a *axis) scale() float64 { return (a.to - a.from) / float64(a.full) }

// crop takes n pixels, beginning at pixel at.
func (a *axis) crop(at, n int) {
	if a.flip {
		at = a.n - at - n
	}
	a.first, a.n = a.first+at, n
	a.left, a.end = max(a.left, a.first), min(a.end, a.first+n)
}

// resize makes n pixels from the pixels that are wanted. After an earlier resize it doesn't resample
// again: the two steps become one.
func (a *axis) resize(n int) {
	scale := a.scale()
	a.from, a.to = a.from+float64(float64(a.first)*scale), a.from+float64(float64(a.first+a.n)*scale)
	a.full, a.first, a.n, a.left, a.end = n, 0, n, 0, n
}

// padded reports whether pixels outside of the source are wanted.
func (a *axis) padded() bool { return a.first < a.left || a.first+a.n > a.end }

// mirrored returns the same axis over a source of size pixels that is mirrored.
func (a axis) mirrored(size int) axis {
	a.from, a.to = float64(size)-a.to, float64(size)-a.from
	a.first, a.flip = a.full-a.first-a.n, !a.flip
	a.left, a.end = a.full-a.end, a.full-a.left
	return a
}

// place returns where a place of the picture is in the result.
func (a *axis) place(at float64) float64 {
	at = (at-a.from)*float64(a.full)/(a.to-a.from) - float64(a.first)
	if a.flip {
		return float64(a.n) - at
	}
	return at
}

// seen returns which part of the result isn't padding.
func (a *axis) seen() (from, to float64) {
	rest, at := a.inside()
	return float64(at), float64(at + rest.n)
}

func (a *axis) point(at float32) (in float32, seen bool) {
	place := a.place(float64(at))
	from, to := a.seen()
	return float32(place), from <= place && place <= to
}

// nearest computes, for each pixel of the result, which of size pixels it is; −1 is padding. If mirrored
// is set, the pixels are in reverse order.
func (a *axis) nearest(pixels []int, size int, mirrored bool) []int {
	if cap(pixels) < a.n {
		pixels = make([]int, a.n)
	}
	pixels = pixels[:a.n]
	for i := range pixels {
		k, pixel := a.first+i, -1
		if k >= a.left && k < a.end { // the pixel in which the middle of the result's pixel lies
			pixel = min(int(a.from+float64((float64(k)+0.5)*(a.to-a.from))/float64(a.full)), size-1)
			if mirrored {
				pixel = size - 1 - pixel
			}
		}
		if a.flip {
			pixels[a.n-1-i] = pixel
		} else {
			pixels[i] = pixel
		}
	}
	return pixels
}

// shrunk returns the same axis over a smaller source: one pixel stands for k of the
// former source.
func (a axis) shrunk(k int) axis {
	a.from, a.to = a.from/float64(k), a.to/float64(k)
	return a
}

// inside splits off the padding. It returns the rest of the axis, and the place in
// the result at which the rest begins.
func (a axis) inside() (rest axis, at int) {
	lo, hi := max(a.first, a.left), min(a.first+a.n, a.end)
	if at = lo - a.first; a.flip {
		at = a.first + a.n - hi
	}
	a.first, a.n = lo, max(0, hi-lo)
	return a, at
}

// span returns the part of size pixels that is needed. It has at least one pixel, even
// if a crop lies in the padding alone.
func (a *axis) span(size int) (from, to int) {
	scale := a.scale()
	support := max(scale, 1)
	from = int(a.from + float64(float64(max(a.first, a.left))*scale) - support)
	to = int(a.from+float64(float64(min(a.first+a.n, a.end))*scale)+support) + 1
	from = min(max(from, 0), size-1)
	return from, max(from+1, min(size, to))
}

// A triangle weighs the pixels of an axis.
type triangle struct {
	axis
	step, support, inverse float64
	least, most            int // pixels least … most−1 count
}

func (a axis) triangle(size int) triangle {
	step := a.scale()
	support := max(step, 1)
	return triangle{a, step, support, 1 / support, max(0, int(math.Floor(a.from))), min(size, int(math.Ceil(a.to)))}
}

// weigh computes which pixels become value i of the result, from pixel lo on, and with which weights, of
// which it also returns the sum.
func (t *triangle) weigh(mem []float64, i int) (lo int, weights []float64, sum float64) {
	if t.flip {
		i = t.n - 1 - i
	}
	at := t.from + float64((float64(t.first+i)+0.5)*t.step)
	lo = max(t.least, int(at-t.support+0.5))
	weights = mem[:max(0, min(t.most, int(at+t.support+0.5))-lo)]
	for k := range weights {
		w := 1 - math.Abs(float64((float64(lo+k)+0.5-at)*t.inverse))
		weights[k] = max(w, 0)
		sum += weights[k]
	}
	// A crop may cut through the outermost pixels.
	if n := len(weights); n > 0 {
		for k, outside := range [2]float64{t.from - float64(lo), float64(lo+n) - t.to} {
			if outside > 0 {
				w := &weights[k*(n-1)]
				less := float64(*w * min(outside, 1))
				*w, sum = *w-less, sum-less
			}
		}
	}
	if sum == 0 { // beside the picture, take its edge
		return min(max(int(at), t.least), t.most-1), append(weights[:0], 1), 1
	}
	return lo, weights, sum
}

// plan computes the taps of an axis for a plane of size values. Each value stands
// for sub pixels: 1 or, in a chroma plane, 2 or 4. If smooth is set, the weights do
// two steps at once: they first enlarge the plane to the picture's size by
// libjpeg's triangle ("fancy upsampling"), as a decoder would have done.
func (t *taps) plan(a axis, pixels, size, sub int, smooth bool) {
	shape := a.triangle(pixels)
	t.stride = 2*int(shape.support) + 5
	if n := a.n * t.stride; cap(t.weights) < n {
		t.weights = make([]uint64, n)
	}
	t.weights = t.weights[:a.n*t.stride]
	if cap(t.from) < a.n {
		t.from, t.count = make([]int, a.n), make([]int, a.n)
	}
	t.from, t.count = t.from[:a.n], t.count[:a.n]
	if cap(t.exact) < t.stride {
		t.exact, t.half = make([]float64, 2*t.stride), make([]float64, 2*t.stride)
	}
	t.lo, t.hi, t.most = size, 0, 2
	for i := range a.n {
		lo, weights, sum := shape.weigh(t.exact, i)
		if sub > 1 {
			lo, weights = t.subsampled(lo, weights, size, sub, smooth)
		}
		t.put(i, lo, weights, 256/sum)
	}
	t.hi = max(t.hi, t.lo+t.most)
	t.lo &^= 7
	for i, from := range t.from {
		if over := from + t.most - t.hi; over > 0 {
			w := t.weights[i*t.stride:][:t.most]
			copy(w[over:], w)
			clear(w[:over])
			t.from[i], t.count[i] = from-over, t.most
		}
	}
}

// tidy frees memory for more than most weights.
func (t *taps) tidy(most int) {
	if cap(t.weights) > most || cap(t.exact) > most {
		*t = taps{}
	}
}

// subsampled turns the weights of pixels, which begin at pixel lo, into weights for a plane of size
// values, each of which stands for sub pixels.
func (t *taps) subsampled(lo int, weights []float64, size, sub int, smooth bool) (int, []float64) {
	from := min(lo/sub, size-1)
	if smooth {
		from = max(0, min((lo-1)/2, size-1))
	}
	half := t.half[:len(weights)/sub+4]
	clear(half)
	used := 0
	add := func(c int, w float64) {
		c = min(max(c, 0), size-1) - from
		half[c] += w
		used = max(used, c+1)
	}
	for k, w := range weights {
		at := lo + k
		if !smooth {
			add(at/sub, w)
			continue
		}
		// The nearer of two values gets weight ¾, the other ¼.
		add(at/2, float64(0.75*w))
		add(at/2+at%2*2-1, float64(0.25*w))
	}
	return from, half[:used]
}

// put rounds the weights of value i so that they add up to 256.
func (t *taps) put(i, from int, weights []float64, scale float64) {
	out := t.weights[i*t.stride : (i+1)*t.stride]
	sum, before, n, skip := 0.5, 0, 0, 0
	for _, w := range weights {
		sum += float64(w * scale)
		upTo := min(int(sum), 256)
		if upTo == before && n == 0 {
			skip++ // a weight of 0 at the start
			continue
		}
		out[n] = uint64(upTo - before)
		before = upTo
		n++
	}
	if n == 0 {
		skip, n = 0, 1
		out[0] = 0
	}
	out[n-1] += uint64(256 - before)
	for n > 1 && out[n-1] == 0 {
		n--
	}
	clear(out[n:])
	t.most = max(t.most, n)
	from += skip
	t.from[i], t.count[i] = from, n
	t.lo, t.hi = min(t.lo, from), max(t.hi, from+n)
}

const (
	evenBytes = 0x00ff00ff00ff00ff
	rounding  = 0x0080008000800080 // one half, in 1/256ths, in each of four lanes
)

// joined returns the eight bytes whose even and odd bytes are e and o, in 1/256ths.
func joined(e, o uint64) uint64 { return e>>8&evenBytes | o&^uint64(evenBytes) }

// mixRowsPlain writes the weighted mean of rows to dst; row k begins at src[k*stride]. It works on eight
// bytes at a time, so the length of dst must be a multiple of eight.
func mixRowsPlain(dst, src []byte, stride int, weights []uint64) {
	n := len(dst)
	switch len(weights) {
	case 1:
		copy(dst, src)
	case 2:
		a, b := src[:n], src[stride:][:n]
		wa, wb := weights[0], weights[1]
		for ; len(dst) >= 8 && len(a) >= 8 && len(b) >= 8; dst, a, b = dst[8:], a[8:], b[8:] {
			va, vb := binary.LittleEndian.Uint64(a), binary.LittleEndian.Uint64(b)
			e := va&evenBytes*wa + vb&evenBytes*wb + rounding
			o := va>>8&evenBytes*wa + vb>>8&evenBytes*wb + rounding
			binary.LittleEndian.PutUint64(dst, joined(e, o))
		}
	case 3:
		a, b, c := src[:n], src[stride:][:n], src[2*stride:][:n]
		wa, wb, wc := weights[0], weights[1], weights[2]
		for ; len(dst) >= 8 && len(a) >= 8 && len(b) >= 8 && len(c) >= 8; dst, a, b, c = dst[8:], a[8:], b[8:], c[8:] {
			va, vb, vc := binary.LittleEndian.Uint64(a), binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(c)
			e := va&evenBytes*wa + vb&evenBytes*wb + vc&evenBytes*wc + rounding
			o := va>>8&evenBytes*wa + vb>>8&evenBytes*wb + vc>>8&evenBytes*wc + rounding
			binary.LittleEndian.PutUint64(dst, joined(e, o))
		}
	case 4:
		a, b, c, d := src[:n], src[stride:][:n], src[2*stride:][:n], src[3*stride:][:n]
		wa, wb, wc, wd := weights[0], weights[1], weights[2], weights[3]
		for ; len(dst) >= 8 && len(a) >= 8 && len(b) >= 8 && len(c) >= 8 && len(d) >= 8; dst, a, b, c, d = dst[8:], a[8:], b[8:], c[8:], d[8:] {
			va, vb := binary.LittleEndian.Uint64(a), binary.LittleEndian.Uint64(b)
			vc, vd := binary.LittleEndian.Uint64(c), binary.LittleEndian.Uint64(d)
			e := va&evenBytes*wa + vb&evenBytes*wb + vc&evenBytes*wc + vd&evenBytes*wd + rounding
			o := va>>8&evenBytes*wa + vb>>8&evenBytes*wb + vc>>8&evenBytes*wc + vd>>8&evenBytes*wd + rounding
			binary.LittleEndian.PutUint64(dst, joined(e, o))
		}
	default:
		for x := 0; x+8 <= n; x += 8 {
			e, o, at := uint64(rounding), uint64(rounding), x
			for _, w := range weights {
				v := binary.LittleEndian.Uint64(src[at:])
				e += v & evenBytes * w
				o += v >> 8 & evenBytes * w
				at += stride
			}
			binary.LittleEndian.PutUint64(dst[x:], joined(e, o))
		}
	}
}

// A column is eight pixels, one below the other: the even ones and the odd ones, each pixel a byte in a
// lane of 16 bits. In assembly the lanes are in the order of the rows.
type column struct{ e, o uint64 }

// mixColumnsPlain does what mixRows does, over columns.
func mixColumnsPlain(dst []uint64, src []column, t *taps) {
	n := t.most
	weights, starts := t.weights, t.from[:len(dst)]
	switch n {
	case 2:
		for i := range dst {
			s, w := (*[2]column)(src[starts[i]-t.lo:]), (*[2]uint64)(weights)
			weights = weights[t.stride:]
			e := s[0].e*w[0] + s[1].e*w[1] + rounding
			o := s[0].o*w[0] + s[1].o*w[1] + rounding
			dst[i] = joined(e, o)
		}
	case 3:
		for i := range dst {
			s, w := (*[3]column)(src[starts[i]-t.lo:]), (*[3]uint64)(weights)
			weights = weights[t.stride:]
			e := s[0].e*w[0] + s[1].e*w[1] + s[2].e*w[2] + rounding
			o := s[0].o*w[0] + s[1].o*w[1] + s[2].o*w[2] + rounding
			dst[i] = joined(e, o)
		}
	case 4:
		for i := range dst {
			s, w := (*[4]column)(src[starts[i]-t.lo:]), (*[4]uint64)(weights)
			weights = weights[t.stride:]
			e := s[0].e*w[0] + s[1].e*w[1] + s[2].e*w[2] + s[3].e*w[3] + rounding
			o := s[0].o*w[0] + s[1].o*w[1] + s[2].o*w[2] + s[3].o*w[3] + rounding
			dst[i] = joined(e, o)
		}
	default:
		for i := range dst {
			from := starts[i] - t.lo
			s, w := src[from:from+n], weights[:n]
			weights = weights[t.stride:]
			e, o := uint64(rounding), uint64(rounding)
			for k := range s {
				e += s[k].e * w[k]
				o += s[k].o * w[k]
			}
			dst[i] = joined(e, o)
		}
	}
}

// transpose turns eight rows of eight bytes into eight columns, or back.
func transpose(a, b, c, d, e, f, g, h uint64) (uint64, uint64, uint64, uint64, uint64, uint64, uint64, uint64) {
	const m1, m2, m4 = 0x00ff00ff00ff00ff, 0x0000ffff0000ffff, 0x00000000ffffffff
	t := (a>>8 ^ b) & m1
	a, b = a^t<<8, b^t
	t = (c>>8 ^ d) & m1
	c, d = c^t<<8, d^t
	t = (e>>8 ^ f) & m1
	e, f = e^t<<8, f^t
	t = (g>>8 ^ h) & m1
	g, h = g^t<<8, h^t

	t = (a>>16 ^ c) & m2
	a, c = a^t<<16, c^t
	t = (b>>16 ^ d) & m2
	b, d = b^t<<16, d^t
	t = (e>>16 ^ g) & m2
	e, g = e^t<<16, g^t
	t = (f>>16 ^ h) & m2
	f, h = f^t<<16, h^t

	t = (a>>32 ^ e) & m4
	a, e = a^t<<32, e^t
	t = (b>>32 ^ f) & m4
	b, f = b^t<<32, f^t
	t = (c>>32 ^ g) & m4
	c, g = c^t<<32, g^t
	t = (d>>32 ^ h) & m4
	d, h = d^t<<32, h^t
	return a, b, c, d, e, f, g, h
}

func split(v uint64) column { return column{v & evenBytes, v >> 8 & evenBytes} }

// columnsOfPlain turns eight rows, which are stride bytes apart, into len(dst) columns; len(dst) must be
// a multiple of eight.
func columnsOfPlain(dst []column, rows []byte, stride int) {
	r0, r1, r2, r3 := rows[:stride], rows[stride:][:stride], rows[2*stride:][:stride], rows[3*stride:][:stride]
	r4, r5, r6, r7 := rows[4*stride:][:stride], rows[5*stride:][:stride], rows[6*stride:][:stride], rows[7*stride:][:stride]
	for x := 0; x+8 <= len(dst) && x+8 <= stride; x += 8 {
		d := (*[8]column)(dst[x:])
		a, b, c, e, f, g, h, i := transpose(
			binary.LittleEndian.Uint64(r0[x:]), binary.LittleEndian.Uint64(r1[x:]),
			binary.LittleEndian.Uint64(r2[x:]), binary.LittleEndian.Uint64(r3[x:]),
			binary.LittleEndian.Uint64(r4[x:]), binary.LittleEndian.Uint64(r5[x:]),
			binary.LittleEndian.Uint64(r6[x:]), binary.LittleEndian.Uint64(r7[x:]))
		d[0], d[1], d[2], d[3] = split(a), split(b), split(c), split(e)
		d[4], d[5], d[6], d[7] = split(f), split(g), split(h), split(i)
	}
}

// rowsOfPlain turns columns, eight bytes each, into eight rows; len(src) must be a multiple of eight.
func rowsOfPlain(rows []byte, stride int, src []uint64) {
	r0, r1, r2, r3 := rows[:stride], rows[stride:][:stride], rows[2*stride:][:stride], rows[3*stride:][:stride]
	r4, r5, r6, r7 := rows[4*stride:][:stride], rows[5*stride:][:stride], rows[6*stride:][:stride], rows[7*stride:][:stride]
	for x := 0; x+8 <= len(src) && x+8 <= stride; x += 8 {
		s := (*[8]uint64)(src[x:])
		a, b, c, d, e, f, g, h := transpose(s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7])
		binary.LittleEndian.PutUint64(r0[x:], a)
		binary.LittleEndian.PutUint64(r1[x:], b)
		binary.LittleEndian.PutUint64(r2[x:], c)
		binary.LittleEndian.PutUint64(r3[x:], d)
		binary.LittleEndian.PutUint64(r4[x:], e)
		binary.LittleEndian.PutUint64(r5[x:], f)
		binary.LittleEndian.PutUint64(r6[x:], g)
		binary.LittleEndian.PutUint64(r7[x:], h)
	}
}
