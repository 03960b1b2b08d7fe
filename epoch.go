package nwt

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/nwt-go/nwt/internal/order"
)

// iterate yields the batches from a state to the end of epoch last.
func (l *engine) iterate(ctx context.Context, s State, last int, yield func(*Batch, error) bool) {
	// The dataset, the sampler and the context belong to the program: no lock is held while they are
	// called.
	err := l.pool.whileFree(func() {})
	var at beginning
	if err == nil {
		at, err = l.beginning(s)
	}
	if err == nil && at.nothingLeft {
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
	r.identity = sync.OnceValue(func() uint64 { return uint64(l.identity(o.sampler, o.order.N)) })
	r.yielded.Store(int64(at.epoch))
	if l.ownShapes() {
		r.sizes = make([]int, l.layout.Ragged)
	}
	r.ctx, r.cancel = context.WithCancelCause(ctx)
	r.turn.Lock() // Close waits until the run has begun
	defer r.turn.Unlock()
	err := l.pool.begin(r, func() {
		r.first = l.seq
		l.ring.Reset(l.seq)
		l.extra.wasHalfReady = false
	})
	if err != nil {
		r.cancel(err)
		return nil, err
	}
	l.ordering.CompareAndSwap(at.before, o)
	running.Add(1)
	r.startHelpers()
	return r, nil
}

// startHelpers starts everything that serves the run.
func (r *run) startHelpers() {
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
	l.pool.start()
	if l.stage != nil {
		r.beside.Go(r.transfer)
	}
}

// A beginning is where a run begins.
type beginning struct {
	*ordering             // of the epoch
	before      *ordering // what the loader had before
	epoch       int
	base        int  // the position in the epoch; with a BatchSampler, the number of a batch
	nothingLeft bool // of the epoch, whatever has changed since
}

// beginning returns where a state begins, or why nothing can begin there: for an epoch, for Resume, and
// for servers.
func (l *engine) beginning(s State) (at beginning, err error) {
	switch {
	case s.Epoch < 0:
		return at, optionError("State.Epoch", s.Epoch, "must be at least 0")
	case s.Samples == -1:
		return at, optionError("State.Samples", s.Samples, "the state was taken WithUnordered, and can't be resumed")
	case s.Samples < 0:
		return at, optionError("State.Samples", s.Samples, "must be at least 0")
	case s.World < anyWorld:
		return at, optionError("State.World", s.World, "must be at least −1")
	}
	at.epoch, at.base, at.before = s.Epoch, s.Samples, l.ordering.Load()
	if at.ordering, err = l.followDataset(at.before); err != nil {
		return at, err
	}
	if at.nothingLeft, err = l.checkOrder(s, at.ordering); err != nil || at.nothingLeft {
		return at, err
	}
	if l.streams() {
		at.base, err = l.baseOfStream(s)
	}
	n := l.samplesOfEpoch(at.ordering)
	switch {
	case err != nil:
	case at.base > n:
		err = optionError("State.Samples", at.base, "an epoch has %d samples", n)
	case at.order.Batches > 0:
		at.base, err = at.order.BatchAt(at.epoch, at.base)
		err = orderError(err)
	}
	return at, err
}

// baseOfStream returns at which position of a stream's epoch a state is.
func (l *engine) baseOfStream(s State) (int, error) {
	switch {
	case l.counted && s.Samples > 0 && s.World > 0:
		return 0, optionError("State.World", s.World, "the state was taken before the stream was a CountedStream, which has another order: begin the next epoch, State{Epoch: %d}", s.Epoch+1)
	case l.counted || s.Samples == 0:
	case s.World == anyWorld:
		return 0, optionError("State.World", s.World, "the state was taken of a CountedStream, and this stream isn't one, so its order is another: begin the next epoch, State{Epoch: %d}", s.Epoch+1)
	case l.isWhole(s, l.first):
		return l.samplesOfEpoch(l.first), nil // the end of that epoch, also for other numbers of ranks
	case s.World != 0 && s.World != l.opts.world:
		return 0, optionError("State.World", s.World, "a stream's epoch can't go on with %d ranks, because each rank reads its own shards: "+
			"resume with %d, or begin the next epoch, State{Epoch: %d}. A CountedStream outside of MixedStreams can go on with any number", l.opts.world, s.World, s.Epoch+1)
	case s.Samples%l.opts.world != 0:
		return 0, optionError("State.Samples", s.Samples, "in a stream it must be a multiple of the number of ranks, %d", l.opts.world)
	}
	return s.Samples, nil
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

// isWhole reports whether an epoch of an ordering ends with the samples of a state.
func (l *engine) isWhole(s State, o *ordering) bool {
	if l.streams() && !l.counted {
		return l.opts.isWholeEpoch(s.Samples, cmp.Or(s.World, l.opts.world))
	}
	return s.Samples == o.order.N || o.order.Batches == 0 && o.order.Steps(s.Samples) == 0
}

// checkOrder returns an error if the state's positions now stand for other samples than before.
// nothingLeft reports that nothing was left of the state's epoch, whatever has changed since.
func (l *engine) checkOrder(s State, o *ordering) (nothingLeft bool, err error) {
	if s.Order == 0 || s.Samples < 1 {
		return false, nil
	}
	sampler := o.sampler
	then, now := order.Identity(s.Order), l.identity(sampler, o.order.N)
	names := []string{order.Length: "another number of samples", order.Seed: "another seed", order.Sampler: "another sampler or other arguments of it", order.Data: "another fingerprint of the dataset"}
	is := "the sampler is now " + nameOfSampler(sampler)
	if l.streams() {
		names = []string{order.Length: "other shards", order.Seed: "another seed", order.Sampler: "another value of WithInterleave, WithShuffle, WithShuffleWindow or WithEpochSamples, or another mixture", order.Data: "another fingerprint of the stream"}
		is = "the stream now has " + strings.ReplaceAll(strings.Trim(fmt.Sprint(l.shards), "[]"), " ", " + ") + " shards"
	}
	var differ []string
	for kind, name := range names {
		if now.Differs(then, kind) {
			differ = append(differ, name)
		}
	}
	was := order.Identify(fmt.Sprint(s.Samples), "", "", "") // an epoch of just these samples
	switch {
	case len(differ) > 0 && (!was.Differs(then, order.Length) || !now.Differs(then, order.Length) && l.isWhole(s, o)):
		return true, nil
	case len(differ) > 0:
		return false, optionError("State.Order", nil, "the state was taken with %s (%s), so the rest of the epoch would be other samples: "+
			"resume as it was taken, or begin the next epoch, State{Epoch: %d}", strings.Join(differ, " and "), is, s.Epoch+1)
	}
	return false, nil
}
