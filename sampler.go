package nwt

import (
	"fmt"

	"github.com/nwt-go/nwt/internal/permute"
)

// A Sampler defines the order of an epoch; package sampler has more samplers. It may be a [SamplerFiller]
// or a [BatchSampler]. If it has a method LastIndex() int, which returns the highest index that it visits
// or −1, the loader checks that index. If it has a method Step() int, which returns the number of samples
// in a step of all ranks, the loader warns if WithBatchSize × world doesn't divide that number.
type Sampler interface {
	Len() int            // the number of positions in an epoch; it must not change
	At(epoch, i int) int // returns the dataset index at position i, 0 ≤ i < Len(), always the same; many goroutines call it at once
}

// A BatchSampler also defines where batches end; its methods must be pure. Batch k of rank r is batch k ×
// world + r of the epoch. If the last step has fewer batches than ranks, several ranks share
// one; [WithDropLast] leaves that step out.
type BatchSampler interface {
	Sampler
	Batches() int               // the number of batches in an epoch, 1 … Len(); it must not change
	Start(epoch, batch int) int // returns the position at which a batch begins, 0 < batch < Batches(); many goroutines call it at once
	Largest() int               // the number of samples in the largest batch, 1 if not known; WithBatchSize must be at least that
}

// nameOfSampler returns the name that a sampler gives itself, or its type. Its content would be too long
// for a message.
func nameOfSampler(s Sampler) string {
	if named, ok := s.(fmt.Stringer); ok {
		return fmt.Sprint(named) // Sprint recovers if String panics
	}
	return fmt.Sprintf("%T", s)
}

// ask returns the result of a sampler's method; the sampler may be the program's.
func ask(option string, s Sampler, method string, asked func() int) (n int, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = optionError(option, nameOfSampler(s), "%s panicked: %v", method, p)
		}
	}()
	return asked(), nil
}

// epochLen returns the length of a sampler.
func epochLen(option string, s Sampler) (int, error) {
	n, err := ask(option, s, "Len", s.Len)
	if err == nil && (n < 1 || n > maxSamples) {
		err = optionError(option, n, "the length of an epoch must be 1 … %d", maxSamples)
	}
	return n, err
}

// checkIndices returns an error if a sampler visits an index that a dataset of n samples doesn't have. If
// the sampler has no LastIndex, bad indices are found while loading.
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

// Fingerprint leaves out the length: if the dataset has grown, only its length has changed.
func (s sequential) Fingerprint() string { return "Sequential" }

func (s sequential) At(_, i int) int {
	permute.CheckPosition(i, int(s))
	return i
}

// Shuffled visits 0 … n−1 once per epoch, in an order that is computed from seed and epoch, not stored.
// It is for statistics, not for secrets.
func Shuffled(n int, seed uint64) Sampler {
	s := &shuffled{n: n, seed: seed, key: permute.SeedKey(seed), perm: permute.New(n)}
	s.rounds = permute.NewOrders(2, 1, func(epoch, _ int) []uint16 { return s.perm.Tabulate(permute.EpochKey(s.key, epoch)) })
	return s
}

type shuffled struct {
	n    int
	seed uint64
	key  uint64 // derived from the seed
	perm permute.Permutation

	rounds *permute.Orders[uint16] // tables of the round functions of the latest epochs
}

func (s *shuffled) Len() int       { return s.n }
func (s *shuffled) LastIndex() int { return s.n - 1 }
func (s *shuffled) String() string { return fmt.Sprintf("Shuffled(%d, seed %d)", s.n, s.seed) }

func (s *shuffled) Fingerprint() string { return fmt.Sprintf("Shuffled, seed %d", s.seed) }

func (s *shuffled) At(epoch, i int) int {
	permute.CheckPosition(i, s.n)
	return s.perm.At(permute.EpochKey(s.key, epoch), i)
}

// A SamplerFiller is a [Sampler] that computes many positions at once, which is faster.
type SamplerFiller interface {
	Sampler
	Fill(epoch, from int, indices []int) // sets indices[k] to At(epoch, from+k) for each k; many goroutines call it at once
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
