package cifar

import (
	"encoding/binary"
	"math/bits"
)

// padding is how many black pixels are added on each side before the crop.
const padding = 4

// normalized holds, by channel, the value for each byte: (v/255 − mean) / deviation. With this table the
// inner loop is a look-up.
var normalized = func() (table [Channels][256]float32) {
	mean := [Channels]float64{0.4914, 0.4822, 0.4465}
	deviation := [Channels]float64{0.2470, 0.2435, 0.2616}
	for c := range table {
		for v := range table[c] {
			table[c][v] = float32((float64(v)/255 - mean[c]) / deviation[c])
		}
	}
	return table
}()

// augment writes the image of r, mirrored if flip, padded, and cropped at
// column dx and row dy, 0 … 2×padding.
func augment(dst *[pixels]float32, r *record, dx, dy int, flip bool) {
	var padded [Side + 2*padding]byte // a row; its ends stay black
	for c := range Channels {
		table := &normalized[c]
		for y := range Side {
			out := (*[Side]float32)(dst[c*plane+y*Side:])
			from := y + dy - padding
			if from < 0 || from >= Side {
				for x := range out {
					out[x] = table[0]
				}
				continue
			}
			row, middle := (*[Side]byte)(r[1+c*plane+from*Side:]), (*[Side]byte)(padded[padding:])
			if flip {
				mirror(middle, row)
			} else {
				copy(middle[:], row[:])
			}
			in := (*[Side]byte)(padded[dx:])
			for x := 0; x < Side; x += 8 {
				out, in := (*[8]float32)(out[x:]), (*[8]byte)(in[x:])
				out[0], out[1] = table[in[0]], table[in[1]]
				out[2], out[3] = table[in[2]], table[in[3]]
				out[4], out[5] = table[in[4]], table[in[5]]
				out[6], out[7] = table[in[6]], table[in[7]]
			}
		}
	}
}

// mirror writes a row from right to left, eight pixels at a time.
func mirror(dst, row *[Side]byte) {
	for i := 0; i < Side; i += 8 {
		v := binary.LittleEndian.Uint64(row[i : i+8])
		binary.LittleEndian.PutUint64(dst[Side-8-i:Side-i], bits.ReverseBytes64(v))
	}
}
