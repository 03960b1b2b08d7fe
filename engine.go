package nwt

import (
	"cmp"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nwt-go/nwt/internal/depth"
	"github.com/nwt-go/nwt/internal/devicecopy"
	"github.com/nwt-go/nwt/internal/human"
	"github.com/nwt-go/nwt/internal/permute"
	"github.com/nwt-go/nwt/internal/ring"
)

// An engine does the work of a [Loader]. Its workers keep it alive, even if the program loses the Loader.
type engine struct {
	*source // its dataset, options, layout and first ordering
	how     *loading
	sizes   func(index int, sizes []int) // of a SizedDataset; nil: batches are as long as the fields allow

	seedKey uint64 // seeds Sample.Rand: by WithSeed, else by the shuffle's seed

	ordering atomic.Pointer[ordering] // used by the next run; a run keeps its own

	stage  *devicecopy.Stage // nil if the device is the host
	ring   *ring.Ring[Batch]
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

	// It belongs to the running epoch, which passes it to the next one.
	seq uint64 // sequence number of the next batch that is opened

	closing sync.Once // a second Close waits for the first
}

// newEngine makes an engine with the given number of workers.
func newEngine(s *source, workers int) *engine {
	l := &engine{source: s, how: loadingOf(s.ds, s.layout.Layout, s.opts.retry), born: time.Now(), seedKey: permute.SeedKey(*cmp.Or(s.opts.seed, &s.opts.shuffled))}
	l.how.strict, l.how.failed = s.opts.maxBad == 0, l.failedTogether
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

// failedTogether logs that a LoadMany has failed, but only the first time. A bad sample is reported
// again when Load fails for it. But if LoadMany fails and Load doesn't, loading is slow, and this log is
// the only hint.
func (l *engine) failedTogether(err error) {
	if l.once.First("LoadMany") {
		l.opts.log.Warn("nwt: LoadMany failed: its halves are tried, and their halves, until the bad samples are found; this is logged once", "during", l.during(), "error", err)
	}
}

// tellIfBegun logs, once, that an epoch begins again: the program may have forgotten to count its epochs.
func (l *engine) tellIfBegun(epoch, n int) {
	type begun struct{ epoch, n int }
	if !l.tunes && !l.once.First(begun{epoch, n}) && l.once.First("begins anew") {
		l.opts.log.Warn("nwt: a shuffled epoch begins anew, in the same order as before: count the epochs, as Epochs does", "epoch", epoch)
	}
}

// lostAgain returns the error for a record that was delivered before and now can't be read: what follows
// isn't the rest of the epoch. With an error budget it only warns, since the record may have been bad
// then too.
func (l *engine) lostAgain(epoch int, err error) error {
	if l.opts.maxBad == 0 {
		return err
	}
	l.opts.log.Warn("nwt: a record that was delivered before can't be read now: unless it was bad then, samples are lost", "epoch", epoch, "error", err)
	return nil
}

// mixing counts bytes that enter a shuffle window or, if negative, leave it. It warns when they take much
// of the memory that was left before.
func (l *engine) mixing(bytes int) {
	most := l.mixed.room()
	now := l.mixed.bytes.Add(int64(bytes))
	if float64(now) > most && float64(now-int64(bytes)) <= most && l.once.First("WithShuffleWindow") {
		l.opts.log.Warn("nwt: the records that are mixed take more than an eighth of the memory left: lower WithShuffleWindow",
			"during", l.during(), "WithShuffleWindow", l.opts.window, "bytes", human.Bytes(uint64(now)), "left", human.Bytes(uint64(most/extraShare)))
	}
}
