package nwt

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"runtime/pprof"
	"runtime/trace"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/nwt-go/nwt/internal/ring"
)

// A worker loads places of batches, in a goroutine of its own or, without
// workers, in the caller's.
type worker struct {
	l       *Loader
	sample  Sample
	claim   ring.Claim[Batch]
	next    int  // place that is being loaded, or is to be loaded next
	ready   bool // WithWorkerInit has succeeded
	untimed int  // claims since one was timed
}

func newWorker(l *Loader, id int) *worker {
	w := &worker{l: l}
	w.sample.init(l.layout, l.offsets)
	w.sample.worker, w.sample.seedKey = id, l.seedKey
	return w
}

// run is the worker's goroutine.
func (w *worker) run() {
	pprof.SetGoroutineLabels(pprof.WithLabels(context.Background(), pprof.Labels("nwt", "load", "worker", strconv.Itoa(w.sample.worker))))
	left := false
	defer func() {
		if !left {
			// Load called runtime.Goexit. Go on with what is claimed elsewhere.
			w.l.pool.Go(w.run)
		}
	}()
	for !left {
		if w.next < w.claim.To {
			w.load()
			w.l.ring.Done(w.claim.Seq, w.claim.To-w.claim.From)
		}
		var ok bool
		if w.claim, ok = w.l.ring.Claim(w.sample.worker, w.l.pace.claim()); ok {
			w.next = w.claim.From
		} else if !w.l.ring.Park(w.sample.worker) {
			left = w.l.leave(w)
		}
	}
}

// load loads the claimed places from next on.
func (w *worker) load() {
	b := w.claim.Item
	s := &w.sample
	s.mem, s.lens, s.epoch = b.mem, b.lens, b.epoch
	if !w.ready && !w.start(b) {
		w.next = w.claim.To
		return
	}
	if trace.IsEnabled() {
		defer trace.StartRegion(b.run.ctx, "nwt.load").End()
	}
	n := w.claim.To - w.next
	if !w.l.pace.timed(&w.untimed, n) {
		for w.next < w.claim.To {
			w.loadUntilPanic(b)
		}
		return
	}
	began := time.Now()
	for w.next < w.claim.To {
		w.loadUntilPanic(b)
	}
	took := time.Since(began)
	w.l.pace.took(took, n)
	w.l.counters.loads.add(took/time.Duration(n), n)
}

// loadUntilPanic loads places until there are none left, or user code panics.
func (w *worker) loadUntilPanic(b *Batch) {
	l, s, ctx := w.l, &w.sample, b.run.ctx
	finished := false
	defer func() {
		if !finished {
			err, stack := recovered(recover())
			b.bad.add(w.next, s.error(err, stack))
			w.next++
		}
	}()
	s.index = -1
	l.indices(b, w.next, w.claim.To)
	for ; w.next < w.claim.To; w.next++ {
		if l.ring.Stopped() {
			w.next = w.claim.To // nobody will see the batch
			break
		}
		index := b.indices[w.next]
		s.begin(w.next, index)
		if uint(index) >= uint(l.n) {
			b.bad.add(w.next, s.error(fmt.Errorf("the sampler's index for position %d is out of range 0 … %d", b.from+w.next, l.n-1), nil))
			continue
		}
		err := l.load(ctx, index, s)
		if l.layout.ragged > 0 && err == nil {
			err = s.end()
		}
		if err != nil {
			b.bad.add(w.next, s.error(err, nil))
		}
	}
	finished = true
}

// indices asks the sampler which samples places from … to−1 of b are.
func (l *Loader) indices(b *Batch, from, to int) {
	places := b.indices[from:to]
	if s, ok := l.sampler.(filler); ok {
		s.fill(b.epoch, b.from+from, places)
		return
	}
	for i := range places {
		places[i] = l.sampler.At(b.epoch, b.from+from+i)
	}
}

// start runs WithWorkerInit.
func (w *worker) start(b *Batch) bool {
	if w.l.opts.init != nil {
		w.sample.index = -1
		if err, stack := w.initialize(b.run.ctx); err != nil {
			b.run.stop(w.sample.error(fmt.Errorf("WithWorkerInit: %w", err), stack))
			return false
		}
	}
	w.ready = true
	return true
}

func (w *worker) initialize(ctx context.Context) (err error, stack []byte) {
	finished := false
	defer func() {
		if !finished {
			err, stack = recovered(recover())
		}
	}()
	err = w.l.opts.init(ctx, w.sample.worker)
	finished = true
	return err, nil
}

// recovered makes an error of what recover returned in a function that was to
// return normally.
func recovered(p any) (err error, stack []byte) {
	switch p := p.(type) {
	case nil:
		return errGoexit, debug.Stack()
	case error:
		return fmt.Errorf("panic: %w", p), debug.Stack()
	default:
		return fmt.Errorf("panic: %v", p), debug.Stack()
	}
}

var errGoexit = errors.New("runtime.Goexit was called")

// pace decides how many places a worker claims at once: few enough that the
// workers share a batch evenly, and so many that claiming costs nothing beside
// loading.
type pace struct {
	first     atomic.Int32 // places a claim has while nothing is known
	batch     int32        // places of a batch
	perSample atomic.Int64 // nanoseconds, a running mean; 0 while unknown
}

const (
	claimTime  = 20 * time.Microsecond // a claim costs about 0.1 µs
	timingCost = 2 * time.Microsecond  // below that, only some claims are timed
	timeOneIn  = 32
)

func (p *pace) claim() int {
	per := p.perSample.Load()
	if per == 0 {
		return int(p.first.Load())
	}
	return int(max(1, min(int64(claimTime)/per, int64(p.batch))))
}

// timed tells whether to time a claim of n places.
func (p *pace) timed(untimed *int, n int) bool {
	if *untimed++; *untimed < timeOneIn && p.perSample.Load() != 0 && p.perSample.Load()*int64(n) < int64(timingCost) {
		return false
	}
	*untimed = 0
	return true
}

// took notes how long n places took. Lost updates of the mean do no harm.
func (p *pace) took(d time.Duration, n int) {
	per := max(1, int64(d)/int64(n))
	if old := p.perSample.Load(); old != 0 {
		per = old + (per-old)/8
	}
	p.perSample.Store(max(1, per))
}
