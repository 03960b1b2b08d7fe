package nwt

import (
	"cmp"
	"context"
	"fmt"
	"runtime/trace"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nwt-go/nwt/internal/order"
	"github.com/nwt-go/nwt/internal/ring"
	"github.com/nwt-go/nwt/internal/usercall"
)

// A run is one iteration over batches: an epoch, the rest of an epoch, or several epochs. It belongs to
// the goroutine that iterates, the consumer.
type run struct {
	l          *engine
	epochOrder *epochOrder // fixed for the run: the sampler and the number of samples
	schedule   order.Schedule
	identity   func() uint64  // computes State.Order once: setup.identity
	first      uint64         // sequence number of the schedule's first batch
	tally      tally          // belongs to the stage if there is one, else to the consumer
	stream     *streamFill    // nil unless the dataset is a stream
	serving    *serving       // what requests the batches; nil: the schedule says which
	beside     sync.WaitGroup // the goroutines that serve the run: the stream's reader, the stage

	// The consumer holds mu, except while the loop body has a batch, so that Close can finish a run in
	// the middle of a long step. mu guards the fields below, and its holder owns the ring.
	mu      sync.Mutex
	taken   int      // batches taken from the ring so far
	opened  int      // batches opened so far
	ahead   []uint64 // sequence numbers of the batches opened and not taken, ascending
	current *batch   // the batch in the loop body, or nil
	halted  bool
	outcome outcome
	sizes   []int // sizes of a sample of a SizedDataset, while a batch is opened

	demand  demand
	yielded atomic.Int64 // epoch of the last batch that was delivered; before that, the schedule's first epoch

	// How the run comes to its end. These fields are set when it begins.
	caller  context.Context
	ctx     context.Context         // the context that Load gets; it ends with the run
	cancel  context.CancelCauseFunc // the first call sets the cause
	unwatch func()                  // stops watching the caller's context, and joins the goroutine that did
	slow    slowCallLog
}

// An outcome says why a run opens no more batches before its schedule is over.
type outcome struct {
	refused error  // the error of a BatchSampler: the batches before it are delivered first
	ended   bool   // the end of a stream was taken
	last    uint64 // sequence number of that end
	failure error  // the error that the stream ended with
}

// ends records that a batch that was taken is the end of its stream.
func (o *outcome) ends(b *batch) {
	o.ended, o.last, o.failure = true, b.seq, cmp.Or(o.failure, b.err)
}

// A demand is what workers, the stage and the depth's timer can see of the consumer.
type demand struct {
	opening  atomic.Uint64 // sequence number of the batch that will be opened next
	awaiting atomic.Bool   // the consumer is blocked until a batch is loaded; set only if the depth follows need
}

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
		r, err = l.start(ctx, at, order.NewSchedule(&at.epochOrder.order, at.epoch, last, at.base), nil)
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
			r.mu.Lock()
			defer r.mu.Unlock()
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
			if t != nil {
				t.ended()
			}
			break
		}
		if t != nil {
			t.took(r.taken, show)
		}
		if batches == 2 && at.base == 0 && (r.epochOrder.own || l.setup.streams()) && l.setup.opts.shuffle { // a single batch may have been a first look at the data
			l.tellIfBegun(at.epoch, r.epochOrder.n)
		}
		more = yield(b.delivered(), nil)
		if t != nil {
			t.asked++
		}
	}
	l.tellIfGrown(r)
}

// tellIfBegun logs, once, that an epoch begins again: the program may have forgotten to count its epochs.
func (l *engine) tellIfBegun(epoch, n int) {
	type begun struct{ epoch, n int }
	if !l.setup.tunes && !l.setup.once.First(begun{epoch, n}) && l.setup.once.First("begins anew") {
		l.setup.opts.log.Warn("nwt: a shuffled epoch begins anew, in the same order as before: count the epochs, as Epochs does", "epoch", epoch)
	}
}

// tellIfGrown logs, once, that the dataset's length has changed since the run began.
func (l *engine) tellIfGrown(r *run) {
	if n, err := lengthNow(l.setup.ds); err == nil && n != r.epochOrder.n && l.setup.once.First("Dataset.Len") {
		l.setup.opts.log.Warn("nwt: the dataset's length has changed while its epochs ran: they kept the length with which they began, and their states can't be resumed. "+
			"Change it only while no loader is in an epoch; Epochs counts as one", "was", r.epochOrder.n, "now", n)
	}
}

// start starts a run at a beginning.
func (l *engine) start(ctx context.Context, at beginning, schedule order.Schedule, s *serving) (*run, error) {
	o := at.epochOrder
	r := &run{l: l, caller: ctx, epochOrder: o, schedule: schedule, serving: s}
	r.identity = sync.OnceValue(func() uint64 { return uint64(l.setup.identity(o.sampler, o.order.N)) })
	r.yielded.Store(int64(at.epoch))
	if l.ownShapes() {
		r.sizes = make([]int, l.setup.layout.Ragged)
	}
	r.ctx, r.cancel = context.WithCancelCause(ctx)
	r.mu.Lock() // Close waits until the run has begun
	defer r.mu.Unlock()
	err := l.pool.begin(r, func() {
		r.first = l.seq
		l.ring.Reset(l.seq)
		l.extra.wasHalfReady = false
	})
	if err != nil {
		r.cancel(err)
		return nil, err
	}
	l.epochOrder.CompareAndSwap(at.before, o)
	running.Add(1)
	r.startHelpers()
	return r, nil
}

// startHelpers starts everything that serves the run.
func (r *run) startHelpers() {
	l := r.l
	r.watchCaller()
	r.demand.opening.Store(r.first)
	if l.setup.streams() {
		r.stream = newStreamFill(r, l.Workers() > 0)
		if r.stream.ahead {
			r.beside.Go(r.stream.feed)
		}
	}
	if l.setup.opts.prefetch == 0 { // after the fields above are set: from now on idle workers see the run
		l.extra.policy.Busy() // no worker waited between the epochs
		l.extra.run.Store(r)
	}
	l.pool.start()
	if l.stage != nil {
		r.beside.Go(r.transfer)
	}
}

// advance ends the loop body's use of a batch and waits for the next one. It returns nil after the last.
func (r *run) advance() (*batch, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.letGo()
	for !r.halted && r.taken < r.schedule.Len() {
		if err := r.caller.Err(); err != nil {
			return nil, contextError(r.caller)
		}
		if err := r.open(); err != nil {
			return nil, err
		}
		if len(r.ahead) == 0 || r.outcome.ended && r.ahead[0] > r.outcome.last {
			break // the stream has ended, or a BatchSampler has failed; a stage that failed at the end stages nothing after it
		}
		b, ready := r.await()
		if b == nil {
			return nil, r.reason()
		}
		r.current = b
		if r.l.stage == nil {
			b.err = r.tally.applyBudget(b) // leaves bad samples out: usually there are none
		}
		if b.end {
			r.outcome.ends(b)
			r.letGo()
			if r.l.setup.opts.unordered {
				continue // batches from before the end may still come
			}
			break
		}
		if b.err != nil {
			return nil, b.err
		}
		if b.size > 0 {
			r.count(b, ready)
			b.last = r.isLast(b)
			return b, nil
		}
		if err := r.emptyEpoch(b); err != nil {
			return nil, err
		}
		r.letGo()
	}
	return nil, r.conclude()
}

// isLast reports whether a batch that is delivered is the last of its epoch, as far as positions tell.
func (r *run) isLast(b *batch) bool {
	if r.l.setup.opts.unordered {
		return r.schedule.Head != endless && !r.isAhead(b.span.epoch)
	}
	return b.final
}

// isAhead reports whether a batch of an epoch is open, or is yet to be opened. The run's length must be
// known.
func (r *run) isAhead(epoch int) bool {
	if r.opened < r.schedule.Len() {
		if next, _, _, _ := r.schedule.At(r.opened); next == epoch {
			return true
		}
	}
	return slices.ContainsFunc(r.ahead, func(seq uint64) bool { return r.l.ring.Item(seq).span.epoch == epoch })
}

// conclude returns the error of a run that has no more batches. The caller holds mu.
func (r *run) conclude() error {
	if r.halted {
		return ErrClosed
	}
	failed := cmp.Or(r.outcome.failure, r.outcome.refused)
	if failed == nil {
		r.l.pool.awaitPrepared() // otherwise workers would begin again in each short epoch
		if r.l.ring.Stopped() && r.caller.Err() == nil {
			return r.reason()
		}
	}
	r.halt()
	return failed
}

// count counts a batch that is delivered. ready reports whether it was ready when it was asked for.
func (r *run) count(b *batch, ready bool) {
	c := &r.l.counters
	c.batches.Add(1) // before ready, which must not be larger
	if ready {
		c.ready.Add(1)
	}
	c.samples.Add(int64(b.size))
	if epoch := int64(b.span.epoch); epoch != r.yielded.Load() {
		r.yielded.Store(epoch)
	}
}

// emptyEpoch returns an error if a tuner's loader has gone through a whole epoch without a sample that could
// be loaded: b is an empty batch of the next epoch. Training goes on in that case, since the program
// learns of each bad sample. Tuning would never end: it waits for batches, however many epochs they take.
func (r *run) emptyEpoch(b *batch) error {
	if !r.l.setup.tunes || b.span.epoch <= int(r.yielded.Load())+1 {
		return nil
	}
	list := b.bad.sorted()
	return fmt.Errorf("nwt: no sample of epoch %d could be loaded, so there is no batch to measure; the last: %w", b.span.epoch-1, usercall.Cause(list[len(list)-1].err))
}

// open opens batches for the workers, as many as may be ahead of the next one.
func (r *run) open() error {
	for {
		if opened, err := r.openOne(); !opened {
			return err
		}
	}
}

// mayOpen reports whether there is another batch to open, and room for it.
func (r *run) mayOpen() bool {
	switch {
	case r.allOpened() || r.serving != nil && !r.serving.requested():
		return false
	case len(r.ahead) == 0:
		return true
	case len(r.ahead) >= r.l.depth():
		return false
	}
	// The ring holds Capacity consecutive batches. With WithUnordered the oldest batch may still be
	// loading after many later ones were taken.
	return r.first+uint64(r.opened) < r.ahead[0]+ring.Capacity
}

// allOpened reports whether there is no further batch to open. The caller holds mu.
func (r *run) allOpened() bool {
	return r.opened == r.schedule.Len() || r.outcome.refused != nil || r.streamEnded()
}

// openOne opens the next batch if mayOpen allows it.
func (r *run) openOne() (opened bool, err error) {
	if !r.mayOpen() {
		return false, nil
	}
	if err := r.l.tooManyAway(); err != nil {
		if len(r.ahead) > 0 {
			err = nil // the batches before it are delivered first
		}
		return false, err
	}
	var memory slotMemory
	if r.serving != nil {
		memory = r.serving.next.memory
	}
	b, err := r.l.slots.take(r.l, memory)
	switch {
	case err != nil && memory.alloc != nil:
		r.serving.fail(err)
		return true, nil
	case err != nil && len(r.ahead) > 0:
		if r.l.setup.once.First("fewer batches") {
			r.l.setup.opts.log.Warn("nwt: loading less far ahead than there is room for", "error", err)
		}
		return false, nil
	case err != nil:
		return false, err
	}
	b.bad.reset()
	b.run, b.seq = r, r.first+uint64(r.opened)
	if r.serving != nil {
		r.serving.place(b)
	} else if r.schedule.Head == endless {
		b.opened = r.l.setup.opts.batchSize
	} else if r.outcome.refused = r.place(b, r.opened); r.outcome.refused != nil {
		r.l.slots.put(b, false)
		return false, nil
	}
	b.last = false
	b.head = r.l.slots.newHead(b)
	b.seeded, b.leftOut, b.transformErr = false, false, nil
	b.expect(b.opened) // for WithBatchTransform alone
	r.opened++
	r.demand.opening.Store(b.seq + 1)
	r.ahead = append(r.ahead, b.seq)
	if r.stream == nil {
		r.l.ring.Open(b.seq, b, b.size)
	} else {
		b.span.positions = b.slot.indices // what a stream calls an index is a position
		r.l.ring.Announce(b.seq, b, b.opened)
		r.stream.take(b)
	}
	if r.l.extra.policy.IsIdle() { // workers had nothing to claim until now: count the time that was lost
		r.l.extra.policy.Reckon(r.l.now())
	}
	return true, nil
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

// place writes into a batch which part of the schedule batch i is. The error comes from a BatchSampler.
func (r *run) place(b *batch, i int) (err error) {
	epoch, base, k, number := r.schedule.At(i)
	var from, to int
	if from, to, b.reached, err = r.schedule.Positions(epoch, base, k); err != nil {
		return orderError(err)
	}
	b.span.epoch, b.number, b.span.from, b.span.key = epoch, number, from, r.l.seedKey
	b.final = number == r.schedule.Whole-1
	b.resize(to - from)
	b.opened = b.size
	if b.indexed = r.l.ownShapes(); b.indexed {
		b.askSampler(0, b.size, 0)
		b.layOut(r.epochOrder.n)
	}
	return nil
}

// await waits until a batch is ready, or loads it if there are no workers, and takes it from the ring. b
// is nil if the run was stopped or the caller's context has ended. ready reports whether await didn't
// have to wait.
func (r *run) await() (b *batch, ready bool) {
	r.watchDepth()
	if r.l.ring.Ready(r.ahead[0]) && !r.l.ring.Stopped() {
		return r.take(r.ahead[0]), true
	}
	if seq, ok := r.awaitOne(r.l.setup.opts.unordered); ok {
		return r.take(seq), false
	}
	return nil, false
}

// awaitOne waits until the next batch is ready or, if orLater is set, any of those ahead. It returns which
// one is ready. It returns false if the run was stopped.
func (r *run) awaitOne(orLater bool) (seq uint64, ok bool) {
	if trace.IsEnabled() {
		defer trace.StartRegion(r.caller, "nwt.wait").End()
	}
	began, tuning := r.l.now(), r.l.tuning
	if tuning != nil {
		tuning.awaits(began)
	}
	if r.l.deepens() && !r.l.ring.Loaded(r.ahead[0]) {
		r.demand.awaiting.Store(true)
		defer r.demand.awaiting.Store(false)
	}
	for {
		candidates := r.ahead
		if !orLater {
			candidates = candidates[:1]
		}
		seq, ok := r.l.ring.Await(candidates)
		switch {
		case ok:
			now := r.l.now()
			r.l.counters.wait.Add(now - began)
			if tuning != nil {
				tuning.waits = 0 // the wait has been counted
			}
			if b := r.l.ring.Item(seq); r.l.stage != nil && !b.copyEnded.IsZero() {
				copying := min(now, int64(b.copyEnded.Sub(r.l.born))) - max(began, int64(b.copyBegan.Sub(r.l.born)))
				r.l.counters.transfer.Add(max(0, copying))
			}
			return seq, true
		case r.l.ring.Stopped():
			return 0, false
		case r.l.ring.OwnersOnly(seq):
			r.help(seq)
		default: // a worker is idle, or tuning wants to look
			r.deepen()
			if r.serving != nil {
				_ = r.open() // no error, since batches are open
			}
			if tuning != nil {
				r.show()
				tuning.look(false)
			}
		}
	}
}

// show shows the tuner which batches are ahead. The caller holds mu.
func (r *run) show() {
	t := r.l.tuning
	t.open, t.dry = len(r.ahead), r.allOpened() && r.l.ring.Exhausted(r.demand.opening.Load())
}

// take takes a ready batch from the ring. It returns nil if the caller's context has ended, because Load
// may then have failed for that reason.
func (r *run) take(seq uint64) *batch {
	if r.caller.Err() != nil {
		return nil
	}
	i := slices.Index(r.ahead, seq)
	r.ahead = slices.Delete(r.ahead, i, i+1)
	r.taken++
	return r.l.ring.Item(seq)
}

// help loads places of a batch in the consumer's goroutine.
func (r *run) help(seq uint64) {
	w := r.l.pool.inline
	var ok bool
	if w.claim, ok = r.l.ring.ClaimOf(seq, r.l.claimSize()); !ok {
		return
	}
	defer w.done() // Load may have ended the goroutine
	w.begin()
	w.loadClaim()
	w.loaded()
}

// streamEnded reports whether the run's stream is known to have no further batch.
func (r *run) streamEnded() bool { return r.stream != nil && r.stream.ended.Load() }

// readByConsumer reports whether the consumer itself reads the run's stream.
func (r *run) readByConsumer() bool { return r.stream != nil && !r.stream.ahead }

// letGo ends the loop body's use of a batch. The caller holds mu.
func (r *run) letGo() {
	if b := r.current; b != nil {
		r.current = nil
		b.letGo()
	}
}

// watchCaller stops the run when the caller's context ends.
func (r *run) watchCaller() {
	stopped := make(chan struct{})
	unwatch := context.AfterFunc(r.caller, func() {
		defer close(stopped)
		r.stop(contextError(r.caller))
	})
	r.unwatch = func() {
		if !unwatch() {
			<-stopped
		}
	}
}

// contextError returns the error of ctx, with its cause if that says more.
func contextError(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if cause == err {
		return err
	}
	return fmt.Errorf("%w: %w", err, cause)
}

// stop makes the run end soon with err. Any goroutine may call it until end returns.
func (r *run) stop(err error) {
	r.l.ring.Stop() // comes first, so that errors that Load returns because ctx has ended aren't seen
	r.cancel(err)
	r.slow.arm(r)
}

// reason returns the error that stopped a run. If the caller's context has ended, its error comes before
// the errors that Load or WithWorkerInit returned because of that.
func (r *run) reason() error {
	if r.caller.Err() == nil {
		<-r.ctx.Done() // it ends after the ring was stopped
	}
	if r.caller.Err() != nil {
		return contextError(r.caller)
	}
	return context.Cause(r.ctx)
}

// isOver reports whether the run is stopping, so that errors of Load can be ignored. The context that
// Load gets may end before stop is called.
func (r *run) isOver() bool { return r.l.ring.Stopped() || r.ctx.Err() != nil }

// halt waits for the loads under way and takes back all slots, except the slot of
// the batch in the loop body. The caller holds mu.
func (r *run) halt() {
	if r.halted {
		return
	}
	r.halted = true
	r.l.extra.run.Store(nil)
	r.l.extra.timer.Stop()
	r.l.ring.Stop()
	r.cancel(nil)
	if len(r.ahead) > 0 {
		r.slow.arm(r)
	}
	r.l.pool.awaitPrepared()
	r.beside.Wait()
	if r.readByConsumer() {
		r.stream.from.stop()
	}
	r.takeBack()
	r.l.pool.rest()
}

// takeBack waits for the loads under way and takes back the slots of batches that nobody has
// taken.
func (r *run) takeBack() {
	if len(r.ahead) == 0 {
		r.l.ring.Halt(r.first + uint64(r.opened))
		return
	}
	r.l.ring.Halt(r.ahead[0])
	for _, seq := range r.ahead {
		r.l.ring.Item(seq).letGo()
	}
	r.ahead = nil
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

// lockAndHalt is halt for goroutines other than the consumer's.
func (r *run) lockAndHalt() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.halt()
}

// end ends the run, so that the loader is ready for the next one.
func (r *run) end() {
	defer running.Add(-1)
	r.unwatch()
	defer r.l.pool.end(func() { r.l.seq = r.first + uint64(r.opened) }) // also if a reader's Close ends the goroutine
	r.mu.Lock()
	defer r.mu.Unlock()
	r.letGo()
	r.halt()
	r.slow.stop()
}
