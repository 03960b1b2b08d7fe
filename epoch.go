package nwt

import (
	"context"
	"sync"

	"github.com/nwt-go/nwt/internal/order"
)

// iterate yields the batches from a state to the end of epoch last.
func (l *engine) iterate(ctx context.Context, s State, last int, yield func(*Batch, error) bool) {
	// The dataset, the sampler and the context belong to the program: no lock is held while they are
	// called.
	err := l.crew.whileFree(func() {})
	var at beginning
	if err == nil {
		at, err = l.beginning(s)
	}
	if err == nil && at.over {
		if s.Epoch == last {
			return
		}
		at, err = l.beginning(State{Epoch: s.Epoch + 1})
	}
	var r *run
	if err == nil {
		r, err = l.start(ctx, at, order.NewCourse(&at.order, at.epoch, last, at.base), nil)
	}
	if err != nil {
		yield(nil, err)
		return
	}
	defer r.end()
	t := l.tuning
	var show func() // one closure for all batches
	if t != nil {
		t.resume()
		defer t.wake.Stop()
		show = func() {
			r.turn.Lock()
			defer r.turn.Unlock()
			r.show()
		}
	}
	for more, batches := true, 1; more; batches++ {
		b, err := r.advance()
		if err != nil {
			yield(nil, err)
			return
		}
		if b == nil {
			break
		}
		if t != nil {
			t.took(r.taken, show)
		}
		if batches == 2 && at.base == 0 && (r.ordering.own || l.streams()) && l.opts.shuffle { // a single batch may have been a first look at the data
			l.tellIfBegun(at.epoch, r.ordering.n)
		}
		more = yield(b, nil)
		if t != nil {
			t.asked++
		}
	}
	if t != nil {
		t.Pause(t.delivered - t.before)
	}
}

// start starts a run at a beginning.
func (l *engine) start(ctx context.Context, at beginning, course order.Course, s *serving) (*run, error) {
	o := at.ordering
	r := &run{l: l, ending: ending{caller: ctx}, ordering: o, course: course, serving: s}
	r.order = sync.OnceValue(func() uint64 { return uint64(l.identity(o.sampler, o.order.N)) })
	r.yielded.Store(int64(at.epoch))
	if l.ownShapes() {
		r.sizes = make([]int, l.layout.Ragged)
	}
	r.ctx, r.cancel = context.WithCancelCause(ctx)
	r.turn.Lock() // Close waits until the run has begun
	defer r.turn.Unlock()
	err := l.crew.begin(r, func() {
		r.first = l.seq
		l.ring.Reset(l.seq)
		l.extra.filled = false
	})
	if err != nil {
		r.cancel(err)
		return nil, err
	}
	l.ordering.CompareAndSwap(at.known, o)
	running.Add(1)
	r.serveBy()
	return r, nil
}

// serveBy starts everything that serves the run.
func (r *run) serveBy() {
	l := r.l
	r.watchCaller()
	r.demand.opening.Store(r.first)
	if l.streams() {
		r.stream = newStreamFill(r, l.Workers() > 0)
		if r.stream.ahead {
			r.beside.Go(r.stream.feed)
		}
	}
	if l.opts.prefetch == 0 { // after the fields above are set: from now on idle workers see the run
		l.extra.Busy() // no worker waited between the epochs
		l.extra.run.Store(r)
	}
	l.crew.start()
	if l.stage != nil {
		r.beside.Go(r.transfer)
	}
}
