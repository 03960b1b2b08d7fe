package shards

import (
	"slices"
	"sync"
	"time"

	"github.com/nwt-go/nwt/internal/loadctx"
)

// A call is what the Set sees of a shardReader's call of the stream or of a Reader.
type call struct {
	mu    sync.Mutex
	since time.Time // guarded by mu; when the call under way began, zero between calls
	lost  bool      // guarded by mu; set once, when the call under way is given up

	// The shardReader's when the call began; its fault is not nil if the call is Close. Guarded
	// by mu.
	was progress
}

// await receives what the shardReader's goroutine sends, or that it closes the channel. It
// gives up the call that the goroutine is in, and reports that there is no answer,
// once the call takes longer than the timeout.
func await[R, T any](c *shardReader[R], from <-chan T) (got T, ok, answered bool) {
	if c.set.group.Timeout == 0 {
		got, ok = <-from
		return got, ok, true
	}
	for {
		c.call.mu.Lock()
		left := c.left(len(from) > 0)
		c.call.mu.Unlock()
		if left <= 0 {
			return got, false, false
		}
		timer := time.NewTimer(left)
		select {
		case got, ok = <-from:
			timer.Stop()
			return got, ok, true
		case <-timer.C:
		}
	}
}

// left is how much time is left for the call under way. If it is 0 or less, the call
// has been given up. answered tells that there is something to receive: then the call
// has all its time. The caller holds call.mu.
func (c *shardReader[R]) left(answered bool) time.Duration {
	timeout := c.set.group.Timeout
	if answered || c.call.since.IsZero() {
		return timeout
	}
	left := timeout - time.Since(c.call.since)
	if left <= 0 {
		c.call.lost = true
		c.set.group.Away.Add(1)
	}
	return left
}

// replace returns a shardReader to go on in place of c, whose call was given up. c keeps its
// records and its Reader, and closes that if the call returns.
func (c *shardReader[R]) replace() *shardReader[R] {
	next := newShardReader(c.set, c.shards)
	next.due, next.size, next.counted = c.due-c.taken, c.size, c.counted
	c.call.mu.Lock()
	next.progress = c.call.was
	c.call.mu.Unlock()
	err := loadctx.NoAnswer(c.ctx)
	switch next.fault {
	case nil:
		next.fault = err
	case errAgain:
		next.fault = nil
		fallthrough
	default:
		c.set.group.notClosed(next.shard, err)
	}
	c.cancel(err)
	return next
}

// timed tells whether calls of the stream and its readers can be given up.
func (c *shardReader[R]) timed() bool { return c.set.group.Ahead && c.set.group.Timeout > 0 }

// begins notes that a call of the stream or of a reader begins.
func (c *shardReader[R]) begins() {
	if !c.timed() {
		return
	}
	c.call.mu.Lock()
	defer c.call.mu.Unlock()
	if c.call.lost {
		return // what the call that was given up had read goes to nobody
	}
	c.call.since, c.call.was = time.Now(), c.progress
	c.call.was.unread = slices.Clip(c.unread)
}

// returned notes that the call has returned.
func (c *shardReader[R]) returned() {
	if !c.timed() {
		return
	}
	c.call.mu.Lock()
	defer c.call.mu.Unlock()
	c.call.since = time.Time{}
}

func (c *call) isLost() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lost
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
