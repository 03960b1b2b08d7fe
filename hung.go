package nwt

import (
	"context"
	"fmt"
	"runtime/pprof"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nwt-go/nwt/internal/loadctx"
	"github.com/nwt-go/nwt/internal/pages"
)

// With WithTimeout, a call that takes too long is given up, and another goroutine
// takes over from its worker. If the call is of Load, its sample is bad. If it is of
// LoadBatch, its samples are loaded one by one, elsewhere. The call goes on in a
// goroutine that the loader no longer counts on. It keeps all that it may touch: its
// worker, with the samples and the indices it was given, and the whole slot that
// they lie in. The batch is moved to another slot before anybody sees it.

// maxAway bounds the calls that were given up and haven't returned: each keeps a
// goroutine, and perhaps a slot.
const maxAway = 1024

// tooManyAway is the error that ends an epoch after maxAway such calls.
func (l *Loader) tooManyAway() error {
	return fmt.Errorf("nwt: %d calls that WithTimeout(%v) gave up haven't returned, the bound is %d: what they wait for is down", l.away.Load(), l.opts.timeout, maxAway)
}

// A watch is what the watchdog sees of a worker.
type watch struct {
	mu    sync.Mutex
	since time.Time // guarded by mu; when the call under way began, zero between calls
	upto  int       // guarded by mu; the place after the last that the call loads
	whole bool      // guarded by mu; the call is one of LoadBatch
	keeps *slot     // guarded by mu; set once, when the call under way is given up

	// Used by the worker and, while a call is under way, by the watchdog.
	run    *run // the run that ctx is for
	ctx    context.Context
	cancel context.CancelCauseFunc
}

// begin notes that a call begins. The worker must have called context before.
func (w *watch) begin(upto int, whole bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.since, w.upto, w.whole = time.Now(), upto, whole
}

// returned notes that the call under way has returned. It reports true if that was
// too late.
func (w *worker) returned() bool {
	if w.watch == nil {
		return false
	}
	w.watch.mu.Lock()
	defer w.watch.mu.Unlock()
	w.watch.since = time.Time{}
	return w.watch.keeps != nil
}

// lost tells whether the worker has been given up.
func (w *worker) lost() bool {
	if w.watch == nil {
		return false
	}
	w.watch.mu.Lock()
	defer w.watch.mu.Unlock()
	return w.watch.keeps != nil
}

// context is the context that Load gets in a run. With a timeout it also ends when
// the call is given up.
func (w *worker) context(r *run) context.Context {
	if w.watch == nil {
		return r.ctx
	}
	if w.watch.run != r {
		w.watch.run = r
		w.watch.ctx, w.watch.cancel = context.WithCancelCause(loadctx.WithTimeout(r.ctx, w.l.opts.timeout))
	}
	return w.watch.ctx
}

// watchdog gives up calls that take too long. It is a goroutine of the pool.
func (l *Loader) watchdog() {
	defer l.pool.Done()
	pprof.SetGoroutineLabels(pprof.WithLabels(context.Background(), pprof.Labels("nwt", "load")))
	tick := time.NewTicker(max(l.opts.timeout/8, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-l.closing:
			return
		case now := <-tick.C:
			for _, err := range l.giveUp(now) {
				l.said.failedTogether(l.opts.log, err) // without mu: a log's handler may ask the loader
			}
		}
	}
}

// giveUp gives up the calls that take too long. It returns the errors of calls of
// LoadBatch among them, but not of those whose run is over already: that is no failure.
func (l *Loader) giveUp(now time.Time) (together []error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for seat, w := range l.crew {
		if w == nil || !w.overdue(now) {
			continue
		}
		failed := w.watch.whole && !l.ring.Stopped() // before replace: with another worker the run may end at once
		next, err := w.replace()
		l.crew[seat] = next
		if failed {
			together = append(together, err)
		}
	}
	return together
}

// overdue tells whether the call under way takes longer than WithTimeout allows for
// each of its samples. If so, it gives the call up.
func (w *worker) overdue(now time.Time) bool {
	w.watch.mu.Lock()
	defer w.watch.mu.Unlock()
	if w.watch.since.IsZero() || now.Sub(w.watch.since)/time.Duration(w.watch.upto-w.next) < w.l.opts.timeout {
		return false
	}
	w.slot.holders.Add(1)
	w.l.away.Add(1)
	w.watch.keeps = w.slot
	return true
}

// replace lets another goroutine take over from a worker that was given up: its fields
// don't change any more. The error says why the worker was given up. The caller holds
// Loader.mu.
func (w *worker) replace() (next *worker, err error) {
	b, l, upto := w.claim.Item, w.l, w.watch.upto
	err = l.opts.noAnswer()
	w.watch.cancel(err)
	if w.number == 0 {
		l.numbers.lost = true
		l.zero.put()
	}
	next = newWorker(l, w.seat, l.numbers.take())
	next.claim, next.claimed, next.slot = w.claim, true, w.slot
	next.next, next.singly = upto, max(upto, w.singly)
	var refuge *slot
	if w.watch.whole {
		var refused error
		if refuge, refused = b.refuge(w.next, w.claim.To); refused != nil {
			err = fmt.Errorf("%w; nor can its samples be loaded one by one: %w", err, refused)
		}
	}
	if refuge != nil {
		next.slot, next.next = refuge, w.next
	}
	for place := w.next; place < next.next; place++ {
		b.bad.add(place, &LoadError{Index: w.slot.indices[place], Position: b.position(place), Epoch: b.epoch, Worker: w.number, Err: err})
	}
	next.watch = &watch{}
	l.pool.Add(1)
	go next.run()
	l.pool.Done() // for w, so that whoever waits for the pool doesn't wait for the call
	return next, err
}

// cameBack frees what a call that was given up has kept.
func (w *worker) cameBack() {
	_ = w.watch.keeps.release() // nobody is left to tell of an error
	w.l.away.Add(-1)
	w.l.mu.Lock()
	w.l.numbers.giveBack(w.number)
	if w.number == 0 {
		w.l.numbers.lost = false
	}
	w.l.mu.Unlock()
	w.sample.locals.close(w.l.opts.log)
}

// numbers are the numbers of Sample.Worker. No two goroutines that load have the same
// number at the same time; this includes calls that were given up.
type numbers struct {
	taken []bool
	lost  bool // 0 belongs to a call that was given up, so the caller needs another number
}

// take takes the lowest number that is free.
func (n *numbers) take() int {
	number := slices.Index(n.taken, false)
	if number < 0 {
		number = len(n.taken)
		n.taken = append(n.taken, true)
	}
	n.taken[number] = true
	return number
}

// callersNumber is the caller's number: 0, unless 0 belongs to a call that was given
// up.
func (l *Loader) callersNumber() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.numbers.lost {
		return 0
	}
	return l.numbers.take()
}

func (l *Loader) callerIsDone(number int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if number > 0 {
		l.numbers.giveBack(number)
	}
}

func (n *numbers) giveBack(number int) { n.taken[number] = false }

// A refuge is a slot for places of a batch whose call of LoadBatch was given up: that
// call may still write to them in the batch's own slot.
type refuge struct {
	*slot
	from, to int
}

// refuge is a slot to load places from … to−1 in. Its memory is ordinary, since the places
// are moved to another slot afterwards. The caller holds Loader.mu.
func (b *Batch) refuge(from, to int) (*slot, error) {
	s, err := b.slotLike(slotMemory{pages.Map, pages.Unmap})
	if err != nil {
		return nil, err
	}
	if b.known {
		copy(s.indices[from:], b.indices[from:to])
	}
	b.refuges = append(b.refuges, refuge{s, from, to})
	return s, nil
}

// slotLike is a slot in which the batch has the shape that it has in its own.
func (b *Batch) slotLike(mem slotMemory) (*slot, error) {
	s, err := b.l.newSlot(mem)
	if err == nil && b.l.ownShapes() {
		s.like(&b.geometry)
	}
	return s, err
}

// moveOut moves a loaded batch, except its bad places, to a slot that no call can
// write to.
func (b *Batch) moveOut() error {
	home := make([]*slot, b.size) // of each place
	for i := range home {
		home[i] = b.slot
	}
	for _, r := range b.refuges {
		for i := r.from; i < min(r.to, b.size); i++ {
			home[i] = r.slot
		}
	}
	for _, f := range b.bad.list {
		home[f.place] = nil
	}
	to, err := b.slotLike(b.l.slotMem)
	if err != nil {
		return fmt.Errorf("out of the way of a Load that hangs: %w", err)
	}
	for from := 0; from < b.size; {
		end := from + 1
		for end < b.size && home[end] == home[from] {
			end++
		}
		if home[from] != nil {
			to.copyPlaces(from, home[from], from, end)
		}
		from = end
	}
	b.giveUp(b.slot)
	b.slot = to
	b.resize(b.size)
	b.leaveRefuges()
	return nil
}

// copyPlaces copies places from … end−1 of a slot of the same geometry, which may be s
// itself, to the places of s from to on.
func (s *slot) copyPlaces(to int, src *slot, from, end int) {
	for f := range s.columns {
		size, off := s.columns[f].size, s.offsets[f]
		copy(s.mem[off+to*size:], src.mem[off+from*size:off+end*size])
	}
	capacity := len(s.indices)
	for lens := 0; lens < len(s.lens); lens += capacity { // of each ragged dimension
		copy(s.lens[lens+to:], src.lens[lens+from:lens+end])
	}
	copy(s.indices[to:], src.indices[from:end])
}

// A baton is a lock that another goroutine than its holder may put down. Waiting for it
// is a channel operation, so testing/synctest sees it; taking it when it is free is a
// single addition.
type baton struct {
	wanted atomic.Int32 // the holder, and those who wait
	next   chan struct{}
}

func newBaton() baton { return baton{next: make(chan struct{})} }

func (b *baton) take() {
	if b.wanted.Add(1) > 1 {
		<-b.next
	}
}

func (b *baton) put() {
	if b.wanted.Add(-1) > 0 {
		b.next <- struct{}{} // whoever has added itself receives
	}
}
