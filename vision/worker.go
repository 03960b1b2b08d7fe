package vision

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"image"
	_ "image/gif" // registers a format for image.Decode
	"io"
	"math/rand/v2"

	_ "golang.org/x/image/bmp"  //
	_ "golang.org/x/image/tiff" //
	_ "golang.org/x/image/webp" //

	"github.com/nwt-go/nwt"
)

// A worker holds what one call needs: a decoder and buffers, which it keeps for the next picture.
type worker struct {
	p   *Pipeline
	ctx context.Context // of the call under way
	// Each is made when it is first needed.
	baseline    *baselineDecoder
	progressive *progressiveDecoder
	png         *pngDecoder
	out         writer

	geometry geometry
	picture  picture
	mem      []byte // for the picture's planes
	turned   []byte // for planes whose rows became columns
	packed   []byte // for components of other colours
	reduced  []byte // for planes whose pixels were averaged
	sums     []uint64
	reader   reader

	x, y    [2]taps // for the first plane, and for chroma planes
	rows    []byte  // eight rows
	columns []column
	mixed   []uint64
	strip   [3][]byte     // eight rows of the result
	levels  output[uint8] // the result's levels, if colours change
	nearest [2][]int      // for a mask: the source column and the source row of each column and row of the result
	drawn   drawn
}

// bench holds the workers for one of the loader's workers, one per pipeline.
type bench struct{ workers []*worker }

func newBench() (*bench, error) { return new(bench), nil }

// worker returns the worker for a sample that a call with the context ctx loads.
func (p *Pipeline) worker(ctx context.Context, s *nwt.Sample) (*worker, error) {
	b, err := nwt.Scratch(s, newBench)
	if err != nil {
		return nil, err
	}
	for _, w := range b.workers {
		if w.p == p {
			w.ctx = ctx
			return w, nil
		}
	}
	w := &worker{p: p, ctx: ctx}
	if p.mask == nil {
		w.out = p.newWriter()
	}
	b.workers = append(b.workers, w)
	return w, nil
}

// maxKept is how many bytes of a buffer are kept for the next picture.
const maxKept = 1 << 26

// tidy drops the picture, and frees memory that only few pictures need.
func (w *worker) tidy() {
	w.picture = picture{}
	for _, mem := range [...]*[]byte{&w.mem, &w.turned, &w.packed, &w.reduced} {
		if cap(*mem) > maxKept {
			*mem = nil
		}
	}
	if w.baseline != nil && cap(w.baseline.codes)+16*cap(w.baseline.cuts) > maxKept {
		w.baseline = nil
	}
	if w.progressive.bytes() > maxKept {
		w.progressive = nil
	}
	if w.png != nil && cap(w.png.codes)+2*cap(w.png.rows[0])+cap(w.png.spread) > maxKept {
		w.png = nil
	}
	if len(w.columns) > maxKept/16 { // only extremely wide pictures need so many
		w.rows, w.columns = nil, nil
	}
	for i := range w.x {
		w.x[i].tidy(maxKept / 8)
		w.y[i].tidy(maxKept / 8)
	}
	w.reader = reader{}
	w.ctx = nil
}

// ended returns why a call's context has ended, or nil if it hasn't.
func ended(ctx context.Context) error {
	err := ctx.Err()
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	return fmt.Errorf("vision: given up: %w", err)
}

// A reader reads a file in memory until a context ends. It stops every decoder that reads the file piece
// by piece.
type reader struct {
	ctx  context.Context
	rest bytes.Reader
}

// from returns the worker's reader, set to data.
func (w *worker) from(data []byte) io.Reader {
	w.reader.ctx = w.ctx
	w.reader.rest.Reset(data)
	return &w.reader
}

func (r *reader) Read(p []byte) (int, error) {
	if err := ended(r.ctx); err != nil {
		return 0, err
	}
	return r.rest.Read(p)
}

// ReadAt is for TIFF, whose parts may be anywhere in the file.
func (r *reader) ReadAt(p []byte, at int64) (int, error) {
	if err := ended(r.ctx); err != nil {
		return 0, err
	}
	return r.rest.ReadAt(p, at)
}

// A header is what is known of a file before it is decoded.
type header struct {
	width, height int
	orientation   int
	jpeg          jpegHeader // components is 0 if the file isn't a JPEG
	png           pngHeader  // channels is 0 if the file isn't a PNG
}

var errEmpty = errors.New("vision: the file is empty")

// maxLength bounds a side of a picture: resampling takes up to a hundred bytes for
// each pixel of one row.
const maxLength = 1 << 20

func (p *Pipeline) checkSize(width, height int) error {
	if width < 1 || height < 1 {
		return fmt.Errorf("vision: a picture of %d × %d pixels: each side must be at least 1", width, height)
	}
	if width > maxLength || height > maxLength {
		return fmt.Errorf("vision: a picture of %d × %d pixels: each side must be at most %d", width, height, maxLength)
	}
	if width > p.maxPixels/height { // written so that the product can't overflow
		return fmt.Errorf("vision: a picture of %d × %d pixels: must be at most %d in all (WithMaxPixels)", width, height, p.maxPixels)
	}
	return nil
}

// inspect reads the header of a file.
func (w *worker) inspect(data []byte) (h header, err error) {
	h.orientation = 1
	switch {
	case len(data) == 0:
		return h, errEmpty
	case bytes.HasPrefix(data, []byte{0xff, 0xd8}):
		if h.jpeg, err = readJPEG(w.ctx, data); err != nil {
			return h, w.failed("vision: JPEG: %w", err)
		}
		h.width, h.height = h.jpeg.width, h.jpeg.height
		if w.p.orient {
			h.orientation = orientation(h.jpeg.exif)
		}
	case bytes.HasPrefix(data, pngSignature):
		if h.png, err = readPNG(data, w.p.damaged); err != nil {
			return h, w.failed("vision: PNG: %w", err)
		}
		h.width, h.height = h.png.width, h.png.height
		if w.p.orient {
			h.orientation = orientation(exifOf(w.ctx, data))
		}
	default:
		config, format, err := image.DecodeConfig(w.from(data))
		if errors.Is(err, image.ErrFormat) {
			err = fmt.Errorf("not a JPEG, PNG, GIF, WebP, BMP, TIFF, PPM or PGM file: begins with %q", data[:min(len(data), 16)])
		}
		if err != nil {
			return h, w.failed("vision: %w", err)
		}
		h.width, h.height = config.Width, config.Height
		switch {
		case format == "tiff": // as in Pillow, which always turns TIFF files
			h.orientation = orientation(data)
			if err := checkTIFF(data); err != nil {
				return h, err
			}
		case w.p.orient:
			h.orientation = orientation(exifOf(w.ctx, data))
		}
	}
	return h, w.p.checkSize(h.width, h.height)
}

// failed returns the error for a file that couldn't be decoded. If the context has ended, that is the
// reason, not the file.
func (w *worker) failed(format string, err error) error {
	if over := ended(w.ctx); over != nil {
		return over
	}
	if err == io.ErrUnexpectedEOF {
		err = fmt.Errorf("the file is cut: %w", err)
	}
	return fmt.Errorf(format, err)
}

// draw makes the random choices for pictures of a size. It returns the resulting geometry.
func (w *worker) draw(r *rand.Rand, width, height int) (geometry, error) {
	w.geometry = geometry{whole(width), whole(height)}
	for _, draw := range w.p.geometric {
		if err := draw(&w.geometry, r); err != nil {
			return w.geometry, fmt.Errorf("vision: %w", err)
		}
	}
	w.drawn.id++
	w.drawLook(r)
	return w.geometry, nil
}

// drawLook makes the random choices for colours and values.
func (w *worker) drawLook(r *rand.Rand) {
	d := &w.drawn
	d.ops, d.erased = d.ops[:0], d.erased[:0]
	for _, s := range w.p.colour {
		s.draw(r, d)
	}
	for _, e := range w.p.erasures {
		if left, top, width, height := e.draw(r, w.p.size); height > 0 {
			d.erased = append(d.erased, erasure{left, top, width, height, e.Value})
		}
	}
}

// write decodes the part of data that a geometry needs, and writes picture k of a field. If data is
// nil, the picture is decoded already.
func (w *worker) write(dst *nwt.Sample, field, k int, h header, of geometry, data []byte) error {
	p, g := w.p, &w.geometry
	*g = of
	if data != nil {
		if err := w.decode(data, h, g); err != nil {
			return err
		}
	}
	wide := w.picture.model == wideGrey && w.keepsWide()
	if w.picture.model == wideGrey && !wide {
		w.picture.model, w.picture.planes[0] = grey, w.picture.planes[1] // the upper eight bits
	}
	across, down := 1, 1
	if !wide {
		across, down = w.reduce(g.x.scale(), g.y.scale())
	}
	if err := ended(w.ctx); err != nil {
		return err
	}
	x, left := g.x.shrunk(across).inside()
	y, top := g.y.shrunk(down).inside()
	w.out.begin(w.ctx, dst, field, k, x.n < p.size.Width || y.n < p.size.Height)
	switch {
	case wide:
		w.resampleWide(x, y, left, top)
	case len(w.drawn.ops) == 0 && !p.grey:
		w.resample(x, y, w.out, left, top)
	default:
		w.colours(x, y, left, top)
	}
	for _, e := range w.drawn.erased {
		w.out.erase(w.ctx, e)
	}
	return ended(w.ctx)
}

// finest is the largest scale at which weights are exact enough: if more pixels were averaged, their
// weights would be too small for 1/256ths.
const finest = 16

// reduce averages the pixels of a picture that is made smaller by more than the factor finest. It returns
// how many of the file's pixels one pixel then stands for, per row and per column.
func (w *worker) reduce(scaleX, scaleY float64) (across, down int) {
	factor := func(scale float64) int {
		n := 1
		for scale >= float64(finest*n) {
			n *= 2
		}
		return n
	}
	byX, byY := factor(scaleX), factor(scaleY)
	if byX > 1 || byY > 1 {
		w.reduced, w.sums = w.picture.reduce(w.ctx, w.reduced, w.sums, byX, byY)
	}
	return byX, byY
}

// colours does what resample does, and also changes colours.
func (w *worker) colours(x, y axis, left, top int) {
	o, size := &w.levels, w.p.size
	n := size.Width * size.Height
	o.format = format{size, 3, CHW}
	o.tables = &unchanged
	o.dst = sized(o.dst, 3*n)
	if x.n < size.Width || y.n < size.Height { // padding has colours too: contrast counts and changes them
		clear(o.dst)
	}
	w.resample(x, y, o, left, top)
	r, g, b := o.dst[:n], o.dst[n:2*n], o.dst[2*n:]
	for _, op := range w.drawn.ops {
		op.apply(w.ctx, r, g, b)
	}
	for row := 0; row < size.Height && w.ctx.Err() == nil; row++ {
		from, to := row*size.Width, (row+1)*size.Width
		w.out.rgb(0, row, size.Width, r[from:to], g[from:to], b[from:to])
	}
}

// resample writes the part of the picture that x and y describe to the result,
// beginning at column left and row top.
func (w *worker) resample(x, y axis, out writer, left, top int) {
	if x.n == 0 || y.n == 0 {
		return
	}
	p := &w.picture
	for i := range w.x[:min(p.count(), 2)] {
		subX, subY, pl := 1, 1, &p.planes[i]
		if i > 0 && p.model != rgb {
			subX, subY = p.subX, p.subY
		}
		smooth := p.smooth && subX <= 2 && subY <= 2 // for larger factors, libjpeg only repeats the values
		w.x[i].plan(x, p.width, pl.width, subX, smooth && subX == 2)
		w.y[i].plan(y, p.height, pl.height, subY, smooth && subY == 2)
	}
	outWidth := up(x.n, 8)
	if len(w.mixed) < outWidth {
		w.mixed = make([]uint64, outWidth)
		for c := range w.strip {
			w.strip[c] = make([]byte, 8*outWidth)
		}
	}
	for row := 0; row < y.n && w.ctx.Err() == nil; row += 8 {
		n := min(8, y.n-row)
		for c := range p.count() {
			w.mix(&p.planes[c], &w.x[min(c, 1)], &w.y[min(c, 1)], row, n, x.n)
			rowsOf(w.strip[c], outWidth, w.mixed[:outWidth])
		}
		for k := range n {
			at := k * outWidth
			switch p.model {
			case grey:
				v := w.strip[0][at:]
				out.rgb(left, top+row+k, x.n, v, v, v)
			case rgb:
				out.rgb(left, top+row+k, x.n, w.strip[0][at:], w.strip[1][at:], w.strip[2][at:])
			default:
				t := fullRange
				if p.model == video {
					t = videoRange
				}
				out.ycc(left, top+row+k, x.n, w.strip[0][at:], w.strip[1][at:], w.strip[2][at:], t)
			}
		}
	}
}

// mix resamples rows row … row+n−1 of the result, at most eight, of a plane
// into mixed.
func (w *worker) mix(pl *plane, x, y *taps, row, n, width int) {
	span := up(x.hi-x.lo, 8)
	if len(w.rows) < 8*span {
		w.rows, w.columns = make([]byte, 8*span), make([]column, span)
	}
	for k := range n {
		i := row + k
		from := y.from[i]*pl.stride + x.lo
		mixRows(w.rows[k*span:(k+1)*span], pl.pix[from:], pl.stride, y.weights[i*y.stride:][:y.count[i]])
	}
	columnsOf(w.columns[:span], w.rows, span)
	mixColumns(w.mixed[:width], w.columns, x)
}
