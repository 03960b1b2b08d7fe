package nwt

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
)

// A Mix says how [Mixed] mixes the parts of a [Concat].
type Mix struct {
	Parts  []int   // samples of each part, in the order of Concat
	Phases []Phase // phases of training, one after the other; the last one never ends
	Block  int     // positions per block, within which the shares are exact; 0 = 1000
}

// A Phase is a stretch of training in which the shares of a [Mix] stay the same.
type Phase struct {
	Samples int       // how many positions it lasts, over all epochs and ranks; of no meaning for the last phase
	Weights []float64 // one per part, in any unit; 0 leaves a part out
}

// Mixed draws n samples per epoch from the parts of a [Concat], by weights: text of
// several languages, several corpora, easy samples before hard ones. In each phase
// the share of part k is Weights[k] / Σ Weights.
//
// Training is cut into blocks of Mix.Block positions. Each block has exactly the
// share of every part, rounded by largest remainders, in random order. A weight that
// rounds to 0 samples per block is an error: use a longer block. The last block of a
// phase may be shorter.
//
// Each part has its own epochs. All its samples come once, shuffled, then all come
// again in another order, and so on, however its share changes and whatever n is.
// The end of one such epoch may mix with the start of the next, but only within a
// block. So the samples of a small part come more often than those of a large part
// of the same weight.
//
// What was drawn is not stored: each position is computed, in about 0.2 µs.
func Mixed(n int, m Mix, seed uint64) (Sampler, error) {
	var errs []error
	bad := func(value any, format string, args ...any) {
		errs = append(errs, optionError("Mixed", value, format, args...))
	}
	m.Block = cmp.Or(m.Block, 1000)
	if n < 1 || n > maxMixed {
		bad(n, "the length of an epoch must be 1 … %d", maxMixed)
	}
	if m.Block < 1 || m.Block > maxMixed {
		bad(m.Block, "Mix.Block must be 1 … %d, or 0 for 1000", maxMixed)
	}
	if len(m.Parts) == 0 {
		bad(m.Parts, "Mix.Parts must have at least 1 part")
	}
	if len(m.Phases) == 0 {
		bad(m.Phases, "Mix.Phases must have at least 1 phase")
	}
	s := &mixed{n: n, seed: seed, key: seedKey(seed), block: m.Block, whole: newPermutation(max(1, m.Block))}
	from := 0
	for k, length := range m.Parts {
		if length < 1 || length > math.MaxInt-from {
			bad(length, "Mix.Parts[%d] must be at least 1, and all parts at most %d", k, math.MaxInt)
			break
		}
		s.parts = append(s.parts, mixPart{from, newPermutation(length), mix64(s.key + uint64(k+1)*golden)})
		from += length
	}
	for i, p := range m.Phases {
		last := i == len(m.Phases)-1
		if !last && (p.Samples < 1 || p.Samples > maxMixed) {
			bad(p.Samples, "Mix.Phases[%d].Samples must be 1 … %d", i, maxMixed)
		}
		if len(p.Weights) != len(m.Parts) {
			bad(p.Weights, "Mix.Phases[%d].Weights must be %d, one for each part", i, len(m.Parts))
			continue
		}
		sum := 0.0
		for k, w := range p.Weights {
			if !(w >= 0 && w <= math.MaxFloat64) { // in this form NaN fails too
				bad(w, "Mix.Phases[%d].Weights[%d] must be 0 … %g", i, k, math.MaxFloat64)
			}
			sum += w
		}
		if !(sum > 0 && sum <= math.MaxFloat64) {
			bad(p.Weights, "the sum of Mix.Phases[%d].Weights must be more than 0, and at most %g", i, math.MaxFloat64)
		}
		if len(errs) > 0 {
			continue
		}
		share := apportion(p.Weights, sum, m.Block)
		for k, w := range p.Weights {
			if w > 0 && share[k] == 0 {
				bad(w, "Mix.Phases[%d].Weights[%d] gives part %d no sample in a block of %d: Mix.Block must be longer", i, k, k, m.Block)
			}
		}
		s.add(p, sum, share, last)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return s, nil
}

// maxMixed bounds an epoch, a block and a phase, so that positions don't overflow in
// a million epochs of training.
const maxMixed = 1 << (30 + 12*wide)

// apportion divides n by weights that add up to sum, by largest remainders.
func apportion(weights []float64, sum float64, n int) []int {
	share, rest := make([]int, len(weights)), make([]float64, len(weights))
	left := n
	for k, w := range weights {
		quota := w / sum * float64(n)
		share[k] = int(quota)
		rest[k] = quota - float64(share[k])
		left -= share[k]
	}
	byRest := make([]int, len(weights))
	for k := range byRest {
		byRest[k] = k
	}
	slices.SortStableFunc(byRest, func(a, b int) int { return cmp.Compare(rest[b], rest[a]) })
	for i := 0; left > 0; i, left = i+1, left-1 {
		share[byRest[i%len(byRest)]]++
	}
	return share
}

type mixed struct {
	n      int
	seed   uint64
	key    uint64
	block  int
	whole  permutation // of a block
	parts  []mixPart
	phases []mixPhase
}

type mixPart struct {
	from int         // its first index
	perm permutation // of its samples
	key  uint64
}

type mixPhase struct {
	start  uint64   // position over all epochs
	blocks uint64   // whole blocks; of no meaning for the last phase
	first  uint64   // number of its first block
	drawn  []uint64 // samples of each part drawn before the phase
	share  []int    // samples of each part in a block
	rest   []int    // samples of each part in a last block that is shorter
	tail   permutation
	length int // of that
}

// add adds a phase after those there are.
func (s *mixed) add(p Phase, sum float64, share []int, last bool) {
	phase := mixPhase{share: share, drawn: make([]uint64, len(s.parts))}
	if n := len(s.phases); n > 0 {
		before := s.phases[n-1]
		phase.start = before.start + before.blocks*uint64(s.block) + uint64(before.length)
		phase.first = before.first + before.blocks + 1
		for k := range s.parts {
			phase.drawn[k] = before.drawn[k] + before.blocks*uint64(before.share[k]) + uint64(before.rest[k])
		}
	}
	phase.blocks = math.MaxUint64
	if !last {
		phase.blocks, phase.length = uint64(p.Samples/s.block), p.Samples%s.block
		phase.rest, phase.tail = apportion(p.Weights, sum, phase.length), newPermutation(max(1, phase.length))
	}
	s.phases = append(s.phases, phase)
}

func (s *mixed) Len() int { return s.n }
func (s *mixed) String() string {
	return fmt.Sprintf("Mixed(%d, %d parts, %d phases, blocks of %d, seed %d)", s.n, len(s.parts), len(s.phases), s.block, s.seed)
}

func (s *mixed) At(epoch, i int) int {
	checkPosition(i, s.n)
	position := uint64(epoch)*uint64(s.n) + uint64(i)
	p := &s.phases[sort.Search(len(s.phases)-1, func(k int) bool { return s.phases[k+1].start > position })]
	block, place := (position-p.start)/uint64(s.block), int((position-p.start)%uint64(s.block))
	share, perm := p.share, &s.whole
	if block == p.blocks {
		share, perm = p.rest, &p.tail
	}
	place = perm.at(mix64(s.key+(p.first+block)*golden), place)
	// The places of a block, before they are mixed, are part after part.
	k := 0
	for ; place >= share[k]; k++ {
		place -= share[k]
	}
	draw := p.drawn[k] + block*uint64(p.share[k]) + uint64(place)
	part := &s.parts[k]
	partEpoch, at := draw/part.perm.n, draw%part.perm.n
	return part.from + part.perm.at(epochKey(part.key, int(partEpoch)), int(at))
}
