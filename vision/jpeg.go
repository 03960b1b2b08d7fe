package vision

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
)

// A jpegHeader is what a JPEG file says about itself before its pixels. Markers are
// those of ITU-T T.81, annex B.
type jpegHeader struct {
	width, height int
	components    int
	sampling      [4]struct{ h, v int } // of each component, 1 … 4
	unitX, unitY  int                   // the largest values in sampling
	subX, subY    int                   // pixels of the picture for each pixel of a chroma plane; 0: unusual
	progressive   bool                  // else baseline
	ycc           bool                  // the components are grey, or YCbCr, or YCbCr and black
	exif          []byte
	scanAt        int  // where the first scan's pixels begin
	interleaved   bool // the first scan has all components

	ids   [4]byte   // one for each component
	told  [4]uint64 // for each component, the coefficients whose last bit is in the scans so far
	least int       // how many bits the first scan has at least: one for each block
}

// planar reports whether the components can be resampled as they are.
func (h *jpegHeader) planar() bool { return h.ycc && h.subX > 0 }

var errNoPicture = errors.New("the data ends before the picture begins")

// segments iterates over the segments of a JPEG file, until ctx ends.
type segments struct {
	ctx    context.Context
	data   []byte
	at     int
	looked int  // where the context was last checked
	header bool // no pixels may have come yet
}

// bytesBetweenLooks is how much of a file is passed between two checks of the context.
const bytesBetweenLooks = 1 << 13

// next returns the next marker that has a segment, and the segment's content. Its
// errors say why there is none.
func (s *segments) next() (marker byte, segment []byte, err error) {
	for {
		if s.at-s.looked >= bytesBetweenLooks {
			if s.looked = s.at; s.ctx.Err() != nil {
				return 0, nil, ended(s.ctx)
			}
		}
		if i := bytes.IndexByte(s.data[s.at:], 0xff); i >= 0 { // like libjpeg, it skips what isn't a marker
			s.at += i
		} else {
			s.at = len(s.data)
		}
		for s.at < len(s.data) && s.data[s.at] == 0xff {
			s.at++
		}
		if s.at == len(s.data) {
			return 0, nil, errNoPicture
		}
		marker = s.data[s.at]
		s.at++
		switch {
		case marker == 0xd8 && s.header: // of a thumbnail whose segment is too short; it isn't the picture
			return marker, nil, errors.New("a second picture begins before the pixels of the first")
		case marker == 0 || marker == 0x01 || marker >= 0xd0 && marker <= 0xd8:
			continue // this marker has no segment
		case marker == 0xd9, s.at+2 > len(s.data):
			return marker, nil, errNoPicture
		}
		size := int(binary.BigEndian.Uint16(s.data[s.at:]))
		if marker == 0xfe || marker&0xf0 == 0xe0 { // libjpeg, too, skips comments of any length
			size = max(size, 2)
		}
		if size < 2 || s.at+size > len(s.data) {
			return 0, nil, fmt.Errorf("the file is cut: a segment (marker %#x) has %d bytes, but %d are left", marker, size, len(s.data)-s.at)
		}
		segment = s.data[s.at+2 : s.at+size]
		s.at += size
		return marker, segment, nil
	}
}

// looks is how many markers or chunks are passed between two checks of the context.
const looks = 1 << 12

// hasEnded counts what is passed, and checks from time to time whether ctx has ended.
func hasEnded(ctx context.Context, seen *int) bool {
	*seen++
	return *seen%looks == 0 && ctx.Err() != nil
}

// readJPEG reads the header of a JPEG file.
func readJPEG(ctx context.Context, data []byte) (h jpegHeader, err error) {
	adobe, jfif, ids := -1, false, false
	s := segments{ctx: ctx, data: data, at: 2, header: true}
	for {
		marker, segment, err := s.next()
		if err != nil {
			return h, err
		}
		switch {
		case marker >= 0xc0 && marker <= 0xcf && marker != 0xc4 && marker != 0xc8 && marker != 0xcc:
			if h.components != 0 {
				return h, errors.New("two frame headers")
			}
			if err := h.frame(marker, segment); err != nil {
				return h, err
			}
			ids = h.components == 3 && [3]byte{segment[6], segment[9], segment[12]} == [3]byte{'R', 'G', 'B'}
		case marker == 0xe0 && len(segment) >= 14 && bytes.HasPrefix(segment, []byte("JFIF\x00")):
			jfif = true
		case marker == 0xe1 && h.exif == nil && bytes.HasPrefix(segment, exifPrefix):
			h.exif = segment
		case marker == 0xee && len(segment) >= 12 && bytes.HasPrefix(segment, []byte("Adobe")):
			adobe = int(segment[11])
		case marker == 0xda:
			if h.components == 0 {
				return h, errors.New("pixels before a frame header")
			}
			h.scanAt, h.interleaved = s.at, len(segment) > 0 && int(segment[0]) == h.components
			h.scanned(segment)
			switch h.components { // as in libjpeg's jdapimin.c
			case 1:
				h.ycc = true
			case 3:
				h.ycc = jfif || adobe > 0 || adobe < 0 && !ids
			case 4:
				h.ycc = adobe > 0
			}
			return h, nil
		}
	}
}

// smooth reports whether chroma planes are smoothed as they grow. libjpeg doesn't if
// they have less than three columns.
func (h *jpegHeader) smooth() bool { return h.subX != 2 || h.width > 4 }

// scanned records what the scan with this header contains.
func (h *jpegHeader) scanned(segment []byte) {
	if len(segment) < 1 || len(segment) < 4+2*int(segment[0]) {
		return // decoding will report it
	}
	components := segment[1 : 1+2*int(segment[0])]
	if h.least == 0 {
		for k := 0; k < len(components); k += 2 {
			if i := bytes.IndexByte(h.ids[:h.components], components[k]); i >= 0 {
				f, width, height := h.sampling[i], 8*h.unitX, 8*h.unitY
				h.least += (h.width*f.h + width - 1) / width * ((h.height*f.v + height - 1) / height)
			}
		}
	}
	from, to, low := 0, 63, 0
	if h.progressive {
		end := segment[1+len(components):]
		from, to, low = int(end[0]), int(end[1]), int(end[2]&15)
	}
	if from > to || to > 63 || low > 0 {
		return
	}
	for ; len(components) > 0; components = components[2:] {
		if i := bytes.IndexByte(h.ids[:h.components], components[0]); i >= 0 {
			h.told[i] |= ^uint64(0) << from & (^uint64(0) >> (63 - to))
		}
	}
}

// complete reports whether the scans so far contain all bits of all components.
func (h *jpegHeader) complete() bool {
	if h.interleaved && !h.progressive {
		return true
	}
	for _, told := range h.told[:h.components] {
		if told != ^uint64(0) {
			return false
		}
	}
	return true
}

// rest reads the markers that follow the first scan's header. It counts and records the scans, and
// reports whether it has found the end of the picture. It ignores a film that is appended after that. It
// is quick, since in a scan's codes 0xff is rare.
func (h *jpegHeader) rest(ctx context.Context, data []byte) (scans int, whole bool, err error) {
	s := segments{ctx: ctx, data: data, at: h.scanAt}
	for scans = 1; ; {
		marker, segment, err := s.next()
		if err != nil { // the end, or damage that decoding will report too
			return scans, marker == 0xd9, ended(ctx)
		}
		if marker == 0xda {
			scans++
			h.scanned(segment)
		}
	}
}

// frame reads a frame header.
func (h *jpegHeader) frame(marker byte, segment []byte) error {
	switch {
	case marker > 0xc8:
		return fmt.Errorf("arithmetic coding (frame marker %#x): must be Huffman coding (0xc0, 0xc1 or 0xc2)", marker)
	case marker > 0xc2:
		return fmt.Errorf("lossless or hierarchical (frame marker %#x): must be baseline or progressive (0xc0, 0xc1 or 0xc2)", marker)
	}
	if len(segment) < 6 || len(segment) < 6+3*int(segment[5]) {
		return fmt.Errorf("a frame header of %d bytes", len(segment))
	}
	if segment[0] != 8 {
		return fmt.Errorf("%d bits a value: must be 8", segment[0])
	}
	h.height, h.width = int(binary.BigEndian.Uint16(segment[1:])), int(binary.BigEndian.Uint16(segment[3:]))
	h.components = int(segment[5])
	if h.components != 1 && h.components != 3 && h.components != 4 {
		return fmt.Errorf("%d components: must be 1, 3 or 4", h.components)
	}
	h.progressive = marker == 0xc2
	for i := range h.components {
		f := &h.sampling[i]
		h.ids[i] = segment[6+3*i]
		f.h, f.v = int(segment[7+3*i]>>4), int(segment[7+3*i]&15)
		if f.h < 1 || f.h > 4 || f.v < 1 || f.v > 4 {
			return fmt.Errorf("component %d has sampling factors %d and %d: must be 1 … 4", i, f.h, f.v)
		}
		if h.components == 1 { // the factors have no meaning then
			f.h, f.v = 1, 1
		}
		h.unitX, h.unitY = max(h.unitX, f.h), max(h.unitY, f.v)
	}
	luma := h.sampling[0]
	switch luma.h<<4 | luma.v {
	case 0x11, 0x21, 0x12, 0x22, 0x41:
		if h.components == 1 || h.components == 3 && segment[10] == 0x11 && segment[13] == 0x11 {
			h.subX, h.subY = luma.h, luma.v
		}
	}
	return nil
}
