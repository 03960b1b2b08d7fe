package order

import (
	"fmt"
	"math"
	"math/bits"
)

// An Order computes which samples make up which batch: nothing is stored for an epoch, and every rank and
// every resumed run computes the same.
//
// An epoch consists of the positions 0 … n−1 of its sampler. A step takes the next batch × world
// positions, and rank r takes the r-th part of them. So the number of positions taken says exactly which
// samples all ranks have had. Nothing here overflows, not even with 32 bits, if n is at most
// permute.MaxLen and world at most launch.MaxWorld.
//
// With a BatchSampler a step takes the next world batches instead. Steps and schedules then count batches:
// their base is the number of a batch.
type Order struct {
	N           int // positions in an epoch; Endless for a stream
	Batch       int // samples in a batch, or in the largest batch allowed
	Rank, World int
	DropLast    bool

	// For a BatchSampler:
	Batches int                                              // batches per epoch, over all ranks; 0 if all batches have the same size
	Starts  func(epoch, batch int) (position int, err error) // not called for batch 0, nor after the last one
}

// Of returns the order for another rank.
func (o Order) Of(rank, world int) Order {
	o.Rank, o.World = rank, world
	return o
}

// Start returns the position at which a batch of a BatchSampler begins, or at which an epoch ends.
func (o *Order) Start(epoch, batch int) (position int, err error) {
	switch batch {
	case 0:
		return 0, nil
	case o.Batches:
		return o.N, nil
	}
	return o.Starts(epoch, batch)
}

// BatchAt returns the batch of a BatchSampler that begins at a position.
func (o *Order) BatchAt(epoch, position int) (batch int, err error) {
	if position == 0 {
		return 0, nil // whatever Start returns for the other batches
	}
	below, above := 0, o.Batches // the batch that begins at position is between them
	for below < above {
		middle := below + (above-below)/2
		at, err := o.Start(epoch, middle)
		switch {
		case err != nil:
			return 0, err
		case at < position:
			below = middle + 1
		default:
			above = middle
		}
	}
	at, err := o.Start(epoch, below)
	if err == nil && at != position {
		err = orderError("State.Samples", position, "no batch of epoch %d begins there: the next one, batch %d, begins at %d", epoch, below, at)
	}
	return below, err
}

// Positions returns the positions of this rank in step k from base, and the position after those of all
// ranks. The error comes from a BatchSampler.
func (o *Order) Positions(epoch, base, k int) (from, to, after int, err error) {
	if o.Batches > 0 {
		return o.partOf(epoch, base, k)
	}
	from, to, after = o.Part(base, k)
	return from, to, after, nil
}

// partOf does what Part and Bounds do, for a BatchSampler: it returns the positions of this rank in step
// k from batch base, and the position after those of all ranks. If fewer batches than ranks are left for
// the last step, several ranks share a batch, so that each has some of its samples. If the batch has
// fewer samples than ranks, they repeat samples.
func (o *Order) partOf(epoch, base, k int) (from, to, after int, err error) {
	first := base + k*o.World
	n := min(o.World, o.Batches-first)
	number := portion(n, o.Rank, o.World) // batches in the step
	batch := first + number
	if from, err = o.Start(epoch, batch); err != nil {
		return 0, 0, 0, err
	}
	if to, err = o.Start(epoch, batch+1); err != nil {
		return 0, 0, 0, err
	}
	if after, err = o.Start(epoch, first+n); err != nil {
		return 0, 0, 0, err
	}
	size := to - from
	switch {
	case from < 0 || to > after || after > o.N || size < 1:
		return 0, 0, 0, orderError("BatchSampler.Start", from, "batch %d of epoch %d has the positions from %d to before %d: must have at least one, below %d", batch, epoch, from, to, o.N)
	case size > o.Batch:
		return 0, 0, 0, orderError("BatchSampler.Start", from, "batch %d of epoch %d has %d samples, positions %d to before %d: WithBatchSize allows %d", batch, epoch, size, from, to, o.Batch)
	}
	if n < o.World {
		begin, end := sharers(n, number, o.World), sharers(n, number+1, o.World)
		if share, all := o.Rank-begin, end-begin; size < all {
			from += share % size
			to = from + 1
		} else {
			from, to = from+portion(size, share, all), from+portion(size, share+1, all)
		}
	}
	return from, to, after, nil
}

// sharers returns the first rank that has part number of n: the lowest rank for which portion(n, rank,
// world) is number.
func sharers(n, number, world int) int {
	return int((uint64(number)*uint64(world) + uint64(n) - 1) / uint64(n))
}

// Step returns how many positions all ranks take together; for a BatchSampler, how many batches. With 32
// bits, batch × world may be more than an int holds: an epoch is then one step, or none.
func (o *Order) Step() int {
	if o.Batches > 0 {
		return o.World
	}
	if hi, lo := bits.Mul(uint(o.Batch), uint(o.World)); hi == 0 && lo <= math.MaxInt {
		return int(lo)
	}
	return math.MaxInt
}

// Steps returns how many batches this rank has from base to the end of the epoch. The number is the same
// on every rank.
func (o *Order) Steps(base int) int {
	left, step := o.N-base, o.Step()
	if o.Batches > 0 {
		left = o.Batches - base
	}
	if o.DropLast {
		return left / step
	}
	return left/step + min(left%step, 1)
}

// PerBatch returns how many samples a batch of an epoch has on average, rounded up.
func (o *Order) PerBatch() int {
	switch {
	case o.N == Endless:
		return o.Batch
	case o.Batches > 0:
		return (o.N-1)/o.Batches + 1
	}
	return min(o.Batch, (o.N-1)/o.World+1)
}

// Bounds returns the positions of all ranks in step k from base.
func (o *Order) Bounds(base, k int) (from, to int) {
	step := o.Step()
	from, to = base+k*step, o.N
	if step < o.N-from {
		to = from + step
	}
	if to <= o.N-o.World {
		return from, to
	}
	// If fewer positions than ranks are left for the last step, the step before it gives up some of its
	// positions, so that each rank gets one.
	if short := o.World - (o.N-base)%step; short > 0 && short < o.World && o.Batch > 1 && !o.DropLast {
		if last := o.Steps(base) - 1; last > 0 && k == last-1 {
			to -= short
		} else if last > 0 && k == last {
			from -= short
		}
	}
	return from, to
}

// Part returns the positions of this rank in step k from base, and the position after those of all ranks.
// If fewer positions than ranks are left in total, and no earlier step can give some, the ranks that
// would have none repeat positions of other ranks, because a rank without a batch would make a collective
// operation hang.
func (o *Order) Part(base, k int) (from, to, after int) {
	from, after = o.Bounds(base, k)
	if o.World == 1 {
		return from, after, after
	}
	n := after - from
	if n < o.World {
		from += o.Rank % n
		return from, from + 1, after
	}
	return from + portion(n, o.Rank, o.World), from + portion(n, o.Rank+1, o.World), after
}

// portion returns n·rank/world, rounded down, although n·rank may be more than an int can hold.
func portion(n, rank, world int) int {
	return n/world*rank + int(uint64(n%world)*uint64(rank)/uint64(world))
}

// Endless stands for the length of a stream, which isn't known before its end.
const Endless = math.MaxInt

// A Schedule is the batches of one run through a loader: those of epoch first, beginning at position base,
// then the whole epochs up to last.
type Schedule struct {
	*Order
	First, Last int // the first and the last epoch
	Base        int

	Head, Whole int // batches in the first epoch, and in every later one
	Skipped     int // number of the first batch in its epoch
}

// NewSchedule returns the schedule of an order.
func NewSchedule(o *Order, first, last, base int) Schedule {
	step := o.Step()
	c := Schedule{Order: o, First: first, Last: last, Base: base, Head: Endless, Skipped: base/step + min(base%step, 1)}
	if o.N != Endless {
		c.Head, c.Whole = o.Steps(base), o.Steps(0)
		c.Skipped = c.Whole - c.Head // so that the last number is always whole−1
	}
	return c
}

// Len returns the number of batches in the schedule.
func (c *Schedule) Len() int {
	if c.Head == Endless {
		return Endless
	}
	if hi, lo := bits.Mul64(uint64(c.Last-c.First), uint64(c.Whole)); hi == 0 && lo < Endless-uint64(c.Head) {
		return c.Head + int(lo)
	}
	return Endless
}

// At returns the epoch of batch i of the schedule, the position at which its epoch begins in the schedule,
// the batch's number from there, and its number in the epoch.
func (c *Schedule) At(i int) (epoch, base, k, number int) {
	if i < c.Head {
		return c.First, c.Base, i, c.Skipped + i
	}
	i -= c.Head
	return c.First + 1 + i/c.Whole, 0, i % c.Whole, i % c.Whole
}

// HasBatch returns an error if WithDropLast would leave no batch of an epoch.
func (o *Order) HasBatch() error {
	if o.Steps(0) > 0 {
		return nil
	}
	if o.Batches > 0 {
		return orderError("WithDropLast", nil, "fewer batches (%d) than ranks (%d)", o.Batches, o.World)
	}
	each := ""
	if o.World > 1 {
		each = fmt.Sprintf(" for each of %d ranks", o.World)
	}
	return orderError("WithDropLast", nil, "fewer samples (%d) than one batch of %d%s", o.N, o.Batch, each)
}

// An Error says what is wrong with an order, as the value and the bound of an option.
type Error struct {
	Option string
	Value  any // nil if Bound contains it
	Bound  string
}

func (e *Error) Error() string { return fmt.Sprintf("%s(%v): %s", e.Option, e.Value, e.Bound) }

func orderError(option string, value any, format string, args ...any) error {
	return &Error{option, value, fmt.Sprintf(format, args...)}
}
