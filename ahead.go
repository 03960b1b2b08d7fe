package nwt

import (
	"sync"
	"time"

	"github.com/nwt-go/nwt/internal/depth"
)

// extraBatches are those that a loader has open beyond the fewest that it needs: see package
// depth for how many. One is opened by the consumer if it is waiting, else by a worker while
// the loop body has a batch. (A batch of a stream that the consumer reads is not opened by a
// worker: opening it is reading it.)
type extraBatches struct {
	depth.Policy            // the holder of run.turn is the one that it speaks of
	bound        func() int // on them, from memory
	timer        *time.Timer
}

const (
	// The extra batches take at most this much, and at most this share of the memory that the
	// machine or the container has left when the first is opened.
	extraBytes = 256 << 20
	extraShare = 1.0 / 8

	extraWorth = 100 * time.Microsecond // a loader deepens only if a batch is at least this much work
	// If LoadBatch works at least this long per batch, each call gets a whole batch, as
	// long as the ring can become deep enough to give each worker one.
	wholeBatches = time.Millisecond
)

// deepens tells whether the depth follows need.
func (l *Loader) deepens() bool { return l.opts.prefetch == 0 && l.Workers() > 0 }

// idle is called by a worker that finds nothing to claim. If time is lost from now on, idle
// sees to it that a batch is opened once it is paid for. Both it and who opens a batch first
// set what the other reads, so one of the two sees the other.
func (l *Loader) idle() {
	r, d := l.deepening.Load(), &l.deep
	if r == nil || l.pace.perBatch() < extraWorth || !r.waitsLately() || !l.ring.Exhausted(r.opening.Load()) || d.IsIdle() {
		return
	}
	now := l.now()
	left, first := d.Idle(now)
	switch {
	case !first:
	case !l.ring.Exhausted(r.opening.Load()): // a batch was opened meanwhile
		d.NotIdle(now)
	case left > 0:
		d.timer.Reset(left)
	default:
		l.paid()
	}
}

// othersIdle is called by a worker that has claimed something: it may have been all that there was
// for workers that are parked. One that claims a whole batch at once would otherwise deepen the ring
// by one batch per call, whatever the number of idle workers. That is enough where training seldom
// waits, as for an epoch's first batch.
func (l *Loader) othersIdle() {
	if l.deepening.Load() != nil && l.deep.Waits() && l.ring.AnyParked() {
		l.idle()
	}
}

// waitsLately tells whether the consumer waits for a batch, or has waited lately.
func (r *run) waitsLately() bool { return r.awaiting.Load() || r.l.deep.Waits() }

// paid is called by a worker or the timer when a batch seems to be paid for.
func (l *Loader) paid() {
	r := l.deepening.Load()
	if r == nil || !l.deep.IsIdle() {
		return
	}
	if r.awaiting.Load() || !l.deep.Waits() || r.readByConsumer() || !r.turn.TryLock() {
		l.ring.Interrupt() // the consumer opens it
		return
	}
	defer r.turn.Unlock() // even if opening the batch, which may ask user code, ends the goroutine
	if r.current != nil {
		r.deepen()
	}
}

// deepen opens one batch more if it is wanted and paid for. The caller holds turn.
func (r *run) deepen() {
	l, d := r.l, &r.l.deep
	// More may be open than Extra allows, since it has shrunk.
	extra := max(d.Extra(), len(r.ahead)-l.leastDepth()) + 1
	if !r.wantsDepth() || extra > d.bound() {
		return
	}
	now := l.now()
	if left := d.Reckon(now); left > 0 {
		d.Idle(now) // as before
		d.timer.Reset(left)
		return
	}
	d.Pay()
	l.setExtra(extra)
	if opened, err := r.openOne(); !opened || err != nil {
		l.setExtra(extra - 1)
	}
}

// wantsDepth tells whether one batch more would let idle workers, and with them training, go
// on. The caller holds turn.
func (r *run) wantsDepth() bool {
	l := r.l
	switch {
	case r.halted || !l.deepens():
		return false
	case r.opened >= r.course.len() || r.sequence != nil && r.sequence.ended.Load():
		return false // there is no other batch
	case !l.ring.Exhausted(r.opening.Load()):
		return false // workers have something to claim
	case len(r.ahead) > 0 && r.awaiting.Load() && l.ring.Loaded(r.ahead[0]):
		return false // the consumer waits for a copy, not for workers
	}
	return true
}

// mostExtra is the bound on extra batches; ask for it through bound.
func (l *Loader) mostExtra() int {
	bytes := float64(extraBytes)
	if room := l.opts.machine.Available(); room.Of != "" {
		bytes = min(bytes, extraShare*float64(room.Bytes)/float64(l.opts.ranks()))
	}
	return int(min(bytes/float64(l.slotBytes), float64(maxPrefetch+1-l.leastDepth())))
}

// setExtra sets how many extra batches may be open. The caller holds run.turn.
func (l *Loader) setExtra(n int) {
	l.deep.SetExtra(n)
	l.slots.trim()
}

// startDepth readies the depth of a new loader.
func (l *Loader) startDepth() {
	d := &l.deep
	d.bound = sync.OnceValue(l.mostExtra)
	d.timer = time.AfterFunc(time.Hour, l.paid)
	d.timer.Stop()
	d.Reset(0, l.slotBytes)
}

// watchDepth is called by the consumer when it asks for a batch, after it has opened
// all that may be open.
func (r *run) watchDepth() {
	l, d := r.l, &r.l.deep
	if !l.deepens() {
		return
	}
	if r.hasBegun() {
		d.Asked(r.isLate())
	}
	if surplus := d.Surplus(!r.isDrained(), max(len(r.ahead), l.depth())); surplus > 0 {
		l.setExtra(d.Extra() - surplus)
	}
}

// hasBegun tells whether batches are loaded ahead by now: until then training waits for loading
// to begin, which says nothing about the depth.
func (r *run) hasBegun() bool { return r.taken >= r.l.leastDepth() }

// isLate tells whether the next batch isn't loaded.
func (r *run) isLate() bool { return !r.l.ring.Loaded(r.ahead[0]) }

// isDrained tells whether half of what may be open isn't ready. When a run begins, nothing
// is ready yet: until half has been ready once (filled), only waiting counts. At its end, all
// that is left must be ready. When a stream will end isn't known; once it has, only waiting
// counts.
func (r *run) isDrained() bool {
	waits := r.hasBegun() && r.isLate()
	switch {
	case r.sequence != nil && r.sequence.ended.Load():
		return waits
	case r.l.ring.Ready(r.ahead[min(len(r.ahead)-1, r.l.depth()/2)]):
		r.filled = true
		return false
	default:
		return waits || r.filled
	}
}
