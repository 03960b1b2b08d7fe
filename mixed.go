package nwt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/big"
	"slices"
	"sort"

	"github.com/nwt-go/nwt/internal/permute"
)

// A Mix says how [Mixed] mixes the parts of a [Concat], and [MixedStreams] streams.
type Mix struct {
	Parts  []int   // samples of each part, in the order of Concat; nil for MixedStreams
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
	if n < 1 || n > maxMixed {
		bad(n, "the length of an epoch must be 1 … %d", maxMixed)
	}
	if len(m.Parts) == 0 {
		bad(m.Parts, "Mix.Parts must have at least 1 part")
	}
	s := &mixed{n: n, seed: seed}
	from, key := 0, permute.SeedKey(seed)
	for k, length := range m.Parts {
		if length < 1 || length > math.MaxInt-from {
			bad(length, "Mix.Parts[%d] must be at least 1, and all parts at most %d", k, math.MaxInt)
			break
		}
		s.parts = append(s.parts, mixPart{from, permute.New(length), permute.Mix64(key + uint64(k+1)*permute.Golden)})
		from += length
	}
	m.check(len(m.Parts), bad)
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	s.plan = m.plan(seed, 0, 1)
	return s, nil
}

// maxMixed bounds an epoch, a block and a phase, so that positions don't overflow in
// a million epochs of training.
const maxMixed = 1 << (30 + 12*wide)

// check reports what is wrong with the phases and the block.
func (m *Mix) check(parts int, bad func(value any, format string, args ...any)) {
	block := m.block()
	if block < 1 || block > maxMixed {
		bad(m.Block, "Mix.Block must be 1 … %d, or 0 for 1000", maxMixed)
	}
	if len(m.Phases) == 0 {
		bad(m.Phases, "Mix.Phases must have at least 1 phase")
	}
	for i, p := range m.Phases {
		if last := i == len(m.Phases)-1; !last && (p.Samples < 1 || p.Samples > maxMixed) {
			bad(p.Samples, "Mix.Phases[%d].Samples must be 1 … %d", i, maxMixed)
		}
		if len(p.Weights) != parts {
			bad(p.Weights, "Mix.Phases[%d].Weights must be %d numbers, one for each part", i, parts)
			continue
		}
		sum, valid := 0.0, block >= 1
		for k, w := range p.Weights {
			if !(w >= 0 && w <= math.MaxFloat64) { // in this form NaN fails too
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
		share := apportion(exactly(p.Weights), block)
		for k, w := range p.Weights {
			if w > 0 && share[k] == 0 {
				bad(w, "Mix.Phases[%d].Weights[%d] gives part %d no sample in a block of %d: Mix.Block must be longer", i, k, k, block)
			}
		}
	}
}

func (m *Mix) block() int { return cmp.Or(m.Block, 1000) }

// apportion divides n by weights, by largest remainders.
func apportion(weights []*big.Int, n int) []int {
	sum := total(weights)
	share, rest := make([]int, len(weights)), make([]*big.Int, len(weights))
	byRest, left := make([]int, len(weights)), n
	for k, w := range weights {
		quota := new(big.Int).Mul(w, big.NewInt(int64(n)))
		quota, rest[k] = quota.QuoRem(quota, sum, new(big.Int))
		share[k], byRest[k] = int(quota.Int64()), k
		left -= share[k]
	}
	slices.SortStableFunc(byRest, func(a, b int) int { return rest[b].Cmp(rest[a]) })
	for _, k := range byRest[:left] { // fewer than parts
		share[k]++
	}
	return share
}

type mixed struct {
	n     int
	seed  uint64
	parts []mixPart
	plan  *mixPlan
}

type mixPart struct {
	from int                 // its first index
	perm permute.Permutation // of its samples
	key  uint64
}

func (s *mixed) Len() int { return s.n }

// lastIndex is the last index of the last part that has a weight in any phase.
func (s *mixed) lastIndex() int {
	for k := len(s.parts) - 1; k >= 0; k-- {
		if slices.ContainsFunc(s.plan.phases, func(p mixPhase) bool { return p.share[k] > 0 }) {
			return s.parts[k].from + s.parts[k].perm.Len() - 1
		}
	}
	return -1
}

func (s *mixed) String() string {
	return fmt.Sprintf("Mixed(%d, %d parts, %d phases, blocks of %d, seed %d)", s.n, len(s.parts), len(s.plan.phases), s.plan.block, s.seed)
}

func (s *mixed) At(epoch, i int) int {
	permute.CheckPosition(i, s.n)
	k, draw := s.plan.at(uint64(epoch)*uint64(s.n) + uint64(i))
	part := &s.parts[k]
	partEpoch, at := draw/uint64(part.perm.Len()), draw%uint64(part.perm.Len())
	return part.from + part.perm.At(permute.EpochKey(part.key, int(partEpoch)), int(at))
}

// A mixPlan tells which part of a mixture each position draws from. Positions count
// over all epochs.
type mixPlan struct {
	key    uint64
	block  int
	whole  permute.Permutation // of a block
	phases []mixPhase
}

type mixPhase struct {
	start  uint64   // position over all epochs
	blocks uint64   // whole blocks; of no meaning for the last phase
	first  uint64   // number of its first block
	drawn  []uint64 // samples of each part drawn before the phase
	share  []int    // samples of each part in a block
	ends   []int    // the sums of share up to each part

	// Of a last block that is shorter.
	length   int
	rest     []int // samples of each part
	restEnds []int
	tail     permute.Permutation
}

// plan is the plan of a rank, if world ranks take the positions of training in turn: the
// rank's positions count its own only. m must have been checked.
func (m *Mix) plan(seed uint64, rank, world int) *mixPlan {
	s := &mixPlan{key: permute.SeedKey(seed), block: m.block(), whole: permute.New(m.block())}
	if rank > 0 {
		s.key = permute.Mix64(s.key + uint64(rank)*permute.Golden)
	}
	end := uint64(0) // of the phase, over all ranks
	for i, p := range m.Phases {
		weights := exactly(p.Weights)
		phase := mixPhase{share: apportion(weights, s.block), drawn: make([]uint64, len(weights)), blocks: math.MaxUint64}
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

// sums is the sum of numbers up to each, itself included.
func sums(numbers []int) []int {
	all, sum := make([]int, len(numbers)), 0
	for i, n := range numbers {
		sum += n
		all[i] = sum
	}
	return all
}

// blockAt is the block that a position is in, and its place there.
func (s *mixPlan) blockAt(position uint64) (b mixBlock, place int) {
	p := &s.phases[sort.Search(len(s.phases)-1, func(k int) bool { return s.phases[k+1].start > position })]
	number, at := (position-p.start)/uint64(s.block), (position-p.start)%uint64(s.block)
	b = mixBlock{phase: p, number: number, key: permute.Mix64(s.key + (p.first+number)*permute.Golden), perm: &s.whole, ends: p.ends}
	if number == p.blocks {
		b.perm, b.ends = &p.tail, p.restEnds
	}
	return b, int(at)
}

type mixBlock struct {
	phase  *mixPhase
	number uint64 // in the phase
	key    uint64
	perm   *permute.Permutation
	ends   []int
}

// before is how often a part was drawn before the block.
func (b *mixBlock) before(part int) uint64 {
	return b.phase.drawn[part] + b.number*uint64(b.phase.share[part])
}

// at is the part that a place of the block draws from, and the number of this draw among the
// block's draws from that part. It counts in the order that the places have before they are
// mixed: part after part.
func (b *mixBlock) at(place int) (part, number int) {
	place = b.perm.At(b.key, place)
	part, _ = slices.BinarySearch(b.ends, place+1)
	if part > 0 {
		place -= b.ends[part-1]
	}
	return part, place
}

// at is the part that a position draws from, and the number of its draw from that part.
func (s *mixPlan) at(position uint64) (part int, draw uint64) {
	b, place := s.blockAt(position)
	part, number := b.at(place)
	return part, b.before(part) + uint64(number)
}

// draws is how often a part is drawn in all of the blocks that positions from … to−1 are
// in; at most math.MaxInt.
func (s *mixPlan) draws(part int, from, to uint64) int {
	first, _ := s.blockAt(from)
	last, _ := s.blockAt(to - 1)
	share := last.ends[part]
	if part > 0 {
		share -= last.ends[part-1]
	}
	return int(min(last.before(part)-first.before(part)+uint64(share), math.MaxInt))
}

// before is how often each part is drawn before a position.
func (s *mixPlan) before(ctx context.Context, position uint64) []uint64 {
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

// MixedStreams makes a dataset of several streams of the same fields, mixed by weights:
// what [Mixed] is for samples that have an index. It needs [WithEpochSamples], since an
// epoch of it has no other end.
//
// Phases and blocks are those of Mixed, except that each rank has its own blocks: each
// Mix.Block samples of a rank, counted on from epoch to epoch, have exactly the share of
// every part. A phase's Samples are counted over all ranks. The order in a block depends
// on the seed. If the number of ranks changes between two epochs, the phases stay where
// they are, but the blocks of the new ranks may have begun before that epoch.
//
// Each stream is read as [Streamed] says, as if it were alone: every rank needs a shard
// of each, WithInterleave of these are read at once, and WithShuffle mixes each stream
// within a window of its own. The bound of what is read ahead is for all together: each
// stream that the epoch needs has an equal share, whether it is drawn often or seldom.
// An epoch begins every stream anew; with WithShuffle, in another order of its shards.
// A stream that ends before the epoch does is read again. So nothing of a stream comes
// again in an epoch before all of the rank's part of it has come. But a stream of which
// an epoch takes only a little is never read to its end, and without WithShuffle each
// epoch takes the same: make epochs long. A stream that has no weight in any phase of
// an epoch isn't opened. A resume that skips must compute the positions that come before it
// in its block: if a block has millions, it begins late.
//
// [ShardError] counts the shards of all streams, one stream after the other.
func MixedStreams(m Mix, seed uint64, streams ...Stream) (Dataset, error) {
	var errs []error
	bad := func(value any, format string, args ...any) {
		errs = append(errs, optionError("MixedStreams", value, format, args...))
	}
	if len(m.Parts) > 0 {
		bad(m.Parts, "Mix.Parts must be nil: a stream has no number of samples")
	}
	if len(streams) == 0 {
		bad(streams, "needs at least one stream")
	}
	var first *layout
	for k, s := range streams {
		_, l, err := checkDataset(Streamed(s))
		if err != nil {
			errs = append(errs, within(fmt.Sprintf("MixedStreams: stream %d", k), err))
			continue
		}
		if first == nil {
			first = l
		}
		if diff := difference(first.fields, l.fields); diff != "" {
			bad(k, "stream %d differs from those before: %s", k, diff)
		}
	}
	m.check(len(streams), bad)
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	m.Phases = slices.Clone(m.Phases)
	for i := range m.Phases {
		m.Phases[i].Weights = slices.Clone(m.Phases[i].Weights)
	}
	return &streamDataset{streams: slices.Clone(streams), mix: &m, seed: seed}, nil
}
