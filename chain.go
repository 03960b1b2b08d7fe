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

	"github.com/nwt-go/nwt/internal/files"
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
	again  int   // of these, how many must be passed over, since the shard is opened again
	fault  error // what ends that shard; nil as long as it goes on

	// While a resumed run skips.
	spent   bool // nothing is left
	passed  int  // records that the skip under way has passed over
	dropped Record
	got     *Record // what was read; nil if nothing was left
	probing bool    // its shard is opened only to see what its reader is
	unread  []error // of the records that can't be read

	// If the chain reads ahead: what its goroutine and the sequence share.
	full, empty chan *Record  // records that come and go back; nil if it doesn't read ahead
	held        atomic.Int64  // bytes of its records and of the one that is being read
	wanted      atomic.Int64  // up to this record, counted from 1, it reads even above its share
	woken       chan struct{} // holds something if wanted has changed
	share       int64         // of the part's bound, in bytes
	due         int           // records that the epoch will take of it if the others have enough, too
	done        chan struct{}
	ctx         context.Context
	cancel      context.CancelCauseFunc

	// Its goroutine's.
	idle []*Record // that came back and aren't in use
	last int       // bytes of the record before
	sent int       // records that went into full

	// The sequence's.
	taken   int   // records that it has taken
	size    int64 // bytes of the last of them
	counted int64 // bytes of it in soonBytes

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
	c := &chain{q: q, part: p, shards: shards, share: p.share, due: math.MaxInt, ctx: q.ctx}
	if q.ahead {
		c.ctx, c.cancel = context.WithCancelCause(q.ctx)
	}
	return c
}

const (
	// maxAheadBytes bounds the memory of the records that are read ahead. Half of it is
	// shared by the shards that are read at once. The other half is for those whose turn is
	// next and whose record doesn't fit into their share.
	maxAheadBytes = 256 << 20
	// mostAhead is how many records a chain reads ahead at most.
	mostAhead = 256
	// leastAhead is how many it reads ahead if nobody knows how large they are, or the epoch
	// won't take more.
	leastAhead = 16
)

// start makes a new chain read ahead.
func (c *chain) start() {
	c.done, c.woken = make(chan struct{}), make(chan struct{}, 1)
	c.full, c.empty = make(chan *Record, mostAhead), make(chan *Record, mostAhead+1)
	go c.run()
}

// run is the goroutine of a chain that reads ahead.
func (c *chain) run() {
	finished := false
	defer func() {
		c.endsWith(finished)
		c.idle = nil
		close(c.full)
		close(c.done)
		if c.call.isLost() {
			c.q.l.away.Add(-1)
		}
	}()
	for c.readOne() {
	}
	c.shut()
	finished = true
}

// endsWith is deferred in a goroutine that calls readers. If one of these has called
// runtime.Goexit, the goroutine isn't finished, and the epoch ends.
func (c *chain) endsWith(finished bool) {
	if !finished {
		c.q.run.stop(fmt.Errorf("nwt: the epoch ends because of a stream's reader: %w", errGoexit))
	}
}

// readOne waits for room and reads one record ahead. It reports false after the last
// record, and if the chain is closed.
func (c *chain) readOne() bool {
	r := c.blank()
	if r == nil {
		return false
	}
	reserved := max(c.last, cap(r.Data))
	if !c.next(r) {
		return false
	}
	c.last = cap(r.Data)
	c.held.Add(int64(c.last - reserved))
	c.sent++
	c.full <- r // has room: blank saw to it
	return true
}

// blank returns a record to read into, once there is room for one as large as the last one. It
// returns nil if the chain is closed.
func (c *chain) blank() *Record {
	for {
		for n := len(c.empty); n > 0; n-- {
			c.idle = append(c.idle, <-c.empty)
		}
		if len(c.full) < c.most() && (c.reader != nil || len(c.full) == 0 || !c.q.short.Load()) {
			if len(c.idle) == 0 {
				c.idle = append(c.idle, &Record{part: c.part.number})
			}
			if n := len(c.idle) - 1; c.reserve(int64(c.last-cap(c.idle[n].Data)), c.idle[:n]) {
				r := c.idle[n]
				c.idle = c.idle[:n]
				return r
			}
		}
		select {
		case r := <-c.empty:
			c.idle = append(c.idle, r)
		case <-c.woken:
		case closed := <-c.lending():
			c.lend(closed)
		case <-c.ctx.Done():
			return nil
		}
	}
}

// most is how many records may be ready now.
func (c *chain) most() int {
	if c.last == 0 || c.sent >= c.due {
		return leastAhead
	}
	return mostAhead
}

// reserve counts the bytes that a record lacks, if the chain has room for them. If need be, it
// makes room by dropping the memory of other records that aren't in use. If the record is
// wanted, it needs no room.
func (c *chain) reserve(lacks int64, unused []*Record) bool {
	if lacks <= 0 || c.hold(lacks) {
		return true
	}
	for _, r := range unused {
		c.held.Add(-int64(cap(r.Data)))
		r.Data = nil
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

// hold counts n bytes more as the chain's, unless that is more than its share.
func (c *chain) hold(n int64) bool {
	if c.held.Add(n) <= c.share {
		return true
	}
	c.held.Add(-n)
	return false
}

// want has the chain read its next record, if none is ready, though it be above its share.
func (c *chain) want() {
	if len(c.full) > 0 {
		return
	}
	c.wanted.Store(int64(c.taken) + 1)
	select {
	case c.woken <- struct{}{}:
	default:
	}
}

// take replaces *r by the next record of chain number i. It reports false after the
// last.
func (p *streamPart) take(i int, r **Record) bool {
	c := p.chains[i]
	if c.full == nil {
		return p.takeNow(i, r)
	}
	got, ok, answered := awaitRecord(c)
	for !answered {
		c = c.replace()
		c.start()
		p.chains[i] = c
		got, ok, answered = awaitRecord(c)
	}
	if !ok {
		c.empty = nil // with what is in there
		return false
	}
	c.taken++
	size, back := int64(cap(got.Data)), *r
	c.size = size
	if n := int64(cap(back.Data)); c.held.Add(n-size) > c.share && n > 0 {
		c.held.Add(-n)
		back = &Record{part: p.number}
	}
	*r = got
	c.empty <- back // has room: it is one of the chain's
	return true
}

// wantSoon has the chains whose turn is next read a record each, even above their share, as many
// as there is room for in the bound's other half. The turn of chain number i is over.
func (p *streamPart) wantSoon(i int) {
	if c := p.chains[i]; p.soon > 0 {
		p.soon, p.soonBytes, c.counted = p.soon-1, p.soonBytes-c.counted, 0
	}
	for p.soon < len(p.chains) {
		c := p.chains[(p.turn+p.soon)%len(p.chains)]
		if p.soonBytes+c.size > p.bound/2 {
			return
		}
		p.soon, p.soonBytes, c.counted = p.soon+1, p.soonBytes+c.size, c.size
		c.want()
	}
}

// awaitRecord waits for a chain's next record, see await.
func awaitRecord(c *chain) (got *Record, ok, answered bool) {
	select {
	case got, ok = <-c.full:
		return got, ok, true
	default:
	}
	c.want()
	return await(c, c.full)
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
	next.due, next.size, next.counted = c.due-c.taken, c.size, c.counted
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
	if c.full == nil {
		if c.cancel != nil {
			c.cancel(nil)
		}
		c.here((*chain).shut)
		return
	}
	c.cancel(nil)
	await(c, c.done)
}

// shut closes the shard that is open.
func (c *chain) shut() {
	if c.reader == nil {
		return
	}
	c.begins()
	defer c.returned()
	guarded(c.reader.Close, func(_ []byte, err error) { c.warnOfClose(c.at, err) })
	c.reader = nil
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
// A failure makes a bad record.
func (c *chain) next(r *Record) bool {
	r.err = nil
	for c.ctx.Err() == nil {
		if c.fault == nil {
			if c.at == len(c.shards) {
				return false
			}
			if c.fault = c.attempt(r); c.fault == nil {
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
	c.at, c.read, c.again, c.fault = c.at+1, 0, 0, nil
	if fault == io.EOF {
		return nil
	}
	return &ShardError{Shard: c.part.first + shard, Record: read, Err: fault}
}

// attempt opens the shard if it isn't open, and reads a record. Only io.EOF itself,
// and only from Next, means the end of the shard.
func (c *chain) attempt(r *Record) (err error) {
	defer func() {
		c.answers(recover(), &err)
		if err != nil {
			c.countVisits()
		}
	}()
	c.begins()
	err = c.open()
	for c.again > 0 && err == nil && c.ctx.Err() == nil {
		var n int
		if n, err = c.passOver(c.again); err == io.EOF {
			err = errors.New("it has fewer records than before")
		}
		c.again -= n
	}
	if err == nil {
		c.begins()
		err = c.reader.Next(c.ctx, r)
	}
	return err
}

// answers is deferred in calls of the stream or its readers, and makes an error of a panic.
func (c *chain) answers(panicked any, err *error) {
	c.returned()
	if panicked != nil {
		stack, e := recovered(panicked)
		*err = fmt.Errorf("%w\n%s", e, stack)
	}
}

// open opens the shard if it isn't open.
func (c *chain) open() (err error) {
	if c.reader != nil {
		return nil
	}
	if c.reader, err = c.q.l.opts.openShard(c.ctx, c.part.stream, c.shards[c.at], c.awaitFile); err != nil {
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

// openShard opens a shard. While too many files are open it waits as awaitFile does, for a minute
// at most. Other errors that call themselves temporary are tried again as WithRetry says.
func (o *options) openShard(ctx context.Context, s Stream, shard int, awaitFile func(context.Context, time.Duration) bool) (ShardReader, error) {
	began := time.Now()
	for tries, wait := 0, o.backoff; ; tries, wait = tries+1, 2*wait {
		reader, err := s.Open(ctx, shard)
		switch {
		case err == nil && reader == nil:
			return nil, errors.New("Open returned neither a reader nor an error")
		case err == nil:
			return reader, nil
		case files.TooMany(err):
			if time.Since(began) >= filePatience {
				return nil, fmt.Errorf("too many files were open for a minute, WithInterleave(%d): %w", o.interleave, err)
			}
			if !awaitFile(ctx, min(max(wait, time.Millisecond), time.Second)) {
				return nil, err
			}
		case tries >= o.retries || !temporary(err) || !rest(ctx, wait):
			return nil, err
		}
	}
}

// filePatience is how long to wait while too many files are open.
const filePatience = time.Minute

// awaitFile waits for a while, or until another chain that can't read on now has closed its
// shard. It reports false if there is nothing to wait for.
func (c *chain) awaitFile(ctx context.Context, wait time.Duration) bool {
	if !c.q.short.Swap(true) {
		c.q.l.opts.log.Warn("nwt: too many files are open: a shard waits until another is read to its end, or closed to be opened again later. The order stays the same. Less is opened twice with a lower WithInterleave, or a higher limit of open files", "interleave", c.q.l.opts.interleave)
	}
	if c.probing {
		return false // no chain reads
	}
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	closed := make(chan struct{})
	select {
	case c.q.lends <- closed:
		select {
		case <-closed:
		case <-waiting.Done():
		}
	case <-waiting.Done():
	}
	return ctx.Err() == nil
}

// lending is where another chain asks for the file of this one, which can't read on now.
func (c *chain) lending() <-chan chan struct{} {
	if c.reader == nil {
		return nil
	}
	return c.q.lends
}

// lend closes the shard. It is opened again, and what was read is passed over, when the chain
// can read on.
func (c *chain) lend(closed chan struct{}) {
	c.shut()
	c.again = c.read
	close(closed)
}
