package layout

import (
	"encoding/binary"
	"errors"
	"unsafe"
)

// A packed sample is the lengths of its ragged dimensions, as int32, followed by its columns one after
// the other. Of a ragged column it contains only what the sample fills.

// Packed returns the size of the longest packed sample, in bytes.
func (l *Layout) Packed() int { return l.Ragged*4 + l.Size }

// Shortest returns the size of a packed sample whose ragged columns are empty, without their lengths.
func (l *Layout) Shortest() (size int) {
	for _, c := range l.Columns {
		if c.Free == 0 {
			size += c.Full
		}
	}
	return size
}

// PackedSize returns the size of a packed sample, in bytes.
func (m *Memory) PackedSize(place int) int {
	size := m.Ragged * 4
	for i := range m.Columns {
		n, length := m.runs(&m.Columns[i], place)
		size += n * length
	}
	return size
}

// Pack writes PackedSize bytes to dst.
func (m *Memory) Pack(place int, dst []byte) {
	m.pieces(place, func(piece []byte) { dst = dst[copy(dst, piece):] })
}

// Sum adds a packed sample to a checksum, piece by piece.
func (m *Memory) Sum(place int, add func(sum uint32, piece []byte) uint32) (sum uint32) {
	m.pieces(place, func(piece []byte) { sum = add(sum, piece) })
	return sum
}

// pieces calls f for the pieces of a packed sample, in order.
func (m *Memory) pieces(place int, f func(piece []byte)) {
	for i := range m.Columns {
		c := &m.Columns[i]
		for d := range c.Free {
			f(unsafe.Slice((*byte)(unsafe.Pointer(m.Len(c, d, place))), 4)) // the slice avoids an allocation, which a copy would need
		}
	}
	for i := range m.Columns {
		c, mem := &m.Columns[i], m.Places(i, place, 1)
		n, length := m.runs(c, place)
		for k := range n {
			f(mem[m.runAt(c, k, place):][:length])
		}
	}
}

// ErrNotPacked is the error of bytes that aren't a packed sample of a layout.
var ErrNotPacked = errors.New("it is no sample of these fields")

// Unpack reads a sample from src and returns the bytes that follow it. The error is ErrNotPacked, or a
// TooLongError if the sample is larger than the size that the dataset gave.
func (m *Memory) Unpack(place int, src []byte) (rest []byte, err error) {
	for i := range m.Columns {
		c := &m.Columns[i]
		for d := range c.Free {
			if len(src) < 4 {
				return nil, ErrNotPacked
			}
			n := binary.NativeEndian.Uint32(src)
			if uint64(n) > uint64(m.Layout.Columns[i].Dims[d]) {
				return nil, ErrNotPacked
			}
			if longest := m.LongestOf(c, d, place); int(n) > longest {
				return nil, TooLongError{c.Name, int(n), longest}
			}
			*m.Len(c, d, place) = int32(n)
			src = src[4:]
		}
	}
	for i := range m.Columns {
		c, mem := &m.Columns[i], m.Places(i, place, 1)
		n, length := m.runs(c, place)
		if len(src) < n*length {
			return nil, ErrNotPacked
		}
		for k := range n {
			src = src[copy(mem[m.runAt(c, k, place):][:length], src):]
		}
	}
	return src, nil
}
