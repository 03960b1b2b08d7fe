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

// A pool is the workers of a loader. It knows which worker has which seat and number, for which run, and
// which calls were given up. It knows nothing of loading.
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

// poolHooks is what a pool needs from its engine. The methods that run while mu is held are quick and
// call nothing of the program.
type poolHooks interface {
	newWorker(seat, number int) *worker // called with mu held
	work(w *worker)                     // runs in a worker's goroutine until the worker leaves or its call was given up
	takeOver(next, w *worker)           // makes next continue after w's call, which was given up and can't go on
	setQuota(workers int)               // sets for how many seats there is work; called with mu held
	isOver() bool                       // reports whether the run is ending, so that no worker need prepare for it; called with mu held
}

func newPool(hooks poolHooks, timeout time.Duration, size int) *pool {
	c := &pool{hooks: hooks}
	if timeout > 0 {
		c.watchdog = watch.New(timeout)
	}
	c.inline = hooks.newWorker(0, 0)
	c.setSize(size)
	return c
}

// setSize sets how many workers there should be. The caller holds mu, or nobody else knows c yet.
func (c *pool) setSize(n int) {
	c.size.Store(int32(n))
	c.hooks.setQuota(n)
}

// resize changes how many workers there should be; during a run it takes effect at once. It returns false
// if the pool is closed, or if byHand is false and an earlier change was by hand.
func (c *pool) resize(n int, byHand bool) bool {
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

// whileFree calls f, unless the pool is closed or a run is on; the error says which. No run begins
// meanwhile, so f must be quick, and must call nothing of the program.
func (c *pool) whileFree(f func()) error {
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

// begin makes r the current run, after f has prepared everything for it. It returns the error of
// whileFree.
func (c *pool) begin(r *run, f func()) error {
	return c.whileFree(func() {
		f()
		c.run, c.prepared = r, false
	})
}

// start starts the workers of a run that has begun, and their watchdog.
func (c *pool) start() {
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

// awaitPrepared keeps further workers from calling WithWorkerInit's function, and waits for those that
// have begun it.
func (c *pool) awaitPrepared() {
	c.mu.Lock()
	c.prepared = true
	c.mu.Unlock()
	c.preparing.Wait()
}

// rest stops the watchdog of a run that has no call under way.
func (c *pool) rest() {
	if c.watchdog != nil {
		close(c.quiet)
		c.watching.Wait()
	}
}

// end calls f, then ends the run.
func (c *pool) end(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
	c.run = nil
}

// close keeps other runs from beginning, and returns the current run, or nil if there is none.
func (c *pool) close() *run {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	return c.run
}

// dismiss makes all workers leave, and waits for them.
func (c *pool) dismiss() {
	c.mu.Lock()
	c.setSize(0)
	c.mu.Unlock()
	c.goroutines.Wait()
}

// hire starts the workers that have no goroutine. The caller holds mu.
func (c *pool) hire() {
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
func (c *pool) seat(w *worker) {
	if c.watchdog != nil {
		w.watchdog, w.locals.clock = c.watchdog, &w.hand // calls of the caller's own worker aren't bounded
		c.watchdog.Watch(&w.clock, func() bool { return c.replace(w) })
	}
	c.seats[w.seat] = w
	c.goroutines.Add(1)
	go func() {
		defer func() {
			if !w.clock.Lost() { // else replace has done it
				c.goroutines.Done()
			}
		}()
		c.hooks.work(w)
	}()
}

// replace gives up the call of a worker that can't go on, and lets another worker take its seat.
func (c *pool) replace(w *worker) (givenUp bool) {
	c.mu.Lock()
	next := c.hooks.newWorker(w.seat, c.numbers.take())
	c.mu.Unlock()
	c.hooks.takeOver(next, w)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seat(next)
	c.goroutines.Done() // for w: whoever waits for the goroutines needn't wait for this call
	return true
}

// returned records that a call of w that was given up has returned.
func (c *pool) returned(w *worker) {
	c.watchdog.Back()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.numbers.giveBack(w.number)
}

// leave lets a surplus worker end. It returns false if the worker is no longer surplus.
func (c *pool) leave(w *worker) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w.seat < int(c.size.Load()) {
		return false
	}
	c.vacate(w)
	return true
}

// enter returns the run for which the worker must call WithWorkerInit's function. awaitPrepared then
// waits for entered. If there is no such run, enter takes the worker's seat away and returns nil.
func (c *pool) enter(w *worker) *run {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.run != nil && !c.prepared && !c.hooks.isOver() && w.seat < int(c.size.Load()) {
		c.preparing.Add(1)
		return c.run
	}
	c.vacate(w)
	return nil
}

func (c *pool) entered() { c.preparing.Done() }

// desert takes away the seat of a worker whose goroutine was ended by the program's code.
func (c *pool) desert(w *worker) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.vacate(w)
}

// vacate frees a worker's seat, if it has one. The caller holds mu.
func (c *pool) vacate(w *worker) {
	if c.seats[w.seat] != w {
		return
	}
	c.seats[w.seat] = nil
	c.numbers.giveBack(w.number)
	if c.watchdog != nil {
		c.watchdog.Unwatch(&w.clock)
	}
}

// cold returns how many samples the workers that have begun must still load until they are warm, and
// whether a worker is about to begin.
func (c *pool) cold() (samples int, beginning bool) {
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

// numbers says which values of Sample.Worker are in use by a goroutine. No two workers have the same
// number at the same time; this includes calls that were given up.
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
