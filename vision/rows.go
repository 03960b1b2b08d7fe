package vision

import (
	"hash/maphash"
	"runtime"
	"sort"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/nwt-go/nwt/internal/osmemory"
)

// A crop needs none of the codes above it, nor of those to its left and right, but where the codes of a
// block begin is only known to who has read all codes before. So a pipeline remembers some places in the
// codes of each JPEG file that it decodes, and begins there the next time.

// places are what is remembered of one file: the state of its decoder every rowsApart rows of MCUs, and in
// such a row every columnsApart MCUs. A place is a number of 64 bits:
//
//	28 bits: where the next bit is in the file
//	36 bits: the predictions of up to three components
//
// 0 is a place that isn't known yet. Each number says all there is to know of its place, and whoever
// decodes the file finds the same ones: so workers read and write them at once, without a lock.
type places struct {
	known                   []atomic.Uint64 // nil: nothing is remembered
	rowsApart, columnsApart int             // in MCUs
	perRow                  int             // places in a row that has some
	across                  int             // MCUs in a row
}

const (
	pixelsApart = 512 // of the places in a row, at least
	bitsOfDC    = 12
	mostPlaced  = 1 << (28 - 3) // bytes of a file whose places fit
	leastPlaced = 1 << 12       // bytes of a file that is worth it
)

// shape says where the places of a picture are, and returns how many there are.
func (p *places) shape(h *jpegHeader) int {
	width, height := h.unit()
	p.across = (h.width + width - 1) / width
	p.rowsApart, p.columnsApart = max(1, 16/height), max(1, pixelsApart/width)
	p.perRow = (p.across + p.columnsApart - 1) / p.columnsApart
	down := (h.height + height - 1) / height
	return (down + p.rowsApart - 1) / p.rowsApart * p.perRow
}

// mcu returns the MCU of a place, counted along the rows.
func (p *places) mcu(place int) int {
	return place/p.perRow*p.rowsApart*p.across + place%p.perRow*p.columnsApart
}

// last returns the number of the last place at or before an MCU.
func (p *places) last(mcu int) int {
	y, x := mcu/p.across, mcu%p.across
	if y%p.rowsApart != 0 {
		x = p.across - 1
	}
	return y/p.rowsApart*p.perRow + x/p.columnsApart
}

// rowMemory keeps places outside of the Go heap, until it is collected.
type rowMemory struct {
	bound int64

	mu    sync.RWMutex      // held for a look-up, once per file that is decoded
	of    map[uint64]uint32 // by the hash of a file: where its places begin, in words
	words [][]atomic.Uint64 // chunks
	used  int               // words of the last chunk

	bytes *atomic.Int64 // its share of rowBytes; outlives it
}

const (
	wordsPerChunk = 1 << 17
	bytesPerEntry = 32 // of the map
)

// rowBytes is the memory of all rowMemories of the process.
var rowBytes atomic.Int64

// hashSeed is random. That two of a million files have the same hash of 64 bits has a chance of 3 in 10⁸.
var hashSeed = maphash.MakeSeed()

func newRowMemory(bound int64) *rowMemory {
	m := &rowMemory{bound: bound, of: map[uint64]uint32{}, bytes: new(atomic.Int64)}
	runtime.AddCleanup(m, func(bytes *atomic.Int64) { rowBytes.Add(-bytes.Load()) }, m.bytes)
	return m
}

// grow counts n bytes, if they are within the bound.
func (m *rowMemory) grow(n int64) bool {
	if rowBytes.Add(n) > m.bound {
		rowBytes.Add(-n)
		return false
	}
	m.bytes.Add(n)
	return true
}

// size returns how many bytes of memory it takes.
func (m *rowMemory) size() int64 {
	if m == nil {
		return 0
	}
	return m.bytes.Load()
}

// find returns what is remembered of a file, and its key.
func (m *rowMemory) find(data []byte, h *jpegHeader) (p places, key uint64) {
	if m == nil || len(data) < leastPlaced || len(data) > mostPlaced {
		return p, 0
	}
	key = maphash.Bytes(hashSeed, data) | 1
	m.mu.RLock()
	defer m.mu.RUnlock()
	if at, found := m.of[key]; found {
		n := p.shape(h)
		p.known = m.words[at/wordsPerChunk][at%wordsPerChunk:][:n]
	}
	return p, key
}

// add makes room for the places of a file, unless the memory is full.
func (m *rowMemory) add(key uint64, h *jpegHeader) (p places) {
	n := p.shape(h)
	m.mu.Lock()
	defer m.mu.Unlock()
	at, found := m.of[key]
	if !found {
		if (len(m.words) == 0 || m.used+n > wordsPerChunk) && !m.another(n) || !m.grow(bytesPerEntry) {
			return p
		}
		at = uint32((len(m.words)-1)*wordsPerChunk + m.used)
		m.of[key] = at
		m.used += n
	}
	p.known = m.words[at/wordsPerChunk][at%wordsPerChunk:][:n]
	return p
}

// another gets another chunk, for n words first. It reports whether there is one.
func (m *rowMemory) another(n int) bool {
	if n > wordsPerChunk || len(m.words) == 1<<32/wordsPerChunk || !m.grow(8*wordsPerChunk) {
		return false
	}
	mem, err := osmemory.Map(8 * wordsPerChunk)
	if err != nil { // the bytes stay counted, so that this isn't tried for each picture
		return false
	}
	runtime.AddCleanup(m, func(mem []byte) { _ = osmemory.Unmap(mem) }, mem)
	m.words, m.used = append(m.words, unsafe.Slice((*atomic.Uint64)(unsafe.Pointer(&mem[0])), wordsPerChunk)), 0
	return true
}

// placeBefore returns the last known place at or before an MCU, if that is after the MCU whose codes are
// next anyway; else −1.
func (d *baselineDecoder) placeBefore(mcu, next int) int {
	p := &d.places
	if p.known == nil {
		return -1
	}
	for place := min(p.last(mcu), len(p.known)-1); place >= 0 && p.mcu(place) > next; place-- {
		if p.known[place].Load() != 0 {
			return place
		}
	}
	return -1
}

// end returns how much of the file is needed down to an MCU, or 0 if that isn't known.
func (d *baselineDecoder) end(mcu int) int {
	p := &d.places
	if p.known == nil {
		return 0
	}
	for place := p.last(mcu); place < len(p.known); place++ {
		if v := p.known[place].Load(); v != 0 && p.mcu(place) >= mcu {
			end := int(v>>(3*bitsOfDC+3)) + 1
			for end < len(d.data) && d.data[end-1] == 0xff { // and what follows it belong together
				end++
			}
			return end
		}
	}
	return 0
}

// jump continues at a place. It returns after how many MCUs a restart marker follows.
func (d *baselineDecoder) jump(place, mcu int) (toMarker int) {
	v := d.places.known[place].Load()
	raw, skipped := int(v>>(3*bitsOfDC+3)), uint(v>>(3*bitsOfDC)&7)
	if len(d.codes) == 0 || raw >= d.pos {
		d.pos = raw
		d.begin()
	}
	more := 0
	if i := sort.Search(len(d.cuts), func(i int) bool { return d.cuts[i].raw > raw }); i > 0 {
		more = d.cuts[i-1].more
	}
	d.acc, d.bits, d.at = 0, 0, raw-d.base-more
	d.refill()
	d.acc <<= skipped
	d.bits -= skipped
	for i := range d.n {
		const unused = 32 - bitsOfDC
		d.scan[i].prediction = int32(uint32(v>>(i*bitsOfDC))<<unused) >> unused
	}
	if d.restart == 0 {
		return 0
	}
	d.markers = (mcu - 1) / d.restart
	return d.restart - 1 - (mcu-1)%d.restart
}

// placeFrom returns the first place at or after an MCU, and the MCU that it is at, or −1 if there is none.
func (d *baselineDecoder) placeFrom(mcu int) (place, at int) {
	p := &d.places
	if p.known == nil {
		return 0, -1
	}
	if place = p.last(mcu); p.mcu(place) < mcu {
		place++
	}
	if place >= len(p.known) {
		return 0, -1
	}
	return place, p.mcu(place)
}

// remember keeps the place whose codes are next.
func (d *baselineDecoder) remember(place int) {
	p := &d.places
	if place == 0 || p.known[place].Load() != 0 {
		return
	}
	used := 8*d.at - int(d.bits)
	at := used / 8
	i := sort.Search(len(d.cuts), func(i int) bool { return d.cuts[i].raw-d.base-d.cuts[i].more > at })
	raw := d.base + at
	if i > 0 {
		raw += d.cuts[i-1].more
	}
	v := uint64(raw)<<3 | uint64(used&7)
	for i := 2; i >= 0; i-- {
		dc := d.scan[i].prediction
		if i >= d.n {
			dc = 0
		}
		if dc < -1<<(bitsOfDC-1) || dc >= 1<<(bitsOfDC-1) { // of a damaged file
			return
		}
		v = v<<bitsOfDC | uint64(dc)&(1<<bitsOfDC-1)
	}
	p.known[place].Store(v)
}
