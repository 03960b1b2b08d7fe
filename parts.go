package nwt

// If a dataset has ragged fields and no Sizes, each sample is padded with zeros to the
// longest allowed. Most of a batch may be padding. If the device can clear memory, the
// stage copies only the used part of a sample, which is the first part of its place, and
// has the rest cleared on the device.
//
// Every byte of a batch is copied or cleared, so it doesn't matter what the training
// program has left in the device's memory. It does matter that the host's padding is
// zero.

// leastGap is how many bytes between two parts of a batch are worth leaving out: fewer are
// copied too, since the next part then needs no copy of its own. The driver and the device
// take 2 to 3 µs to begin a copy; 64 KiB pass a bus of 25 GB/s in the same time.
const leastGap = 64 << 10

// findPadded notes whether there are fields whose padding needn't be copied. There are
// none if a function of WithFinish may have written to the padding, or if places differ
// from batch to batch.
func (s *stage) findPadded() {
	l := s.l
	if l.ownShapes() || l.opts.finish != nil {
		return
	}
	padded := 0
	for f := range l.layout.columns {
		if s.isPadded(&l.layout.columns[f]) {
			padded++
		}
	}
	if s.padded = padded > 0; s.padded {
		// At most one part per field or padded sample, and as many gaps. Nor can there be
		// more gaps than fit into a slot, each of leastGap bytes.
		n := min(len(l.layout.columns)+padded*l.opts.batchSize, 1+l.slotBytes/l.opts.leastGap)
		s.parts = make([]Copy, 0, n)
		s.gaps = make([]Region, 0, n)
	}
}

// isPadded tells whether a field's padding needn't be copied. If a sample's place is
// smaller than leastGap, so is its padding: leaving it out can't pay.
func (s *stage) isPadded(c *column) bool { return c.free > 0 && c.size >= s.l.opts.leastGap }

// split finds what to copy of a batch and which gaps to clear, and returns the size of
// the copies.
func (s *stage) split(b *Batch) (size int) {
	s.gaps = s.gaps[:0]
	end := 0 // of the field
	for f := range b.columns {
		c, offset := &b.columns[f], b.offsets[f]
		end = offset + c.size*b.size
		if !s.isPadded(c) {
			s.addPart(b, offset, end)
			continue
		}
		row := c.size / c.dims[0]
		for _, n := range b.lensOf(c.ragged)[:b.size] {
			if n > 0 {
				s.addPart(b, offset, offset+int(n)*row)
			}
			offset += c.size
		}
	}
	s.addPart(b, end, end) // for the gap before it
	for _, p := range s.parts {
		size += len(p.Src)
	}
	return size
}

// addPart adds bytes from … to−1 of the batch, which come in ascending order. The gap
// before them is to be cleared, or copied if it is small.
func (s *stage) addPart(b *Batch, from, to int) {
	n, begins, ends := len(s.parts), 0, 0
	if n > 0 {
		last := &s.parts[n-1]
		begins = int(last.Dst - b.device.ptr)
		ends = begins + len(last.Src)
	}
	switch gap := from - ends; {
	case gap >= s.l.opts.leastGap:
		s.gaps = append(s.gaps, Region{b.device.ptr + uintptr(ends), gap})
		if from < to {
			s.parts = append(s.parts, Copy{b.device.ptr + uintptr(from), b.mem[from:to]})
		}
	case n > 0:
		s.parts[n-1].Src = b.mem[begins:to]
	default:
		s.parts = append(s.parts, Copy{b.device.ptr, b.mem[:to]})
	}
}
