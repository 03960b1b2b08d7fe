package nwt

import (
	"slices"
)

// tellGoesOn tells a consumer that looks ahead that the batch, or an error in its place, will be
// delivered. The transfer goroutine calls it.
func (r *run) tellGoesOn(b *Batch) {
	b.goesOn.Store(true)
	if r.demand.looking.Load() {
		r.l.ring.Interrupt()
	}
}

// lastOf returns whether a batch that is delivered is the last of its epoch, as far as this is known
// without waiting.
func (r *run) lastOf(b *Batch) int32 {
	o, left := r.l.opts, b.left
	if o.unordered {
		switch left = -1; {
		case r.course.Head == endless:
		case !r.isAhead(b.epoch):
			left = 0
		case o.maxBad == 0:
			left = 1
		}
	}
	switch {
	case left == 0:
		return isLast
	case left > o.maxBad || left > 0 && o.world > 1: // on one of several ranks, a batch without a sample is an error
		return notLast
	}
	return lastUnknown
}

// isAhead reports whether a batch of an epoch is open, or is yet to be opened. The run's length must be
// known.
func (r *run) isAhead(epoch int) bool {
	if r.opened < r.course.Len() {
		if next, _, _, _ := r.course.At(r.opened); next == epoch {
			return true
		}
	}
	return slices.ContainsFunc(r.ahead, func(seq uint64) bool { return r.l.ring.Item(seq).epoch == epoch })
}

// tellLast is findLast for a caller that holds turn.
func (r *run) tellLast(b *Batch) {
	last := notLast
	if r.nothingFollows(b.epoch) {
		last = isLast
	}
	b.setLast(last)
}

// nothingFollows waits until it is known whether another batch of an epoch will be delivered. It drops
// the batches of the epoch that have no sample left. The caller holds turn.
func (r *run) nothingFollows(epoch int) bool {
	for i := 0; !r.halted; {
		if i == len(r.ahead) {
			r.l.extra.looks.Store(true)
			if opened, err := r.openOne(); err != nil || !opened {
				ended := r.outcome.over && r.outcome.failure == nil || r.course.Head != endless && r.outcome.refused == nil && !r.isAhead(epoch)
				return err == nil && ended
			}
		}
		b := r.lookAt(i)
		switch {
		case b == nil:
			return false
		case b.end:
			return b.failure == nil
		case b.epoch > epoch:
			return true
		case b.epoch < epoch: // possible with WithUnordered
			i++
		case b.goesOn.Load() || b.err != nil || b.size > 0 || r.take(b.seq) == nil:
			return false
		default:
			b.letGo()
		}
	}
	return false
}

// lookAt waits until a batch ahead is ready or is known to be delivered. It returns nil if the run is
// over.
func (r *run) lookAt(i int) *Batch {
	b := r.l.ring.Item(r.ahead[i])
	r.demand.looking.Store(true)
	defer r.demand.looking.Store(false)
	if !b.goesOn.Load() {
		if _, ok := r.awaitOne(i, false); !ok || r.caller.Err() != nil {
			return nil
		}
	}
	if r.l.stage == nil {
		r.admit(b)
	}
	return b
}
