package vision

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"image"
	"io"
)

// A gifFrame is the first picture of a GIF file. See the GIF89a specification, sections
// 18 to 23.
type gifFrame struct {
	at      int             // of its descriptor in the data
	control int             // of the extension that sets its transparency; 0: there is none
	bounds  image.Rectangle // on the screen
	screen  image.Point     // its size
	palette []byte          // of the file
}

func isGIF(data []byte) bool { return len(data) >= 13 && string(data[:4]) == "GIF8" }

// frameOfGIF finds the first picture; ok is false if there is none, or ctx ends.
func frameOfGIF(ctx context.Context, data []byte) (f gifFrame, ok bool) {
	word := func(at int) int { return int(binary.LittleEndian.Uint16(data[at:])) }
	f.screen, f.at = image.Pt(word(6), word(8)), 13
	if data[10]&0x80 != 0 {
		f.at = min(len(data), f.at+3<<(data[10]&7+1))
		f.palette = data[13:f.at]
	}
	for seen := 0; f.at+10 <= len(data); {
		if hasEnded(ctx, &seen) {
			return f, false
		}
		switch data[f.at] {
		case 0x2c:
			from := image.Pt(word(f.at+1), word(f.at+3))
			f.bounds = image.Rectangle{from, from.Add(image.Pt(word(f.at+5), word(f.at+7)))}
			return f, true
		case 0x3b:
			return f, false
		case 0x21: // an extension
			if data[f.at+1] == 0xf9 && data[f.at+2] == 4 {
				f.control = f.at
			}
			for f.at += 2; f.at < len(data) && data[f.at] != 0; {
				if f.at += int(data[f.at]) + 1; hasEnded(ctx, &seen) {
					return f, false
				}
			}
		}
		f.at++
	}
	return f, false
}

// A gifDecoder holds what the pixels of a GIF file need.
type gifDecoder struct{ codes, pixels []byte }

// decodeGIF decodes the first picture of a GIF file. Its colours stay behind its transparency, as in
// Pillow. What it doesn't fill gets the transparent colour or, if there is none, the palette's first. If the
// program accepts damaged files, missing pixels become 0.
func (w *worker) decodeGIF(data []byte, h header) error {
	f, ok := frameOfGIF(w.ctx, data)
	if !ok {
		return w.failed("vision: GIF: %w", io.ErrUnexpectedEOF)
	}
	if w.gif == nil {
		w.gif = new(gifDecoder)
	}
	palette, flags, rest := f.palette, data[f.at+9], data[f.at+10:]
	if flags&0x80 != 0 {
		n := min(len(rest), 3<<(flags&7+1))
		palette, rest = rest[:n], rest[n:]
	}
	if len(palette) < 3 {
		return errors.New("vision: GIF: the palette is missing")
	}
	if len(rest) == 0 || rest[0] < 1 || rest[0] > 8 {
		return errors.New("vision: GIF: the pixels must have 1 … 8 bits")
	}
	literal, seen := int(rest[0]), 0
	codes := w.gif.codes[:0]
	for rest = rest[1:]; len(rest) > 0 && rest[0] > 0 && !hasEnded(w.ctx, &seen); {
		n := min(len(rest), int(rest[0])+1)
		codes, rest = append(codes, rest[1:n]...), rest[n:]
	}
	width, height := f.bounds.Dx(), f.bounds.Dy()
	const most = 1 << 12 // pixels that a code stands for
	if int64(width)*int64(height) > int64(len(codes)+1)*most {
		return fmt.Errorf("vision: GIF: %d bytes for %d × %d pixels: most are missing", len(codes), width, height)
	}
	pixels := sized(w.gif.pixels, width*height)
	w.gif.codes, w.gif.pixels = codes, pixels
	clear(pixels)
	missing := unpackGIF(w.ctx, pixels, codes, literal)
	if err := ended(w.ctx); err != nil {
		return err
	}
	if missing > 0 && !w.p.damaged {
		return fmt.Errorf("vision: GIF: %d of %d pixels are missing", missing, width*height)
	}
	transparent := -1
	if f.control > 0 && data[f.control+3]&1 != 0 {
		transparent = int(data[f.control+6])
	}
	var colours [256][3]byte
	for i := range min(len(palette)/3, 256) {
		colours[i] = [3]byte(palette[3*i:])
	}
	whole := width == h.width && height == h.height // else at least a side of the screen shows
	w.picture = picture{width: h.width, height: h.height, model: rgb, subX: 1, subY: 1}
	if w.p.mask != nil {
		if w.picture.model = grey; !whole {
			return fmt.Errorf("vision: a mask whose picture, %v, doesn't fill its frame of %d × %d pixels", f.bounds, h.width, h.height)
		}
	}
	w.mem = w.picture.shape(w.mem, h.width, h.height)
	planes := w.picture.planes[:w.picture.count()]
	if !whole {
		for c, pl := range planes {
			for i := range pl.pix {
				pl.pix[i] = colours[max(0, transparent)][c]
			}
		}
	}
	passes := [][2]int{{0, 1}} // the first row, and the step to the next
	if flags&0x40 != 0 {
		passes = [][2]int{{0, 8}, {4, 8}, {2, 4}, {1, 2}}
	}
	for _, pass := range passes {
		for y := pass[0]; y < height; y += pass[1] {
			if err := ended(w.ctx); err != nil {
				return err
			}
			at := (f.bounds.Min.Y+y)*planes[0].stride + f.bounds.Min.X
			for x, v := range pixels[:width] {
				if 3*int(v)+3 > len(palette) && int(v) != transparent && !w.p.damaged {
					return fmt.Errorf("vision: GIF: pixel %d, %d has colour %d of %d", x, y, v, len(palette)/3)
				}
				if w.p.mask != nil {
					planes[0].pix[at+x] = v
					continue
				}
				for c := range planes {
					planes[c].pix[at+x] = colours[v][c]
				}
			}
			pixels = pixels[width:]
		}
	}
	return nil
}

// grown returns the size of the screen, enlarged to hold the picture, as in Pillow.
func (f *gifFrame) grown() image.Point {
	return image.Pt(max(f.screen.X, f.bounds.Max.X), max(f.screen.Y, f.bounds.Max.Y))
}

// unpackGIF unpacks codes to pixels until either end, until ctx ends, or until a code is invalid. It
// returns how many pixels are missing. Package lzw can't be used: it doesn't support literals of one bit.
func unpackGIF(ctx context.Context, pixels, codes []byte, literal int) (missing int) {
	var prefix [1 << 12]int16
	var suffix, text [1 << 12]byte
	reset, end := 1<<literal, 1<<literal+1
	next, width, last := end+1, literal+1, -1
	acc, bits := uint32(0), 0
	for seen := 0; len(pixels) > 0 && !hasEnded(ctx, &seen); {
		for bits < width {
			if len(codes) == 0 {
				return len(pixels)
			}
			acc |= uint32(codes[0]) << bits
			codes, bits = codes[1:], bits+8
		}
		code := int(acc & (1<<width - 1))
		acc, bits = acc>>width, bits-width
		if code == reset {
			next, width, last = end+1, literal+1, -1
			continue
		}
		if code == end || code > next || code == next && last < 0 {
			return len(pixels)
		}
		at, from := code, len(text)
		if code == next { // this code stands for the last text followed by its first pixel
			at, from = last, from-1
		}
		for ; at > end; at = int(prefix[at]) {
			from--
			text[from] = suffix[at]
		}
		from--
		text[from] = byte(at)
		if code == next {
			text[len(text)-1] = byte(at)
		}
		pixels = pixels[copy(pixels, text[from:]):]
		if last >= 0 && next < 1<<12 {
			prefix[next], suffix[next] = int16(last), byte(at)
			if next++; next == 1<<width && width < 12 {
				width++
			}
		}
		last = code
	}
	return len(pixels)
}
