package nwt

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nwt-go/nwt/internal/depth"
	"github.com/nwt-go/nwt/internal/devicecopy"
	"github.com/nwt-go/nwt/internal/layout"
	"github.com/nwt-go/nwt/internal/order"
	"github.com/nwt-go/nwt/internal/permute"
	"github.com/nwt-go/nwt/internal/ring"
	"github.com/nwt-go/nwt/internal/watch"
)

// An engine is what a [Loader] is, except that nobody need hold it: its workers do.
type engine struct {
	*source
	load loadFuncs

	ordering atomic.Pointer[ordering] // of the next run; a run keeps its own

	stage  *devicecopy.Stage // nil if the device is the host
	ring   *ring.Ring[Batch]
	born   time.Time              // when the loader was made: see now
	found  atomic.Pointer[Result] // nil if no tuner has found anything yet
	tuning *tuning                // nil if nothing tunes the loader
	crew   *crew
	pace   depth.Pace

	// The consumer writes these with each batch. They lie apart from what workers read.
	slots    slots
	counters counters

	mixed mixedMemory
	deep  extraBatches

	// It belongs to the running epoch, which hands it to the next one.
	seq uint64 // sequence number of the next batch that is opened

	closing sync.Once // a second Close waits for the first
}

// loadFuncs are how samples of a dataset are loaded.
type loadFuncs struct {
	sample   func(ctx context.Context, index int, dst *Sample) error
	clear    func(ctx context.Context, index int, dst *Sample) error       // loads into a place that is clear
	together func(ctx context.Context, indices []int, dst []*Sample) error // nil: the dataset has no LoadBatch
	clears   bool                                                          // places are cleared before they are loaded
	sizes    func(index int, sizes []int)                                  // of a SizedDataset; nil: batches are as long as the fields allow
}

// trainingLoader makes a loader, which tunes itself with WithAutoWorkers.
func (s *source) trainingLoader(workers int) *engine {
	if s.opts.auto {
		if most := s.opts.most; most >= 0 {
			workers = min(workers, most)
		}
		if !s.opts.mayInline() {
			workers = max(workers, 1)
		}
	}
	l := s.loader(workers)
	if s.opts.auto {
		newAuto(l)
	}
	if s.opts.checks {
		s.opts.tellOfChecks()
	}
	return l
}

// ownShapes reports whether each batch has a shape of its own.
func (l *engine) ownShapes() bool { return l.load.sizes != nil }

// loader makes an engine with the given number of workers.
func (s *source) loader(workers int) *engine {
	l := &engine{source: s, load: s.loadFuncs(), born: time.Now()}
	l.ordering.Store(s.first)
	l.slots.offsets = make([]int, len(s.layout.Columns))
	l.slots.bytes = layout.Place(s.layout.Columns, s.opts.batchSize, l.slots.offsets)
	if !onHost(s.opts.device) {
		l.stage = devicecopy.New(s.opts.device, l.slots.bytes, s.opts.log)
	}
	l.ring = ring.New[Batch](maxWorkers, l.stage != nil)
	l.pace.Batch = s.opts.batchSize
	var watchdog *watch.Watchdog
	if s.opts.timeout > 0 {
		watchdog = watch.New(s.opts.timeout)
	}
	l.crew = newCrew(l, watchdog, workers)
	l.startDepth()
	return l
}

// seedKey returns what Sample.Rand is seeded by.
func (o *options) seedKey() uint64 {
	if o.seed != nil {
		return permute.SeedKey(*o.seed)
	}
	return permute.SeedKey(o.shuffled)
}

// loadFuncs finds out how samples are loaded. To ask in the loop of loading whether places are to be
// cleared would cost all datasets more.
func (s *source) loadFuncs() loadFuncs {
	l := loadFuncs{sample: s.ds.Load}
	switch ds := s.ds.(type) {
	case *funcDataset:
		l.sample = ds.load // one call less for each sample
	case *streamDataset:
		l.sample = ds.load
	}
	if d, ok := s.ds.(BatchDataset); ok {
		l.together = d.LoadBatch
	}
	if s.layout.Ragged > 0 && !s.streams() {
		l.sizes = sizesOf(s.ds)
	}
	l.clear = l.sample
	if overwrites(s.ds) {
		return l
	}
	l.clears = true
	load, together := l.sample, l.together
	l.sample = func(ctx context.Context, index int, dst *Sample) error {
		dst.mem.Clear(dst.place, 1)
		return load(ctx, index, dst)
	}
	if together != nil {
		l.together = func(ctx context.Context, indices []int, dst []*Sample) error {
			dst[0].mem.Clear(dst[0].place, len(dst)) // they adjoin
			return together(ctx, indices, dst)
		}
	}
	return l
}

// perRank returns the batches that a rank has of a stream with WithEpochSamples.
func (o *options) perRank() order.Order {
	return order.Order{N: o.quota(o.world), Batch: o.batchSize, World: 1, DropLast: o.dropLast}
}

// samplesOfEpoch returns how many samples an epoch of an ordering has over all ranks; endless for a
// stream without WithEpochSamples.
func (s *source) samplesOfEpoch(o *ordering) int {
	if o.order.N == endless && s.opts.epochSamples > 0 {
		return s.opts.quota(s.opts.world) * s.opts.world
	}
	return o.order.N
}

// Workers is [Loader.Workers].
func (l *engine) Workers() int { return int(l.crew.size.Load()) }

// resize is [crew.resize].
func (l *engine) resize(workers int, byHand bool) (ok bool) {
	if ok = l.crew.resize(workers, byHand); ok {
		l.slots.trim(l)
	}
	return ok
}

// setQuota implements surroundings.
func (l *engine) setQuota(workers int) {
	l.ring.SetQuota(workers)
	l.pace.Share(workers)
}

// isOver implements surroundings.
func (l *engine) isOver() bool { return l.ring.Stopped() }

// now returns the loader's age in nanoseconds, and never 0. Reading the monotonic clock alone
// takes half as long as time.Now.
func (l *engine) now() int64 { return int64(time.Since(l.born)) + 1 }

// resume is iterate from a state on.
func (l *engine) resume(ctx context.Context, s State, last int, yield func(*Batch, error) bool) {
	over, err := l.checkOrder(s)
	switch {
	case s.Epoch < 0:
		yield(nil, optionError("State.Epoch", s.Epoch, "must be at least 0"))
	case s.Samples == -1:
		yield(nil, optionError("State.Samples", s.Samples, "the state is of a loader WithUnordered, which can't be resumed"))
	case l.opts.unordered:
		yield(nil, optionError("WithUnordered", true, "a loader without order can't resume"))
	case s.Samples < 0:
		yield(nil, optionError("State.Samples", s.Samples, "must be at least 0"))
	case err != nil:
		yield(nil, err)
	case over && s.Epoch == last:
	case over:
		l.iterate(ctx, s.Epoch+1, last, 0, yield)
	case s.World < anyWorld:
		yield(nil, optionError("State.World", s.World, "must be at least −1"))
	case l.counted && s.Samples > 0 && s.World > 0:
		yield(nil, optionError("State.World", s.World, "the state is of an epoch whose order depended on the number of ranks: now the stream's records are counted, and it doesn't. Begin the next epoch, State{Epoch: %d}", s.Epoch+1))
	case l.counted:
		l.iterate(ctx, s.Epoch, last, s.Samples, yield)
	case l.streams() && s.Samples > 0 && s.World == anyWorld:
		yield(nil, optionError("State.World", s.World, "the state is of a CountedStream, and this stream's counts are missing: its order is another one. Begin the next epoch, State{Epoch: %d}", s.Epoch+1))
	case l.streams() && s.Samples > 0 && s.World != 0 && s.World != l.opts.world:
		if !l.opts.endsEpoch(s.Samples, s.World) {
			yield(nil, optionError("State.World", s.World, "of a stream: must be the number of ranks, %d, in the middle of an epoch, since each rank reads shards of its own: "+
				"resume with %d ranks, or begin the next epoch, State{Epoch: %d}, with any number. "+
				"It could go on with any number if the stream told the counts of its records (CountedStream, without MixedStreams)", l.opts.world, s.World, s.Epoch+1))
			return
		}
		l.iterate(ctx, s.Epoch, last, l.samplesOfEpoch(l.first), yield) // its end
	case l.streams() && s.Samples%l.opts.world != 0:
		yield(nil, optionError("State.Samples", s.Samples, "of a stream: must be a multiple of the number of ranks, %d", l.opts.world))
	default:
		l.iterate(ctx, s.Epoch, last, s.Samples, yield)
	}
}

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
	if t != nil {
		t.resume()
		defer t.wake.Stop()
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
			t.took(r)
		}
		if batches == 2 && base == 0 && (r.ordering.own || l.streams()) && l.opts.shuffle { // one alone may have been a look at the data
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

// close is [Loader.Close].
func (l *engine) close() {
	if r := l.crew.close(); r != nil {
		r.stop(ErrClosed)
		r.haltInTurn()
	}
	l.crew.dismiss()
	l.closing.Do(func() {
		if l.stage != nil {
			l.stage.Close()
		}
		l.crew.inline.locals.close(l.opts.log)
		l.slots.close()
	})
}

// tellIfBegun logs, once, that an epoch begins anew: the program may not count its epochs.
func (l *engine) tellIfBegun(epoch, n int) {
	type begun struct{ epoch, n int }
	if l.once.during == whileLoading && !l.once.isNews(begun{epoch, n}) && l.once.isNews("begins anew") {
		l.opts.log.Warn("nwt: a shuffled epoch begins anew, in the same order as before: count the epochs, as Epochs does", "epoch", epoch)
	}
}

// leftOut logs that a sample is left out: while tuning, once for each sample; of an epoch's, ever
// fewer, numbers 1 … 10, 20 … 100, 200 and so on.
func (l *engine) leftOut(err *LoadError, bad int) {
	if l.once.during == whileTuning && !l.once.isNews(err.Index) {
		return
	}
	digits := bad
	for digits%10 == 0 {
		digits /= 10
	}
	if digits > 9 {
		return
	}
	log := l.opts.log
	if err.origin != "" {
		log = log.With("origin", err.origin)
	}
	log.Warn("nwt: a bad sample is left out", "during", l.once.during, "index", err.Index, "position", err.Position,
		"epoch", err.Epoch, "worker", err.Worker, "bad", bad, "budget", l.opts.maxBad, "error", err.Err)
}

// failedTogether logs that a LoadBatch has failed, the first time. A bad sample is reported
// again when Load fails for it. But if only LoadBatch fails and Load doesn't, loading would be
// slow, and without this log nobody would know why.
func (l *engine) failedTogether(err error) {
	if l.once.isNews("LoadBatch") {
		l.opts.log.Warn("nwt: LoadBatch failed: its halves are tried, and their halves, until the bad samples are found; this is logged once", "during", l.once.during, "error", err)
	}
}
