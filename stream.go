package nwt

import (
	"context"
	"errors"
	"fmt"
	"io"
)

// A Stream is an iterable-style source: shards that are read in sequence, such
// as tar files, record files, or the parts of a query. [Streamed] makes it a
// dataset for [NewLoader] and [Tune].
//
// Reading a shard is sequential and should be cheap: bytes from a file. Making a
// sample of what was read is Load's part, which workers do side by side.
type Stream interface {
	// Fields is the layout of one sample. It must not change.
	Fields() []Field
	// Shards is the number of shards.
	Shards() int
	// Open begins to read a shard, 0 ≤ shard < Shards, in an epoch.
	Open(ctx context.Context, shard int) (ShardReader, error)
	// Load makes a sample of a record, under the rules of [Dataset]'s Load.
	Load(ctx context.Context, r *Record, dst *Sample) error
}

// A ShardReader reads one shard, in one goroutine at a time.
type ShardReader interface {
	// Next reads the next record into r; [io.EOF] after the last. Another error
	// makes a bad sample of it, and ends the shard.
	Next(ctx context.Context, r *Record) error
	// Close ends reading, at the end of the shard or before.
	Close() error
}

// A Record is what was read of a sample. Records are reused: Next finds in one
// what some earlier Next and Load have left there.
type Record struct {
	Data  []byte // append to Data[:0] to reuse its memory
	Value any    // whatever else

	err error // what Next failed with
}

// Streamed is a stream as a dataset. It has no Len, and the order of its samples
// is that of reading, the same at every worker count:
//
//   - the shards in turn or, with WithShuffle, in another order each epoch;
//   - each rank those at its places in that order;
//   - [WithInterleave] of them at once, a sample of each in turn;
//   - with WithShuffle, mixed within a window, see [WithShuffleWindow].
//
// [Sample.Index] is the place in that order, over all ranks. Ranks whose shards
// differ in length have different numbers of batches, unless [WithEpochSamples]
// sets one. To resume reads and drops what came before, and needs the same
// number of ranks.
func Streamed(s Stream) Dataset { return &streamDataset{s} }

type streamDataset struct{ Stream }

func (d *streamDataset) Len() int { return -1 }

func (d *streamDataset) Load(context.Context, int, *Sample) error {
	return errors.New("nwt: a stream has no sample by index")
}

// check is what checkDataset asks of a stream instead of its length.
func (d *streamDataset) check() error {
	if d.Stream == nil {
		return optionError("Streamed", nil, "the stream must not be nil")
	}
	if n := d.Shards(); n < 1 {
		return optionError("Stream.Shards", n, "must be at least 1")
	}
	return nil
}

// loadRecord is a loader's load for a stream.
func (d *streamDataset) loadRecord(ctx context.Context, _ int, s *Sample) error {
	r := s.records[s.place]
	if r.err != nil {
		return r.err
	}
	return d.Stream.Load(ctx, r, s)
}

// A sequence reads the records of a run in order. It belongs to one goroutine:
// the run's reader or, without workers, the consumer.
type sequence struct {
	l      *Loader
	stream Stream
	ctx    context.Context
	ahead  bool // chains read ahead, each in a goroutine of its own

	epoch, last int
	index       int // of the next batch in its epoch
	delivered   int // records of the epoch that were handed out or skipped
	skip        int // records to drop before the first
	chains      []*chain
	turn        int       // chain to ask next
	window      []*Record // of the shuffle: the records it holds
	spare       []*Record // records for the window to grow with
	started     bool      // the epoch's chains are open
}

func newSequence(r *run, ahead bool) *sequence {
	c := r.course
	return &sequence{
		l: r.l, stream: r.l.ds.(*streamDataset).Stream, ctx: r.ctx, ahead: ahead, epoch: c.first, last: c.last,
		skip: c.base / r.l.order.world, index: c.skipped,
	}
}

// start opens the chains of an epoch.
func (q *sequence) start() {
	o := q.l.opts
	shards := q.stream.Shards()
	var order Sampler = Sequential(shards)
	if o.shuffle {
		order = Shuffled(shards, o.shuffled)
	}
	var mine []int
	for i := o.rank; i < shards; i += o.world {
		mine = append(mine, order.At(q.epoch, i))
	}
	q.started, q.turn, q.delivered = true, 0, 0
	q.chains = q.chains[:0]
	for i := range min(o.interleave, len(mine)) {
		var shards []int
		for k := i; k < len(mine); k += o.interleave {
			shards = append(shards, mine[k])
		}
		q.chains = append(q.chains, newChain(q, shards))
	}
}

// feed fills the batches that the run opens, until it ends.
func (q *sequence) feed(r *run) {
	defer close(r.fed)
	defer q.stop()
	for {
		select {
		case b := <-r.toFill:
			q.fill(b.seq, b)
		case <-r.ctx.Done():
			return
		}
	}
}

// stop closes what is open, and joins the chains.
func (q *sequence) stop() {
	for _, l := range q.chains {
		l.close()
	}
	q.chains, q.started = nil, false
}

// read replaces *r by the next record of the epoch, and reports false after the
// last.
func (q *sequence) read(r **Record) bool {
	o := q.l.opts
	if o.epochSamples > 0 && q.delivered >= max(1, o.epochSamples/o.world) {
		return false
	}
	if !o.shuffle || o.window < 2 {
		if !q.readInOrder(r) {
			return false
		}
		q.delivered++
		return true
	}
	for len(q.window) < o.window {
		next := &Record{}
		if n := len(q.spare) - 1; n >= 0 {
			next, q.spare = q.spare[n], q.spare[:n]
		}
		if !q.readInOrder(&next) {
			q.spare = append(q.spare, next)
			break
		}
		q.window = append(q.window, next)
	}
	n := len(q.window)
	if n == 0 {
		return false
	}
	key := epochKey(q.l.seedKey, q.epoch) + uint64(q.delivered*o.world+o.rank)*golden
	pick := mix64(key) % uint64(n) // a window is too small for the bias to show
	*r, q.window[pick] = q.window[pick], *r
	q.spare, q.window[pick], q.window = append(q.spare, q.window[pick]), q.window[n-1], q.window[:n-1]
	q.delivered++
	return true
}

// readInOrder replaces *r by the next record as it is read.
func (q *sequence) readInOrder(r **Record) bool {
	empty := 0 // chains in a row that had nothing
	for empty < len(q.chains) {
		l := q.chains[q.turn]
		q.turn = (q.turn + 1) % len(q.chains)
		if l.read(r) {
			return true
		}
		empty++
	}
	return false
}

// fill reads the records of a batch and offers them to the workers: each as it
// comes, or with WithDropLast all at once, since a short batch is not to be
// loaded. At the end of the course the batch stays smaller or empty.
func (q *sequence) fill(seq uint64, b *Batch) {
	o := q.l.opts
	n := 0
	for n == 0 && q.epoch <= q.last && !q.l.ring.Stopped() {
		if !q.started {
			q.start()
			for ; q.skip > 0 && q.read(&b.records[0]); q.skip-- {
			}
		}
		b.epoch, b.index, b.from = q.epoch, q.index, q.delivered
		for n < o.batchSize && !q.l.ring.Stopped() && q.read(&b.records[n]) {
			b.indices[n] = (q.delivered-1)*o.world + o.rank
			n++
			if n < o.batchSize && !o.dropLast {
				q.l.ring.Offer(seq, n)
			}
		}
		if q.index++; n < o.batchSize { // the epoch is over
			if o.dropLast {
				n = 0
			}
			q.stop()
			q.epoch, q.index = q.epoch+1, 0
		}
	}
	b.size, b.end = n, n == 0
	b.state = State{Epoch: b.epoch, Samples: q.delivered * o.world}
	if o.unordered {
		b.state.Samples = -1
	}
	q.l.ring.Seal(seq, n)
}

// A chain reads some of a rank's shards, one after the other. It belongs to the
// sequence or, if it reads ahead, to a goroutine of its own until it is closed.
type chain struct {
	q      *sequence
	shards []int
	at     int // of shards: the one that is open or opened next
	reader ShardReader
	failed bool // reading all shards from the start gave nothing

	// Where the chain reads ahead: full records come and empty ones go back.
	full, empty chan *Record
	done        chan struct{}
	ctx         context.Context
	cancel      context.CancelFunc
}

// readAhead is how many records a chain has ready.
const readAhead = 16

func newChain(q *sequence, shards []int) *chain {
	c := &chain{q: q, shards: shards, ctx: q.ctx}
	if !q.ahead {
		return c
	}
	c.ctx, c.cancel = context.WithCancel(q.ctx)
	c.full, c.empty, c.done = make(chan *Record, readAhead), make(chan *Record, readAhead), make(chan struct{})
	for range readAhead {
		c.empty <- &Record{}
	}
	go c.run()
	return c
}

// run is the goroutine of a chain that reads ahead.
func (c *chain) run() {
	defer close(c.done)
	defer close(c.full)
	for {
		select {
		case r := <-c.empty:
			if !c.next(r) {
				return
			}
			c.full <- r // has room: no more records are under way
		case <-c.ctx.Done():
			return
		}
	}
}

// read replaces *r by the chain's next record, and reports false after the last.
func (c *chain) read(r **Record) bool {
	if c.full == nil {
		return c.next(*r)
	}
	got, ok := <-c.full
	if ok {
		*r, got = got, *r
		c.empty <- got
	}
	return ok
}

// close ends the chain and closes what it has open.
func (c *chain) close() {
	if c.full != nil {
		c.cancel()
		<-c.done
	}
	c.shut()
}

func (c *chain) shut() {
	if c.reader != nil {
		if err := c.reader.Close(); err != nil {
			c.q.l.opts.log.Warn("nwt: a shard could not be closed", "shard", c.shards[c.at], "error", err)
		}
		c.reader = nil
	}
}

// next reads the next record of the chain's shards, and reports false after the
// last. A failure is a record too: a bad one.
func (c *chain) next(r *Record) (ok bool) {
	r.err = nil
	for c.ctx.Err() == nil {
		if c.at == len(c.shards) {
			if c.q.l.opts.epochSamples == 0 || c.failed {
				return false
			}
			c.at, c.failed = 0, true
		}
		err := c.attempt(r)
		if err == nil {
			c.failed = false
			return true
		}
		shard := c.shards[c.at]
		c.shut()
		c.at++
		if !errors.Is(err, io.EOF) {
			r.err = fmt.Errorf("shard %d: %w", shard, err)
			return true
		}
	}
	return false
}

// attempt opens the shard where that is due, and reads a record.
func (c *chain) attempt(r *Record) (err error) {
	finished := false
	defer func() {
		if !finished {
			stack, cause := recovered(recover())
			err = fmt.Errorf("%w\n%s", cause, stack)
		}
	}()
	if c.reader == nil {
		c.reader, err = c.q.stream.Open(c.ctx, c.shards[c.at])
	}
	if err == nil {
		err = c.reader.Next(c.ctx, r)
	}
	finished = true
	return err
}
