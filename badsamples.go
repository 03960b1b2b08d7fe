package nwt

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/nwt-go/nwt/internal/ring"
	"github.com/nwt-go/nwt/internal/usercall"
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

// any reports whether a sample is bad.
func (f *faults) any() bool { return f.first.Load() < math.MaxInt32 }

func (f *faults) add(place int, err *LoadError) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.list = append(f.list, fault{place, err})
	f.first.Store(min(f.first.Load(), int32(place)))
}

// has reports whether a place is known to be bad.
func (f *faults) has(place int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.ContainsFunc(f.list, func(one fault) bool { return one.place == place })
}

// sorted returns the list in order of the places. The batch is loaded.
func (f *faults) sorted() []fault {
	if len(f.list) > 1 {
		slices.SortFunc(f.list, func(x, y fault) int { return cmp.Compare(x.place, y.place) })
	}
	return f.list
}

// fail records why the sample of a place is bad, while no hand loads it.
func (b *Batch) fail(place, worker int, err error, stack []byte) {
	if b.records != nil {
		err = b.records[place].Of(err)
	}
	b.bad.add(place, &LoadError{Index: b.indices[place], Position: b.position(place), Epoch: b.epoch, Worker: worker, Err: err, Stack: stack})
}

// faulty remembers bad samples that were left out.
type faulty struct {
	mu    sync.Mutex
	count int          // how many there were in all
	list  []*LoadError // the first of them, up to maxRemembered
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

// A tally counts bad samples against the error budget. It belongs to a run, and sees
// batches in the order of their delivery. With WithUnordered, batches of several
// epochs may alternate.
type tally struct {
	bad map[int]int // by epoch; epochs that ended long ago are deleted
}

// count adds a bad sample of an epoch and returns how many the epoch now has.
func (t *tally) count(epoch int) int {
	if t.bad == nil {
		t.bad = make(map[int]int)
	}
	t.bad[epoch]++
	if len(t.bad) > 2*ring.Capacity { // at most so many batches, and so epochs, are open at once
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
		f.err.origin = origin(b.l.ds, f.err.Index)
		if endsEpoch(f.err) {
			return f.err
		}
		if bad <= budget {
			b.l.leftOut(f.err, bad)
			b.l.counters.faulty.add(f.err)
			continue
		}
		if budget == 0 {
			return f.err
		}
		return fmt.Errorf("nwt: %d bad samples in epoch %d, WithErrorBudget allows %d; the last: %w", bad, b.epoch, budget, usercall.Cause(f.err))
	}
	if b.transformErr != nil {
		return b.transformErr
	}
	if err := b.leaveOutBad(); err != nil {
		return err
	}
	if len(list) > 0 && b.size == 0 && b.l.opts.world > 1 {
		return fmt.Errorf("nwt: no sample of batch %d is left, and the other ranks would wait for it; the last: %w", b.number, usercall.Cause(list[len(list)-1].err))
	}
	return nil
}

// endsEpoch reports whether an error is the source's and not the sample's, so that no budget covers it: see
// WithErrorBudget.
func endsEpoch(err error) bool {
	e, ok := errors.AsType[interface {
		error
		EndsEpoch() bool
	}](err)
	return ok && e.EndsEpoch()
}

// leaveOutBad leaves the bad samples out, and moves the batch to memory that no call that was
// given up can write to. The batch must be loaded.
func (b *Batch) leaveOutBad() error {
	if b.leftOut {
		return nil
	}
	b.leftOut = true
	list := b.bad.sorted()
	if b.shared() || b.spare != nil {
		if err := b.moveOut(); err != nil {
			return err
		}
	}
	if len(list) > 0 {
		b.leaveOut(list)
	}
	return nil
}

// leaveOut closes the gaps of the bad samples, which are listed in order.
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

// leftOut logs that a sample is left out. While tuning it logs each sample once; in an epoch it logs less
// and less often: numbers 1 … 10, 20 … 100, 200 and so on.
func (l *engine) leftOut(err *LoadError, bad int) {
	if l.tunes && !l.once.First(err.Index) {
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
	log.Warn("nwt: a bad sample is left out", "during", l.during(), "index", err.Index, "position", err.Position,
		"epoch", err.Epoch, "worker", err.Worker, "bad", bad, "budget", l.opts.maxBad, "error", err.Err)
}
