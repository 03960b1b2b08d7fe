package nwt

import (
	"context"
	"fmt"
	"runtime/pprof"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nwt-go/nwt/internal/loadctx"
)

// With WithTimeout, a call that takes too long is given up, and another goroutine
// takes over from its worker. If the call is of Load, its sample is bad. If it is of
// LoadBatch, its samples are loaded one by one, in the batch's refuge. The call goes on in a
// goroutine that the loader no longer counts on. It keeps all that it may touch: its
// worker, with the samples and the indices it was given, and the whole slot that
// they lie in. The batch is moved to another slot before anybody sees it.

// A watch is what the watchdog sees of a worker's call of Load or LoadBatch.
type watch struct {
	// since is when the call began, in the loader's time; 0 if none is under way, or none is
	// noted. Without WithTimeout it is when the claim began, or unknownSince. Whoever holds Loader.mu may
	// make it negative: then the call, if it returns, waits for that lock, and until it is
	// let go all fields of the worker stand still.
	since atomic.Int64

	// The worker writes these before since.
	upto    int  // the place after the last that the call loads
	whole   bool // the call is of LoadBatch
	indexed bool // the indices of a claim that is noted are known

	began    int64 // what the worker has stored in since
	madeLate bool  // Scratch made something after the call was given up
	keeps    *slot // guarded by Loader.mu; set once, when the call is given up
	lost     bool  // the worker knows that

	ctxOf  *run // the run that ctx is for
	ctx    context.Context
	cancel context.CancelCauseFunc
}

const unknownSince = 1

// calls notes that a call for the places from next on begins. The worker must have called
// context before.
func (w *worker) calls(upto int, whole bool) {
	w.upto, w.whole, w.began = upto, whole, w.l.now()
	w.since.Store(w.began)
}

// note notes the claim under way, if that is to be done and isn't yet. indexed tells that its
// indices don't change any more.
func (w *worker) note(indexed bool) {
	if w.noted && w.since.Load() == 0 {
		w.indexed = indexed
		w.since.Store(w.began)
	}
}

// ceases notes that a claim that was noted is over.
func (w *worker) ceases() {
	if w.noted {
		w.turn(0)
	}
}

// tooLate notes that the call under way has returned, and tells whether it was given up.
func (w *worker) tooLate() bool { return w.bounded && !w.turn(0) }

// turn changes since. It reports false if the call was given up.
func (w *worker) turn(since int64) bool {
	if w.lost {
		return false
	}
	if !w.since.CompareAndSwap(w.began, since) { // somebody looks at the call, or has
		w.l.mu.Lock()
		defer w.l.mu.Unlock()
		if w.lost = w.keeps != nil; w.lost {
			return false
		}
		w.since.Store(since)
	}
	w.began = since
	return true
}

// createTime is how many times WithTimeout a create of Scratch may take.
const createTime = 10

// pause notes that a create of Scratch begins, whose time isn't the call's. It returns how much
// time the call has used.
func (w *worker) pause() (used int64) {
	now := w.l.now()
	used = now - w.began
	w.turn(now + (createTime-1)*int64(w.l.opts.timeout))
	return used
}

// resume notes that the create has ended.
func (w *worker) resume(used int64) { w.madeLate = !w.turn(w.l.now()-used) || w.madeLate }

// inherit takes what another worker's call has left to this one.
func (w *worker) inherit() {
	w.l.mu.Lock()
	defer w.l.mu.Unlock()
	own := w.locals
	own.list, own.late = append(own.list, own.late...), nil
}

// context is the context that Load gets in a run. With a timeout it also ends when
// the call is given up.
func (w *worker) context(r *run) context.Context {
	if !w.bounded {
		return r.ctx
	}
	if w.ctxOf != r {
		w.ctxOf = r
		w.ctx, w.cancel = context.WithCancelCause(loadctx.WithTimeout(r.ctx, w.l.opts.timeout))
	}
	return w.ctx
}

// watchdog gives up calls that take too long, until no call of the run is under way any more.
func (l *Loader) watchdog(quiet <-chan struct{}) {
	pprof.SetGoroutineLabels(pprof.WithLabels(context.Background(), pprof.Labels("nwt", "load")))
	tick := max(l.opts.timeout/8, time.Millisecond)
	timer := time.NewTimer(tick)
	defer timer.Stop()
	for due := l.now() + int64(tick); ; due = l.now() + int64(tick) {
		select {
		case <-quiet:
			return
		case <-timer.C:
		}
		now := l.now()
		missed := now - due
		if missed < int64(tick) {
			missed = 0
		}
		for _, err := range l.giveUp(now, missed) {
			l.failedTogether(err)
		}
		timer.Reset(tick)
	}
}

// giveUp gives up the calls that take too long. The watchdog has missed some time, in which the
// process may have been paused: that time isn't the calls'. giveUp returns the errors of calls of
// LoadBatch among those given up, but not if their run is over already: that is no failure.
func (l *Loader) giveUp(now, missed int64) (together []error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for seat, w := range l.crew {
		if w == nil {
			continue
		}
		switch since := w.since.Load(); {
		case since <= 0:
		case missed > 0:
			w.since.CompareAndSwap(since, min(now, since+missed))
		case now-since < int64(l.opts.timeout):
		case !w.since.CompareAndSwap(since, -since): // it has returned
		case (now-since)/int64(w.upto-w.next) < int64(l.opts.timeout):
			w.since.Store(since)
		default:
			failed := w.whole && !l.ring.Stopped() // before replace: with another worker the run may end at once
			next, err := w.replace()
			l.crew[seat] = next
			if failed {
				together = append(together, err)
			}
		}
	}
	return together
}

// tellOfCall logs the call of Load that has been running longest, if the run still waits for it.
func (l *Loader) tellOfCall(r *run) {
	if about := l.longestCall(r); about != nil {
		l.opts.log.Warn("nwt: the epoch is over, but a call of Load is still running, and is waited for: Load should return when its context ends", about...)
	}
}

// longestCall describes the call that has been running longest; nil if the run is over.
func (l *Loader) longestCall(r *run) (about []any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.run != r {
		return nil
	}
	var longest *worker
	first := int64(0)
	for _, w := range append(slices.Clone(l.crew), l.inline) {
		if w == nil {
			continue
		}
		if since := w.since.Load(); since > 0 && (longest == nil || since < first) {
			longest, first = w, since
		}
	}
	if longest == nil {
		return nil
	}
	return longest.describe(first)
}

// describe says which call is under way, that began at since; nil if it has returned. The caller
// holds Loader.mu.
func (w *worker) describe(since int64) (about []any) {
	if !w.since.CompareAndSwap(since, -since) {
		return nil
	}
	defer w.since.Store(since)
	b, from, to := w.claim.Item, w.claim.From, w.claim.To
	if w.bounded {
		from, to = w.next, w.upto
	}
	running := patience.String() + " or more" // no call has begun since
	if w.bounded || to-from == 1 && since > unknownSince {
		running = time.Duration(w.l.now() - since).Round(time.Millisecond).String()
	}
	about = []any{"position", b.position(from), "samples", to - from}
	if to-from == 1 && (w.bounded || w.indexed) {
		about = []any{"index", w.slot.indices[from], "position", b.position(from)}
	}
	return append(about, "epoch", b.epoch, "worker", w.number, "running", running)
}

// replace gives up the call of a worker and lets another goroutine take over: the worker's
// fields don't change any more. The error says why. The caller holds Loader.mu.
func (w *worker) replace() (next *worker, err error) {
	b, l := w.claim.Item, w.l
	err = loadctx.NoAnswer(w.ctx)
	l.away.Add(1)
	w.slot.holders.Add(1)
	w.keeps = w.slot
	w.cancel(err)
	next = newWorker(l, w.seat, l.numbers.take())
	next.claim, next.claimed, next.slot, next.next = w.claim, true, w.slot, w.upto
	next.bound()
	next.locals.late, w.locals.late = w.locals.late, nil
	if w.whole {
		if refused := b.openRefuge(w.next, w.claim.To); refused != nil {
			err = fmt.Errorf("%w; nor can its samples be loaded one by one: %w", err, refused)
		} else {
			next.slot, next.next = b.refuge, w.next
		}
	}
	for place := w.next; place < next.next; place++ {
		cause := err
		if w.slot.records != nil {
			cause = w.slot.records[place].Of(err)
		}
		b.bad.add(place, &LoadError{Index: w.slot.indices[place], Position: b.position(place), Epoch: b.epoch, Worker: w.number, Err: cause})
	}
	l.pool.Add(1)
	go next.run()
	l.pool.Done() // for w, so that whoever waits for the pool doesn't wait for the call
	return next, err
}

// cameBack frees what a call that was given up has kept. What Scratch has made too late, the
// worker that has the seat gets.
func (w *worker) cameBack() {
	if err := w.keeps.release(); err != nil {
		w.l.opts.log.Warn("nwt: the memory of a batch could not be freed", "error", err)
	}
	w.l.away.Add(-1)
	w.leaveLate()
	w.locals.close(w.l.opts.log)
}

func (w *worker) leaveLate() {
	w.l.mu.Lock()
	defer w.l.mu.Unlock()
	w.l.numbers.giveBack(w.number)
	if heir := w.l.crew[w.seat]; w.madeLate && heir != nil && heir.locals.late == nil {
		heir.locals.late, w.locals.list = w.locals.list, nil
	}
}

// maxAway bounds the calls that were given up and haven't returned: each keeps a
// goroutine, and perhaps a slot.
const maxAway = 1024

// tooManyAway is the error that ends an epoch after maxAway such calls.
func (l *Loader) tooManyAway() error {
	return fmt.Errorf("nwt: %d calls that WithTimeout(%v) gave up haven't returned, the bound is %d: what they wait for is down", l.away.Load(), l.opts.timeout, maxAway)
}

// patience is how long a run that is over waits for calls before it logs one.
const patience = 5 * time.Second
