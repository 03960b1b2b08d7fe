package vision

import "context"

// opaqueGIF makes a GIF file whose first picture has no transparency, in mem, which it
// grows if needed: package gif would forget the colours behind it. It also returns
// the colour of what the picture doesn't fill: the transparent one, as in Pillow, or
// else the background. file is nil if data can be used as it is, or ctx ends. See the
// GIF89a specification, sections 18 to 23.
func opaqueGIF(ctx context.Context, mem, data []byte) (file []byte, empty [3]byte) {
	if len(data) < 13 || string(data[:4]) != "GIF8" {
		return nil, empty
	}
	colour := func(index byte) (c [3]byte) {
		if at := 13 + 3*int(index); data[10]&0x80 != 0 && at+3 <= len(data) {
			copy(c[:], data[at:])
		}
		return c
	}
	empty = colour(data[11])
	seen, at := 0, 13
	if data[10]&0x80 != 0 {
		at += 3 << (data[10]&7 + 1)
	}
	for at+7 < len(data) && data[at] == 0x21 { // an extension
		if data[at+1] == 0xf9 && data[at+2] == 4 {
			if data[at+3]&1 != 0 {
				empty = colour(data[at+6])
				if file == nil {
					file = append(mem[:0], data...)
				}
				file[at+3] &^= 1
			}
		}
		for at += 2; at < len(data) && data[at] != 0; {
			if at += int(data[at]) + 1; hasEnded(ctx, &seen) {
				return nil, empty
			}
		}
		if hasEnded(ctx, &seen) {
			return nil, empty
		}
		at++
	}
	return file, empty
}
