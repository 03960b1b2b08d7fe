package vision

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
)

// A baselineDecoder decodes baseline JPEG files (ITU-T T.81) that have one scan, as nearly all
// photographs do. It does less work than a general decoder: it passes over the codes of blocks that
// aren't needed, two at a time, and it keeps its memory from one picture to the next.
type baselineDecoder struct {
	tables  [2][4]huffman // for DC and AC
	given   [2][4][]byte  // what the file defines tables as; they are made when a scan uses them
	quant   [4][64]int32  // in row order
	defined [4]bool       // which tables of quant are set
	restart int           // MCUs between restart markers; 0: none

	scan [4]component
	n    int // components

	markers int // restart markers passed so far

	data []byte
	pos  int
	// What lies between two markers, without the zeros that follow 0xff, and with slack.
	codes []byte
	at    int // in codes
	// If places are remembered: where codes begin in data, where they end if not at a marker, and after which
	// bytes of data some were left out.
	places places
	base   int
	limit  int
	cuts   []cut
	// The upper bits of acc, as many as bits, are those that were read and aren't used yet.
	// Those below are the next ones, or 0.
	acc  uint64
	bits uint

	size         shrink
	coefficients [64]int16 // 0 between blocks
}

// A component is one component of the scan.
type component struct {
	id, quant  byte
	dc, ac     byte
	h, v       int // blocks per MCU
	side       int // pixels per side that become of a block: 8, 4 or 2
	last       int // the last of its coefficients, in the order of a scan, that these depend on
	prediction int32
}

// A cut says that the bytes of a file before raw are that many more than those of codes.
type cut struct{ raw, more int }

// errOtherScans says that a file is for progressiveDecoder.
var errOtherScans = errors.New("not one scan of all components in order")

// A region is part of a picture: pixels left … right−1 of rows top … bottom−1.
type region struct{ left, top, right, bottom int }

// decode decodes a region of a picture to planes, together with the other pixels of the blocks that it
// touches. If ctx ends, it decodes less. damaged says what is wrong with a picture of which something
// could be decoded nonetheless.
func (d *baselineDecoder) decode(ctx context.Context, data []byte, h *jpegHeader, planes []plane, wanted region, remembered places) (damaged, err error) {
	d.reset()
	d.places = remembered
	if err := d.readTables(ctx, data, h); err != nil {
		return nil, err
	}
	err = d.readScan(ctx, h, planes, wanted)
	d.data, d.given = nil, [2][4][]byte{}
	d.places = places{}
	return err, nil
}

// reset forgets the definitions of the last picture.
func (d *baselineDecoder) reset() {
	d.restart, d.n, d.defined, d.given = 0, 0, [4]bool{}, [2][4][]byte{}
}

// readTables reads everything before the first block.
func (d *baselineDecoder) readTables(ctx context.Context, data []byte, h *jpegHeader) error {
	s := segments{ctx: ctx, data: data, at: 2}
	for {
		marker, segment, err := s.next()
		if err != nil {
			return err
		}
		switch marker {
		case 0xc0, 0xc1:
			d.frame(h, segment)
		case 0xda:
			d.data, d.pos = data, s.at
			return d.readScanHeader(segment)
		default:
			err = d.readTable(marker, segment)
		}
		if err != nil {
			return err
		}
	}
}

// readTable reads a segment that defines tables or the restart interval.
func (d *baselineDecoder) readTable(marker byte, segment []byte) error {
	switch {
	case marker == 0xc4:
		return d.readHuffman(segment)
	case marker == 0xdb:
		return d.readQuantization(segment)
	case marker == 0xdd && len(segment) >= 2:
		d.restart = int(binary.BigEndian.Uint16(segment))
	}
	return nil
}

// frame reads a frame header, which readJPEG has checked.
func (d *baselineDecoder) frame(h *jpegHeader, segment []byte) {
	d.n = h.components
	for i := range d.n {
		c, f := segment[6+3*i:], h.sampling[i]
		d.scan[i] = component{id: c[0], h: f.h, v: f.v, quant: c[2]}
		if d.scan[i].side = 8 / d.size.luma; i > 0 {
			d.scan[i].side = 8 / d.size.chroma
		}
		d.scan[i].last = lastOf[d.scan[i].side]
	}
}

// unit returns the size of an MCU with all components, in pixels.
func (h *jpegHeader) unit() (width, height int) { return 8 * h.unitX, 8 * h.unitY }

func (d *baselineDecoder) readScanHeader(segment []byte) error {
	if len(segment) < 1 || int(segment[0]) != d.n || len(segment) < 4+2*d.n {
		return errors.New("a scan's header is damaged")
	}
	for i := range d.n {
		c, s := &d.scan[i], segment[1+2*i:]
		if s[0] != c.id {
			return errOtherScans
		}
		c.dc, c.ac = s[1]>>4, s[1]&15
		if err := d.checkTables(i); err != nil {
			return err
		}
		d.tables[1][c.ac].pair()
	}
	return nil
}

// checkTables returns an error if a component of a baseline scan lacks a table.
func (d *baselineDecoder) checkTables(i int) error {
	c := &d.scan[i]
	if c.quant > 3 || !d.defined[c.quant] {
		return fmt.Errorf("component %d uses quantization table %d, which isn't there", i, c.quant)
	}
	return cmp.Or(d.use(0, c.dc), d.use(1, c.ac))
}

// use makes a Huffman table that a scan uses.
func (d *baselineDecoder) use(class int, id byte) error {
	if id > 3 || d.given[class][id] == nil {
		return fmt.Errorf("a scan uses Huffman table %d of class %d, which isn't there", id, class)
	}
	return d.tables[class][id].make(d.given[class][id])
}

func (d *baselineDecoder) readQuantization(segment []byte) error {
	for len(segment) > 0 {
		wide, id := segment[0]>>4, segment[0]&15
		size := 64 << wide
		if segment = segment[1:]; wide > 1 || id > 3 || len(segment) < size {
			return errors.New("a quantization table is damaged")
		}
		for k, at := range zigzag[:64] {
			if wide == 1 {
				d.quant[id][at] = int32(binary.BigEndian.Uint16(segment[2*k:]))
			} else {
				d.quant[id][at] = int32(segment[k])
			}
		}
		segment, d.defined[id] = segment[size:], true
	}
	return nil
}

func (d *baselineDecoder) readHuffman(segment []byte) error {
	for len(segment) > 0 {
		if len(segment) < 17 || segment[0]>>4 > 1 || segment[0]&15 > 3 {
			return errors.New("a Huffman table is damaged")
		}
		n := 17
		for _, count := range segment[1:17] {
			n += int(count)
		}
		if n > 17+256 || n > len(segment) {
			return errors.New("a Huffman table is damaged")
		}
		d.given[segment[0]>>4][segment[0]&15] = segment[:n]
		segment = segment[n:]
	}
	return nil
}

// zigzag gives the place of each coefficient (T.81, figure 5). Coefficients that damage puts beyond the
// last one are put in its place, as in libjpeg.
var zigzag = func() (order [128]uint8) {
	for k := range order {
		order[k] = 63
	}
	x, y := 0, 0
	for k := range 64 {
		order[k] = uint8(8*y + x)
		switch up := (x+y)%2 == 0; {
		case up && x == 7, !up && y != 7 && x == 0:
			y++
		case up && y == 0, !up && y == 7:
			x++
		case up:
			x, y = x+1, y-1
		default:
			x, y = x-1, y+1
		}
	}
	return order
}()

// lookahead is how many bits a table's short codes have.
const lookahead = 11

// A huffman is a table of codes (T.81, annex C).
type huffman struct {
	source []byte // what the table was made from

	// short is indexed by the next bits. An entry holds a code's length, and its symbol << 8. If the
	// number after the code is also short, the entry holds both lengths together, the count of zeros
	// before the number << 8, and the number << 16. 0 means that the code is longer.
	short [1 << lookahead]int32
	// passes is for passing over coefficients. It has the bits of the next code, or of the next
	// two, with their numbers; how many coefficients they are << 5, blockEnds and more if the
	// last code ends the block, notShort if the code is longer; the length of a single code << 12.
	passes [1 << lookahead]uint16
	paired bool // passes has two codes where there is room

	// For each code length: the first code that is longer, as 16 bits, and what to add to a code to get
	// its index in values.
	end    [17]int32
	offset [17]int32
	values [256]uint8
}

func (t *huffman) make(source []byte) error {
	if bytes.Equal(t.source, source) {
		return nil
	}
	t.source, t.paired = append(t.source[:0], source...), false
	clear(t.short[:])
	for i := range t.passes {
		t.passes[i] = notShort << 5
	}
	clear(t.values[copy(t.values[:], source[17:]):])
	code, place := int32(0), int32(0)
	for length := 1; length <= 16; length++ {
		count := int32(source[length])
		t.offset[length] = place - code
		for range count {
			if length <= lookahead && code < 1<<length {
				t.enter(code, length, t.values[place], source[0]>>4 == 1)
			}
			code++
			place++
		}
		if code > 1<<length {
			t.source = t.source[:0]
			return errors.New("a Huffman table has too many codes")
		}
		t.end[length] = code << (16 - length)
		code <<= 1
	}
	return nil
}

const (
	blockEnds = 64
	notShort  = 127
)

// pair joins two codes that are short enough together.
func (t *huffman) pair() {
	if t.paired {
		return
	}
	t.paired = true
	single := t.passes
	for i, a := range single {
		if a>>5&127 < blockEnds && a&31 < lookahead {
			b := single[i<<(a&31)&(1<<lookahead-1)]
			if b>>5&127 != notShort && a&31+b>>12 <= lookahead {
				t.passes[i] = (a+b)&31 | (a>>5&127+b>>5&127)<<5
			}
		}
	}
}

// enter adds a short code to the table.
func (t *huffman) enter(code int32, length int, symbol uint8, ac bool) {
	rest := lookahead - length
	size, run := int(symbol&15), int(symbol>>4)
	coefficients := run + 1
	if size == 0 && run != 15 {
		coefficients = blockEnds
	}
	for tail := range int32(1) << rest {
		e := int32(symbol)<<8 | int32(length)
		if ac && size > 0 && size <= rest {
			number := extend(tail>>(rest-size), size)
			e = number<<16 | int32(run)<<8 | int32(length+size)
		}
		t.short[code<<rest|tail] = e
		t.passes[code<<rest|tail] = uint16(length<<12 | coefficients<<5 | length + size)
	}
}

// extend returns the number that is coded in size bits (T.81, F.12).
func extend(v int32, size int) int32 {
	if v < 1<<size>>1 {
		return v - 1<<size + 1
	}
	return v
}

// symbol returns the symbol of the next code, given its entry in short, which holds no number. A length
// of 0 means that there is no such code.
func (t *huffman) symbol(e int32, acc uint64) (symbol uint8, length uint) {
	if e != 0 {
		return uint8(e >> 8), uint(e & 255)
	}
	return t.from(lookahead+1, int32(acc>>48))
}

// from finds a code of at least some length at the beginning of the next 16 bits.
func (t *huffman) from(length uint, next int32) (symbol uint8, _ uint) {
	for ; length <= 16; length++ {
		if next < t.end[length] {
			return t.values[(next>>(16-length)+t.offset[length])&255], length
		}
	}
	return 0, 0
}

var (
	errCut  = errors.New("the data ends before the picture does")
	errCode = errors.New("a code that no table has")
)

// readScan reads the blocks down to the end of the region, and makes pixels of the blocks in the region.
func (d *baselineDecoder) readScan(ctx context.Context, h *jpegHeader, planes []plane, wanted region) error {
	width, height := h.unit()
	across, down := (h.width+width-1)/width, (h.height+height-1)/height
	left, right := wanted.left/width, min(across, (wanted.right+width-1)/width)
	top, bottom := wanted.top/height, min(down, (wanted.bottom+height-1)/height)
	d.markers, d.limit = 0, d.end(bottom*across)
	toMarker, next := d.restart, 0 // next is the MCU, counted along the rows, whose codes are next
	place, mark := d.placeFrom(0)
	d.codes = d.codes[:0]
	var failed error
	for y := top; y <= bottom; y++ { // the last time, to the end of the row before
		if err := ended(ctx); err != nil {
			return err
		}
		from, to := y*across+left, y*across+right
		if y == bottom {
			from, to = y*across, y*across
		}
		if y == bottom && d.limit > 0 { // what follows was decoded before
			break
		}
		if known := d.placeBefore(from, next); known >= 0 && failed == nil {
			next = d.places.mcu(known)
			toMarker = d.jump(known, next)
			place, mark = d.placeFrom(next)
		} else if len(d.codes) == 0 {
			d.begin()
		}
		for ; failed == nil && next < to; next++ {
			if next < from && next%across == 0 {
				if err := ended(ctx); err != nil {
					return err
				}
			}
			if next == mark {
				d.remember(place)
				place, mark = d.placeFrom(next + 1)
			}
			if d.restart > 0 && toMarker == 0 {
				if failed = d.resume(); failed != nil {
					break
				}
				toMarker = d.restart
			}
			toMarker--
			if next < from {
				failed = d.skip()
			} else {
				failed = d.mcu(planes, next-y*across, y)
			}
			if failed == nil && d.over() {
				failed = errCut
			}
			if failed != nil {
				break
			}
		}
		for x := max(left, next-y*across); failed != nil && y < bottom && x < right; x++ {
			d.blank(planes, x, y)
		}
	}
	return failed
}

// begin makes codes of the data up to the next marker or to the limit.
func (d *baselineDecoder) begin() {
	for i := range d.n {
		d.scan[i].prediction = 0
	}
	d.acc, d.bits, d.at, d.codes = 0, 0, 0, d.codes[:0]
	d.base, d.cuts = d.pos, d.cuts[:0]
	data := d.data
	if d.limit > 0 {
		data = data[:d.limit]
	}
	for {
		n := bytes.IndexByte(data[d.pos:], 0xff)
		if n < 0 {
			n = len(data) - d.pos
		}
		d.codes = append(d.codes, data[d.pos:d.pos+n]...)
		d.pos += n
		at := d.pos + 1
		for at < len(data) && data[at] == 0xff { // fill bytes
			at++
		}
		if at >= len(data) || data[at] != 0 {
			break
		}
		d.codes = append(d.codes, 0xff)
		d.pos = at + 1
		if d.places.known != nil {
			d.cuts = append(d.cuts, cut{d.pos, d.pos - d.base - len(d.codes)})
		}
	}
	d.codes = append(d.codes, slack[:]...)
}

// slack follows the codes: more than is read between two looks whether they are over, by 63
// coefficients of 31 bits and 63 more bits.
var slack [512]byte

// over reports whether more bits were used than there are.
func (d *baselineDecoder) over() bool {
	return d.at-int(d.bits/8) > len(d.codes)-len(slack)
}

// resume reads on after a restart marker.
func (d *baselineDecoder) resume() error {
	// Some cameras leave bytes before a marker, and fill bytes are allowed there.
	for d.pos+2 < len(d.data) && (d.data[d.pos] != 0xff || d.data[d.pos+1] == 0 || d.data[d.pos+1] == 0xff) {
		d.pos++
	}
	if d.pos+2 > len(d.data) {
		return errCut
	}
	want := byte(0xd0 + d.markers&7)
	if got := d.data[d.pos:]; got[0] != 0xff || got[1] != want {
		return fmt.Errorf("bytes %#02x %#02x where the restart marker 0xff %#02x must be", got[0], got[1], want)
	}
	d.markers++
	d.pos += 2
	d.begin()
	return nil
}

// mcu decodes one MCU.
func (d *baselineDecoder) mcu(planes []plane, x, y int) error {
	for i := range d.n {
		c := &d.scan[i]
		pl, quant := &planes[i], &d.quant[c.quant]
		for v := range c.v {
			for h := range c.h {
				last, err := d.block(c, &d.coefficients)
				if err != nil {
					d.coefficients = [64]int16{}
					return err
				}
				c.paint(&d.coefficients, quant, last == 0, pl, x*c.h+h, y*c.v+v)
			}
		}
	}
	return nil
}

// paint makes the pixels of the block in a column and a row of blocks. It may clear the coefficients,
// of which but the first are 0 if even is set.
func (c *component) paint(coefficients *[64]int16, quant *[64]int32, even bool, pl *plane, column, row int) {
	dst := pl.pix[c.side*(row*pl.stride+column):]
	switch {
	case even:
		flat(dst, pl.stride, c.side, level(int32(coefficients[0])*quant[0], 4, 3))
	case c.side == 8:
		inverse(coefficients, quant, dst, pl.stride)
	case c.side == 4:
		inverseHalf(coefficients, quant, dst, pl.stride)
	default:
		inverseQuarter(coefficients, quant, dst, pl.stride)
	}
}

// blank makes the pixels of an MCU grey.
func (d *baselineDecoder) blank(planes []plane, x, y int) {
	for i := range d.n {
		c := &d.scan[i]
		pl := &planes[i]
		for v := range c.v {
			for h := range c.h {
				flat(pl.pix[c.side*((y*c.v+v)*pl.stride+x*c.h+h):], pl.stride, c.side, 128)
			}
		}
	}
}

func flat(dst []byte, stride, side int, v uint8) {
	all := uint64(v) * 0x0101010101010101
	for y := range side {
		switch row := dst[y*stride:]; side {
		case 8:
			binary.LittleEndian.PutUint64(row, all)
		case 4:
			binary.LittleEndian.PutUint32(row, uint32(all))
		default:
			binary.LittleEndian.PutUint16(row, uint16(all))
		}
	}
}

// refill makes sure that at least 56 bits are there.
func (d *baselineDecoder) refill() { d.acc, d.bits, d.at = refilled(d.codes, d.acc, d.bits, d.at) }

// longest is how many bits a code and its number have at most.
const longest = 16 + 15

func refilled(codes []byte, acc uint64, bits uint, at int) (uint64, uint, int) {
	return acc | binary.BigEndian.Uint64(codes[at:])>>(bits&63), bits | 56, at + int((63-bits)>>3)
}

// dc reads the first coefficient of a block.
func (d *baselineDecoder) dc(c *component) error {
	if d.over() {
		return errCut
	}
	d.refill()
	t := &d.tables[0][c.dc]
	symbol, length := t.symbol(t.short[d.acc>>(64-lookahead)], d.acc)
	size := uint(symbol)
	if length == 0 || size > 15 {
		return errCode
	}
	d.acc <<= length & 63
	if size > 0 {
		c.prediction += numberOf(d.acc, size)
	}
	d.acc <<= size & 63
	d.bits -= length + size
	return nil
}

// numberOf returns the number that the upper bits of acc stand for, 1 … 15 of them.
func numberOf(acc uint64, size uint) int32 {
	negative := int32(^int64(acc) >> 63)
	return int32(acc>>((64-size)&63)) + negative&(1-1<<(size&15))
}

// block reads a block's coefficients into out, all 0 but for the first, at least up to c.last, and returns the
// place of the last one that isn't 0 among them.
func (d *baselineDecoder) block(c *component, out *[64]int16) (last int, err error) {
	if err := d.dc(c); err != nil {
		return 0, err
	}
	t := &d.tables[1][c.ac]
	out[0] = int16(c.prediction)
	codes, acc, bits, at := d.codes, d.acc, d.bits, d.at
	k, most := 1, c.last
	for k <= most {
		if bits < longest {
			acc, bits, at = refilled(codes, acc, bits, at)
		}
		e := t.short[acc>>(64-lookahead)]
		number := e >> 16
		if number != 0 {
			length := uint(e & 255)
			k += int(e >> 8 & 255)
			acc <<= length & 63
			bits -= length
		} else {
			symbol, length := t.symbol(e, acc)
			if length == 0 {
				return 0, errCode
			}
			acc <<= length & 63
			bits -= length
			size := uint(symbol & 15)
			if size == 0 {
				if k += 16; symbol>>4 != 15 {
					k = 64
				}
				continue
			}
			k += int(symbol >> 4)
			number = numberOf(acc, size)
			acc <<= size & 63
			bits -= size
		}
		out[zigzag[k&127]&63] = int16(number)
		last = k
		k++
	}
	d.acc, d.bits, d.at = acc, bits, at
	if k < 64 {
		err = d.pass(t, k)
	}
	return last, err
}

// skip reads the blocks of an MCU, but keeps only what the next blocks need.
func (d *baselineDecoder) skip() error {
	for i := range d.n {
		c := &d.scan[i]
		for range c.h * c.v {
			if err := d.skipBlock(c); err != nil {
				return err
			}
		}
	}
	return nil
}

func (d *baselineDecoder) skipBlock(c *component) error {
	if err := d.dc(c); err != nil {
		return err
	}
	return d.pass(&d.tables[1][c.ac], 1)
}

// pass passes over the coefficients of a block, from coefficient k on.
func (d *baselineDecoder) pass(t *huffman, k int) error {
	codes, acc, bits, at := d.codes, d.acc, d.bits, d.at
	for k < 64 {
		if bits < longest {
			acc, bits, at = refilled(codes, acc, bits, at)
		}
		e := t.passes[acc>>(64-lookahead)]
		n := int(e >> 5 & 127)
		if next := k + n; next < 64 || n >= blockEnds && next < 64+blockEnds {
			acc <<= e & 31
			bits -= uint(e & 31)
			k = next
			continue
		}
		// A long code, or the last that the block has room for.
		symbol, length := t.from(1, int32(acc>>48))
		if length == 0 {
			return errCode
		}
		size := uint(symbol & 15)
		acc <<= (length + size) & 63
		bits -= length + size
		if size == 0 && symbol>>4 != 15 {
			break
		}
		k += int(symbol>>4) + 1
	}
	d.acc, d.bits, d.at = acc, bits, at
	return nil
}

// The cosines of the inverse transform, in 1/8192ths: the algorithm is that of
// Loeffler, Ligtenberg and Moschytz, "Practical fast 1-D DCT algorithms with 11
// multiplications" (ICASSP 1989), with libjpeg's precision, so that the results are
// the same as libjpeg's.
const (
	c0_298 = 2446
	c0_390 = 3196
	c0_541 = 4433
	c0_765 = 6270
	c0_899 = 7373
	c1_175 = 9633
	c1_306 = 10703
	c1_501 = 12299
	c1_847 = 15137
	c1_961 = 16069
	c2_053 = 16819
	c2_562 = 20995
	c3_072 = 25172
)

// inversePlain writes the pixels of a block, given its coefficients, which it clears, and their factors.
func inversePlain(coefficients *[64]int16, quant *[64]int32, dst []byte, stride int) {
	var all [64]int32
	in := &all
	for i, v := range coefficients {
		in[i] = int32(v) * quant[i]
	}
	*coefficients = [64]int16{}
	for x := range 8 {
		c := (*[57]int32)(in[x:])
		if c[8]|c[16]|c[24]|c[32]|c[40]|c[48]|c[56] == 0 {
			v := c[0] << 13 >> 11 // as in the sums of the others, should it overflow
			c[0], c[8], c[16], c[24], c[32], c[40], c[48], c[56] = v, v, v, v, v, v, v, v
			continue
		}
		e0, e1, e2, e3, o0, o1, o2, o3 := halves(c[0], c[8], c[16], c[24], c[32], c[40], c[48], c[56])
		const half = 1 << 10
		c[0], c[56] = (e0+o3+half)>>11, (e0-o3+half)>>11
		c[8], c[48] = (e1+o2+half)>>11, (e1-o2+half)>>11
		c[16], c[40] = (e2+o1+half)>>11, (e2-o1+half)>>11
		c[24], c[32] = (e3+o0+half)>>11, (e3-o0+half)>>11
	}
	for y := range 8 {
		r := (*[8]int32)(in[8*y:])
		e0, e1, e2, e3, o0, o1, o2, o3 := halves(r[0], r[1], r[2], r[3], r[4], r[5], r[6], r[7])
		p := (*[8]byte)(dst[y*stride:])
		const half, shift = 1 << 17, 18
		p[0], p[7] = level(e0+o3, half, shift), level(e0-o3, half, shift)
		p[1], p[6] = level(e1+o2, half, shift), level(e1-o2, half, shift)
		p[2], p[5] = level(e2+o1, half, shift), level(e2-o1, half, shift)
		p[3], p[4] = level(e3+o0, half, shift), level(e3-o0, half, shift)
	}
}

// inverseHalfPlain does what inversePlain does at half the size: it transforms the 4 × 4 lowest frequencies,
// which are those of the block without its finest detail (T.81, A.3.3, for four values instead of eight).
func inverseHalfPlain(coefficients *[64]int16, quant *[64]int32, dst []byte, stride int) {
	var c [16]int32
	for i := range c {
		k := i/4*8 + i%4
		c[i] = int32(coefficients[k]) * quant[k]
	}
	*coefficients = [64]int16{}
	for x := range 4 {
		const half = 1 << 10
		e0, e1, o0, o1 := quarters(c[x], c[4+x], c[8+x], c[12+x])
		c[x], c[4+x], c[8+x], c[12+x] = (e0+o0+half)>>11, (e1+o1+half)>>11, (e1-o1+half)>>11, (e0-o0+half)>>11
	}
	for y := range 4 {
		const half, shift = 1 << 17, 18
		r, p := (*[4]int32)(c[4*y:]), (*[4]byte)(dst[y*stride:])
		e0, e1, o0, o1 := quarters(r[0], r[1], r[2], r[3])
		p[0], p[1], p[2], p[3] = level(e0+o0, half, shift), level(e1+o1, half, shift), level(e1-o1, half, shift), level(e0-o0, half, shift)
	}
}

// quarters returns the even and the odd part of the inverse transform of a line of four.
func quarters(c0, c1, c2, c3 int32) (e0, e1, o0, o1 int32) {
	return (c0 + c2) << 13, (c0 - c2) << 13, c1*c1_306 + c3*c0_541, c1*c0_541 - c3*c1_306
}

// inverseQuarter does what inverseHalfPlain does at a quarter of the size, of the 2 × 2 lowest frequencies.
func inverseQuarter(coefficients *[64]int16, quant *[64]int32, dst []byte, stride int) {
	at := func(k int) int32 { return int32(coefficients[k]) * quant[k] }
	a, b, c, e := at(0), at(1), at(8), at(9)
	*coefficients = [64]int16{}
	dst[0], dst[1] = level(a+b+c+e, 4, 3), level(a-b+c-e, 4, 3)
	dst[stride], dst[stride+1] = level(a+b-c-e, 4, 3), level(a-b-c+e, 4, 3)
}

// halves returns the even and the odd part of the inverse transform of a line.
func halves(c0, c1, c2, c3, c4, c5, c6, c7 int32) (e0, e1, e2, e3, o0, o1, o2, o3 int32) {
	z := (c2 + c6) * c0_541
	a, b := z-c6*c1_847, z+c2*c0_765
	s, t := (c0+c4)<<13, (c0-c4)<<13
	e0, e1, e2, e3 = s+b, t+a, t-a, s-b

	z1, z2, z3, z4 := (c7+c1)*c0_899, (c5+c3)*c2_562, c7+c3, c5+c1
	z5 := (z3 + z4) * c1_175
	z3, z4 = z5-z3*c1_961, z5-z4*c0_390
	o0 = c7*c0_298 - z1 + z3
	o1 = c5*c2_053 - z2 + z4
	o2 = c3*c3_072 - z2 + z3
	o3 = c1*c1_501 - z1 + z4
	return e0, e1, e2, e3, o0, o1, o2, o3
}

// level returns a pixel: v rounded, and shifted to 0 … 255.
func level(v, half int32, shift uint) uint8 {
	v = (v+half)>>shift + 128
	if uint32(v) > 255 {
		v = ^(v >> 31)
	}
	return uint8(v)
}
