//go:build !amd64

package vision

const avx2 = false

func mixRows(dst, src []byte, stride int, weights []uint64) { mixRowsPlain(dst, src, stride, weights) }

func columnsOf(dst []column, rows []byte, stride int) { columnsOfPlain(dst, rows, stride) }

func mixColumns(dst []uint64, src []column, t *taps) { mixColumnsPlain(dst, src, t) }

func rowsOf(rows []byte, stride int, src []uint64) { rowsOfPlain(rows, stride, src) }

func fromLevels[T element](dst []T, src []byte, table *levels[T]) { fromLevelsPlain(dst, src, table) }

func fromYCC[T element](r, g, b []T, y, cb, cr []byte, t *chroma, tables *[3]*levels[T]) {
	fromYCCPlain(r, g, b, y, cb, cr, t, tables)
}

func inverse(coefficients *[64]int16, quant *[64]int32, dst []byte, stride int) {
	inversePlain(coefficients, quant, dst, stride)
}

func inverseHalf(coefficients *[64]int16, quant *[64]int32, dst []byte, stride int) {
	inverseHalfPlain(coefficients, quant, dst, stride)
}
