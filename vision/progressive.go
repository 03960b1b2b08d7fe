package vision

import (
	"context"
	"errors"
	"fmt"
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
	blocks       []int16 // 64 coefficients of each block, in row order
	across, down int     // blocks that have pixels
	stride       int     // blocks per row, including those that only fill an MCU
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
			n += 2 * cap(d.parts[i].blocks)
		}
	}
	return n
}

// decode decodes a region of a picture to planes, together with the other pixels of the blocks that it
// touches. If ctx ends, it decodes less. damaged is as in baselineDecoder: if the damage can be
// tolerated, decoding continues after it.
func (d *progressiveDecoder) decode(ctx context.Context, data []byte, h *jpegHeader, planes []plane, wanted region, bears bool) (damaged, err error) {
	d.reset()
	d.data, d.sequential = data, !h.progressive
	defer func() { d.data = nil }()
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
			d.layOut(h)
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
func (d *progressiveDecoder) layOut(h *jpegHeader) {
	width, height := h.unit()
	across, down := (h.width+width-1)/width, (h.height+height-1)/height
	for i := range d.n {
		c, p := &d.scan[i], &d.parts[i]
		p.stride = across * c.h
		p.across, p.down = (h.width*c.h+width-1)/width, (h.height*c.v+height-1)/height
		p.begun = false
		for k := range p.exact {
			p.exact[k] = -1
		}
		n := 64 * p.stride * down * c.v
		if cap(p.blocks) < n {
			p.blocks = make([]int16, n)
		}
		p.blocks = p.blocks[:n]
		clear(p.blocks)
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
		if d.sequential {
			if err := d.checkTables(b.components[i]); err != nil {
				return b, err
			}
			c.factors = &unscaled
		}
		if c.dc > 3 || c.ac > 3 || c.quant > 3 {
			return b, fmt.Errorf("component %d has tables %d, %d and %d: must be 0 … 3", i, c.dc, c.ac, c.quant)
		}
		if b.from > 0 && !d.tables[1][c.ac].defined || b.from == 0 && b.first && !d.tables[0][c.dc].defined || !p.begun && !d.defined[c.quant] {
			return b, fmt.Errorf("component %d uses a table that isn't there", i)
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

// unscaled leaves coefficients unchanged.
var unscaled = func() (all [64]int32) {
	for i := range all {
		all[i] = 1
	}
	return all
}()

var errOrder = errors.New("the scans aren't in order")

// readScanOf reads the blocks of a scan.
func (d *progressiveDecoder) readScanOf(ctx context.Context, b *band) error {
	odd := d.known(b)
	d.markers, d.eobRun = 0, 0
	d.begin()
	first := &d.parts[b.components[0]]
	across, down := first.across, first.down
	if b.n > 1 { // interleaved: MCUs
		c := &d.scan[b.components[0]]
		across, down = first.stride/c.h, len(first.blocks)/(64*first.stride*c.v)
	}
	toMarker := d.restart
	for y := range down {
		if err := ended(ctx); err != nil {
			return err
		}
		for x := range across {
			if d.restart > 0 && toMarker == 0 {
				if err := d.resume(); err != nil {
					return err
				}
				toMarker, d.eobRun = d.restart, 0
			}
			toMarker--
			var err error
			if b.n > 1 {
				err = d.readUnit(b, x, y)
			} else {
				err = d.readBlock(b, b.components[0], x, y)
			}
			if err == nil && d.over() {
				err = errCut
			}
			if err != nil {
				return err
			}
		}
	}
	return odd
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

func (d *progressiveDecoder) readBlock(b *band, component, x, y int) error {
	c, p := &d.scan[component], &d.parts[component]
	block := (*[64]int16)(p.blocks[64*(y*p.stride+x):])
	switch {
	case d.sequential:
		_, err := d.block(c)
		for k, v := range &d.coefficients {
			block[k] = int16(v)
		}
		return err
	case b.from > 0 && b.first:
		return d.band(block, &d.tables[1][c.ac], b)
	case b.from > 0:
		return d.refineBand(block, &d.tables[1][c.ac], b)
	case b.first:
		err := d.dc(c)
		block[0] = int16(c.prediction << b.low)
		return err
	}
	block[0] |= int16(d.get(1)) << b.low
	return nil
}

// get reads n bits, at most 16.
func (d *progressiveDecoder) get(n int) int32 {
	if n == 0 {
		return 0
	}
	if d.bits < uint(n) {
		d.refill()
	}
	v := int32(d.acc >> (64 - n))
	d.drop(n)
	return v
}

func (d *progressiveDecoder) drop(n int) {
	d.acc <<= n
	d.bits -= uint(n)
}

// next reads a code of a table for AC: how many zeros come before the next coefficient, and the size of
// the number after the code. If the table entry contains the number as well, it is read too, and isn't 0.
func (d *progressiveDecoder) next(t *huffman) (run, size int, number int32, err error) {
	d.refill()
	e := t.short[d.acc>>(64-lookahead)]
	if number := e >> 16; number != 0 {
		d.drop(int(e & 255))
		return int(e >> 8 & 255), 0, number, nil
	}
	symbol, length := uint8(e>>8), int(e&255)
	if e == 0 {
		if symbol, length = t.long(int32(d.acc >> 48)); length == 0 {
			return 0, 0, 0, errCode
		}
	}
	d.drop(length)
	return int(symbol >> 4), int(symbol & 15), 0, nil
}

// band reads the first bits of a block's coefficients (T.81, G.1.2.2).
func (d *progressiveDecoder) band(block *[64]int16, t *huffman, b *band) error {
	if d.eobRun > 0 {
		d.eobRun--
		return nil
	}
	for k := b.from; k <= b.to; k++ {
		run, size, number, err := d.next(t)
		switch {
		case err != nil:
			return err
		case size == 0 && number == 0 && run < 15:
			d.eobRun = 1<<run - 1 + int(d.get(run))
			return nil
		case size > 0:
			number = extend(d.get(size), size)
		}
		if k += run; number == 0 {
			continue
		}
		block[zigzag[k]] = int16(number << b.low)
	}
	return nil
}

// refineBand reads one more bit of a block's coefficients (T.81, G.1.2.3).
func (d *progressiveDecoder) refineBand(block *[64]int16, t *huffman, b *band) error {
	k := b.from
	for d.eobRun == 0 && k <= b.to {
		run, size, number, err := d.next(t)
		switch {
		case err != nil:
			return err
		case size == 0 && number == 0 && run < 15:
			d.eobRun = 1<<run + int(d.get(run))
			continue
		case size > 0:
			number = extend(d.get(size), size)
		}
		if number < -1 || number > 1 {
			return errCode
		}
		if k = d.refine(block, k, b, run); number == 0 {
			k++
			continue
		}
		block[zigzag[k]] = int16(number << b.low)
		k++
	}
	if d.eobRun > 0 {
		d.refine(block, k, b, 64)
		d.eobRun--
	}
	return nil
}

// refine reads one bit for each coefficient from place k on that isn't 0. It returns the place of the
// first coefficient that is 0 after run others that are 0.
func (d *progressiveDecoder) refine(block *[64]int16, k int, b *band, run int) int {
	for ; k <= b.to; k++ {
		c := &block[zigzag[k]]
		if *c == 0 {
			if run == 0 {
				return k
			}
			run--
			continue
		}
		if bit := int16(1) << b.low; d.get(1) != 0 && *c&bit == 0 {
			if *c < 0 {
				bit = -bit
			}
			*c += bit
		}
	}
	return k
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
				block := (*[64]int16)(p.blocks[64*(y*p.stride+x):])
				ac := int16(0)
				for k, v := range block {
					d.coefficients[k] = int32(v) * p.quant[k]
					if k > 0 {
						ac |= v
					}
				}
				if dst := pl.pix[8*y*pl.stride+8*x:]; ac == 0 {
					flat(dst, pl.stride, level(d.coefficients[0], 4, 3))
				} else {
					inverse(&d.coefficients, dst, pl.stride)
				}
			}
		}
	}
}
