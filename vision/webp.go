package vision

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"image"
	"io"

	"golang.org/x/image/vp8"
	"golang.org/x/image/vp8l"
)

func isWebP(data []byte) bool {
	return len(data) >= 30 && string(data[:4]) == "RIFF" && string(data[8:15]) == "WEBPVP8"
}

// pixelsOfWebP finds the codes of a WebP file, or those of the first picture of an animation, and which
// part of the frame that picture covers. It returns no codes if there are none. See the WebP Container
// Specification, "Extended File Format": chunks of a name, a size, and as many bytes, padded to an even
// number.
func pixelsOfWebP(ctx context.Context, data []byte, whole image.Rectangle) (codes []byte, lossy bool, part image.Rectangle, err error) {
	part = whole
	seen := 0
	for rest := data[12:]; ; {
		name, content, after := chunkOfWebP(rest)
		switch {
		case name == "" || hasEnded(ctx, &seen):
			return nil, false, part, nil // image.Decode reports what is wrong
		case name == "VP8 " || name == "VP8L":
			return content, name == "VP8 ", part, nil
		case name == "ANMF" && len(content) >= 16:
			at := image.Pt(2*number24(content), 2*number24(content[3:]))
			part = image.Rectangle{at, at.Add(image.Pt(number24(content[6:])+1, number24(content[9:])+1))}
			if !part.In(whole) {
				return nil, false, part, fmt.Errorf("the first picture of an animation, %v, isn't in its frame, %v", part, whole)
			}
			after = content[16:]
		}
		rest = after
	}
}

func number24(b []byte) int { return int(b[0]) | int(b[1])<<8 | int(b[2])<<16 }

// chunkOfWebP splits off the first chunk; name is empty if there is no whole one.
func chunkOfWebP(data []byte) (name string, content, rest []byte) {
	if len(data) < 8 {
		return "", nil, nil
	}
	size := int64(binary.LittleEndian.Uint32(data[4:]))
	if 8+size > int64(len(data)) {
		return "", nil, nil
	}
	end := min(8+size+size%2, int64(len(data)))
	return string(data[:4]), data[8 : 8+size], data[end:]
}

// decodeWebP decodes a WebP file; of a lossy one, only down to the last row that is needed. Transparency
// isn't decoded. It returns no picture if the file has no pixels.
func (w *worker) decodeWebP(data []byte, h header, bottom int) (img image.Image, part image.Rectangle, err error) {
	whole := image.Rect(0, 0, h.width, h.height)
	codes, lossy, part, err := pixelsOfWebP(w.ctx, data, whole)
	if err != nil || codes == nil {
		return nil, part, err
	}
	wrong := fmt.Errorf("its pixels' size isn't that of its frame, %d × %d", part.Dx(), part.Dy())
	if !lossy {
		config, err := vp8l.DecodeConfig(bytes.NewReader(codes))
		if err != nil {
			return nil, part, err
		}
		if config.Width != part.Dx() || config.Height != part.Dy() {
			return nil, part, wrong
		}
		img, err = vp8l.Decode(w.from(codes))
		return img, part, err
	}
	if len(codes) < 10 {
		return nil, part, io.ErrUnexpectedEOF
	}
	// A header that says fewer rows ends decoding with them. The row of blocks below smooths the last.
	head := [10]byte(codes)
	width, height := binary.LittleEndian.Uint16(head[6:]), binary.LittleEndian.Uint16(head[8:])
	if int(width)&0x3fff != part.Dx() || int(height)&0x3fff != part.Dy() {
		return nil, part, wrong
	}
	if part == whole {
		binary.LittleEndian.PutUint16(head[8:], height&^0x3fff|uint16(min(part.Dy(), up(bottom, 16)+16)))
	}
	d := vp8.NewDecoder()
	d.Init(io.MultiReader(bytes.NewReader(head[:]), bytes.NewReader(codes[10:])), len(codes))
	f, err := d.DecodeFrameHeader()
	if err == nil && !f.KeyFrame {
		err = errors.New("its frame depends on one that isn't there")
	}
	if err != nil {
		return nil, part, err
	}
	img, err = d.DecodeFrame()
	return img, part, err
}
