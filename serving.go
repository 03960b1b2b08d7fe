package nwt

import (
	"context"
	"fmt"
	"math"
	"sync"
	"sync/atomic"

	"github.com/nwt-go/nwt/driver"
	"github.com/nwt-go/nwt/internal/launch"
	"github.com/nwt-go/nwt/internal/order"
)

// Place identifies the sample to a server, for a dataset such as that of module serve. Experimental: may
// change in v0.
func (s *Sample) Place() driver.Place {
	outer := s
	for outer.outer != nil {
		outer = outer.outer
	}
	return driver.Place{Index: s.index, Position: s.Position(), Epoch: outer.common.span.epoch, Key: outer.common.span.key}
}

// Serving returns a source that loads the loader's batches for other processes: see package driver. The
// source has memory of its own, and as many workers as the loader, at least one. It reports each bad sample,
// even with [WithErrorBudget]. Serving fails with a device, [WithUnordered] or a stream. Experimental: may
// change in v0.
func (l *Loader) Serving() (driver.Source, error) {
	var err error
	switch o := l.engine.setup.opts; {
	case l.engine.setup.streams():
		err = optionError("Serving", nil, "must not be of a stream, which has no sample by index")
	case !onHost(o.device):
		err = optionError("WithDevice", o.device.String(), "batches for other processes must be on the host")
	case o.unordered:
		err = optionError("WithUnordered", true, "batches are asked for by their number in the order")
	}
	if err != nil {
		return nil, err
	}
	setup, o := *l.engine.setup, *l.engine.setup.opts
	setup.opts, o.maxBad, o.prefetch, o.auto = &o, math.MaxInt, maxPrefetch, false
	s := &serving{l: newEngine(&setup, max(1, l.Workers())), queue: make(chan *request, 64), wake: make(chan struct{}, 1)}
	s.l.epochOrder.Store(l.engine.epochOrder.Load())
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	return s, nil
}

// A serving loads requested batches, in one run whose consumer is a goroutine of its own.
type serving struct {
	l      *engine
	ctx    context.Context // ends with Close
	cancel context.CancelCauseFunc

	begin    sync.Once // starts the goroutine
	consumer sync.WaitGroup
	queue    chan *request // requests that no batch is open for …
	next     *request      // … and the first of them, which the consumer has taken
	wake     chan struct{} // a request was queued
}

// A request asks for a batch.
type request struct {
	ctx     context.Context // of its calls of Load
	places  []driver.Place
	memory  slotMemory  // none: the loader's own
	settled atomic.Bool // set by the first of two: the consumer, which answers, and a caller that has given up
	answer  chan served
}

// A served is the answer to a request.
type served struct {
	b   *Batch
	bad []error
	err error
}

// Memory and what a Batch has make a served batch a [driver.Batch].
type servedBatch struct{ *Batch }

func (b servedBatch) Memory() []byte {
	of := b.live()
	return of.slot.places.Bytes[:of.slot.places.Used]
}

func (s *serving) BatchSize() int { return s.l.setup.opts.batchSize }

func (s *serving) Places(dst []driver.Place, rank, world int, from driver.State, number int) (_ []driver.Place, after driver.State, left int, err error) {
	after = from
	if world < 1 || world > launch.MaxWorld || rank < 0 || rank >= world {
		return dst, after, 0, optionError("Places", fmt.Sprintf("rank %d of %d", rank, world), "the world must be 1 … %d, and the rank below it", launch.MaxWorld)
	}
	at, err := s.l.beginning(State(from))
	var o order.Order
	if err == nil && !at.nothingLeft {
		o = at.epochOrder.order.Of(rank, world)
		at.nothingLeft = at.base > 0 && o.Steps(at.base) == 0
	}
	if err == nil && at.nothingLeft {
		at, err = s.l.beginning(State{Epoch: at.epoch + 1})
	}
	if err != nil {
		return dst, after, 0, err
	}
	o = at.epochOrder.order.Of(rank, world)
	if err := o.HasBatch(); err != nil {
		return dst, after, 0, orderError(err)
	}
	steps := o.Steps(at.base)
	if uint(number) >= uint(steps) {
		return dst, after, 0, optionError("Places", number, "the batch must be 0 … %d", steps-1)
	}
	after = driver.State{Epoch: at.epoch, Order: uint64(s.l.setup.identity(at.epochOrder.sampler, o.N))}
	after.Samples, err = at.each(&o, number, func(position, index int) {
		dst = append(dst, driver.Place{Index: index, Position: position, Epoch: at.epoch, Key: s.l.seedKey})
	})
	return dst, after, steps - 1 - number, err
}

func (s *serving) Load(ctx context.Context, places []driver.Place, alloc func(size int) ([]byte, error), free func(mem []byte) error) (driver.Batch, []error, error) {
	if n := len(places); n < 1 || n > s.l.setup.opts.batchSize {
		return nil, nil, optionError("Load", n, "must be 1 … %d places, the samples of a batch", s.l.setup.opts.batchSize)
	}
	for _, p := range places {
		if p.Epoch != places[0].Epoch || p.Key != places[0].Key {
			return nil, nil, optionError("Load", p, "all places must have one epoch and key")
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.l.asked.Add(1)
	defer s.l.asked.Add(-1)
	q := &request{ctx: ctx, places: places, memory: slotMemory{alloc, free}, answer: make(chan served, 1)}
	s.begin.Do(func() { s.consumer.Go(s.consume) })
	select {
	case s.queue <- q:
	case <-ctx.Done():
		return nil, nil, contextError(ctx)
	case <-s.ctx.Done():
		return nil, nil, ErrClosed
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
	s.l.ring.Interrupt()
	select {
	case a := <-q.answer:
		if ctx.Err() == nil {
			return a.result()
		}
		q.answer <- a // its samples may be bad for that reason alone
	case <-ctx.Done():
	case <-s.ctx.Done(): // the consumer may never see the request
		ctx = s.ctx
	}
	if q.settled.Swap(true) {
		if a := <-q.answer; a.b != nil {
			a.b.Release()
		}
	}
	return nil, nil, contextError(ctx)
}

func (a served) result() (driver.Batch, []error, error) {
	if a.err != nil {
		return nil, nil, a.err
	}
	return servedBatch{a.b}, a.bad, nil
}

// settle answers the request, unless its caller has given up.
func (q *request) settle(a served) {
	switch {
	case !q.settled.Swap(true):
		q.answer <- a
	case a.b != nil:
		a.b.Release()
	}
}

func (s *serving) Close() error {
	s.cancel(ErrClosed)
	s.begin.Do(func() {}) // no goroutine begins from now on
	s.consumer.Wait()
	s.l.close()
	return nil
}

// consume loads what is requested until Close. If a run ends, by an error of WithWorkerInit for example,
// the next request begins another one.
func (s *serving) consume() {
	for s.awaitRequest(s.ctx) {
		at, err := s.l.beginning(State{})
		var r *run
		if err == nil {
			unbounded := *at.epochOrder
			unbounded.n = maxSamples // see place
			at.epochOrder = &unbounded
			r, err = s.l.start(s.ctx, at, order.Schedule{Order: &at.epochOrder.order, Head: endless}, s)
		}
		if err != nil {
			s.fail(err)
			continue
		}
		err = r.serve()
		for _, seq := range r.ahead {
			s.l.ring.Item(seq).request.settle(served{err: err})
		}
		r.end()
	}
	for s.requested() {
		s.fail(ErrClosed)
	}
}

// requested reports whether there is a request that no batch is open for, which is then next.
func (s *serving) requested() bool {
	for (s.next == nil || s.next.settled.Load()) && len(s.queue) > 0 {
		s.next = <-s.queue // those whose callers have given up are left out
	}
	return s.next != nil
}

// fail answers the next request with an error.
func (s *serving) fail(err error) {
	s.next.settle(served{err: err})
	s.next = nil
}

// awaitRequest waits until there is a request. It returns false if ctx ends first.
func (s *serving) awaitRequest(ctx context.Context) bool {
	for ctx.Err() == nil {
		if s.requested() {
			return true
		}
		select {
		case <-s.wake:
		case <-ctx.Done():
		}
	}
	return false
}

// serve loads requested batches until the run is stopped, and returns why.
func (r *run) serve() error {
	for {
		if len(r.ahead) == 0 && !r.serving.awaitRequest(r.ctx) {
			return r.reason()
		}
		b, err := r.advanceServing()
		if err != nil {
			return err
		}
		if b != nil {
			r.answer(b)
		}
	}
}

// advanceServing opens what is requested, and waits for a batch.
func (r *run) advanceServing() (*batch, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.open(); err != nil {
		r.serving.fail(err)
		return nil, nil
	}
	if len(r.ahead) == 0 {
		return nil, nil
	}
	if seq, ok := r.awaitOne(true); ok {
		if b := r.take(seq); b != nil {
			return b, nil
		}
	}
	return nil, r.reason()
}

// answer gives a loaded batch to whoever has requested it.
func (r *run) answer(b *batch) {
	q, list, err := b.request, b.bad.sorted(), b.transformErr
	a := served{b: b.delivered()}
	for _, f := range list {
		f.err.origin = origin(r.l.setup.ds, f.err.Index, f.err.Err)
		a.bad = append(a.bad, f.err)
	}
	if err == nil {
		err = b.leaveOutBad()
	}
	r.count(b, false)
	a.b.Retain()
	b.letGo()
	if a.err = err; err != nil {
		a.b.Release()
		a = served{err: err}
	}
	q.settle(a)
}

// place makes b the batch of the next request.
func (s *serving) place(b *batch) {
	q := s.next
	s.next = nil
	first, n := q.places[0], len(q.places)
	b.span = span{epoch: first.Epoch, from: first.Position, key: first.Key}
	b.number, b.indexed, b.request = 0, true, q
	b.resize(n)
	b.opened = n
	have, failed := lengthNow(s.l.setup.ds)
	for i, p := range q.places {
		b.slot.indices[i] = p.Index
		err := failed
		if p.Position != first.Position+i && b.span.positions == nil {
			b.span.positions = make([]int, n)
			for j, p := range q.places {
				b.span.positions[j] = p.Position
			}
		}
		if err == nil && uint(p.Index) >= uint(have) {
			err = fmt.Errorf("the index %d is out of range 0 … %d", p.Index, have-1)
		}
		if err != nil {
			b.fail(i, 0, err, nil)
			b.slot.indices[i] = noIndex
		}
	}
	if s.l.ownShapes() {
		b.layOut(have)
	}
}
