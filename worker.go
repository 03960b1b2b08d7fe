package nwt

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"runtime/trace"
	"strconv"
	"strings"
	"time"

	"github.com/nwt-go/nwt/internal/ring"
)

// A worker loads places of batches, in a goroutine of its own or, without
// workers, in the caller's.
type worker struct {
	l       *Loader
	sample  Sample
	claim   ring.Claim[Batch]
	claimed bool // claim has yet to be reported done
	next    int  // place that is being loaded, or is to be loaded next
	ready   bool // WithWorkerInit has succeeded
	untimed int  // claims since one was timed
	singly  bool // LoadBatch was tried with the claim

	together []*Sample // places of a claim, for a BatchDataset; grown on demand
	watch    *watch    // with WithTimeout, in a goroutine of its own; else nil
}

func newWorker(l *Loader, id int) *worker {
	w := &worker{l: l}
	w.sample.common = &common{layout: l.layout, offsets: l.offsets, seedKey: l.seedKey, worker: id, locals: &locals{}, log: l.opts.log}
	return w
}

// run is the worker's goroutine.
func (w *worker) run() {
	pprof.SetGoroutineLabels(pprof.WithLabels(context.Background(), pprof.Labels("nwt", "load", "worker", strconv.Itoa(w.sample.worker))))
	left := false
	defer func() {
		switch {
		case w.lost():
			w.sample.locals.close(w.l.opts.log)
			w.watch.hung.release() // somebody else has been in this one's place
		case !left:
			go w.run() // Load called runtime.Goexit: go on with the claim elsewhere
		default:
			w.sample.locals.close(w.l.opts.log)
			w.l.pool.Done()
		}
	}()
	for !left {
		if w.claimed {
			if w.next < w.claim.To { // else Load ended a goroutine at its last place
				w.loadClaim()
			}
			if w.lost() {
				return
			}
			w.claimed = false
			if w.l.ring.Done(w.claim.Seq, w.claim.To-w.claim.From) && w.l.makesWay() {
				runtime.Gosched()
			}
		}
		if w.claim, w.claimed = w.l.ring.Claim(w.sample.worker, w.l.claimSize()); w.claimed {
			w.next, w.singly = w.claim.From, false
			continue
		}
		w.l.idle()
		if !w.l.ring.Park(w.sample.worker) {
			left = w.l.leave(w)
		}
	}
}

// loadClaim loads the claimed places from next on.
func (w *worker) loadClaim() {
	b := w.claim.Item
	s := &w.sample
	if s.worker == 0 {
		w.l.zero <- struct{}{}
		defer func() {
			if !w.lost() { // else the watchdog has emptied it
				<-w.l.zero
			}
		}()
	}
	s.mem, s.lens, s.records, s.epoch, s.from = b.mem, b.lens, b.records, b.epoch, b.from
	if !w.ready && !w.start(b) || w.l.opts.maxBad == 0 && w.next > int(b.bad.first.Load()) {
		w.next = w.claim.To // nobody will see these samples
		return
	}
	if trace.IsEnabled() {
		defer trace.StartRegion(b.run.ctx, "nwt.load").End()
	}
	n := w.claim.To - w.next
	if !w.l.pace.timed(&w.untimed, n) {
		w.loadPlaces(b)
		return
	}
	began := time.Now()
	w.loadPlaces(b)
	took := time.Since(began)
	if n > 0 && !w.lost() {
		w.l.pace.took(took, n)
		w.l.counters.loads.add(took/time.Duration(n), n)
	}
}

func (w *worker) loadPlaces(b *Batch) {
	if w.l.loadBatch != nil && !w.singly && w.next < w.claim.To {
		w.singly = true // if it ends the goroutine, the next mustn't try again
		w.loadTogether(b)
	}
	for w.next < w.claim.To && !w.lost() {
		w.loadUntilPanic(b)
	}
}

// loadUntilPanic loads places until there are none left, or user code panics.
func (w *worker) loadUntilPanic(b *Batch) {
	l, s, ctx := w.l, &w.sample, w.context(b.run)
	ring, load, watch, n, ragged := l.ring, l.loadSample, w.watch, uint(l.n), l.layout.ragged > 0 // looked up once
	finished := false
	defer func() {
		if !finished && !w.returned() {
			stack, err := recovered(recover())
			b.bad.add(w.next, s.error(err, stack))
			w.next++
			s.locals.close(l.opts.log) // the call may have left them half done
		}
	}()
	known := l.indices(b, w.next, w.claim.To)
	for ; w.next < w.claim.To; w.next++ {
		if ring.Stopped() {
			w.next = w.claim.To // nobody will see the batch
			break
		}
		if !known {
			s.begin(w.next, -1) // what a panic of the sampler is reported with
			b.indices[w.next] = l.sampler.At(b.epoch, b.from+w.next)
		}
		index := b.indices[w.next]
		s.begin(w.next, index)
		if uint(index) >= n {
			b.bad.add(w.next, s.error(fmt.Errorf("the sampler's index %d for position %d is out of range 0 … %d", index, b.from+w.next, l.n-1), nil))
			continue
		}
		if watch != nil {
			watch.begin(w.next + 1)
		}
		err := load(ctx, index, s)
		if err != nil {
			err = w.again(ctx, err)
		}
		if watch != nil && w.returned() {
			break
		}
		if ragged && err == nil {
			err = s.end()
		}
		if err != nil {
			b.bad.add(w.next, s.error(err, nil))
		}
	}
	finished = true
}

// again loads the current sample once more, up to WithRetry's number of times,
// while the error calls itself temporary.
func (w *worker) again(ctx context.Context, err error) error {
	pause := w.l.opts.backoff
	for range w.l.opts.retries {
		var t interface{ Temporary() bool }
		if !errors.As(err, &t) || !t.Temporary() {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return err
		}
		pause *= 2
		w.sample.begin(w.sample.place, w.sample.index)
		if err = w.l.loadSample(ctx, w.sample.index, &w.sample); err == nil {
			return nil
		}
	}
	return err
}

// loadTogether loads the claimed places in one call. Where that fails they are
// left to be loaded one by one, so that only bad samples are called bad.
func (w *worker) loadTogether(b *Batch) {
	l := w.l
	n := w.claim.To - w.next
	finished := false
	defer func() {
		if !finished && !w.returned() {
			_, err := recovered(recover())
			l.failedTogether(err)
			w.sample.locals.close(l.opts.log)
		}
	}()
	indices := b.indices[w.next:w.claim.To]
	if !l.indices(b, w.next, w.claim.To) {
		for i := range indices {
			indices[i] = l.sampler.At(b.epoch, b.from+w.next+i)
		}
	}
	if len(w.together) < n {
		w.together = newSamples(w.sample.common, n)
	}
	samples, first, total := w.together[:n], w.next, uint(l.n)
	for i, s := range samples {
		if uint(indices[i]) >= total {
			finished = true
			return
		}
		s.turnTo(first+i, indices[i])
	}
	if l.layout.ragged > 0 {
		w.sample.unsetLens(first, w.claim.To)
	}
	if w.watch != nil {
		w.watch.begin(w.claim.To)
	}
	err := l.loadBatch(w.context(b.run), indices, samples)
	finished = true
	switch {
	case w.returned():
		return
	case err != nil:
		l.failedTogether(err)
		return
	}
	if l.layout.ragged > 0 {
		for _, s := range samples {
			if err := s.end(); err != nil {
				b.bad.add(s.place, s.error(err, nil))
			}
		}
	}
	w.next = w.claim.To
}

// failedTogether says once that LoadBatch has failed: what is bad comes again one
// by one, with the sample's name, but what fails in LoadBatch alone would only be
// slow.
func (l *Loader) failedTogether(err error) {
	if l.ring.Stopped() {
		return // the context has ended, which is no failure
	}
	l.together.Do(func() {
		l.opts.log.Warn("nwt: LoadBatch failed: where it does, samples are loaded one by one", "error", err)
	})
}

// indices fills in which samples places from … to−1 of b are, where that is
// known without asking a sampler of the user's.
func (l *Loader) indices(b *Batch, from, to int) bool {
	if s, ok := l.sampler.(filler); ok {
		s.fill(b.epoch, b.from+from, b.indices[from:to])
		return true
	}
	return b.records != nil // the reader of a stream has set them
}

// start runs WithWorkerInit.
func (w *worker) start(b *Batch) bool {
	if w.l.opts.init != nil {
		from := w.next
		w.next = w.claim.To // what holds where it ends the goroutine
		if !w.initialize(b.run) {
			return false
		}
		w.next = from
	}
	w.ready = true
	return true
}

func (w *worker) initialize(r *run) bool {
	fail := func(stack []byte, err error) {
		r.stop(&LoadError{Index: -1, Position: -1, Epoch: w.sample.epoch, Worker: w.sample.worker, Err: fmt.Errorf("WithWorkerInit: %w", err), Stack: stack})
	}
	finished := false
	defer func() {
		if !finished {
			fail(recovered(recover()))
		}
	}()
	err := w.l.opts.init(r.ctx, w.sample.worker)
	finished = true
	if err != nil {
		fail(nil, err)
	}
	return err == nil
}

// recovered makes an error of what recover returned in a function that was to
// return normally.
func recovered(p any) (stack []byte, err error) {
	switch p := p.(type) {
	case nil:
		return debug.Stack(), fmt.Errorf("%w%s", errGoexit, unwoundFrom("runtime.Goexit"))
	case error:
		return debug.Stack(), fmt.Errorf("panic: %w%s", p, unwoundFrom("runtime.gopanic"))
	default:
		return debug.Stack(), fmt.Errorf("panic: %v%s", p, unwoundFrom("runtime.gopanic"))
	}
}

// unwoundFrom is the file and line of the user's call that led to a function of
// the runtime's which unwinds the goroutine's stack.
func unwoundFrom(unwinder string) string {
	pcs := make([]uintptr, 64)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)])
	for unwinding, more := false, true; more; {
		var f runtime.Frame
		f, more = frames.Next()
		switch {
		case f.Function == unwinder:
			unwinding = true
		case unwinding && !strings.HasPrefix(f.Function, "runtime.") && !strings.HasPrefix(f.Function, ours):
			return fmt.Sprintf(" (%s:%d)", f.File, f.Line)
		}
	}
	return ""
}

// ours is what the names of this package's functions begin with: a panic of
// [Sample.SetLen] is told by the line that called it.
const ours = "github.com/nwt-go/nwt."

var errGoexit = errors.New("runtime.Goexit was called")
