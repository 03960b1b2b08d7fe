package vision

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/nwt-go/nwt"
)

// A Layout is the order of a picture's dimensions.
type Layout uint8

const (
	CHW Layout = iota // channels, height, width, as in PyTorch: the default
	HWC               // height, width, channels, as in TensorFlow
)

func (l Layout) String() string {
	if l == HWC {
		return "HWC"
	}
	return "CHW"
}

// An Option changes the pipeline that [New] makes.
type Option func(*settings) error

// settings are a pipeline that is being made: options can't change one that is in use.
type settings Pipeline

// WithType sets the element type of the result: Float32 (the default), Float16, BFloat16, Uint8 or Uint16.
// Uint8 values are 0 … 255 and Uint16 values 0 … 65535; these two types can't be normalized. Before [Normalize],
// floating-point values are 0 … 1.
func WithType(t nwt.DType) Option {
	return func(s *settings) error {
		switch t {
		case nwt.Float32, nwt.Float16, nwt.BFloat16, nwt.Uint8, nwt.Uint16:
			s.dtype = t
			return nil
		}
		return optionError("WithType", t, "must be Float32, Float16, BFloat16, Uint8 or Uint16")
	}
}

// WithLayout sets the order of the result's dimensions. The default is [CHW].
func WithLayout(l Layout) Option {
	return func(s *settings) error {
		if l > HWC {
			return optionError("WithLayout", uint8(l), "must be CHW or HWC")
		}
		s.layout = l
		return nil
	}
}

// WithOrientation turns and mirrors pictures of JPEG, PNG and WebP files as their Exif data says. Without
// this option pictures are loaded as they are stored, as in torchvision's ImageFolder. TIFF files are
// always turned, as in torchvision.
func WithOrientation() Option {
	return func(s *settings) error {
		s.orient = true
		return nil
	}
}

// WithDamaged loads the decodable part of JPEG files that are truncated or damaged, as Pillow does with
// LOAD_TRUNCATED_IMAGES. The rest is grey. In a baseline JPEG file, everything after the damage is grey.
// If scans of a progressive file are missing, its blocks aren't smoothed; Pillow smooths them.
//
// WithDamaged also loads PNG files whose end is missing but whose pixels are complete, and PNG files with a
// wrong checksum.
//
// Without this option a truncated JPEG file is an error. If damage in a JPEG file is noticed, it is an
// error too, unless it lies below the rows that a crop needs. But a JPEG file has no checksum: if flipped
// bits still make valid codes, its pixels change unnoticed.
func WithDamaged() Option {
	return func(s *settings) error {
		s.damaged = true
		return nil
	}
}

// DefaultMaxPixels is the default of [WithMaxPixels]: Pillow's limit, MAX_IMAGE_PIXELS.
const DefaultMaxPixels = 89_478_485

// WithMaxPixels sets how many pixels a picture may have. The default is [DefaultMaxPixels]. If a file's
// header declares more pixels, or a side longer than 2²⁰, that is an error. No memory is allocated for such
// a picture.
func WithMaxPixels(n int) Option {
	return func(s *settings) error {
		if n < 1 || int64(n) > 1<<31 {
			return optionError("WithMaxPixels", n, "must be 1 … 2³¹")
		}
		s.maxPixels = n
		return nil
	}
}

// DefaultRowMemory is the default of [WithRowMemory], 256 MB.
const DefaultRowMemory = 256 << 20

// WithRowMemory sets how many bytes of memory the process may use to remember where rows of blocks begin in
// baseline JPEG files: see the package documentation. The default is [DefaultRowMemory]. With 0, the
// pipeline remembers nothing. The option doesn't change pixels.
func WithRowMemory(bytes int64) Option {
	return func(s *settings) error {
		if bytes < 0 {
			return optionError("WithRowMemory", bytes, "must be at least 0")
		}
		s.rowBound = bytes
		return nil
	}
}

// A Pipeline turns the bytes of pictures into tensors. Many goroutines may use it at once.
type Pipeline struct {
	plan
	dtype     nwt.DType
	layout    Layout
	orient    bool
	damaged   bool
	maxPixels int
	rows      *rowMemory // nil: nothing is remembered
	rowBound  int64

	root *Pipeline // the pipeline that makes the random choices for this one's pictures; nil: this one does
	mask *maskOf   // nil if its pictures aren't masks

	bytes     int // size of the result
	newWriter func() writer
	made      string // names the transforms that it was made from
}

// New makes a pipeline that applies the transforms in the order given. Geometric transforms must come
// first, and one of them must fix the size of the result. Colour transforms come next, then Normalize and
// RandomErasing. The error joins an *[nwt.ArgumentError] for each problem.
func New(transforms []Transform, opts ...Option) (*Pipeline, error) {
	p := &Pipeline{dtype: nwt.Float32, maxPixels: DefaultMaxPixels, rowBound: DefaultRowMemory}
	p, err := p.complete(transforms, opts)
	if err == nil && p.rowBound > 0 {
		p.rows = newRowMemory(p.rowBound)
	}
	return p, err
}

// complete adds transforms and options to a new pipeline.
func (p *Pipeline) complete(transforms []Transform, opts []Option) (*Pipeline, error) {
	p.std = [3]float64{1, 1, 1}
	var errs []error
	for i, t := range transforms {
		p.made += fmt.Sprintf("%T%+v ", t, t)
		if t == nil {
			errs = append(errs, optionError(fmt.Sprintf("transforms[%d]", i), nil, "is nil"))
			continue
		}
		errs = append(errs, t.check(&p.plan))
	}
	for i, o := range opts {
		if o == nil {
			errs = append(errs, optionError(fmt.Sprintf("options[%d]", i), nil, "is nil"))
			continue
		}
		errs = append(errs, o((*settings)(p)))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if p.size == (Size{}) {
		return nil, optionError("New", nil, "no transform fixes the size of the result: end with RandomResizedCrop, CenterCrop, RandomCrop or Resize with Size")
	}
	if p.normalized && (p.dtype == nwt.Uint8 || p.dtype == nwt.Uint16) {
		return nil, optionError("WithType", p.dtype, "can't be combined with Normalize: leave Normalize out, or take a floating-point type")
	}
	f := format{p.size, 3, p.layout}
	if p.grey {
		f.channels = 1
	}
	p.bytes = f.channels * p.size.Height * p.size.Width * p.dtype.Size()
	switch p.dtype {
	case nwt.Float32:
		var tables [3]*levels[float32]
		for c := range tables {
			tables[c] = normalized(p.mean[c], p.std[c])
		}
		p.newWriter = writers(f, &tables, func(v float64) float32 { return float32(v) })
	case nwt.Float16:
		p.newWriter = writers(f, tablesOf(&p.plan, 255, float16), float16)
	case nwt.BFloat16:
		p.newWriter = writers(f, tablesOf(&p.plan, 255, bfloat16), bfloat16)
	case nwt.Uint8:
		round := func(v float64) uint8 { return uint8(min(max(math.Round(v), 0), 255)) }
		p.newWriter = writers(f, tablesOf(&p.plan, 1, round), round)
	case nwt.Uint16:
		round := func(v float64) uint16 { return uint16(min(max(math.Round(v), 0), math.MaxUint16)) }
		p.newWriter = writers(f, tablesOf(&p.plan, 255.0/math.MaxUint16, round), round)
	}
	return p, nil
}

// tablesOf makes the tables of an element type whose values are computed one by one.
func tablesOf[T element](p *plan, scale float64, of func(float64) T) *[3]*levels[T] {
	var tables [3]*levels[T]
	for c := range tables {
		tables[c] = newLevels(func(level int) T { return of((float64(level)/scale - p.mean[c]) / p.std[c]) })
	}
	return &tables
}

// writers makes writers that share their tables.
func writers[T element](f format, tables *[3]*levels[T], of func(float64) T) func() writer {
	return func() writer { return &output[T]{format: f, tables: tables, of: of} }
}

// Fingerprint depends on the pipeline's transforms, and on the options that change pixels.
func (p *Pipeline) Fingerprint() string {
	return fmt.Sprintf("vision.Pipeline: %s%v %v orientation %v damaged %v", p.made, p.dtype, p.layout, p.orient, p.damaged)
}

// Field returns the field that holds the result, with its name, type and shape. To declare the field in a
// schema, pass its shape: nwt.AddField[float32](&schema, name, p.Field(name).Shape...).
func (p *Pipeline) Field(name string) nwt.Field {
	channels := 3
	if p.grey {
		channels = 1
	}
	shape := []int{channels, p.size.Height, p.size.Width}
	if p.layout == HWC {
		shape = []int{p.size.Height, p.size.Width, channels}
	}
	if p.mask != nil {
		shape = []int{p.size.Height, p.size.Width}
	}
	return nwt.Field{Name: name, Type: p.dtype, Shape: shape}
}

// fits reports whether n results fill a field. Its dimensions may be fewer than theirs, but not in another
// order.
func (p *Pipeline) fits(dst *nwt.Sample, field, n int) bool {
	shape, colours := dst.Shape(field), [3]int{3, p.size.Height, p.size.Width}
	if p.layout == HWC {
		colours = [3]int{p.size.Height, p.size.Width, 3}
	}
	ordered := p.grey || p.mask != nil || len(shape) < 3 || [3]int(shape[len(shape)-3:]) == colours
	return ordered && len(dst.Bytes(field)) == n*p.bytes
}

// Load decodes the picture in data, applies the transforms with random numbers from dst.Rand, and writes the
// result to a field of dst. The field must have the type and shape of [Pipeline.Field]. It neither keeps nor
// changes the argument data. Its errors don't name the picture, so the caller adds the name.
//
// Load ends soon after the context of the dataset's Load call ends. That happens when the program leaves
// the epoch, or when [nwt.WithTimeout] gives the call up. The error then wraps the context's cause. Some
// decoders continue for longer: see the package documentation.
func (p *Pipeline) Load(dst *nwt.Sample, field int, data []byte) error {
	return p.load(dst.Context(), dst, field, data)
}

func (p *Pipeline) load(ctx context.Context, dst *nwt.Sample, field int, data []byte) error {
	d := Choices{dst: dst}
	return d.load(ctx, p, field, [][]byte{data})
}

// LoadPixels does the same as Load for a decoded picture. The picture has height × width pixels of three
// bytes, or of one byte if it is grey, in the order that the argument layout gives.
func (p *Pipeline) LoadPixels(dst *nwt.Sample, field int, pixels []byte, height, width int, layout Layout) error {
	_, err := p.ChoosePixels(dst, field, pixels, height, width, layout)
	return err
}
