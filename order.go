package nwt

import (
	"fmt"

	"github.com/nwt-go/nwt/internal/order"
	"github.com/nwt-go/nwt/internal/usercall"
)

// follow sets what depends on the sampler: how many positions and batches an epoch has.
func (o *ordering) follow(option string, s Sampler) (err error) {
	if o.order.N, err = epochLen(option, s); err != nil {
		return err
	}
	b, ok := s.(BatchSampler)
	if !ok {
		if _, starts := s.(interface{ Start(epoch, batch int) int }); starts {
			return optionError(option, nameOfSampler(s), "has Start, but isn't a BatchSampler: Batches or Largest is missing")
		}
		if sorts, ok := s.(interface{ Step() int }); ok {
			o.sorts, err = ask(option, s, "Step", sorts.Step)
		}
		return err
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

// startsOf asks a BatchSampler where batches begin.
func startsOf(b BatchSampler) func(epoch, batch int) (position int, err error) {
	return func(epoch, batch int) (position int, err error) {
		usercall.Call(func() error { position = b.Start(epoch, batch); return nil }, func(stack []byte, cause error) {
			err = &LoadError{Index: -1, Position: -1, Epoch: epoch, Err: fmt.Errorf("BatchSampler.Start of batch %d: %w", batch, cause), Stack: stack}
		})
		return position, err
	}
}

// orderError returns an error of package order as one of this package.
func orderError(err error) error {
	if e, ok := err.(*order.Error); ok {
		return &OptionError{e.Option, e.Value, e.Bound}
	}
	return err
}

const endless = order.Endless
