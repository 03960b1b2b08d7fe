package nwt

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nwt-go/nwt/internal/depth"
	"github.com/nwt-go/nwt/internal/devicecopy"
	"github.com/nwt-go/nwt/internal/order"
	"github.com/nwt-go/nwt/internal/permute"
	"github.com/nwt-go/nwt/internal/ring"
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

// ownShapes reports whether each batch has a shape of its own.
func (l *engine) ownShapes() bool { return l.load.sizes != nil }

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
		l.trim()
	}
	return ok
}

// trim gives back batches that are more than the loader keeps.
func (l *engine) trim() { l.slots.trim(l) }

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

// A mixedMemory is what the records take that a loader's shuffle windows hold.
type mixedMemory struct {
	bytes atomic.Int64
	room  func() float64 // before there is a warning; looked up once
}
