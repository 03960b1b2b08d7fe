package vision

import (
	"bytes"
	"context"
	"encoding/binary"
	"hash/crc32"
)

var pngSignature = []byte("\x89PNG\r\n\x1a\n")

// mendedPNG makes a file of the chunks that package png needs, with right checksums and an end. The
// pixels have their own checksum. See the PNG specification, 5.3: chunks of a size, a name, as many bytes
// and a checksum.
func mendedPNG(ctx context.Context, data []byte) []byte {
	file, seen := bytes.Clone(pngSignature), 0
	for rest := data[len(pngSignature):]; len(rest) > 8; {
		size := int(min(int64(binary.BigEndian.Uint32(rest)), int64(len(rest)-8)))
		name := string(rest[4:8])
		switch name {
		case "IHDR", "PLTE", "tRNS", "IDAT":
			file = append(binary.BigEndian.AppendUint32(file, uint32(size)), rest[4:8+size]...)
			file = binary.BigEndian.AppendUint32(file, crc32.ChecksumIEEE(rest[4:8+size]))
		}
		if name == "IEND" || hasEnded(ctx, &seen) {
			break
		}
		rest = rest[min(12+size, len(rest)):]
	}
	return append(file, "\x00\x00\x00\x00IEND\xae\x42\x60\x82"...)
}

// cutPalette makes a PNG file without the palette colours that are more than its pixels' bits can
// address: libpng ignores these colours. It returns nil for any other file.
func cutPalette(ctx context.Context, data []byte) []byte {
	const bits, paletted, most = 24, 25, 3 * 256
	if len(data) < 33 || data[paletted] != 3 {
		return nil
	}
	seen := 0
	for at := 33; len(data)-at >= 12 && !hasEnded(ctx, &seen); {
		size := int64(binary.BigEndian.Uint32(data[at:]))
		if size > int64(len(data)-at-12) {
			break
		}
		chunk, rest := data[at+4:at+8+int(size)], data[at+8+int(size):]
		if string(chunk[:4]) != "PLTE" {
			at += 12 + int(size)
			continue
		}
		if size > most || crc32.ChecksumIEEE(chunk) != binary.BigEndian.Uint32(rest) {
			break
		}
		kept := chunk[:min(len(chunk), 4+3<<min(data[bits], 8))]
		file := binary.BigEndian.AppendUint32(bytes.Clone(data[:at]), uint32(len(kept)-4))
		file = append(file, kept...)
		file = binary.BigEndian.AppendUint32(file, crc32.ChecksumIEEE(kept))
		return append(file, rest[4:]...)
	}
	return nil
}

// mendedPicture returns a file with the same pixels, but without what package png or gif rejects. If the
// program accepts damaged files, the file has the pixels that are left. It returns nil if no such file
// can be made.
func (w *worker) mendedPicture(data []byte) []byte {
	switch {
	case w.ctx.Err() != nil:
		return nil
	case !bytes.HasPrefix(data, pngSignature):
		return mendedGIF(w.ctx, data, w.p.damaged)
	}
	if file := cutPalette(w.ctx, data); file != nil {
		data = file
	} else if !w.p.damaged {
		return nil
	}
	if w.p.damaged {
		return mendedPNG(w.ctx, data)
	}
	return data
}
