package vision

import (
	"context"
	"encoding/binary"
	"fmt"
	"image"
)

// firstOfWebP makes a file of the first picture of an animated WebP file, in mem, which it grows if
// needed. It also returns which part of the frame the picture covers. It returns nil for any other file.
// See the WebP Container Specification, "Extended File Format": chunks of a name, a size, and as many
// bytes, padded to an even number.
func firstOfWebP(ctx context.Context, mem, data []byte) (file []byte, part image.Rectangle, err error) {
	const animated, transparent = 0x02, 0x10
	if len(data) < 30 || string(data[8:16]) != "WEBPVP8X" || data[20]&animated == 0 {
		return nil, part, nil
	}
	whole := image.Rect(0, 0, number24(data[24:])+1, number24(data[27:])+1)
	seen := 0
	for rest := data[12:]; ; {
		name, content, after := chunkOfWebP(rest)
		if name != "ANMF" {
			if name == "" || hasEnded(ctx, &seen) {
				return nil, part, nil // image.Decode reports what is wrong
			}
			rest = after
			continue
		}
		if len(content) < 16 {
			return nil, part, nil
		}
		at := image.Pt(2*number24(content), 2*number24(content[3:]))
		part = image.Rectangle{at, at.Add(image.Pt(number24(content[6:])+1, number24(content[9:])+1))}
		if !part.In(whole) {
			return nil, part, fmt.Errorf("the first picture of an animation, %v, isn't in its frame, %v", part, whole)
		}
		// The header must have the picture's size, because the decoder refuses pixels of another size.
		flags := byte(0)
		if name, _, _ := chunkOfWebP(content[16:]); name == "ALPH" {
			flags = transparent
		}
		mem = append(mem[:0], "RIFF\x00\x00\x00\x00WEBPVP8X\x0a\x00\x00\x00"...)
		mem = append(mem, flags, 0, 0, 0)
		mem = append(mem, content[6:12]...)
		mem = append(mem, content[16:]...)
		binary.LittleEndian.PutUint32(mem[4:], uint32(len(mem)-8))
		return mem, part, nil
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
