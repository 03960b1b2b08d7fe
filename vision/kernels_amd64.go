package vision

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

//go:generate go -C avo run . -out ../avx2_amd64.s -stubs ../avx2_amd64.go -pkg vision

// The code that takes most of a decoded picture's time exists twice, with exactly the same results: in
// plain Go, and in assembly for CPUs with AVX2. The functions of the assembly trust their lengths, so
// those here round them down to multiples of eight.
var avx2 = cpu.X86.HasAVX2

func mixRows(dst, src []byte, stride int, weights []uint64) {
	n := len(dst) &^ 7
	if !avx2 || len(weights) < 2 || n == 0 {
		mixRowsPlain(dst, src, stride, weights)
		return
	}
	src = src[:(len(weights)-1)*stride+n]
	mixRowsAVX2(&dst[0], &src[0], n, stride, &weights[0], len(weights))
}

func columnsOf(dst []column, rows []byte, stride int) {
	n := len(dst) &^ 7
	if !avx2 || n == 0 {
		columnsOfPlain(dst, rows, stride)
		return
	}
	rows = rows[:7*stride+n]
	columnsOfAVX2(&dst[0].e, &rows[0], n, stride)
}

func mixColumns(dst []uint64, src []column, t *taps) {
	if !avx2 || len(dst) == 0 {
		mixColumnsPlain(dst, src, t)
		return
	}
	src, from, weights := src[:t.hi-t.lo], t.from[:len(dst)], t.weights[:len(dst)*t.stride]
	mixColumnsAVX2(&dst[0], &src[0].e, &from[0], len(dst), t.lo, &weights[0], t.stride, t.most)
}

func rowsOf(rows []byte, stride int, src []uint64) {
	n := len(src) &^ 7
	if !avx2 || n == 0 {
		rowsOfPlain(rows, stride, src)
		return
	}
	rows = rows[:7*stride+n]
	rowsOfAVX2(&rows[0], stride, &src[0], n)
}

func fromLevels[T element](dst []T, src []byte, table *levels[T]) {
	if n := len(dst) &^ 7; n > 0 && avx2 && table.scale > 0 {
		src = src[:len(dst)]
		fromLevelsAVX2((*float32)(unsafe.Pointer(&dst[0])), &src[0], n, table.scale, table.shift)
		dst, src = dst[n:], src[n:]
	}
	fromLevelsPlain(dst, src, table)
}

func fromYCC[T element](r, g, b []T, y, cb, cr []byte, t *chroma, tables *[3]*levels[T]) {
	n, bytes := len(r)&^7, unsafe.Sizeof(r[0]) == 1 // of which all tables are identity
	if n > 0 && avx2 && t.full && (bytes || tables[0].scale > 0 && tables[1].scale > 0 && tables[2].scale > 0) {
		g, b, y, cb, cr = g[:len(r)], b[:len(r)], y[:len(r)], cb[:len(r)], cr[:len(r)]
		red, green, blue := unsafe.Pointer(&r[0]), unsafe.Pointer(&g[0]), unsafe.Pointer(&b[0])
		if bytes {
			levelsFromYCCAVX2((*byte)(red), (*byte)(green), (*byte)(blue), &y[0], &cb[0], &cr[0], n)
		} else {
			affine := [3]affine{tables[0].affine, tables[1].affine, tables[2].affine}
			fromYCCAVX2((*float32)(red), (*float32)(green), (*float32)(blue), &y[0], &cb[0], &cr[0], n, &affine[0].scale)
		}
		r, g, b, y, cb, cr = r[n:], g[n:], b[n:], y[n:], cb[n:], cr[n:]
	}
	fromYCCPlain(r, g, b, y, cb, cr, t, tables)
}

func inverse(coefficients *[64]int16, quant *[64]int32, dst []byte, stride int) {
	if !avx2 {
		inversePlain(coefficients, quant, dst, stride)
		return
	}
	dst = dst[:7*stride+8]
	inverseAVX2(&coefficients[0], &quant[0], &dst[0], stride)
}

func inverseHalf(coefficients *[64]int16, quant *[64]int32, dst []byte, stride int) {
	if !avx2 {
		inverseHalfPlain(coefficients, quant, dst, stride)
		return
	}
	dst = dst[:3*stride+4]
	inverseHalfAVX2(&coefficients[0], &quant[0], &dst[0], stride)
}
