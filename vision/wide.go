package vision

import (
	"math"

	"github.com/nwt-go/nwt"
)

// keepsWide reports whether the result can hold all levels of a grey picture of 16 bits. Changed colours
// have eight bits.
func (w *worker) keepsWide() bool {
	for _, op := range w.drawn.ops {
		if op.kind != grayscale {
			return false
		}
	}
	return w.p.dtype != nwt.Uint8
}

// narrow keeps the upper eight bits of a grey picture of 16 bits.
func (p *picture) narrow() {
	p.model, p.planes[0] = grey, p.planes[1]
}

// exactTaps returns the weights of an axis over size values, as numbers: value i of the result is the sum
// of the weights i*stride … times the values from[i] …
func exactTaps(a axis, size int) (from []int, weights []float64, stride int) {
	scale := a.scale()
	support := max(scale, 1)
	stride = 2*int(support) + 3
	from, weights = make([]int, a.n), make([]float64, a.n*stride)
	first, last := max(0, int(math.Floor(a.from))), min(size, int(math.Ceil(a.to)))
	for i := range a.n {
		at := a.from + float64((float64(a.first+i)+0.5)*scale)
		lo, hi := max(first, int(at-support+0.5)), min(last, int(at+support+0.5))
		if lo >= hi { // beside the picture, take its edge
			lo = min(max(int(at), first), last-1)
			hi = lo + 1
		}
		place := i
		if a.flip {
			place = a.n - 1 - i
		}
		from[place] = lo
		out, sum := weights[place*stride:][:hi-lo], 0.0
		for k := range out {
			out[k] = max(1-math.Abs((float64(lo+k)+0.5-at)/support), 0)
			sum += out[k]
		}
		for k := range out {
			if sum == 0 {
				out[k], sum = 1, 1
			}
			out[k] /= sum
		}
	}
	return from, weights, stride
}

// resampleWide does what resample does, for a grey picture of 16 bits.
func (w *worker) resampleWide(x, y axis, left, top int) {
	p, channels, unit := &w.picture, 3, 1.0
	if w.p.grey {
		channels = 1
	}
	if w.p.dtype == nwt.Uint16 {
		unit = math.MaxUint16
	}
	fromX, weightsX, strideX := exactTaps(x, p.width)
	fromY, weightsY, strideY := exactTaps(y, p.height)
	column, values, scaled := make([]float64, p.width+strideX), make([]float64, x.n), make([]float64, x.n)
	from, to := x.span(p.width)
	for i := 0; i < y.n && w.ctx.Err() == nil; i++ {
		clear(column)
		for k, weight := range weightsY[i*strideY:][:strideY] {
			if weight == 0 {
				continue
			}
			low, high := p.planes[0].row(fromY[i]+k), p.planes[1].row(fromY[i]+k)
			for c := from; c < to; c++ {
				column[c] += float64(weight * float64(uint16(low[c])|uint16(high[c])<<8))
			}
		}
		for c := range values {
			sum := 0.0
			for k, weight := range weightsX[c*strideX:][:strideX] {
				sum += float64(weight * column[fromX[c]+k])
			}
			values[c] = sum / math.MaxUint16
		}
		for c := range channels {
			for k, v := range values {
				scaled[k] = (float64(v*unit) - w.p.mean[c]) / w.p.std[c]
			}
			w.out.exact(c, left, top+i, scaled)
		}
	}
}
