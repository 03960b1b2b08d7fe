package nwt

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
)

// faults are the samples of a batch that couldn't be loaded.
type faults struct {
	// first is the lowest place among them: where no bad sample is allowed,
	// workers needn't load the places after it. Written under mu.
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

func (f *faults) add(place int, err *LoadError) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.list = append(f.list, fault{place, err})
	f.first.Store(min(f.first.Load(), int32(place)))
}

// A tally counts bad samples against the error budget. It is the run's, and
// sees the batches in the order of their delivery.
type tally struct {
	epoch int
	bad   int // in this epoch
}

// admit leaves the bad samples out of a loaded batch, or tells which of them is
// one too many.
func (t *tally) admit(b *Batch) error {
	if b.failure != nil {
		return b.failure
	}
	if t.epoch != b.epoch {
		t.epoch, t.bad = b.epoch, 0
	}
	list := b.bad.list
	slices.SortFunc(list, func(x, y fault) int { return cmp.Compare(x.place, y.place) })
	budget := b.l.opts.maxBad
	for _, f := range list {
		if t.bad++; t.bad <= budget {
			b.l.opts.log.Warn("nwt: a bad sample is left out", "index", f.err.Index, "position", f.err.Position, "epoch", f.err.Epoch,
				"worker", f.err.Worker, "bad", t.bad, "budget", budget, "error", f.err.Err)
			b.l.faulty.add(f.err)
			continue
		}
		if budget == 0 {
			return f.err
		}
		return fmt.Errorf("nwt: %d bad samples in epoch %d, WithErrorBudget allows %d; the last: %w", t.bad, b.epoch, budget, f.err)
	}
	if b.shared() || len(b.refuges) > 0 {
		if err := b.moveOut(); err != nil {
			return err
		}
	}
	if len(list) == 0 {
		return nil
	}
	b.leaveOut(list)
	if b.size == 0 && b.l.order.world > 1 {
		return fmt.Errorf("nwt: no sample of batch %d is left, and the other ranks would wait for it; the last: %w", b.index, list[len(list)-1].err)
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
		for c := range b.l.layout.columns {
			c, off := &b.l.layout.columns[c], b.l.offsets[c]
			copy(b.mem[off+kept*c.size:], b.mem[off+from*c.size:off+end*c.size])
			if c.ragged >= 0 {
				copy(b.lensOf(c)[kept:], b.lensOf(c)[from:end])
			}
		}
		copy(b.indices[kept:], b.indices[from:end])
		kept += end - from
	}
	b.size = kept
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
