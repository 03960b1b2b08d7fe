// Package watch gives up calls of the program's code that take too long.
//
// A [Clock] is what others see of the calls that one goroutine makes, its owner. A [Watchdog] looks
// at many clocks:
//
//	owner       idle ──Begin──► running ──Pause──► paused
//	              ▲                │  ▲               │
//	              └──────End───────┘  └────Resume─────┘
//	others      running or paused ──Look──► held ──► as it was
//	                                          └────► lost, for ever
//
// Whoever looks has the call to itself: an owner whose call returns meanwhile waits. So all that the
// owner changes only between its calls stands still, and the owner of a call that was given up
// learns of that before it changes anything.
package watch

import "time"

// A state is what the owner of a Clock does.
type state uint64

const (
	idle    state = iota // no call is under way
	running              // a call is, since then
	paused               // a call is, but what it has been doing since then isn't its own time
	held                 // somebody looks at the call
	lost                 // the call was given up: the clock isn't used any more

	stateBits = 3
)

// pack makes one word of a state and the time since when it lasts.
func pack(s state, since int64) uint64 { return uint64(since)<<stateBits | uint64(s) }

func stateOf(word uint64) state { return state(word & (1<<stateBits - 1)) }
func sinceOf(word uint64) int64 { return int64(word >> stateBits) }

// unknown is no word of a Clock.
const unknown = 1<<stateBits - 1

// A Clock times the calls of its owner. Begin, End, Pause, Resume and Lost are the owner's, in an
// order that the drawing allows. Times are nanoseconds of a clock of the owner's choice, from 0 on;
// those of a Clock that a Watchdog looks at are the Watchdog's. The zero value is ready.
type Clock struct {
	word atomicUint64
	mu   mutex // held as long as the state is held, and a little longer

	own   uint64 // word, as far as the owner knows
	parts int    // see Begin; written before word
	used  int64  // how much time a call had used when it was paused; written before word
}

// Begin notes that a call begins at now, which may take the time of so many.
func (c *Clock) Begin(now int64, parts int) {
	c.parts, c.own = parts, pack(running, now)
	c.word.Store(c.own)
}

// End notes that the call has returned, if one is under way. It reports false if it was given up.
func (c *Clock) End() bool {
	for !c.word.CompareAndSwap(c.own, 0) {
		if !c.settle() {
			return false
		}
	}
	c.own = 0
	return true
}

// Pause notes that what the call does from now on isn't its own time.
func (c *Clock) Pause(now int64) {
	for {
		c.used = now - sinceOf(c.own)
		if c.word.CompareAndSwap(c.own, pack(paused, now)) {
			c.own = pack(paused, now)
			return
		}
		if !c.settle() {
			return
		}
	}
}

// Resume ends the pause. It reports false if the call was given up.
func (c *Clock) Resume(now int64) bool {
	resumed := pack(running, now-c.used)
	for !c.word.CompareAndSwap(c.own, resumed) {
		if !c.settle() {
			return false
		}
	}
	c.own = resumed
	return true
}

// Lost reports whether the owner knows that its call was given up.
func (c *Clock) Lost() bool { return c.own == unknown }

// settle waits until nobody looks at the call. It reports false if it was given up.
func (c *Clock) settle() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.own = c.word.Load(); stateOf(c.own) == lost {
		c.own = unknown
	}
	return !c.Lost()
}

// notAfter sees to it that what is under way has begun at now or before.
func (c *Clock) notAfter(now int64) {
	if w := c.word.Load(); isOn(w) && sinceOf(w) > now {
		c.word.CompareAndSwap(w, pack(stateOf(w), now)) // or it has returned
	}
}

// isOn reports whether a call is under way that nobody looks at.
func isOn(word uint64) bool { return stateOf(word) == running || stateOf(word) == paused }

// Idle reports whether no call is under way.
func (c *Clock) Idle() bool { return c.word.Load() == 0 }

// A Call is what is seen of a call that is under way.
type Call struct {
	Since  int64 // when it began or, if it is paused, the pause
	Paused bool
	parts  int
	used   int64 // before the pause, if it is paused
}

// Took returns how long the call has been running, without pauses that are over.
func (c Call) Took(now int64) time.Duration { return time.Duration(now - c.Since + c.used) }

// pauseTime is how many times the timeout a pause may last.
const pauseTime = 10

// isLate reports whether the call, or its pause, takes too long.
func (c Call) isLate(now int64, timeout time.Duration) bool {
	most := int64(c.parts)
	if c.Paused {
		most = pauseTime
	}
	return (now-c.Since)/most >= int64(timeout)
}

// Since returns since when a call, or its pause, has been under way; false if none is, or if
// somebody looks at it.
func (c *Clock) Since() (since int64, ok bool) {
	w := c.word.Load()
	return sinceOf(w), isOn(w)
}

// Look calls f if a call is under way, which stands still meanwhile. If f returns true, the call is
// given up, and Look returns true. f may neither call the Clock nor wait for its owner.
func (c *Clock) Look(f func(Call) (giveUp bool)) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.word.Load()
	if !isOn(w) || !c.word.CompareAndSwap(w, pack(held, 0)) {
		return false // it has returned
	}
	call := Call{Since: sinceOf(w), Paused: stateOf(w) == paused, parts: c.parts}
	if call.Paused {
		call.used = c.used
	}
	givenUp := f(call)
	if givenUp {
		w = pack(lost, 0)
	}
	c.word.Store(w)
	return givenUp
}
