package nwt

import (
	"errors"
	"fmt"

	"github.com/nwt-go/nwt/internal/permute"
)

// Computed is an order that a function computes for a whole epoch at once, n
// indices: for repeated augmentation, P classes × K samples in each batch, or a
// curriculum. An index may come more than once, and is augmented differently each
// time.
//
// The function must be pure: the same epoch always gives the same indices, on every
// rank and in every run. It is called when a position of an epoch is first asked
// for, from any goroutine; whoever asks for this epoch waits. The indices of two
// successive epochs are kept, so the function must not write to a slice that it has
// returned. For an epoch whose indices aren't kept any more it is called again. If
// it returns more or fewer than n indices, each position of the epoch is a
// *[LoadError].
func Computed(n int, order func(epoch int) []int) (Sampler, error) {
	var errs []error
	if n < 1 || n > maxSamples {
		errs = append(errs, optionError("Computed", n, "the length of an epoch must be 1 … %d", maxSamples))
	}
	if order == nil {
		errs = append(errs, optionError("Computed", nil, "the function must not be nil"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return &computed{n: n, orders: permute.NewOrders(2, 1, func(epoch, _ int) []int {
		indices := order(epoch)
		if len(indices) != n {
			panic(fmt.Sprintf("nwt: Computed: the function gives %d indices for epoch %d: must be %d", len(indices), epoch, n))
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

func (s *computed) At(epoch, i int) int {
	permute.CheckPosition(i, s.n)
	return s.orders.Get(epoch, 0)[i]
}

func (s *computed) Fill(epoch, from int, indices []int) {
	copy(indices, s.orders.Get(epoch, 0)[from:])
}
