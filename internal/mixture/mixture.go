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
	Samples []int       // of each phase
	Weights [][]float64 // of each phase, one per part
	Block   int
}

// New returns a Mix without phases, with blocks of 1000 positions if block is 0.
func New(block int) *Mix { return &Mix{Block: cmp.Or(block, 1000)} }

// Add adds a phase. It copies weights.
func (m *Mix) Add(samples int, weights []float64) {
	m.Samples, m.Weights = append(m.Samples, samples), append(m.Weights, slices.Clone(weights))
}

// Check reports what is wrong with the phases and the block of a mixture of parts.
func (m *Mix) Check(parts int, bad func(value any, format string, args ...any)) {
	if m.Block < 1 || m.Block > MaxLen {
		bad(m.Block, "Mix.Block must be 1 … %d, or 0 for 1000", MaxLen)
	}
	if len(m.Weights) == 0 {
		bad(nil, "Mix.Phases must have at least 1 phase")
	}
	for i, weights := range m.Weights {
		samples, last := m.Samples[i], i == len(m.Weights)-1
		if !last && (samples < 1 || samples > MaxLen) {
			bad(samples, "Mix.Phases[%d].Samples must be 1 … %d", i, MaxLen)
		}
		if len(weights) != parts {
			bad(weights, "Mix.Phases[%d].Weights must be %d numbers, one for each part", i, parts)
			continue
		}
		sum, valid := 0.0, last || samples > 0
		for k, w := range weights {
			if !(w >= 0 && w <= math.MaxFloat64) { // written so that NaN fails too
				bad(w, "Mix.Phases[%d].Weights[%d] must be 0 or more, and finite", i, k)
				valid = false
			}
			sum += w
		}
		if !(sum > 0 && sum <= math.MaxFloat64) {
			bad(weights, "the sum of Mix.Phases[%d].Weights must be more than 0, and finite", i)
			valid = false
		}
		if !valid {
			continue
		}
		n := MaxLen
		if !last {
			n = samples
		}
		shares := newShares(weights)
		for k, w := range weights {
			if w > 0 && shares.of(k, uint64(n)) == 0 {
				bad(w, "Mix.Phases[%d].Weights[%d] gives part %d no sample among %d", i, k, k, n)
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
	length uint64   // number of positions
	first  uint64   // number of its first block
	drawn  []uint64 // samples drawn from each part before the phase
	shares shares
	tail   permute.Permutation // of the last block, if it is shorter
}

// Plan returns the plan of one rank, if world ranks take the positions of training in turn. The rank's
// positions count only its own. Check must have reported nothing.
func (m *Mix) Plan(seed uint64, rank, world int) *Plan {
	s := &Plan{key: permute.SeedKey(seed), block: m.Block, whole: permute.New(m.Block)}
	if rank > 0 {
		s.key = permute.Mix64(s.key + uint64(rank)*permute.Golden)
	}
	end := uint64(0) // end of the phase, over all ranks
	for i, weights := range m.Weights {
		phase := planPhase{shares: newShares(weights), drawn: make([]uint64, len(weights)), length: math.MaxUint64}
		if i > 0 {
			before := &s.phases[i-1]
			phase.start = before.start + before.length
			phase.first = before.first + before.length/uint64(s.block) + 1
			for k := range phase.drawn {
				phase.drawn[k] = before.drawn[k] + before.shares.of(k, before.length)
			}
		}
		if i < len(m.Weights)-1 {
			end += uint64(m.Samples[i])
			phase.length = (end+uint64(world-1-rank))/uint64(world) - phase.start
			phase.tail = permute.New(max(1, int(phase.length%uint64(s.block))))
		}
		s.phases = append(s.phases, phase)
	}
	return s
}

// blockAt returns the block that contains a position, and the position's place in it.
func (s *Plan) blockAt(position uint64) (b planBlock, place int) {
	p := &s.phases[sort.Search(len(s.phases)-1, func(k int) bool { return s.phases[k+1].start > position })]
	position -= p.start
	number, at, block := position/uint64(s.block), position%uint64(s.block), uint64(s.block)
	b = planBlock{phase: p, from: position - at, key: permute.Mix64(s.key + (p.first+number)*permute.Golden), perm: &s.whole}
	if b.to = b.from + block; b.to > p.length {
		b.to, b.perm = p.length, &p.tail
	}
	return b, int(at)
}

// A planBlock is a block of a phase: its positions from … to−1, which are mixed with each other.
type planBlock struct {
	phase    *planPhase
	from, to uint64
	key      uint64
	perm     *permute.Permutation
}

// before returns how often a part was drawn before the block.
func (b *planBlock) before(part int) uint64 {
	return b.phase.drawn[part] + b.phase.shares.of(part, b.from)
}

// at returns the part that a place of the block draws from, and the number of this draw among all draws
// from that part. Within the block, the count goes by the order that the places have before they are
// mixed: part after part.
func (b *planBlock) at(place int) (part int, draw uint64) {
	part, draw = b.phase.shares.at(b.from, b.to, uint64(b.perm.At(b.key, place)))
	return part, b.phase.drawn[part] + draw
}

// At returns the part that a position draws from, and the number of its draw from that part.
func (s *Plan) At(position uint64) (part int, draw uint64) {
	b, place := s.blockAt(position)
	return b.at(place)
}

// Draws returns how often a part is drawn in all blocks that contain positions from … to−1; at most
// math.MaxInt.
func (s *Plan) Draws(part int, from, to uint64) int {
	first, _ := s.blockAt(from)
	last, _ := s.blockAt(to - 1)
	return int(min(last.phase.drawn[part]+last.phase.shares.of(part, last.to)-first.before(part), math.MaxInt))
}

// Before returns how often each part is drawn before a position. If ctx ends, the counts may be too low.
func (s *Plan) Before(ctx context.Context, position uint64) []uint64 {
	b, places := s.blockAt(position)
	counts := make([]uint64, len(b.phase.drawn))
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
