package nwt

import (
	"math"
	"math/bits"
)

// An order is which samples make up which batch, as arithmetic: nothing is
// stored for an epoch, and every rank and every resumed run computes the same.
//
// An epoch is the positions 0 … n−1 of its sampler. A step takes the next
// batch × world positions, and rank r takes the r-th part of these. So the number of
// positions taken says exactly what all ranks have had. Nothing here overflows, not
// even with 32 bits, if n is at most maxSamples and world at most maxWorld.
type order struct {
	n           int // positions of an epoch; endless for a stream
	batch       int
	rank, world int
	dropLast    bool
}

// step is how many positions all ranks take together. With 32 bits, batch × world may
// be more than an int holds: an epoch is then one step, or none.
func (o *order) step() int {
	if hi, lo := bits.Mul(uint(o.batch), uint(o.world)); hi == 0 && lo <= math.MaxInt {
		return int(lo)
	}
	return math.MaxInt
}

// steps is the batches from position base to the end of the epoch: the same
// number on every rank.
func (o *order) steps(base int) int {
	left, step := o.n-base, o.step()
	if o.dropLast {
		return left / step
	}
	return left/step + min(left%step, 1)
}

// bounds is the positions of all ranks in step k from base.
func (o *order) bounds(base, k int) (from, to int) {
	step := o.step()
	from, to = base+k*step, o.n
	if step < o.n-from {
		to = from + step
	}
	if to <= o.n-o.world {
		return from, to
	}
	// If fewer positions than ranks are left for the last step, the step before it
	// gives some of its positions, so that each rank gets one.
	if short := o.world - (o.n-base)%step; short > 0 && short < o.world && o.batch > 1 && !o.dropLast {
		if last := o.steps(base) - 1; last > 0 && k == last-1 {
			to -= short
		} else if last > 0 && k == last {
			from -= short
		}
	}
	return from, to
}

// part is the positions of this rank in step k from base. If fewer positions than
// ranks are left in all, and no earlier step can give some, the ranks that would have
// none repeat positions of other ranks: a rank without a batch would make a collective
// operation hang.
func (o *order) part(base, k int) (from, to int) {
	from, to = o.bounds(base, k)
	n := to - from
	if o.world == 1 {
		return from, to
	}
	if n < o.world {
		from += o.rank % n
		return from, from + 1
	}
	return from + portion(n, o.rank, o.world), from + portion(n, o.rank+1, o.world)
}

// portion is n·rank/world, rounded down, although n·rank may be more than an int
// holds.
func portion(n, rank, world int) int {
	return n/world*rank + int(uint64(n%world)*uint64(rank)/uint64(world))
}

// endless stands for the length of a stream, which isn't known before its end.
const endless = math.MaxInt

// A course is the batches of one run through a loader: those of epoch first
// from position base on, then the whole epochs up to last.
type course struct {
	*order
	first, last int // epochs, last included
	base        int

	head, whole int // batches of the first epoch, and of every later one
	skipped     int // how many batches of this size base stands for, rounded up
}

func newCourse(o *order, first, last, base int) course {
	step := o.step()
	c := course{order: o, first: first, last: last, base: base, head: endless, skipped: base/step + min(base%step, 1)}
	if o.n != endless {
		c.head, c.whole = o.steps(base), o.steps(0)
	}
	return c
}

// len is the batches of the course.
func (c *course) len() int {
	if c.head == endless {
		return endless
	}
	if hi, lo := bits.Mul64(uint64(c.last-c.first), uint64(c.whole)); hi == 0 && lo < endless-uint64(c.head) {
		return c.head + int(lo)
	}
	return endless
}

// at is the epoch of batch i of the course, the position its epoch starts
// from, the batch's number from there, and its number in the epoch.
func (c *course) at(i int) (epoch, base, k, index int) {
	if i < c.head {
		return c.first, c.base, i, c.skipped + i
	}
	i -= c.head
	return c.first + 1 + i/c.whole, 0, i % c.whole, i % c.whole
}

// hasBatch is an error if WithDropLast would leave nothing of an epoch.
func (o *order) hasBatch() error {
	if o.steps(0) > 0 {
		return nil
	}
	return optionError("WithDropLast", o.batch, "leaves no batch of %d samples for each of %d ranks: an epoch has %d", o.batch, o.world, o.n)
}
