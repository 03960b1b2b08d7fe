package nwt

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"unicode/utf8"
	"unsafe"

	"github.com/nwt-go/nwt/internal/permute"
)

// A file of precomputed samples, whose numbers are little-endian:
//
//	 0  8 bytes   fileMagic
//	 8  uint32    fileFormat
//	12  uint32    j, the bytes of the description
//	16  uint64    the bytes of the file
//	24  uint32    CRC-32C of what is before and what follows up to the index
//	28  j bytes   the description: a fileHeader as JSON; then 0 up to a multiple of 8
//	    uint64    where sample 0 begins
//	    …         for each sample
//	    uint64    where the last sample ends
//	    samples   each: its checksum as uint32, and the sample, packed
//
// A sample ends where the next one begins. A sample that was left out has only its
// checksum. The packed samples are in the byte order of the machine that wrote them,
// which the description tells. Checksums depend on the description: if another file's
// sample is written over this file, it isn't taken for a sample of this file.
const (
	fileMagic   = "\x89nwt\r\n\x1a\n" // as PNG's: mangled by whatever takes it for text
	fileFormat  = 2
	headerBytes = 28
	sumBytes    = 4
	maxDescribe = 16 << 20
)

// fileHeader is what the samples of a file depend on.
type fileHeader struct {
	Version   string
	ByteOrder string // nativeOrder
	Samples   int
	Fields    []Field
}

// nativeOrder names this machine's byte order.
func nativeOrder() string {
	if binary.NativeEndian.Uint16([]byte{1, 0}) == 1 {
		return "little-endian"
	}
	return "big-endian"
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// descriptionKey is the part of the checksums that depends on the description.
func descriptionKey(description []byte) uint64 {
	sum := sha256.Sum256(description)
	return binary.LittleEndian.Uint64(sum[:])
}

// checksum is the checksum of a sample whose packed bytes have the CRC-32C sum. It
// differs if the same bytes are in another sample's place or another file.
func (p *Precomputed) checksum(index int, sum uint32) uint32 {
	return sum ^ uint32(permute.Mix64(p.key+uint64(index)*permute.Golden))
}

// packedSum is the CRC-32C of the sample as it would be packed.
func (s *Sample) packedSum() (sum uint32) {
	for f := range s.columns {
		c := &s.columns[f]
		for d := range c.free {
			// A view of the length as bytes: a copy would be allocated.
			n := unsafe.Slice((*byte)(unsafe.Pointer(s.lenOf(c, d))), 4)
			sum = crc32.Update(sum, castagnoli, n)
		}
	}
	for f := range s.columns {
		c, mem := &s.columns[f], s.Bytes(f)
		n, length := s.runs(c)
		for k := range n {
			sum = crc32.Update(sum, castagnoli, mem[s.runAt(c, k):][:length])
		}
	}
	return sum
}

func (h *fileHeader) describe() ([]byte, error) {
	if !utf8.ValidString(h.Version) {
		return nil, optionError("Precompute", h.Version, "the version must be valid UTF-8")
	}
	description, err := json.Marshal(h)
	if err == nil && len(description) > maxDescribe {
		err = optionError("Precompute", h.Version[:min(len(h.Version), 40)], "version and fields take %d bytes to describe: must be at most %d", len(description), maxDescribe)
	}
	return description, err
}

// difference is the first difference between what a file was made for, h, and what
// is wanted.
func (h *fileHeader) difference(want *fileHeader) string {
	switch {
	case h.Version != want.Version:
		return fmt.Sprintf("version %q, not %q", h.Version, want.Version)
	case h.Samples != want.Samples:
		return fmt.Sprintf("%d samples, not %d", h.Samples, want.Samples)
	case h.ByteOrder != want.ByteOrder:
		return fmt.Sprintf("the byte order %s, not %s", h.ByteOrder, want.ByteOrder)
	}
	return difference(want.Fields, h.Fields)
}

// encodeHeader is what a file of size bytes begins with.
func encodeHeader(description []byte, size int64) []byte {
	b := make([]byte, indexOffset(len(description)))
	copy(b, fileMagic)
	binary.LittleEndian.PutUint32(b[8:], fileFormat)
	binary.LittleEndian.PutUint32(b[12:], uint32(len(description)))
	binary.LittleEndian.PutUint64(b[16:], uint64(size))
	copy(b[headerBytes:], description)
	binary.LittleEndian.PutUint32(b[24:], headerSum(b))
	return b
}

func headerSum(header []byte) uint32 {
	return crc32.Update(crc32.Checksum(header[:24], castagnoli), castagnoli, header[headerBytes:])
}

// indexOffset is where the index begins after a description of n bytes.
func indexOffset(n int) int64 { return int64(headerBytes+n+7) &^ 7 }

// readHeader reads the description from a file of size bytes.
func readHeader(r io.ReaderAt, size int64) (description []byte, err error) {
	b := make([]byte, headerBytes)
	n, err := r.ReadAt(b, 0)
	if err != nil && err != io.EOF {
		return nil, err
	}
	if !bytes.HasPrefix(b[:n], []byte(fileMagic)) {
		return nil, fmt.Errorf("%w: it begins with %q", errForeign, b[:min(n, len(fileMagic))])
	}
	if n < headerBytes {
		return nil, fmt.Errorf("%w: it has %d bytes", errDamaged, n)
	}
	if format := binary.LittleEndian.Uint32(b[8:]); format != fileFormat {
		return nil, fmt.Errorf("%w: format %d, not %d", errOther, format, fileFormat)
	}
	length := binary.LittleEndian.Uint32(b[12:])
	end := indexOffset(int(min(length, maxDescribe)))
	if length > maxDescribe || end > size {
		return nil, fmt.Errorf("%w: a description of %d bytes in %d", errDamaged, length, size)
	}
	b = append(b, make([]byte, end-headerBytes)...)
	if n, err := r.ReadAt(b[headerBytes:], headerBytes); n < len(b)-headerBytes {
		return nil, err
	}
	if want, got := binary.LittleEndian.Uint32(b[24:]), headerSum(b); got != want {
		return nil, fmt.Errorf("%w: the checksum of its header is %08x, not %08x", errDamaged, got, want)
	}
	if want := binary.LittleEndian.Uint64(b[16:]); uint64(size) != want {
		return nil, fmt.Errorf("%w: it has %d bytes, not %d", errDamaged, size, want)
	}
	return b[headerBytes : headerBytes+length], nil
}

// checkHeader tells why the samples of a file of size bytes can't be used for the
// wanted description.
func checkHeader(r io.ReaderAt, size int64, want []byte) error {
	got, err := readHeader(r, size)
	if err != nil || bytes.Equal(got, want) {
		return err
	}
	var there, wanted fileHeader
	if err := errors.Join(json.Unmarshal(got, &there), json.Unmarshal(want, &wanted)); err != nil {
		return fmt.Errorf("%w: %w", errOther, err)
	}
	return fmt.Errorf("%w: %s", errOther, there.difference(&wanted))
}
