package nwt

import (
	"errors"
	"fmt"
	"slices"

	"github.com/nwt-go/nwt/internal/permute"
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
	permute.CheckPosition(i, int(s))
	return i
}

// Shuffled visits each of 0 … n−1 once per epoch, in an order that depends on the
// seed and the epoch. It is for statistics, not for secrets.
//
// The order is computed, not stored. At computes a keyed permutation (a Feistel network
// with cycle walking), which takes about 20 ns per position. A loader asks for a batch of positions at a time; tables
// of the round function make that 5 ns per position. The tables of two epochs are
// kept, 12 × √n bytes per epoch; for more than 2²⁹ positions there are none.
func Shuffled(n int, seed uint64) Sampler {
	s := &shuffled{n: n, seed: seed, key: permute.SeedKey(seed), perm: permute.New(n)}
	s.rounds = permute.NewOrders(2, 1, func(epoch, _ int) []uint16 { return s.perm.Tabulate(permute.EpochKey(s.key, epoch)) })
	return s
}

type shuffled struct {
	n    int
	seed uint64
	key  uint64 // of the seed
	perm permute.Permutation

	rounds *permute.Orders[uint16] // tables of the latest epochs' round functions
}

func (s *shuffled) Len() int       { return s.n }
func (s *shuffled) lastIndex() int { return s.n - 1 }
func (s *shuffled) String() string { return fmt.Sprintf("Shuffled(%d, seed %d)", s.n, s.seed) }

func (s *shuffled) At(epoch, i int) int {
	permute.CheckPosition(i, s.n)
	return s.perm.At(permute.EpochKey(s.key, epoch), i)
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
	if !s.perm.Tabulates() {
		for i := range indices {
			indices[i] = s.At(epoch, from+i)
		}
		return
	}
	s.perm.Fill(s.rounds.Get(epoch, 0), from, indices)
}
