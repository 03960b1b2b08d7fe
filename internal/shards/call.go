package shards

import (
	"slices"

	"github.com/nwt-go/nwt/internal/callctx"
	"github.com/nwt-go/nwt/internal/watch"
)

// A call is the part of a shardReader's call of the stream, or of a Reader, that the set can see.
type call struct {
	clock watch.Clock
	lost  chan struct{} // closed when the call under way is given up

	// was is the shardReader's progress when the call began; its fault is not nil if the call is Close.
	// It is written before the clock begins.
	was progress
}

// await receives what the shardReader's goroutine sends, or returns that it has closed the channel. While
// await waits, the goroutine's call is given up if it takes longer than the timeout; then answered is
// false.
func await[R, T any](c *shardReader[R], from <-chan T) (got T, ok, answered bool) {
	dog := c.set.group.Watchdog
	if dog == nil {
		got, ok = <-from
		return got, ok, true
	}
	dog.Watch(&c.call.clock, func() bool {
		if len(from) > 0 {
			return false // the call may take all its time
		}
		close(c.call.lost)
		return true
	})
	defer dog.Unwatch(&c.call.clock)
	select {
	case got, ok = <-from:
	case <-c.call.lost:
	}
	if ok {
		return got, true, true
	}
	select {
	case <-c.call.lost:
		return got, false, false
	default:
		return got, false, true
	}
}

// replace returns a shardReader that continues in place of c, whose call was given up. It begins with the
// progress that c had made when the call began, which c no longer changes. c keeps its goroutine, its records and
// its Reader, and closes the Reader if the call returns; what the call has read is dropped.
func (c *shardReader[R]) replace() *shardReader[R] {
	next := newShardReader(c.set, c.shards)
	next.due, next.size, next.counted = c.due-c.taken, c.size, c.counted
	next.progress = c.call.was
	err := callctx.NoAnswer(c.ctx)
	switch next.fault {
	case nil: // a call of Open, Next or Skip
		next.fault = err
	case errAgain: // a Close before the shard is opened again
		next.fault = nil
		fallthrough
	default: // a Close after the fault that has ended the shard
		c.set.group.notClosed(next.shard, err)
	}
	c.cancel(err)
	return next
}

// timed reports whether calls of the stream and its readers can be given up.
func (c *shardReader[R]) timed() bool { return c.set.group.Ahead && c.set.group.Watchdog != nil }

// begins records that a call of the stream or of a reader begins.
func (c *shardReader[R]) begins() {
	if !c.timed() || !c.call.clock.End() {
		return // what the abandoned call has read is dropped
	}
	c.call.was = c.progress
	c.call.was.unread = slices.Clip(c.unread)
	c.call.clock.Begin(c.set.group.Watchdog.Now(), 1)
}

// returned records that the call has returned.
func (c *shardReader[R]) returned() {
	if c.timed() {
		c.call.clock.End()
	}
}

// comesBack is deferred in a goroutine that has made calls, before the shardReader is handed over.
func (c *shardReader[R]) comesBack() {
	if c.call.clock.Lost() {
		c.set.group.Watchdog.Back()
	}
}

// close ends the shardReader and closes what it has open.
func (c *shardReader[R]) close() {
	if c.full == nil {
		if c.cancel != nil {
			c.cancel(nil)
		}
		c.here((*shardReader[R]).shut)
		return
	}
	c.cancel(nil)
	await(c, c.done)
}

// takeNow does what take does, for a shardReader that doesn't read ahead yet.
func (s *set[R]) takeNow(i int, r **Item[R]) bool {
	if !s.group.Ahead {
		return s.readers[i].next(*r)
	}
	s.here(i, func(c *shardReader[R]) {
		next := s.newItem() // a call that is given up keeps it
		if c.got = nil; c.next(next) {
			c.got = next
		}
	})
	if got := s.readers[i].got; got != nil {
		*r = got
		return true
	}
	return false
}

// here runs f, which calls a Reader, for shardReader number i, which doesn't read ahead yet.
// If the call takes too long, f runs again for the shardReader that replaces this one.
func (s *set[R]) here(i int, f func(*shardReader[R])) {
	for !s.readers[i].here(f) {
		s.readers[i] = s.readers[i].replace()
	}
}

// here runs f for the shardReader. If the consumer reads, here calls f itself; otherwise f runs in its
// own goroutine, and here returns false if a call in it was given up.
func (c *shardReader[R]) here(f func(*shardReader[R])) (answered bool) {
	if !c.set.group.Ahead {
		f(c)
		return true
	}
	done := make(chan struct{})
	go c.apart(f, done)
	_, _, answered = await(c, done)
	return answered
}

// apart runs f, and closes done.
func (c *shardReader[R]) apart(f func(*shardReader[R]), done chan struct{}) {
	finished := false
	defer func() {
		c.endsWith(finished)
		c.comesBack()
		close(done)
	}()
	f(c)
	if c.call.clock.Lost() {
		c.shut()
	}
	finished = true
}
