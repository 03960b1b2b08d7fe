package nwt

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nwt-go/nwt/internal/search"
)

// A straggler is a call that is under way when a visit ends. Had the visit begun in the midst of
// training, as many would have been under way when it began. But workers begin each visit with
// nothing in hand. So a visit that is shorter than a slow sample may never pay for one: without
// order nothing waits for it, and in order it may belong to a batch beyond the last. That is why
// the calls that began in a visit are timed to their ends, also past the visit's.

const (
	// Stragglers are waited for at most this long: a call that heeds its context would
	// otherwise be cut short.
	stragglerPatience = time.Second
	// Calls that take less than this aren't timed. Timing costs 0.1 µs.
	timedCall = 10 * time.Microsecond
)

// calls times the calls of Load and LoadBatch of a loader that is visited.
type calls struct {
	l    *Loader
	open atomic.Pointer[callWindow] // the window that calls which begin now belong to; nil: none
}

// A callWindow is what the calls that began in a part of a visit took.
type callWindow struct {
	seats [64]callSeat              // by worker, so that workers seldom share a cache line
	ended atomic.Pointer[time.Time] // when the window ended; set once
	woken chan struct{}             // that a call has returned since
}

type callSeat struct {
	begun, returned atomic.Int64 // calls; those that began in the window
	places          atomic.Int64 // of those that returned
	took            atomic.Int64 // nanoseconds, of those that returned, to their ends
	late            atomic.Int64 // of it, after the window's end
	_               [24]byte
}

// served is what a window tells.
type served struct {
	places int
	took   time.Duration // of the calls in sum
	late   time.Duration // of it, after the visit's end
}

// timeCalls has l's calls timed.
func timeCalls(l *Loader) *calls {
	c := &calls{l: l}
	load, together := l.loadSample, l.loadBatch
	l.loadSample = func(ctx context.Context, index int, dst *Sample) error {
		w := c.window(1)
		if w == nil {
			return load(ctx, index, dst)
		}
		seat, began := w.begin(dst.worker)
		defer w.returned(seat, began, 1) // user code may panic or end the goroutine
		return load(ctx, index, dst)
	}
	if together != nil {
		l.loadBatch = func(ctx context.Context, indices []int, dst []*Sample) error {
			w := c.window(len(indices))
			if w == nil {
				return together(ctx, indices, dst)
			}
			seat, began := w.begin(dst[0].worker)
			defer w.returned(seat, began, len(indices))
			return together(ctx, indices, dst)
		}
	}
	return c
}

// window is the window that a call for n places belongs to; nil: it isn't timed.
func (c *calls) window(n int) *callWindow {
	if per := c.l.pace.perSample.Load(); per != 0 && per*int64(n) < int64(timedCall) {
		return nil
	}
	return c.open.Load()
}

// begin begins a call of a worker.
func (w *callWindow) begin(worker int) (seat *callSeat, began time.Time) {
	seat = &w.seats[worker%len(w.seats)]
	seat.begun.Add(1)
	return seat, time.Now()
}

// returned ends a call for n places.
func (w *callWindow) returned(seat *callSeat, began time.Time, n int) {
	now := time.Now()
	seat.took.Add(int64(now.Sub(began)))
	seat.places.Add(int64(n))
	ended := w.ended.Load()
	if ended != nil {
		seat.late.Add(int64(now.Sub(later(*ended, began))))
	}
	seat.returned.Add(1)
	if ended != nil {
		select {
		case w.woken <- struct{}{}:
		default:
		}
	}
}

// begin begins a window; what the one before has seen is forgotten.
func (c *calls) begin() {
	if c != nil {
		c.open.Store(&callWindow{woken: make(chan struct{}, 1)})
	}
}

// end ends the window and waits for the stragglers, but not beyond the deadline. Those that don't
// return by then don't count.
func (c *calls) end(ctx context.Context, now, deadline time.Time) (s served) {
	if c == nil {
		return s
	}
	w := c.open.Swap(nil)
	if w == nil {
		return s
	}
	w.ended.Store(&now)
	patience := stragglerPatience
	if timeout := c.l.opts.timeout; timeout > 0 {
		patience = min(patience, timeout) // calls that were given up may never return
	}
	if !deadline.IsZero() {
		patience = max(0, min(patience, deadline.Sub(now)))
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for waits := true; waits && w.underWay() > 0; {
		select {
		case <-w.woken:
		case <-timer.C:
			waits = false
		case <-ctx.Done():
			waits = false
		}
	}
	for i := range w.seats {
		seat := &w.seats[i]
		s.places += int(seat.places.Load())
		s.took += time.Duration(seat.took.Load())
		s.late += time.Duration(seat.late.Load())
	}
	return s
}

// underWay is how many calls that began in the window haven't returned.
func (w *callWindow) underWay() (n int64) {
	for i := range w.seats {
		n += w.seats[i].begun.Load() - w.seats[i].returned.Load()
	}
	return n
}

// A visited is a visit as it was measured.
type visited struct {
	search.Block
	served served // what its calls took
}

// chargeStragglers charges the visits for their stragglers, as far as the count seems faster than
// its workers can be: n workers load at most n times as much as one does while its calls take as
// long as they took in the mean. A count at which the step sets the pace has time for stragglers.
func (c *count) chargeStragglers() {
	c.sum.all, c.sum.wait, c.charged = c.sum.all-c.charged, c.sum.wait-c.charged, 0
	var all served
	for _, v := range c.visits {
		all.took, all.late, all.places = all.took+v.served.took, all.late+v.served.late, all.places+v.served.places
	}
	share, workers := 0.0, float64(c.Workers)
	if c.Workers > 0 && all.late > 0 {
		busy := float64(all.took) / float64(all.places) * float64(c.sum.places)
		share = min(1, max(0, busy-float64(c.sum.all)*workers)/float64(all.late)) / workers
	}
	for i, v := range c.visits {
		more := time.Duration(share * float64(v.served.late))
		c.blocks[i] = charged(v.Block, more)
		c.charged += more
	}
	c.sum.all, c.sum.wait = c.sum.all+c.charged, c.sum.wait+c.charged
}

// charged is b if it took longer by more: a single slow iteration, rather than all of them.
func charged(b search.Block, more time.Duration) search.Block {
	b.Mean += more / time.Duration(b.Iterations)
	if b.Parts = slices.Clone(b.Parts); len(b.Parts) > 0 {
		last := &b.Parts[len(b.Parts)-1]
		last.Mean += float64(more) / last.Weight
	}
	return b
}
