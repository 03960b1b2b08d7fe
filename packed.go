package nwt

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"github.com/nwt-go/nwt/internal/samplefile"
)

// A packed sample is the lengths of its ragged dimensions, as int32, followed by its
// fields one after the other. Of a ragged field it has only what the sample fills.

// packed is the bytes of the longest packed sample.
func (l *layout) packed() int { return l.ragged*4 + l.bytes }

func (s *Sample) packedSize() int {
	size := s.layout.ragged * 4
	for f := range s.columns {
		n, length := s.runs(&s.columns[f])
		size += n * length
	}
	return size
}

// pack writes packedSize bytes to dst.
func (s *Sample) pack(dst []byte) {
	for f := range s.columns {
		c := &s.columns[f]
		for d := range c.free {
			binary.NativeEndian.PutUint32(dst, uint32(*s.lenOf(c, d)))
			dst = dst[4:]
		}
	}
	for f := range s.columns {
		c, mem := &s.columns[f], s.Bytes(f)
		n, length := s.runs(c)
		for k := range n {
			dst = dst[copy(dst, mem[s.runAt(c, k):][:length]):]
		}
	}
}

// packedSum is the CRC-32C of the sample as it would be packed.
func (s *Sample) packedSum() (sum uint32) {
	for f := range s.columns {
		c := &s.columns[f]
		for d := range c.free {
			// A view of the length as bytes: a copy would be allocated.
			n := unsafe.Slice((*byte)(unsafe.Pointer(s.lenOf(c, d))), 4)
			sum = samplefile.Sum(sum, n)
		}
	}
	for f := range s.columns {
		c, mem := &s.columns[f], s.Bytes(f)
		n, length := s.runs(c)
		for k := range n {
			sum = samplefile.Sum(sum, mem[s.runAt(c, k):][:length])
		}
	}
	return sum
}

// errNotPacked is the error of bytes that aren't a packed sample of a layout.
var errNotPacked = errors.New("it is no sample of these fields")

// unpack reads the sample from src and returns what follows it there. Any error but
// errNotPacked says that the sample is larger than the dataset told.
func (s *Sample) unpack(src []byte) (rest []byte, err error) {
	for f := range s.columns {
		c := &s.columns[f]
		for d := range c.free {
			if len(src) < 4 {
				return nil, errNotPacked
			}
			n := binary.NativeEndian.Uint32(src)
			if uint64(n) > uint64(s.layout.columns[f].dims[d]) {
				return nil, errNotPacked
			}
			if longest := s.longest(c, d); int(n) > longest {
				return nil, fmt.Errorf("nwt: length %d of field %q is more than the %d that Sizes told for sample %d", n, c.name, longest, s.index)
			}
			*s.lenOf(c, d) = int32(n)
			src = src[4:]
		}
	}
	for f := range s.columns {
		c, mem := &s.columns[f], s.Bytes(f)
		n, length := s.runs(c)
		if len(src) < n*length {
			return nil, errNotPacked
		}
		for k := range n {
			src = src[copy(mem[s.runAt(c, k):][:length], src):]
		}
	}
	return src, nil
}
