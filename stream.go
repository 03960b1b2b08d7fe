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
	ahead  bool // lanes read ahead, each in a goroutine of its own

	epoch, last int
	index       int // of the next batch in its epoch
	delivered   int // records of the epoch that were handed out or skipped
	skip        int // records to drop before the first
	lanes       []*lane
	turn        int       // lane to ask next
	window      []*Record // of the shuffle: the records it holds
	spare       []*Record // records for the window to grow with
	started     bool      // the epoch's lanes are open
}

func newSequence(r *run, ahead bool) *sequence {
	c := r.course
	return &sequence{
		l: r.l, stream: r.l.ds.(*streamDataset).Stream, ctx: r.ctx, ahead: ahead, epoch: c.first, last: c.last,
		skip: c.base / r.l.order.world, index: c.skipped,
	}
}

// start opens the lanes of an epoch.
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
	q.lanes = q.lanes[:0]
	for i := range min(o.interleave, len(mine)) {
		var shards []int
		for k := i; k < len(mine); k += o.interleave {
			shards = append(shards, mine[k])
		}
		q.lanes = append(q.lanes, newLane(q, shards))
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

// stop closes what is open, and joins the lanes.
func (q *sequence) stop() {
	for _, l := range q.lanes {
		l.close()
	}
	q.lanes, q.started = nil, false
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
	empty := 0 // lanes in a row that had nothing
	for empty < len(q.lanes) {
		l := q.lanes[q.turn]
		q.turn = (q.turn + 1) % len(q.lanes)
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

// lane reads some of the shards one after the other.
type lane struct {
	q      *sequence
	shards []int
	at     int // of shards: the one that is open or opened next
	reader ShardReader
	failed bool // reading all shards from the start gave nothing

	// Where the lane reads ahead: full records come and empty ones go back.
	full, empty chan *Record
	done        chan struct{}
	ctx         context.Context
	cancel      context.CancelFunc
}

// readAhead is how many records a lane has ready.
const readAhead = 16

func newLane(q *sequence, shards []int) *lane {
	l := &lane{q: q, shards: shards, ctx: q.ctx}
	if !q.ahead {
		return l
	}
	l.ctx, l.cancel = context.WithCancel(q.ctx)
	l.full, l.empty, l.done = make(chan *Record, readAhead), make(chan *Record, readAhead), make(chan struct{})
	for range readAhead {
		l.empty <- &Record{}
	}
	go l.run()
	return l
}

// run is the goroutine of a lane that reads ahead.
func (l *lane) run() {
	defer close(l.done)
	defer close(l.full)
	for {
		select {
		case r := <-l.empty:
			if !l.next(r) {
				return
			}
			l.full <- r // has room: no more records are under way
		case <-l.ctx.Done():
			return
		}
	}
}

// read replaces *r by the lane's next record, and reports false after the last.
func (l *lane) read(r **Record) bool {
	if l.full == nil {
		return l.next(*r)
	}
	got, ok := <-l.full
	if ok {
		*r, got = got, *r
		l.empty <- got
	}
	return ok
}

// close ends the lane and closes what it has open.
func (l *lane) close() {
	if l.full != nil {
		l.cancel()
		<-l.done
	}
	l.shut()
}

func (l *lane) shut() {
	if l.reader != nil {
		if err := l.reader.Close(); err != nil {
			l.q.l.opts.log.Warn("nwt: a shard could not be closed", "shard", l.shards[l.at], "error", err)
		}
		l.reader = nil
	}
}

// next reads the next record of the lane's shards, and reports false after the
// last. A failure is a record too: a bad one.
func (l *lane) next(r *Record) (ok bool) {
	r.err = nil
	for l.ctx.Err() == nil {
		if l.at == len(l.shards) {
			if l.q.l.opts.epochSamples == 0 || l.failed {
				return false
			}
			l.at, l.failed = 0, true
		}
		err := l.attempt(r)
		if err == nil {
			l.failed = false
			return true
		}
		shard := l.shards[l.at]
		l.shut()
		l.at++
		if !errors.Is(err, io.EOF) {
			r.err = fmt.Errorf("shard %d: %w", shard, err)
			return true
		}
	}
	return false
}

// attempt opens the shard where that is due, and reads a record.
func (l *lane) attempt(r *Record) (err error) {
	finished := false
	defer func() {
		if !finished {
			stack, cause := recovered(recover())
			err = fmt.Errorf("%w\n%s", cause, stack)
		}
	}()
	if l.reader == nil {
		l.reader, err = l.q.stream.Open(l.ctx, l.shards[l.at])
	}
	if err == nil {
		err = l.reader.Next(l.ctx, r)
	}
	finished = true
	return err
}
