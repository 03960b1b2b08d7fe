// Package mixture plans from which part of a mixture the sample at each position of training comes, and
// divides numbers in proportion to shares.
package mixture

import (
	"cmp"
	"context"
	"math"
	"slices"
	"sort"

	"github.com/nwt-go/nwt/internal/permute"
)

// MaxLen bounds an epoch, a block and a phase, so that positions don't overflow in
// a million epochs of training.
const MaxLen = 1 << (30 + 12*(^uint(0)>>63))

// A Mix holds the phases of a mixture, and the number of positions per block.
type Mix struct {
	Phases []Phase
	Block  int
}

// A Phase is a stretch of training in which the shares stay the same.
type Phase struct {
	Samples int
	Weights []float64
}

// New returns a Mix of copies of phases, with blocks of 1000 positions if block is 0.
func New[P ~struct {
	Samples int
	Weights []float64
}](phases []P, block int) Mix {
	m := Mix{Block: cmp.Or(block, 1000)}
	for _, p := range phases {
		phase := Phase(p)
		phase.Weights = slices.Clone(phase.Weights)
		m.Phases = append(m.Phases, phase)
	}
	return m
}

// Check reports what is wrong with the phases and the block of a mixture of parts.
func (m *Mix) Check(parts int, bad func(value any, format string, args ...any)) {
	if m.Block < 1 || m.Block > MaxLen {
		bad(m.Block, "Mix.Block must be 1 … %d, or 0 for 1000", MaxLen)
	}
	if len(m.Phases) == 0 {
		bad(nil, "Mix.Phases must have at least 1 phase")
	}
	for i, p := range m.Phases {
		if last := i == len(m.Phases)-1; !last && (p.Samples < 1 || p.Samples > MaxLen) {
			bad(p.Samples, "Mix.Phases[%d].Samples must be 1 … %d", i, MaxLen)
		}
		if len(p.Weights) != parts {
			bad(p.Weights, "Mix.Phases[%d].Weights must be %d numbers, one for each part", i, parts)
			continue
		}
		sum, valid := 0.0, m.Block >= 1
		for k, w := range p.Weights {
			if !(w >= 0 && w <= math.MaxFloat64) { // written so that NaN fails too
				bad(w, "Mix.Phases[%d].Weights[%d] must be 0 or more, and finite", i, k)
				valid = false
			}
			sum += w
		}
		if !(sum > 0 && sum <= math.MaxFloat64) {
			bad(p.Weights, "the sum of Mix.Phases[%d].Weights must be more than 0, and finite", i)
			valid = false
		}
		if !valid {
			continue
		}
		share := apportion(exactly(p.Weights), m.Block)
		for k, w := range p.Weights {
			if w > 0 && share[k] == 0 {
				bad(w, "Mix.Phases[%d].Weights[%d] gives part %d no sample in a block of %d: Mix.Block must be longer", i, k, k, m.Block)
			}
		}
	}
}

// A Plan says which part of a mixture each position draws from. Positions count over all epochs.
type Plan struct {
	key    uint64
	block  int
	whole  permute.Permutation // of the positions in a block
	phases []planPhase
}

type planPhase struct {
	start  uint64   // position over all epochs
	blocks uint64   // number of whole blocks; unused for the last phase
	first  uint64   // number of its first block
	drawn  []uint64 // samples drawn from each part before the phase
	share  []int    // samples of each part in a block
	ends   []int    // the sums of share up to each part

	// For a shorter last block:
	length   int
	rest     []int // samples of each part
	restEnds []int
	tail     permute.Permutation
}

// Plan returns the plan of one rank, if world ranks take the positions of training in turn. The rank's
// positions count only its own. Check must have reported nothing.
func (m *Mix) Plan(seed uint64, rank, world int) *Plan {
	s := &Plan{key: permute.SeedKey(seed), block: m.Block, whole: permute.New(m.Block)}
	if rank > 0 {
		s.key = permute.Mix64(s.key + uint64(rank)*permute.Golden)
	}
	end := uint64(0) // end of the phase, over all ranks
	for i, p := range m.Phases {
		weights := exactly(p.Weights)
		phase := planPhase{share: apportion(weights, s.block), drawn: make([]uint64, len(weights)), blocks: math.MaxUint64}
		phase.ends = sums(phase.share)
		if i > 0 {
			before := &s.phases[i-1]
			phase.start = before.start + before.blocks*uint64(s.block) + uint64(before.length)
			phase.first = before.first + before.blocks + 1
			for k := range weights {
				phase.drawn[k] = before.drawn[k] + before.blocks*uint64(before.share[k]) + uint64(before.rest[k])
			}
		}
		if i < len(m.Phases)-1 {
			end += uint64(p.Samples)
			n := (end+uint64(world-1-rank))/uint64(world) - phase.start
			phase.blocks, phase.length = n/uint64(s.block), int(n%uint64(s.block))
			phase.rest = apportion(weights, phase.length)
			phase.restEnds, phase.tail = sums(phase.rest), permute.New(max(1, phase.length))
		}
		s.phases = append(s.phases, phase)
	}
	return s
}

// sums returns the sum of numbers up to each, itself included.
func sums(numbers []int) []int {
	all, sum := make([]int, len(numbers)), 0
	for i, n := range numbers {
		sum += n
		all[i] = sum
	}
	return all
}

// blockAt returns the block that contains a position, and the position's place in it.
func (s *Plan) blockAt(position uint64) (b planBlock, place int) {
	p := &s.phases[sort.Search(len(s.phases)-1, func(k int) bool { return s.phases[k+1].start > position })]
	number, at := (position-p.start)/uint64(s.block), (position-p.start)%uint64(s.block)
	b = planBlock{phase: p, number: number, key: permute.Mix64(s.key + (p.first+number)*permute.Golden), perm: &s.whole, ends: p.ends}
	if number == p.blocks {
		b.perm, b.ends = &p.tail, p.restEnds
	}
	return b, int(at)
}

type planBlock struct {
	phase  *planPhase
	number uint64 // its number in the phase
	key    uint64
	perm   *permute.Permutation
	ends   []int
}

// before returns how often a part was drawn before the block.
func (b *planBlock) before(part int) uint64 {
	return b.phase.drawn[part] + b.number*uint64(b.phase.share[part])
}

// at returns the part that a place of the block draws from, and the number of this draw among the block's
// draws from that part. The count goes by the order that the places have before they are mixed: part
// after part.
func (b *planBlock) at(place int) (part, number int) {
	place = b.perm.At(b.key, place)
	part, _ = slices.BinarySearch(b.ends, place+1)
	if part > 0 {
		place -= b.ends[part-1]
	}
	return part, place
}

// At returns the part that a position draws from, and the number of its draw from that part.
func (s *Plan) At(position uint64) (part int, draw uint64) {
	b, place := s.blockAt(position)
	part, number := b.at(place)
	return part, b.before(part) + uint64(number)
}

// Draws returns how often a part is drawn in all blocks that contain positions from … to−1; at most
// math.MaxInt.
func (s *Plan) Draws(part int, from, to uint64) int {
	first, _ := s.blockAt(from)
	last, _ := s.blockAt(to - 1)
	share := last.ends[part]
	if part > 0 {
		share -= last.ends[part-1]
	}
	return int(min(last.before(part)-first.before(part)+uint64(share), math.MaxInt))
}

// Before returns how often each part is drawn before a position. If ctx ends, the counts may be too low.
func (s *Plan) Before(ctx context.Context, position uint64) []uint64 {
	b, places := s.blockAt(position)
	counts := make([]uint64, len(b.ends))
	for part := range counts {
		counts[part] = b.before(part)
	}
	for place := range places {
		if place%(1<<20) == 0 && ctx.Err() != nil {
			break
		}
		part, _ := b.at(place)
		counts[part]++
	}
	return counts
}
