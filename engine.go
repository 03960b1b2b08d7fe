package nwt

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nwt-go/nwt/internal/depth"
	"github.com/nwt-go/nwt/internal/devicecopy"
	"github.com/nwt-go/nwt/internal/permute"
	"github.com/nwt-go/nwt/internal/ring"
)

// An engine is what a [Loader] is, except that nobody need hold it: its workers do.
type engine struct {
	*source // dataset, options, layout, the first ordering
	load    loadFuncs

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
	extra extraBatches

	// It belongs to the running epoch, which hands it to the next one.
	seq uint64 // sequence number of the next batch that is opened

	closing sync.Once // a second Close waits for the first
}

// loadFuncs are how samples of a dataset are loaded.
type loadFuncs struct {
	sample      func(ctx context.Context, index int, dst *Sample) error
	intoCleared func(ctx context.Context, index int, dst *Sample) error       // loads into a place that is clear
	together    func(ctx context.Context, indices []int, dst []*Sample) error // nil: the dataset has no LoadBatch
	mustClear   bool                                                          // places are cleared before they are loaded
	sizes       func(index int, sizes []int)                                  // of a SizedDataset; nil: batches are as long as the fields allow
}

// newEngine makes an engine with the given number of workers.
func newEngine(s *source, workers int) *engine {
	l := &engine{source: s, load: s.loadFuncs(), born: time.Now()}
	l.ordering.Store(s.first)
	if !onHost(s.opts.device) {
		l.stage = devicecopy.New(s.opts.device, l.slotBytes, s.opts.log)
	}
	l.ring = ring.New[Batch](maxWorkers, l.stage != nil)
	l.pace.Batch = s.opts.batchSize
	l.crew = newCrew(l, s.opts.timeout, workers)
	l.mixed.room = sync.OnceValue(s.opts.shareOfMemory)
	l.startDepth()
	return l
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
	l.intoCleared = l.sample
	if overwrites(s.ds) {
		return l
	}
	l.mustClear = true
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

// setQuota implements crewHooks.
func (l *engine) setQuota(workers int) {
	l.ring.SetQuota(workers)
	l.pace.Share(workers)
}

// isOver implements crewHooks.
func (l *engine) isOver() bool { return l.ring.Stopped() }

// now returns the loader's age in nanoseconds, and never 0. Reading the monotonic clock alone
// takes half as long as time.Now.
func (l *engine) now() int64 { return int64(time.Since(l.born)) + 1 }
