package permute

import (
	"sync"
	"sync/atomic"
)

// Orders keeps the latest orders of a sampler whose orders would cost too much to compute position by
// position. It changes only what a position costs, never its index. An order covers an epoch, or one of
// the parts into which each epoch is cut.
type Orders[T any] struct {
	// Successive parts, also those of the next epoch, use successive slots, so that they don't displace
	// each other. A slot is replaced as a whole: a goroutine that has read the old pointer may continue
	// to use it.
	slots   []atomic.Pointer[partOrder[T]]
	parts   int // parts per epoch
	compute func(epoch, part int) []T
}

type partOrder[T any] struct {
	epoch, part int
	indices     func() []T // the first caller computes; the others wait for it
}

// NewOrders makes an Orders. keep is how many orders it keeps, and parts is the number of parts of an
// epoch. compute must be pure.
func NewOrders[T any](keep, parts int, compute func(epoch, part int) []T) *Orders[T] {
	return &Orders[T]{slots: make([]atomic.Pointer[partOrder[T]], keep), parts: parts, compute: compute}
}

// Get returns the order of a part of an epoch. It may be called from many goroutines at once. If
// compute panics, so does Get, for as long as the order would be kept.
func (o *Orders[T]) Get(epoch, part int) []T {
	kept, _ := o.keep(epoch, part)
	return kept.indices()
}

// Prepare begins to compute the order of a part of an epoch, unless that has begun. The goroutine ends
// with the computation; a Get of this order waits for it.
func (o *Orders[T]) Prepare(epoch, part int) {
	if kept, fresh := o.keep(epoch, part); fresh {
		go func() {
			defer func() { _ = recover() }() // Get panics too
			kept.indices()
		}()
	}
}

// keep returns the order that is kept of a part, and whether it wasn't kept before.
func (o *Orders[T]) keep(epoch, part int) (kept *partOrder[T], fresh bool) {
	slot := &o.slots[uint(epoch*o.parts+part)%uint(len(o.slots))]
	for {
		kept := slot.Load()
		if kept != nil && kept.epoch == epoch && kept.part == part {
			return kept, false
		}
		fresh := &partOrder[T]{epoch: epoch, part: part, indices: sync.OnceValue(func() []T { return o.compute(epoch, part) })}
		if slot.CompareAndSwap(kept, fresh) {
			return fresh, true
		}
	}
}
