package nwt

// If a dataset has ragged fields and no Sizes, each sample is padded with zeros to the
// longest allowed. Most of a batch may be padding, so the stage copies only the used
// part of a sample, which is the first part of its place, and so much of the padding as
// may not be zero on the device: what batches before it have left there. For that it
// remembers, per device buffer, how much of each place may not be zero.
//
// After a copy, each sample on the device is equal to that on the host, padding
// included. It takes for granted that the host's padding is zero and that nobody but
// the stage writes to the device's.

// leastGap is the least number of bytes between two parts of a batch that it is worth
// to leave out. To begin another copy takes the driver and the device 2 to 3 µs; 64 KiB
// pass a bus of 25 GB/s in the same time.
const leastGap = 64 << 10

// findPadded counts the fields whose padding needn't be copied again. There are none if
// a function of WithFinish may have written to the padding, or if places differ from
// batch to batch.
func (s *stage) findPadded() {
	l := s.l
	if l.ownShapes() || l.opts.finish != nil {
		return
	}
	for f := range l.layout.columns {
		if s.isPadded(&l.layout.columns[f]) {
			s.padded++
		}
	}
	if s.padded > 0 {
		// Fields and samples can't make more parts than this, nor can gaps.
		s.parts = make([]Copy, 0, min(len(l.layout.columns)+s.padded*l.opts.batchSize, 1+l.slotBytes/l.opts.leastGap))
	}
}

// isPadded tells whether a field's padding needn't be copied again. Leaving out that of
// samples which are all smaller than the least gap can't pay.
func (s *stage) isPadded(c *column) bool { return c.free > 0 && c.size >= s.l.opts.leastGap }

// addUsed adds the parts to copy of a batch, and returns their size.
func (s *stage) addUsed(b *Batch) (size int) {
	d := b.device
	if d.session != s.sessions { // new memory, or copies that may have failed
		s.forget(d)
	}
	before := d.used
	for f := range b.columns {
		c, offset := &b.columns[f], b.offsets[f]
		if !s.isPadded(c) {
			s.addPart(b, offset, offset+c.size*b.size)
			continue
		}
		row := c.size / c.dims[0]
		for i, n := range b.lensOf(c.ragged)[:b.size] {
			used := int(n) * row
			s.addPart(b, offset, offset+max(used, before[i]))
			before[i] = used
			offset += c.size
		}
		before = before[s.l.opts.batchSize:]
	}
	for _, p := range s.parts {
		size += len(p.Src)
	}
	return size
}

// addPart adds bytes from … to−1 of the batch to the parts, which come in ascending
// order.
func (s *stage) addPart(b *Batch, from, to int) {
	if from == to {
		return
	}
	if n := len(s.parts); n > 0 {
		last := &s.parts[n-1]
		if begins := int(last.Dst - b.device.ptr); from-begins-len(last.Src) < s.l.opts.leastGap {
			last.Src = b.mem[begins:to]
			return
		}
	}
	s.parts = append(s.parts, Copy{b.device.ptr + uintptr(from), b.mem[from:to]})
}

// forget notes that anything may lie in a buffer.
func (s *stage) forget(d *deviceBuffer) {
	d.session = s.sessions
	used := d.used
	for f := range s.l.layout.columns {
		if c := &s.l.layout.columns[f]; s.isPadded(c) {
			for i := range s.l.opts.batchSize {
				used[i] = c.size
			}
			used = used[s.l.opts.batchSize:]
		}
	}
}
