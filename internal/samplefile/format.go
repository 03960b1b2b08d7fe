package samplefile

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/nwt-go/nwt/internal/permute"
)

// This is the format of a file; its numbers are little-endian:
//
//	 0  8 bytes   magic
//	 8  uint32    format
//	12  uint32    j, the bytes of the description
//	16  uint64    the bytes of the file; while it is written, those up to the samples
//	24  uint32    CRC-32C of what is before and what follows up to the index
//	28  j bytes   the description; then 0 up to a multiple of 8
//	    for each sample:
//	    uint64    where it begins; 0 while it isn't written
//	    uint64    where it ends
//	    samples   in any order, each: its checksum as uint32, and its bytes
//
// For a sample that was left out, the index holds only a checksum. Checksums depend on the description:
// if a sample of another file is written over this one, it isn't taken for a sample of this file.
const (
	magic       = "\x89nwt\r\n\x1a\n" // like PNG's: it is damaged by anything that takes the file for text
	format      = 3
	headerBytes = 28
	entryBytes  = 16 // per sample in the index
	sumBytes    = 4
)

// MaxDescription bounds the size of a description, in bytes.
const MaxDescription = 16 << 20

// A Spec says what a file must contain.
type Spec struct {
	Description []byte                    // what the samples depend on: a file with another description can't be used
	Difference  func(there []byte) string // returns what is wrong with another file's description
	Samples     int
	Longest     int // largest size of a sample
	Shortest    int // smallest size of a sample
}

// index returns where the file's index begins; data returns where it ends.
func (s *Spec) index() int64 { return indexOffset(len(s.Description)) }
func (s *Spec) data() int64  { return s.index() + entryBytes*int64(s.Samples) }

// indexOffset returns where the index begins if the description has n bytes.
func indexOffset(n int) int64 { return int64(headerBytes+n+7) &^ 7 }

// These are the reasons why a file can't be used. A file of samples is then written anew; any other file is kept.
var (
	errForeign = errors.New("it is not a file of precomputed samples")
	errDamaged = errors.New("it is damaged")
	errOther   = errors.New("it was made for something else")
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Sum adds b to a CRC-32C, which begins as 0.
func Sum(sum uint32, b []byte) uint32 { return crc32.Update(sum, castagnoli, b) }

// key returns the part of the checksums that depends on the description.
func (s *Spec) key() uint64 {
	sum := sha256.Sum256(s.Description)
	return binary.LittleEndian.Uint64(sum[:])
}

// checksum returns the checksum of a sample whose bytes have the CRC-32C sum. The same bytes have another
// checksum in another sample's place or in another file.
func checksum(key uint64, index int, sum uint32) uint32 {
	return sum ^ uint32(permute.Mix64(key+uint64(index)*permute.Golden))
}

// encodeHeader returns the header of a file of size bytes.
func encodeHeader(description []byte, size int64) []byte {
	b := make([]byte, indexOffset(len(description)))
	copy(b, magic)
	binary.LittleEndian.PutUint32(b[8:], format)
	binary.LittleEndian.PutUint32(b[12:], uint32(len(description)))
	binary.LittleEndian.PutUint64(b[16:], uint64(size))
	copy(b[headerBytes:], description)
	binary.LittleEndian.PutUint32(b[24:], headerSum(b))
	return b
}

func headerSum(header []byte) uint32 { return Sum(Sum(0, header[:24]), header[headerBytes:]) }

// readHeader reads the description from a file of size bytes, and how many bytes the file must have.
func readHeader(r io.ReaderAt, size int64) (description []byte, whole uint64, err error) {
	b := make([]byte, headerBytes)
	n, err := r.ReadAt(b, 0)
	if err != nil && err != io.EOF {
		return nil, 0, err
	}
	if begins := b[:min(n, len(magic))]; !bytes.HasPrefix([]byte(magic), begins) {
		return nil, 0, fmt.Errorf("%w: it begins with %q; move it, or choose another path", errForeign, begins)
	}
	if n < headerBytes {
		return nil, 0, fmt.Errorf("%w: it has %d bytes", errDamaged, n)
	}
	if there := binary.LittleEndian.Uint32(b[8:]); there != format {
		return nil, 0, fmt.Errorf("%w: format %d, not %d", errOther, there, format)
	}
	length := binary.LittleEndian.Uint32(b[12:])
	end := indexOffset(int(min(length, MaxDescription)))
	if length > MaxDescription || end > size {
		return nil, 0, fmt.Errorf("%w: a description of %d bytes in %d", errDamaged, length, size)
	}
	b = append(b, make([]byte, end-headerBytes)...)
	if n, err := r.ReadAt(b[headerBytes:], headerBytes); n < len(b)-headerBytes {
		return nil, 0, err
	}
	if want, got := binary.LittleEndian.Uint32(b[24:]), headerSum(b); got != want {
		return nil, 0, fmt.Errorf("%w: the checksum of its header is %08x, not %08x", errDamaged, got, want)
	}
	return b[headerBytes : headerBytes+length], binary.LittleEndian.Uint64(b[16:]), nil
}

// check returns why the samples of a file of size bytes can't be used.
func (s *Spec) check(r io.ReaderAt, size int64) error {
	there, whole, err := readHeader(r, size)
	switch {
	case err != nil:
		return err
	case !bytes.Equal(there, s.Description):
		return fmt.Errorf("%w: %s", errOther, s.Difference(there))
	case uint64(size) != whole:
		return fmt.Errorf("%w: it has %d bytes, not %d", errDamaged, size, whole)
	case s.data() > size:
		return fmt.Errorf("%w: its index ends at byte %d of %d", errDamaged, s.data(), size)
	}
	return nil
}
