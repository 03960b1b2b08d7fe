package shards

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"sync/atomic"

	"github.com/nwt-go/nwt/internal/callctx"
	"github.com/nwt-go/nwt/internal/lanes"
	"github.com/nwt-go/nwt/internal/usercall"
)

// A shardReader reads some of a rank's shards, one after the other. It belongs to the set or, if it reads
// ahead, to its own goroutine until it is closed or given up.
type shardReader[R any] struct {
	set    *set[R]
	shards []int // nil if records are picked
	progress
	reader Reader[R]
	given  int // records that it has delivered or passed over: fewer than read once the shard is opened again

	pick func(from int64) (lanes.Pick, bool) // nil unless records are picked

	spent   bool     // no record is left: known while a resumed run skips
	dropped R        // holds a record that nobody takes
	got     *Item[R] // what takeNow has read; nil if no record was left

	// These are used if the shardReader reads ahead: its goroutine and the set share them.
	full, empty chan *Item[R] // for records that come and go back; nil if it doesn't read ahead
	held        atomic.Int64  // size of its records and of the one that is being read, in bytes
	wanted      atomic.Int64  // it reads up to this record, counted from 1, even beyond its share
	woken       chan struct{} // gets a value when wanted has changed
	share       int64         // its share of the bound, in bytes
	due         int           // records that the epoch will take from it if the other shardReaders have enough, too
	done        chan struct{}
	ctx         context.Context
	cancel      context.CancelCauseFunc

	// These belong to its goroutine.
	idle []*Item[R] // records that have come back and aren't in use
	last int        // size of the previous record, in bytes
	sent int        // records that were sent to full

	// These belong to the set.
	taken   int   // records that it has taken
	size    int64 // size of the last of them, in bytes
	counted int64 // the part of it that is in soonBytes

	call call // used with a timeout
}

// progress says how far a shardReader has come. It is what moves to the shardReader that replaces it: see replace.
type progress struct {
	at     int     // index in shards of the shard that is open, or is opened next
	shard  int     // number of that shard; if records are picked, of the shard of the last one
	read   int     // records of it read so far, or up to the last one picked
	fault  error   // what ends the shard; nil as long as it goes on
	passed int     // records that the current skip has passed over
	unread []error // why some of these can't be read

	// These are used if records are picked.
	visit int64 // of the shard
	from  int64 // the next record is the first one from this number on, counted in the lane
}

func newShardReader[R any](s *set[R], shards []int) *shardReader[R] {
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
	// mostAhead bounds how many records a shardReader reads ahead.
	mostAhead = 256
	// leastAhead is how many it reads ahead if their size isn't known, or if the epoch won't take more.
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

// endsWith is deferred in a goroutine that calls readers. If a reader has called runtime.Goexit, the
// goroutine isn't finished, and the epoch ends.
func (c *shardReader[R]) endsWith(finished bool) {
	if !finished {
		c.set.group.Stop(usercall.ErrGoexit)
	}
}

// readOne waits for room and reads one record ahead. It returns false after the last record, or if the
// shardReader is closed.
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
	c.full <- r // has room, because blank made sure of it
	return true
}

// blank returns a record to read into, once there is room for a record as large as the last one. It
// returns nil if the shardReader is closed.
func (c *shardReader[R]) blank() *Item[R] {
	for {
		for n := len(c.empty); n > 0; n-- {
			c.idle = append(c.idle, <-c.empty)
		}
		if len(c.full) < c.most() {
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

// reserve counts the additional bytes of a record, if the shardReader has room for them. If necessary, it
// makes room by freeing the memory of records that aren't in use. If the record is wanted, it needs no
// room.
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

// hold counts n more bytes for the shardReader, unless that would exceed its share.
func (c *shardReader[R]) hold(n int64) bool {
	if c.held.Add(n) <= c.share {
		return true
	}
	c.held.Add(-n)
	return false
}

// want makes the shardReader read its next record if none is ready, even beyond its share.
func (c *shardReader[R]) want() {
	if len(c.full) == 0 {
		c.wanted.Store(int64(c.taken) + 1)
		c.wake()
	}
}

// wake makes a waiting shardReader check again whether it may read.
func (c *shardReader[R]) wake() {
	select {
	case c.woken <- struct{}{}:
	default:
	}
}

// awaitRecord waits for a shardReader's next record: see await.
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

// next reads the next record of the shardReader's shards. It returns false after the last. A failure
// becomes a bad record.
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

// nextPicked does what next does, if records are picked. If a shard ends, each of its records that is
// picked after that becomes a bad record.
func (c *shardReader[R]) nextPicked(r *Item[R]) bool {
	next, ok := c.pick(c.from)
	if !ok || next.Visit != c.visit {
		c.fault = io.EOF // a replacement of this reader must leave the shard, too
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
	c.read, c.from = next.Record+1, next.Number+1
	if c.fault != nil {
		c.shut()
		r.Err = c.set.Failed(next.Shard, next.Record, c.fault)
	}
	return true
}

// attemptEnd checks that the shard ends after the number of records that it should have.
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

// tooFew returns err; if that is the shard's end, it returns an error that the shard has fewer records
// than it should.
func (c *shardReader[R]) tooFew(err error, told int) error {
	if err == io.EOF {
		return fmt.Errorf("it has %d records: its stream said %d", c.given, told)
	}
	return err
}

// leaveShard closes a shard that fault has ended, and moves to the next one. It returns nil if the shard
// was read to its end.
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

// reach opens the shard if it isn't open, and passes over the records before one: those that a picked one
// leaves out, and those that were read before the shard was opened again.
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

// passOver passes over up to n records of the shard, and over at least one if there is no error.
func (c *shardReader[R]) passOver(n int) (skipped int, err error) {
	if c.timed() {
		n = min(n, 1) // so that it is known at which record a call hangs
	}
	if s, ok := c.reader.(skipper); ok {
		c.begins()
		if skipped, err = s.Skip(c.ctx, n); skipped < 0 || skipped > n {
			skipped, err = 0, fmt.Errorf("Skip(%d) says that it has skipped %d", n, skipped)
		}
	}
	if err == nil && skipped == 0 {
		c.begins()
		if err = c.reader.Next(c.ctx, &c.dropped); err == nil {
			skipped = 1
		}
	}
	c.given += skipped
	return skipped, err
}

// again reports whether to repeat a call of the stream or its reader that has failed with *err, and
// closes the shard so that it can be opened again. If it returns false, *err is the final error.
func (c *shardReader[R]) again(failures *int, err *error) bool {
	c.returned() // waiting doesn't count as the call's time
	switch {
	case *err == nil:
	case *err != io.EOF:
		*failures++
		if *err = c.set.Again(c.ctx, *failures, *err); *err == nil {
			c.fault = errAgain // a replacement of this reader must open the shard, too
			c.shut()
			c.fault = nil
			return true
		}
	case c.given < c.read:
		*err = fmt.Errorf("it had %d records when it was opened again, and more before", c.given)
	}
	if *failures > 0 {
		callctx.Failed(c.ctx, nil) // if a later call hangs, this error isn't the reason
	}
	return false
}

// errAgain is the fault of a shard while it is closed to be opened again.
var errAgain = errors.New("it is opened again")

// answers is deferred in calls of the stream or its readers, and turns a panic into an error.
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
	c.reader, err = c.set.Open(c.ctx, c.shard)
	if err == nil && c.reader == nil {
		err = errors.New("its Open returned neither a reader nor an error")
	}
	if err != nil {
		return fmt.Errorf("it can't be opened: %w", err)
	}
	c.given = 0
	return nil
}
