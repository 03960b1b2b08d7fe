package vision

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/klauspost/compress/flate"
)

var pngSignature = []byte("\x89PNG\r\n\x1a\n")

// A pngHeader is what the first chunk of a PNG file says: see the PNG specification, 11.2.1.
type pngHeader struct {
	width, height int
	bits          int // of a sample
	channels      int
	paletted      bool
	interlaced    bool
}

// readPNG reads the first chunk of a file.
func readPNG(data []byte, damaged bool) (h pngHeader, err error) {
	if len(data) < 33 {
		return h, io.ErrUnexpectedEOF
	}
	chunk, sum := data[12:29], binary.BigEndian.Uint32(data[29:])
	if string(data[8:16]) != "\x00\x00\x00\rIHDR" {
		return h, fmt.Errorf("the first chunk is %q: must be a header of 13 bytes", data[12:16])
	}
	if sum != crc32.ChecksumIEEE(chunk) && !damaged {
		return h, errors.New("the header's checksum is wrong")
	}
	size := func(at int) int { return int(min(binary.BigEndian.Uint32(chunk[at:]), 1<<31-1)) }
	h.width, h.height = size(4), size(8)
	h.bits, h.paletted, h.interlaced = int(chunk[12]), chunk[13] == 3, chunk[16] == 1
	const upTo8, from8, all = 1 | 1<<1 | 1<<3 | 1<<7, 1<<7 | 1<<15, 1 | 1<<1 | 1<<3 | 1<<7 | 1<<15
	kinds := [7]struct {
		channels int
		bits     uint16 // bit n−1: samples may have n bits
	}{{1, all}, {}, {3, from8}, {1, upTo8}, {2, from8}, {}, {4, from8}}
	kind := kinds[1] // none
	if int(chunk[13]) < len(kinds) {
		kind = kinds[chunk[13]]
	}
	if h.channels = kind.channels; h.bits < 1 || h.bits > 16 || kind.bits>>(h.bits-1)&1 == 0 {
		return h, fmt.Errorf("%d bits for colours of kind %d: there is no such picture", chunk[12], chunk[13])
	}
	if chunk[14] != 0 || chunk[15] != 0 || chunk[16] > 1 {
		return h, fmt.Errorf("compression %d, filter %d, interlace %d: must be 0, 0, and 0 or 1", chunk[14], chunk[15], chunk[16])
	}
	return h, nil
}

// A pngDecoder holds what the pixels of a PNG file need.
type pngDecoder struct {
	codes   []byte // of several chunks
	reader  bytes.Reader
	inflate io.ReadCloser
	rows    [2][]byte // this one and the one before, each after eight bytes and its filter
	spread  []byte    // a row whose pixels have less than eight bits, a byte for each
}

// chunks returns the palette and the codes of a file. It checks the checksums of all chunks, and that the
// file has an end, unless the program accepts damaged files. Transparency isn't needed.
func (d *pngDecoder) chunks(ctx context.Context, data []byte, damaged bool) (palette, codes []byte, err error) {
	seen := 0
	for rest := data[len(pngSignature):]; ; {
		if hasEnded(ctx, &seen) {
			return nil, nil, ended(ctx)
		}
		if len(rest) < 12 && (!damaged || len(rest) < 8) {
			if damaged {
				return palette, codes, nil
			}
			return nil, nil, io.ErrUnexpectedEOF
		}
		size := int64(binary.BigEndian.Uint32(rest))
		name, content := rest[4:8], rest[8:][:min(size, int64(len(rest)-8))]
		rest = rest[8+len(content):]
		if !damaged {
			if size != int64(len(content)) || len(rest) < 4 {
				return nil, nil, io.ErrUnexpectedEOF
			}
			if binary.BigEndian.Uint32(rest) != crc32.Update(crc32.ChecksumIEEE(name), crc32.IEEETable, content) {
				return nil, nil, fmt.Errorf("the checksum of chunk %q is wrong", name)
			}
		}
		rest = rest[min(4, len(rest)):]
		switch string(name) {
		case "PLTE": // colours that no pixel can have are passed over, as in libpng
			if len(content)%3 != 0 || len(content) > 3*256 {
				return nil, nil, fmt.Errorf("a palette of %d bytes: must have 3 for each of at most 256 colours", len(content))
			}
			palette = content
		case "IDAT":
			if codes == nil {
				codes = content
				break
			}
			if len(d.codes) == 0 {
				d.codes = append(d.codes, codes...)
			}
			d.codes = append(d.codes, content...)
			codes = d.codes
		case "IEND":
			return palette, codes, nil
		}
	}
}

// unpack starts to unpack codes.
func (w *worker) unpack(codes []byte) error {
	const deflate, dictionary, long = 8, 1 << 5, 1 << 24
	if len(codes) < 2 || codes[0]&15 != deflate || codes[1]&dictionary != 0 || binary.BigEndian.Uint16(codes)%31 != 0 {
		return errors.New("the pixels aren't packed by zlib")
	}
	w.png.reader.Reset(codes[2:])
	source := io.Reader(&w.png.reader)
	if len(codes) > long { // codes that make no pixels must end with the context too
		source = bufio.NewReaderSize(w.from(codes[2:]), 1<<16)
	}
	if w.png.inflate == nil {
		w.png.inflate = flate.NewReader(source)
		return nil
	}
	return w.png.inflate.(flate.Resetter).Reset(source, nil)
}

// decodePNG decodes a PNG file down to the last row that is needed.
func (w *worker) decodePNG(data []byte, h header, needed region) error {
	if w.png == nil {
		w.png = new(pngDecoder)
	}
	d, f := w.png, h.png
	d.codes = d.codes[:0]
	palette, codes, err := d.chunks(w.ctx, data, w.p.damaged)
	if err == nil {
		err = w.unpack(codes)
	}
	if err == nil && f.paletted && palette == nil {
		err = errors.New("the palette is missing")
	}
	perPixel := f.bits * f.channels
	if packed := int64(len(codes)) * 1032; err == nil && int64(f.width)*int64(f.height)*int64(perPixel)/8 > packed {
		err = fmt.Errorf("%d bytes for %d × %d pixels: most are missing", len(codes), f.width, f.height)
	}
	if err != nil {
		return w.failed("vision: PNG: %w", err)
	}
	w.picture = picture{width: f.width, height: f.height, model: rgb, subX: 1, subY: 1}
	if f.channels < 3 && !(f.paletted && w.p.mask == nil) {
		w.picture.model = grey
	}
	if f.bits == 16 && (w.p.mask != nil || f.channels < 3) {
		w.picture.model = wideGrey
	}
	passes := []pngPass{{0, 0, 1, 1}}
	if f.interlaced {
		passes, needed = interlaced, region{right: f.width, bottom: f.height}
	}
	w.mem = w.picture.shape(w.mem, f.width, needed.bottom)
	for _, pass := range passes {
		columns := (f.width - pass.x + pass.dx - 1) / pass.dx
		if columns <= 0 {
			continue
		}
		for i := range d.rows {
			d.rows[i] = sized(d.rows[i], 8+1+(columns*perPixel+7)/8)
			clear(d.rows[i])
		}
		for y := pass.y; y < needed.bottom; y += pass.dy {
			if err := ended(w.ctx); err != nil {
				return err
			}
			row := d.rows[0][8:]
			if _, err := io.ReadFull(d.inflate, row); err != nil {
				if err == io.EOF {
					err = io.ErrUnexpectedEOF
				}
				return w.failed("vision: PNG: %w", err)
			}
			if !unfilter(d.rows[0], d.rows[1], max(1, perPixel/8)) {
				return fmt.Errorf("vision: PNG: row %d has filter %d: must be 0 … 4", y, row[0])
			}
			if y >= needed.top {
				if err := w.putPNG(row[1:], &f, palette, pass, y, columns); err != nil {
					return err
				}
			}
			d.rows[0], d.rows[1] = d.rows[1], d.rows[0]
		}
	}
	return nil
}

// A pngPass is the first pixel of a pass, and the steps from one to the next.
type pngPass struct{ x, y, dx, dy int }

// The passes of interlaced pictures: see the PNG specification, 8.2.
var interlaced = []pngPass{{0, 0, 8, 8}, {4, 0, 8, 8}, {0, 4, 4, 8}, {2, 0, 4, 4}, {0, 2, 2, 4}, {1, 0, 2, 2}, {0, 1, 1, 2}}

// putPNG puts the pixels of a row into the picture.
func (w *worker) putPNG(row []byte, f *pngHeader, palette []byte, pass pngPass, y, columns int) error {
	planes := &w.picture.planes
	at := y*planes[0].stride + pass.x
	size := (f.bits + 7) / 8
	step := size * f.channels
	if f.bits < 8 {
		w.png.spread = sized(w.png.spread, columns)
		most := byte(1<<f.bits - 1)
		scale := 255 / most
		if f.paletted || f.bits == 1 && w.p.mask != nil { // a mask of one bit is 0 or 1, as in Pillow
			scale = 1
		}
		for i := range w.png.spread {
			w.png.spread[i] = row[i*f.bits/8] >> (8 - f.bits - i*f.bits%8) & most * scale
		}
		row = w.png.spread
	}
	put := func(plane, from int) {
		dst := planes[plane].pix[at:]
		for i := range columns {
			dst[i*pass.dx] = row[i*step+from]
		}
	}
	switch {
	case w.picture.model == wideGrey:
		for i := 0; f.channels >= 3 && i < columns; i++ {
			v := row[i*step:][:6]
			if r, g, b := binary.BigEndian.Uint16(v), binary.BigEndian.Uint16(v[2:]), binary.BigEndian.Uint16(v[4:]); r != g || g != b {
				return notGrey(pass.x+i*pass.dx, y, int(r), int(g), int(b))
			}
		}
		put(0, 1)
		put(1, 0)
	case w.picture.model == grey:
		put(0, 0)
	case f.paletted:
		for c := range planes {
			dst := planes[c].pix[at:]
			for i, v := range row[:columns] {
				if dst[i*pass.dx] = 0; 3*int(v) < len(palette) { // as in package png, no colour is black
					dst[i*pass.dx] = palette[3*int(v)+c]
				}
			}
		}
	case pass.dx == 1 && size == 1:
		w.picture.putColours(at, columns, row, step)
	default:
		for c := range planes {
			put(c, c*size)
		}
	}
	return nil
}

// putColours puts n pixels of step bytes, of which the first three are colours.
func (p *picture) putColours(at, n int, row []byte, step int) {
	r, g, b := p.planes[0].pix[at:][:n], p.planes[1].pix[at:][:n], p.planes[2].pix[at:][:n]
	for i := range r {
		v := row[i*step:][:3]
		r[i], g[i], b[i] = v[0], v[1], v[2]
	}
}

// unfilter undoes the filter of a row, whose pixels have bpp bytes: see the PNG specification, 9. Both
// rows begin after eight bytes of 0 and the filter. It reports whether there is such a filter.
func unfilter(now, before []byte, bpp int) bool {
	filter := now[8]
	now[8], before[8] = 0, 0
	row, up := now[9:], before[9:][:len(now)-9]
	left, upLeft := now[9-bpp:][:len(row)], before[9-bpp:][:len(row)]
	switch filter {
	case 0:
	case 1:
		for i := range row {
			row[i] += left[i]
		}
	case 2:
		const low = 0x7f7f7f7f7f7f7f7f
		for ; len(row) >= 8 && len(up) >= 8; row, up = row[8:], up[8:] {
			a, b := binary.LittleEndian.Uint64(row), binary.LittleEndian.Uint64(up)
			binary.LittleEndian.PutUint64(row, (a&low+b&low)^(a^b)&^low)
		}
		for i := range row {
			row[i] += up[i]
		}
	case 3:
		for i := range row {
			row[i] += byte((int(left[i]) + int(up[i])) / 2)
		}
	case 4:
		if bpp == 3 { // keeps what is left in registers
			var a0, a1, a2, c0, c1, c2 int32
			for ; len(row) >= 3 && len(up) >= 3; row, up = row[3:], up[3:] {
				b0, b1, b2 := int32(up[0]), int32(up[1]), int32(up[2])
				row[0] += paeth(a0, b0, c0)
				row[1] += paeth(a1, b1, c1)
				row[2] += paeth(a2, b2, c2)
				a0, a1, a2, c0, c1, c2 = int32(row[0]), int32(row[1]), int32(row[2]), b0, b1, b2
			}
			break
		}
		for i := range row {
			row[i] += paeth(int32(left[i]), int32(up[i]), int32(upLeft[i]))
		}
	default:
		return false
	}
	return true
}

// paeth returns which of a, b and c is nearest to a + b − c.
func paeth(a, b, c int32) byte {
	pa, pb := b-c, a-c
	pc := pa + pb
	pa, pb, pc = max(pa, -pa), max(pb, -pb), max(pc, -pc)
	if pb < pa {
		a, pa = b, pb
	}
	if pc < pa {
		a = c
	}
	return byte(a)
}
