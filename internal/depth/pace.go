package depth

import (
	"sync/atomic"
	"time"
)

// A Pace measures how fast samples are loaded, and decides how a batch is divided among workers: finely
// enough that they share it evenly, and coarsely enough that claiming costs little compared with loading.
// Any goroutine may call its methods.
type Pace struct {
	Batch     int          // places per batch; set before Share
	first     atomic.Int32 // places per claim while perSample is unknown
	perSample atomic.Int64 // nanoseconds, a running mean; 0 while unknown
}

const (
	claimTime  = 20 * time.Microsecond // a claim costs about 0.1 µs
	timingCost = 2 * time.Microsecond  // if loading takes less, only some claims are timed
	timeOneIn  = 32
	switching  = 10 * time.Microsecond // many times the cost of a switch between goroutines
	fromMemory = 50 * time.Microsecond // a sample that takes longer may come from a file
)

// Share sets how many workers share a batch.
func (p *Pace) Share(workers int) { p.first.Store(int32(max(1, p.Batch/max(1, 4*workers)))) }

// PerBatch returns the work in a batch, or 0 while it is unknown.
func (p *Pace) PerBatch() time.Duration {
	return time.Duration(p.perSample.Load()) * time.Duration(p.Batch)
}

// Computes reports whether workers seldom wait for anything and a batch is worth a switch between
// goroutines.
func (p *Pace) Computes() bool {
	return time.Duration(p.perSample.Load()) <= fromMemory && p.PerBatch() > switching
}

// Outlasts reports whether n places take so long that a switch between goroutines costs next to nothing
// beside them.
func (p *Pace) Outlasts(n int) bool { return p.perSample.Load()*int64(n) >= int64(2*claimTime) }

// Claim returns how many places a worker claims at once.
func (p *Pace) Claim() int {
	per := p.perSample.Load()
	if per == 0 {
		return int(p.first.Load())
	}
	return int(max(1, min(int64(claimTime)/per, int64(p.Batch))))
}

// Timed reports whether to time a claim of n places. untimed counts a worker's claims since the last one
// that was timed.
func (p *Pace) Timed(untimed *int, n int) bool {
	if *untimed++; *untimed < timeOneIn && p.perSample.Load() != 0 && p.perSample.Load()*int64(n) < int64(timingCost) {
		return false
	}
	*untimed = 0
	return true
}

// Took records how long n places took. It doesn't matter if concurrent updates of the mean are lost.
func (p *Pace) Took(d time.Duration, n int) {
	per := max(1, int64(d)/int64(n))
	if old := p.perSample.Load(); old != 0 {
		per = old + (per-old)/8
	}
	p.perSample.Store(max(1, per))
}
