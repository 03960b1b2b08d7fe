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
	subX, subY    int // pixels of the picture for each of a chroma plane; 0: unusual
	baseline      bool
	progressive   bool
	ycc           bool // the components are grey, or grey and YCbCr
	orientation   int  // of EXIF, 1 … 8; 1 if there is none
	heightAt      int  // where the height stands in the file
	restart       int  // MCUs between restart markers, 0: none
	scanAt        int  // where the first scan's pixels begin
	whole         bool // the first scan has all components
	// Where libjpeg warns of a value that changes nothing, and the usual one: JFIF's
	// revision, and a transform that Adobe doesn't know. 0: there is none.
	odd [2]struct {
		at    int
		usual byte
	}
}

var errNoPicture = errors.New("the data ends before the picture begins")

// segments goes over the segments of a JPEG file, until ctx ends.
type segments struct {
	ctx  context.Context
	data []byte
	at   int
	seen int // markers
}

// next returns the next marker that has a segment, and the segment's content. Its
// errors say why there is none.
func (s *segments) next() (marker byte, segment []byte, err error) {
	for {
		if hasEnded(s.ctx, &s.seen) {
			return 0, nil, ended(s.ctx)
		}
		if i := bytes.IndexByte(s.data[s.at:], 0xff); i >= 0 { // libjpeg skips what isn't a marker
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
		case marker == 0 || marker == 0x01 || marker >= 0xd0 && marker <= 0xd8:
			continue // no segment follows
		case marker == 0xd9, s.at+2 > len(s.data):
			return marker, nil, errNoPicture
		}
		size := int(binary.BigEndian.Uint16(s.data[s.at:]))
		if size < 2 || s.at+size > len(s.data) {
			return 0, nil, fmt.Errorf("a segment (marker %#x) of %d bytes where %d are left", marker, size, len(s.data)-s.at)
		}
		segment = s.data[s.at+2 : s.at+size]
		s.at += size
		return marker, segment, nil
	}
}

// looks is how many markers or chunks are passed between two looks at the context.
const looks = 1 << 12

// hasEnded counts what is passed, and tells now and then whether ctx has ended.
func hasEnded(ctx context.Context, seen *int) bool {
	*seen++
	return *seen%looks == 0 && ctx.Err() != nil
}

// readJPEG reads the header of a JPEG file.
func readJPEG(ctx context.Context, data []byte) (h jpegHeader, err error) {
	h.orientation = 1
	adobe, jfif, ids, exif := -1, false, false, false
	s := segments{ctx: ctx, data: data, at: 2}
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
			h.heightAt = s.at - len(segment) + 1
			ids = h.components == 3 && [3]byte{segment[6], segment[9], segment[12]} == [3]byte{'R', 'G', 'B'}
		case marker == 0xe0 && len(segment) >= 14 && bytes.HasPrefix(segment, []byte("JFIF\x00")):
			if jfif = true; segment[5] != 1 {
				h.odd[0].at, h.odd[0].usual = s.at-len(segment)+5, 1
			}
		case marker == 0xe1 && !exif && bytes.HasPrefix(segment, exifPrefix):
			exif, h.orientation = true, orientation(segment)
		case marker == 0xee && len(segment) >= 12 && bytes.HasPrefix(segment, []byte("Adobe")):
			if adobe = int(segment[11]); adobe > 1 {
				h.odd[1].at, h.odd[1].usual = s.at-len(segment)+11, 1
			}
		case marker == 0xdd && len(segment) >= 2:
			h.restart = int(binary.BigEndian.Uint16(segment))
		case marker == 0xda:
			if h.components == 0 {
				return h, errors.New("pixels before a frame header")
			}
			h.scanAt, h.whole = s.at, len(segment) > 0 && int(segment[0]) == h.components
			// As libjpeg's jdapimin.c.
			h.ycc = h.components == 1 || h.components == 3 && (jfif || adobe > 0 || adobe < 0 && !ids)
			if h.components == 4 { // the transform 2 is usual
				h.odd[1].at = 0
			}
			return h, nil
		}
	}
}

// smooth tells whether chroma planes are smoothed as they grow. libjpeg doesn't if
// they have less than three columns.
func (h *jpegHeader) smooth() bool { return h.subX != 2 || h.width > 4 }

func (h *jpegHeader) isOdd() bool { return h.odd[0].at+h.odd[1].at > 0 }

// copied copies a file, without what libjpeg would warn of.
func (h *jpegHeader) copied(mem, data []byte) []byte {
	mem = append(mem[:0], data...)
	for _, o := range h.odd {
		if o.at > 0 {
			mem[o.at] = o.usual
		}
	}
	return mem
}

// endOf returns the offset at which a restart interval ends: the one that contains
// the last of the first n MCUs of the scan. It gives up if ctx ends.
func (h *jpegHeader) endOf(ctx context.Context, data []byte, n int) int {
	at, left := h.scanAt, (n+h.restart-1)/h.restart
	for seen := 0; ; {
		if hasEnded(ctx, &seen) {
			return len(data)
		}
		i := bytes.IndexByte(data[at:], 0xff)
		if i < 0 || at+i+1 == len(data) {
			return len(data)
		}
		if at += i + 1; data[at]&^7 == 0xd0 {
			if left--; left == 0 {
				return at - 1
			}
		}
	}
}

// frame reads a frame header.
func (h *jpegHeader) frame(marker byte, segment []byte) error {
	if len(segment) < 6 || len(segment) < 6+3*int(segment[5]) {
		return fmt.Errorf("a frame header of %d bytes", len(segment))
	}
	if segment[0] != 8 {
		return fmt.Errorf("%d bits a value: must be 8", segment[0])
	}
	h.height, h.width = int(binary.BigEndian.Uint16(segment[1:])), int(binary.BigEndian.Uint16(segment[3:]))
	h.components = int(segment[5])
	h.baseline, h.progressive = marker == 0xc0 || marker == 0xc1, marker == 0xc2
	switch h.components {
	case 1:
		h.subX, h.subY = 1, 1
	case 3:
		luma, blue, red := segment[7], segment[10], segment[13]
		switch {
		case blue != red || blue != 0x11:
		case luma == 0x11, luma == 0x21, luma == 0x12, luma == 0x22, luma == 0x41:
			h.subX, h.subY = int(luma>>4), int(luma&15)
		}
	}
	return nil
}
