// Package watch gives up calls of the program's code that take too long.
//
// A [Clock] shows the calls of one goroutine, its owner, to other goroutines. A [Watchdog] looks at many
// clocks:
//
//	owner       idle ──Begin──► running ──Pause──► paused
//	              ▲                │  ▲               │
//	              └──────End───────┘  └────Resume─────┘
//	others      running or paused ──Look──► held ──► as it was
//	                                          └────► lost, for ever
//
// While a goroutine looks at a call, the call can't end: if it returns, the owner waits. So whatever the
// owner changes only between calls stays unchanged during the look. If the call is given up, the owner
// learns of that before it changes anything.
package watch

import "time"

// A state says what the owner of a Clock is doing.
type state uint64

const (
	idle    state = iota // no call is under way
	running              // a call is under way, since then
	paused               // a call is under way, but the time since then doesn't count as its own
	held                 // a goroutine is looking at the call
	lost                 // the call was given up: the clock is no longer used

	stateBits = 3
)

// pack puts a state and the time of its beginning into one word.
func pack(s state, since int64) uint64 { return uint64(since)<<stateBits | uint64(s) }

func stateOf(word uint64) state { return state(word & (1<<stateBits - 1)) }
func sinceOf(word uint64) int64 { return int64(word >> stateBits) }

// unknown is never the word of a Clock.
const unknown = 1<<stateBits - 1

// A Clock times the calls of its owner. Only the owner calls Begin, End, Pause, Resume and Lost, in an
// order that the drawing allows. Times are nanoseconds of a clock of the owner's choice, from 0 on; if a
// Watchdog looks at the Clock, they are the Watchdog's. The zero value is ready.
type Clock struct {
	word atomicUint64
	mu   mutex // held as long as the state is held, and a little longer

	own   uint64 // value of word, as far as the owner knows
	parts int    // see Begin; written before word
	used  int64  // how much time a call had used when it was paused
}

// Begin records that a call begins at now. The call may take the timeout multiplied by parts.
func (c *Clock) Begin(now int64, parts int) {
	c.parts, c.own = parts, pack(running, now)
	c.word.Store(c.own)
}

// End records that the call has returned, if one is under way. It returns false if the call was given up.
func (c *Clock) End() bool {
	for !c.word.CompareAndSwap(c.own, 0) {
		if !c.settle() {
			return false
		}
	}
	c.own = 0
	return true
}

// Pause records that the time from now on doesn't count as the call's own.
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

// Resume ends the pause. It returns false if the call was given up.
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

// settle waits until nobody looks at the call. It returns false if the call was given up.
func (c *Clock) settle() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.own = c.word.Load(); stateOf(c.own) == lost {
		c.own = unknown
	}
	return !c.Lost()
}

// notAfter sets the beginning of the current call to now, if it is later.
func (c *Clock) notAfter(now int64) {
	if w := c.word.Load(); isOn(w) && sinceOf(w) > now {
		c.word.CompareAndSwap(w, pack(stateOf(w), now)) // unless the call has returned
	}
}

// isOn reports whether a call is under way and nobody is looking at it.
func isOn(word uint64) bool { return stateOf(word) == running || stateOf(word) == paused }

// A Call describes a call that is under way.
type Call struct {
	Since  int64 // when the call began or, if it is paused, when the pause began
	Paused bool
	parts  int
}

// pauseTime is the longest pause, as a multiple of the timeout.
const pauseTime = 10

// isLate reports whether the call, or its pause, takes too long.
func (c Call) isLate(now int64, timeout time.Duration) bool {
	most := int64(c.parts)
	if c.Paused {
		most = pauseTime
	}
	return (now-c.Since)/most >= int64(timeout)
}

// Since returns since when a call, or its pause, has been under way. It returns false if none is, or if a
// goroutine is looking at it.
func (c *Clock) Since() (since int64, ok bool) {
	w := c.word.Load()
	return sinceOf(w), isOn(w)
}

// Look calls f if a call is under way; the call's state doesn't change meanwhile. If f returns true, the
// call is given up, and Look returns true. f must neither call the Clock nor wait for its owner.
func (c *Clock) Look(f func(Call) (giveUp bool)) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.word.Load()
	if !isOn(w) || !c.word.CompareAndSwap(w, pack(held, 0)) {
		return false // the call has returned
	}
	call := Call{Since: sinceOf(w), Paused: stateOf(w) == paused, parts: c.parts}
	givenUp := f(call)
	if givenUp {
		w = pack(lost, 0)
	}
	c.word.Store(w)
	return givenUp
}
