package vision

import (
	"bytes"
	"context"
	"encoding/binary"
)

// exifPrefix stands before EXIF data in JPEG files, and sometimes in others.
var exifPrefix = []byte("Exif\x00\x00")

// orientation finds the tag Orientation in EXIF data: 1 … 8, and 1 if it isn't
// there. See CIPA DC-008 (Exif 2.3), 4.6.4.
func orientation(exif []byte) int {
	tiff := bytes.TrimPrefix(exif, exifPrefix)
	if len(tiff) < 8 {
		return 1
	}
	var order binary.ByteOrder
	switch string(tiff[:4]) {
	case "II*\x00":
		order = binary.LittleEndian
	case "MM\x00*":
		order = binary.BigEndian
	default:
		return 1
	}
	at := int64(order.Uint32(tiff[4:]))
	if at+2 > int64(len(tiff)) {
		return 1
	}
	entries := tiff[at+2:]
	for range order.Uint16(tiff[at:]) {
		if len(entries) < 12 {
			return 1
		}
		const tag, short, long = 0x0112, 3, 4
		if order.Uint16(entries) == tag {
			o := uint32(0)
			switch order.Uint16(entries[2:]) {
			case short:
				o = uint32(order.Uint16(entries[8:]))
			case long: // some programs write it so, and Pillow reads it
				o = order.Uint32(entries[8:])
			}
			if o >= 1 && o <= 8 {
				return int(o)
			}
			return 1
		}
		entries = entries[12:]
	}
	return 1
}

// exifOf finds the EXIF data of a PNG or WebP file; nil: there is none, or ctx ends.
func exifOf(ctx context.Context, data []byte) []byte {
	seen := 0
	switch {
	case bytes.HasPrefix(data, []byte("\x89PNG\r\n\x1a\n")):
		// Chunks of a size, a name, as many bytes and a checksum (PNG, 5.3).
		for rest := data[8:]; len(rest) >= 12; {
			size := int64(binary.BigEndian.Uint32(rest))
			if size > int64(len(rest)-12) || hasEnded(ctx, &seen) {
				return nil
			}
			if string(rest[4:8]) == "eXIf" {
				return rest[8 : 8+size]
			}
			rest = rest[12+size:]
		}
	case len(data) >= 30 && string(data[:4]) == "RIFF" && string(data[8:16]) == "WEBPVP8X":
		const hasExif = 0x08
		if data[20]&hasExif == 0 {
			return nil
		}
		for rest := data[12:]; ; {
			name, content, after := chunkOfWebP(rest)
			if name == "EXIF" || name == "" {
				return content
			}
			if hasEnded(ctx, &seen) {
				return nil
			}
			rest = after
		}
	}
	return nil
}
