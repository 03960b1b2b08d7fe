// Package durations adds up how long things take.
package durations

import (
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
)

// A Stopwatch adds up how long something was under way.
type Stopwatch struct {
	mu    sync.Mutex
	total time.Duration // guarded by mu; without what is under way
	since time.Time     // guarded by mu; zero if nothing is under way
}

// Start records that something begins.
func (s *Stopwatch) Start() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.since = time.Now()
}

// Stop records that it has ended.
func (s *Stopwatch) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total, s.since = s.total+time.Since(s.since), time.Time{}
}

// Shown returns the time so far.
func (s *Stopwatch) Shown() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.since.IsZero() {
		return s.total
	}
	return s.total + time.Since(s.since)
}

// A Histogram counts durations in bins of 1/8 of a power of two, which are
// at most 12.5 % wide.
type Histogram [64 << 3]atomic.Int64

// Add counts a duration n times. Any goroutine may call it.
func (h *Histogram) Add(d time.Duration, n int) {
	h[binOf(uint64(max(d, 0)))].Add(int64(n))
}

// binOf returns the bin of a duration: its highest bit, and the three below.
func binOf(ns uint64) int {
	if ns < 16 {
		return int(ns)
	}
	top := bits.Len64(ns) - 1
	return top<<3 | int(ns>>(top-3))&7
}

// middleOf returns the middle of a bin.
func middleOf(bin int) time.Duration {
	if bin < 16 {
		return time.Duration(bin)
	}
	top, low := bin>>3, bin&7
	return time.Duration(16+2*low+1) << top >> 4
}

// Quantile returns the duration that a share q of the durations don't exceed, within 10 %; it returns 0
// if none was counted.
func (h *Histogram) Quantile(q float64) time.Duration {
	var all, seen int64
	for i := range h {
		all += h[i].Load()
	}
	for i := range h {
		if seen += h[i].Load(); seen > 0 && float64(seen) >= q*float64(all) {
			return middleOf(i)
		}
	}
	return 0
}
