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
// At is a pure function: the same epoch and position always give the same index,
// whoever asks, in whatever order. So a loader can change its workers, its batch
// size or the number of ranks, and can resume in the middle of an epoch, without
// changing what is trained on.
type Sampler interface {
	// Len is the number of positions in an epoch. It must not change.
	Len() int
	// At is the dataset index at position i of an epoch, 0 ≤ i < Len().
	// It is called from many goroutines at once.
	At(epoch, i int) int
}

// A BatchSampler is a Sampler that also says where batches end, so that they needn't be
// equally large: see [TokenBatches]. A loader delivers its batches as they are; none may
// be larger than WithBatchSize.
//
// With several ranks, batch k of rank r is batch k × world + r of the epoch. If the last
// step has fewer batches than ranks, several ranks share a batch: each gets a part of
// it, and repeats a sample only if the batch has too few for its ranks. WithDropLast
// leaves out the batches of this step instead. A [State] counts samples here too. An
// epoch can be resumed wherever a batch begins, with any number of ranks: exactly the
// rest is delivered.
//
// Batches and Start are pure, as At is.
type BatchSampler interface {
	Sampler
	// Batches is the number of batches in an epoch, 1 … Len(). It must not change.
	Batches() int
	// Start is the position at which a batch of an epoch begins, 0 < batch < Batches().
	// The batch ends where the next one begins. It is called from many goroutines at
	// once.
	Start(epoch, batch int) int
}

// nameOfSampler is what a sampler calls itself, or its type. Its content would be
// too long for a message.
func nameOfSampler(s Sampler) string {
	if named, ok := s.(fmt.Stringer); ok {
		return fmt.Sprint(named) // Sprint recovers if String panics
	}
	return fmt.Sprintf("%T", s)
}

// checkIndices tells whether a dataset of n samples has all indices that a sampler visits.
// It knows the indices of nwt's own samplers only: loading finds the bad ones of others.
func checkIndices(option string, s Sampler, n int) error {
	if last := lastIndex(s); last >= n {
		return optionError(option, nameOfSampler(s), "visits index %d, but the dataset has only %d samples", last, n)
	}
	return nil
}

// lastIndex is the highest index that a sampler visits, −1 if it doesn't tell.
func lastIndex(s Sampler) int {
	if l, ok := s.(interface{ lastIndex() int }); ok {
		return l.lastIndex()
	}
	return -1
}

// Sequential visits 0 … n−1 in that order in every epoch.
func Sequential(n int) Sampler { return sequential(n) }

type sequential int

func (s sequential) Len() int       { return int(s) }
func (s sequential) lastIndex() int { return int(s) - 1 }
func (s sequential) String() string { return fmt.Sprintf("Sequential(%d)", int(s)) }

func (s sequential) At(_, i int) int {
	checkPosition(i, int(s))
	return i
}

// Shuffled visits each of 0 … n−1 once per epoch, in an order that depends on the
// seed and the epoch. It is for statistics, not for secrets.
//
// The order is computed, not stored. At computes a keyed permutation, which takes
// about 20 ns per position. A loader asks for a batch of positions at a time; tables
// of the round function make that 5 ns per position. The tables of two epochs are
// kept, 12 × √n bytes per epoch; for more than 2²⁸ positions there are none.
//
// The permutation is a Feistel network (Luby and Rackoff, "How to construct
// pseudorandom permutations from pseudorandom functions", 1988) over a rectangle of
// about √n × √n that holds all positions. A position that falls into one of the √n
// or so spare places goes through the network once more (cycle walking: Black and
// Rogaway, "Ciphers with arbitrary finite domains", 2002). The round function is
// the finalizer of SplitMix64 (Steele, Lea and Flood, 2014; the constants are
// Stafford's Mix13).
func Shuffled(n int, seed uint64) Sampler {
	s := &shuffled{n: n, seed: seed, key: seedKey(seed), perm: newPermutation(n)}
	s.rounds = newOrders(2, 1, func(epoch, _ int) []uint16 { return s.perm.tabulate(epochKey(s.key, epoch)) })
	return s
}

type shuffled struct {
	n    int
	seed uint64
	key  uint64 // of the seed
	perm permutation

	rounds *orders[uint16] // tables of the latest epochs' round functions
}

func (s *shuffled) Len() int       { return s.n }
func (s *shuffled) lastIndex() int { return s.n - 1 }
func (s *shuffled) String() string { return fmt.Sprintf("Shuffled(%d, seed %d)", s.n, s.seed) }

func (s *shuffled) At(epoch, i int) int {
	checkPosition(i, s.n)
	return s.perm.at(epochKey(s.key, epoch), i)
}

// Select is the order of s over part of a dataset: each k of s becomes indices[k].
// Select(Shuffled(len(indices), seed), indices) shuffles the part; an index listed
// twice comes twice. s must be an order of 0 … len(indices)−1; At panics if it
// isn't.
//
// If s is a [BatchSampler], so is the result. The indices are copied. They must not be
// negative.
func Select(s Sampler, indices []int) (Sampler, error) {
	var errs []error
	if s == nil {
		errs = append(errs, optionError("Select", nil, "the sampler must not be nil"))
	}
	if len(indices) == 0 {
		errs = append(errs, optionError("Select", indices, "there must be at least 1 index"))
	}
	if i := slices.IndexFunc(indices, func(index int) bool { return index < 0 }); i >= 0 {
		errs = append(errs, optionError("Select", indices[i], "index number %d must be at least 0", i))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	selected := &selected{order: s, indices: slices.Clone(indices)}
	if b, ok := s.(BatchSampler); ok {
		return &selectedBatches{selected, b}, nil
	}
	return selected, nil
}

type selectedBatches struct {
	*selected
	batches BatchSampler
}

func (s *selectedBatches) Batches() int               { return s.batches.Batches() }
func (s *selectedBatches) Start(epoch, batch int) int { return s.batches.Start(epoch, batch) }
func (s *selectedBatches) largest() int               { return largest(s.batches) }

// largest is how many samples the largest batch of a BatchSampler has, 1 if it doesn't
// tell.
func largest(s BatchSampler) int {
	if l, ok := s.(interface{ largest() int }); ok {
		return l.largest()
	}
	return 1
}

type selected struct {
	order   Sampler
	indices []int
}

func (s *selected) Len() int { return s.order.Len() }

func (s *selected) lastIndex() int {
	visited := s.indices[:min(len(s.indices), lastIndex(s.order)+1)]
	if len(visited) == 0 {
		return -1
	}
	return slices.Max(visited)
}

func (s *selected) String() string {
	return fmt.Sprintf("Select(%v, %d indices)", nameOfSampler(s.order), len(s.indices))
}

func (s *selected) At(epoch, i int) int { return s.selected(s.order.At(epoch, i), epoch, i) }

// selected is the index that the order's index k stands for.
func (s *selected) selected(k, epoch, i int) int {
	if k < 0 || k >= len(s.indices) {
		panic(fmt.Sprintf("nwt: position %d of epoch %d selects index %d of %d", i, epoch, k, len(s.indices)))
	}
	return s.indices[k]
}

func (s *selected) Fill(epoch, from int, indices []int) {
	order, ok := s.order.(Filler)
	if !ok {
		for i := range indices {
			indices[i] = s.At(epoch, from+i)
		}
		return
	}
	order.Fill(epoch, from, indices)
	for i, k := range indices {
		indices[i] = s.selected(k, epoch, from+i)
	}
}

// checkPosition panics if a position is outside the epoch, as indexing a slice
// does: such a position is a mistake in the caller's code, and has no index.
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
	// uniform one by a factor of about n. Tiny permutations get enough rounds for
	// 2⁻³², which makes them fair too. Large ones get six, which they need against
	// subtler structure (Patarin, "Security of random Feistel schemes with 5 or more
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
			row = wrap(row+turn(k, column, p.rows), p.rows)
			k += golden
			column = (column + slide(k, row)) & mask
			k += golden
		}
		if x = row<<p.bits | column; x < p.n {
			return int(x)
		}
	}
}

// maxTabulated is the bits of the longest tables, for 2²⁸ positions: 0.2 MB.
const maxTabulated = 14

// tabulate is the round functions for a key as two tables per pair of rounds: by
// how much each column turns the row, and by how much each row turns the column.
// Each table has about √n entries.
func (p *permutation) tabulate(key uint64) []uint16 {
	columns, rows := uint64(1)<<p.bits, p.rows
	tables := make([]uint16, 0, uint64(p.rounds/2)*(columns+rows))
	for range p.rounds / 2 {
		for column := range columns {
			tables = append(tables, uint16(turn(key, column, rows)))
		}
		key += golden
		for row := range rows {
			tables = append(tables, uint16(slide(key, row)&(columns-1)))
		}
		key += golden
	}
	return tables
}

// fill sets out to the results of at for i, i+1, …, with the tables of a key.
func (p *permutation) fill(tables []uint16, i int, out []int) {
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
func (p *permutation) through(tables []uint16, positions []int) {
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
	by, _ := bits.Mul64(mix64(key^column), rows)
	return by
}

// slide is, in its low bits, by how much a row turns the column.
func slide(key, row uint64) uint64 { return mix64(key^row) >> 32 }

// wrap is x modulo n for x < 2n, without a branch: the CPU couldn't predict it.
func wrap(x, n uint64) uint64 {
	less, borrow := bits.Sub64(x, n, 0)
	return less + n&-borrow
}

// golden is 2⁶⁴ divided by the golden ratio. Its successive multiples are spread
// as evenly as can be, as mix64 wants its inputs.
const golden = 0x9e3779b97f4a7c15

// mix64 is the finalizer of SplitMix64, a bijection.
func mix64(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// seedKey hashes a seed before an epoch is added to it. Otherwise epoch 1 of one
// seed would be epoch 0 of another.
func seedKey(seed uint64) uint64 { return mix64(seed + golden) }

func epochKey(seedKey uint64, epoch int) uint64 {
	return mix64(seedKey + uint64(epoch)*golden)
}

// orders keeps the latest orders of a sampler for which computing position by
// position would cost too much. It changes what At costs, never what At returns. An
// order is the order of an epoch, or of one of the parts that each epoch is cut
// into.
type orders[T any] struct {
	// Successive parts, on into the next epoch, have successive slots, so that
	// they don't displace each other. A slot is replaced as a whole: whoever has
	// read the old pointer may go on using it.
	slots   []atomic.Pointer[partOrder[T]]
	parts   int // per epoch
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

// A Filler is a [Sampler] that computes many positions faster than one by one. A
// loader calls its Fill instead of At.
type Filler interface {
	Sampler
	// Fill sets indices[k] to the dataset index at position from+k of an epoch: the
	// same that At returns. It is called from many goroutines at once.
	Fill(epoch, from int, indices []int)
}

func (s sequential) Fill(_, from int, indices []int) {
	for i := range indices {
		indices[i] = from + i
	}
}

func (s *shuffled) Fill(epoch, from int, indices []int) {
	if s.perm.bits > maxTabulated {
		for i := range indices {
			indices[i] = s.At(epoch, from+i)
		}
		return
	}
	s.perm.fill(s.rounds.get(epoch, 0), from, indices)
}
