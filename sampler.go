package nwt

import (
	"fmt"

	"github.com/nwt-go/nwt/internal/permute"
)

// A Sampler is the order of an epoch. At is a pure function: the same epoch and position always
// give the same index. Package sampler has more.
//
// A sampler may be a [Filler] or a [BatchSampler]. A method LastIndex() int tells the highest
// index that it visits, −1 if not known, to be checked; Step() int for how many samples a step of
// all ranks it was made, for a warning if WithBatchSize × world doesn't divide it.
type Sampler interface {
	// Len is the number of positions in an epoch. It must not change.
	Len() int
	// At is the dataset index at position i of an epoch, 0 ≤ i < Len().
	// It is called from many goroutines at once.
	At(epoch, i int) int
}

// A BatchSampler is a [Sampler] that also says where batches end, as sampler.TokenBatches does.
// Its methods are pure, as At is. Batch k of rank r is batch k × world + r of the epoch. If the
// last step has fewer batches than ranks, several ranks share one; [WithDropLast] leaves that
// step out.
type BatchSampler interface {
	Sampler
	// Batches is the number of batches in an epoch, 1 … Len(). It must not change.
	Batches() int
	// Start is the position at which a batch of an epoch begins, 0 < batch < Batches().
	// The batch ends where the next one begins. Many goroutines call it at once.
	Start(epoch, batch int) int
	// Largest is how many samples the largest batch has. WithBatchSize must be at least
	// that. If it isn't known, 1 will do: a batch that is too large then ends its epoch.
	Largest() int
}

// nameOfSampler is what a sampler calls itself, or its type. Its content would be
// too long for a message.
func nameOfSampler(s Sampler) string {
	if named, ok := s.(fmt.Stringer); ok {
		return fmt.Sprint(named) // Sprint recovers if String panics
	}
	return fmt.Sprintf("%T", s)
}

// ask is what a method says of a sampler that may be the program's.
func ask(option string, s Sampler, method string, asked func() int) (n int, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = optionError(option, nameOfSampler(s), "%s panicked: %v", method, p)
		}
	}()
	return asked(), nil
}

// epochLen is the length of a sampler.
func epochLen(option string, s Sampler) (int, error) {
	n, err := ask(option, s, "Len", s.Len)
	if err == nil && (n < 1 || n > maxSamples) {
		err = optionError(option, n, "the length of an epoch must be 1 … %d", maxSamples)
	}
	return n, err
}

// checkIndices tells whether a dataset of n samples has all indices that a sampler visits.
// If the sampler has no LastIndex, loading finds the bad ones.
func checkIndices(option string, s Sampler, n int) error {
	knows, ok := s.(interface{ LastIndex() int })
	if !ok {
		return nil
	}
	last, err := ask(option, s, "LastIndex", knows.LastIndex)
	if last >= n {
		return optionError(option, nameOfSampler(s), "visits index %d, but the dataset has only %d samples", last, n)
	}
	return err
}

// Sequential visits 0 … n−1 in that order in every epoch.
func Sequential(n int) Sampler { return sequential(n) }

type sequential int

func (s sequential) Len() int       { return int(s) }
func (s sequential) LastIndex() int { return int(s) - 1 }
func (s sequential) String() string { return fmt.Sprintf("Sequential(%d)", int(s)) }

func (s sequential) At(_, i int) int {
	permute.CheckPosition(i, int(s))
	return i
}

// Shuffled visits each of 0 … n−1 once per epoch, in an order that depends on seed and epoch. The
// order is computed, not stored. It is for statistics, not for secrets.
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
func (s *shuffled) LastIndex() int { return s.n - 1 }
func (s *shuffled) String() string { return fmt.Sprintf("Shuffled(%d, seed %d)", s.n, s.seed) }

func (s *shuffled) At(epoch, i int) int {
	permute.CheckPosition(i, s.n)
	return s.perm.At(permute.EpochKey(s.key, epoch), i)
}

// A Filler is a [Sampler] that computes a run of positions at once, which is faster than
// one by one. A loader calls Fill instead of At.
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
