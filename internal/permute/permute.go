// Package permute computes permutations of 0 … n−1 from keys, and the keys from seeds and epochs. It
// also keeps orders that cost too much to compute again for each position.
package permute

import (
	"fmt"
	"math/bits"
)

// MaxLen bounds an order, so that its positions don't overflow: 2⁶², or 2³⁰ with 32 bits.
const MaxLen = 1 << (30 + 32*(^uint(0)>>63))

// CheckPosition panics if a position is outside an epoch of n samples, as indexing a slice does: such a
// position is a mistake in the caller's code, and has no index.
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
	rows   uint64 // rows << bits ≥ n: a number holds a row and, in its low bits, a column
	bits   uint
	rounds int    // even
	salt   uint64 // hash of n, part of every key: permutations of n and n+1 have nothing in common
}

// New returns the permutations of 0 … n−1.
func New(n int) Permutation {
	width := max(1, bits.Len64(uint64(n-1)))
	p := Permutation{n: uint64(n), bits: uint(width / 2), salt: Mix64(uint64(n))}
	p.rows = (p.n + 1<<p.bits - 1) >> p.bits
	// Two rounds bring the joint distribution of two positions closer to the uniform one by a factor of
	// about n. Tiny permutations get enough rounds to come within 2⁻³², which makes them fair too. Large
	// permutations get six rounds, which they need against subtler structure (Patarin, "Security of
	// random Feistel schemes with 5 or more rounds", 2004).
	p.rounds = max(6, (64+width-1)/width+1) &^ 1
	return p
}

// Len returns n.
func (p *Permutation) Len() int { return int(p.n) }

// At returns the number to which i is mapped, 0 ≤ i < n.
func (p *Permutation) At(key uint64, i int) int {
	mask := uint64(1)<<p.bits - 1
	x := uint64(i)
	for {
		row, column := x>>p.bits, x&mask
		k := key ^ p.salt
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

// maxTabulated is the number of bits in the index of the longest tables. They serve 2²⁹ positions and
// take 0.3 MB.
const maxTabulated = 14

// Tabulates reports whether n is small enough for Tabulate.
func (p *Permutation) Tabulates() bool { return p.bits <= maxTabulated }

// Tabulate returns the round functions for a key as two tables per pair of rounds: by how much each
// column turns the row, and by how much each row turns the column. Each table has about √n entries.
func (p *Permutation) Tabulate(key uint64) []uint16 {
	columns, rows := uint64(1)<<p.bits, p.rows
	tables := make([]uint16, 0, uint64(p.rounds/2)*(columns+rows))
	key ^= p.salt
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

// Fill sets out to the results of At for i, i+1, …, with the tables of a key. It computes four positions
// side by side, because the rounds of one position must wait for each other.
func (p *Permutation) Fill(tables []uint16, i int, out []int) {
	rows, columns, width, all := p.rows, uint64(1)<<p.bits, p.bits&63, out
	mask := columns - 1
	for ; len(out) >= 4; i, out = i+4, out[4:] {
		x := uint64(i)
		r0, r1, r2, r3 := x>>width, (x+1)>>width, (x+2)>>width, (x+3)>>width
		c0, c1, c2, c3 := x&mask, (x+1)&mask, (x+2)&mask, (x+3)&mask
		for t := tables; len(t) > 0; t = t[columns+rows:] {
			turns, slides := t[:columns], t[columns:columns+rows]
			r0 = wrap(r0+uint64(turns[c0]), rows)
			r1 = wrap(r1+uint64(turns[c1]), rows)
			r2 = wrap(r2+uint64(turns[c2]), rows)
			r3 = wrap(r3+uint64(turns[c3]), rows)
			c0 = (c0 + uint64(slides[r0])) & mask
			c1 = (c1 + uint64(slides[r1])) & mask
			c2 = (c2 + uint64(slides[r2])) & mask
			c3 = (c3 + uint64(slides[r3])) & mask
		}
		out[0], out[1], out[2], out[3] = int(r0<<width|c0), int(r1<<width|c1), int(r2<<width|c2), int(r3<<width|c3)
	}
	for j := range out {
		out[j] = p.walk(tables, uint64(i+j))
	}
	for j, x := range all {
		if uint64(x) >= p.n {
			all[j] = p.walk(tables, uint64(x))
		}
	}
}

// walk does what At does, with the tables of a key.
func (p *Permutation) walk(tables []uint16, x uint64) int {
	rows, columns := p.rows, uint64(1)<<p.bits
	for {
		row, column := x>>p.bits, x&(columns-1)
		for t := tables; len(t) > 0; t = t[columns+rows:] {
			row = wrap(row+uint64(t[column]), rows)
			column = (column + uint64(t[columns+row])) & (columns - 1)
		}
		if x = row<<p.bits | column; x < p.n {
			return int(x)
		}
	}
}

// turn returns by how much a column turns the row.
func turn(key, column, rows uint64) uint64 {
	by, _ := bits.Mul64(Mix64(key^column), rows)
	return by
}

// slide returns, in its low bits, by how much a row turns the column.
func slide(key, row uint64) uint64 { return Mix64(key^row) >> 32 }

// wrap returns x modulo n for x < 2n. It has no branch, because the CPU couldn't predict it.
func wrap(x, n uint64) uint64 {
	less, borrow := bits.Sub64(x, n, 0)
	return less + n&-borrow
}

// Golden is 2⁶⁴ divided by the golden ratio. Its successive multiples are spread as evenly as possible,
// which suits Mix64.
const Golden = 0x9e3779b97f4a7c15

// Mix64 is a hash that is a bijection: the finalizer of SplitMix64 (Steele, Lea and Flood, 2014; the
// constants are Stafford's Mix13).
func Mix64(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// Digest returns a hash of n numbers and their order.
func Digest(n int, at func(i int) uint64) uint64 {
	sum := uint64(n) + Golden
	for i := range n {
		sum = Mix64(sum ^ at(i))
	}
	return sum
}

// SeedKey hashes a seed before an epoch is added to it. Otherwise epoch 1 of one
// seed would be epoch 0 of another.
func SeedKey(seed uint64) uint64 { return Mix64(seed + Golden) }

// OrderKey is SeedKey for an order that depends on these lengths other than by a Permutation of them. An
// order of almost the same length gets another key, so it is another order.
func OrderKey(seed uint64, lengths ...int) uint64 {
	key := SeedKey(seed)
	for _, n := range lengths {
		key = Mix64(key ^ Mix64(uint64(n)))
	}
	return key
}

// EpochKey returns the key of an epoch, given the key of the seed.
func EpochKey(seedKey uint64, epoch int) uint64 {
	return Mix64(seedKey + uint64(epoch)*Golden)
}
