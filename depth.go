package nwt

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// A depth is how many batches are open beyond the fewest that a loader needs. It
// follows need. If workers stand idle while training waits, or has waited lately,
// time is lost: a slow sample holds up the batch that is next, or the step pauses. An
// extra batch costs memory, so its price is paid in lost time:
//
//   - Once as much time is lost as it takes to fill new memory with a batch, one more
//     batch is opened: by the consumer if it is waiting, else by a worker while the loop
//     body has a batch. (A batch of a stream that the consumer reads is not opened by a
//     worker: opening it is reading it.) An eighth of all time may be lost for free.
//   - If half of what is open was ready whenever training asked, half of the extra
//     batches are given back.
//   - If training waits in spite of extra batches, half of these are withheld now and
//     then, to see whether they pay. If training then waits longer, they come into use
//     again; if not, their memory is given back. If workers stood idle for the price of
//     a batch meanwhile, depth is of no use here, and the price quadruples: this happens
//     if the workers share one bottleneck, such as the CPUs or a disk. A check compares
//     with the calmer of the two windows before it, since one may have met a stall of the
//     machine. And it compares what one worker count does: if the count changes, the check
//     ends, and windows with a batch that was open then aren't compared.
type depth struct {
	extra atomic.Int32 // batches; written by the holder of run.turn
	bound func() int32 // on extra, from memory

	// held keeps extra from growing while a tuner's visit waits for cold workers.
	held atomic.Bool

	// since is the time from which on workers have found nothing to claim while
	// training waited; 0 if no worker has, or a batch was opened after that. A worker
	// sets it, and then looks again whether there is nothing to claim. The holder of
	// run.turn opens a batch, and then clears it. So one of the two sees the other.
	since atomic.Int64
	// owed is how much more time must be lost until a batch is paid for. It is written
	// by the holder of run.turn.
	owed  atomic.Int64
	timer *time.Timer // asks for a batch once it is paid for

	// These are for the holder of run.turn. Times are those of Loader.now.
	reckoned int64 // when owed was reckoned
	dear     int   // how many times the price has quadrupled
	short    bool  // memory fell short of the bound, so extra doesn't grow until the window ends
	withheld int32 // extra batches that are withheld
	bearable int64 // how long training may wait per batch while they are
	before   int64 // bearable, as the last window alone would set it
	missed   bool  // a batch was paid for while they are

	workers   int     // the worker count of the windows: those of two counts aren't compared
	passing   int     // batches that were open when the worker count changed, and are still to come
	mixed     bool    // some of those are in the window
	lately    float64 // share of the last batches that training waited for, the latest counting most
	windows   int     // how many have ended
	unchecked int     // how many have ended since the last check
	apart     int     // how many must end between two checks
	batches   int     // in the window so far
	began     int64   // when the window began
	waited    int64   // counters.wait when the window began
	drained   bool    // half of the batches weren't ready at some time in the window
}

const (
	// The extra batches take at most this share of the memory that the machine or
	// the container has left when the first is opened, and at most this much.
	depthShare = 1.0 / 8
	depthBytes = 1 << 30

	depthPrice   = 2      // nanoseconds per byte: what new pages cost on a virtual machine
	depthDearest = 6      // times that the price quadruples
	depthFree    = 1. / 8 // share of all time that may be lost

	depthWorth = 100 * time.Microsecond // a loader deepens only if a batch is at least this much work
	// If LoadBatch works at least this long per batch, each call gets a whole batch, as
	// long as the ring can become deep enough to give each worker one.
	wholeBatches = time.Millisecond

	depthWindow   = 64       // batches, or twice as many as are open, after which extra batches may be given back
	depthCheck    = 8        // windows from one check to the next, four times as many if the extra batches pay
	depthChecks   = 128      // windows from one check to the next at most
	depthBearable = 1.0 / 16 // of the time per batch, by which a check may make training wait longer
	depthForgets  = 64       // windows after which the price falls to a quarter
	depthMemory   = 1.0 / 32 // weight of the latest batch in lately
	depthWaited   = 1.0 / 8  // value of lately above which training counts as waiting
)

// deepens tells whether the depth follows need.
func (l *Loader) deepens() bool { return l.opts.prefetch == 0 && l.Workers() > 0 }

// mayDeepen tells whether the depth follows need and hasn't reached its bound.
func (l *Loader) mayDeepen() bool {
	return l.deepens() && l.deep.extra.Load()+l.deep.withheld < l.deep.bound()
}

// idle is called by a worker that finds nothing to claim.
func (l *Loader) idle() {
	r, d := l.deepening.Load(), &l.deep
	if r == nil || l.pace.perBatch() < depthWorth || !r.awaiting.Load() && !r.hungry.Load() ||
		!l.ring.Exhausted(r.opening.Load()) || d.since.Load() != 0 {
		return
	}
	now := l.now()
	switch {
	case !d.since.CompareAndSwap(0, now):
	case !l.ring.Exhausted(r.opening.Load()):
		d.since.CompareAndSwap(now, 0)
	case d.owed.Load() > 0:
		d.timer.Reset(time.Duration(d.owed.Load()))
	default:
		l.paid()
	}
}

// paid gets one more batch opened, by the consumer or here: see depth.
func (l *Loader) paid() {
	r := l.deepening.Load()
	if r == nil || l.deep.since.Load() == 0 {
		return
	}
	if r.awaiting.Load() || !r.hungry.Load() || r.readByConsumer() || !r.turn.TryLock() {
		l.ring.Interrupt() // the consumer opens it
		return
	}
	defer r.turn.Unlock() // even if opening the batch, which may ask user code, ends the goroutine
	if r.current != nil {
		r.deepen()
	}
}

// deepen opens one batch more if workers have nothing to claim and the batch is paid
// for. The caller holds turn.
func (r *run) deepen() {
	l, d := r.l, &r.l.deep
	switch {
	case d.held.Load() || r.halted || !l.deepens():
		return
	case r.opened >= r.course.len() || r.sequence != nil && r.sequence.ended.Load():
		return // there is no other batch
	case !l.ring.Exhausted(r.opening.Load()):
		return // workers have something to claim
	case len(r.ahead) > 0 && r.awaiting.Load() && l.ring.Loaded(r.ahead[0]):
		return // the consumer waits for a copy, not for workers
	}
	// More may be open than extra allows, since it has shrunk.
	extra := max(d.extra.Load(), int32(len(r.ahead)-l.leastDepth())) + 1
	if d.short || d.withheld == 0 && extra > d.bound() {
		return
	}
	l.reckon()
	if owed := d.owed.Load(); owed > 0 {
		d.since.Store(d.reckoned)
		d.timer.Reset(time.Duration(owed))
		return
	}
	d.owed.Store(l.depthCosts())
	if d.withheld > 0 {
		d.missed = true
		return
	}
	l.setExtra(extra)
	if opened, err := r.openOne(); !opened || err != nil {
		d.short = true
		l.setExtra(extra - 1)
	}
}

// reckon subtracts the time lost since the last call from what is owed, and adds the
// time that may be lost for free. The caller holds run.turn.
func (l *Loader) reckon() {
	d := &l.deep
	now := l.now()
	lost := int64(0)
	if since := d.since.Swap(0); since != 0 {
		lost = now - since
	}
	owed := d.owed.Load() + int64(depthFree*float64(now-d.reckoned-lost))
	d.owed.Store(max(0, min(owed, l.depthCosts())-lost))
	d.reckoned = now
}

// depthCosts is the price of an extra batch.
func (l *Loader) depthCosts() int64 { return depthPrice * int64(l.slotBytes) << (2 * l.deep.dear) }

// mostExtra is the bound on extra; ask for it through depth.bound.
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
	l.slots.trim()
}

// startDepth readies the depth of a new loader.
func (l *Loader) startDepth() {
	d := &l.deep
	d.bound = sync.OnceValue(l.mostExtra)
	d.timer = time.AfterFunc(time.Hour, l.paid)
	d.timer.Stop()
	d.owed.Store(l.depthCosts())
	d.apart = depthCheck
	d.workers, d.before = l.Workers(), math.MaxInt64
}

// resetDepth forgets what runs have shown of the depth needed, and opens so many more batches
// than the fewest. No epoch may be running.
func (l *Loader) resetDepth(extra int32) {
	d := &l.deep
	l.setExtra(extra)
	d.since.Store(0)
	d.dear, d.short, d.withheld, d.lately, d.windows, d.unchecked, d.apart = 0, false, 0, 0, 0, 0, depthCheck
	d.before = math.MaxInt64
	d.owed.Store(l.depthCosts())
	l.beginWindow()
}

// beginWindow begins a window of batches.
func (l *Loader) beginWindow() {
	d := &l.deep
	d.batches, d.began, d.waited, d.drained, d.mixed = 0, l.now(), l.counters.wait.Load(), false, false
}

// watchDepth is called by the consumer when it asks for a batch, after it has opened
// all that may be open.
func (r *run) watchDepth() {
	l, d := r.l, &r.l.deep
	workers := l.Workers()
	if !l.deepens() {
		d.workers = workers
		return
	}
	if r.taken >= l.leastDepth() { // until then training waits for loading to begin
		waited := 0.0
		if !l.ring.Loaded(r.ahead[0]) {
			waited = 1
		}
		d.lately += (waited - d.lately) * depthMemory
		if hungry := d.lately > depthWaited; hungry != r.hungry.Load() {
			r.hungry.Store(hungry)
		}
	}
	if workers != d.workers {
		d.workers, d.passing = workers, len(r.ahead)
		l.setExtra(d.extra.Load() + d.withheld)
		d.withheld, d.missed, d.before = 0, false, math.MaxInt64
	}
	if d.passing > 0 {
		d.passing--
		d.mixed = true
	}
	d.batches++
	size := max(depthWindow, 2*max(len(r.ahead), l.depth()))
	pays := false
	if extra := d.extra.Load(); extra > 0 || d.withheld > 0 {
		d.drained = d.drained || r.isDrained()
		pays = d.withheld > 0 && l.counters.wait.Load()-d.waited > d.bearable*int64(size)
	}
	if d.batches >= size || pays {
		l.endWindow(pays)
	}
}

// isDrained tells whether half of what may be open isn't ready. When a run begins, nothing
// is ready yet: until half has been ready once, only waiting counts. At its end, all that is
// left must be ready. When a stream will end isn't known; once it has, only waiting counts.
func (r *run) isDrained() bool {
	waits := r.taken >= r.l.leastDepth() && !r.l.ring.Loaded(r.ahead[0])
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

// endWindow gives back or withholds extra batches. pays tells whether those that are
// withheld are worth their memory. The caller holds run.turn.
func (l *Loader) endWindow(pays bool) {
	d := &l.deep
	d.windows++
	d.short = false
	if d.windows%depthForgets == 0 {
		d.dear = max(0, d.dear-1)
	}
	extra, check := d.extra.Load(), false
	bearable := int64(math.MaxInt64)
	if !d.mixed {
		bearable = (l.counters.wait.Load() - d.waited + int64(depthBearable*float64(l.now()-d.began))) / int64(d.batches)
	}
	switch {
	case pays: // those that are withheld come back
		extra += d.withheld
		d.dear, d.apart = max(0, d.dear-1), min(4*d.apart, depthChecks)
	case d.withheld > 0: // they don't pay and stay closed; half of the others are checked next
		if d.missed {
			d.dear = min(d.dear+1, depthDearest)
		}
		d.apart, check = depthCheck, true
	case !d.drained:
		extra, d.apart = extra/2, depthCheck
	case d.unchecked >= d.apart && d.lately > depthWaited && !d.mixed:
		d.bearable, check = min(bearable, d.before), true
	}
	d.withheld, d.missed, d.before = 0, false, bearable
	if d.unchecked++; check {
		d.withheld, d.unchecked = extra-extra/2, 0
	}
	if extra -= d.withheld; extra != d.extra.Load() {
		l.setExtra(extra)
	}
	l.beginWindow()
}
