package vision

// InPlainGo runs f without assembly. Nothing else may load pictures meanwhile.
func InPlainGo(f func()) {
	defer func(was bool) { avx2 = was }(avx2)
	avx2 = false
	f()
}

// HasAssembly reports whether this machine runs the assembly.
func HasAssembly() bool { return avx2 }

// Colours returns a function that converts a row of YCbCr as a pipeline with these
// means and deviations does.
func Colours(n Normalize) func(r, g, b []float32, y, cb, cr []byte) {
	var tables [3]*levels[float32]
	for c := range tables {
		tables[c] = normalized(n.Mean[c], n.Std[c])
	}
	return func(r, g, b []float32, y, cb, cr []byte) { fromYCC(r, g, b, y, cb, cr, fullRange, &tables) }
}

// Levels converts a row of YCbCr to bytes.
func Levels(r, g, b, y, cb, cr []byte) { fromYCC(r, g, b, y, cb, cr, fullRange, &unchanged) }

// Inverse writes the pixels of a block of coefficients, given their factors, and behind them those at half
// the size. It returns what is left of the coefficients too.
func Inverse(block [64]int16, quant *[64]int32) (pixels [64 + 16]byte, left [2][64]int16) {
	left = [2][64]int16{block, block}
	inverse(&left[0], quant, pixels[:], 8)
	inverseHalf(&left[1], quant, pixels[64:], 4)
	return pixels, left
}

// Turned returns what mixRows, columnsOf and rowsOf make of eight rows of n bytes.
func Turned(rows []byte, n int) [3][]byte {
	mixed, columns, back := make([]byte, n), make([]column, n), make([]byte, 8*n)
	mixRows(mixed, rows, n, []uint64{100, 156})
	columnsOf(columns, rows, n)
	turned := make([]uint64, n)
	var lanes []byte
	for i, c := range columns {
		for y := range 8 {
			v := byte(c.e >> (8 * (y &^ 1)))
			if y%2 == 1 {
				v = byte(c.o >> (8 * (y &^ 1)))
			}
			if avx2 {
				v = byte([2]uint64{c.e, c.o}[y/4] >> (16 * (y % 4)))
			}
			lanes = append(lanes, v)
			turned[i] |= uint64(v) << (8 * y)
		}
	}
	rowsOf(back, n, turned)
	return [3][]byte{mixed, lanes, back}
}
