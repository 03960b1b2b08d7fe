package nwt

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/nwt-go/nwt/internal/guard"
	"github.com/nwt-go/nwt/internal/ring"
)

// faults are the samples of a batch that couldn't be loaded.
type faults struct {
	// first is the lowest place among them: if no bad sample is allowed, workers
	// needn't load the places after it. Written under mu.
	first atomic.Int32
	mu    sync.Mutex
	list  []fault // guarded by mu until the batch is loaded
}

type fault struct {
	place int
	err   *LoadError
}

func (f *faults) reset() {
	f.first.Store(math.MaxInt32)
	f.list = f.list[:0]
}

// any tells whether a sample is bad.
func (f *faults) any() bool { return f.first.Load() < math.MaxInt32 }

func (f *faults) add(place int, err *LoadError) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.list = append(f.list, fault{place, err})
	f.first.Store(min(f.first.Load(), int32(place)))
}

// A tally counts bad samples against the error budget. It belongs to a run, and sees
// batches in the order of their delivery. With WithUnordered, batches of several
// epochs may alternate.
type tally struct {
	bad map[int]int // by epoch; those that are long over are deleted
}

// count adds a bad sample of an epoch and returns how many that makes.
func (t *tally) count(epoch int) int {
	if t.bad == nil {
		t.bad = make(map[int]int)
	}
	t.bad[epoch]++
	if len(t.bad) > 2*ring.Capacity { // no more batches, so no more epochs, are open at once
		maps.DeleteFunc(t.bad, func(e, _ int) bool { return e < epoch-ring.Capacity })
	}
	return t.bad[epoch]
}

// admit leaves the bad samples out of a loaded batch. If they exceed the error budget, it
// returns the error of the first sample beyond it.
func (t *tally) admit(b *Batch) error {
	if b.failure != nil {
		return b.failure
	}
	list := b.bad.sorted()
	budget := b.l.opts.maxBad
	for _, f := range list {
		bad := t.count(b.epoch)
		if bad <= budget {
			b.l.leftOut(f.err, bad)
			b.l.faulty.add(f.err)
			continue
		}
		if budget == 0 {
			return f.err
		}
		return fmt.Errorf("nwt: %d bad samples in epoch %d, WithErrorBudget allows %d; the last: %w", bad, b.epoch, budget, guard.Cause(f.err))
	}
	if b.finishErr != nil {
		return b.finishErr
	}
	if err := b.leaveOutBad(); err != nil {
		return err
	}
	if len(list) > 0 && b.size == 0 && b.l.order.world > 1 {
		return fmt.Errorf("nwt: no sample of batch %d is left, and the other ranks would wait for it; the last: %w", b.index, guard.Cause(list[len(list)-1].err))
	}
	return nil
}

// sorted is the list in order of the places. The batch is loaded.
func (f *faults) sorted() []fault {
	if len(f.list) > 1 {
		slices.SortFunc(f.list, func(x, y fault) int { return cmp.Compare(x.place, y.place) })
	}
	return f.list
}

// leaveOutBad leaves the bad samples out, and moves the batch to memory that calls which
// were given up can't write to. The batch must be loaded.
func (b *Batch) leaveOutBad() error {
	if b.leftOut {
		return nil
	}
	b.leftOut = true
	list := b.bad.sorted()
	if b.shared() || b.refuge != nil {
		if err := b.moveOut(); err != nil {
			return err
		}
	}
	if len(list) > 0 {
		b.leaveOut(list)
	}
	return nil
}

// leaveOut closes the gaps that bad samples leave, given in order.
func (b *Batch) leaveOut(list []fault) {
	kept := list[0].place
	for i, f := range list {
		end := b.size
		if i+1 < len(list) {
			end = list[i+1].place
		}
		from := f.place + 1
		b.slot.copyPlaces(kept, b.slot, from, end)
		kept += end - from
	}
	b.resize(kept)
}

// What a loader is doing, in the words of a warning.
const (
	whileLoading = "loading"
	whileTuning  = "tuning"
)

// An onceLog knows what was logged, for all loaders of a source: the loaders that tuning makes
// visit the same samples again and again.
type onceLog struct {
	during string // whileLoading or whileTuning

	mu   sync.Mutex
	told map[any]bool // guarded by mu
}

// isNews notes a thing, and tells whether it is the first time.
func (o *onceLog) isNews(thing any) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.told == nil {
		o.told = make(map[any]bool)
	}
	if o.told[thing] || len(o.told) == maxRemembered {
		return false
	}
	o.told[thing] = true
	return true
}

// leftOut logs that a sample is left out: while tuning, once for each sample.
func (l *Loader) leftOut(err *LoadError, bad int) {
	if l.once.during == whileTuning && !l.once.isNews(err.Index) {
		return
	}
	l.opts.log.Warn("nwt: a bad sample is left out", "during", l.once.during, "index", err.Index, "position", err.Position,
		"epoch", err.Epoch, "worker", err.Worker, "bad", bad, "budget", l.opts.maxBad, "error", err.Err)
}

// logFailedTogether logs that a LoadBatch has failed, the first time. A bad sample is reported
// again when Load fails for it. But if only LoadBatch fails and Load doesn't, loading would be
// slow, and without this log nobody would know why.
func (l *Loader) logFailedTogether(err error) {
	if l.once.isNews("LoadBatch") {
		l.opts.log.Warn("nwt: LoadBatch failed: its halves are tried, and their halves, until the bad samples are found; this is logged once", "during", l.once.during, "error", err)
	}
}

// faulty remembers bad samples that were left out.
type faulty struct {
	mu    sync.Mutex
	count int          // all of them
	list  []*LoadError // the first maxRemembered
}

const maxRemembered = 10_000

func (f *faulty) add(err *LoadError) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count++
	if len(f.list) < maxRemembered {
		f.list = append(f.list, err)
	}
}

// BadSamples is the samples that were left out so far under WithErrorBudget,
// the first 10 000 of them, in the order of delivery.
func (l *Loader) BadSamples() []*LoadError {
	l.faulty.mu.Lock()
	defer l.faulty.mu.Unlock()
	return slices.Clone(l.faulty.list)
}
