package nwt

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/nwt-go/nwt/internal/depth"
	"github.com/nwt-go/nwt/internal/devicecopy"
	"github.com/nwt-go/nwt/internal/permute"
	"github.com/nwt-go/nwt/internal/ring"
)

// An engine does the work of a [Loader]. Its workers keep it alive, even if the program loses the Loader.
type engine struct {
	*source // its dataset, options, layout and first ordering
	load    *loading
	sizes   func(index int, sizes []int) // of a SizedDataset; nil: batches are as long as the fields allow

	seedKey uint64 // seeds Sample.Rand

	ordering atomic.Pointer[ordering] // used by the next run; a run keeps its own

	stage  *devicecopy.Stage // nil if the device is the host
	ring   *ring.Ring[Batch]
	born   time.Time              // when the loader was made: see now
	found  atomic.Pointer[Result] // nil until a tuner has found something
	tuning *tuning                // nil if nothing tunes the loader
	pool   *pool
	pace   depth.Pace

	// The consumer writes these fields with each batch. They lie apart from the fields that workers read.
	slots    slots
	counters counters

	mixed mixedMemory
	extra extraBatches

	// It belongs to the running epoch, which passes it to the next one.
	seq uint64 // sequence number of the next batch that is opened

	closing sync.Once // a second Close waits for the first
}

// newEngine makes an engine with the given number of workers.
func newEngine(s *source, workers int) *engine {
	l := &engine{source: s, load: loadingOf(s.ds, s.layout.Layout, s.opts.retry), born: time.Now(), seedKey: s.opts.seedKey()}
	l.load.strict, l.load.failed = s.opts.maxBad == 0, l.failedTogether
	if s.layout.Ragged > 0 && !s.streams() {
		l.sizes = sizesOf(s.ds)
	}
	l.ordering.Store(s.first)
	if !onHost(s.opts.device) {
		l.stage = devicecopy.New(s.opts.device, l.slotBytes, s.opts.log)
	}
	l.ring = ring.New[Batch](maxWorkers, l.stage != nil)
	l.pace.Batch = s.opts.batchSize
	l.pool = newPool(l, s.opts.timeout, workers)
	l.mixed.room = sync.OnceValue(s.opts.shareOfMemory)
	l.startDepth()
	return l
}

// ownShapes reports whether each batch has a shape of its own.
func (l *engine) ownShapes() bool { return l.sizes != nil }

// seedKey returns the key that seeds Sample.Rand.
func (o *options) seedKey() uint64 {
	if o.seed != nil {
		return permute.SeedKey(*o.seed)
	}
	return permute.SeedKey(o.shuffled)
}

// samplesOfEpoch returns how many samples an epoch of an ordering has over all ranks, or endless for a
// stream without WithEpochSamples.
func (s *source) samplesOfEpoch(o *ordering) int {
	if o.order.N == endless && s.opts.epochSamples > 0 {
		return s.opts.quota(s.opts.world) * s.opts.world
	}
	return o.order.N
}

// Workers implements [Loader.Workers].
func (l *engine) Workers() int { return int(l.pool.size.Load()) }

// resize calls [pool.resize].
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

// isOver implements poolHooks.
func (l *engine) isOver() bool { return l.ring.Stopped() }

// now returns the loader's age in nanoseconds, and never 0. Reading the monotonic clock alone
// takes half as long as time.Now.
func (l *engine) now() int64 { return int64(time.Since(l.born)) + 1 }
