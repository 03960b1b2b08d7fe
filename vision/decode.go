package vision

import (
	"context"
	"errors"
	"fmt"
	"image"
	"image/color"
	"io"
)

// decode decodes the file in data to the picture, at least the part that g needs, and changes g to the
// picture's own axes.
func (w *worker) decode(data []byte, h header, g *geometry) error {
	h.mirror(g)
	sideways := h.orientation >= 5
	needed := g.needed(&h, sideways)
	var err error
	switch {
	case h.jpeg.components > 0:
		size := w.shrink(&h, g)
		err = w.decodeJPEG(data, h, needed, size)
		g.x, g.y = g.x.shrunk(size.luma), g.y.shrunk(size.luma)
	case h.png.channels > 0:
		err = w.decodePNG(data, h, needed)
	default:
		err = w.decodeImage(data, h, needed.bottom)
	}
	if err == nil && sideways {
		w.turned = w.picture.transpose(w.ctx, w.turned)
	}
	return err
}

// turned returns the picture's size after it was turned.
func (h *header) turned() (width, height int) {
	if h.orientation >= 5 {
		return h.height, h.width
	}
	return h.width, h.height
}

// whole returns the geometry of the whole picture, turned but not mirrored yet.
func (h *header) whole() geometry {
	width, height := h.turned()
	return geometry{whole(width), whole(height)}
}

// mirror changes g to the axes of a picture that isn't mirrored yet.
func (h *header) mirror(g *geometry) {
	width, height := h.turned()
	mirroredX, mirroredY := h.mirrored()
	if mirroredX {
		g.x = g.x.mirrored(width)
	}
	if mirroredY {
		g.y = g.y.mirrored(height)
	}
}

// needed returns the part of the file's picture that is needed; sideways, its rows are columns.
func (g *geometry) needed(h *header, sideways bool) (r region) {
	x, y := &g.x, &g.y
	if sideways {
		x, y = y, x
	}
	r.left, r.right = x.span(h.width)
	r.top, r.bottom = y.span(h.height)
	return r
}

// mirrored reports along which axes a picture is mirrored after it was turned: CIPA DC-008, 4.6.4 A,
// Orientation.
func (h *header) mirrored() (x, y bool) {
	const horizontally, vertically = 1<<2 | 1<<3 | 1<<6 | 1<<7, 1<<3 | 1<<4 | 1<<7 | 1<<8
	return 1<<h.orientation&horizontally != 0, 1<<h.orientation&vertically != 0
}

// A shrink is how many times smaller the planes of a JPEG file are decoded: 1, 2 or 4.
type shrink struct{ luma, chroma int }

// shrink returns how small a file is decoded: as small as leaves at least twice as many values per side of
// each component as the result has pixels.
func (w *worker) shrink(h *header, g *geometry) shrink {
	size, j := shrink{1, 1}, &h.jpeg
	for by := 2; by <= 4 && j.planar(); by *= 2 {
		smaller := shrink{by, by}
		if j.subX == 2 && j.subY == 2 { // chroma is half as large already
			smaller.chroma /= 2
		}
		if min(g.x.scale(), g.y.scale()) < float64(2*max(by, smaller.chroma*max(j.subX, j.subY))) {
			break
		}
		size = smaller
	}
	return size
}

// decodeJPEG decodes a JPEG file at a size. If it can tell that the file is whole, it decodes only down to the last
// row needed.
func (w *worker) decodeJPEG(data []byte, h header, needed region, size shrink) error {
	scans, whole := 1, true
	var remembered places
	var key uint64
	if j := &h.jpeg; !j.progressive && j.interleaved && j.planar() {
		remembered, key = w.p.rows.find(data, j)
	}
	if remembered.known == nil {
		var err error
		if scans, whole, err = h.jpeg.rest(w.ctx, data); err != nil {
			return err
		}
		if err := checkScans(&h, scans); err != nil {
			return err
		}
		if key != 0 && whole && scans == 1 {
			remembered = w.p.rows.add(key, &h.jpeg)
		}
	}
	if whole && !w.p.damaged && !h.jpeg.complete() {
		return fmt.Errorf("vision: JPEG: the picture ends after scan %d: some bits of its components are missing", scans)
	}
	if !w.p.damaged && (len(data)-h.jpeg.scanAt)*8 < h.jpeg.least { // before memory is taken
		return fmt.Errorf("vision: JPEG: %w", errCut)
	}
	if !h.jpeg.planar() {
		return w.decodeColours(data, h)
	}
	if !whole { // missing parts must be found, whatever the crop is
		needed.bottom = h.height
	}
	return w.decodePlanes(data, h, needed, size, remembered)
}

// judge returns an error if what was decoded of a JPEG file can't be used.
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

// inked returns a colour's level under an ink and under black, both inverted.
func inked(ink, black byte) byte {
	t := (255-uint32(ink))*uint32(black) + 128
	return black - byte((t+t>>8)>>8)
}

// decodePlanes decodes what is needed of a file that has planes, at a size.
func (w *worker) decodePlanes(data []byte, h header, needed region, size shrink, remembered places) error {
	by := size.luma
	width, height := up(h.width, by)/by, up(h.height, by)/by
	w.picture = picture{width: width, height: height, model: ycc,
		subX: h.jpeg.subX * size.chroma / by, subY: h.jpeg.subY * size.chroma / by, smooth: h.jpeg.smooth()}
	if h.jpeg.components == 1 {
		w.picture.model = grey
	}
	// Blocks are written whole.
	blocks := func(n, sub int) int { return up(n, 8*sub) / by }
	// Chroma values are smoothed with their neighbours.
	aroundX, aroundY := 2*h.jpeg.subX*by, 2*h.jpeg.subY*by
	w.mem = w.picture.shape(w.mem, blocks(h.width, h.jpeg.subX), blocks(min(h.height, needed.bottom+aroundY), h.jpeg.subY))
	for i := range w.picture.count() {
		pl := &w.picture.planes[i]
		pl.width, pl.height = width, min(pl.height, height)
		if i > 0 {
			pl.width, pl.height = up(width, w.picture.subX)/w.picture.subX, min(pl.height, up(height, w.picture.subY)/w.picture.subY)
		}
	}
	needed.left, needed.top = max(0, needed.left-aroundX), max(0, needed.top-aroundY)
	needed.right, needed.bottom = needed.right+aroundX, needed.bottom+aroundY
	return w.judge(w.decodeBlocks(data, &h.jpeg, w.picture.planes[:w.picture.count()], needed, size, remembered))
}

// lastOf is the last coefficient, in the order of a scan, of those that become side × side pixels.
var lastOf = [...]int{2: 4, 4: 24, 8: 63}

// decodeBlocks decodes a region of the components of a file to planes, at a size.
func (w *worker) decodeBlocks(data []byte, h *jpegHeader, planes []plane, needed region, size shrink, remembered places) (damaged, err error) {
	if !h.progressive && h.interleaved {
		if w.baseline == nil {
			w.baseline = new(baselineDecoder)
		}
		w.baseline.size = size
		damaged, err = w.baseline.decode(w.ctx, data, h, planes, needed, remembered)
		if !errors.Is(err, errOtherScans) {
			return damaged, err
		}
	}
	if w.progressive == nil {
		w.progressive = new(progressiveDecoder)
	}
	w.progressive.size = size
	return w.progressive.decode(w.ctx, data, h, planes, needed, w.p.damaged)
}

// decodeColours decodes a JPEG file with other colours than YCbCr, or with unusual sampling.
func (w *worker) decodeColours(data []byte, h header) error {
	j := &h.jpeg
	across, down := up(h.width, 8*j.unitX)/j.unitX, up(h.height, 8*j.unitY)/j.unitY
	total := 0
	for _, f := range j.sampling[:j.components] {
		if j.unitX%f.h != 0 || j.unitY%f.v != 0 {
			return fmt.Errorf("vision: JPEG: sampling factors %v: must divide the largest", j.sampling[:j.components])
		}
		total += across * f.h * down * f.v
	}
	w.packed = sized(w.packed, total+h.width)
	mem, parts := w.packed, make([]plane, j.components)
	for i, f := range j.sampling[:j.components] {
		n := across * f.h * down * f.v
		parts[i] = plane{mem[:n:n], across * f.h, (h.width*f.h + j.unitX - 1) / j.unitX, (h.height*f.v + j.unitY - 1) / j.unitY}
		mem = mem[n:]
	}
	if err := w.judge(w.decodeBlocks(data, j, parts, region{right: h.width, bottom: h.height}, shrink{1, 1}, places{})); err != nil {
		return err
	}
	w.picture = picture{width: h.width, height: h.height, model: rgb, subX: 1, subY: 1}
	w.mem = w.picture.shape(w.mem, h.width, h.height)
	var rows [4][]byte
	for y := range h.height {
		if err := ended(w.ctx); err != nil {
			return err
		}
		for i := range parts {
			if rows[i] = mem; i < 3 { // mem is a row of black
				pl := &w.picture.planes[i]
				rows[i] = pl.pix[y*pl.stride:][:h.width]
			}
			parts[i].grow(rows[i], y, j.unitX/j.sampling[i].h, j.unitY/j.sampling[i].v)
		}
		r, g, b, black := rows[0], rows[1], rows[2], rows[3]
		if j.ycc {
			fromYCCPlain(r, g, b, r, g, b, fullRange, &unchanged)
		}
		for x := range black { // as in Pillow: the inks are inverted, because Adobe stores them so
			c, m, y, k := r[x], g[x], b[x], black[x]
			if j.ycc {
				c, m, y = 255-c, 255-m, 255-y
			}
			r[x], g[x], b[x] = inked(c, k), inked(m, k), inked(y, k)
		}
	}
	return nil
}

// grow makes row y of a picture that is byX × byY times as large as the plane, as libjpeg does. Doubling
// is smooth, with weights of 3/4 and 1/4 ("fancy upsampling").
func (p *plane) grow(dst []byte, y, byX, byY int) {
	row := func(y int) []byte { return p.pix[min(max(y, 0), p.height-1)*p.stride:][:p.width] }
	near := row(y / byY)
	far := row(y/byY - 1 + y%2*2)
	switch {
	case byX == 1 && byY == 1:
		copy(dst, near)
	case byX == 1 && byY == 2:
		for x := range dst {
			dst[x] = byte((3*int(near[x]) + int(far[x]) + 1 + y%2) >> 2)
		}
	case byX == 2 && byY <= 2 && p.width > 2:
		sum := func(x int) int { return int(near[x]) }
		left, right, shift := 1, 2, 2
		if byY == 2 {
			sum = func(x int) int { return 3*int(near[x]) + int(far[x]) }
			left, right, shift = 8, 7, 4
		}
		for x := range dst {
			beside, round := min(x/2+1, p.width-1), right
			if x%2 == 0 {
				beside, round = max(x/2-1, 0), left
			}
			dst[x] = byte((3*sum(x/2) + sum(beside) + round) >> shift)
		}
	default:
		for x := range dst {
			dst[x] = near[x/byX]
		}
	}
}

// checkScans bounds the number of scans, because each takes time for all pixels, however few bytes it
// has. Up to 4 megapixels the bound is 500. For larger pictures the allowed total work stays the same, but
// the bound is never less than several times what encoders write.
func checkScans(h *header, n int) error {
	most := int(max(64, min(500, 500*(4<<20)/(int64(h.width)*int64(h.height)))))
	if n > most {
		return fmt.Errorf("vision: JPEG: %d scans: must be at most %d", n, most)
	}
	return nil
}

// decodeImage decodes every format that package image knows.
func (w *worker) decodeImage(data []byte, h header, bottom int) error {
	whole, rows, webp := image.Rect(0, 0, h.width, h.height), h.height, isWebP(data)
	part := whole
	var img image.Image
	var kind string
	var err error
	if webp {
		if img, part, err = w.decodeWebP(data, h, bottom); img != nil && err == nil {
			rows = img.Bounds().Dy()
		}
	}
	if img == nil && err == nil {
		img, kind, err = image.Decode(w.from(data))
	}
	if frame, ok := img.(*image.Paletted); ok && kind == "gif" { // it may be a part of the screen
		part, rows, frame.Rect = frame.Rect, frame.Rect.Dy(), frame.Rect.Sub(frame.Rect.Min)
	}
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return w.failed("vision: %w", err)
	}
	if size := image.Rect(0, 0, part.Dx(), rows); img.Bounds() != size {
		return fmt.Errorf("vision: the decoded picture, %v, hasn't the size that the file's header says, %v", img.Bounds(), size)
	}
	if w.p.mask != nil {
		if img, err = valuesOf(data, img, part == whole); err != nil {
			return err
		}
	}
	w.picture = picture{width: part.Dx(), height: part.Dy(), smooth: true}
	w.mem = w.picture.take(w.ctx, w.mem, img)
	if webp && w.picture.model == ycc {
		w.picture.model = video
	}
	if part != whole {
		return w.surround(part, h.width, h.height)
	}
	return nil
}

// surround makes the picture a part of a picture of width × height pixels, which is black elsewhere.
func (w *worker) surround(part image.Rectangle, width, height int) error {
	all := output[uint8]{format: format{Size{height, width}, 3, CHW}, tables: &unchanged, dst: make([]byte, 3*width*height)}
	w.resample(whole(part.Dx()), whole(part.Dy()), &all, part.Min.X, part.Min.Y)
	return w.borrow(all.dst, height, width, CHW)
}

// take makes the picture from an image. It uses the image's own memory, or grows mem. It stops if ctx
// ends.
func (p *picture) take(ctx context.Context, mem []byte, img image.Image) []byte {
	size := img.Bounds().Size()
	switch src := img.(type) {
	case *image.YCbCr:
		if p.takeYCbCr(src) {
			return mem
		}
	case *image.NYCbCrA: // the colours behind the transparency, as in Pillow
		if p.takeYCbCr(&src.YCbCr) {
			return mem
		}
		img = &src.YCbCr
	case *image.Gray16:
		p.model, p.subX, p.subY = wideGrey, 1, 1
		mem = p.shape(mem, size.X, size.Y)
		for y := range size.Y {
			low, high := p.planes[0].row(y), p.planes[1].row(y)
			for x, row := 0, src.Pix[y*src.Stride:]; x < size.X; x++ {
				high[x], low[x] = row[2*x], row[2*x+1]
			}
		}
		return mem
	case *image.Gray:
		p.model, p.subX, p.subY = grey, 1, 1
		mem = p.shape(mem, size.X, size.Y)
		for y := range size.Y {
			copy(p.planes[0].row(y), src.Pix[y*src.Stride:])
		}
		return mem
	}
	p.model, p.subX, p.subY = rgb, 1, 1
	mem = p.shape(mem, size.X, size.Y)
	for y := 0; y < size.Y && ctx.Err() == nil; y++ {
		p.paint(img, y)
	}
	return mem
}

// takeYCbCr uses the planes of an image directly, if their rows can be read eight bytes at a time.
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

// paint writes a row of an image. Transparent pixels keep the colour that they have in the file, as in
// Pillow's convert("RGB").
func (p *picture) paint(img image.Image, y int) {
	r, g, b := p.planes[0].row(y), p.planes[1].row(y), p.planes[2].row(y)
	switch src := img.(type) {
	case *image.NRGBA:
		p.putColours(y*p.planes[0].stride, p.width, src.Pix[y*src.Stride:], 4)
	case *image.NRGBA64:
		for x := range r {
			v := src.NRGBA64At(x, y)
			r[x], g[x], b[x] = byte(v.R>>8), byte(v.G>>8), byte(v.B>>8)
		}
	case image.RGBA64Image: // all images of package image
		for x := range r {
			v := src.RGBA64At(x, y)
			if r[x], g[x], b[x] = byte(v.R>>8), byte(v.G>>8), byte(v.B>>8); v.A != 0xffff {
				c := color.NRGBAModel.Convert(v).(color.NRGBA)
				r[x], g[x], b[x] = c.R, c.G, c.B
			}
		}
	default:
		for x := range r {
			c := color.NRGBAModel.Convert(img.At(x, y)).(color.NRGBA)
			r[x], g[x], b[x] = c.R, c.G, c.B
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

// borrow makes a picture that uses the memory of pixels.
func (w *worker) borrow(pixels []byte, height, width int, layout Layout) error {
	w.picture = picture{width: width, height: height, model: rgb, subX: 1, subY: 1}
	p, n := &w.picture, width*height
	switch len(pixels) {
	case n:
		p.model = grey
	case 3 * n:
	default:
		return fmt.Errorf("vision: %d bytes for %d × %d pixels: must be %d, or %d if they are grey", len(pixels), height, width, 3*n, n)
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
		if interleaved {
			p.putColours(y*p.planes[0].stride, width, pixels[3*y*width:], 3)
			continue
		}
		for i := range p.count() {
			copy(p.planes[i].row(y), pixels[i*n+y*width:])
		}
	}
	return nil
}
