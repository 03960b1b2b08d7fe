package nwt

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// With WithTimeout, a call of Load that takes too long is given up: its sample
// counts as bad, another goroutine takes over the worker's place, and the call
// goes on in one that the loader no longer counts on. As it may still write to
// its sample, the memory that this lies in is not used again until it returns.

// A watch is what the watchdog sees of a worker.
type watch struct {
	mu    sync.Mutex
	since time.Time   // guarded by mu; when the call under way began, zero between calls
	upto  int         // guarded by mu; the place after the last that the call loads
	hung  *hungMemory // guarded by mu; set once, when the call under way is given up

	// The worker's, and the watchdog's while a call is under way.
	run    *run // that ctx is for
	ctx    context.Context
	cancel context.CancelCauseFunc
}

func (w *watch) begin(upto int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.since, w.upto = time.Now(), upto
}

// returned notes that the call under way has returned; true: too late.
func (w *worker) returned() bool {
	if w.watch == nil {
		return false
	}
	w.watch.mu.Lock()
	defer w.watch.mu.Unlock()
	w.watch.since = time.Time{}
	return w.watch.hung != nil
}

// lost tells whether the worker has been given up.
func (w *worker) lost() bool {
	if w.watch == nil {
		return false
	}
	w.watch.mu.Lock()
	defer w.watch.mu.Unlock()
	return w.watch.hung != nil
}

// context is what Load gets in a run: with a timeout, one that also ends when
// the call is given up.
func (w *worker) context(r *run) context.Context {
	if w.watch == nil {
		return r.ctx
	}
	if w.watch.run != r {
		w.watch.run = r
		w.watch.ctx, w.watch.cancel = context.WithCancelCause(r.ctx)
	}
	return w.watch.ctx
}

// watchdog gives up calls that take too long. It is a goroutine of the pool.
func (l *Loader) watchdog() {
	defer l.pool.Done()
	tick := time.NewTicker(max(l.opts.timeout/8, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-l.closing:
			return
		case now := <-tick.C:
			l.mu.Lock()
			for id, w := range l.crew {
				if w != nil && w.overdue(now) {
					l.crew[id] = w.replace()
				}
			}
			l.mu.Unlock()
		}
	}
}

// overdue tells whether the call under way takes too long, and gives it up.
func (w *worker) overdue(now time.Time) bool {
	w.watch.mu.Lock()
	defer w.watch.mu.Unlock()
	if w.watch.since.IsZero() || now.Sub(w.watch.since) < w.l.opts.timeout {
		return false
	}
	w.watch.hung = w.claim.Item.hang()
	return true
}

// replace lets another goroutine take over from a worker that was given up.
func (w *worker) replace() *worker {
	b, upto := w.claim.Item, w.watch.upto
	err := fmt.Errorf("no answer within WithTimeout(%v): %w", w.l.opts.timeout, context.DeadlineExceeded)
	for place := w.next; place < upto; place++ {
		b.bad.add(place, &LoadError{Index: b.indices[place], Position: b.position(place), Epoch: b.epoch, Worker: w.sample.worker, Err: err})
	}
	w.watch.cancel(err)
	if w.sample.worker == 0 {
		<-w.l.zero
	}
	next := newWorker(w.l, w.sample.worker)
	next.claim, next.claimed, next.next, next.singly = w.claim, true, upto, w.singly
	next.watch = &watch{}
	w.l.pool.Add(1)
	go next.run()
	w.l.pool.Done() // for w: whoever joins the pool doesn't wait for the call
	return next
}

// hungMemory is a slot that calls which were given up may still write to. The
// last of its holders frees it: these calls, and the batch as long as it is its.
type hungMemory struct {
	mem     []byte
	holders atomic.Int32
	free    func([]byte) error
}

func (m *hungMemory) release() {
	if m.holders.Add(-1) == 0 {
		_ = m.free(m.mem) // nobody is left to tell
	}
}

// hang counts another call that was given up.
func (b *Batch) hang() *hungMemory {
	b.bad.mu.Lock()
	defer b.bad.mu.Unlock()
	if b.hung == nil {
		b.hung = &hungMemory{mem: b.mem, free: b.l.slotMem.free}
		b.hung.holders.Add(1)
	}
	b.hung.holders.Add(1)
	return b.hung
}

// disown leaves the batch's memory to calls that were given up; false where they
// all have returned, and the memory stays the batch's.
func (b *Batch) disown() bool {
	hung := b.hung
	b.hung = nil
	if hung == nil || hung.holders.CompareAndSwap(1, 0) {
		return false
	}
	hung.release()
	return true
}

// moveOut moves a loaded batch to other memory than its hung calls write to,
// but for the bad places.
func (b *Batch) moveOut() error {
	mem, err := b.l.slotMem.alloc(len(b.mem))
	if err != nil {
		return fmt.Errorf("nwt: %d bytes of host memory to move a batch out of a hung Load's way: %w", len(b.mem), err)
	}
	old := b.mem
	b.mem, b.lens = mem, slices.Clone(b.lens)
	from := 0
	for _, f := range append(b.bad.list, fault{place: b.size}) {
		for i, c := range b.l.layout.columns {
			off := b.l.offsets[i]
			copy(b.mem[off+from*c.size:], old[off+from*c.size:off+f.place*c.size])
		}
		from = f.place + 1
	}
	if !b.disown() {
		return b.l.slotMem.free(old)
	}
	return nil
}
