package nwt

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nwt-go/nwt/internal/depth"
	"github.com/nwt-go/nwt/internal/devicecopy"
	"github.com/nwt-go/nwt/internal/osmemory"
	"github.com/nwt-go/nwt/internal/permute"
	"github.com/nwt-go/nwt/internal/ring"
)

// A Loader feeds the batches of a dataset to a training loop. Any goroutine may call its methods. Functions
// that the loader calls, such as Load or a log's handler, may call all but Close and those that start an
// epoch.
type Loader struct {
	_ [0]sync.Mutex // lets vet find copies, which wouldn't keep the engine alive
	// Neither the engine nor its batches refer to the Loader, so a Loader that the program has lost can
	// be collected. Iterators do refer to it.
	engine *engine
	lost   runtime.Cleanup
}

// NewLoader makes a loader. The loader has workers and memory from its first epoch until [Loader.Close]. If
// the program forgets to close the loader, the garbage collector closes it, with a warning. The error joins
// an *[ArgumentError] for each bad argument, also of the options and of ds.
func NewLoader(ds Dataset, opts ...Option) (*Loader, error) {
	s, err := newSetup(ds, opts) // checked; nothing is loaded yet
	if err != nil {
		return nil, err
	}
	s.logIgnored("NewLoader", inLoader)
	return newHandle(s.trainingLoader(s.opts.workers)), nil
}

// trainingLoader makes a loader for training. With WithAutoWorkers it tunes itself.
func (s *setup) trainingLoader(workers int) *engine {
	if s.opts.auto {
		if most := s.opts.most; most >= 0 {
			workers = min(workers, most)
		}
		if !s.opts.mayInline() {
			workers = max(workers, 1)
		}
	}
	l := newEngine(s, workers)
	if s.opts.auto {
		newAuto(l)
	}
	if s.opts.checks {
		s.opts.tellOfChecks()
	}
	return l
}

// newHandle makes the Loader for an engine, when the program asks for one.
func newHandle(e *engine) *Loader {
	pcs := make([]uintptr, 16)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(1, pcs)])
	f, more := frames.Next()
	for more && strings.HasPrefix(f.Function, "github.com/nwt-go/nwt.") {
		f, more = frames.Next()
	}
	made := fmt.Sprintf("%s:%d", f.File, f.Line)
	l := &Loader{engine: e}
	l.lost = runtime.AddCleanup(l, func(e *engine) { go e.closeLost(made) }, e) // in a goroutine, so that no other cleanup waits for the program's code
	return l
}

func (l *engine) closeLost(made string) {
	if l.seq > 0 { // else it has never held memory
		l.setup.opts.log.Warn("nwt: a loader was lost without Close and is closed now: call Close on each that is done", "made", made)
	}
	l.close()
}

// Close ends the running epoch, waits for its loads, and frees the memory. Batches in use are freed once
// released. A second call waits for the first.
func (l *Loader) Close() error {
	l.lost.Stop()
	l.engine.close()
	runtime.KeepAlive(l)
	return nil
}

// close implements [Loader.Close].
func (l *engine) close() {
	if r := l.pool.close(); r != nil {
		r.stop(ErrClosed)
		r.lockAndHalt()
	}
	l.pool.dismiss()
	if l.tuning != nil {
		l.tuning.tuner.Stop()
	}
	l.closing.Do(func() {
		if l.stage != nil {
			l.stage.Close()
		}
		l.pool.inline.loop.scratch.close(l.setup.opts.log)
		l.slots.close()
	})
}

// sequence keeps the loader alive while an epoch is in use.
func (l *Loader) sequence(epoch iter.Seq2[*Batch, error]) iter.Seq2[*Batch, error] {
	if l.engine.setup.opts.checks {
		epoch = l.engine.withChecks(epoch)
	}
	return func(yield func(*Batch, error) bool) {
		defer runtime.KeepAlive(l)
		epoch(yield)
	}
}

// withChecks returns the epoch with these checks around its loop body.
func (l *engine) withChecks(epoch iter.Seq2[*Batch, error]) iter.Seq2[*Batch, error] {
	return func(yield func(*Batch, error) bool) {
		defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
		var failure error
		defer func() {
			if p := recover(); p != nil {
				panic(explainPanic(p, failure))
			}
		}()
		epoch(func(b *Batch, err error) bool {
			if failure = err; err != nil {
				l.setup.opts.log.Error("nwt: the epoch ended with an error", "error", err)
			}
			return yield(b, err)
		})
	}
}

// explainPanic replaces the panic of a loop body by an explanation if the cause is a known mistake.
// failure is the error that was yielded last.
func explainPanic(p any, failure error) any {
	err, ok := p.(runtime.Error)
	if fault, ok := p.(interface{ Addr() uintptr }); ok {
		if was := osmemory.SealedAs(fault.Addr()); was != "" {
			return fmt.Errorf("nwt: memory of %s was used after %s: %w", was, goneBack, err)
		}
	}
	switch {
	case failure == nil:
	case p == nilBatch:
		return fmt.Errorf("%s: %w", nilBatch, failure)
	case ok:
		return fmt.Errorf("%s: %w (%w)", nilBatch, failure, err)
	}
	return p
}

// SetSampler changes the order and the length of later epochs. Before you resume such an epoch, set its
// sampler again. During an epoch, SetSampler fails with [ErrBusy]. For a stream, it always fails.
func (l *Loader) SetSampler(s Sampler) error {
	switch {
	case s == nil:
		return optionError("SetSampler", nil, "the sampler is nil")
	case l.engine.setup.streams():
		return optionError("SetSampler", nameOfSampler(s), "a stream is read in its own order")
	}
	n, err := lengthNow(l.engine.setup.ds)
	if err != nil {
		return err
	}
	o, err := l.engine.setup.epochOrderOf("SetSampler", s, n)
	if err != nil {
		return err
	}
	if err := l.engine.pool.whileFree(func() { l.engine.epochOrder.Store(o) }); err != nil {
		return err
	}
	l.engine.trim()
	return nil
}

// SetWorkers changes the number of workers, 0 … 1024, even during an epoch.
func (l *Loader) SetWorkers(n int) error {
	if err := between("SetWorkers", n, 0, maxWorkers); err != nil {
		return err
	}
	defer runtime.KeepAlive(l) // else the loader might be closed first
	if !l.engine.resize(n, true) {
		return ErrClosed
	}
	return nil
}

// Epoch yields the batches of an epoch, in order. If something fails, Epoch first yields all earlier batches.
// Then it yields the error with a nil batch, and the epoch ends. A loop that has no variable for the error
// never sees it. If a sample can't be loaded, the error is a *[LoadError] that names the sample. The error
// may also be an *[ArgumentError], the context's error, [ErrBusy], [ErrClosed] or [ErrRetained]. Any other
// error says what failed, such as memory or a device. The program may leave the loop early. Once the loop has
// ended, no Load is running, except calls that [WithTimeout] gave up.
func (l *Loader) Epoch(ctx context.Context, epoch int) iter.Seq2[*Batch, error] {
	return l.sequence(func(yield func(*Batch, error) bool) {
		if epoch < 0 {
			yield(nil, optionError("Epoch", epoch, "must be at least 0"))
			return
		}
		l.engine.iterate(ctx, State{Epoch: epoch}, epoch, yield)
	})
}

// Epochs yields the batches of several epochs, from first to end−1: see [Loader.Epoch]. It loads the next
// epoch while the last batches of the current epoch are in use. If first equals end, Epochs yields nothing.
func (l *Loader) Epochs(ctx context.Context, first, end int) iter.Seq2[*Batch, error] {
	return l.sequence(func(yield func(*Batch, error) bool) {
		switch {
		case first < 0:
			yield(nil, optionError("Epochs: first", first, "must be at least 0"))
		case end < first:
			yield(nil, optionError("Epochs: end", end, "must be at least %d, the first epoch", first))
		case end > first:
			l.engine.iterate(ctx, State{Epoch: first}, end-1, yield)
		}
	})
}

// Resume yields the rest of an epoch. For a state after the last batch, it yields nothing. The worker count
// and the batch size may differ from those of the state. The world size may differ too; for a stream, only if
// the stream is a [CountedStream]. If the length, the seed, the sampler or the dataset's fingerprint (see
// [Fingerprinter]) differs, Resume yields an error that says which. Everything else about the dataset must be
// unchanged.
func (l *Loader) Resume(ctx context.Context, s State) iter.Seq2[*Batch, error] {
	return l.sequence(func(yield func(*Batch, error) bool) { l.engine.resume(ctx, s, s.Epoch, yield) })
}

// resume is iterate for a state of the program's.
func (l *engine) resume(ctx context.Context, s State, last int, yield func(*Batch, error) bool) {
	if l.setup.opts.unordered {
		yield(nil, optionError("Resume", nil, "a loader WithUnordered can't resume an epoch"))
		return
	}
	l.iterate(ctx, s, last, yield)
}

// ResumeEpochs does what [Loader.Resume] does, then yields epochs up to end−1.
func (l *Loader) ResumeEpochs(ctx context.Context, s State, end int) iter.Seq2[*Batch, error] {
	return l.sequence(func(yield func(*Batch, error) bool) {
		switch {
		case end < s.Epoch:
			yield(nil, optionError("ResumeEpochs: end", end, "must be at least %d, the state's epoch", s.Epoch))
		case end > s.Epoch:
			l.engine.resume(ctx, s, end-1, yield)
		}
	})
}

// Fields returns the layout of one sample, as the dataset declares it.
func (l *Loader) Fields() []Field { return cloneFields(l.engine.setup.layout.fields) }

// Len returns the number of batches per epoch on this rank. Without [WithEpochSamples], it returns −1 for a
// stream that isn't a [CountedStream].
func (l *Loader) Len() int {
	switch order := &l.engine.epochOrder.Load().order; {
	case order.N != endless:
		return order.Steps(0)
	case l.engine.setup.opts.epochSamples == 0:
		return -1
	}
	perRank := l.engine.setup.opts.perRank()
	return perRank.Steps(0)
}

// Indices returns the dataset indices of a batch on this rank, without loading the batch. For example, it
// finds the samples at which the loss jumped: step s of a training that began with epoch 0 is batch s % Len
// of epoch s / Len. The indices include bad samples that were left out. The order is that of [Loader.Epoch]
// now. If an epoch was resumed with another batch size or other ranks, use a loader with the batch size and
// ranks that loaded the batch. The errors are *[ArgumentError] and *[LoadError]. A stream has no indices.
func (l *Loader) Indices(epoch, number int) (indices []int, err error) {
	defer runtime.KeepAlive(l)
	if l.engine.setup.streams() {
		return nil, optionError("Indices", nil, "a stream has no sample by index")
	}
	at, err := l.engine.beginning(State{Epoch: epoch})
	if err != nil {
		return nil, err
	}
	o := &at.epochOrder.order
	if n := o.Steps(0); number < 0 || number >= n {
		return nil, optionError("Indices: number", number, "must be 0 … %d, the batches of an epoch", n-1)
	}
	_, err = at.each(o, number, func(_, index int) { indices = append(indices, index) })
	return indices, err
}

// BadSamples returns the samples that were left out under [WithErrorBudget], in all epochs so far. It returns
// at most the first 10 000.
func (l *Loader) BadSamples() []*LoadError {
	l.engine.counters.bad.mu.Lock()
	defer l.engine.counters.bad.mu.Unlock()
	return slices.Clone(l.engine.counters.bad.list)
}

// Stats returns a snapshot of the loader's figures.
func (l *Loader) Stats() Stats {
	ready := l.engine.counters.ready.Load() // read before batches, so that it can't be larger
	s := Stats{
		Batches: int(l.engine.counters.batches.Load()),
		Samples: l.engine.counters.samples.Load(),
		Wait:    time.Duration(l.engine.counters.wait.Load()),
		Workers: l.Workers(), Prefetch: l.engine.depth() - 1, elapsed: time.Duration(l.engine.now()),
	}
	if s.Batches > 0 {
		s.Occupancy = float64(ready) / float64(s.Batches)
	}
	s.LoadMedian, s.LoadP99 = l.engine.counters.loads.Quantile(0.5), l.engine.counters.loads.Quantile(0.99)
	l.engine.counters.bad.mu.Lock()
	s.Bad = l.engine.counters.bad.count
	l.engine.counters.bad.mu.Unlock()
	l.engine.slots.mu.Lock()
	s.Slots, s.Retained = l.engine.slots.total, l.engine.slots.retained
	s.SlotBytes = int64(s.Slots) * int64(l.engine.setup.slotBytes)
	l.engine.slots.mu.Unlock()
	f := l.engine.stage.Figures()
	s.WindowBytes = l.engine.mixed.bytes.Load()
	s.Copied, s.CopiedBytes, s.Transfer, s.DeviceBytes = f.Copies, f.Bytes, f.Took, int64(f.Held)
	s.DatasetBytes = cacheBytes(l.engine.setup.ds) + int64(l.engine.setup.helpers.Memory(10*time.Second))
	return s
}

// Result returns what tuning found. It is nil until tuning has ended.
func (l *Loader) Result() *Result { return l.engine.found.Load() }

// Workers returns how many workers the loader has.
func (l *Loader) Workers() int { return l.engine.Workers() }

// An engine does the work of a [Loader]. Its workers keep it alive, even if the program loses the Loader.
type engine struct {
	setup *setup // its dataset, options, layout and first order
	how   *loading
	sizes func(index int, sizes []int) // of a SizedDataset; nil: batches are as long as the fields allow

	seedKey uint64 // seeds Sample.Rand: by WithSeed, else by the shuffle's seed

	epochOrder atomic.Pointer[epochOrder] // used by the next run; a run keeps its own

	stage  *devicecopy.Stage // nil if the device is the host
	ring   *ring.Ring[batch]
	born   time.Time              // when the loader was made: see now
	found  atomic.Pointer[Result] // nil until a tuner has found something
	tuning *tuning                // nil if nothing tunes the loader
	pool   *pool
	pace   depth.Pace

	// The consumer writes these fields with each batch. They lie apart from the fields that workers read.
	slots    slots // batches that no run has open
	counters counters

	mixed mixedMemory
	extra extraBatches

	asked atomic.Int64 // batches that a serving is asked for at the moment

	// It belongs to the running epoch, which passes it to the next one.
	seq uint64 // sequence number of the next batch that is opened

	closing sync.Once // a second Close waits for the first
}

// newEngine makes an engine with the given number of workers.
func newEngine(s *setup, workers int) *engine {
	l := &engine{
		setup: s, how: loadingOf(s.ds, s.layout.Layout, s.opts.retry),
		born: time.Now(), seedKey: permute.SeedKey(*cmp.Or(s.opts.seed, &s.opts.shuffled)),
	}
	l.how.strict = s.opts.maxBad == 0
	if s.layout.Ragged > 0 && !s.streams() {
		l.sizes = sizesOf(s.ds)
	}
	l.epochOrder.Store(s.first)
	if !onHost(s.opts.device) {
		l.stage = devicecopy.New(s.opts.device, l.setup.slotBytes, s.opts.log)
	}
	l.ring = ring.New[batch](maxWorkers, l.stage != nil)
	l.pace.Batch = s.opts.batchSize
	l.pool = newPool(l, s.opts.timeout, workers)
	l.mixed.room = sync.OnceValue(s.opts.shareOfMemory)
	l.startDepth()
	return l
}

// ownShapes reports whether each batch has a shape of its own.
func (l *engine) ownShapes() bool { return l.sizes != nil }

// Workers implements [Loader.Workers].
func (l *engine) Workers() int { return int(l.pool.size.Load()) }

// resize calls [pool.resize], and gives back the slots that fewer workers don't need.
func (l *engine) resize(workers int, byHand bool) (ok bool) {
	if ok = l.pool.resize(workers, byHand); ok {
		l.trim()
	}
	return ok
}

// trim gives back the slots that are more than the loader keeps.
func (l *engine) trim() { l.slots.trim(l) }

// setQuota implements poolHooks.
func (l *engine) setQuota(workers int) {
	l.ring.SetQuota(workers)
	l.pace.Share(workers)
}

// isEnding implements poolHooks.
func (l *engine) isEnding() bool { return l.ring.Stopped() }

// now returns the loader's age in nanoseconds, and never 0. Reading the monotonic clock alone
// takes half as long as time.Now.
func (l *engine) now() int64 { return int64(time.Since(l.born)) + 1 }
