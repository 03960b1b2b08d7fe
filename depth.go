package nwt

import (
	"math"
	"sync/atomic"
	"time"
)

// A depth is how many batches are open beyond the fewest that a loader needs. It
// follows need. If workers stand idle and the consumer waits in one stretch of
// training, the ring is too shallow, whatever the cause (a slow sample in the batch
// that is next, a step that pauses). So when a worker finds nothing to claim, one
// more batch is opened: by the consumer if it is waiting, else by the worker while
// the loop body has a batch. (A batch of a stream that the consumer reads is not
// opened by a worker: opening it is reading it.) Batches that aren't used for a
// while are given back.
//
//	workers idle, consumer waits or has waited lately ──► one deeper
//	half of what is open was ready each time, or unclaimed ──► shallower
type depth struct {
	extra atomic.Int32 // batches; written by the holder of run.turn
	bound func() int32 // on extra, from memory
	short bool         // memory fell short of the bound, so extra grows no more; for the holder of run.turn

	// Only the consumer uses these.
	lately    float64 // share of the last batches that it waited for, the latest counting most
	batches   int     // of the window that is being watched
	unclaimed int     // batches that nobody had begun, the fewest at any time in the window
	drained   bool    // half of the batches weren't ready at some time in the window
}

const (
	// The extra batches take at most this share of the memory that the machine or
	// the container has left when the first is opened, and at most this much.
	depthShare = 1.0 / 8
	depthBytes = 1 << 30
	// If the extra batches take more than depthCheap bytes, a wait must be longer than
	// depthPatient batches take: that the system doesn't run a thread for a moment is
	// no reason.
	depthCheap   = 64 << 20
	depthPatient = 2

	depthWorth = 100 * time.Microsecond // a loader deepens only if a batch is at least this much work
	// If LoadBatch works at least this long per batch, each call gets a whole batch, as
	// long as the ring can become deep enough to give each worker one.
	wholeBatches = time.Millisecond

	depthWindow = 64       // batches, and twice as many as are open, without use until some are given back
	depthMemory = 1.0 / 32 // weight of the latest batch in lately
	depthWaited = 1.0 / 8  // of lately, from which on training waits for data
)

// idle is called by a worker that finds nothing to claim.
func (l *Loader) idle() {
	r := l.deepening.Load()
	if r == nil || l.pace.perBatch() < depthWorth || !l.ring.Exhausted(r.opening.Load()) {
		return
	}
	switch {
	case r.awaiting.Load():
		l.ring.Interrupt() // the consumer opens it
	case r.readByConsumer():
	case r.hungry.Load() && r.turn.TryLock():
		defer r.turn.Unlock() // even if opening the batch, which may ask user code, ends the goroutine
		if r.current != nil {
			r.deepen()
		}
	}
}

// deepen opens one batch more if workers have nothing to claim, and tells
// whether it has. The caller holds turn.
func (r *run) deepen() bool {
	l, d := r.l, &r.l.deep
	if r.halted || r.sequence != nil && r.sequence.ended.Load() || l.opts.prefetch > 0 || l.Workers() == 0 || r.opened >= r.course.len() ||
		!l.ring.Exhausted(r.opening.Load()) || len(r.ahead) > 0 && l.ring.Loaded(r.ahead[0]) && r.awaiting.Load() {
		return false
	}
	// More may be open than extra allows, since it has shrunk.
	extra := max(d.extra.Load(), int32(len(r.ahead)-l.leastDepth())) + 1
	if extra > d.bound() || d.short {
		return false
	}
	if r.awaiting.Load() && int(extra)*l.slotBytes > depthCheap &&
		time.Since(r.waits) < depthPatient*l.pace.perBatch()/time.Duration(max(1, l.Workers())) {
		return false
	}
	l.setExtra(extra)
	opened, err := r.openOne()
	if !opened || err != nil {
		d.short = true
		l.setExtra(extra - 1)
	}
	return opened
}

// mostExtra is the bound on extra, to be asked through depth.bound.
func (l *Loader) mostExtra() int32 {
	bytes := float64(depthBytes)
	if room := l.opts.machine.Available(); room.Of != "" {
		bytes = min(bytes, depthShare*float64(room.Bytes)/float64(l.opts.ranks()))
	}
	return int32(min(bytes/float64(l.slotBytes), math.MaxInt16, float64(maxPrefetch+1-l.leastDepth())))
}

// setExtra sets how many batches more than the fewest may be open. The caller
// holds run.turn.
func (l *Loader) setExtra(n int32) {
	l.deep.extra.Store(max(0, n))
	l.slots.limit(l.keep())
}

// resetDepth makes the depth the fewest again. No epoch may be running.
func (l *Loader) resetDepth() {
	d := &l.deep
	l.setExtra(0)
	d.lately, d.batches, d.unclaimed, d.drained, d.short = 0, 0, math.MaxInt, false, false
}

// watchDepth is called by the consumer when it asks for a batch, once what may
// be open is.
func (r *run) watchDepth() {
	l, d := r.l, &r.l.deep
	ready := l.ring.Ready(r.ahead[0])
	if r.taken >= l.leastDepth() { // until then training waits for loading to begin
		waited := 0.0
		if !ready {
			waited = 1
		}
		d.lately += (waited - d.lately) * depthMemory
		if hungry := d.lately > depthWaited; hungry != r.hungry.Load() {
			r.hungry.Store(hungry)
		}
	}
	if d.extra.Load() == 0 || r.opened == r.course.len() {
		return
	}
	d.unclaimed = min(d.unclaimed, l.ring.Unclaimed(r.opening.Load()))
	d.drained = d.drained || !l.ring.Ready(r.ahead[len(r.ahead)/2])
	if d.batches++; d.batches < max(depthWindow, 2*len(r.ahead)) {
		return
	}
	switch extra := d.extra.Load(); {
	case !d.drained:
		l.setExtra(extra / 2)
	case d.unclaimed > 1:
		l.setExtra(extra - int32(d.unclaimed-1))
	}
	d.batches, d.unclaimed, d.drained = 0, math.MaxInt, false
}
