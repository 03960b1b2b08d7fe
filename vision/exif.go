package vision

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
)

// exifPrefix precedes EXIF data in JPEG files, and sometimes in other files.
var exifPrefix = []byte("Exif\x00\x00")

// orientation finds the tag Orientation in EXIF data, 1 … 8, and returns 1 if there is none. See CIPA
// DC-008 (Exif 2.3), 4.6.4.
func orientation(exif []byte) int {
	if o, _ := tagOf(bytes.TrimPrefix(exif, exifPrefix), 0x0112); o >= 1 && o <= 8 {
		return int(o)
	}
	return 1
}

// tagOf finds a tag's number in the first directory of a TIFF file; EXIF data has the same form.
func tagOf(tiff []byte, tag uint16) (value uint32, found bool) {
	if len(tiff) < 8 {
		return 0, false
	}
	var order binary.ByteOrder
	switch string(tiff[:4]) {
	case "II*\x00":
		order = binary.LittleEndian
	case "MM\x00*":
		order = binary.BigEndian
	default:
		return 0, false
	}
	at := int64(order.Uint32(tiff[4:]))
	if at+2 > int64(len(tiff)) {
		return 0, false
	}
	entries := tiff[at+2:]
	for range order.Uint16(tiff[at:]) {
		if len(entries) < 12 {
			break
		}
		const short, long, signedShort, signedLong = 3, 4, 8, 9 // programs write Orientation as any of them, and Pillow reads it
		if order.Uint16(entries) == tag {
			switch order.Uint16(entries[2:]) {
			case short, signedShort:
				return uint32(order.Uint16(entries[8:])), true
			case long, signedLong:
				return order.Uint32(entries[8:]), true
			}
			break
		}
		entries = entries[12:]
	}
	return 0, false
}

// checkTIFF refuses files that package tiff would decode to other pixels than libtiff does.
func checkTIFF(data []byte) error {
	const compression, photometric, fillOrder, samples, planar = 0x0103, 0x0106, 0x010a, 0x0115, 0x011c
	number := func(tag uint16) uint32 {
		v, _ := tagOf(data, tag)
		return v
	}
	if number(planar) == 2 && number(samples) > 1 {
		return errors.New("vision: TIFF: one plane per colour: must be interleaved (PlanarConfiguration 1)")
	}
	switch c := number(compression); {
	case c >= 2 && c <= 4 && number(photometric) == 1:
		return errors.New("vision: TIFF: CCITT codes where 0 is black: must be white (PhotometricInterpretation 0)")
	case (c < 2 || c > 4) && number(fillOrder) == 2:
		return errors.New("vision: TIFF: bits in reverse order (FillOrder 2): must be 1")
	}
	return nil
}

// exifOf finds the EXIF data of a PNG or WebP file. It finds none if ctx ends.
func exifOf(ctx context.Context, data []byte) []byte {
	const flags, hasExif = 20, 0x08 // of a WebP file in the extended format
	seen := 0
	switch {
	case bytes.HasPrefix(data, pngSignature):
		for rest := data[len(pngSignature):]; len(rest) >= 12 && !hasEnded(ctx, &seen); {
			size := int64(binary.BigEndian.Uint32(rest))
			if size > int64(len(rest)-12) {
				break
			}
			if string(rest[4:8]) == "eXIf" {
				return rest[8 : 8+size]
			}
			rest = rest[12+size:]
		}
	case isWebP(data) && data[15] == 'X' && data[flags]&hasExif != 0:
		for name, content, rest := chunkOfWebP(data[12:]); name != "" && !hasEnded(ctx, &seen); name, content, rest = chunkOfWebP(rest) {
			if name == "EXIF" {
				return content
			}
		}
	}
	return nil
}
