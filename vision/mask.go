package vision

import (
	"errors"
	"fmt"
	"image"
	"math"

	"github.com/nwt-go/nwt"
)

// maskOf says what a mask's pixels become.
type maskOf struct{ outside int }

// Masks makes a pipeline for the masks of p's pictures, to be loaded by [Choices.Load]. Masks are cropped,
// resized and mirrored like the pictures, and keep their values: a pixel of the result has the value of the
// mask's nearest pixel. A mask must be grey or have a palette. With a palette, its values are the indices
// of the palette's colours. A mask of one bit has the values 0 and 1. If a crop extends beyond the picture,
// the pixels there get the value of the argument outside.
//
// The type t is Uint8, Uint16, Int32, Int64 or Float32. A value that a Uint8 can't hold is an error. The
// result has the shape [height, width].
func (p *Pipeline) Masks(t nwt.DType, outside int) (*Pipeline, error) {
	least, most := math.MinInt, math.MaxInt
	switch t {
	case nwt.Uint8:
		least, most = 0, math.MaxUint8
	case nwt.Uint16:
		least, most = 0, math.MaxUint16
	case nwt.Int32:
		least, most = math.MinInt32, math.MaxInt32
	case nwt.Int64, nwt.Float32:
	default:
		return nil, optionError("Pipeline.Masks", t, "must be Uint8, Uint16, Int32, Int64 or Float32")
	}
	if outside < least || outside > most {
		return nil, optionError("Pipeline.Masks", outside, "outside must be %d … %d for %v", least, most, t)
	}
	m, err := p.Companion(nil)
	if err != nil {
		return nil, err
	}
	m.mask, m.dtype = &maskOf{outside}, t
	m.bytes = m.size.Height * m.size.Width * t.Size()
	m.made += fmt.Sprintf("a mask, %d outside ", outside)
	return m, nil
}

// valuesOf returns an image of the values of a mask, given its file. whole says whether the mask fills
// its frame.
func valuesOf(data []byte, mask image.Image, whole bool) (image.Image, error) {
	if !whole {
		return nil, fmt.Errorf("vision: a mask whose picture, %v, doesn't fill its frame", mask.Bounds())
	}
	switch src := mask.(type) {
	case *image.Gray:
		const imageWidth, bitsPerSample = 0x0100, 0x0102
		_, isTIFF := tagOf(data, imageWidth)
		if bits, told := tagOf(data, bitsPerSample); isTIFF && (bits == 1 || !told) { // 1 is the default; package tiff makes them 0 and 255
			for i, v := range src.Pix {
				src.Pix[i] = v & 1
			}
		}
	case *image.Paletted:
		return &image.Gray{Pix: src.Pix, Stride: src.Stride, Rect: src.Rect}, nil
	case *image.RGBA64, *image.NRGBA64: // of a TIFF file
		return nil, errors.New("vision: a mask of colours of 16 bits: a mask must be grey, or have a palette")
	}
	return mask, nil
}

func notGrey(x, y, r, g, b int) error {
	return fmt.Errorf("vision: a mask must be grey or have a palette: in this one the pixel at column %d of row %d has the colour %d, %d, %d", x, y, r, g, b)
}

// onlyGrey keeps one plane of a picture without colours.
func (w *worker) onlyGrey() error {
	p := &w.picture
	if p.model == grey || p.model == wideGrey {
		return nil
	}
	if p.model != rgb {
		if err := w.surround(image.Rect(0, 0, p.width, p.height), p.width, p.height); err != nil {
			return err
		}
	}
	for y := 0; y < p.height && w.ctx.Err() == nil; y++ {
		r, g, b := p.planes[0].row(y), p.planes[1].row(y), p.planes[2].row(y)
		for x, v := range r {
			if v != g[x] || v != b[x] {
				return notGrey(x, y, int(v), int(g[x]), int(b[x]))
			}
		}
	}
	p.model = grey
	return nil
}

func (p *plane) row(y int) []byte { return p.pix[y*p.stride:][:p.width] }

// writeMask does what write does, for masks.
func (w *worker) writeMask(dst *nwt.Sample, field, k int, h header, g geometry, data []byte) error {
	if data != nil {
		all := h.whole()
		if err := w.decode(data, h, &all); err != nil {
			return err
		}
	}
	if err := w.onlyGrey(); err != nil {
		return err
	}
	if err := ended(w.ctx); err != nil {
		return err
	}
	mirroredX, mirroredY := h.mirrored()
	w.nearest[0] = g.x.nearest(w.nearest[0], w.picture.width, mirroredX)
	w.nearest[1] = g.y.nearest(w.nearest[1], w.picture.height, mirroredY)
	n, outside := w.p.size.Width*w.p.size.Height, w.p.mask.outside
	switch w.p.dtype {
	case nwt.Uint8:
		return writeNearest(w, nwt.Values[uint8](dst, field)[k*n:][:n], uint8(outside))
	case nwt.Uint16:
		return writeNearest(w, nwt.Values[uint16](dst, field)[k*n:][:n], uint16(outside))
	case nwt.Int32:
		return writeNearest(w, nwt.Values[int32](dst, field)[k*n:][:n], int32(outside))
	case nwt.Int64:
		return writeNearest(w, nwt.Values[int64](dst, field)[k*n:][:n], int64(outside))
	}
	return writeNearest(w, nwt.Values[float32](dst, field)[k*n:][:n], float32(outside))
}

// writeNearest writes the values of the nearest pixels.
func writeNearest[T uint8 | uint16 | int32 | int64 | float32](w *worker, dst []T, outside T) error {
	p, columns := &w.picture, w.nearest[0]
	wide, largest := p.model == wideGrey, 0
	for y, row := range w.nearest[1] {
		if y%rowsBetweenLooks == 0 && w.ctx.Err() != nil {
			return ended(w.ctx)
		}
		out := dst[y*len(columns):][:len(columns)]
		for x, column := range columns {
			switch {
			case row < 0 || column < 0:
				out[x] = outside
			case wide:
				v := int(p.planes[0].row(row)[column]) | int(p.planes[1].row(row)[column])<<8
				out[x], largest = T(v), max(largest, v)
			default:
				out[x] = T(p.planes[0].row(row)[column])
			}
		}
	}
	if w.p.dtype == nwt.Uint8 && largest > math.MaxUint8 {
		return fmt.Errorf("vision: a mask of 16 bits has the value %d: must be at most 255 for %v", largest, w.p.dtype)
	}
	return nil
}
