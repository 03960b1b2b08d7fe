package nwt

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
)

// Sampler is the order of an epoch: which sample of the dataset stands at
// which position.
//
// At is a pure function: the same epoch and position always give the same
// index, whoever asks, in whatever order. That is what lets a loader change its
// workers, its batch size or the number of ranks, and resume in the middle of
// an epoch, without changing what is trained on.
type Sampler interface {
	// Len is the number of positions in an epoch. It must not change.
	Len() int
	// At is the dataset index at position i of an epoch, 0 ≤ i < Len().
	// It is called from many goroutines at once.
	At(epoch, i int) int
}

// Sequential visits 0 … n−1 in that order in every epoch.
func Sequential(n int) Sampler { return sequential(n) }

type sequential int

func (s sequential) Len() int { return int(s) }

func (s sequential) At(_, i int) int {
	checkPosition(i, int(s))
	return i
}

// Shuffled visits each of 0 … n−1 once an epoch, in an order that depends on
// the seed and the epoch.
//
// The order is computed, not stored: a keyed permutation takes no memory and no
// start-up time, however large n is, and costs about 20 ns a position. It is a
// Feistel network (Luby and Rackoff, "How to construct pseudorandom
// permutations from pseudorandom functions", 1988) over a rectangle of about
// √n × √n that holds all positions; what falls into one of the √n or so spare
// places is sent through once more (cycle walking: Black and Rogaway, "Ciphers
// with arbitrary finite domains", 2002). Its round function is the finalizer of
// SplitMix64 (Steele, Lea and Flood, 2014; the constants are Stafford's Mix13).
// It is for statistics, not for secrets.
func Shuffled(n int, seed uint64) Sampler {
	return &shuffled{n: n, key: seedKey(seed), perm: newPermutation(n)}
}

type shuffled struct {
	n    int
	key  uint64 // of the seed
	perm permutation
}

func (s *shuffled) Len() int { return s.n }

func (s *shuffled) At(epoch, i int) int {
	checkPosition(i, s.n)
	return s.perm.at(epochKey(s.key, epoch), i)
}

// Select is the order of s over part of a dataset: where s has 0, it has
// indices[0], and so on. Select(Shuffled(len(indices), seed), indices) shuffles
// the part; an index listed twice comes twice. So s must be an order of
// 0 … len(indices)−1; At panics where it isn't.
//
// The indices are copied. They must not be negative.
func Select(s Sampler, indices []int) (Sampler, error) {
	if s == nil {
		return nil, errors.New("nwt: the sampler to select by is nil")
	}
	if len(indices) == 0 {
		return nil, errors.New("nwt: 0 indices to select; want 1 or more")
	}
	for i, index := range indices {
		if index < 0 {
			return nil, fmt.Errorf("nwt: index %d to select is %d; want 0 or more", i, index)
		}
	}
	return &selected{order: s, indices: slices.Clone(indices)}, nil
}

type selected struct {
	order   Sampler
	indices []int
}

func (s *selected) Len() int { return s.order.Len() }

func (s *selected) At(epoch, i int) int {
	k := s.order.At(epoch, i)
	if k < 0 || k >= len(s.indices) {
		panic(fmt.Sprintf("nwt: position %d of epoch %d selects index %d of %d", i, epoch, k, len(s.indices)))
	}
	return s.indices[k]
}

// checkPosition panics as indexing a slice would: a position outside the epoch
// is a mistake in the caller's code, and has no index.
func checkPosition(i, n int) {
	if i < 0 || i >= n {
		panic(fmt.Sprintf("nwt: position %d is outside an epoch of %d samples", i, n))
	}
}

// permutation is a family of permutations of 0 … n−1, one for each key.
type permutation struct {
	n      uint64
	rows   uint64 // rows << bits ≥ n: a number is a row and, in its low bits, a column
	bits   uint
	rounds int // even
}

func newPermutation(n int) permutation {
	width := max(1, bits.Len64(uint64(n-1)))
	p := permutation{n: uint64(n), bits: uint(width / 2)}
	p.rows = (p.n + 1<<p.bits - 1) >> p.bits
	// Two rounds bring the joint distribution of two positions closer to the
	// uniform one by a factor of about n. Enough of them for 2⁻³² make tiny
	// permutations fair too; six are what large ones need against subtler
	// structure (Patarin, "Security of random Feistel schemes with 5 or more
	// rounds", 2004).
	p.rounds = max(6, (64+width-1)/width+1) &^ 1
	return p
}

func (p *permutation) at(key uint64, i int) int {
	mask := uint64(1)<<p.bits - 1
	x := uint64(i)
	for {
		row, column := x>>p.bits, x&mask
		k := key
		for range p.rounds / 2 {
			row = turnRow(k, row, column, p.rows)
			k += golden
			column = (column + mix64(k^row)>>32) & mask
			k += golden
		}
		if x = row<<p.bits | column; x < p.n {
			return int(x)
		}
	}
}

// at4 is at for i … i+3: the rounds of one position wait for each other, those of
// four don't.
func (p *permutation) at4(key uint64, i int, out *[4]int) {
	width, mask, rows, k := p.bits, uint64(1)<<p.bits-1, p.rows, key
	x0, x1, x2, x3 := uint64(i), uint64(i+1), uint64(i+2), uint64(i+3)
	r0, c0 := x0>>width, x0&mask
	r1, c1 := x1>>width, x1&mask
	r2, c2 := x2>>width, x2&mask
	r3, c3 := x3>>width, x3&mask
	for range p.rounds / 2 {
		r0, r1 = turnRow(k, r0, c0, rows), turnRow(k, r1, c1, rows)
		r2, r3 = turnRow(k, r2, c2, rows), turnRow(k, r3, c3, rows)
		k += golden
		c0, c1 = (c0+mix64(k^r0)>>32)&mask, (c1+mix64(k^r1)>>32)&mask
		c2, c3 = (c2+mix64(k^r2)>>32)&mask, (c3+mix64(k^r3)>>32)&mask
		k += golden
	}
	out[0], out[1] = int(r0<<width|c0), int(r1<<width|c1)
	out[2], out[3] = int(r2<<width|c2), int(r3<<width|c3)
	for j, x := range out {
		if uint64(x) >= p.n {
			out[j] = p.at(key, x) // on through the cycle
		}
	}
}

// turnRow is half a round: it moves the row by what the column says.
func turnRow(key, row, column, rows uint64) uint64 {
	shift, _ := bits.Mul64(mix64(key^column), rows)
	if row += shift; row >= rows {
		row -= rows
	}
	return row
}

// golden is 2⁶⁴ divided by the golden ratio: successive multiples of it are
// spread as evenly as can be, which is what mix64 wants of its inputs.
const golden = 0x9e3779b97f4a7c15

// mix64 is the finalizer of SplitMix64, a bijection.
func mix64(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// seedKey hashes a seed before an epoch is added to it, or epoch 1 of one seed
// would be epoch 0 of another.
func seedKey(seed uint64) uint64 { return mix64(seed + golden) }

func epochKey(seedKey uint64, epoch int) uint64 {
	return mix64(seedKey + uint64(epoch)*golden)
}

// orders keeps the latest of those orders that are too dear to be computed
// position by position. That changes what At costs, never what it says. An order
// is that of an epoch, or of one of the parts that each epoch is cut into.
type orders[T any] struct {
	// Successive parts, on into the next epoch, have successive slots, so that
	// they don't displace each other. A slot is replaced as a whole; who has
	// loaded it may go on using it.
	slots   []atomic.Pointer[partOrder[T]]
	parts   int // of an epoch
	compute func(epoch, part int) []T
}

type partOrder[T any] struct {
	epoch, part int
	indices     func() []T // the first caller computes, the others wait for it
}

func newOrders[T any](keep, parts int, compute func(epoch, part int) []T) *orders[T] {
	return &orders[T]{slots: make([]atomic.Pointer[partOrder[T]], keep), parts: parts, compute: compute}
}

func (o *orders[T]) get(epoch, part int) []T {
	slot := &o.slots[uint(epoch*o.parts+part)%uint(len(o.slots))]
	for {
		kept := slot.Load()
		if kept != nil && kept.epoch == epoch && kept.part == part {
			return kept.indices()
		}
		fresh := &partOrder[T]{epoch: epoch, part: part, indices: sync.OnceValue(func() []T { return o.compute(epoch, part) })}
		if slot.CompareAndSwap(kept, fresh) {
			return fresh.indices()
		}
	}
}

// filler is what a sampler has that computes many positions faster than one by
// one: fill sets indices to those at from, from+1, ….
type filler interface {
	fill(epoch, from int, indices []int)
}

func (s sequential) fill(_, from int, indices []int) {
	for i := range indices {
		indices[i] = from + i
	}
}

func (s *shuffled) fill(epoch, from int, indices []int) {
	key := epochKey(s.key, epoch)
	for len(indices) >= 4 {
		s.perm.at4(key, from, (*[4]int)(indices))
		indices, from = indices[4:], from+4
	}
	for i := range indices {
		indices[i] = s.perm.at(key, from+i)
	}
}
