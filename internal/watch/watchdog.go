package watch

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// A Watchdog gives up calls that take longer than a timeout. Time in which the process was stopped, for
// example by docker pause or a closed laptop lid, doesn't count: the watchdog's clock stops then.
type Watchdog struct {
	timeout time.Duration
	tick    time.Duration // time between two looks
	began   time.Time
	looked  atomic.Int64 // when Serve looked last, in nanoseconds since began
	missed  atomic.Int64 // nanoseconds in which the process was stopped
	away    atomic.Int32 // calls that were given up and haven't returned

	mu      sync.Mutex
	watched []watched // guarded by mu
	round   []watched // used by Serve: the clocks that it looks at
}

type watched struct {
	clock *Clock
	late  func() (giveUp bool)
}

// New makes a Watchdog.
func New(timeout time.Duration) *Watchdog {
	return &Watchdog{timeout: timeout, tick: max(timeout/8, time.Millisecond), began: time.Now()}
}

// Timeout returns how long one part of a call may take. It returns 0, no timeout, for a nil Watchdog.
func (d *Watchdog) Timeout() time.Duration {
	if d == nil {
		return 0
	}
	return d.timeout
}

// Now returns the time for Clocks. Reading the monotonic clock alone takes half as long as time.Now.
func (d *Watchdog) Now() int64 { return int64(time.Since(d.began)) - d.missed.Load() }

// overdue returns by how much the next look is late, or 0 if it is late by less than a tick, which proves
// nothing.
func (d *Watchdog) overdue() time.Duration {
	late := time.Since(d.began) - time.Duration(d.looked.Load()) - d.tick
	if late < d.tick {
		return 0
	}
	return late
}

// Watch looks at a Clock, now and until Unwatch, or until a call is given up. late is called, within
// Look, when a call takes too long, and returns whether to give it up. late may call Watch and Unwatch.
// The owner of a call that was given up calls Back once it has learnt of that.
func (d *Watchdog) Watch(c *Clock, late func() (giveUp bool)) {
	w := watched{c, late}
	d.mu.Lock()
	d.watched = append(d.watched, w)
	d.mu.Unlock()
	if d.overdue() == 0 { // else Serve must first find out how long the process was stopped
		d.look(w, d.Now())
	}
}

// Unwatch ends Watch, if it hasn't ended.
func (d *Watchdog) Unwatch(c *Clock) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if i := slices.IndexFunc(d.watched, func(w watched) bool { return w.clock == c }); i >= 0 {
		d.watched = slices.Delete(d.watched, i, i+1)
	}
}

// Away returns how many calls were given up and haven't returned. It returns 0 for a nil Watchdog.
func (d *Watchdog) Away() int {
	if d == nil {
		return 0
	}
	return int(d.away.Load())
}

// Back records that a call that was given up has returned.
func (d *Watchdog) Back() { d.away.Add(-1) }

// Serve looks at the clocks until done is closed. Nothing is given up unless it runs.
func (d *Watchdog) Serve(done <-chan struct{}) {
	timer := time.NewTimer(d.tick)
	defer timer.Stop()
	for {
		d.looked.Store(int64(time.Since(d.began)))
		select {
		case <-done:
			return
		case <-timer.C:
		}
		d.lookAtAll()
		timer.Reset(d.tick)
	}
}

func (d *Watchdog) lookAtAll() {
	d.missed.Add(int64(d.overdue()))
	d.mu.Lock()
	d.round = append(d.round[:0], d.watched...)
	d.mu.Unlock()
	now := d.Now()
	for _, w := range d.round {
		d.look(w, now)
	}
	clear(d.round)
}

func (d *Watchdog) look(w watched, now int64) {
	w.clock.notAfter(now) // for a call that began when the process went on, before this was noticed
	if since, ok := w.clock.Since(); !ok || now-since < int64(d.timeout) {
		return
	}
	givenUp := w.clock.Look(func(call Call) bool {
		if !call.isLate(now, d.timeout) || !w.late() {
			return false
		}
		d.away.Add(1)
		return true
	})
	if givenUp {
		d.Unwatch(w.clock)
	}
}
