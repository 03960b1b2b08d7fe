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
//   - If half of what is open was ready whenever training asked, during windows that have
//     256 batches together, half of the extra batches are given back, and so on after each
//     window until one in which it wasn't. (After 64 batches, a loader that stalls once in a
//     hundred would pay for the same batches again and again.)
//   - If training waits in spite of extra batches, a check shows now and then whether
//     they pay, see depthCheck.
type depth struct {
	extra atomic.Int32 // batches; written by the holder of run.turn
	bound func() int32 // on extra, from memory

	// held keeps extra from growing while a tuner waits for cold workers, or for stragglers once a
	// visit is over.
	held atomic.Bool

	// idleSince is the time from which on workers have found nothing to claim while
	// training waited; 0 if no worker has, or a batch was opened after that. A worker
	// sets it, and then looks again whether there is nothing to claim. The holder of
	// run.turn opens a batch, and then clears it. So one of the two sees the other.
	idleSince atomic.Int64
	// owed is how many more nanoseconds must be lost until a batch is paid for. It is
	// written by the holder of run.turn.
	owed  atomic.Int64
	timer *time.Timer // asks for a batch once it is paid for

	// What follows is for the holder of run.turn. Times are those of Loader.now.
	reckoned    int64 // when owed was reckoned
	quadrupled  int   // how many times the price has quadrupled
	memoryShort bool  // a batch couldn't be opened, so extra doesn't grow until the window ends

	late   float64 // share of the last batches that weren't loaded when training asked, the latest counting most
	window depthWindow
	check  depthCheck

	windows      int   // that have ended
	calm         int   // batches of the last windows in a row in which extra batches were open, and half of what was open was ready
	sinceCheck   int   // windows that have ended since the last check
	checkEvery   int   // how many must end between two checks
	lastBearable int64 // depthCheck.bearable by the last window alone

	workers int // the worker count that the window is about
	older   int // batches that were opened at another count, and are still to come
}

// A depthWindow is a number of batches in a row, as the consumer meets them.
type depthWindow struct {
	batches int   // so far
	began   int64 // a time of Loader.now
	waited  int64 // counters.wait when it began
	drained bool  // half of what may be open wasn't ready at some time
	mixed   bool  // some of the batches were opened at another worker count
}

// A depthCheck shows whether extra batches pay. Half of them are withheld for a window:
//
//   - If training waits longer than bearable, they pay, and come into use again.
//   - If not, their memory is given back, and half of the rest is checked. If workers
//     stood idle for the price of a batch meanwhile, depth is of no use here, and the
//     price quadruples: this happens if the workers share one bottleneck, such as the
//     CPUs or a disk.
//
// If the worker count changes, the check ends without a result. It compares windows of
// one count only.
type depthCheck struct {
	withheld int32 // extra batches; 0: no check is under way
	// bearable is how long training may wait per batch, in nanoseconds: a little longer
	// than in the calmer of the two windows before, since one may have met a stall of the
	// machine.
	bearable int64
	missed   bool // a batch was paid for
}

const (
	// The extra batches take at most this share of the memory that the machine or
	// the container has left when the first is opened, and at most this much.
	depthShare = 1.0 / 8
	depthBytes = 1 << 30

	depthPrice   = 2      // nanoseconds per byte: what new pages cost on a virtual machine
	depthDearest = 6      // times that the price quadruples at most
	depthForgets = 64     // windows after which the price falls to a quarter
	depthFree    = 1. / 8 // share of all time that may be lost

	depthWorth = 100 * time.Microsecond // a loader deepens only if a batch is at least this much work
	// If LoadBatch works at least this long per batch, each call gets a whole batch, as
	// long as the ring can become deep enough to give each worker one.
	wholeBatches = time.Millisecond

	depthMemory = 1.0 / 32 // weight of the latest batch in depth.late
	depthLate   = 1.0 / 8  // above this value of depth.late training counts as waiting

	depthWindowBatches = 64       // of a window, or twice as many as are open if that is more
	depthCalm          = 256      // batches of calm windows in a row, after which extra batches are given back
	depthCheckOften    = 8        // windows between two checks; four times as many each time that the extra batches pay …
	depthCheckSeldom   = 128      // … but at most this many
	depthBearable      = 1.0 / 16 // of the time per batch, by which a check may make training wait longer
)

// deepens tells whether the depth follows need.
func (l *Loader) deepens() bool { return l.opts.prefetch == 0 && l.Workers() > 0 }

// earned is the extra batches that were paid for, whether a check withholds them or not.
func (d *depth) earned() int32 { return d.extra.Load() + d.check.withheld }

// mayDeepen tells whether the depth follows need and hasn't reached its bound.
func (l *Loader) mayDeepen() bool { return l.deepens() && l.deep.earned() < l.deep.bound() }

// idle is called by a worker that finds nothing to claim. If time is lost from now on, idle
// sees to it that a batch is opened once it is paid for.
func (l *Loader) idle() {
	r, d := l.deepening.Load(), &l.deep
	if r == nil || l.pace.perBatch() < depthWorth || !r.waitsLately() || !l.ring.Exhausted(r.opening.Load()) || d.idleSince.Load() != 0 {
		return
	}
	now := l.now()
	if !d.idleSince.CompareAndSwap(0, now) {
		return // another worker was first
	}
	if !l.ring.Exhausted(r.opening.Load()) { // a batch was opened meanwhile
		d.idleSince.CompareAndSwap(now, 0)
		return
	}
	if owed := d.owed.Load(); owed > 0 {
		d.timer.Reset(time.Duration(owed))
	} else {
		l.paid()
	}
}

// othersIdle is called by a worker that has claimed something: it may have been all that there was
// for workers that are parked. One that claims a whole batch at once would otherwise deepen the ring
// by one batch per call, whatever the number of idle workers. That is enough where training seldom
// waits, as for an epoch's first batch.
func (l *Loader) othersIdle() {
	if r := l.deepening.Load(); r != nil && r.hungry.Load() && l.ring.AnyParked() {
		l.idle()
	}
}

// waitsLately tells whether the consumer waits for a batch, or has waited lately.
func (r *run) waitsLately() bool { return r.awaiting.Load() || r.hungry.Load() }

// paid is called by a worker or the timer when a batch seems to be paid for. It gets the batch
// opened, by the consumer or here: see depth.
func (l *Loader) paid() {
	r := l.deepening.Load()
	if r == nil || l.deep.idleSince.Load() == 0 {
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

// deepen opens one batch more if it is wanted and paid for. The caller holds turn.
func (r *run) deepen() {
	l, d := r.l, &r.l.deep
	if d.held.Load() || d.memoryShort || !r.wantsDepth() {
		return
	}
	// More may be open than extra allows, since it has shrunk.
	extra := max(d.extra.Load(), int32(len(r.ahead)-l.leastDepth())) + 1
	checking := d.check.withheld > 0
	if !checking && extra > d.bound() {
		return
	}
	l.reckon()
	if owed := d.owed.Load(); owed > 0 {
		d.idleSince.Store(d.reckoned) // workers are idle as before
		d.timer.Reset(time.Duration(owed))
		return
	}
	d.owed.Store(l.depthCosts())
	if checking {
		d.check.missed = true
		return
	}
	l.setExtra(extra)
	if opened, err := r.openOne(); !opened || err != nil {
		d.memoryShort = true
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

// reckon subtracts the time lost since the last call from what is owed, and adds the
// time that may be lost for free. The caller holds run.turn.
func (l *Loader) reckon() {
	d := &l.deep
	now := l.now()
	lost := int64(0)
	if since := d.idleSince.Swap(0); since != 0 {
		lost = now - since
	}
	owed := d.owed.Load() + int64(depthFree*float64(now-d.reckoned-lost))
	d.owed.Store(max(0, min(owed, l.depthCosts())-lost))
	d.reckoned = now
}

// depthCosts is the price of an extra batch.
func (l *Loader) depthCosts() int64 {
	return depthPrice * int64(l.slotBytes) << (2 * l.deep.quadrupled)
}

// mostExtra is the bound on extra; ask for it through depth.bound.
func (l *Loader) mostExtra() int32 {
	bytes := float64(depthBytes)
	if room := l.opts.machine.Available(); room.Of != "" {
		bytes = min(bytes, depthShare*float64(room.Bytes)/float64(l.opts.ranks()))
	}
	return int32(min(bytes/float64(l.slotBytes), float64(maxPrefetch+1-l.leastDepth())))
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
	d.checkEvery, d.lastBearable = depthCheckOften, math.MaxInt64
	d.workers = l.Workers()
}

// resetDepth forgets what runs have shown of the depth needed, and opens so many more batches
// than the fewest. No epoch may be running.
func (l *Loader) resetDepth(extra int32) {
	d := &l.deep
	l.setExtra(extra)
	d.idleSince.Store(0)
	d.quadrupled, d.memoryShort, d.late, d.check = 0, false, 0, depthCheck{}
	d.windows, d.calm, d.sinceCheck, d.checkEvery, d.lastBearable = 0, 0, 0, depthCheckOften, math.MaxInt64
	d.owed.Store(l.depthCosts())
	l.beginWindow()
}

// beginWindow begins a window of batches.
func (l *Loader) beginWindow() {
	l.deep.window = depthWindow{began: l.now(), waited: l.counters.wait.Load()}
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
	if r.hasBegun() {
		r.noteLate()
	}
	if workers != d.workers {
		d.workers, d.older = workers, len(r.ahead)
		l.setExtra(d.earned()) // a check ends
		d.check, d.lastBearable = depthCheck{}, math.MaxInt64
	}
	w := &d.window
	w.batches++
	if d.older > 0 {
		d.older--
		w.mixed = true
	}
	if d.earned() > 0 {
		w.drained = w.drained || r.isDrained()
	}
	size := max(depthWindowBatches, 2*max(len(r.ahead), l.depth()))
	pays := d.check.withheld > 0 && l.counters.wait.Load()-w.waited > d.check.bearable*int64(size)
	if pays || w.batches >= size {
		l.endWindow(pays)
	}
}

// hasBegun tells whether batches are loaded ahead by now: until then training waits for loading
// to begin, which says nothing about the depth.
func (r *run) hasBegun() bool { return r.taken >= r.l.leastDepth() }

// isLate tells whether the next batch isn't loaded.
func (r *run) isLate() bool { return !r.l.ring.Loaded(r.ahead[0]) }

// noteLate takes the next batch into depth.late.
func (r *run) noteLate() {
	d := &r.l.deep
	late := 0.0
	if r.isLate() {
		late = 1
	}
	d.late += (late - d.late) * depthMemory
	if hungry := d.late > depthLate; hungry != r.hungry.Load() {
		r.hungry.Store(hungry)
	}
}

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

// endWindow decides by the window how many extra batches stay, and begins another window. pays
// tells whether a check has shown that those it withholds pay. The caller holds run.turn.
func (l *Loader) endWindow(pays bool) {
	d := &l.deep
	d.memoryShort = false
	if d.windows++; d.windows%depthForgets == 0 {
		d.quadrupled = max(0, d.quadrupled-1)
	}
	bearable := l.bearable()
	check, due := d.check, d.sinceCheck >= d.checkEvery
	d.check = depthCheck{}
	d.sinceCheck++
	extra := d.extra.Load()
	if d.calm += d.window.batches; d.window.drained || extra == 0 {
		d.calm = 0
	}
	switch {
	case pays:
		extra += check.withheld
		d.quadrupled, d.checkEvery = max(0, d.quadrupled-1), min(4*d.checkEvery, depthCheckSeldom)
	case check.withheld > 0: // they don't pay and stay closed
		if check.missed {
			d.quadrupled = min(d.quadrupled+1, depthDearest)
		}
		d.checkEvery = depthCheckOften
		extra = d.withhold(extra, check.bearable)
	case !d.window.drained:
		d.checkEvery = depthCheckOften
		if d.calm >= depthCalm {
			extra /= 2
		}
	case due && d.late > depthLate && !d.window.mixed:
		extra = d.withhold(extra, min(bearable, d.lastBearable))
	}
	d.lastBearable = bearable
	if extra != d.extra.Load() {
		l.setExtra(extra)
	}
	l.beginWindow()
}

// bearable is depthCheck.bearable by the window that ends; without bound if two worker counts
// share the window.
func (l *Loader) bearable() int64 {
	w := l.deep.window
	if w.mixed {
		return math.MaxInt64
	}
	waited, took := l.counters.wait.Load()-w.waited, l.now()-w.began
	return (waited + int64(depthBearable*float64(took))) / int64(w.batches)
}

// withhold begins a check of half of the extra batches, and returns how many stay in use.
func (d *depth) withhold(extra int32, bearable int64) (inUse int32) {
	inUse = extra / 2
	d.check, d.sinceCheck = depthCheck{withheld: extra - inUse, bearable: bearable}, 0
	return inUse
}
