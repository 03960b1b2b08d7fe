package nwt

import "encoding/binary"

// A packed sample is the lengths of its ragged fields, as int32, followed by its
// fields one after the other. A ragged field takes only its length.

// packed is the bytes of the longest packed sample.
func (l *layout) packed() int { return l.ragged*4 + l.bytes }

// filled is the bytes of a field that the sample has set.
func (s *Sample) filled(c *column) int {
	if c.ragged < 0 {
		return c.size
	}
	return int(*s.lenOf(c)) * c.row
}

func (s *Sample) packedSize() int {
	size := s.layout.ragged * 4
	for f := range s.layout.columns {
		size += s.filled(&s.layout.columns[f])
	}
	return size
}

// pack writes packedSize bytes to dst.
func (s *Sample) pack(dst []byte) {
	for f := range s.layout.columns {
		if c := &s.layout.columns[f]; c.ragged >= 0 {
			binary.NativeEndian.PutUint32(dst, uint32(*s.lenOf(c)))
			dst = dst[4:]
		}
	}
	for f := range s.layout.columns {
		dst = dst[copy(dst, s.Bytes(f)[:s.filled(&s.layout.columns[f])]):]
	}
}

// unpack reads the sample from src and returns what follows it there. ok is false if
// src isn't a packed sample of this layout.
func (s *Sample) unpack(src []byte) (rest []byte, ok bool) {
	for f := range s.layout.columns {
		c := &s.layout.columns[f]
		if c.ragged < 0 {
			continue
		}
		if len(src) < 4 {
			return nil, false
		}
		n := binary.NativeEndian.Uint32(src)
		if uint64(n) > uint64(c.rows) {
			return nil, false
		}
		*s.lenOf(c) = int32(n)
		src = src[4:]
	}
	for f := range s.layout.columns {
		n := s.filled(&s.layout.columns[f])
		if len(src) < n {
			return nil, false
		}
		copy(s.Bytes(f), src[:n])
		src = src[n:]
	}
	return src, true
}
