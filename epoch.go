package nwt

import (
	"context"
	"sync"

	"github.com/nwt-go/nwt/internal/order"
)

// iterate yields the batches of the epochs first … last. The first epoch begins at
// position base.
func (l *engine) iterate(ctx context.Context, first, last, base int, yield func(*Batch, error) bool) {
	r, err := l.begin(ctx, first, last, base)
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
		if batches == 2 && base == 0 && (r.ordering.own || l.streams()) && l.opts.shuffle { // a single batch may have been a first look at the data
			l.tellIfBegun(first, r.ordering.n)
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

// begin starts a run.
func (l *engine) begin(ctx context.Context, first, last, base int) (*run, error) {
	// The dataset, the sampler and the context belong to the program: no lock is held while they are
	// called.
	if err := l.crew.whileFree(func() {}); err != nil {
		return nil, err
	}
	known := l.ordering.Load()
	o, err := l.followDataset(known)
	if err != nil {
		return nil, err
	}
	if n := l.samplesOfEpoch(o); base > n {
		return nil, optionError("State.Samples", base, "must be 0 … %d, the samples of an epoch", n)
	}
	if o.order.Batches > 0 {
		if base, err = o.order.BatchAt(first, base); err != nil {
			return nil, orderError(err)
		}
	}
	r := &run{l: l, ending: ending{caller: ctx}, ordering: o, course: order.NewCourse(&o.order, first, last, base)}
	r.order = sync.OnceValue(func() uint64 { return uint64(l.identity(o.sampler, o.order.N)) })
	r.yielded.Store(int64(first))
	if l.ownShapes() {
		r.sizes = make([]int, l.layout.Ragged)
	}
	r.ctx, r.cancel = context.WithCancelCause(ctx)
	r.turn.Lock() // Close waits until the run has begun
	defer r.turn.Unlock()
	err = l.crew.begin(r, func() {
		r.first = l.seq
		l.ring.Reset(l.seq)
		l.extra.filled = false
	})
	if err != nil {
		r.cancel(err)
		return nil, err
	}
	l.ordering.CompareAndSwap(known, o)
	running.Add(1)
	r.start()
	return r, nil
}

// start starts everything that serves a run.
func (r *run) start() {
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

// followDataset asks the dataset for its length. If the length has changed, the loader's own order
// follows it.
func (s *source) followDataset(known *ordering) (*ordering, error) {
	if s.streams() {
		return known, nil
	}
	n, err := lengthNow(s.ds)
	switch {
	case err != nil:
		return nil, err
	case n == known.n:
		return known, nil
	case known.own:
		return s.orderingOf("Dataset.Len", nil, n)
	}
	return s.orderingOf("Dataset.Len", known.sampler, n)
}
