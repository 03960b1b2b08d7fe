package nwt

import (
	"fmt"

	"github.com/nwt-go/nwt/internal/order"
	"github.com/nwt-go/nwt/internal/permute"
	"github.com/nwt-go/nwt/internal/usercall"
)

// A Sampler defines the order of an epoch. Package sampler has more samplers. A Sampler may also be a
// [BatchSampler], a [SamplerFiller] or a [BoundedSampler].
type Sampler interface {
	Len() int            // the number of positions in an epoch, which must not change
	At(epoch, i int) int // returns the dataset index at position i, 0 ≤ i < Len(). The index must not change. Many goroutines call it at once
}

// A BatchSampler is a [Sampler] that also decides where batches end. Its methods must be pure. Batch k of
// rank r is batch k × world + r of the epoch. If the last step has fewer batches than ranks, several ranks
// share a batch.
type BatchSampler interface {
	Sampler
	Batches() int               // the number of batches in an epoch, 1 … Len(), which must not change
	Start(epoch, batch int) int // returns the position at which a batch begins, 0 < batch < Batches(). Many goroutines call it at once
	Largest() int               // the number of samples in the largest batch, or 1 if it isn't known. WithBatchSize must be at least this number
}

// A BoundedSampler is a [Sampler] that knows the highest index it visits. If the dataset lacks that index,
// the loader fails before it loads a sample. With any other sampler, the loader finds a missing index only
// while loading.
type BoundedSampler interface {
	Sampler
	LastIndex() int // returns the highest index that any epoch visits, or −1 if it isn't known
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
	defer panicked(&err, option, s, method)
	return asked(), nil
}

// epochLen returns the length of a sampler.
func epochLen(option string, s Sampler) (int, error) {
	n, err := ask(option, s, "Len", s.Len)
	if err == nil && (n < 1 || n > maxSamples) {
		err = optionError(option, nameOfSampler(s), "its Len is %d: must be 1 … %d", n, maxSamples)
	}
	return n, err
}

// checkIndices returns an error if a sampler visits an index that a dataset of n samples doesn't have.
func checkIndices(option string, s Sampler, n int) error {
	bounded, ok := s.(BoundedSampler)
	if !ok {
		return nil
	}
	last, err := ask(option, s, "LastIndex", bounded.LastIndex)
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

// Shuffled visits 0 … n−1 once per epoch. The order is computed from n, seed and epoch, and isn't stored.
// Orders of different n have nothing in common. Shuffled is for statistics, not for secrets.
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

// A SamplerFiller is a [Sampler] that is faster at many positions at once.
type SamplerFiller interface {
	Sampler
	Fill(epoch, from int, indices []int) // sets indices[k] to At(epoch, from+k) for each k. Many goroutines call it at once
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

// An epochOrder is the order of a loader's epochs, and the number of samples of its dataset. It doesn't
// change. If SetSampler or the length of the dataset requires another order, the loader gets a new
// one.
type epochOrder struct {
	sampler  Sampler // nil for a stream
	own      bool    // sampler is the loader's own, which follows n
	order    order.Order
	n        int // number of samples of the dataset; endless for a stream
	perBatch int // copied from order
}

// newOrder returns an order that follows no sampler yet.
func (o *options) newOrder() order.Order {
	return order.Order{N: endless, Batch: o.batchSize, Rank: o.rank, World: o.world, DropLast: o.dropLast}
}

// ownOrder returns the order of n samples if the program gives no sampler.
func (o *options) ownOrder(n int) Sampler {
	if o.shuffle {
		return Shuffled(n, o.shuffled)
	}
	return Sequential(n)
}

// follow sets the fields that depend on the sampler: how many positions and batches an epoch has.
func (o *epochOrder) follow(option string, s Sampler) (err error) {
	if o.order.N, err = epochLen(option, s); err != nil {
		return err
	}
	b, ok := s.(BatchSampler)
	if !ok {
		return nil
	}
	if o.order.Batches, err = ask(option, s, "Batches", b.Batches); err != nil {
		return err
	}
	o.order.Starts = startsOf(b)
	if o.order.Batches < 1 || o.order.Batches > o.order.N {
		return optionError(option, o.order.Batches, "an epoch of %d samples must have 1 … %d batches", o.order.N, o.order.N)
	}
	n, err := ask(option, s, "Largest", b.Largest)
	if n > o.order.Batch {
		return optionError("WithBatchSize", o.order.Batch, "must be at least %d, the samples of the largest batch of %s", n, nameOfSampler(s))
	}
	return err
}

// startsOf returns a function that asks a BatchSampler where batches begin.
func startsOf(b BatchSampler) func(epoch, batch int) (position int, err error) {
	return func(epoch, batch int) (position int, err error) {
		usercall.Call(func() error { position = b.Start(epoch, batch); return nil }, func(stack []byte, cause error) {
			err = &LoadError{Index: -1, Position: -1, Epoch: epoch, Err: fmt.Errorf("BatchSampler.Start of batch %d: %w", batch, usercall.Cause(cause)), Stack: stack}
		})
		return position, err
	}
}

// orderError turns an error of package order into one of this package.
func orderError(err error) error {
	if e, ok := err.(*order.Error); ok {
		err := &ArgumentError{Name: e.Option, Value: e.Value, Reason: e.Bound}
		if e.Option == "WithDropLast" {
			err.Code = codeFewSamples
		}
		return err
	}
	return err
}

const endless = order.Endless
