// Package sampler has samplers, which set the order of an epoch. Pass one to [nwt.WithSampler] or to
// [nwt.Loader.SetSampler]:
//
//   - [Weighted] and [WeightedWithoutReplacement] draw samples by weights.
//   - [Prioritized] draws by weights that change while training.
//   - [Bucketed] and [TokenBatches] bring samples of similar lengths together. With Bucketed,
//     [nwt.WithBatchSize] sets the number of samples of a batch. With TokenBatches, a batch has at most a
//     given number of tokens.
//   - [PerClass] makes batches of P classes × K samples.
//   - [Mixed] draws from the parts of a [nwt.Concat], by weights that may change as training goes on.
//   - [LocallyShuffled] is for files whose blocks are read whole.
//   - [Computed] uses the order that a function computes for an epoch.
//   - [Select] applies any order to part of a dataset.
//
// Like every [nwt.Sampler], they are pure: an index depends only on the seed, the epoch and the position. The
// indices of a Prioritized also depend on the weights at its latest Draw. If an argument is bad, the error is
// an *[nwt.ArgumentError]; several such errors are joined. If a position is outside the epoch, At panics.
package sampler

import (
	"errors"
	"fmt"
	"slices"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/permute"
)

func optionError(option string, value any, format string, args ...any) error {
	return &nwt.ArgumentError{Name: "sampler." + option, Value: value, Reason: fmt.Sprintf(format, args...)}
}

// Select makes a sampler for part of a dataset, with the order of s. Each index k from s becomes indices[k].
// For example, Select(nwt.Shuffled(len(indices), seed), indices) shuffles the part. An index that is listed
// twice comes twice. Indices must not be negative. Select copies them. If s is a [nwt.BatchSampler], so is
// the result.
//
// If s visits an index outside of 0 … len(indices)−1, At panics. If s is a [nwt.BoundedSampler], Select finds
// such an index and returns an error.
func Select(s nwt.Sampler, indices []int) (nwt.Sampler, error) {
	var errs []error
	if s == nil {
		errs = append(errs, optionError("Select", nil, "the sampler is nil"))
	}
	if len(indices) == 0 {
		errs = append(errs, optionError("Select", nil, "needs at least one index"))
	}
	if last := lastIndex(s); len(indices) > 0 && last >= len(indices) {
		errs = append(errs, optionError("Select", nameOf(s), "visits index %d, but only %d indices are selected", last, len(indices)))
	}
	if i := slices.IndexFunc(indices, func(index int) bool { return index < 0 }); i >= 0 {
		errs = append(errs, optionError(fmt.Sprintf("Select: indices[%d]", i), indices[i], "must be at least 0"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	selected := &selected{order: s, indices: slices.Clone(indices)}
	selected.digest = permute.Digest(len(indices), func(i int) uint64 { return uint64(indices[i]) })
	if b, ok := s.(nwt.BatchSampler); ok {
		return &selectedBatches{selected, b}, nil
	}
	return selected, nil
}

type selectedBatches struct {
	*selected
	batches nwt.BatchSampler
}

func (s *selectedBatches) Batches() int               { return s.batches.Batches() }
func (s *selectedBatches) Start(epoch, batch int) int { return s.batches.Start(epoch, batch) }
func (s *selectedBatches) Largest() int               { return s.batches.Largest() }

type selected struct {
	order   nwt.Sampler
	indices []int
	digest  uint64 // hash of the indices
}

func (s *selected) Len() int { return s.order.Len() }

// LastIndex returns the highest of the indices that the order may visit, or −1 if the order has no LastIndex.
func (s *selected) LastIndex() int {
	if last := lastIndex(s.order); last >= 0 {
		return slices.Max(s.indices[:last+1])
	}
	return -1
}

// lastIndex returns the highest index that a sampler visits, −1 if not known.
func lastIndex(s nwt.Sampler) int {
	if bounded, ok := s.(nwt.BoundedSampler); ok {
		return bounded.LastIndex()
	}
	return -1
}

func (s *selected) String() string {
	return fmt.Sprintf("Select(%v, %d indices)", nameOf(s.order), len(s.indices))
}

func (s *selected) Fingerprint() string {
	of := ""
	if order, ok := s.order.(nwt.Fingerprinter); ok {
		of = order.Fingerprint()
	}
	return fmt.Sprintf("Select(%s, %x)", of, s.digest)
}

func (s *selected) At(epoch, i int) int { return s.selected(s.order.At(epoch, i), epoch, i) }

// selected returns the index that replaces the order's index k.
func (s *selected) selected(k, epoch, i int) int {
	if k < 0 || k >= len(s.indices) {
		panic(fmt.Sprintf("sampler: Select: position %d of epoch %d is entry %d of %d", i, epoch, k, len(s.indices)))
	}
	return s.indices[k]
}

func (s *selected) Fill(epoch, from int, indices []int) {
	order, ok := s.order.(nwt.SamplerFiller)
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

// nameOf returns the name that a sampler gives itself, or its type. Its content would be too long for a
// message.
func nameOf(s nwt.Sampler) string {
	if named, ok := s.(fmt.Stringer); ok {
		return fmt.Sprint(named) // Sprint recovers if String panics
	}
	return fmt.Sprintf("%T", s)
}

// Computed returns an order of n indices, which a function computes for a whole epoch at once. Use it for
// repeated augmentation or a curriculum. If an index comes more than once, its sample is augmented
// differently each time.
//
// The function must be pure: for an epoch, it returns the same indices on every rank and in every run. It is
// called by the goroutine that first asks for a position of an epoch. Other goroutines that ask for this
// epoch wait meanwhile. The indices of two successive epochs are kept, so the function must not change a
// slice that it has returned. For an epoch that is no longer kept, the function is called again. If the
// function returns more or fewer than n indices, every position of the epoch fails with a *[nwt.LoadError].
func Computed(n int, order func(epoch int) []int) (nwt.Sampler, error) {
	var errs []error
	if n < 1 || n > permute.MaxLen {
		errs = append(errs, optionError("Computed", n, "the length of an epoch must be 1 … %d", permute.MaxLen))
	}
	if order == nil {
		errs = append(errs, optionError("Computed", nil, "the function is nil"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return &computed{n: n, orders: permute.NewOrders(2, 1, func(epoch, _ int) []int {
		indices := order(epoch)
		if len(indices) != n {
			panic(fmt.Sprintf("sampler: Computed: the function returned %d indices for epoch %d: must be %d", len(indices), epoch, n))
		}
		return indices
	})}, nil
}

type computed struct {
	n      int
	orders *permute.Orders[int]
}

func (s *computed) Len() int       { return s.n }
func (s *computed) String() string { return fmt.Sprintf("Computed(%d)", s.n) }

func (s *computed) Fingerprint() string { return s.String() }

func (s *computed) At(epoch, i int) int {
	permute.CheckPosition(i, s.n)
	return s.orders.Get(epoch, 0)[i]
}

func (s *computed) Fill(epoch, from int, indices []int) {
	copy(indices, s.orders.Get(epoch, 0)[from:])
}
