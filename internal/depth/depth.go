// Package depth decides how many batches a loader has open beyond the fewest that it needs.
//
// The number of these extra batches follows the need for them. Time counts as lost while workers are
// idle although training waits, or has waited lately. The cause may be a slow sample that delays the
// next batch, or a step that pauses. An extra batch costs memory, so lost time must pay for it:
//
//   - Once as much time has been lost as it takes to fill new memory with a batch, one more batch is
//     paid for. An eighth of all time may be lost without effect.
//   - If more than half of the open batches were ready each time that training asked, for 320 batches in
//     a row, or for twice as many as are open if that is more, half of the extra batches are given back.
//     After half as many further batches, half of the rest are given back, and so on. (With 64 instead
//     of 320, a loader that stalls once in a hundred batches would pay for the same batches again and
//     again.)
package depth

import (
	"sync/atomic"
	"time"
)

const (
	price  = 2       // nanoseconds per byte: what new pages cost on a virtual machine
	free   = 1. / 8  // share of all time that may be lost without effect
	memory = 1. / 32 // weight of the latest batch in late, which so covers about 32 batches
	often  = 1. / 8  // share of batches that weren't loaded above which training waits
	steady = 320     // least value of calm at which extra batches are given back
)

// A Policy records what runs have shown about the depth that a loader needs. It is ready after Reset.
// Times are nanoseconds of a clock that never shows 0.
//
// Any goroutine may call Extra, Waits, IsIdle, Idle and NotIdle; only one at a time may call the other
// methods.
type Policy struct {
	cost  int64 // price of an extra batch
	extra atomic.Int32
	waits atomic.Bool

	since atomic.Int64 // since when workers have been idle; 0: they aren't
	owed  atomic.Int64 // how much more time must be lost until a batch is paid for

	reckoned int64   // when owed was last computed
	late     float64 // share of the last batches that weren't loaded when training asked; later batches count more
	calm     int     // successive batches at which half of the open batches were ready
}

// Reset forgets everything, and sets the number of extra batches. bytes is the size of a batch.
func (p *Policy) Reset(extra, bytes int) {
	p.cost = price * int64(bytes)
	p.extra.Store(int32(extra))
	p.waits.Store(false)
	p.since.Store(0)
	p.owed.Store(p.cost)
	p.late, p.calm = 0, 0
}

// Extra returns how many extra batches may be open.
func (p *Policy) Extra() int { return int(p.extra.Load()) }

// SetExtra sets Extra.
func (p *Policy) SetExtra(n int) { p.extra.Store(int32(n)) }

// Waits reports whether training has waited for an eighth of the last batches.
func (p *Policy) Waits() bool { return p.waits.Load() }

// Idle records that workers are idle, so that time is lost from now on, and returns how much must be lost
// until a batch is paid for. It returns false if they were idle already.
func (p *Policy) Idle(now int64) (left time.Duration, first bool) {
	return time.Duration(p.owed.Load()), p.since.CompareAndSwap(0, now)
}

// NotIdle undoes Idle.
func (p *Policy) NotIdle(now int64) { p.since.CompareAndSwap(now, 0) }

// IsIdle reports whether time is being lost.
func (p *Policy) IsIdle() bool { return p.since.Load() != 0 }

// Busy ends a loss of time without counting it.
func (p *Policy) Busy() { p.since.Store(0) }

// Reckon ends a loss of time and counts it. It returns how much more must be lost until a batch is paid
// for.
func (p *Policy) Reckon(now int64) (left time.Duration) {
	lost := int64(0)
	if since := p.since.Swap(0); since != 0 {
		lost = now - since
	}
	owed := p.owed.Load() + int64(free*float64(now-p.reckoned-lost))
	owed = max(0, min(owed, p.cost)-lost)
	p.owed.Store(owed)
	p.reckoned = now
	return time.Duration(owed)
}

// Pay subtracts the price of a batch from the time that was lost.
func (p *Policy) Pay() { p.owed.Store(p.cost) }

// Asked records whether a batch wasn't loaded when training asked for it.
func (p *Policy) Asked(late bool) {
	now := 0.0
	if late {
		now = 1
	}
	p.late += (now - p.late) * memory
	if waits := p.late > often; waits != p.waits.Load() {
		p.waits.Store(waits)
	}
}

// Forget forgets how often batches weren't loaded, because that says nothing about another number of
// workers.
func (p *Policy) Forget() {
	p.late = 0
	p.waits.Store(false)
}

// Surplus returns how many extra batches aren't needed, once training has asked for a batch. ready
// reports whether half of the open batches were ready then.
func (p *Policy) Surplus(ready bool, open int) int {
	extra := p.Extra()
	if p.calm++; extra == 0 || !ready {
		p.calm = 0
	}
	if p.calm < max(steady, 2*open) {
		return 0
	}
	p.calm /= 2
	return extra - extra/2
}
