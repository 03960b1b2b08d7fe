package vision

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"slices"
)

// A progressiveDecoder decodes progressive JPEG files (ITU-T T.81, annex G), and
// baseline files of several scans. Like baselineDecoder, whose tables and bits it uses, it
// keeps its memory from one picture to the next.
type progressiveDecoder struct {
	baselineDecoder

	sequential bool // the file is baseline
	parts      [4]spectrum
	// eobRun is how many blocks of the scan's band, after the one just read, have nothing new.
	eobRun int
}

// A spectrum holds what the scans so far contain of a component.
type spectrum struct {
	blocks       [][64]int16 // the coefficients of each block, in row order
	nonzero      []uint64    // by block: at which places in a scan there are some
	across, down int         // blocks that have pixels; of the rows, those that are wanted
	stride       int         // blocks per row, including those that only fill an MCU
	quant        [64]int32
	begun        bool     // quant is set, by the component's first scan
	exact        [64]int8 // by place in a scan: the lowest bit that is known; −1: none
}

// A band describes what one scan contains: coefficients from … to of the components, down to the bit low.
type band struct {
	components [4]int
	n          int
	from, to   int
	high, low  int  // the lowest bit before this scan, 0 if there was none, and after it
	first      bool // high is 0
}

// bytes returns the memory that the decoder keeps.
func (d *progressiveDecoder) bytes() (n int) {
	if d != nil {
		n = cap(d.codes)
		for i := range d.parts {
			n += 136 * cap(d.parts[i].blocks)
		}
	}
	return n
}

// decode decodes a region of a picture to planes, together with the other pixels of the blocks that it
// touches. Of each scan it reads the rows down to the region's end. If ctx ends, it decodes less. damaged
// is as in baselineDecoder: if the damage can be tolerated, decoding continues after it.
func (d *progressiveDecoder) decode(ctx context.Context, data []byte, h *jpegHeader, planes []plane, wanted region, bears bool) (damaged, err error) {
	d.reset()
	d.data, d.sequential = data, !h.progressive
	defer func() { d.data, d.given = nil, [2][4][]byte{} }()
	scans := 0
	for s := (segments{ctx: ctx, data: data, at: 2}); ; {
		marker, segment, err := s.next()
		if err != nil {
			if scans == 0 {
				return nil, err
			}
			if marker != 0xd9 && damaged == nil {
				damaged = errCut
			}
			break
		}
		switch marker {
		case 0xc0, 0xc1, 0xc2:
			if d.n > 0 {
				err = errors.New("two frame headers")
				break
			}
			d.frame(h, segment)
			d.layOut(h, wanted)
		case 0xda:
			scans++
			var b band
			if b, err = d.readBand(segment); err != nil {
				break
			}
			d.pos = s.at
			if failed := d.readScanOf(ctx, &b); failed != nil && damaged == nil {
				damaged = failed
			}
			if damaged != nil && !bears || ctx.Err() != nil {
				return damaged, nil
			}
			s.at = d.pos
		default:
			err = d.readTable(marker, segment)
		}
		if err != nil {
			if scans == 0 {
				return nil, err
			}
			if damaged == nil {
				damaged = err
			}
			break
		}
	}
	d.paint(ctx, h, planes, wanted)
	return damaged, nil
}

// layOut allocates the coefficients.
func (d *progressiveDecoder) layOut(h *jpegHeader, wanted region) {
	width, height := h.unit()
	across, down := (h.width+width-1)/width, (min(wanted.bottom, h.height)+height-1)/height
	for i := range d.n {
		c, p := &d.scan[i], &d.parts[i]
		p.stride = across * c.h
		p.across, p.down = (h.width*c.h+width-1)/width, min(down*c.v, (h.height*c.v+height-1)/height)
		p.begun = false
		for k := range p.exact {
			p.exact[k] = -1
		}
		n := p.stride * down * c.v
		if cap(p.blocks) < n {
			p.blocks, p.nonzero = make([][64]int16, n), make([]uint64, n)
		}
		p.blocks, p.nonzero = p.blocks[:n], p.nonzero[:n]
		clear(p.blocks)
		clear(p.nonzero)
	}
}

// readBand reads the header of a scan.
func (d *progressiveDecoder) readBand(segment []byte) (b band, err error) {
	if len(segment) < 1 || segment[0] < 1 || int(segment[0]) > d.n || len(segment) < 4+2*int(segment[0]) {
		return b, errors.New("a scan's header is damaged")
	}
	b.n = int(segment[0])
	end := segment[1+2*b.n:]
	b.from, b.to, b.low, b.high = int(end[0]), int(end[1]), int(end[2]&15), int(end[2]>>4)
	if d.sequential {
		b.from, b.to, b.low, b.high = 0, 63, 0, 0
	}
	b.first = b.high == 0
	if !d.sequential && (b.to > 63 || b.from > b.to || b.from == 0 && b.to > 0 || b.from > 0 && b.n > 1 || b.low > 13 || !b.first && b.high != b.low+1) {
		return b, fmt.Errorf("a scan of coefficients %d … %d, bits %d … %d: can't be", b.from, b.to, b.high, b.low)
	}
	for i := range b.n {
		s, found := segment[1+2*i:], false
		for k := range d.n {
			if c := &d.scan[k]; !found && c.id == s[0] {
				b.components[i], found = k, !slices.Contains(b.components[:i], k)
				c.dc, c.ac = s[1]>>4, s[1]&15
			}
		}
		if !found {
			return b, errors.New("a scan of a component that isn't there")
		}
		c, p := &d.scan[b.components[i]], &d.parts[b.components[i]]
		switch {
		case d.sequential:
			err = d.checkTables(b.components[i])
			c.last = 63
		case b.from > 0:
			err = d.use(1, c.ac)
		case b.first:
			err = d.use(0, c.dc)
		}
		if err == nil && !p.begun && (c.quant > 3 || !d.defined[c.quant]) {
			err = fmt.Errorf("component %d uses quantization table %d, which isn't there", i, c.quant)
		}
		if err != nil {
			return b, err
		}
		if !p.begun {
			p.quant, p.begun = d.quant[c.quant], true
		}
	}
	return b, nil
}

// known records which bits a scan contains. If these aren't the next bits, it returns an error, after
// which decoding can continue.
func (d *progressiveDecoder) known(b *band) (err error) {
	for _, i := range b.components[:b.n] {
		p := &d.parts[i]
		if b.from > 0 && p.exact[0] < 0 {
			err = errOrder
		}
		for k := b.from; k <= b.to; k++ {
			if b.high != int(max(p.exact[k], 0)) {
				err = errOrder
			}
			p.exact[k] = int8(b.low)
		}
	}
	if d.sequential {
		return nil
	}
	return err
}

var errOrder = errors.New("the scans aren't in order")

// readScanOf reads the blocks of a scan, down to the last row that is wanted.
func (d *progressiveDecoder) readScanOf(ctx context.Context, b *band) error {
	odd := d.known(b)
	d.markers, d.eobRun = 0, 0
	d.begin()
	first := &d.parts[b.components[0]]
	across, down := first.across, first.down
	if b.n > 1 { // interleaved: MCUs
		c := &d.scan[b.components[0]]
		across, down = first.stride/c.h, len(first.blocks)/(first.stride*c.v)
	}
	toMarker := d.restart
	for y := range down {
		if err := ended(ctx); err != nil {
			return err
		}
		for x := 0; x < across; {
			if d.restart > 0 && toMarker == 0 {
				if err := d.resume(); err != nil {
					return err
				}
				toMarker, d.eobRun = d.restart, 0
			}
			n := across - x
			if d.restart > 0 {
				n = min(n, toMarker)
			}
			if err := d.readRow(b, x, y, n); err != nil {
				return err
			}
			x, toMarker = x+n, toMarker-n
		}
	}
	return odd
}

// readRow reads n MCUs, or blocks of one component, beside each other.
func (d *progressiveDecoder) readRow(b *band, x, y, n int) (err error) {
	if b.from > 0 {
		p, t := &d.parts[b.components[0]], &d.tables[1][d.scan[b.components[0]].ac]
		from := y*p.stride + x
		if b.first {
			err = d.readFirst(b, t, p.blocks[from:from+n], p.nonzero[from:])
		} else {
			err = d.refine(b, t, p.blocks[from:from+n], p.nonzero[from:])
		}
	} else if b.n == 1 {
		for i := x; i < x+n && err == nil; i++ {
			err = d.readBlock(b, b.components[0], i, y)
		}
	} else {
		for i := x; i < x+n && err == nil; i++ {
			err = d.readUnit(b, i, y)
		}
	}
	if err == nil && d.over() {
		err = errCut
	}
	return err
}

// readUnit reads an MCU.
func (d *progressiveDecoder) readUnit(b *band, x, y int) error {
	for _, i := range b.components[:b.n] {
		c := &d.scan[i]
		for v := range c.v {
			for h := range c.h {
				if err := d.readBlock(b, i, x*c.h+h, y*c.v+v); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// readBlock reads a bit, or all bits, of a block's first coefficient, and in a baseline file the others.
func (d *progressiveDecoder) readBlock(b *band, component, x, y int) error {
	c, p := &d.scan[component], &d.parts[component]
	at := y*p.stride + x
	block := &p.blocks[at]
	switch {
	case d.sequential:
		*block = [64]int16{} // an earlier scan may have had it
		last, err := d.block(c, block)
		if last > 0 {
			p.nonzero[at] = ^uint64(0)
		}
		return err
	case b.first:
		err := d.dc(c)
		block[0] = int16(c.prediction << b.low)
		return err
	case d.over():
		return errCut
	}
	d.refill()
	block[0] |= int16(d.acc>>63) << b.low
	d.acc <<= 1
	d.bits--
	return nil
}

// readFirst reads the first bits of the coefficients of blocks beside each other (T.81, G.1.2.2).
func (d *progressiveDecoder) readFirst(b *band, t *huffman, blocks [][64]int16, nonzero []uint64) error {
	codes, acc, bits, at := d.codes, d.acc, d.bits, d.at
	for i := 0; i < len(blocks); i++ {
		if d.eobRun > 0 {
			n := min(d.eobRun, len(blocks)-i)
			d.eobRun -= n
			i += n - 1
			continue
		}
		if at-int(bits/8) > len(codes)-len(slack) {
			return errCut
		}
		block := &blocks[i]
		for k := b.from; k <= b.to; k++ {
			acc, bits, at = refilled(codes, acc, bits, at)
			e := t.short[acc>>(64-lookahead)]
			number := e >> 16
			if number != 0 {
				k += int(e >> 8 & 255)
				acc <<= uint(e) & 63
				bits -= uint(e & 255)
			} else {
				symbol, length := t.symbol(e, acc)
				if length == 0 {
					return errCode
				}
				acc <<= length & 63
				run, size := uint(symbol>>4), uint(symbol&15)
				if size == 0 && run < 15 {
					d.eobRun = 1<<run - 1 + int(acc>>1>>(63-run))
					acc <<= run
					bits -= length + run
					break
				}
				k += int(run)
				bits -= length + size
				if size == 0 {
					continue
				}
				number = numberOf(acc, size)
				acc <<= size & 63
			}
			k &= 127
			block[zigzag[k]&63] = int16(number << b.low)
			nonzero[i] |= 1 << min(k, 63)
		}
	}
	d.acc, d.bits, d.at = acc, bits, at
	return nil
}

// refine reads one more bit of the coefficients of blocks beside each other (T.81, G.1.2.3).
func (d *progressiveDecoder) refine(b *band, t *huffman, blocks [][64]int16, nonzero []uint64) error {
	codes, acc, left, at := d.codes, d.acc, d.bits, d.at
	bit := int16(1) << b.low
	for i := range blocks {
		block, known := &blocks[i], nonzero[i]
		places := ^uint64(0) << b.from & (^uint64(0) >> (63 - b.to)) // those that are still to be read
		if at-int(left/8) > len(codes)-len(slack) {
			return errCut
		}
		for places != 0 {
			// Up to place k there are one bit for each coefficient that isn't 0, and then a new one.
			k, number := 64, int32(0)
			if d.eobRun == 0 {
				acc, left, at = refilled(codes, acc, left, at)
				e := t.short[acc>>(64-lookahead)]
				run := uint(e >> 8 & 255)
				if number = e >> 16; number != 0 {
					acc <<= uint(e) & 63
					left -= uint(e & 255)
				} else {
					symbol, length := t.symbol(e, acc)
					if length == 0 {
						return errCode
					}
					acc <<= length & 63
					left -= length
					if run = uint(symbol >> 4); symbol&15 != 0 {
						number = numberOf(acc, uint(symbol&15))
						acc <<= 1
						left--
					} else if run < 15 {
						d.eobRun = 1<<run + int(acc>>1>>(63-run))
						acc <<= run
						left -= run
					}
				}
				if number < -1 || number > 1 {
					return errCode
				}
				if d.eobRun == 0 {
					zeros := places &^ known
					for ; run > 0; run-- {
						zeros &= zeros - 1
					}
					k = bits.TrailingZeros64(zeros)
				}
			}
			for more := places & known & (1<<k - 1); more != 0; more &= more - 1 {
				if left == 0 {
					acc, left, at = refilled(codes, acc, left, at)
				}
				c := &block[zigzag[bits.TrailingZeros64(more)]&63]
				sign := *c >> 15
				*c += (bit ^ sign - sign) & -int16(acc>>63) & (*c>>b.low&1 - 1)
				acc <<= 1
				left--
			}
			places &= ^uint64(1) << k
			if number != 0 {
				block[zigzag[k]&63] = int16(number << b.low)
				nonzero[i] |= 1 << min(k, 63)
			}
		}
		if d.eobRun > 0 {
			d.eobRun--
		}
	}
	d.acc, d.bits, d.at = acc, left, at
	return nil
}

// paint makes the pixels from the coefficients.
func (d *progressiveDecoder) paint(ctx context.Context, h *jpegHeader, planes []plane, wanted region) {
	width, height := h.unit()
	left, right := wanted.left/width, (min(wanted.right, h.width)+width-1)/width
	top, bottom := wanted.top/height, (min(wanted.bottom, h.height)+height-1)/height
	for i := range d.n {
		c, p, pl := &d.scan[i], &d.parts[i], &planes[i]
		for y := top * c.v; y < bottom*c.v && ctx.Err() == nil; y++ {
			for x := left * c.h; x < right*c.h; x++ {
				at := y*p.stride + x
				c.paint(&p.blocks[at], &p.quant, p.nonzero[at]&^1 == 0, pl, x, y)
			}
		}
	}
}
