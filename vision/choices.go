package vision

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/retry"
)

// Choices holds the random choices that [Pipeline.Choose] has made for a sample. It applies them to other
// pictures, boxes and points of the sample. It is valid until the dataset's Load returns.
type Choices struct {
	p             *Pipeline // the pipeline that made the choices
	dst           *nwt.Sample
	id            int
	width, height int // of all pictures, after turning
	geometry      geometry
}

// Choose loads the first picture of a sample, as [Pipeline.Load] does. It returns the random choices, which
// apply to other pictures, boxes and points of the sample. If there are several files, they become the
// pictures of one field, as in [Pipeline.Frames].
func (p *Pipeline) Choose(dst *nwt.Sample, field int, files ...[]byte) (Choices, error) {
	d := Choices{dst: dst}
	err := d.load(dst.Context(), p, field, files)
	return d, err
}

// ChoosePixels does the same as Choose for decoded pictures: see [Choices.LoadPixels].
func (p *Pipeline) ChoosePixels(dst *nwt.Sample, field int, pixels []byte, height, width int, layout Layout) (Choices, error) {
	d := Choices{dst: dst}
	err := d.loadPixels(p, field, pixels, height, width, layout)
	return d, err
}

// Load loads another picture of the sample, or the pictures of another field. All pictures must have the size
// of the first picture, which [Pipeline.Choose] loaded. The pipeline must be the one whose Choose was called,
// or be made from it by [Pipeline.Companion] or [Pipeline.Masks]. With the
// pipeline whose Choose was called, colours change in the same way as in the first picture.
func (d Choices) Load(p *Pipeline, field int, files ...[]byte) error {
	if d.p == nil {
		return errNotChosen
	}
	return d.load(d.dst.Context(), p, field, files)
}

// LoadPixels does what Load does, but takes decoded pictures. A picture has height × width pixels. A pixel has
// three bytes, or one byte if the picture is grey. The argument layout says which dimension comes first. If
// the field has several pictures, the argument pixels has all of them, one after the other.
func (d Choices) LoadPixels(p *Pipeline, field int, pixels []byte, height, width int, layout Layout) error {
	if d.p == nil {
		return errNotChosen
	}
	return d.loadPixels(p, field, pixels, height, width, layout)
}

var errNotChosen = errors.New("vision: unusable Choices: Pipeline.Choose returned an error, or wasn't called")

// A Box is the left, upper, right and lower edge of a part of a picture, in pixels. The whole picture is
// {0, 0, width, height}.
type Box [4]float32

// Box returns where the visible part of a box is in the result, and the visible share of the box's area. If
// nothing is visible, or if the box has no area, the share is 0. A box with NaN becomes the empty box at 0,
// 0. The argument is in pixels of the file's picture. If [WithOrientation] turns the picture, the argument
// is in pixels of the turned picture.
func (d Choices) Box(b Box) (in Box, share float64) {
	share = 1
	for i, a := range [2]*axis{&d.geometry.x, &d.geometry.y} {
		from, to := a.place(float64(b[i])), a.place(float64(b[i+2]))
		if a.flip {
			from, to = to, from
		}
		least, most := a.seen()
		left, right := min(max(from, least), most), min(max(to, least), most)
		in[i], in[i+2] = float32(left), float32(right)
		if math.IsNaN(from) || math.IsNaN(to) {
			return Box{}, 0
		}
		if from < to {
			share *= (right - left) / (to - from)
		} else {
			share = 0
		}
	}
	return in, share
}

// Point returns where a point is in the result, and reports whether it is visible there. Coordinates are as
// in a [Box], so the middle of the first pixel is at ½, ½.
func (d Choices) Point(x, y float32) (inX, inY float32, seen bool) {
	px, seenX := d.geometry.x.point(x)
	py, seenY := d.geometry.y.point(y)
	return px, py, seenX && seenY
}

// Frames does the same as [Pipeline.Field] for n pictures, such as the frames of a clip. The field's shape
// is [n, channels, height, width].
func (p *Pipeline) Frames(name string, n int) nwt.Field {
	f := p.Field(name)
	f.Shape = append([]int{n}, f.Shape...)
	return f
}

// Companion makes a pipeline for other pictures of the same samples, to be loaded by [Choices.Load]. These
// pictures are cropped, resized and mirrored like the pictures of p. The given transforms replace those of p
// that change colours and values; they may change nothing else. The new pipeline has the options of p, unless
// opts change them.
func (p *Pipeline) Companion(transforms []Transform, opts ...Option) (*Pipeline, error) {
	b := &Pipeline{dtype: p.dtype, layout: p.layout, orient: p.orient, damaged: p.damaged, maxPixels: p.maxPixels, rows: p.drawer().rows}
	b.root = p.drawer()
	b.size, b.fixed = p.size, true
	b.made = b.root.Fingerprint() + ", beside it: "
	return b.complete(transforms, opts)
}

// drawer returns the pipeline that makes the random choices for p's pictures.
func (p *Pipeline) drawer() *Pipeline {
	if p.root != nil {
		return p.root
	}
	return p
}

var errCompanion = errors.New("vision: a Companion or Masks pipeline makes no choices of its own: load the sample's first picture with Choose of the pipeline that it was made from, and this one with Choices.Load")

// worker returns the worker for pictures of a pipeline, with the random choices for that pipeline.
func (d *Choices) worker(ctx context.Context, p *Pipeline, field, n int) (*worker, error) {
	switch {
	case p == nil:
		return nil, errors.New("vision: the pipeline is nil")
	case d.p == nil && p.root != nil:
		return nil, errCompanion
	case d.p != nil && d.p != p.drawer():
		return nil, errors.New("vision: the pipeline must be the one whose Choose was called, or its Companion or Masks")
	case n == 0:
		return nil, fmt.Errorf("vision: no picture for field %d", field)
	}
	if !p.fits(d.dst, field, n) {
		is := d.dst.Fields()[field]
		want, says := p.Field(is.Name), "Field"
		if n > 1 {
			want, says = p.Frames(is.Name, n), "Frames"
		}
		return nil, fmt.Errorf("vision: field %q is %v%v: must be %v%v, as Pipeline.%s declares it", is.Name, is.Type, is.Shape, want.Type, want.Shape, says)
	}
	w, err := p.worker(ctx, d.dst)
	if err != nil || d.p == nil || w.drawn.id == d.id {
		return w, err
	}
	if p == d.p {
		return nil, errors.New("vision: these Choices are outdated: the pipeline has chosen again since; load all pictures of one Choices before the next Choose")
	}
	w.drawn.id = d.id
	w.drawLook(d.dst.Rand())
	return w, nil
}

func (d *Choices) load(ctx context.Context, p *Pipeline, field int, files [][]byte) error {
	w, err := d.worker(ctx, p, field, len(files))
	if err != nil {
		return err
	}
	for k, data := range files {
		if err := d.loadFile(ctx, w, field, k, data); err != nil {
			if len(files) > 1 {
				err = fmt.Errorf("picture %d of field %d: %w", k, field, err)
			}
			return retry.As(err, false) // the same bytes would fail again
		}
	}
	return nil
}

func (d *Choices) loadFile(ctx context.Context, w *worker, field, k int, data []byte) error {
	w.ctx = ctx
	defer w.tidy()
	h, err := w.inspect(data)
	if err != nil {
		return err
	}
	return d.write(w, field, k, h, data)
}

func (d *Choices) loadPixels(p *Pipeline, field int, pixels []byte, height, width int, layout Layout) error {
	ctx, n := d.dst.Context(), 1
	if p != nil {
		n = max(1, len(d.dst.Bytes(field))/p.bytes)
	}
	w, err := d.worker(ctx, p, field, n)
	if err != nil {
		return err
	}
	for k := range n {
		if err := d.loadPicture(ctx, w, field, k, pixels[k*len(pixels)/n:(k+1)*len(pixels)/n], height, width, layout); err != nil {
			return err
		}
	}
	return nil
}

func (d *Choices) loadPicture(ctx context.Context, w *worker, field, k int, pixels []byte, height, width int, layout Layout) error {
	w.ctx = ctx
	defer w.tidy()
	if err := w.p.checkSize(width, height); err != nil {
		return err
	}
	if err := w.borrow(pixels, height, width, layout); err != nil {
		return err
	}
	return d.write(w, field, k, header{width: width, height: height, orientation: 1}, nil)
}

// write makes the random choices if they haven't been made, decodes what is needed of data, and writes
// picture k of a field. If data is nil, the picture is decoded already.
func (d *Choices) write(w *worker, field, k int, h header, data []byte) error {
	width, height := h.turned()
	if d.p == nil {
		g, err := w.draw(d.dst.Rand(), width, height)
		if err != nil {
			return err
		}
		*d = Choices{w.p, d.dst, w.drawn.id, width, height, g}
	}
	if width != d.width || height != d.height {
		return fmt.Errorf("vision: a picture has %d × %d pixels, the sample's first one %d × %d: all must have the same size", width, height, d.width, d.height)
	}
	if w.p.mask != nil {
		return w.writeMask(d.dst, field, k, h, d.geometry, data)
	}
	return w.write(d.dst, field, k, h, d.geometry, data)
}

// A Crop says which field [LoadCrops] fills, and with which pipeline. The field may have several pictures: see
// [Pipeline.Frames]. Each picture gets its own random choices.
type Crop struct {
	Pipeline *Pipeline
	Field    int
}

// LoadCrops decodes a picture once, at its full size, and makes several crops of it. For example,
// contrastive learning uses two large crops and six small ones. The options of the first crop's pipeline
// say how to decode.
func LoadCrops(dst *nwt.Sample, data []byte, crops ...Crop) error {
	if len(crops) == 0 {
		return errors.New("vision: LoadCrops needs at least one crop")
	}
	var h header
	var decoded picture
	for i, c := range crops {
		d, ctx, n := Choices{dst: dst}, dst.Context(), 1
		if c.Pipeline != nil {
			n = max(1, len(dst.Bytes(c.Field))/c.Pipeline.bytes)
		}
		w, err := d.worker(ctx, c.Pipeline, c.Field, n)
		if err != nil {
			return err
		}
		if i == 0 {
			defer w.tidy() // other workers borrow the picture until then
			if h, err = w.inspect(data); err == nil {
				all := h.whole()
				err = w.decode(data, h, &all)
			}
			decoded = w.picture
		} else if w.p != crops[0].Pipeline {
			defer w.tidy()
		}
		for k := 0; err == nil && k < n; k++ {
			width, height := h.turned()
			var g geometry
			if g, err = w.draw(dst.Rand(), width, height); err == nil {
				h.mirror(&g)
				w.picture = decoded
				err = w.write(dst, c.Field, k, h, g, nil)
			}
		}
		if err != nil {
			return retry.As(err, false) // the same bytes would fail again
		}
	}
	return nil
}
