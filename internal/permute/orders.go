package permute

import (
	"sync"
	"sync/atomic"
)

// Orders keeps the latest orders of a sampler for which computing position by
// position would cost too much. It changes what a position costs, never its index. An
// order is the order of an epoch, or of one of the parts that each epoch is cut
// into.
type Orders[T any] struct {
	// Successive parts, on into the next epoch, have successive slots, so that
	// they don't displace each other. A slot is replaced as a whole: whoever has
	// read the old pointer may go on using it.
	slots   []atomic.Pointer[partOrder[T]]
	parts   int // per epoch
	compute func(epoch, part int) []T
}

type partOrder[T any] struct {
	epoch, part int
	indices     func() []T // the first caller computes, the others wait for it
}

// NewOrders makes Orders that keep a number of orders. An epoch has parts of them; compute
// must be pure.
func NewOrders[T any](keep, parts int, compute func(epoch, part int) []T) *Orders[T] {
	return &Orders[T]{slots: make([]atomic.Pointer[partOrder[T]], keep), parts: parts, compute: compute}
}

// Get returns the order of a part of an epoch. It may be called from many goroutines at once. If
// compute panics, so does Get, for as long as the order would be kept.
func (o *Orders[T]) Get(epoch, part int) []T {
	slot := &o.slots[uint(epoch*o.parts+part)%uint(len(o.slots))]
	for {
		kept := slot.Load()
		if kept != nil && kept.epoch == epoch && kept.part == part {
			return kept.indices()
		}
		fresh := &partOrder[T]{epoch: epoch, part: part, indices: sync.OnceValue(func() []T { return o.compute(epoch, part) })}
		if slot.CompareAndSwap(kept, fresh) {
			return fresh.indices()
		}
	}
}
