package vision

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"image"
	"image/color"
	"io"
)

// decode decodes the file in data, at least the part that g needs, to the picture,
// and turns g to the picture's own axes.
func (w *worker) decode(data []byte, h header, g *geometry) error {
	// See CIPA DC-008, 4.6.4 A, Orientation.
	width, height := h.width, h.height
	sideways := h.orientation >= 5
	if sideways {
		width, height = height, width
	}
	switch h.orientation {
	case 2, 3, 6, 7:
		g.x = g.x.mirrored(width)
	}
	switch h.orientation {
	case 3, 4, 7, 8:
		g.y = g.y.mirrored(height)
	}
	var err error
	if h.jpeg.components > 0 {
		err = w.decodeJPEG(data, h, g, sideways)
	} else {
		err = w.decodeImage(data, h)
	}
	if err == nil && sideways {
		w.turned = w.picture.transpose(w.ctx, w.turned)
	}
	return err
}

// decodeJPEG decodes a JPEG file as far down as it is needed, and at a smaller size
// if enough pixels remain.
func (w *worker) decodeJPEG(data []byte, h header, g *geometry, sideways bool) error {
	scans := 1
	if !h.jpeg.baseline || !h.jpeg.whole {
		var err error
		if scans, err = checkScans(w.ctx, data, h); err != nil {
			return err
		}
	}
	x, y := &g.x, &g.y
	if sideways {
		x, y = y, x
	}
	var needed region
	needed.left, needed.right = x.span(h.width)
	needed.top, needed.bottom = y.span(h.height)
	planar := h.jpeg.ycc && h.jpeg.subX > 0
	switch {
	case w.turbo == nil && planar && (h.jpeg.baseline || h.jpeg.progressive):
		err := w.decodeInGo(data, h, needed)
		if !errors.Is(err, errBaselineOnly) {
			return err
		}
		return w.decodeImage(data, h)
	case w.turbo == nil:
		return w.decodeImage(data, h)
	case !planar:
		return w.decodePacked(data, h, scans)
	}
	rows := h.height
	if h.jpeg.baseline && (h.jpeg.whole || h.jpeg.restart == 0) {
		rows = min(rows, up(needed.bottom+2*h.jpeg.subY, 8*h.jpeg.subY))
	}
	data = w.shortened(data, h, rows)
	shrunk := 1
	for shrunk < 8 && min(g.x.scale(), g.y.scale()) >= float64(4*shrunk) {
		shrunk *= 2
	}
	small := func(n int) int { return (n + shrunk - 1) / shrunk }
	w.picture = picture{width: small(h.width), height: small(h.height), shrunk: shrunk, model: ycc,
		subX: h.jpeg.subX, subY: h.jpeg.subY, smooth: h.jpeg.smooth()}
	if h.jpeg.components == 1 {
		w.picture.model = grey
	}
	w.mem = w.picture.shape(w.mem, small(h.width), small(rows))
	if w.isLong(data, h, rows, scans) {
		data = w.own(data)
		defer w.cutAtEnd(data)()
	}
	return w.judge(w.turbo.decode(data, &w.picture.planes, small(h.width), small(rows)))
}

// shortened is a file of the picture's first rows, without what libjpeg-turbo would warn of
// although the picture is intact. It is data itself if nothing has to change.
func (w *worker) shortened(data []byte, h header, rows int) []byte {
	// A baseline file without its last marker may lack nothing else.
	open := h.jpeg.baseline && h.jpeg.whole && !bytes.HasSuffix(data, endOfImage)
	if rows == h.height && !open && !h.jpeg.isOdd() {
		return data
	}
	end := len(data)
	if rows < h.height && h.jpeg.restart > 0 { // later markers would look like those of damaged intervals
		width, height := 8*h.jpeg.subX, 8*h.jpeg.subY
		end = h.jpeg.endOf(w.ctx, data, up(h.width, width)/width*(up(rows, height)/height))
	}
	w.file = h.jpeg.copied(w.file, data[:end])
	if end < len(data) || open {
		w.file = append(w.file, endOfImage...)
	}
	w.file[h.jpeg.heightAt], w.file[h.jpeg.heightAt+1] = byte(rows>>8), byte(rows)
	return w.file
}

var endOfImage = []byte{0xff, 0xd9}

// isLong tells whether libjpeg-turbo may take longer than some tenths of a second to
// decode rows of a file, and whether the context may end it. Each scan takes time for every
// pixel, and each byte takes some nanoseconds. With arithmetic coding, a pixel takes more
// work the fewer bytes it has.
func (w *worker) isLong(data []byte, h header, rows, scans int) bool {
	work := int64(h.width) * int64(rows) * int64(scans)
	if !h.jpeg.baseline && !h.jpeg.progressive {
		work *= 8
	}
	return work+4*int64(len(data)) >= 1<<26 && w.ctx.Done() != nil
}

// own is a copy of a file; data itself if that is the worker's copy already.
func (w *worker) own(data []byte) []byte {
	if len(w.file) == 0 || &w.file[0] != &data[0] {
		w.file = append(w.file[:0], data...)
	}
	return w.file
}

// cutAtEnd ends a call of libjpeg-turbo with the context, as far as that can be done: the
// library asks nobody whether to go on, but it reads the file as it decodes. From then on
// it reads an end of the picture wherever it is. What it hasn't decoded becomes grey, which
// takes little time. done is called after the call. data must be the worker's own.
func (w *worker) cutAtEnd(data []byte) (done func()) {
	cut := make(chan struct{})
	stop := context.AfterFunc(w.ctx, func() {
		defer close(cut)
		cutEverywhere(data)
	})
	return func() {
		if !stop() {
			<-cut
		}
	}
}

// cutEverywhere fills data with ends of pictures.
func cutEverywhere(data []byte) {
	ends := data[:min(len(data), 1<<16)]
	for n := copy(ends, endOfImage); n < len(ends); n *= 2 {
		copy(ends[n:], ends[:n])
	}
	for rest := data[len(ends):]; len(rest) > 0; {
		rest = rest[copy(rest, ends):]
	}
}

// judge tells whether what was decoded of a JPEG file can be used.
func (w *worker) judge(damaged, err error) error {
	if err := ended(w.ctx); err != nil {
		return err
	}
	if err == nil && !w.p.damaged {
		err = damaged
	}
	if err != nil {
		return fmt.Errorf("vision: JPEG: %w", err)
	}
	return nil
}

// decodePacked decodes a JPEG file of other colours than YCbCr, or with unusual
// sampling, by libjpeg-turbo.
func (w *worker) decodePacked(data []byte, h header, scans int) error {
	if h.jpeg.isOdd() {
		w.file = h.jpeg.copied(w.file, data)
		data = w.file
	}
	w.picture = picture{width: h.width, height: h.height, shrunk: 1, model: rgb, subX: 1, subY: 1}
	channels := 3
	if h.jpeg.components == 4 {
		channels = 4
	}
	w.packed = sized(w.packed, channels*h.width*h.height)
	pixels := w.packed
	clear(pixels)
	if w.isLong(data, h, h.height, scans) {
		data = w.own(data)
		defer w.cutAtEnd(data)()
	}
	if err := w.judge(w.turbo.decodePacked(data, pixels, h.width, h.height, channels)); err != nil {
		return err
	}
	w.mem = w.picture.shape(w.mem, h.width, h.height)
	r, g, b := &w.picture.planes[0], &w.picture.planes[1], &w.picture.planes[2]
	for y := range h.height {
		if err := ended(w.ctx); err != nil {
			return err
		}
		at, row := y*r.stride, pixels[y*channels*h.width:]
		for x := range h.width {
			p := row[channels*x:][:channels]
			if channels == 4 { // as Pillow: the inks are inverted, as Adobe stores them
				r.pix[at+x], g.pix[at+x], b.pix[at+x] = inked(p[0], p[3]), inked(p[1], p[3]), inked(p[2], p[3])
			} else {
				r.pix[at+x], g.pix[at+x], b.pix[at+x] = p[0], p[1], p[2]
			}
		}
	}
	return nil
}

// inked is a colour's level under an ink and under black, both inverted.
func inked(ink, black byte) byte {
	t := (255-uint32(ink))*uint32(black) + 128
	return black - byte((t+t>>8)>>8)
}

// decodeInGo decodes what is needed of a baseline or progressive JPEG file in Go.
func (w *worker) decodeInGo(data []byte, h header, needed region) error {
	w.picture = picture{width: h.width, height: h.height, shrunk: 1, model: ycc,
		subX: h.jpeg.subX, subY: h.jpeg.subY, smooth: h.jpeg.smooth()}
	if h.jpeg.components == 1 {
		w.picture.model = grey
	}
	// Blocks are written whole.
	blocks := func(n, sub int) int { return up(n, 8*sub) }
	w.mem = w.picture.shape(w.mem, blocks(h.width, h.jpeg.subX), blocks(min(h.height, needed.bottom+2*h.jpeg.subY), h.jpeg.subY))
	for i := range w.picture.count() {
		pl := &w.picture.planes[i]
		pl.width, pl.height = h.width, min(pl.height, h.height)
		if i > 0 {
			pl.width, pl.height = up(h.width, h.jpeg.subX)/h.jpeg.subX, min(pl.height, up(h.height, h.jpeg.subY)/h.jpeg.subY)
		}
	}
	// Chroma is smoothed with its neighbours.
	needed.left, needed.top = max(0, needed.left-2*h.jpeg.subX), max(0, needed.top-2*h.jpeg.subY)
	needed.right, needed.bottom = needed.right+2*h.jpeg.subX, needed.bottom+2*h.jpeg.subY
	if h.jpeg.progressive {
		if w.progressive == nil {
			w.progressive = new(progressiveDecoder)
		}
		return w.judge(w.progressive.decode(w.ctx, data, &h.jpeg, &w.picture.planes, needed, w.p.damaged))
	}
	if w.baseline == nil {
		w.baseline = new(baselineDecoder)
	}
	return w.judge(w.baseline.decode(w.ctx, data, &h.jpeg, &w.picture.planes, needed))
}

// checkScans counts the scans and bounds them: each costs time for all pixels, however few bytes it
// has. The bound is libjpeg-turbo's up to 4 megapixels; beyond, what is allowed in all
// stays the same, but is never less than several times what encoders write. What comes
// after the end of the picture, such as a film, isn't a scan.
func checkScans(ctx context.Context, data []byte, h header) (n int, err error) {
	most := int(max(64, min(500, 500*(4<<20)/(int64(h.width)*int64(h.height)))))
	n = 1
	for s := (segments{ctx: ctx, data: data, at: h.jpeg.scanAt}); ; {
		marker, _, err := s.next()
		if err != nil { // the end, or damage that decoding meets too
			break
		}
		if marker == 0xda {
			n++
		}
	}
	if n > most {
		return n, fmt.Errorf("vision: JPEG: %d scans: must be at most %d", n, most)
	}
	return n, ended(ctx)
}

// decodeImage decodes every format that package image knows.
func (w *worker) decodeImage(data []byte, h header) error {
	still, part, err := firstOfWebP(w.ctx, w.file, data)
	if err != nil {
		return fmt.Errorf("vision: %w", err)
	}
	if still != nil {
		w.file, data = still, still
	} else {
		part = image.Rect(0, 0, h.width, h.height)
	}
	opaque, empty := opaqueGIF(w.ctx, w.file, data)
	if opaque != nil {
		w.file, data = opaque, opaque
	}
	w.reader.reset(w.ctx, data)
	img, format, err := image.Decode(&w.reader)
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return w.failed("vision: %w", err)
	}
	w.picture = picture{width: part.Dx(), height: part.Dy(), shrunk: 1, smooth: h.jpeg.smooth()}
	w.mem = w.picture.take(w.ctx, w.mem, img, part.Dx(), part.Dy(), empty)
	if format == "webp" && w.picture.model == ycc {
		w.picture.model = video
	}
	if part.Dx() < h.width || part.Dy() < h.height {
		return w.surround(part, h.width, h.height)
	}
	return nil
}

// surround makes the picture a part of one of width × height pixels, black elsewhere.
func (w *worker) surround(part image.Rectangle, width, height int) error {
	all := output[uint8]{format: format{Size{height, width}, 3, CHW}, tables: &unchanged, dst: make([]byte, 3*width*height)}
	w.resample(whole(part.Dx()), whole(part.Dy()), &all, part.Min.X, part.Min.Y)
	return w.borrow(all.dst, height, width, CHW)
}

// take makes the picture of an image of width × height pixels. It uses the image's
// own memory, or grows mem. What the image doesn't fill is of the colour empty. It stops if
// ctx ends.
func (p *picture) take(ctx context.Context, mem []byte, img image.Image, width, height int, empty [3]byte) []byte {
	whole := img.Bounds() == image.Rect(0, 0, width, height)
	switch src := img.(type) {
	case *image.YCbCr:
		if whole && p.takeYCbCr(src) {
			return mem
		}
	case *image.NYCbCrA: // the colours behind the transparency, as Pillow has them
		if whole && p.takeYCbCr(&src.YCbCr) {
			return mem
		}
		img = &src.YCbCr
	case *image.Gray:
		p.model, p.subX, p.subY = grey, 1, 1
		mem = p.shape(mem, width, height)
		clear(mem)
		for y := src.Rect.Min.Y; y < src.Rect.Max.Y; y++ {
			p.planes[0].put(src.Rect.Min.X, y, src.Pix[src.PixOffset(src.Rect.Min.X, y):][:src.Rect.Dx()])
		}
		return mem
	}
	p.model, p.subX, p.subY = rgb, 1, 1
	mem = p.shape(mem, width, height)
	for i, pl := range p.planes {
		for k := range pl.pix {
			pl.pix[k] = empty[i]
		}
	}
	p.paint(ctx, img)
	return mem
}

// takeYCbCr uses the planes of an image, if their rows can be read eight bytes
// at a time.
func (p *picture) takeYCbCr(src *image.YCbCr) bool {
	ratios := map[image.YCbCrSubsampleRatio][2]int{
		image.YCbCrSubsampleRatio444: {1, 1}, image.YCbCrSubsampleRatio422: {2, 1},
		image.YCbCrSubsampleRatio420: {2, 2}, image.YCbCrSubsampleRatio440: {1, 2},
		image.YCbCrSubsampleRatio411: {4, 1}, image.YCbCrSubsampleRatio410: {4, 2},
	}
	sub, known := ratios[src.SubsampleRatio]
	if !known {
		return false
	}
	p.model, p.subX, p.subY = ycc, sub[0], sub[1]
	width, height := src.Rect.Dx(), src.Rect.Dy()
	columns, rows := (width+sub[0]-1)/sub[0], (height+sub[1]-1)/sub[1]
	p.planes = [3]plane{
		{src.Y, src.YStride, width, height},
		{src.Cb, src.CStride, columns, rows},
		{src.Cr, src.CStride, columns, rows},
	}
	for _, pl := range p.planes {
		if len(pl.pix) < (pl.height-1)*pl.stride+up(pl.width, 8) {
			return false
		}
	}
	return true
}

// put writes those pixels to a row that lie in the plane.
func (p *plane) put(x, y int, pixels []byte) {
	if x >= 0 && x < p.width && y >= 0 && y < p.height {
		copy(p.pix[y*p.stride+x:][:p.width-x], pixels)
	}
}

// paint writes an image to a picture of RGB. What is transparent keeps the colour
// that it has in the file, as Pillow's convert("RGB") does.
func (p *picture) paint(ctx context.Context, img image.Image) {
	area := img.Bounds().Intersect(image.Rect(0, 0, p.planes[0].width, p.planes[0].height))
	r, g, b := p.planes[0].pix, p.planes[1].pix, p.planes[2].pix
	var palette [256]color.NRGBA
	paletted, isPaletted := img.(*image.Paletted)
	if isPaletted {
		for i, c := range paletted.Palette[:min(len(paletted.Palette), 256)] {
			palette[i] = color.NRGBAModel.Convert(c).(color.NRGBA)
		}
	}
	for y := area.Min.Y; y < area.Max.Y && ctx.Err() == nil; y++ {
		at := y*p.planes[0].stride + area.Min.X
		for x := area.Min.X; x < area.Max.X; x++ {
			var c color.NRGBA
			switch src := img.(type) {
			case *image.NRGBA:
				s := src.Pix[src.PixOffset(x, y):][:4]
				c = color.NRGBA{s[0], s[1], s[2], s[3]}
			case *image.RGBA:
				s := src.Pix[src.PixOffset(x, y):][:4]
				if c = (color.NRGBA{s[0], s[1], s[2], s[3]}); s[3] != 255 {
					c = color.NRGBAModel.Convert(src.RGBAAt(x, y)).(color.NRGBA)
				}
			case *image.Paletted:
				c = palette[src.Pix[src.PixOffset(x, y)]]
			case *image.CMYK:
				s := src.Pix[src.PixOffset(x, y):][:4]
				c.R, c.G, c.B = color.CMYKToRGB(s[0], s[1], s[2], s[3])
			case *image.Gray16:
				v := uint8(src.Gray16At(x, y).Y >> 8)
				c = color.NRGBA{v, v, v, 255}
			case *image.RGBA64:
				v := src.RGBA64At(x, y)
				if c = (color.NRGBA{uint8(v.R >> 8), uint8(v.G >> 8), uint8(v.B >> 8), 255}); v.A != 0xffff {
					c = color.NRGBAModel.Convert(v).(color.NRGBA)
				}
			case *image.NRGBA64:
				v := src.NRGBA64At(x, y)
				c = color.NRGBA{uint8(v.R >> 8), uint8(v.G >> 8), uint8(v.B >> 8), 255}
			default:
				c = color.NRGBAModel.Convert(img.At(x, y)).(color.NRGBA)
			}
			r[at], g[at], b[at] = c.R, c.G, c.B
			at++
		}
	}
}

// transpose turns rows into columns, in mem, which it grows if needed. It stops if ctx
// ends.
func (p *picture) transpose(ctx context.Context, mem []byte) []byte {
	total := 0
	for _, pl := range p.planes[:p.count()] {
		total += up(pl.height, 8) * pl.width
	}
	mem = sized(mem, total)
	rest := mem
	p.width, p.height, p.subX, p.subY = p.height, p.width, p.subY, p.subX
	for i := range p.count() {
		from := p.planes[i]
		to := plane{width: from.height, height: from.width, stride: up(from.height, 8)}
		n := to.stride * to.height
		to.pix, rest = rest[:n:n], rest[n:]
		for y := range from.height {
			if ctx.Err() != nil {
				break
			}
			for x, v := range from.pix[y*from.stride:][:from.width] {
				to.pix[x*to.stride+y] = v
			}
		}
		p.planes[i] = to
	}
	return mem
}

// borrow makes the picture of pixels.
func (w *worker) borrow(pixels []byte, height, width int, layout Layout) error {
	w.picture = picture{width: width, height: height, shrunk: 1, model: rgb, subX: 1, subY: 1}
	p, n := &w.picture, width*height
	switch len(pixels) {
	case n:
		p.model = grey
	case 3 * n:
	default:
		return fmt.Errorf("vision: %d bytes of pixels: %d × %d have %d, or %d if they are grey", len(pixels), height, width, 3*n, n)
	}
	interleaved := layout == HWC && p.model == rgb
	if width%8 == 0 && !interleaved {
		for i := range p.count() {
			p.planes[i] = plane{pixels[i*n : (i+1)*n], width, width, height}
		}
		return nil
	}
	w.mem = p.shape(w.mem, width, height)
	for y := range height {
		if !interleaved {
			for i := range p.count() {
				p.planes[i].put(0, y, pixels[i*n+y*width:][:width])
			}
			continue
		}
		row, at := pixels[3*y*width:][:3*width], y*p.planes[0].stride
		r, g, b := p.planes[0].pix[at:][:width], p.planes[1].pix[at:][:width], p.planes[2].pix[at:][:width]
		for x := range r {
			r[x], g[x], b[x] = row[3*x], row[3*x+1], row[3*x+2]
		}
	}
	return nil
}
