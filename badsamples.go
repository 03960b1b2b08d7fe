package nwt

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"sync/atomic"
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
