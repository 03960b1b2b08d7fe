package vision

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"regexp"

	"github.com/klauspost/compress/zlib"
)

// exifPrefix precedes EXIF data in JPEG files, and sometimes in other files.
var exifPrefix = []byte("Exif\x00\x00")

// xmpPrefix precedes XMP in JPEG files.
var xmpPrefix = []byte("http://ns.adobe.com/xap/1.0/\x00")

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

// metadata is what a file says about itself in the forms of Exif and XMP, as far as it does.
type metadata struct{ exif, xmp []byte }

var orientationInXMP = regexp.MustCompile(`tiff:Orientation(?:="|>)([0-9])`)

// orientation returns the orientation, 1 … 8. As in Pillow, XMP counts if there is none in Exif.
func (m *metadata) orientation() int {
	if _, found := tagOf(bytes.TrimPrefix(m.exif, exifPrefix), 0x0112); !found {
		if match := orientationInXMP.FindSubmatch(m.xmp); match != nil && match[1][0] >= '1' && match[1][0] <= '8' {
			return int(match[1][0] - '0')
		}
	}
	return orientation(m.exif)
}

// metadataOf finds the metadata of a PNG or WebP file. It finds less if ctx ends.
func metadataOf(ctx context.Context, data []byte) (m metadata) {
	seen := 0
	switch {
	case bytes.HasPrefix(data, pngSignature):
		for rest := data[8:]; len(rest) >= 12 && !hasEnded(ctx, &seen); {
			size := int64(binary.BigEndian.Uint32(rest))
			if size > int64(len(rest)-12) {
				break
			}
			m.chunkOfPNG(string(rest[4:8]), rest[8:8+size])
			rest = rest[12+size:]
		}
	case len(data) >= 30 && string(data[:4]) == "RIFF" && string(data[8:16]) == "WEBPVP8X":
		const hasXMP, hasExif = 0x04, 0x08
		for name, content, rest := chunkOfWebP(data[12:]); name != "" && !hasEnded(ctx, &seen); name, content, rest = chunkOfWebP(rest) {
			switch {
			case name == "EXIF" && data[20]&hasExif != 0:
				m.exif = content
			case name == "XMP " && data[20]&hasXMP != 0:
				m.xmp = content
			}
		}
	}
	return m
}

// chunkOfPNG takes the metadata from a chunk: see the PNG specification, 11.3.2 and 11.3.3. ImageMagick
// writes Exif as text: a line of a name, a line of a length, and lines of hexadecimal digits.
func (m *metadata) chunkOfPNG(name string, content []byte) {
	key, text, _ := bytes.Cut(content, []byte{0})
	isExif, packed := string(key) == "Raw profile type exif", false
	if !isExif && string(key) != "XML:com.adobe.xmp" && name != "eXIf" {
		return
	}
	switch {
	case name == "eXIf":
		m.exif = content
		return
	case name == "tEXt":
	case name == "zTXt" && len(text) > 0:
		packed, text = true, text[1:]
	case name == "iTXt" && len(text) > 2:
		packed = text[0] != 0
		_, text, _ = bytes.Cut(text[2:], []byte{0}) // the language
		_, text, _ = bytes.Cut(text, []byte{0})     // the key in this language
	default:
		return
	}
	if packed {
		const most = 1 << 20 // as in Pillow
		unpacked, err := zlib.NewReader(bytes.NewReader(text))
		if err != nil {
			return
		}
		if text, err = io.ReadAll(io.LimitReader(unpacked, most)); err != nil {
			return
		}
	}
	if !isExif {
		m.xmp = text
		return
	}
	if lines := bytes.SplitN(text, []byte{'\n'}, 4); len(lines) == 4 && m.exif == nil {
		digits := bytes.ReplaceAll(lines[3], []byte{'\n'}, nil)
		if exif, err := hex.AppendDecode(nil, digits); err == nil {
			m.exif = exif
		}
	}
}
