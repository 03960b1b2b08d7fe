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

// Inverse writes the pixels of a block of coefficients.
func Inverse(block [64]int32) (pixels [64]byte) {
	inverse(&block, pixels[:], 8)
	return pixels
}
