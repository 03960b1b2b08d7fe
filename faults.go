package nwt

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"

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
			b.l.said.leftOut(b.l.opts.log, f.err, bad, budget)
			b.l.faulty.add(f.err)
			continue
		}
		if budget == 0 {
			return f.err
		}
		return fmt.Errorf("nwt: %d bad samples in epoch %d, WithErrorBudget allows %d; the last: %w", bad, b.epoch, budget, reason{f.err})
	}
	if b.finishErr != nil {
		return b.finishErr
	}
	if err := b.leaveOutBad(); err != nil {
		return err
	}
	if len(list) > 0 && b.size == 0 && b.l.order.world > 1 {
		return fmt.Errorf("nwt: no sample of batch %d is left, and the other ranks would wait for it; the last: %w", b.index, reason{list[len(list)-1].err})
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

// said is what was logged about bad samples, for all loaders of a source: the loaders
// that tuning makes visit the same samples again and again.
type said struct {
	during string // whileLoading or whileTuning

	mu       sync.Mutex   // not held while a log's handler runs
	bad      map[int]bool // guarded by mu; indices of the bad samples that tuning has met
	together int          // guarded by mu; calls of LoadBatch that failed
}

// leftOut logs that a sample is left out: while tuning, once for each sample.
func (s *said) leftOut(log *slog.Logger, err *LoadError, bad, budget int) {
	if s.during == whileTuning && !s.isNews(err.Index) {
		return
	}
	log.Warn("nwt: a bad sample is left out", "during", s.during, "index", err.Index, "position", err.Position,
		"epoch", err.Epoch, "worker", err.Worker, "bad", bad, "budget", budget, "error", err.Err)
}

// isNews notes a bad sample, and tells whether it is the first time.
func (s *said) isNews(index int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bad == nil {
		s.bad = make(map[int]bool)
	}
	if s.bad[index] || len(s.bad) == maxRemembered {
		return false
	}
	s.bad[index] = true
	return true
}

// failedTogether logs that a LoadBatch has failed, the first time.
func (s *said) failedTogether(log *slog.Logger, err error) {
	s.mu.Lock()
	s.together++
	first := s.together == 1
	s.mu.Unlock()
	if first {
		log.Warn("nwt: LoadBatch failed: its halves are tried, and their halves, until the bad samples are found", "during", s.during, "error", err)
	}
}

// sum logs how often each thing happened that was logged only once. A second Close logs
// nothing.
func (s *said) sum(log *slog.Logger) {
	s.mu.Lock()
	together, bad := s.together, len(s.bad)
	s.together = 0
	s.mu.Unlock()
	if together > 1 {
		log.Warn("nwt: LoadBatch failed again and again", "during", s.during, "times", together)
	}
	if bad > 0 {
		log.Warn("nwt: bad samples were left out", "during", s.during, "samples", bad)
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
