// Command avo writes vision's assembly code for amd64. To run it, call "go generate" in package vision. Each
// function computes exactly what the function of the same name in plain Go computes.
package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

func main() {
	ConstraintExpr("amd64")
	mixRows()
	columnsOf()
	mixColumns()
	rowsOf()
	fromLevels()
	fromYCC(false)
	fromYCC(true)
	inverse()
	inverseHalf()
	Generate()
}

func load(name string) GPVirtual { return Load(Param(name), GP64()).(GPVirtual) }

// half returns one half in 1/256ths, in each lane of 16 bits.
func half() VecVirtual {
	r, v := GP32(), YMM()
	MOVL(U32(0x80), r)
	VMOVD(r, v.AsX())
	VPBROADCASTW(v.AsX(), v)
	return v
}

// lanes returns a vector in memory whose lanes of 32 bits all hold a value.
func lanes(name string, value int32) Mem {
	m := GLOBL(name, RODATA|NOPTR)
	for i := range 8 {
		DATA(4*i, I32(value))
	}
	return m
}

func mixRows() {
	TEXT("mixRowsAVX2", NOSPLIT, "func(dst, src *byte, n, stride int, weights *uint64, taps int)")
	Pragma("noescape")
	Doc("mixRowsAVX2 is mixRows for n bytes, a multiple of eight, and at least one weight.")
	dst, src, n, stride, weights, taps := load("dst"), load("src"), load("n"), load("stride"), load("weights"), load("taps")
	rounding := half()
	x, last := GP64(), GP64()
	XORQ(x, x)
	MOVQ(n, last)
	SUBQ(U8(32), last)
	// sum adds up the rows at x. Each part of the sum has as many bytes as lanes says.
	sum := func(label string, lanes int, vectors ...VecVirtual) {
		at, w, k := GP64(), GP64(), GP64()
		LEAQ(Mem{Base: src, Index: x, Scale: 1}, at)
		MOVQ(weights, w)
		MOVQ(taps, k)
		for _, v := range vectors {
			VMOVDQA(rounding, v)
		}
		Label(label)
		weight := YMM()
		VPBROADCASTW(Mem{Base: w}, weight)
		for i, v := range vectors {
			row := YMM()
			if lanes == 8 {
				VPMOVZXBW(Mem{Base: at}, row.AsX())
				VPMULLW(weight.AsX(), row.AsX(), row.AsX())
				VPADDW(row.AsX(), v.AsX(), v.AsX())
				continue
			}
			VPMOVZXBW(Mem{Base: at, Disp: lanes * i}, row)
			VPMULLW(weight, row, row)
			VPADDW(row, v, v)
		}
		ADDQ(stride, at)
		ADDQ(U8(8), w)
		DECQ(k)
		JNZ(LabelRef(label))
		for _, v := range vectors {
			VPSRLW(U8(8), v, v)
		}
	}

	Label("next32")
	CMPQ(x, last)
	JGT(LabelRef("rest"))
	a, b := YMM(), YMM()
	sum("sum32", 16, a, b)
	VPACKUSWB(b, a, a)
	VPERMQ(U8(0xd8), a, a)
	VMOVDQU(a, Mem{Base: dst, Index: x, Scale: 1})
	ADDQ(U8(32), x)
	JMP(LabelRef("next32"))

	Label("rest")
	CMPQ(x, n)
	JGE(LabelRef("done"))
	CMPQ(last, U8(0))
	JLT(LabelRef("next8"))
	MOVQ(last, x) // some bytes are done twice
	JMP(LabelRef("next32"))

	Label("next8")
	c := YMM()
	sum("sum8", 8, c)
	VPACKUSWB(c.AsX(), c.AsX(), c.AsX())
	VMOVQ(c.AsX(), Mem{Base: dst, Index: x, Scale: 1})
	ADDQ(U8(8), x)
	CMPQ(x, n)
	JLT(LabelRef("next8"))

	Label("done")
	VZEROUPPER()
	RET()
}

// turned transposes eight rows of eight bytes. Each vector of the result holds two columns.
func turned(row func(i int) Mem) [4]VecVirtual {
	var pairs [4]VecVirtual
	for i := range pairs {
		a, b := XMM(), XMM()
		VMOVQ(row(2*i), a)
		VMOVQ(row(2*i+1), b)
		VPUNPCKLBW(b, a, a)
		pairs[i] = a
	}
	var fours [4]VecVirtual // rows 0 … 3 and 4 … 7 of the left half, then of the right half
	for i := range fours {
		fours[i] = XMM()
		if a, b := pairs[i%2*2], pairs[i%2*2+1]; i < 2 {
			VPUNPCKLWD(b, a, fours[i])
		} else {
			VPUNPCKHWD(b, a, fours[i])
		}
	}
	var columns [4]VecVirtual
	for i := range columns {
		columns[i] = XMM()
		if a, b := fours[i/2*2], fours[i/2*2+1]; i%2 == 0 {
			VPUNPCKLDQ(b, a, columns[i])
		} else {
			VPUNPCKHDQ(b, a, columns[i])
		}
	}
	return columns
}

// eightRows returns where eight rows lie that are stride bytes apart. The lower four are relative to below.
func eightRows(first, stride GPVirtual) (row func(i int) Mem, below GPVirtual) {
	stride3, below := GP64(), GP64()
	LEAQ(Mem{Base: stride, Index: stride, Scale: 2}, stride3)
	LEAQ(Mem{Base: first, Index: stride, Scale: 4}, below)
	return func(i int) Mem {
		base := []Register{first, below}[i/4]
		return []Mem{{Base: base}, {Base: base, Index: stride, Scale: 1}, {Base: base, Index: stride, Scale: 2}, {Base: base, Index: stride3, Scale: 1}}[i%4]
	}, below
}

func columnsOf() {
	TEXT("columnsOfAVX2", NOSPLIT, "func(dst *uint64, rows *byte, n, stride int)")
	Pragma("noescape")
	Doc("columnsOfAVX2 makes n columns, a multiple of eight. A column is eight lanes of", "16 bits, in the order of the rows.")
	dst, rows, n, stride := load("dst"), load("rows"), load("n"), load("stride")
	row, below := eightRows(rows, stride)
	Label("columns")
	for i, c := range turned(row) {
		v := YMM()
		VPMOVZXBW(c, v)
		VMOVDQU(v, Mem{Base: dst, Disp: 32 * i})
	}
	ADDQ(U8(8), rows)
	ADDQ(U8(8), below)
	ADDQ(U32(128), dst)
	SUBQ(U8(8), n)
	JNZ(LabelRef("columns"))
	VZEROUPPER()
	RET()
}

func mixColumns() {
	TEXT("mixColumnsAVX2", NOSPLIT, "func(dst, src *uint64, from *int, n, lo int, weights *uint64, stride, taps int)")
	Pragma("noescape")
	Doc("mixColumnsAVX2 is mixColumns for n results and at least two weights each.")
	dst, src, from, n, lo := load("dst"), load("src"), load("from"), load("n"), load("lo")
	weights, stride, taps := load("weights"), load("stride"), load("taps")
	rounding := half().AsX()
	SHLQ(U8(4), lo)
	SUBQ(lo, src) // from counts from the start of the line
	SHLQ(U8(3), stride)

	term := func(sum VecVirtual, w, at Mem) {
		v := XMM()
		VPBROADCASTW(w, v)
		VPMULLW(at, v, v)
		VPADDW(v, sum, sum)
	}
	each := func(name string, terms func(sum VecVirtual, at GPVirtual)) {
		Label(name)
		at, sum := GP64(), XMM()
		MOVQ(Mem{Base: from}, at)
		SHLQ(U8(4), at)
		ADDQ(src, at)
		VMOVDQA(rounding, sum)
		terms(sum, at)
		VPSRLW(U8(8), sum, sum)
		VPACKUSWB(sum, sum, sum)
		VMOVQ(sum, Mem{Base: dst})
		ADDQ(U8(8), from)
		ADDQ(U8(8), dst)
		ADDQ(stride, weights)
		DECQ(n)
		JNZ(LabelRef(name))
		RET()
	}
	names := []string{2: "two", 3: "three", 4: "four", 5: "five"}
	for count := 2; count < len(names); count++ {
		CMPQ(taps, U8(count))
		JEQ(LabelRef(names[count]))
	}
	each("many", func(sum VecVirtual, at GPVirtual) {
		w, k := GP64(), GP64()
		MOVQ(weights, w)
		MOVQ(taps, k)
		Label("terms")
		term(sum, Mem{Base: w}, Mem{Base: at})
		ADDQ(U8(8), w)
		ADDQ(U8(16), at)
		DECQ(k)
		JNZ(LabelRef("terms"))
	})
	for count := 2; count < len(names); count++ {
		each(names[count], func(sum VecVirtual, at GPVirtual) {
			for k := range count {
				term(sum, Mem{Base: weights, Disp: 8 * k}, Mem{Base: at, Disp: 16 * k})
			}
		})
	}
}

func rowsOf() {
	TEXT("rowsOfAVX2", NOSPLIT, "func(rows *byte, stride int, src *uint64, n int)")
	Pragma("noescape")
	Doc("rowsOfAVX2 is rowsOf for n columns, a multiple of eight.")
	rows, stride, src, n := load("rows"), load("stride"), load("src"), load("n")
	row, below := eightRows(rows, stride)
	Label("rows")
	for i, two := range turned(func(i int) Mem { return Mem{Base: src, Disp: 8 * i} }) {
		VMOVQ(two, row(2*i))
		VMOVHPS(two, row(2*i+1))
	}
	ADDQ(U8(64), src)
	ADDQ(U8(8), rows)
	ADDQ(U8(8), below)
	SUBQ(U8(8), n)
	JNZ(LabelRef("rows"))
	RET()
}

// float turns levels, in lanes of 32 bits, into level*scale + shift, rounded twice.
func float(levels, scale, shift VecVirtual) {
	VCVTDQ2PS(levels, levels)
	VMULPS(scale, levels, levels)
	VADDPS(shift, levels, levels)
}

func fromLevels() {
	TEXT("fromLevelsAVX2", NOSPLIT, "func(dst *float32, src *byte, n int, scale, shift float32)")
	Pragma("noescape")
	Doc("fromLevelsAVX2 is fromLevels for n levels, a multiple of eight.")
	dst, src, n := load("dst"), load("src"), load("n")
	scale, shift := YMM(), YMM()
	VBROADCASTSS(address("scale"), scale)
	VBROADCASTSS(address("shift"), shift)
	Label("levels")
	v := YMM()
	VPMOVZXBD(Mem{Base: src}, v)
	float(v, scale, shift)
	VMOVUPS(v, Mem{Base: dst})
	ADDQ(U8(8), src)
	ADDQ(U8(32), dst)
	SUBQ(U8(8), n)
	JNZ(LabelRef("levels"))
	VZEROUPPER()
	RET()
}

// address returns where a parameter lies.
func address(name string) Mem {
	b, err := Param(name).Resolve()
	if err != nil {
		panic(err)
	}
	return b.Addr
}

// half65536 is one half in 65536ths, parts are the shares of Cb and Cr in red, green and blue, as in
// libjpeg's jdcolor.c.
var (
	half65536    = lanes("half65536", 1<<15)
	middle, most = lanes("middle", 128), lanes("most", 255)
	parts        = [3][2]Op{
		{nil, lanes("redCr", 91881)},
		{lanes("greenCb", -22554), lanes("greenCr", -46802)},
		{lanes("blueCb", 116130), nil},
	}
)

func fromYCC(bytes bool) {
	size := 32 // bytes of eight results
	if bytes {
		size = 8
		TEXT("levelsFromYCCAVX2", NOSPLIT, "func(red, green, blue, y, cb, cr *byte, n int)")
		Pragma("noescape")
		Doc("levelsFromYCCAVX2 is fromYCCAVX2 to levels.")
	} else {
		TEXT("fromYCCAVX2", NOSPLIT, "func(red, green, blue *float32, y, cb, cr *byte, n int, affine *float32)")
		Pragma("noescape")
		Doc("fromYCCAVX2 is fromYCC, of JFIF's components, for n pixels, a multiple of eight.")
	}
	var dst, src [3]GPVirtual
	for i, name := range []string{"red", "green", "blue"} {
		dst[i] = load(name)
	}
	for i, name := range []string{"y", "cb", "cr"} {
		src[i] = load(name)
	}
	n := load("n")
	var scale, shift [3]VecVirtual
	if !bytes {
		affine := load("affine")
		for c := range 3 {
			scale[c], shift[c] = YMM(), YMM()
			VBROADCASTSS(Mem{Base: affine, Disp: 8 * c}, scale[c])
			VBROADCASTSS(Mem{Base: affine, Disp: 8*c + 4}, shift[c])
		}
	}
	zero, rounding := YMM(), YMM() // one half, in 65536ths
	VPXOR(zero, zero, zero)
	VMOVDQU(half65536, rounding)
	Label("pixels")
	y, cb, cr := YMM(), YMM(), YMM()
	VPMOVZXBD(Mem{Base: src[0]}, y)
	VPMOVZXBD(Mem{Base: src[1]}, cb)
	VPMOVZXBD(Mem{Base: src[2]}, cr)
	VPSUBD(middle, cb, cb)
	VPSUBD(middle, cr, cr)
	for c := range dst {
		sum := YMM()
		VMOVDQA(rounding, sum)
		for i, v := range []VecVirtual{cb, cr} {
			if parts[c][i] != nil {
				product := YMM()
				VPMULLD(parts[c][i], v, product)
				VPADDD(product, sum, sum)
			}
		}
		VPSRAD(U8(16), sum, sum)
		VPADDD(y, sum, sum)
		if bytes {
			upper := XMM()
			VEXTRACTI128(U8(1), sum, upper)
			VPACKSSDW(upper, sum.AsX(), upper)
			VPACKUSWB(upper, upper, upper)
			VMOVQ(upper, Mem{Base: dst[c]})
		} else {
			VPMAXSD(zero, sum, sum)
			VPMINSD(most, sum, sum)
			float(sum, scale[c], shift[c])
			VMOVUPS(sum, Mem{Base: dst[c]})
		}
		ADDQ(U8(size), dst[c])
	}
	for _, s := range src {
		ADDQ(U8(8), s)
	}
	SUBQ(U8(8), n)
	JNZ(LabelRef("pixels"))
	VZEROUPPER()
	RET()
}

// constantsOf returns the numeric constants of a Go file.
func constantsOf(path string) map[string]int32 {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		panic(err)
	}
	all := map[string]int32{}
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok && len(spec.Values) == 1 {
			if v, ok := spec.Values[0].(*ast.BasicLit); ok {
				n, _ := strconv.ParseInt(v.Value, 0, 32)
				all[spec.Names[0].Name] = int32(n)
			}
		}
		return true
	})
	return all
}

var (
	values               = constantsOf("../baseline.go")
	cosines              = map[string]Mem{}
	half2048, half262144 = lanes("half2048", 1<<10), lanes("half262144", 1<<17)
	middles              = lanes("middles", 128<<16|128)
)

// cosine returns a constant of baseline.go in each lane.
func cosine(name string) Mem {
	if _, there := cosines[name]; !there {
		cosines[name] = lanes("cosine"+strconv.Itoa(int(values[name])), values[name])
	}
	return cosines[name]
}

func inverse() {
	TEXT("inverseAVX2", NOSPLIT, "func(in *int16, quant *int32, dst *byte, stride int)")
	Pragma("noescape")
	Doc("inverseAVX2 is inverse.")
	in, quant, dst, stride := load("in"), load("quant"), load("dst"), load("stride")
	times := func(v VecVirtual, name string) VecVirtual {
		product := YMM()
		VPMULLD(cosine(name), v, product)
		return product
	}
	plus := func(a, b VecVirtual) VecVirtual { v := YMM(); VPADDD(a, b, v); return v }
	minus := func(a, b VecVirtual) VecVirtual { v := YMM(); VPSUBD(b, a, v); return v }
	shifted := func(v VecVirtual, n uint8) VecVirtual { VPSLLD(U8(n), v, v); return v }
	// lines transforms eight lines, one in each lane.
	lines := func(c [8]VecVirtual, half Mem, shift uint8) (out [8]VecVirtual) {
		z := times(plus(c[2], c[6]), "c0_541")
		a, b := minus(z, times(c[6], "c1_847")), plus(z, times(c[2], "c0_765"))
		s, t := shifted(plus(c[0], c[4]), 13), shifted(minus(c[0], c[4]), 13)
		VPADDD(half, s, s)
		VPADDD(half, t, t)
		even := [4]VecVirtual{plus(s, b), plus(t, a), minus(t, a), minus(s, b)}
		z3, z4 := plus(c[7], c[3]), plus(c[5], c[1])
		z5 := times(plus(z3, z4), "c1_175")
		z3, z4 = minus(z5, times(z3, "c1_961")), minus(z5, times(z4, "c0_390"))
		z1, z2 := times(plus(c[7], c[1]), "c0_899"), times(plus(c[5], c[3]), "c2_562")
		odd := [4]VecVirtual{
			plus(minus(times(c[7], "c0_298"), z1), z3), plus(minus(times(c[5], "c2_053"), z2), z4),
			plus(minus(times(c[3], "c3_072"), z2), z3), plus(minus(times(c[1], "c1_501"), z1), z4),
		}
		for i, e := range even {
			out[i], out[7-i] = plus(e, odd[3-i]), minus(e, odd[3-i])
			VPSRAD(U8(shift), out[i], out[i])
			VPSRAD(U8(shift), out[7-i], out[7-i])
		}
		return out
	}
	var c, pairs, fours [8]VecVirtual
	for i := range c {
		c[i] = YMM()
		VPMOVSXWD(Mem{Base: in, Disp: 16 * i}, c[i])
		VPMULLD(Mem{Base: quant, Disp: 32 * i}, c[i], c[i])
	}
	zero := YMM()
	VPXOR(zero, zero, zero)
	for i := range 4 {
		VMOVDQU(zero, Mem{Base: in, Disp: 32 * i})
	}
	c = lines(c, half2048, 11)
	for i := range 4 { // as turned, of eight lines of eight numbers
		pairs[2*i], pairs[2*i+1] = YMM(), YMM()
		VPUNPCKLDQ(c[2*i+1], c[2*i], pairs[2*i])
		VPUNPCKHDQ(c[2*i+1], c[2*i], pairs[2*i+1])
	}
	for i := range 8 {
		fours[i] = YMM()
		if a, b := pairs[i/4*4+i/2%2], pairs[i/4*4+i/2%2+2]; i%2 == 0 {
			VPUNPCKLQDQ(b, a, fours[i])
		} else {
			VPUNPCKHQDQ(b, a, fours[i])
		}
	}
	for i := range 4 {
		c[i], c[i+4] = YMM(), YMM()
		VPERM2I128(U8(0x20), fours[i+4], fours[i], c[i])
		VPERM2I128(U8(0x31), fours[i+4], fours[i], c[i+4])
	}
	c = lines(c, half262144, 18)
	middle, order := YMM(), YMM()
	VPBROADCASTW(middles, middle)
	bytes := GLOBL("byFours", RODATA|NOPTR)
	for i := range 32 {
		DATA(i, U8(i%4*4+i/4%4))
	}
	VMOVDQU(bytes, order)
	for i := range 4 {
		VPACKSSDW(c[2*i+1], c[2*i], c[2*i])
		VPADDSW(middle, c[2*i], c[2*i])
	}
	for _, left := range []int{0, 4} {
		VPACKUSWB(c[left+2], c[left], c[left])
		VPSHUFB(order, c[left], c[left])
	}
	row, _ := eightRows(dst, stride)
	upper, lower := c[1], c[2] // rows 0, 1, 4 and 5, and the others
	VPUNPCKLDQ(c[4], c[0], upper)
	VPUNPCKHDQ(c[4], c[0], lower)
	for i := 0; i < 8; i += 4 {
		if i == 4 {
			VEXTRACTI128(U8(1), upper, upper.AsX())
			VEXTRACTI128(U8(1), lower, lower.AsX())
		}
		VMOVQ(upper.AsX(), row(i))
		VMOVHPS(upper.AsX(), row(i+1))
		VMOVQ(lower.AsX(), row(i+2))
		VMOVHPS(lower.AsX(), row(i+3))
	}
	VZEROUPPER()
	RET()
}

func inverseHalf() {
	TEXT("inverseHalfAVX2", NOSPLIT, "func(in *int16, quant *int32, dst *byte, stride int)")
	Pragma("noescape")
	Doc("inverseHalfAVX2 is inverseHalf.")
	in, quant, dst, stride := load("in"), load("quant"), load("dst"), load("stride")
	times := func(v VecVirtual, name string) VecVirtual {
		product := XMM()
		VPMULLD(cosine(name), v, product)
		return product
	}
	plus := func(a, b VecVirtual) VecVirtual { v := XMM(); VPADDD(a, b, v); return v }
	minus := func(a, b VecVirtual) VecVirtual { v := XMM(); VPSUBD(b, a, v); return v }
	// lines transforms four lines, one in each lane.
	lines := func(c [4]VecVirtual, half Mem, shift uint8) (out [4]VecVirtual) {
		even := [2]VecVirtual{plus(c[0], c[2]), minus(c[0], c[2])}
		odd := [2]VecVirtual{plus(times(c[1], "c1_306"), times(c[3], "c0_541")), minus(times(c[1], "c0_541"), times(c[3], "c1_306"))}
		for i, e := range even {
			VPSLLD(U8(13), e, e)
			VPADDD(half, e, e)
			out[i], out[3-i] = plus(e, odd[i]), minus(e, odd[i])
			VPSRAD(U8(shift), out[i], out[i])
			VPSRAD(U8(shift), out[3-i], out[3-i])
		}
		return out
	}
	var c, pairs [4]VecVirtual
	for i := range c {
		c[i] = XMM()
		VPMOVSXWD(Mem{Base: in, Disp: 16 * i}, c[i])
		VPMULLD(Mem{Base: quant, Disp: 32 * i}, c[i], c[i])
	}
	zero := YMM()
	VPXOR(zero, zero, zero)
	for i := range 4 {
		VMOVDQU(zero, Mem{Base: in, Disp: 32 * i})
	}
	c = lines(c, half2048, 11)
	for i := range 2 {
		pairs[2*i], pairs[2*i+1] = XMM(), XMM()
		VPUNPCKLDQ(c[2*i+1], c[2*i], pairs[2*i])
		VPUNPCKHDQ(c[2*i+1], c[2*i], pairs[2*i+1])
	}
	for i := range 2 {
		c[2*i], c[2*i+1] = XMM(), XMM()
		VPUNPCKLQDQ(pairs[2+i], pairs[i], c[2*i])
		VPUNPCKHQDQ(pairs[2+i], pairs[i], c[2*i+1])
	}
	c = lines(c, half262144, 18) // a column in each vector
	for i := range 2 {
		pairs[2*i], pairs[2*i+1] = XMM(), XMM()
		VPUNPCKLDQ(c[2*i+1], c[2*i], pairs[2*i])
		VPUNPCKHDQ(c[2*i+1], c[2*i], pairs[2*i+1])
	}
	for i := range 2 {
		c[2*i], c[2*i+1] = XMM(), XMM()
		VPUNPCKLQDQ(pairs[2+i], pairs[i], c[2*i])
		VPUNPCKHQDQ(pairs[2+i], pairs[i], c[2*i+1])
	}
	middle := YMM()
	VPBROADCASTW(middles, middle)
	for i := range 2 {
		VPACKSSDW(c[2*i+1], c[2*i], c[2*i])
		VPADDSW(middle.AsX(), c[2*i], c[2*i])
	}
	VPACKUSWB(c[2], c[0], c[0])
	for i := range 4 {
		if i > 0 {
			ADDQ(stride, dst)
		}
		VPEXTRD(U8(i), c[0], Mem{Base: dst})
	}
	VZEROUPPER()
	RET()
}
