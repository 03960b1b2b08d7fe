package nwt

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// A chain reads some of a rank's shards, one after the other. It belongs to the
// sequence or, if it reads ahead, to a goroutine of its own until it is closed or
// given up.
type chain struct {
	q      *sequence
	part   *streamPart
	shards []int
	at     int // index in shards of the one that is open, or opened next
	reader ShardReader
	read   int   // records of that shard so far
	fault  error // what ends that shard; nil as long as it goes on

	// While a resumed run skips.
	spent   bool // nothing is left
	passed  int  // records that the skip under way has passed over
	dropped Record
	got     *Record // what was read; nil if nothing was left
	unread  []error // of the records that can't be read

	// If the chain reads ahead: what its goroutine and the sequence share. Bytes are counted
	// as room.go says.
	backlog atomic.Pointer[backlog] // nil if it doesn't read ahead
	reach   reach
	wanted  atomic.Int64  // the sequence waits for this record, or has it: counts from 1
	bound   int64         // the part's
	held    atomic.Int64  // the chain's share of the part's bytes
	recent  atomic.Int64  // bytes of the larger of the last two records
	needs   atomic.Int64  // bytes that it waits for; 0 if it doesn't wait for room, or was given it
	woken   chan struct{} // holds something if it was given room, or a record is wanted
	due     int           // records that the epoch will take of it if the others have enough, too
	done    chan struct{}
	ctx     context.Context
	cancel  context.CancelCauseFunc

	// Its goroutine's, and the sequence's once that is over.
	idle     []*Record // that came back and aren't in use
	made     int       // records there are
	reading  *Record   // the record that is being read
	reserved int       // bytes of held for that record
	last     int       // bytes of the record before it
	sent     int       // records that went into full

	taken int // records that the sequence has taken; the sequence's

	call call // with WithTimeout
}

// A call is what the sequence sees of a chain's call of the stream or of a reader.
type call struct {
	mu    sync.Mutex
	since time.Time // guarded by mu; when the call under way began, zero between calls
	lost  bool      // guarded by mu; set once, when the call under way is given up

	// The chain's when the call began; guarded by mu.
	at, read, passed int
	fault            error // not nil if the call is Close
	unread           []error
}

func newChain(p *streamPart, shards []int) *chain {
	q := p.q
	c := &chain{q: q, part: p, shards: shards, bound: p.bound, due: math.MaxInt, ctx: q.ctx}
	if q.ahead {
		c.ctx, c.cancel = context.WithCancelCause(q.ctx)
	}
	return c
}

// start makes a new chain read ahead.
func (c *chain) start() {
	c.done, c.woken = make(chan struct{}), make(chan struct{}, 1)
	c.reach.reckoned = c.q.l.now()
	c.reach.beginWindow()
	c.backlog.Store(newBacklog(readAhead))
	go c.run()
}

// run is the goroutine of a chain that reads ahead.
func (c *chain) run() {
	finished := false
	defer func() {
		if !finished {
			go c.run() // the reader called runtime.Goexit: go on elsewhere
			return
		}
		c.reach.mu.Lock()
		c.reach.over = true
		close(c.backlog.Load().full)
		c.reach.mu.Unlock()
		close(c.done)
		if c.call.isLost() {
			c.holdNothing()
			c.q.l.away.Add(-1)
		}
	}()
	for c.readOne() {
	}
	c.hold(-c.reserved) // nothing came into the record
	c.reserved = 0      // the next goroutine comes here too, if Close ends this one
	c.shut()
	finished = true
}

// readOne waits for room and reads one record ahead. It reports false after the last
// record, and if the chain is closed.
func (c *chain) readOne() bool {
	if c.reading == nil && !c.pick() || !c.makeRoom() || !c.next(c.reading) {
		return false
	}
	before := c.last
	c.last = cap(c.reading.Data)
	if recent := int64(max(before, c.last)); recent != c.recent.Load() {
		c.recent.Store(recent)
	}
	c.hold(c.last - c.reserved)
	c.sent++
	c.backlog.Load().full <- c.reading // has room: no more records are under way
	c.reading, c.reserved = nil, 0
	return true
}

// pick chooses the record to read into. It waits if all are in use, and reports false if the
// chain is closed.
func (c *chain) pick() bool {
	for b := c.backlog.Load(); !c.mayRead(b); b = c.backlog.Load() {
		if c.backlog.Load() != b {
			continue // mayRead may have taken the nil that says that there may be more records
		}
		select {
		case r := <-b.empty:
			c.cameBack(r)
		case <-c.ctx.Done():
			return false
		}
	}
	c.choose()
	return true
}

// mayRead tells whether a record is there to read into. It drops those that are too many.
func (c *chain) mayRead(b *backlog) bool {
	c.collect(b)
	for n := len(c.idle) - 1; n >= 0 && c.made > c.allowed(b); n-- {
		c.hold(-cap(c.idle[n].Data))
		c.idle[n] = nil
		c.idle, c.made = c.idle[:n], c.made-1
	}
	if len(c.idle) == 0 && c.made < c.allowed(b) {
		c.made++
		c.idle = append(c.idle, &Record{part: c.part.number})
	}
	return len(c.idle) > 0
}

// allowed is how many records the chain may have now.
func (c *chain) allowed(b *backlog) int {
	if b.most > readAhead && (c.sent >= c.due || c.part.bytes.Load() > c.part.farBound()) {
		return readAhead
	}
	return b.most
}

// collect takes the records that came back.
func (c *chain) collect(b *backlog) {
	for empty := len(b.empty); empty > 0; empty-- {
		c.cameBack(<-b.empty)
	}
}

func (c *chain) cameBack(r *Record) {
	if r != nil {
		c.idle = append(c.idle, r)
	}
}

// choose chooses one of the idle records to read into: one with memory for a record as large
// as the last one or, if there is none, the one with the most memory. Memory that isn't used
// counts too, and takes room from what could be read.
func (c *chain) choose() {
	best := len(c.idle) - 1
	for i := range c.idle {
		if cap(c.idle[best].Data) >= c.last {
			break
		}
		if cap(c.idle[i].Data) > cap(c.idle[best].Data) {
			best = i
		}
	}
	c.reading = c.idle[best]
	c.idle = slices.Delete(c.idle, best, best+1)
	c.reserved = cap(c.reading.Data)
}

// take replaces *r by the next record of chain number i. It reports false after the
// last.
func (p *streamPart) take(i int, r **Record) bool {
	c := p.chains[i]
	b := c.backlog.Load()
	if b == nil {
		return p.takeNow(i, r)
	}
	got, ok, answered := awaitRecord(c, b)
	for !answered {
		c = c.replace()
		c.start()
		p.chains[i], b = c, c.backlog.Load()
		got, ok, answered = awaitRecord(c, b)
	}
	switch {
	case ok:
		c.taken++
		if c.taken%reachLook == 0 {
			c.look(b)
		}
		p.exchange(c, b, got, r)
	case c.held.Load() > 0 || c.recent.Load() > 0: // its goroutine is over
		p.leaveRoom(c, b)
	}
	return ok
}

// awaitRecord waits for a chain's next record, see await.
func awaitRecord(c *chain, b *backlog) (got *Record, ok, answered bool) {
	select {
	case got, ok = <-b.full:
		return got, ok, true
	default:
	}
	c.wanted.Store(int64(c.taken) + 1)
	c.wake()
	began := c.q.l.now()
	got, ok, answered = await(c, b.full)
	if waited := c.q.l.now() - began; waited >= reachStall && c.q.run.awaiting.Load() {
		c.part.losesTime(c, waited)
	}
	return got, ok, answered
}

// await receives what the chain's goroutine sends, or that it closes the channel. It
// gives up the call that the goroutine is in, and reports that there is no answer,
// once the call takes longer than WithTimeout allows.
func await[T any](c *chain, from <-chan T) (got T, ok, answered bool) {
	if c.q.l.opts.timeout == 0 {
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
func (c *chain) left(answered bool) time.Duration {
	timeout := c.q.l.opts.timeout
	if answered || c.call.since.IsZero() {
		return timeout
	}
	left := timeout - time.Since(c.call.since)
	if left <= 0 {
		c.call.lost = true
		c.q.l.away.Add(1)
	}
	return left
}

// replace returns a chain to go on in place of c, whose call was given up. c keeps its
// records and its reader, and closes the reader if the call returns.
func (c *chain) replace() *chain {
	c.call.mu.Lock()
	defer c.call.mu.Unlock()
	next := newChain(c.part, c.shards)
	next.due = c.due - c.taken
	next.at, next.read, next.passed, next.fault, next.unread = c.call.at, c.call.read, c.call.passed, c.call.fault, c.call.unread
	err := c.q.l.opts.noAnswer()
	if next.fault == nil {
		next.fault = err
	} else {
		c.warnOfClose(c.call.at, err)
	}
	c.cancel(err)
	return next
}

// timed tells whether calls of the stream and its readers can be given up.
func (c *chain) timed() bool { return c.q.ahead && c.q.l.opts.timeout > 0 }

// begins notes that a call of the stream or of a reader begins.
func (c *chain) begins() {
	if !c.timed() {
		return
	}
	c.call.mu.Lock()
	defer c.call.mu.Unlock()
	if c.call.lost {
		return // what the call that was given up had read goes to nobody
	}
	c.call.since, c.call.at, c.call.read, c.call.passed, c.call.fault = time.Now(), c.at, c.read, c.passed, c.fault
	c.call.unread = slices.Clip(c.unread)
}

// returned notes that the call has returned.
func (c *chain) returned() {
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

// close ends the chain and closes what it has open.
func (c *chain) close() {
	if c.backlog.Load() == nil {
		if c.cancel != nil {
			c.cancel(nil)
		}
		c.here((*chain).shut)
		return
	}
	c.cancel(nil)
	if _, _, answered := await(c, c.done); answered {
		c.holdNothing()
	}
}

// shut closes the shard that is open.
func (c *chain) shut() {
	if c.reader == nil {
		return
	}
	reader := c.reader
	c.reader = nil // before Close can end the goroutine
	c.begins()
	defer c.returned()
	guarded(reader.Close, func(_ []byte, err error) { c.warnOfClose(c.at, err) })
}

func (c *chain) warnOfClose(at int, err error) {
	c.q.l.opts.warnOfClose(c.part.first+c.shards[at], err)
}

func (o *options) warnOfClose(shard int, err error) {
	o.log.Warn("nwt: a shard could not be closed", "shard", shard, "error", err)
}

// noAnswer is the error of a call that is given up.
func (o *options) noAnswer() error {
	return fmt.Errorf("no answer within WithTimeout(%v): %w", o.timeout, context.DeadlineExceeded)
}

// next reads the next record of the chain's shards. It reports false after the last.
// A failure makes a bad record. If the reader ends the goroutine, the next goroutine
// reads fault to know where to go on.
func (c *chain) next(r *Record) bool {
	r.err = nil
	for c.ctx.Err() == nil {
		if c.fault == nil {
			if c.at == len(c.shards) {
				return false
			}
			if c.attempt(r); c.fault == nil {
				r.part = c.part.number // if Next has overwritten the record
				c.read++
				return true
			}
		}
		if err := c.leaveShard(); err != nil {
			r.part, r.err = c.part.number, err
			return true
		}
	}
	return false
}

// leaveShard closes a shard that fault has ended, and turns to the next one. It returns a
// *[ShardError], or nil if the shard was read to its end.
func (c *chain) leaveShard() error {
	c.shut()
	shard, read, fault := c.shards[c.at], c.read, c.fault
	c.at, c.read, c.fault = c.at+1, 0, nil
	if fault == io.EOF {
		return nil
	}
	return &ShardError{Shard: c.part.first + shard, Record: read, Err: fault}
}

// attempt opens the shard if it isn't open, and reads a record. Only io.EOF itself,
// and only from Next, means the end of the shard.
func (c *chain) attempt(r *Record) {
	finished := false
	defer func() {
		c.returned()
		if !finished {
			stack, err := recovered(recover())
			c.fault = fmt.Errorf("%w\n%s", err, stack)
		}
		if c.fault != nil {
			c.countVisits()
		}
	}()
	c.begins()
	err := c.open()
	if err == nil {
		c.begins()
		err = c.reader.Next(c.ctx, r)
	}
	c.fault, finished = err, true
}

// open opens the shard if it isn't open.
func (c *chain) open() (err error) {
	if c.reader != nil {
		return nil
	}
	if c.reader, err = c.q.l.opts.openShard(c.ctx, c.part.stream, c.shards[c.at]); err != nil {
		return fmt.Errorf("it can't be opened: %w", err)
	}
	c.countVisits()
	return nil
}

// countVisits counts the records that earlier visits of a tuner have read of the shard.
func (c *chain) countVisits() {
	if r, ok := c.reader.(*visitedReader); ok {
		c.read = r.read
	}
}

// openShard opens a shard, as often as WithRetry says while the error calls itself
// temporary: too many open files, for example.
func (o *options) openShard(ctx context.Context, s Stream, shard int) (ShardReader, error) {
	for tries, wait := 0, o.backoff; ; tries, wait = tries+1, 2*wait {
		reader, err := s.Open(ctx, shard)
		switch {
		case err == nil && reader == nil:
			return nil, errors.New("Open returned neither a reader nor an error")
		case err == nil:
			return reader, nil
		case tries == o.retries || !temporary(err) || !rest(ctx, wait):
			return nil, err
		}
	}
}
