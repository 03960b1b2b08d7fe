package nwt

import (
	"context"
	"fmt"
	"runtime"
	"runtime/pprof"
	"runtime/trace"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/nwt-go/nwt/internal/callctx"
	"github.com/nwt-go/nwt/internal/layout"
	"github.com/nwt-go/nwt/internal/ring"
	"github.com/nwt-go/nwt/internal/search"
	"github.com/nwt-go/nwt/internal/usercall"
	"github.com/nwt-go/nwt/internal/watch"
)

// A worker loads places of batches, in its own goroutine or, without workers, in the caller's.
type worker struct {
	l       *engine
	seat    int // its number among the loader's seats; the caller's is 0
	number  int // what Sample.Worker returns, unless the caller loads. The watchdog reads it here, since a cache changes sample during a call
	sample  Sample
	locals  *locals // the sample's locals; the watchdog reads them here for the same reason
	claim   ring.Claim[Batch]
	claimed bool         // claim has not been reported as done
	slot    *slot        // the slot that the claim is loaded into: the batch's slot, or its refuge
	next    int          // the place that is being loaded, or is loaded next
	ready   bool         // WithWorkerInit has succeeded
	untimed int          // claims since the last one that was timed
	cold    atomic.Int32 // samples to load before the worker counts as warm; it is warm at 0 or less
	begins  atomic.Bool  // WithWorkerInit or the first claim is under way; not set for a claim that replace handed over
	timing
	givenUp
	callContext

	samples []*Sample // passed to LoadBatch; grows on demand
	indices []int     // passed to LoadBatch, which may change them
}

// A timing is what others can see of a worker's call of Load or LoadBatch or, without WithTimeout, of its
// claim.
type timing struct {
	clock watch.Clock // measures calls or, without WithTimeout, claims

	// The worker writes these before the clock begins.
	upto    int  // the place after the last one that the call loads
	ofBatch bool // the call is one of LoadBatch
	indexed bool // the claim is published and its indices are known

	began int64 // when the claim began; 0: not known
	noted bool  // the worker isn't bounded, and its claim must be published: see note
}

// A givenUp holds what a call that is given up leaves.
type givenUp struct {
	keeps    *slot // the batch's slot, until the call returns
	madeLate bool  // Scratch made a value after the call had been given up
	failed   error // the error of the LoadBatch that this worker continues for, to be logged
}

// A callContext holds the context of a worker's calls in a run.
type callContext struct {
	bounded bool // WithTimeout bounds the worker's calls; never set for the caller
	ctxOf   *run // the run that ctx belongs to
	ctx     context.Context
	cancel  context.CancelCauseFunc
}

// newWorker implements crewHooks; number is what Sample.Worker returns.
func (l *engine) newWorker(seat, number int) *worker {
	w := &worker{l: l, seat: seat, number: number, ready: l.opts.init == nil, locals: &locals{}}
	w.cold.Store(search.WarmSamples)
	w.sample.common = &common{seedKey: l.opts.seedKey(), worker: number, locals: w.locals, log: l.opts.log, drawn: l.opts.drawn}
	return w
}

// begin prepares the worker to load a claim.
func (w *worker) begin() {
	if w.cold.Load() == search.WarmSamples {
		w.begins.Store(true)
	}
	w.slot, w.next = w.claim.Item.slot, w.claim.From
}

// loaded tells the batch that the claim has been loaded.
func (w *worker) loaded() {
	w.ceases()
	n := w.claim.To - w.claim.From
	if w.cold.Load() > 0 {
		w.cold.Add(int32(-n))
		w.begins.Store(false)
	}
	b := w.claim.Item
	if w.l.tuning != nil {
		w.l.counters.loaded.Add(int64(n) * wholeBatch / int64(b.opened))
	}
	b.loadedPlaces(n, w.sample.worker) // WithBatchTransform runs once the last place is loaded
}

// done reports the claim to the ring. It returns whether this has woken a goroutine.
func (w *worker) done() bool { return w.l.ring.Done(w.claim.Seq, w.claim.To-w.claim.From) }

// calls records that a call begins, for the places from next up to upto. ofBatch reports whether it is a
// call of LoadBatch. The worker must have called loadContext before.
func (w *worker) calls(upto int, ofBatch bool) {
	w.upto, w.ofBatch = upto, ofBatch
	w.clock.Begin(w.l.crew.watchdog.Now(), upto-w.next)
}

// note publishes the current claim, once, for the log line that names a slow call. indexed says that the indices of the claim no
// longer change.
func (w *worker) note(indexed bool) {
	if w.noted && w.clock.Idle() {
		w.indexed = indexed
		w.clock.Begin(w.began, 1)
	}
}

// ceases records that a published claim is over.
func (w *worker) ceases() {
	if w.noted {
		w.clock.End()
	}
}

// tooLate records that the call under way has returned, and reports whether it was given up.
func (w *worker) tooLate() bool { return w.bounded && !w.clock.End() }

// loadContext returns the context that Load gets in a run. With a timeout it also ends when
// the call is given up.
func (w *worker) loadContext(r *run) context.Context {
	if !w.bounded {
		return r.ctx
	}
	if w.ctxOf != r {
		w.ctxOf = r
		w.ctx, w.cancel = context.WithCancelCause(callctx.WithTimeout(r.ctx, w.l.opts.timeout))
	}
	return w.ctx
}

// work implements crewHooks: it is the worker's goroutine.
func (l *engine) work(w *worker) {
	pprof.SetGoroutineLabels(pprof.WithLabels(context.Background(), pprof.Labels("nwt", "load", "worker", strconv.Itoa(w.sample.worker))))
	left := false
	defer func() {
		switch {
		case w.clock.Lost():
			w.cameBack() // another worker took this one's seat long ago
			return
		case !left:
			w.abandon()
		}
		w.inherit()
		w.locals.close(w.l.opts.log)
	}()
	if w.failed != nil {
		w.l.failedTogether(w.failed)
	}
	for !left {
		if w.claimed {
			w.loadClaim()
			if w.clock.Lost() {
				return
			}
			w.loaded()
			woken := w.done()
			w.claimed = false
			if w.l.makesWay(w.claim.To-w.claim.From, woken) {
				runtime.Gosched()
			}
		}
		if left = !w.ready && !w.prepare(); left {
			break
		}
		if w.claim, w.claimed = w.l.ring.Claim(w.seat, w.l.claimSize()); w.claimed {
			w.begin()
			w.l.othersIdle()
			continue
		}
		w.begins.Store(false)
		w.l.idle()
		if !w.l.ring.Park(w.seat) {
			left = w.l.crew.leave(w)
		}
	}
}

// abandon ends the run, and vacates the seat, if a function of the program has ended the worker's
// goroutine. The run waits for that; otherwise the next run would count on the worker.
func (w *worker) abandon() {
	if w.claimed {
		defer w.done()
		place := min(w.next, w.claim.To-1)
		w.sample.turnTo(place, w.slot.indices[place])
		stack, err := usercall.Recovered(nil)
		w.claim.Item.run.stop(w.sample.failure(fmt.Errorf("Load ended its goroutine: %w", err), stack))
	}
	w.l.crew.desert(w)
}

// loadClaim loads the claimed places, beginning at next, until all are loaded or a call is given up.
func (w *worker) loadClaim() {
	b := w.claim.Item
	s := &w.sample
	s.mem, s.records, s.epoch, s.from = w.slot.places.Memory, w.slot.records, b.epoch, b.from
	if s.drawn != nil { // as if it were loaded alone, whatever was loaded before
		s.loose = w.slot.indices
	}
	if w.ready = w.ready || w.initialize(b.run); !w.ready || w.isBeyondError(b) {
		w.next = w.claim.To // these samples will not be delivered
		return
	}
	if trace.IsEnabled() {
		defer trace.StartRegion(b.run.ctx, "nwt.load").End()
	}
	var began int64
	n := w.claim.To - w.next
	timed := w.l.pace.Timed(&w.untimed, n)
	if timed {
		began = w.l.now()
	}
	if w.noted = !w.bounded && w.l.pace.Notes(n); w.noted { // not if samples are so quick that publishing would cost noticeable time
		w.began, w.indexed = began, false
	}
	if w.l.load.together != nil && w.slot == b.slot {
		w.loadTogether(b, w.claim.To)
	} else {
		w.loadSingly(b, w.claim.To)
	}
	if timed && n > 0 && !w.clock.Lost() && !w.cutShort() {
		took := time.Duration(w.l.now() - began)
		w.l.pace.Took(took, n)
		w.l.counters.loads.Add(took/time.Duration(n), n)
	}
}

// isBeyondError reports whether a bad sample before place next will end the epoch.
func (w *worker) isBeyondError(b *Batch) bool {
	return w.l.opts.maxBad == 0 && w.next > int(b.bad.first.Load())
}

// cutShort reports whether the run is over, or ends with the claim's batch. Then calls may have ended
// early and places may have been left out, so the time says nothing about loading.
func (w *worker) cutShort() bool {
	b := w.claim.Item
	return b.run.isOver() || w.l.opts.maxBad == 0 && b.bad.any()
}

// loadSingly loads the places before end one by one, unless the run ends or a call is given up.
func (w *worker) loadSingly(b *Batch, end int) {
	for w.next < end && !w.clock.Lost() {
		w.loadUntilPanic(b, end)
	}
}

// clearedAtOnce is how many bytes of small samples are cleared together, so that they are still in the
// cache when they are loaded.
const clearedAtOnce = 16 << 10

// loadUntilPanic is the loading loop: it calls Load for one place after the other, until Load panics.
func (w *worker) loadUntilPanic(b *Batch, end int) {
	l, s, ctx, indices := w.l, &w.sample, w.loadContext(b.run), w.slot.indices
	s.locals.ctx = ctx
	ring, load, n, ragged := l.ring, l.load.sample, uint(b.run.ordering.n), l.layout.Ragged > 0 // read once; more wouldn't fit into registers
	if places := end - w.next; l.load.mustClear && places*l.layout.Size <= clearedAtOnce {
		s.mem.Clear(w.next, places)
		load = l.load.intoCleared
	}
	finished := false
	defer func() {
		if finished {
			return
		}
		p := recover()
		if w.tooLate() || p == nil {
			return // the call was given up long ago, or the goroutine ends
		}
		stack, err := usercall.Recovered(p)
		b.bad.add(w.next, s.failure(err, stack))
		w.next++
		w.forget()
	}()
	known := w.fillIndices(b, end)
	for ; w.next < end; w.next++ {
		if ring.Stopped() {
			w.next = w.claim.To // the batch will not be delivered
			break
		}
		if !known {
			s.turnTo(w.next, -1) // a panic of the sampler is reported with index −1
			indices[w.next] = b.run.ordering.sampler.At(b.epoch, b.from+w.next)
		}
		index := indices[w.next]
		s.turnTo(w.next, index)
		if uint(index) >= n {
			b.bad.add(w.next, s.failure(fmt.Errorf("the sampler's index %d for position %d is out of range 0 … %d", index, b.from+w.next, n-1), nil))
			continue
		}
		if ragged { // this is begin, without a call per sample for other datasets
			if s.mem.UnsetLens(w.next, w.next+1); s.mem.Told != nil && s.mem.Told[w.next] == layout.Untold {
				continue
			}
		}
		if w.bounded {
			w.calls(w.next+1, false)
		}
		err := load(ctx, index, s)
		if err != nil {
			err = w.again(ctx, err)
		}
		if w.tooLate() {
			break
		}
		if ragged && err == nil {
			err = s.end()
		}
		if err != nil {
			b.bad.add(w.next, s.failure(err, nil))
		}
	}
	finished = true
}

// forget drops the values that a call that panicked may have left half done.
func (w *worker) forget() {
	w.locals.close(w.l.opts.log)
	w.sample.scope = 0
	for _, s := range w.samples {
		s.scope = 0
	}
}

// again loads the current sample again, as WithRetry says.
func (w *worker) again(ctx context.Context, err error) error {
	if w.sample.unread() {
		return err
	}
	return w.l.opts.retry.Do(ctx, err, func() error {
		w.sample.begin(w.sample.place, w.sample.index)
		return w.l.load.sample(ctx, w.sample.index, &w.sample)
	})
}

// loadTogether loads the places before end in one call of LoadBatch. If the call fails, it tries each
// half, then the halves of these, and so on. Load is then called only for the bad samples, and its errors
// name them.
func (w *worker) loadTogether(b *Batch, end int) {
	switch {
	case w.next >= end || w.clock.Lost():
	case w.l.ring.Stopped() || w.isBeyondError(b):
		w.next = w.claim.To // these samples will not be delivered
	case !w.gather(b, end):
		w.loadSingly(b, end)
	case w.callTogether(b, end):
		w.next = end
	case end-w.next == 1:
		w.loadSingly(b, end)
	default:
		w.loadTogether(b, w.next+(end-w.next)/2)
		w.loadTogether(b, end)
	}
}

// callTogether calls LoadBatch for the places that gather has readied.
func (w *worker) callTogether(b *Batch, end int) (ok bool) {
	l, ctx, samples := w.l, w.loadContext(b.run), w.samples[:end-w.next]
	returned := false
	failed := func(err error) {
		if !b.run.isOver() { // else the context has ended, which is not a failure
			l.failedTogether(err)
		}
	}
	defer func() {
		if returned {
			return
		}
		p := recover()
		if w.tooLate() || p == nil {
			return // the call was given up long ago, or the goroutine ends
		}
		_, err := usercall.Recovered(p)
		failed(err)
		w.forget()
	}()
	w.locals.ctx = ctx
	if w.bounded {
		w.calls(end, true)
	}
	err := l.load.together(ctx, w.indices, samples)
	returned = true
	switch {
	case w.tooLate():
		return false
	case err != nil:
		failed(err)
		return false
	}
	if l.layout.Ragged > 0 {
		for _, s := range samples {
			if err := s.end(); err != nil {
				b.bad.add(s.place, s.failure(err, nil))
			}
		}
	}
	return true
}

// gather prepares the samples and indices for a LoadBatch of the places that begin at next. It returns
// false if a sample is known to be bad, or the sampler panics: Load is then called for the others.
func (w *worker) gather(b *Batch, end int) (ok bool) {
	defer func() { _ = recover() }() // loadSingly finds it again
	n, indices := end-w.next, w.slot.indices[w.next:end]
	if !w.fillIndices(b, end) {
		for i := range indices {
			indices[i] = b.run.ordering.sampler.At(b.epoch, b.from+w.next+i)
		}
	}
	if len(w.samples) < n {
		w.samples = newSamples(w.sample.common, n)
	}
	w.indices = append(w.indices[:0], indices...)
	for i, s := range w.samples[:n] {
		if uint(indices[i]) >= uint(b.run.ordering.n) {
			return false
		}
		s.turnTo(w.next+i, indices[i])
	}
	if w.l.layout.Ragged > 0 {
		w.sample.mem.UnsetLens(w.next, end)
		if told := w.slot.places.Told; told != nil && slices.Contains(told[w.next:end], layout.Untold) {
			return false
		}
	}
	return true
}

// fillIndices writes which samples the places next … end−1 are, if that is known without asking the
// sampler for each one. It then publishes the claim.
func (w *worker) fillIndices(b *Batch, end int) (known bool) {
	known = b.known || w.slot.records != nil || w.noted && w.indexed // set by the reader of a stream, or by an earlier call
	if s, ok := b.run.ordering.sampler.(SamplerFiller); ok && !known {
		w.sample.turnTo(w.next, -1) // a panic of Fill is reported with index −1
		s.Fill(b.epoch, b.from+w.next, w.slot.indices[w.next:end])
		known = true
	}
	w.note(known)
	return known
}

// prepare runs WithWorkerInit's function before the worker claims anything, so that no batch waits for
// it. If there is no run, or the run ends, prepare gives up the worker's seat and returns false; the next
// run starts another worker.
func (w *worker) prepare() bool {
	for !w.ready {
		r := w.l.crew.enter(w)
		if r == nil {
			return false
		}
		w.prepareFor(r)
	}
	return true
}

func (w *worker) prepareFor(r *run) {
	returned := false
	defer func() {
		if !returned {
			w.abandon()
		}
		w.l.crew.entered()
	}()
	w.begins.Store(w.cold.Load() > 0)
	w.ready = w.initialize(r)
	returned = true
}

// initialize runs WithWorkerInit's function. A worker that has a claim also runs it: without workers, or
// if the worker that had the claim is gone.
func (w *worker) initialize(r *run) bool {
	fail := func(stack []byte, err error) {
		r.stop(&LoadError{Index: -1, Position: -1, Epoch: int(r.yielded.Load()), Worker: w.sample.worker, Err: fmt.Errorf("WithWorkerInit: %w", err), Stack: stack})
	}
	return usercall.Call(func() error { return w.l.opts.init(r.ctx, w.sample.worker) }, fail)
}

// bound lets WithTimeout bound the worker's calls.
func (w *worker) bound() { w.bounded, w.locals.bounded = true, w }
