// Package permute computes permutations of 0 … n−1 from keys, keys from seeds and epochs,
// and keeps orders that cost too much to compute again for each position.
package permute

import (
	"fmt"
	"math/bits"
)

// MaxLen bounds an order, so that its positions don't overflow: 2⁶², or 2³⁰ with 32 bits.
const MaxLen = 1 << (30 + 32*(^uint(0)>>63))

// CheckPosition panics if a position is outside an epoch of n samples, as indexing a slice
// does: such a position is a mistake in the caller's code, and has no index.
func CheckPosition(i, n int) {
	if i < 0 || i >= n {
		panic(fmt.Sprintf("nwt: position %d is outside an epoch of %d samples", i, n))
	}
}

// A Permutation is a family of permutations of 0 … n−1, one for each key.
//
// It is a Feistel network (Luby and Rackoff, "How to construct pseudorandom permutations
// from pseudorandom functions", 1988) over a rectangle of about √n × √n that holds all
// positions. A position that falls into one of the √n or so spare places goes through the
// network once more (cycle walking: Black and Rogaway, "Ciphers with arbitrary finite
// domains", 2002). The round function is Mix64.
type Permutation struct {
	n      uint64
	rows   uint64 // rows << bits ≥ n: a number is a row and, in its low bits, a column
	bits   uint
	rounds int // even
}

// New is the permutations of 0 … n−1.
func New(n int) Permutation {
	width := max(1, bits.Len64(uint64(n-1)))
	p := Permutation{n: uint64(n), bits: uint(width / 2)}
	p.rows = (p.n + 1<<p.bits - 1) >> p.bits
	// Two rounds bring the joint distribution of two positions closer to the
	// uniform one by a factor of about n. Tiny permutations get enough rounds for
	// 2⁻³², which makes them fair too. Large ones get six, which they need against
	// subtler structure (Patarin, "Security of random Feistel schemes with 5 or more
	// rounds", 2004).
	p.rounds = max(6, (64+width-1)/width+1) &^ 1
	return p
}

// Len is n.
func (p *Permutation) Len() int { return int(p.n) }

// At is where i goes, 0 ≤ i < n.
func (p *Permutation) At(key uint64, i int) int {
	mask := uint64(1)<<p.bits - 1
	x := uint64(i)
	for {
		row, column := x>>p.bits, x&mask
		k := key
		for range p.rounds / 2 {
			row = wrap(row+turn(k, column, p.rows), p.rows)
			k += Golden
			column = (column + slide(k, row)) & mask
			k += Golden
		}
		if x = row<<p.bits | column; x < p.n {
			return int(x)
		}
	}
}

// maxTabulated is the bits of the longest tables, for 2²⁹ positions: 0.3 MB.
const maxTabulated = 14

// Tabulates tells whether n is small enough for Tabulate.
func (p *Permutation) Tabulates() bool { return p.bits <= maxTabulated }

// Tabulate is the round functions for a key as two tables per pair of rounds: by
// how much each column turns the row, and by how much each row turns the column.
// Each table has about √n entries.
func (p *Permutation) Tabulate(key uint64) []uint16 {
	columns, rows := uint64(1)<<p.bits, p.rows
	tables := make([]uint16, 0, uint64(p.rounds/2)*(columns+rows))
	for range p.rounds / 2 {
		for column := range columns {
			tables = append(tables, uint16(turn(key, column, rows)))
		}
		key += Golden
		for row := range rows {
			tables = append(tables, uint16(slide(key, row)&(columns-1)))
		}
		key += Golden
	}
	return tables
}

// Fill sets out to the results of At for i, i+1, …, with the tables of a key.
func (p *Permutation) Fill(tables []uint16, i int, out []int) {
	for j := range out {
		out[j] = i + j
	}
	p.through(tables, out)
	for j := range out {
		for uint64(out[j]) >= p.n {
			p.through(tables, out[j:j+1])
		}
	}
}

// through sends positions through all rounds. It does one round for all positions
// before the next one: the rounds of one position must wait for each other, those
// of different positions needn't.
func (p *Permutation) through(tables []uint16, positions []int) {
	rows, columns, width := p.rows, uint64(1)<<p.bits, p.bits&63
	for t := tables; len(t) > 0; t = t[columns+rows:] {
		turns, slides := t[:columns], t[columns:columns+rows]
		for j, position := range positions {
			x := uint64(position)
			row, column := x>>width, x&(columns-1)
			row = wrap(row+uint64(turns[column]), rows)
			column = (column + uint64(slides[row])) & (columns - 1)
			positions[j] = int(row<<width | column)
		}
	}
}

// turn is by how much a column turns the row.
func turn(key, column, rows uint64) uint64 {
	by, _ := bits.Mul64(Mix64(key^column), rows)
	return by
}

// slide is, in its low bits, by how much a row turns the column.
func slide(key, row uint64) uint64 { return Mix64(key^row) >> 32 }

// wrap is x modulo n for x < 2n, without a branch: the CPU couldn't predict it.
func wrap(x, n uint64) uint64 {
	less, borrow := bits.Sub64(x, n, 0)
	return less + n&-borrow
}

// Golden is 2⁶⁴ divided by the golden ratio. Its successive multiples are spread
// as evenly as can be, as Mix64 wants its inputs.
const Golden = 0x9e3779b97f4a7c15

// Mix64 is a bijection that hashes: the finalizer of SplitMix64 (Steele, Lea and Flood,
// 2014; the constants are Stafford's Mix13).
func Mix64(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// SeedKey hashes a seed before an epoch is added to it. Otherwise epoch 1 of one
// seed would be epoch 0 of another.
func SeedKey(seed uint64) uint64 { return Mix64(seed + Golden) }

// EpochKey is the key of an epoch, from that of the seed.
func EpochKey(seedKey uint64, epoch int) uint64 {
	return Mix64(seedKey + uint64(epoch)*Golden)
}
