package vision

import (
	"bytes"
	"compress/lzw"
	"context"
	"encoding/binary"
	"image"
	"slices"
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

// frameOfGIF finds the first picture; ok is false if there is none, or ctx ends.
func frameOfGIF(ctx context.Context, data []byte) (f gifFrame, ok bool) {
	if len(data) < 13 || string(data[:4]) != "GIF8" {
		return f, false
	}
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

// opaqueGIF makes a GIF file whose first picture has no transparency, in mem, which it grows if needed,
// because package gif would lose the colours behind it. It also returns the colour of the pixels that the
// picture doesn't fill: the transparent colour, as in Pillow, or else the background. file is nil if data
// can be used as it is, or if ctx ends.
func opaqueGIF(ctx context.Context, mem, data []byte) (file []byte, empty [3]byte) {
	f, ok := frameOfGIF(ctx, data)
	if !ok {
		return nil, empty
	}
	index := data[11]
	if f.control > 0 && data[f.control+3]&1 != 0 {
		index = data[f.control+6]
		file = append(mem[:0], data...)
		file[f.control+3] &^= 1
	}
	if at := 3 * int(index); at+3 <= len(f.palette) {
		copy(empty[:], f.palette[at:])
	}
	return file, empty
}

// mendedGIF makes a file of the first picture, with everything that package gif needs: a screen around
// it, codes of eight bits, all colours and pixels. If the program accepts damaged files, missing pixels
// become 0. The result is nil if no such file can be made.
func mendedGIF(ctx context.Context, data []byte, damaged bool) []byte {
	f, ok := frameOfGIF(ctx, data)
	if !ok {
		return nil
	}
	flags, rest := data[f.at+9], data[f.at+10:]
	palette := f.palette
	if flags&0x80 != 0 {
		n := min(len(rest), 3<<(flags&7+1))
		palette, rest = rest[:n], rest[n:]
	}
	if len(palette) == 0 || len(rest) == 0 || rest[0] < 1 || rest[0] > 8 {
		return nil
	}
	literal, rest := int(rest[0]), rest[1:]
	var codes []byte
	for seen := 0; len(rest) > 0 && rest[0] > 0; {
		n := min(len(rest), int(rest[0])+1)
		codes, rest = append(codes, rest[1:n]...), rest[n:]
		if hasEnded(ctx, &seen) {
			return nil
		}
	}
	pixels := make([]byte, f.bounds.Dx()*f.bounds.Dy())
	missing := unpackGIF(ctx, pixels, codes, literal)
	if !damaged && (missing > 0 || int(slices.Max(pixels)) >= len(palette)/3) {
		return nil
	}

	file := append([]byte(nil), data[:13]...)
	size := f.grown()
	binary.LittleEndian.PutUint16(file[6:], uint16(size.X))
	binary.LittleEndian.PutUint16(file[8:], uint16(size.Y))
	file[10] &^= 0x80
	file = append(file, data[f.at:f.at+9]...)
	file = append(file, flags&0x40|0x87)
	file = append(file, palette...)
	file = append(file, make([]byte, 3*256-len(palette))...)
	file = append(file, 8)
	var packed bytes.Buffer
	w := lzw.NewWriter(&packed, lzw.LSB, 8)
	for row := range slices.Chunk(pixels, max(1, f.bounds.Dx())) {
		if ctx.Err() != nil {
			return nil
		}
		_, _ = w.Write(row)
	}
	_ = w.Close() // a buffer doesn't fail
	for packed.Len() > 0 {
		block := packed.Next(255)
		file = append(append(file, byte(len(block))), block...)
	}
	return append(file, 0, 0x3b)
}

// grown returns the size of the screen, enlarged to hold the picture, as in Pillow.
func (f *gifFrame) grown() image.Point {
	return image.Pt(min(max(f.screen.X, f.bounds.Max.X), 1<<16-1), min(max(f.screen.Y, f.bounds.Max.Y), 1<<16-1))
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
