package vision

import (
	"bufio"
	"fmt"
	"image"
	"image/color"
	"io"
	"math"
)

func init() {
	for _, magic := range []string{"P5", "P6"} {
		image.RegisterFormat("netpbm", magic, decodeNetpbm, func(r io.Reader) (image.Config, error) {
			h, err := readNetpbm(bufio.NewReader(r))
			return image.Config{ColorModel: color.RGBAModel, Width: h.width, Height: h.height}, err
		})
	}
}

// A netpbm is the header of a binary PGM or PPM file.
type netpbm struct{ channels, width, height, max int }

func readNetpbm(r *bufio.Reader) (h netpbm, err error) {
	var magic [2]byte
	if _, err = io.ReadFull(r, magic[:]); err != nil {
		return h, err
	}
	if h.channels = 1; magic[1] == '6' {
		h.channels = 3
	}
	for _, to := range []*int{&h.width, &h.height, &h.max} {
		if *to, err = numberOfNetpbm(r); err != nil {
			return h, err
		}
	}
	if h.max < 1 || h.max > math.MaxUint16 {
		return h, fmt.Errorf("netpbm: a largest value of %d: must be 1 … %d", h.max, math.MaxUint16)
	}
	return h, nil
}

// numberOfNetpbm reads a number, and the byte after it. Before it there may be space and comments.
func numberOfNetpbm(r *bufio.Reader) (n int, err error) {
	for digits := 0; ; {
		c, err := r.ReadByte()
		if err != nil {
			return 0, noEnd(err)
		}
		space := c == ' ' || c >= '\t' && c <= '\r'
		switch {
		case c == '#' && digits == 0:
			for c != '\n' && err == nil {
				c, err = r.ReadByte()
			}
		case c >= '0' && c <= '9' && digits < 9:
			n, digits = 10*n+int(c-'0'), digits+1
		case space && digits > 0:
			return n, nil
		case !space:
			return 0, fmt.Errorf("netpbm: %q where a number must be", c)
		}
	}
}

func noEnd(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// decodeNetpbm takes memory as rows come, and doesn't trust the size in a header. Colours have eight bits,
// and values are scaled as in Pillow.
func decodeNetpbm(from io.Reader) (image.Image, error) {
	r := bufio.NewReaderSize(from, 1<<16)
	h, err := readNetpbm(r)
	if err != nil {
		return nil, err
	}
	most := 255
	if h.channels == 1 && h.max > 255 {
		most = math.MaxUint16
	}
	var pix []byte
	for range h.height {
		for i := range h.width * h.channels {
			high, err := r.ReadByte()
			v := int(high)
			if err == nil && h.max > 255 {
				var low byte
				low, err = r.ReadByte()
				v = v<<8 | int(low)
			}
			if err != nil {
				return nil, noEnd(err)
			}
			if v = min(v, h.max); h.max != most {
				v = int(math.RoundToEven(float64(v) / float64(h.max) * float64(most)))
			}
			if most > 255 {
				pix = append(pix, byte(v>>8))
			}
			if pix = append(pix, byte(v)); i%3 == 2 && h.channels == 3 {
				pix = append(pix, 255)
			}
		}
	}
	rect := image.Rect(0, 0, h.width, h.height)
	switch {
	case h.channels == 3:
		return &image.RGBA{Pix: pix, Stride: 4 * h.width, Rect: rect}, nil
	case most > 255:
		return &image.Gray16{Pix: pix, Stride: 2 * h.width, Rect: rect}, nil
	}
	return &image.Gray{Pix: pix, Stride: h.width, Rect: rect}, nil
}
