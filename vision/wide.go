package vision

import (
	"math"
	"slices"

	"github.com/nwt-go/nwt"
)

// keepsWide reports whether the result can hold all levels of a grey picture of 16 bits. Changed colours
// have eight bits.
func (w *worker) keepsWide() bool {
	return w.p.dtype != nwt.Uint8 && !slices.ContainsFunc(w.drawn.ops, func(o op) bool { return o.kind != grayscale })
}

// exactTaps returns the weights of an axis over size values, as numbers: value i of the result is the sum
// of the weights i*stride … times the values from[i] …
func exactTaps(a axis, size int) (from []int, weights []float64, stride int) {
	shape := a.triangle(size)
	stride = 2*int(shape.support) + 3
	from, weights = make([]int, a.n), make([]float64, a.n*stride)
	for i := range from {
		lo, of, sum := shape.weigh(weights[i*stride:][:stride], i)
		for k := range of {
			of[k] /= sum
		}
		from[i] = lo
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
