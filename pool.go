package nwt

import (
	"context"
	"runtime/pprof"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nwt-go/nwt/internal/watch"
)

// A pool is the workers of a loader. It knows which worker has which seat and number, for which run, and
// which calls were given up. Of loading it knows only that a worker's calls have a clock.
//
// A worker has a seat, 0 … size−1, as long as it has a goroutine. If a call of it is given up, the
// call goes on without a seat, and another worker takes the seat.
//
// Locks are taken in this order: the lock of a watched call (see watch.Clock), mu, the watchdog's lock.
type pool struct {
	hooks    poolHooks
	watchdog *watch.Watchdog // watches calls of Load and of streams; nil without WithTimeout
	inline   *worker         // the consumer's own worker, which loads if there are no others

	size atomic.Int32 // how many workers there should be; written under mu

	mu       sync.Mutex
	byHand   bool      // guarded by mu; the program has set the number, so the loader no longer changes it
	closed   bool      // guarded by mu
	run      *run      // guarded by mu; nil between runs
	seats    []*worker // guarded by mu; nil for a seat without a goroutine
	numbers  numbers   // guarded by mu; in use by workers, and by calls that were given up
	prepared bool      // guarded by mu; in this run no further worker calls WithWorkerInit's function

	preparing  sync.WaitGroup // workers that are in WithWorkerInit's function and have claimed nothing yet
	goroutines sync.WaitGroup // goroutines of workers that have seats
	quiet      chan struct{}  // belongs to the run: closed once none of its calls is under way
	watching   sync.WaitGroup // the goroutine of the watchdog
}

// poolHooks is what a pool needs from its engine: newWorker, work and giveUp are in worker.go, the others
// in loader.go. The methods that run while mu is held are quick and call nothing of the program.
type poolHooks interface {
	newWorker(seat, number int, watchdog *watch.Watchdog) *worker // watchdog is nil if its calls aren't bounded; called with mu held
	work(w *worker)                                               // runs in a worker's goroutine until the worker leaves or its call was given up
	giveUp(w *worker) handover                                    // gives up w's call, which can't go on: see handover
	setQuota(workers int)                                         // sets for how many seats there is work; called with mu held
	isEnding() bool                                               // reports whether the run is ending, so that no worker need prepare for it; called with mu held
}

func newPool(hooks poolHooks, timeout time.Duration, size int) *pool {
	p := &pool{hooks: hooks}
	if timeout > 0 {
		p.watchdog = watch.New(timeout)
	}
	p.inline = hooks.newWorker(0, 0, nil)
	p.setSize(size)
	return p
}

// setSize sets how many workers there should be. The caller holds mu, or nobody else knows p yet.
func (p *pool) setSize(n int) {
	p.size.Store(int32(n))
	p.hooks.setQuota(n)
}

// resize changes how many workers there should be; during a run it takes effect at once. It returns false
// if the pool is closed, or if byHand is false and an earlier change was by hand.
func (p *pool) resize(n int, byHand bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || !byHand && p.byHand {
		return false
	}
	p.byHand = byHand
	p.setSize(n)
	if p.run != nil {
		p.hire()
	}
	return true
}

// whileFree calls f, unless the pool is closed or a run is on; the error says which. No run begins
// meanwhile, so f must be quick, and must call nothing of the program.
func (p *pool) whileFree(f func()) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return ErrClosed
	case p.run != nil:
		return ErrBusy
	}
	f()
	return nil
}

// begin makes r the current run, after f has prepared everything for it. It returns the error of
// whileFree.
func (p *pool) begin(r *run, f func()) error {
	return p.whileFree(func() {
		f()
		p.run, p.prepared = r, false
	})
}

// start starts the workers of a run that has begun, and their watchdog.
func (p *pool) start() {
	p.mu.Lock()
	p.hire()
	p.mu.Unlock()
	if p.watchdog != nil {
		p.quiet = make(chan struct{})
		p.watching.Go(func() {
			pprof.SetGoroutineLabels(pprof.WithLabels(context.Background(), pprof.Labels("nwt", "load")))
			p.watchdog.Serve(p.quiet)
		})
	}
}

// awaitPrepared keeps further workers from calling WithWorkerInit's function, and waits for those that
// have begun it.
func (p *pool) awaitPrepared() {
	p.mu.Lock()
	p.prepared = true
	p.mu.Unlock()
	p.preparing.Wait()
}

// rest stops the watchdog of a run that has no call under way.
func (p *pool) rest() {
	if p.watchdog != nil {
		close(p.quiet)
		p.watching.Wait()
	}
}

// end calls f, then ends the run.
func (p *pool) end(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	p.run = nil
}

// close keeps other runs from beginning, and returns the current run, or nil if there is none.
func (p *pool) close() *run {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	return p.run
}

// dismiss makes all workers leave, and waits for them.
func (p *pool) dismiss() {
	p.mu.Lock()
	p.setSize(0)
	p.mu.Unlock()
	p.goroutines.Wait()
}

// hire starts the workers that have no goroutine. The caller holds mu.
func (p *pool) hire() {
	for seat := range int(p.size.Load()) {
		if seat == len(p.seats) {
			p.seats = append(p.seats, nil)
		}
		if p.seats[seat] == nil {
			p.seat(p.hooks.newWorker(seat, p.numbers.take(), p.watchdog))
		}
	}
}

// seat gives a worker its seat and starts its goroutine. The caller holds mu.
func (p *pool) seat(w *worker) {
	if p.watchdog != nil {
		// A clock's lock is taken before mu. A new worker's clock is idle, so Watch takes it from nobody.
		p.watchdog.Watch(&w.loop.call.clock, func() bool { return p.replace(w) })
	}
	p.seats[w.seat] = w
	p.goroutines.Add(1)
	go func() {
		defer func() {
			if !w.loop.call.clock.Lost() { // else replace has done it
				p.goroutines.Done()
			}
		}()
		p.hooks.work(w)
	}()
}

// replace gives up the call of a worker that can't go on, and lets another worker take its seat and its
// claim.
func (p *pool) replace(w *worker) (givenUp bool) {
	rest := p.hooks.giveUp(w)
	p.mu.Lock()
	defer p.mu.Unlock()
	next := p.hooks.newWorker(w.seat, p.numbers.take(), p.watchdog)
	next.takeOver(rest)
	p.seat(next)
	p.goroutines.Done() // for w: whoever waits for the goroutines needn't wait for this call
	return true
}

// returned records that a call of w that was given up has returned.
func (p *pool) returned(w *worker) {
	p.watchdog.Back()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.numbers.giveBack(w.number)
}

// leave lets a surplus worker end. It returns false if the worker is no longer surplus.
func (p *pool) leave(w *worker) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.seat < int(p.size.Load()) {
		return false
	}
	p.vacate(w)
	return true
}

// enter returns the run for which the worker must call WithWorkerInit's function. awaitPrepared then
// waits for entered. If there is no such run, enter takes the worker's seat away and returns nil.
func (p *pool) enter(w *worker) *run {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.run != nil && !p.prepared && !p.hooks.isEnding() && w.seat < int(p.size.Load()) {
		p.preparing.Add(1)
		return p.run
	}
	p.vacate(w)
	return nil
}

func (p *pool) entered() { p.preparing.Done() }

// desert takes away the seat of a worker whose goroutine was ended by the program's code.
func (p *pool) desert(w *worker) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.vacate(w)
}

// vacate frees a worker's seat, if it has one. The caller holds mu.
func (p *pool) vacate(w *worker) {
	if p.seats[w.seat] != w {
		return
	}
	p.seats[w.seat] = nil
	p.numbers.giveBack(w.number)
	if p.watchdog != nil {
		p.watchdog.Unwatch(&w.loop.call.clock)
	}
}

// each calls f for the workers that have seats, but not for surplus ones. mu is held meanwhile, so f must be
// quick.
func (p *pool) each(f func(w *worker)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range p.seats[:min(int(p.size.Load()), len(p.seats))] {
		if w != nil {
			f(w)
		}
	}
}

// numbers says which values of Sample.Worker are in use by a goroutine. No two workers have the same
// number at the same time; this includes calls that were given up, but not the inline worker, whose number
// is 0 always.
type numbers []bool

// take takes the lowest number that is free.
func (n *numbers) take() int {
	number := slices.Index(*n, false)
	if number < 0 {
		number = len(*n)
		*n = append(*n, true)
	}
	(*n)[number] = true
	return number
}

func (n numbers) giveBack(number int) { n[number] = false }
