package packing

import (
	"cmp"
	"math/bits"
	"slices"
)

// Pieces are packed in windows. In each, the longest come first (first fit and best fit decreasing leave
// at most 2/9 more rows than needed: D. S. Johnson, 1973), and each goes into the row with the least room
// that it fits into, whichever window that row was begun in.

// windowLen is how many pieces are sorted together.
const windowLen = 1 << 16

// A piece is a part of a document, at most as long as a row.
type piece struct {
	doc  uint32
	from uint32 // where it begins in the document
	len  uint32
}

// A plan says which pieces each row has.
type plan struct {
	pieces []piece  // row by row
	ends   []uint32 // the end of each row in pieces
}

func (r *plan) rows() int { return len(r.ends) }

// at returns the pieces of a row.
func (r *plan) at(row int) []piece {
	from := uint32(0)
	if row > 0 {
		from = r.ends[row-1]
	}
	return r.pieces[from:r.ends[row]]
}

// pack packs pieces whose lengths are 1 … length.
func pack(pieces []piece, length int) *plan {
	all := int64(0)
	for _, p := range pieces {
		all += int64(p.len)
	}
	length = int(min(int64(length), all)) // rooms takes memory
	p := packer{length: length, row: make([]uint32, len(pieces)), rooms: newRooms(length)}
	for from := 0; from < len(pieces); from += windowLen {
		window := pieces[from:min(from+windowLen, len(pieces))]
		slices.SortStableFunc(window, func(a, b piece) int { return cmp.Compare(b.len, a.len) })
		for i := range window {
			p.row[from+i] = p.place(int(window[i].len))
		}
	}
	return p.gather(pieces)
}

type packer struct {
	length int
	rows   int
	row    []uint32 // the row of each piece
	rooms  rooms
}

// place returns the row into which a piece goes.
func (p *packer) place(n int) uint32 {
	room := p.rooms.atLeast(n)
	var row uint32
	if room < 0 {
		row, room = uint32(p.rows), p.length
		p.rows++
	} else {
		row = p.rooms.take(room)
	}
	p.rooms.put(room-n, row)
	return row
}

// gather sorts the pieces by row. Within a row they keep their order.
func (p *packer) gather(pieces []piece) *plan {
	r := &plan{pieces: make([]piece, len(pieces)), ends: make([]uint32, p.rows)}
	for _, row := range p.row {
		r.ends[row]++
	}
	at := uint32(0)
	for row, n := range r.ends {
		r.ends[row] = at
		at += n
	}
	for i, row := range p.row {
		r.pieces[r.ends[row]] = pieces[i]
		r.ends[row]++
	}
	return r
}

// rooms holds the rows that aren't full, by how much room they have.
type rooms struct {
	rows  [][]uint32 // indexed by room
	words []uint64   // bits say for which rooms there are rows
}

func newRooms(length int) rooms {
	return rooms{rows: make([][]uint32, length+1), words: make([]uint64, length/64+1)}
}

// atLeast returns the smallest room ≥ n that a row has, or −1 if no row has that much.
func (r *rooms) atLeast(n int) int {
	left := r.words[n/64] >> (n % 64) << (n % 64)
	for w := n / 64; ; left = r.words[w] {
		if left != 0 {
			return 64*w + bits.TrailingZeros64(left)
		}
		if w++; w == len(r.words) {
			return -1
		}
	}
}

func (r *rooms) take(room int) (row uint32) {
	last := len(r.rows[room]) - 1
	row = r.rows[room][last]
	r.rows[room] = r.rows[room][:last]
	if last == 0 {
		r.words[room/64] &^= 1 << (room % 64)
	}
	return row
}

func (r *rooms) put(room int, row uint32) {
	if room == 0 {
		return
	}
	r.rows[room] = append(r.rows[room], row)
	r.words[room/64] |= 1 << (room % 64)
}
