package vision

import (
	"encoding/binary"
	"errors"
)

var errPartOfWebP = errors.New("an animated WebP file whose first picture doesn't fill the frame")

// firstOfWebP makes a file of the first picture of an animated WebP file, in mem,
// which it grows if needed. It returns nil for any other file. See the WebP Container
// Specification, "Extended File Format": chunks of a name, a size, and as many
// bytes, padded to an even number.
func firstOfWebP(mem, data []byte) ([]byte, error) {
	const animated, transparent = 0x02, 0x10
	if len(data) < 30 || string(data[8:16]) != "WEBPVP8X" || data[20]&animated == 0 {
		return nil, nil
	}
	canvas := data[24:30] // width − 1 and height − 1, three bytes each
	for rest := data[12:]; ; {
		name, content, after := chunkOfWebP(rest)
		if name != "ANMF" {
			if name == "" {
				return nil, nil // image.Decode tells what is wrong
			}
			rest = after
			continue
		}
		if len(content) < 16 {
			return nil, nil
		}
		if string(content[:6]) != "\x00\x00\x00\x00\x00\x00" || string(content[6:12]) != string(canvas) {
			return nil, errPartOfWebP
		}
		mem = append(mem[:0], "RIFF\x00\x00\x00\x00WEBP"...)
		if name, _, _ := chunkOfWebP(content[16:]); name == "ALPH" {
			mem = append(mem, "VP8X\x0a\x00\x00\x00"...)
			mem = append(mem, transparent, 0, 0, 0)
			mem = append(mem, canvas...)
		}
		mem = append(mem, content[16:]...)
		binary.LittleEndian.PutUint32(mem[4:], uint32(len(mem)-8))
		return mem, nil
	}
}

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
