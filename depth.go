package nwt

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nwt-go/nwt/internal/depth"
)

// extraBatches are the batches that a loader has open beyond the fewest that it needs: package depth
// decides how many. If the consumer is waiting, it opens an extra batch; otherwise a worker opens it
// while the loop body has a batch, unless opensInLoop.
//
//	called by                      function           run.mu   what it may do
//	a worker                       idle, othersIdle   no       begins to count lost time
//	a worker, or the timer         paid               tries    calls deepen, or interrupts the consumer
//	the consumer, and paid         deepen             holds    opens one extra batch
//	the consumer, for each batch   watchDepth         holds    makes room for fewer
type extraBatches struct {
	policy       depth.Policy // for the run whose mu the caller holds
	room         func() int   // how many extra batches memory has room for, looked up once
	timer        *time.Timer
	run          atomic.Pointer[run] // the run whose depth follows need; nil between epochs, and always nil if the depth is fixed
	wasHalfReady bool                // at some time in the run, half of the batches that may be open were ready; guarded by run.mu
}

// running counts the runs of all loaders of the process.
var running atomic.Int32

// startDepth initializes the depth of a new loader.
func (l *engine) startDepth() {
	d := &l.extra
	d.room = sync.OnceValue(l.roomForExtra)
	d.timer = time.AfterFunc(time.Hour, l.paid)
	d.timer.Stop()
	d.policy.Reset(0, l.setup.slotBytes)
}

// roomForExtra returns how many extra batches memory has room for.
func (l *engine) roomForExtra() int {
	bytes := min(extraBytes, l.setup.opts.shareOfMemory())
	return int(min(bytes/float64(l.setup.slotBytes), maxPrefetch))
}

const (
	// The extra batches take at most extraBytes, and at most extraShare of the memory left.
	extraBytes = 256 << 20

	extraWorth = 100 * time.Microsecond // a loader deepens only if a batch takes at least this much work
	// If LoadMany works at least this long per batch, each call gets a whole batch, provided the ring
	// can become deep enough to give each worker one.
	wholeCalls = time.Millisecond
)

// deepens reports whether the depth follows need.
func (l *engine) deepens() bool { return l.setup.opts.prefetch == 0 && l.Workers() > 0 }

// depth returns how many batches are open or in use at once.
func (l *engine) depth() int {
	if l.Workers() == 0 {
		return 1
	}
	return l.leastDepth() + l.extra.policy.Extra()
}

// leastDepth is depth without the extra batches.
func (l *engine) leastDepth() int { return l.depthOf(l.Workers()) }

// depthOf is leastDepth with n workers.
func (l *engine) depthOf(n int) int {
	perBatch := l.epochOrder.Load().perBatch
	switch {
	case n == 0:
		return 1
	case l.setup.opts.prefetch > 0:
		return l.setup.opts.prefetch + 1
	}
	// This gives every worker a place, and adds one batch, which waits for its slowest sample.
	return min(max(2, (n+perBatch-1)/perBatch+1), maxPrefetch) + 1
}

// A worker calls idle when it finds nothing to claim. If time is being lost from now on, idle arranges
// that a batch is opened once that time has paid for it. idle and the goroutine that opens a batch each
// store before they load, so one of them sees the other.
func (l *engine) idle() {
	r, d := l.extra.run.Load(), &l.extra
	if r == nil || l.pace.PerBatch() < extraWorth || !r.waitsLately() || !l.ring.Exhausted(r.demand.opening.Load()) || d.policy.IsIdle() {
		return
	}
	now := l.now()
	left, first := d.policy.Idle(now)
	switch {
	case !first:
	case !l.ring.Exhausted(r.demand.opening.Load()): // a batch was opened meanwhile
		d.policy.NotIdle(now)
	case left > 0:
		d.timer.Reset(left)
	default:
		l.paid()
	}
}

// A worker calls othersIdle when it has claimed something: it may have taken the last places that parked
// workers could claim. Otherwise a worker that claims a whole batch at once would deepen the ring by one
// batch per call, whatever the number of idle workers. That is enough if training seldom waits, such as
// only for an epoch's first batch.
func (l *engine) othersIdle() {
	if l.extra.run.Load() != nil && l.extra.policy.Waits() && l.ring.AnyParked() {
		l.idle()
	}
}

// waitsLately reports whether the consumer waits for a batch, or has waited lately.
func (r *run) waitsLately() bool { return r.demand.awaiting.Load() || r.l.extra.policy.Waits() }

// A worker or the timer calls paid when the lost time seems to have paid for a batch.
func (l *engine) paid() {
	r := l.extra.run.Load()
	if r == nil || !l.extra.policy.IsIdle() {
		return
	}
	if r.demand.awaiting.Load() || !l.extra.policy.Waits() || r.opensInLoop() || !r.mu.TryLock() {
		l.ring.Interrupt() // the consumer opens it
		return
	}
	defer r.mu.Unlock()
	if r.current != nil {
		r.deepen()
	}
}

// opensInLoop reports whether opening a batch calls the program: a sampler, Sizes or, without workers,
// what reads a stream. The documentation promises that such calls happen in the goroutine of the loop.
func (r *run) opensInLoop() bool {
	return r.readByConsumer() || r.l.ownShapes() || r.schedule.Batches > 0
}

// deepen opens one more batch if it is wanted and paid for. The caller holds mu.
func (r *run) deepen() {
	l, d := r.l, &r.l.extra
	// More batches than Extra allows may be open, since Extra may have shrunk.
	extra := max(d.policy.Extra(), len(r.ahead)-l.leastDepth()) + 1
	if !r.wantsDepth() || extra > l.mostExtra() {
		return
	}
	now := l.now()
	if left := d.policy.Reckon(now); left > 0 {
		d.policy.Idle(now) // nothing has changed
		d.timer.Reset(left)
		return
	}
	d.policy.Pay()
	l.setExtra(extra)
	if opened, err := r.openOne(); !opened || err != nil {
		l.setExtra(extra - 1)
	}
}

// wantsDepth reports whether one more batch would let idle workers, and with them training, go on. The
// caller holds mu.
func (r *run) wantsDepth() bool {
	l := r.l
	switch {
	case r.halted || !l.deepens() || r.allOpened():
		return false
	case !l.ring.Exhausted(r.demand.opening.Load()):
		return false // workers have something to claim
	case len(r.ahead) > 0 && r.demand.awaiting.Load() && l.ring.Loaded(r.ahead[0]):
		return false // the consumer waits for a copy, not for workers
	}
	return true
}

// mostExtra returns the bound on extra batches.
func (l *engine) mostExtra() int { return min(l.extra.room(), maxPrefetch+1-l.leastDepth()) }

// setExtra sets how many extra batches may be open. The caller holds run.mu.
func (l *engine) setExtra(n int) {
	l.extra.policy.SetExtra(n)
	l.trim()
}

// The consumer calls watchDepth when it asks for a batch, after it has opened all the batches that may be
// open.
func (r *run) watchDepth() {
	l, d := r.l, &r.l.extra
	if !l.deepens() {
		return
	}
	if r.hasBegun() {
		d.policy.Asked(r.isLate())
	}
	if surplus := d.policy.Surplus(!r.isDrained(), max(len(r.ahead), l.depth())); surplus > 0 {
		l.setExtra(d.policy.Extra() - surplus)
	}
}

// hasBegun reports whether batches are loaded ahead by now. Before that, training waits for loading to
// begin, which says nothing about the depth.
func (r *run) hasBegun() bool { return r.taken >= r.l.leastDepth() }

// isLate reports whether the next batch isn't loaded.
func (r *run) isLate() bool { return !r.l.ring.Loaded(r.ahead[0]) }

// isDrained reports whether at most half of the batches that may be open are ready. If the run has fewer
// batches left, it reports whether one of them isn't ready. In two cases it reports only whether training
// waits: until half were ready once (wasHalfReady), since a run begins with none, and after the end of a
// stream, which isn't known in advance.
func (r *run) isDrained() bool {
	waits := r.hasBegun() && r.isLate()
	switch {
	case r.streamEnded():
		return waits
	case r.l.ring.Ready(r.ahead[min(len(r.ahead)-1, r.l.depth()/2)]):
		r.l.extra.wasHalfReady = true
		return false
	default:
		return waits || r.l.extra.wasHalfReady
	}
}

// claimSize returns how many places a worker claims at once.
func (l *engine) claimSize() int {
	if l.how.together != nil {
		// It is as many as possible while every worker gets a part of what may be loaded ahead.
		ahead, batch := max(1, l.depth()-1), l.setup.opts.batchSize
		switch asked := int(l.asked.Load()); {
		case asked > 0: // two parts each, because some of these batches are loaded already
			parts := max(1, 2*l.Workers()/asked)
			return (batch + parts - 1) / parts
		case l.setup.opts.prefetch == 0 && l.pace.PerBatch() >= wholeCalls:
			ahead = max(1, l.leastDepth()+l.mostExtra()-1)
		}
		return max(1, min(batch, ahead*batch/max(1, l.Workers())))
	}
	return l.pace.Claim()
}

// makesWay reports whether a worker that has loaded n places should let other goroutines run: the consumer
// that it has woken or, after a sample that takes longer than a switch, the consumers of other loaders. If
// busy workers held every CPU, a consumer would wait until the scheduler takes the CPU from one of them, for
// up to 10 ms. Workers that wait for something leave their CPU anyway.
func (l *engine) makesWay(n int, woken bool) bool {
	if running.Load() > 1 && l.pace.Outlasts(n) {
		return true
	}
	return woken && l.pace.Computes() && l.Workers() >= runtime.GOMAXPROCS(0)
}
