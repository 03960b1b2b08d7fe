package nwt

import (
	"fmt"

	"github.com/nwt-go/nwt/internal/order"
	"github.com/nwt-go/nwt/internal/usercall"
)

// An ordering is the order of a loader's epochs, and the number of samples of its dataset. It doesn't
// change. If SetSampler or the length of the dataset requires another order, the loader gets a new
// ordering.
type ordering struct {
	sampler  Sampler // nil for a stream
	own      bool    // sampler is the loader's own, which follows n
	order    order.Order
	n        int // number of samples of the dataset; endless for a stream
	sorts    int // how many samples at a time the sampler sorts; 0 if not known
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
func (o *ordering) follow(option string, s Sampler) (err error) {
	if o.order.N, err = epochLen(option, s); err != nil {
		return err
	}
	if err := checkMethods(option, s); err != nil {
		return err
	}
	b, ok := s.(BatchSampler)
	if !ok {
		if sorts, ok := s.(SortingSampler); ok {
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

// startsOf returns a function that asks a BatchSampler where batches begin.
func startsOf(b BatchSampler) func(epoch, batch int) (position int, err error) {
	return func(epoch, batch int) (position int, err error) {
		usercall.Call(func() error { position = b.Start(epoch, batch); return nil }, func(stack []byte, cause error) {
			err = &LoadError{Index: -1, Position: -1, Epoch: epoch, Err: fmt.Errorf("BatchSampler.Start of batch %d: %w", batch, cause), Stack: stack}
		})
		return position, err
	}
}

// orderError turns an error of package order into one of this package.
func orderError(err error) error {
	if e, ok := err.(*order.Error); ok {
		return &OptionError{e.Option, e.Value, e.Bound}
	}
	return err
}

const endless = order.Endless
