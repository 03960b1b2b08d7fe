package vision

import (
	"bytes"
	"context"
	"encoding/binary"
	"hash/crc32"
)

var pngSignature = []byte("\x89PNG\r\n\x1a\n")

// mendedPNG makes a file of the chunks that package png needs, with their right
// checksums and an end. The pixels have a checksum of their own. See the PNG
// specification, 5.3: chunks of a size, a name, as many bytes and a checksum.
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

// mended is a file without what its decoder minds although pixels are there, if damage is
// borne; nil: there is nothing to be done.
func (w *worker) mended(data []byte) []byte {
	switch {
	case !w.p.damaged || w.ctx.Err() != nil:
		return nil
	case bytes.HasPrefix(data, pngSignature):
		return mendedPNG(w.ctx, data)
	}
	return mendedGIF(w.ctx, data)
}
