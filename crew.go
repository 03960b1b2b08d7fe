package nwt

import (
	"context"
	"runtime/pprof"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nwt-go/nwt/internal/search"
	"github.com/nwt-go/nwt/internal/watch"
)

// A crew is a loader's workers: who has which seat and which number, for which run, and which of
// their calls were given up. It knows nothing of loading.
//
// A worker has a seat, 0 … size−1, as long as it has a goroutine. If a call of it is given up, the
// call goes on without a seat, and another worker takes the seat.
//
// Locks are taken in this order: that of a call that is looked at (see watch.Clock), mu, the
// watchdog's.
type crew struct {
	hooks    crewHooks
	watchdog *watch.Watchdog // of calls of Load and of streams; nil without WithTimeout
	inline   *worker         // loads if there are no workers; the consumer's

	size atomic.Int32 // how many workers there should be; written under mu

	mu       sync.Mutex
	byHand   bool      // guarded by mu; the program has said how many, so that the loader doesn't any more
	closed   bool      // guarded by mu
	run      *run      // guarded by mu; nil between runs
	seats    []*worker // guarded by mu; nil if it has no goroutine
	numbers  numbers   // guarded by mu; of workers, and of calls that were given up
	prepared bool      // guarded by mu; no worker begins with WithWorkerInit any more in this run

	preparing sync.WaitGroup // workers that WithWorkerInit runs for, before they have claimed anything
	pool      sync.WaitGroup // goroutines of workers that have seats
	quiet     chan struct{}  // the run's: closed once none of its calls is under way
	watching  sync.WaitGroup // the goroutine of the watchdog
}

// crewHooks are what a crew needs. Those that mu is held for are quick, and call nothing of the
// program's.
type crewHooks interface {
	newWorker(seat, number int) *worker // mu is held
	work(w *worker)                     // is the goroutine of a worker, until it leaves or a call of it was given up
	takeOver(next, w *worker)           // makes next go on after w's call, which is given up and stands still
	setQuota(workers int)               // says for how many seats there is work; mu is held
	isOver() bool                       // reports whether the run ends, so that nobody need prepare for it; mu is held
}

func newCrew(hooks crewHooks, timeout time.Duration, size int) *crew {
	c := &crew{hooks: hooks}
	if timeout > 0 {
		c.watchdog = watch.New(timeout)
	}
	c.inline = hooks.newWorker(0, 0)
	c.setSize(size)
	return c
}

// setSize sets how many workers there should be. The caller holds mu, or is the only one to know c.
func (c *crew) setSize(n int) {
	c.size.Store(int32(n))
	c.hooks.setQuota(n)
}

// resize changes how many workers there should be, at once if a run is on. It reports false if the
// crew is closed or, unless the change is byHand, if there was one that was.
func (c *crew) resize(n int, byHand bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || !byHand && c.byHand {
		return false
	}
	c.byHand = byHand
	c.setSize(n)
	if c.run != nil {
		c.hire()
	}
	return true
}

// whileFree calls f, unless the crew is closed or a run is on: the error says which. No run begins
// meanwhile, so f must be quick, and call nothing of the program's.
func (c *crew) whileFree(f func()) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return ErrClosed
	case c.run != nil:
		return ErrBusy
	}
	f()
	return nil
}

// begin makes r the run, once f has made everything ready for it. The error is that of whileFree.
func (c *crew) begin(r *run, f func()) error {
	return c.whileFree(func() {
		f()
		c.run, c.prepared = r, false
	})
}

// start starts the workers of a run that has begun, and their watchdog.
func (c *crew) start() {
	c.mu.Lock()
	c.hire()
	c.mu.Unlock()
	if c.watchdog != nil {
		c.quiet = make(chan struct{})
		c.watching.Go(func() {
			pprof.SetGoroutineLabels(pprof.WithLabels(context.Background(), pprof.Labels("nwt", "load")))
			c.watchdog.Serve(c.quiet)
		})
	}
}

// awaitPrepared lets no further worker begin with WithWorkerInit, and waits for those that have
// begun.
func (c *crew) awaitPrepared() {
	c.mu.Lock()
	c.prepared = true
	c.mu.Unlock()
	c.preparing.Wait()
}

// rest ends the watchdog of a run of which no call is under way any more.
func (c *crew) rest() {
	if c.watchdog != nil {
		close(c.quiet)
		c.watching.Wait()
	}
}

// end ends the run, once f is called.
func (c *crew) end(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
	c.run = nil
}

// close lets no other run begin, and returns the one that is on; nil if none is.
func (c *crew) close() *run {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	return c.run
}

// dismiss lets all workers go, and waits for them.
func (c *crew) dismiss() {
	c.mu.Lock()
	c.setSize(0)
	c.mu.Unlock()
	c.pool.Wait()
}

// hire starts the workers that have no goroutine. The caller holds mu.
func (c *crew) hire() {
	for seat := range int(c.size.Load()) {
		if seat == len(c.seats) {
			c.seats = append(c.seats, nil)
		}
		if c.seats[seat] == nil {
			c.seat(c.hooks.newWorker(seat, c.numbers.take()))
		}
	}
}

// seat gives a worker its seat and starts its goroutine. The caller holds mu.
func (c *crew) seat(w *worker) {
	if c.watchdog != nil {
		w.bound()
		c.watchdog.Watch(&w.clock, func() bool { return c.replace(w) })
	}
	c.seats[w.seat] = w
	c.pool.Add(1)
	go func() {
		defer func() {
			if !w.clock.Lost() { // else replace has done it
				c.pool.Done()
			}
		}()
		c.hooks.work(w)
	}()
}

// replace gives up the call of a worker, which stands still, and lets another one take the seat.
func (c *crew) replace(w *worker) (givenUp bool) {
	c.mu.Lock()
	next := c.hooks.newWorker(w.seat, c.numbers.take())
	c.mu.Unlock()
	c.hooks.takeOver(next, w)
	c.mu.Lock()
	defer c.mu.Unlock()
	w.locals.handOn(next.locals)
	c.seat(next)
	c.pool.Done() // for w, so that whoever waits for the pool doesn't wait for the call
	return true
}

// cameBack notes that a call of w that was given up has returned. If Scratch has made something too
// late, the worker that has the seat gets it.
func (c *crew) cameBack(w *worker) {
	c.watchdog.Back()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.numbers.giveBack(w.number)
	if heir := c.seats[w.seat]; w.madeLate && heir != nil {
		w.locals.leaveTo(heir.locals)
	}
}

// inherit takes what another worker's call has left to this one.
func (c *crew) inherit(w *worker) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w.locals.takeIn()
}

// leave lets a surplus worker go. It reports false if the worker isn't surplus any more.
func (c *crew) leave(w *worker) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w.seat < int(c.size.Load()) {
		return false
	}
	c.vacate(w)
	return true
}

// enter returns the run that the worker is to call WithWorkerInit's function for. awaitPrepared then
// waits for entered. If there is no such run, enter takes the worker's seat away and returns nil.
func (c *crew) enter(w *worker) *run {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.run != nil && !c.prepared && !c.hooks.isOver() && w.seat < int(c.size.Load()) {
		c.preparing.Add(1)
		return c.run
	}
	c.vacate(w)
	return nil
}

func (c *crew) entered() { c.preparing.Done() }

// desert takes away the seat of a worker whose goroutine the program's code has ended.
func (c *crew) desert(w *worker) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.vacate(w)
}

// vacate makes a worker's seat free, if it has one. The caller holds mu.
func (c *crew) vacate(w *worker) {
	if c.seats[w.seat] != w {
		return
	}
	c.seats[w.seat] = nil
	c.numbers.giveBack(w.number)
	if c.watchdog != nil {
		c.watchdog.Unwatch(&w.clock)
	}
}

// longest returns the worker whose call, or claim, has been under way longest; nil if none is.
func (c *crew) longest() (w *worker) {
	c.mu.Lock()
	all := append(slices.Clone(c.seats), c.inline)
	c.mu.Unlock()
	first := int64(0)
	for _, one := range all {
		if one == nil {
			continue
		}
		if since, ok := one.clock.Since(); ok && (w == nil || since < first) {
			w, first = one, since
		}
	}
	return w
}

// cold returns how many samples the workers that have begun must load until they are warm, and
// whether one is about to begin.
func (c *crew) cold() (samples int, beginning bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range c.seats[:min(int(c.size.Load()), len(c.seats))] {
		if w == nil {
			continue
		}
		if cold := int(w.cold.Load()); cold < search.WarmSamples {
			samples += max(0, cold)
		}
		beginning = beginning || w.begins.Load()
	}
	return samples, beginning
}

// numbers are the numbers of Sample.Worker: which of them a goroutine has. No two workers have
// the same number at the same time; this includes calls that were given up.
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
