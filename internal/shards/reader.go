package shards

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"sync/atomic"
	"time"

	"github.com/nwt-go/nwt/internal/callctx"
	"github.com/nwt-go/nwt/internal/files"
	"github.com/nwt-go/nwt/internal/lanes"
	"github.com/nwt-go/nwt/internal/usercall"
)

// A shardReader reads some of a rank's shards, one after the other. It belongs to the Set or, if
// it reads ahead, to a goroutine of its own until it is closed or given up.
type shardReader[R any] struct {
	set    *Set[R]
	shards []int // nil if records are picked
	progress
	reader Reader[R]
	given  int // records that it has given or passed over: fewer than read once the shard is opened again

	// If records are picked.
	pick   func(from int64) (lanes.Pick, bool)
	picked lanes.Pick // the next one, if known
	known  bool

	// While a resumed run skips.
	spent   bool // nothing is left
	dropped R
	got     *Item[R] // what was read; nil if nothing was left

	// If the shardReader reads ahead: what its goroutine and the Set share.
	full, empty chan *Item[R] // records that come and go back; nil if it doesn't read ahead
	held        atomic.Int64  // bytes of its records and of the one that is being read
	wanted      atomic.Int64  // up to this record, counted from 1, it reads even above its share
	woken       chan struct{} // holds something if wanted has changed
	share       int64         // of the bound, in bytes
	due         int           // records that the epoch will take of it if the others have enough, too
	done        chan struct{}
	ctx         context.Context
	cancel      context.CancelCauseFunc

	// Its goroutine's.
	idle []*Item[R] // that came back and aren't in use
	last int        // bytes of the record before
	sent int        // records that went into full

	// The Set's.
	taken   int   // records that it has taken
	size    int64 // bytes of the last of them
	counted int64 // bytes of it in soonBytes

	call call // with a timeout
}

// progress is how far a shardReader has come: what one that goes on in its place begins with.
type progress struct {
	at     int     // index in shards of the one that is open, or opened next
	shard  int     // that one; if records are picked, what the last one was picked of
	read   int     // records of it so far, or up to the last one picked
	fault  error   // what ends it; nil as long as it goes on
	passed int     // records that the skip under way has passed over
	unread []error // of those, why some can't be read

	// If records are picked.
	visit int64 // of the shard
	from  int64 // the next is the first from here on; numbered in the lane
}

func newShardReader[R any](s *Set[R], shards []int) *shardReader[R] {
	c := &shardReader[R]{set: s, shards: shards, share: s.share, due: math.MaxInt, ctx: s.group.Context}
	if s.Pick != nil {
		c.pick, c.visit = s.Pick(), -1
	} else {
		c.shard = shards[0]
	}
	if s.group.Ahead {
		c.call.lost = make(chan struct{})
		c.ctx, c.cancel = context.WithCancelCause(callctx.WithTimeout(s.group.Context, s.group.Watchdog.Timeout()))
	}
	return c
}

const (
	// mostAhead is how many records a shardReader reads ahead at most.
	mostAhead = 256
	// leastAhead is how many it reads ahead if nobody knows how large they are, or the epoch
	// won't take more.
	leastAhead = 16
)

// start makes a new shardReader read ahead.
func (c *shardReader[R]) start() {
	c.done, c.woken = make(chan struct{}), make(chan struct{}, 1)
	c.full, c.empty = make(chan *Item[R], mostAhead), make(chan *Item[R], mostAhead+1)
	go c.run()
}

// run is the goroutine of a shardReader that reads ahead.
func (c *shardReader[R]) run() {
	finished := false
	defer func() {
		c.endsWith(finished)
		c.idle = nil
		c.comesBack()
		close(c.full)
		close(c.done)
	}()
	for c.readOne() {
	}
	c.shut()
	finished = true
}

// endsWith is deferred in a goroutine that calls readers. If one of these has called
// runtime.Goexit, the goroutine isn't finished, and the epoch ends.
func (c *shardReader[R]) endsWith(finished bool) {
	if !finished {
		c.set.group.Stop(usercall.ErrGoexit)
	}
}

// readOne waits for room and reads one record ahead. It reports false after the last
// record, and if the shardReader is closed.
func (c *shardReader[R]) readOne() bool {
	r := c.blank()
	if r == nil {
		return false
	}
	reserved := max(c.last, c.set.Size(&r.Record))
	if !c.next(r) || c.call.clock.Lost() {
		return false
	}
	c.last = c.set.Size(&r.Record)
	c.held.Add(int64(c.last - reserved))
	c.sent++
	c.full <- r // has room: blank saw to it
	return true
}

// blank returns a record to read into, once there is room for one as large as the last one. It
// returns nil if the shardReader is closed.
func (c *shardReader[R]) blank() *Item[R] {
	for {
		for n := len(c.empty); n > 0; n-- {
			c.idle = append(c.idle, <-c.empty)
		}
		if len(c.full) < c.most() && c.isNear() {
			if len(c.idle) == 0 {
				c.idle = append(c.idle, c.set.newItem())
			}
			if n := len(c.idle) - 1; c.reserve(int64(c.last-c.set.Size(&c.idle[n].Record)), c.idle[:n]) {
				r := c.idle[n]
				c.idle = c.idle[:n]
				return r
			}
		}
		select {
		case r := <-c.empty:
			c.idle = append(c.idle, r)
		case <-c.woken:
		case <-c.ctx.Done():
			return nil
		}
	}
}

// most returns how many records may be ready now.
func (c *shardReader[R]) most() int {
	if c.last == 0 || c.sent >= c.due {
		return leastAhead
	}
	return mostAhead
}

// isNear reports whether the next record may be read ahead. What the caller of Set.Next waits for
// always may.
func (c *shardReader[R]) isNear() bool {
	if c.pick == nil {
		return true
	}
	next, ok := c.peek()
	return !ok || next.Position < c.set.horizon.Load()
}

// reserve counts the bytes that a record lacks, if the shardReader has room for them. If need be, it
// makes room by dropping the memory of other records that aren't in use. If the record is
// wanted, it needs no room.
func (c *shardReader[R]) reserve(lacks int64, unused []*Item[R]) bool {
	if lacks <= 0 || c.hold(lacks) {
		return true
	}
	for _, r := range unused {
		c.held.Add(-int64(c.set.Size(&r.Record)))
		r.Record = *new(R)
	}
	if c.hold(lacks) {
		return true
	}
	if c.wanted.Load() <= int64(c.sent) {
		return false
	}
	c.held.Add(lacks)
	return true
}

// hold counts n bytes more as the shardReader's, unless that is more than its share.
func (c *shardReader[R]) hold(n int64) bool {
	if c.held.Add(n) <= c.share {
		return true
	}
	c.held.Add(-n)
	return false
}

// want has the shardReader read its next record, if none is ready, though it be above its share.
func (c *shardReader[R]) want() {
	if len(c.full) == 0 {
		c.wanted.Store(int64(c.taken) + 1)
		c.wake()
	}
}

// wake has a shardReader that waits look again whether it may read.
func (c *shardReader[R]) wake() {
	select {
	case c.woken <- struct{}{}:
	default:
	}
}

// awaitRecord waits for a shardReader's next record, see await.
func awaitRecord[R any](c *shardReader[R]) (got *Item[R], ok, answered bool) {
	select {
	case got, ok = <-c.full:
		return got, ok, true
	default:
	}
	c.want()
	return await(c, c.full)
}

func (g *Group) notClosed(shard int, err error) {
	g.Log.Warn("nwt: a shard could not be closed", "shard", shard, "error", err)
}

// shut closes the shard that is open.
func (c *shardReader[R]) shut() {
	if c.reader == nil {
		return
	}
	if err := c.closeReader(); err != nil {
		c.set.group.notClosed(c.shard, err)
	}
	c.reader = nil
}

func (c *shardReader[R]) closeReader() (err error) {
	defer c.returned()
	defer func() {
		if p := recover(); p != nil {
			_, err = usercall.Recovered(p)
		}
	}()
	c.begins()
	return c.reader.Close()
}

// next reads the next record of the shardReader's shards. It reports false after the last.
// A failure makes a bad record.
func (c *shardReader[R]) next(r *Item[R]) bool {
	r.Err = nil
	if c.pick != nil {
		return c.nextPicked(r)
	}
	for c.ctx.Err() == nil {
		if c.fault == nil {
			if c.at == len(c.shards) {
				return false
			}
			if c.fault = c.attempt(c.read, &r.Record); c.fault == nil {
				r.Shard, r.Number = c.shard, c.read
				c.read++
				return true
			}
		}
		if err := c.leaveShard(); err != nil {
			r.Err = err
			return true
		}
	}
	return false
}

// peek returns the record that is picked next; false if there is none.
func (c *shardReader[R]) peek() (next lanes.Pick, ok bool) {
	if !c.known {
		c.picked, c.known = c.pick(c.from)
	}
	return c.picked, c.known
}

// nextPicked is next if records are picked. What ends a shard makes each of its
// records that are picked from there on a bad one.
func (c *shardReader[R]) nextPicked(r *Item[R]) bool {
	next, ok := c.peek()
	if !ok || next.Visit != c.visit {
		c.fault = io.EOF // what goes on in place of this reader leaves the shard, too
		c.shut()
		c.visit, c.shard, c.read, c.fault = next.Visit, next.Shard, 0, nil
	}
	if !ok || c.ctx.Err() != nil {
		return false
	}
	if c.fault == nil {
		c.fault = c.tooFew(c.attempt(next.Record, &r.Record), next.Of)
		if c.fault == nil && next.Record == next.Of-1 {
			c.fault = c.attemptEnd(next.Of)
		}
	}
	r.Shard, r.Number = next.Shard, next.Record
	c.read, c.from, c.known = next.Record+1, next.Number+1, false
	if c.fault != nil {
		c.shut()
		r.Err = c.set.Failed(next.Shard, next.Record, c.fault)
	}
	return true
}

// attemptEnd makes sure that the shard ends after the records that it should have.
func (c *shardReader[R]) attemptEnd(told int) error {
	switch err := c.attempt(told, &c.dropped); {
	case err == nil:
		return fmt.Errorf("it has more than %d records: its stream said %d", told, told)
	case err == io.EOF && c.given == told:
		return nil
	default:
		return c.tooFew(err, told)
	}
}

// tooFew is err; if that is the shard's end, the error that it has fewer records than it should.
func (c *shardReader[R]) tooFew(err error, told int) error {
	if err == io.EOF {
		return fmt.Errorf("it has %d records: its stream said %d", c.given, told)
	}
	return err
}

// leaveShard closes a shard that fault has ended, and turns to the next one. It returns
// nil if the shard was read to its end.
func (c *shardReader[R]) leaveShard() error {
	c.shut()
	shard, read, fault := c.shard, c.read, c.fault
	if c.at, c.read, c.fault = c.at+1, 0, nil; c.at < len(c.shards) {
		c.shard = c.shards[c.at]
	}
	if fault == io.EOF {
		return nil
	}
	return c.set.Failed(shard, read, fault)
}

// attempt reads a record of the shard by its number. Only io.EOF itself, and only from Next or
// Skip, means the end of the shard.
func (c *shardReader[R]) attempt(record int, r *R) (err error) {
	defer func() { c.answers(recover(), &err) }()
	for failures := 0; ; {
		if err = c.reach(record); err == nil {
			c.begins()
			if err = c.reader.Next(c.ctx, r); err == nil {
				c.given++
			}
		}
		if !c.again(&failures, &err) {
			return err
		}
	}
}

// reach opens the shard if it isn't open, and passes over the records before one.
func (c *shardReader[R]) reach(record int) error {
	c.begins()
	if err := c.open(); err != nil {
		return err
	}
	for c.given < record && c.ctx.Err() == nil {
		if _, err := c.passOver(record - c.given); err != nil {
			return err
		}
	}
	return c.ctx.Err()
}

// again reports whether to repeat what the stream or its reader has failed at with *err, and closes the
// shard for that. If not, *err is what is wrong.
func (c *shardReader[R]) again(failures *int, err *error) bool {
	c.returned() // waiting isn't the call's time
	switch {
	case *err == nil:
	case *err != io.EOF:
		*failures++
		if *err = c.set.Again(c.ctx, *failures, *err); *err == nil {
			c.fault = errAgain // what goes on in place of this reader opens the shard, too
			c.shut()
			c.fault = nil
			return true
		}
	case c.given < c.read:
		*err = fmt.Errorf("it had %d records when it was opened again, and more before", c.given)
	}
	if *failures > 0 {
		callctx.Failed(c.ctx, nil) // what hangs later has nothing to do with it
	}
	return false
}

// errAgain is the fault of a shard while it is closed to be opened again.
var errAgain = errors.New("it is opened again")

// answers is deferred in calls of the stream or its readers, and makes an error of a panic.
func (c *shardReader[R]) answers(panicked any, err *error) {
	c.returned()
	if panicked != nil {
		stack, e := usercall.Recovered(panicked)
		*err = fmt.Errorf("%w\n%s", e, stack)
	}
}

// open opens the shard if it isn't open.
func (c *shardReader[R]) open() (err error) {
	if c.reader != nil {
		return nil
	}
	if c.reader, err = c.openPatiently(); err != nil {
		return fmt.Errorf("it can't be opened: %w", err)
	}
	c.given = 0
	return nil
}

// filePatience is how long to wait while too many files are open.
const filePatience = time.Minute

// openPatiently opens a shard. While too many files are open it tries again.
func (c *shardReader[R]) openPatiently() (Reader[R], error) {
	began := time.Now()
	for wait := time.Millisecond; ; wait = min(2*wait, time.Second) {
		c.begins()
		reader, err := c.set.Open(c.ctx, c.shard)
		c.returned() // waiting isn't the call's time
		switch {
		case err == nil && reader == nil:
			return nil, errors.New("its Open returned neither a reader nor an error")
		case !files.TooMany(err):
			return reader, err
		case time.Since(began) >= filePatience:
			return nil, fmt.Errorf("too many files were open for a minute (a lower WithInterleave needs fewer): %w", err)
		}
		if !c.set.group.short.Swap(true) {
			c.set.group.Log.Warn("nwt: too many files are open: a shard is opened again for a minute. A lower WithInterleave needs fewer", "error", err)
		}
		select {
		case <-time.After(wait):
		case <-c.ctx.Done():
			return nil, err
		}
	}
}
