package nwt

import (
	"context"
	"fmt"
	"runtime"
	"runtime/pprof"
	"runtime/trace"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/nwt-go/nwt/internal/callctx"
	"github.com/nwt-go/nwt/internal/ring"
	"github.com/nwt-go/nwt/internal/search"
	"github.com/nwt-go/nwt/internal/usercall"
	"github.com/nwt-go/nwt/internal/watch"
)

// A worker loads places of batches, in its own goroutine or, without workers, in the caller's: it claims
// places, and its loop loads them.
type worker struct {
	l       *engine
	seat    int // its number among the loader's seats; the caller's is 0
	number  int // what Sample.Worker returns. The watchdog reads it here, since a cache changes sample during a call
	claim   ring.Claim[batch]
	claimed bool         // claim has not been reported as done
	asked   bool         // the sampler was asked for the claimed places
	ready   bool         // WithWorkerInit has succeeded
	untimed int          // claims since the last one that was timed
	cold    atomic.Int32 // samples to load before the worker counts as warm; it is warm at 0 or less
	begins  atomic.Bool  // WithWorkerInit or the first claim is under way; not set for a claim that was taken over

	loop   loadLoop
	keeps  *slot // if its call was given up: its slot, until the call returns
	failed error // if it took over from a LoadMany: see handover
}

// newWorker implements poolHooks; number is what Sample.Worker returns.
func (l *engine) newWorker(seat, number int, watchdog *watch.Watchdog) *worker {
	w := &worker{l: l, seat: seat, number: number, ready: l.setup.opts.init == nil, loop: loadLoop{how: l.how, scratch: &scratchValues{}, stops: l.ring}}
	if watchdog != nil {
		w.loop.call.watchdog, w.loop.scratch.clock = watchdog, &w.loop
	}
	w.cold.Store(search.WarmSamples)
	w.loop.sample.common = &common{worker: number, scratch: w.loop.scratch, log: l.setup.opts.log, drawn: l.setup.opts.drawn}
	return w
}

// cold returns how many samples the workers that have begun must still load until they are warm, and
// whether a worker is about to begin.
func (l *engine) cold() (samples int, beginning bool) {
	l.pool.each(func(w *worker) {
		if cold := int(w.cold.Load()); cold < search.WarmSamples {
			samples += max(0, cold)
		}
		beginning = beginning || w.begins.Load()
	})
	return samples, beginning
}

// begin prepares the worker to load a claim.
func (w *worker) begin() {
	if w.cold.Load() == search.WarmSamples {
		w.begins.Store(true)
	}
	w.loop.slot, w.loop.next, w.asked = w.claim.Item.slot, w.claim.From, false
}

// loaded tells the batch that the claim has been loaded.
func (w *worker) loaded() {
	n := w.claim.To - w.claim.From
	if w.cold.Load() > 0 {
		w.cold.Add(int32(-n))
		w.begins.Store(false)
	}
	b := w.claim.Item
	if w.l.tuning != nil {
		w.l.counters.loaded.Add(int64(n) * wholeBatch / int64(b.opened))
	}
	b.loadedPlaces(n, w.number) // WithBatchTransform runs once the last place is loaded
}

// done reports the claim to the ring. It returns whether this has woken a goroutine.
func (w *worker) done() bool { return w.l.ring.Done(w.claim.Seq, w.claim.To-w.claim.From) }

// work implements poolHooks: it is the worker's goroutine.
func (l *engine) work(w *worker) {
	pprof.SetGoroutineLabels(pprof.WithLabels(context.Background(), pprof.Labels("nwt", "load", "worker", strconv.Itoa(w.number))))
	left := false
	defer func() {
		switch {
		case w.loop.call.clock.Lost():
			w.returned() // another worker took this one's seat long ago
			return
		case !left:
			w.goroutineEnded()
		}
		w.loop.scratch.close(w.l.setup.opts.log)
	}()
	if w.failed != nil {
		w.l.failedTogether(w.failed)
	}
	for !left {
		if w.claimed {
			w.loadClaim()
			if w.loop.call.clock.Lost() {
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
			left = w.l.pool.leave(w)
		}
	}
}

// goroutineEnded ends the run, and vacates the seat, if a function of the program has ended the worker's
// goroutine. The run waits for that; otherwise the next run would count on the worker.
func (w *worker) goroutineEnded() {
	if w.claimed {
		defer w.done()
		place := min(w.loop.next, w.claim.To-1)
		w.loop.sample.setPlace(place, w.loop.slot.indices[place])
		stack, err := usercall.Recovered(nil)
		w.claim.Item.run.stop(w.loop.sample.failure(fmt.Errorf("Load ended its goroutine: %w", err), stack))
	}
	w.l.pool.desert(w)
}

// loadClaim loads the claimed places, beginning at next, until all are loaded or a call is given up.
func (w *worker) loadClaim() {
	b, end := w.claim.Item, w.claim.To
	w.loop.setSlot(w.loop.slot, b.span)
	w.loop.bad, w.loop.n = &b.bad, b.run.epochOrder.n
	if w.ready = w.ready || w.initialize(b.run); !w.ready || w.loop.isBeyondError() {
		w.loop.next = end // these samples will not be delivered
		return
	}
	if trace.IsEnabled() {
		defer trace.StartRegion(b.run.ctx, "nwt.load").End()
	}
	var began int64
	n := end - w.loop.next
	timed := w.l.pace.Timed(&w.untimed, n)
	if timed {
		began = w.l.now()
	}
	if !w.asked && !b.indexed && w.loop.slot.records == nil {
		w.asked = true
		b.askSampler(w.loop.next, end, w.number)
	}
	ctx := w.loop.context(b.context())
	if w.loop.how.together != nil && w.loop.slot == b.slot { // else in the spare: see handover
		w.loop.failed = nil
		w.loop.together(ctx, end, true)
		if failed := w.loop.failed; failed != nil && !w.loop.call.clock.Lost() && !b.bad.any() { // else a bad sample says why
			w.l.failedTogether(failed)
		}
	} else {
		w.loop.singly(ctx, end)
	}
	if timed && n > 0 && !w.loop.call.clock.Lost() && !b.isDropped() { // else calls may have ended early, and places may have been left out
		took := time.Duration(w.l.now() - began)
		w.l.pace.Took(took, n)
		w.l.counters.loads.Add(took/time.Duration(n), n)
	}
}

// prepare runs WithWorkerInit's function before the worker claims anything, so that no batch waits for
// it. If there is no run, or the run ends, prepare gives up the worker's seat and returns false; the next
// run starts another worker.
func (w *worker) prepare() bool {
	for !w.ready {
		r := w.l.pool.enter(w)
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
			w.goroutineEnded()
		}
		w.l.pool.entered()
	}()
	w.begins.Store(w.cold.Load() > 0)
	w.ready = w.initialize(r)
	returned = true
}

// initialize runs WithWorkerInit's function. A worker that has a claim also runs it: without workers, or
// if the worker that had the claim is gone.
func (w *worker) initialize(r *run) bool {
	fail := func(stack []byte, err error) {
		r.stop(&LoadError{Index: -1, Position: -1, Epoch: int(r.yielded.Load()), Worker: w.number, Err: fmt.Errorf("WithWorkerInit: %w", usercall.Cause(err)), Stack: stack})
	}
	return usercall.Call(func() error { return w.l.setup.opts.init(r.ctx, w.number) }, fail)
}

// A handover is what the worker whose call is given up hands to the worker that goes on.
//
// The lost worker keeps all that its call may touch: its goroutine and number, its samples, indices and
// Scratch values, and the whole slot, of which the call is a holder until it returns. The batch is moved to
// another slot before it is delivered (moveOut). The next worker gets the seat and the claim: it loads the
// rest, and reports the whole claim to the ring. If the call is one of Load, its sample is bad, and the rest
// begins after it. If it is one of LoadMany, the rest begins with its first sample, and is loaded one by one in
// the batch's spare, where the call can't write; if there is no memory for a spare, its samples are bad.
//
// The watchdog alone hands over, and one call at a time. It holds the lost worker's clock meanwhile, so that
// the worker doesn't come back from its call and touch what is read and written here; when it does, it first
// learns that its clock is Lost, and then touches nothing of the batch. The next worker has no goroutine yet.
// While too many calls haven't returned, no batch is opened (tooManyAway). What a stream's readers do is in
// internal/shards, call.go.
type handover struct {
	claim  ring.Claim[batch]
	slot   *slot // into which the rest is loaded: the claim's, or the spare
	from   int   // the first place of the rest
	failed error // of the LoadMany, which the next worker logs: a log's handler would hold up the watchdog
}

// giveUp implements poolHooks.
func (l *engine) giveUp(w *worker) handover {
	b := w.claim.Item
	err := callctx.NoAnswer(w.loop.call.ctx)
	w.loop.slot.holders.Add(1) // the call
	w.keeps = w.loop.slot
	w.loop.call.cancel(err)
	rest := handover{claim: w.claim, slot: w.loop.slot, from: w.loop.call.upto}
	if w.loop.call.ofBatch {
		if refused := b.openSpare(w.loop.next, w.claim.To); refused != nil {
			err = fmt.Errorf("%w; nor can its samples be loaded one by one: %w", err, refused)
		} else {
			rest.slot, rest.from = b.spare, w.loop.next
		}
		if !l.ring.Stopped() { // else it is not a failure
			rest.failed = err
		}
	}
	for place := w.loop.next; place < rest.from; place++ {
		b.fail(place, w.number, err, nil)
	}
	return rest
}

// takeOver makes a new worker go on with the rest of a claim, for which the sampler was asked.
func (w *worker) takeOver(rest handover) {
	w.claim, w.claimed, w.asked, w.failed = rest.claim, true, true, rest.failed
	w.loop.slot, w.loop.next = rest.slot, rest.from
}

// returned frees what a call that was given up has held.
func (w *worker) returned() {
	w.l.release(w.keeps)
	w.l.pool.returned(w)
	w.loop.scratch.close(w.l.setup.opts.log)
}
