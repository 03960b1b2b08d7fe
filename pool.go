package nwt

import (
	"context"
	"fmt"
	"runtime/pprof"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nwt-go/nwt/internal/callctx"
	"github.com/nwt-go/nwt/internal/osmemory"
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

// poolHooks is what a pool needs from its engine: newWorker and work are in worker.go, takeOver is in
// pool.go, the others are in loader.go. The methods that run while mu is held are quick and call nothing
// of the program.
type poolHooks interface {
	newWorker(seat, number int) *worker // called with mu held
	work(w *worker)                     // runs in a worker's goroutine until the worker leaves or its call was given up
	takeOver(next, w *worker)           // makes next continue after w's call, which was given up and can't go on
	setQuota(workers int)               // sets for how many seats there is work; called with mu held
	isEnding() bool                     // reports whether the run is ending, so that no worker need prepare for it; called with mu held
}

func newPool(hooks poolHooks, timeout time.Duration, size int) *pool {
	p := &pool{hooks: hooks}
	if timeout > 0 {
		p.watchdog = watch.New(timeout)
	}
	p.inline = hooks.newWorker(0, 0)
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
			p.seat(p.hooks.newWorker(seat, p.numbers.take()))
		}
	}
}

// seat gives a worker its seat and starts its goroutine. The caller holds mu.
func (p *pool) seat(w *worker) {
	if p.watchdog != nil {
		w.loop.call.watchdog, w.loop.scratch.clock = p.watchdog, &w.loop // calls of the caller's own worker aren't bounded
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

// replace gives up the call of a worker that can't go on, and lets another worker take its seat.
func (p *pool) replace(w *worker) (givenUp bool) {
	p.mu.Lock()
	next := p.hooks.newWorker(w.seat, p.numbers.take())
	p.mu.Unlock()
	p.hooks.takeOver(next, w)
	p.mu.Lock()
	defer p.mu.Unlock()
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

// cold returns how many samples the workers that have begun must still load until they are warm, and
// whether a worker is about to begin.
func (p *pool) cold() (samples int, beginning bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range p.seats[:min(int(p.size.Load()), len(p.seats))] {
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

// With WithTimeout, a call that takes too long is given up. The watchdog (internal/watch) calls pool.replace,
// and another goroutine takes over from the call's worker (takeOver). If the call is of Load, its sample is bad:
// "no answer within WithTimeout(1s)" (internal/callctx). If it is of LoadMany, its samples are loaded one by one,
// in the batch's spare (openSpare). The call goes on in its goroutine, which the loader no longer counts on. It
// keeps everything that it may touch: its worker, with the samples and the indices it was given, and the whole
// slot that they lie in (slot.holders). The batch is moved to another slot before it is delivered (leaveOutBad in
// errors.go, moveOut). When the call returns, its loop learns that it is tooLate (its clock is Lost), and its
// worker frees what it kept (returned). While too many calls are Away, no batch is opened (tooManyAway). Calls of
// a ShardReader are given up in internal/shards, call.go.

// takeOver implements poolHooks. If a call of Load is given up, its sample is bad. The samples of a
// LoadMany are loaded one by one, if there is memory for that. The watchdog holds w's clock meanwhile, so
// w's goroutine doesn't come back from the call and touch what is read and written here; next has none yet.
func (l *engine) takeOver(next, w *worker) {
	b := w.claim.Item
	err := callctx.NoAnswer(w.loop.call.ctx)
	w.loop.slot.holders.Add(1) // the call; the last holder frees the slot
	w.keeps = w.loop.slot
	w.loop.call.cancel(err)
	next.claim, next.claimed, next.asked, next.loop.slot, next.loop.next = w.claim, true, true, w.loop.slot, w.loop.call.upto
	if w.loop.call.ofBatch {
		if refused := b.openSpare(w.loop.next, w.claim.To); refused != nil {
			err = fmt.Errorf("%w; nor can its samples be loaded one by one: %w", err, refused)
		} else {
			next.loop.slot, next.loop.next = b.spare, w.loop.next
		}
		if !l.ring.Stopped() { // else it is not a failure
			next.failed = err
		}
	}
	for place := w.loop.next; place < next.loop.next; place++ {
		b.fail(place, w.number, err, nil)
	}
}

// returned frees what a call that was given up has held.
func (w *worker) returned() {
	w.l.release(w.keeps)
	w.l.pool.returned(w)
	w.loop.scratch.close(w.l.setup.opts.log)
}

// tooManyAway returns an error if too many calls that were given up haven't returned: each keeps a
// goroutine, and perhaps a slot.
func (l *engine) tooManyAway() error {
	const most = 1024
	if away := l.pool.watchdog.Away(); away >= most {
		return fmt.Errorf("nwt: %d calls that WithTimeout(%v) gave up haven't returned, the bound is %d: what they wait for is down", away, l.setup.opts.timeout, most)
	}
	return nil
}

// patience is how long a run that is ending waits for calls before it says so.
const patience = 5 * time.Second

// A slowCallLog logs, once, that a run that is ending waits for calls.
type slowCallLog struct {
	armed sync.Once
	timer *time.Timer // nil: not armed
}

func (s *slowCallLog) arm(r *run) {
	s.armed.Do(func() {
		s.timer = time.AfterFunc(patience, func() {
			waits := "the epoch is over"
			if context.Cause(r.ctx) == ErrClosed {
				waits = "Close was called (if Load called it, it waits for ever: Load must not call Close)"
			}
			r.l.setup.opts.log.Warn("nwt: "+waits+", but a call of Load is still running, and is waited for: Load should return when its context ends, or WithTimeout should bound it", "epoch", r.yielded.Load())
		})
	})
}

func (s *slowCallLog) stop() {
	s.armed.Do(func() {})
	if s.timer != nil {
		s.timer.Stop()
	}
}

// openSpare prepares the batch's spare for the places from … to−1, which are then loaded one by one: a
// call of LoadMany that was given up may still write to these places in the batch's own slot. In the
// spare, the index of any other place is −1. Its memory is ordinary memory, since the places are moved
// to another slot afterwards.
func (b *batch) openSpare(from, to int) error {
	if b.spare == nil {
		s, err := b.slotLike(slotMemory{osmemory.Map, osmemory.Unmap})
		if err != nil {
			return err
		}
		for place := range s.indices {
			s.indices[place] = -1
		}
		b.spare = s
	}
	copy(b.spare.indices[from:to], b.slot.indices[from:to])
	return nil
}

// slotLike returns a slot in which the batch has the same shape as in its own slot.
func (b *batch) slotLike(mem slotMemory) (*slot, error) {
	s, err := b.l.newSlot(mem)
	if err == nil && b.l.ownShapes() {
		s.places.Like(&b.slot.places)
	}
	return s, err
}

// moveOut moves a loaded batch, except its bad places, to a slot that no call that was given up can write to.
func (b *batch) moveOut() error {
	memory := b.l.setup.slotMem
	if b.request != nil && b.request.memory.alloc != nil {
		memory = b.request.memory
	}
	to, err := b.slotLike(memory)
	if err != nil {
		return fmt.Errorf("out of the way of a Load that hangs: %w", err)
	}
	bad := b.bad.sorted()
	for place := range b.size {
		if len(bad) > 0 && bad[0].place == place {
			bad = bad[1:]
			continue
		}
		home := b.slot
		if b.spare != nil && b.spare.indices[place] >= 0 {
			home = b.spare
		}
		to.copyPlaces(place, home, place, place+1)
	}
	b.giveUp(b.slot)
	b.slot = to
	b.resize(b.size)
	b.leaveSpare()
	return nil
}
