package nwt

import (
	"context"
	"fmt"
	"math"
	"sync/atomic"

	"github.com/nwt-go/nwt/internal/files"
	"github.com/nwt-go/nwt/internal/lanes"
	"github.com/nwt-go/nwt/internal/order"
	"github.com/nwt-go/nwt/internal/permute"
	"github.com/nwt-go/nwt/internal/retry"
	"github.com/nwt-go/nwt/internal/ring"
	"github.com/nwt-go/nwt/internal/shards"
)

// A streamFill fills the batches of a run with the records of a stream. It belongs to one
// goroutine: the run's reader or, without workers, the consumer.
type streamFill struct {
	run   *run
	l     *engine
	ahead bool                  // shards are read ahead, each in its own goroutine, and feed's goroutine fills the batches
	queue chan *Batch           // the batches that feed has to fill; nil unless ahead
	lanes *shards.Lanes[Record] // for one CountedStream, see source.counted; otherwise nil

	// For one CountedStream: where in the lanes the first epoch begins, and whether reading has begun.
	origin int64
	begun  bool

	// For other streams.
	epochs      *shards.Epochs[Record]
	most        int // the most records of an epoch, so that all ranks' places fit into an int
	epoch, last int
	number      int         // of the next batch in its epoch
	whole       int         // batches of a whole epoch; 0: not known
	skip        int         // records to leave out before the first one
	started     bool        // the epoch has begun
	done        bool        // no epoch comes after this one
	ended       atomic.Bool // a batch was the end: the batches opened after it are empty
}

func newStreamFill(r *run, ahead bool) *streamFill {
	c, o := r.course, r.l.opts
	var queue chan *Batch
	if ahead {
		queue = make(chan *Batch, ring.Capacity) // has room for every batch that can be open
	}
	q := &streamFill{
		run: r, l: r.l, ahead: ahead, queue: queue, epoch: c.First, last: c.Last,
		skip: c.Base / o.world, number: c.Skipped, most: (math.MaxInt - o.rank) / o.world,
	}
	if r.l.counted {
		q.readLanes()
		return q
	}
	q.epochs = &shards.Epochs[Record]{Group: q.group(), Quota: o.quota(o.world), Mix: r.l.plan, Bytes: o.aheadBytes, Lost: r.l.lostAgain}
	if q.epochs.Quota > 0 {
		perRank := o.perRank()
		q.whole = perRank.Steps(0)
		q.number = q.whole - perRank.Steps(q.skip)
	}
	first := 0
	for k, n := range r.l.shards {
		if r.l.counts[k] == nil {
			q.epochs.Add(q.config(k, first))
		} else {
			q.epochs.AddCounted(q.draws(q.epochs.Group, k, first))
		}
		first += n
	}
	return q
}

// group returns what the parts of a mixture share.
func (q *streamFill) group() *shards.Group {
	return &shards.Group{
		Context: retry.With(q.run.ctx, q.l.opts.retry), Log: q.l.opts.log, Mixing: q.l.mixing, Ahead: q.ahead, Watchdog: q.l.pool.watchdog,
		Stop: func(err error) {
			q.run.stop(fmt.Errorf("nwt: the epoch ends because of a stream's reader: %w", err))
		},
	}
}

// config returns how to read stream k of the dataset, whose shards are numbered from first.
func (q *streamFill) config(k, first int) shards.Config[Record] {
	s, n, o := q.l.ds.(*streamDataset).streams[k], q.l.shards[k], q.l.opts
	order, key := o.shardOrder(n, k), permute.SeedKey(o.seedOfStream(k))
	c := shards.Config[Record]{
		Open: func(ctx context.Context, shard int) (shards.Reader[Record], error) { return s.Open(ctx, shard-first) },
		Again: func(ctx context.Context, failures int, err error) error {
			if files.TooMany(err) {
				return err
			}
			return o.retry.Again(ctx, failures, err)
		},
		Size:   func(r *Record) int { return cap(r.Data) },
		Failed: func(shard, record int, err error) error { return &ShardError{Shard: shard, Record: record, Err: err} },
		Shards: func(epoch int) (all []int) {
			for i := o.rank; i < n; i += o.world {
				all = append(all, first+order.At(epoch, i))
			}
			return all
		},
		AtOnce: o.shardsAtOnce(),
		Draw: func(epoch, i, n int) int {
			key := permute.EpochKey(key, epoch) + uint64(i*o.world+o.rank)*permute.Golden
			return int(permute.Mix64(key) % uint64(n)) // a window is so small that the bias doesn't matter
		},
	}
	if o.shuffle {
		c.Window = o.window
	}
	return c
}

// seedOfStream returns the seed from which the order of stream k of a dataset is computed.
func (o *options) seedOfStream(k int) uint64 { return o.shuffled + uint64(k)*permute.Golden }

// shardOrder returns the order of the shards of stream k of a dataset, for all ranks together.
func (o *options) shardOrder(shards, k int) Sampler {
	if o.shuffle {
		return Shuffled(shards, o.seedOfStream(k))
	}
	return Sequential(shards)
}

// perRank returns the order of the batches that a rank takes from a stream with WithEpochSamples.
func (o *options) perRank() order.Order {
	return order.Order{N: o.quota(o.world), Batch: o.batchSize, World: 1, DropLast: o.dropLast}
}

// quota returns how many samples of a stream WithEpochSamples gives to each of world ranks in an epoch; 0
// without it.
func (o *options) quota(world int) int {
	if o.epochSamples == 0 {
		return 0
	}
	return max(1, o.epochSamples/world)
}

// isWholeEpoch reports whether WithEpochSamples ends a stream's epoch once world ranks have had samples of
// its samples, more than 0.
func (o *options) isWholeEpoch(samples, world int) bool {
	if o.epochSamples == 0 || world < 1 || samples%world != 0 {
		return false
	}
	left := o.quota(world) - samples/world
	return left == 0 || left > 0 && left < o.batchSize && o.dropLast
}

// stop ends reading.
func (q *streamFill) stop() {
	if q.lanes != nil {
		q.lanes.Stop()
	} else {
		q.epochs.Stop()
	}
}

// take fills a batch that the run has opened, or makes feed fill it.
func (q *streamFill) take(b *Batch) {
	if q.ahead {
		q.queue <- b
	} else {
		q.fill(b)
	}
}

// feed fills the batches in queue until the run ends.
func (q *streamFill) feed() {
	defer q.stop()
	for {
		select {
		case b := <-q.queue:
			q.fill(b)
		case <-q.run.ctx.Done():
			return
		}
	}
}

// fill reads the records of a batch and offers them to the workers, each as soon as it is read. With
// WithDropLast it offers them all at once, since a short batch must not be loaded. If nothing is left to
// read, b is marked as the end, with the failure if there was one.
func (q *streamFill) fill(b *Batch) {
	q.l.counters.reading.Start()
	defer q.l.counters.reading.Stop()
	if q.lanes != nil {
		q.fillStep(b)
		return
	}
	o := q.l.opts
	n, more := 0, false
	b.failure = nil
	for n == 0 && b.failure == nil && !q.done && !q.l.ring.Stopped() {
		if !q.started {
			if b.failure = q.epochs.Begin(q.epoch, q.skip); b.failure != nil {
				b.failure = fmt.Errorf("nwt: %w", b.failure)
			}
			q.started, q.skip = true, 0
		}
		b.epoch, b.number, b.key, b.from = q.epoch, q.number, q.l.seedKey, q.epochs.Delivered()*o.world+o.rank
		if b.failure == nil {
			n = q.fillPlaces(b)
			more = n == o.batchSize
		}
		if more {
			q.number++
			break
		}
		if q.run.ctx.Err() != nil {
			b.failure = nil // reading ended because the run did, so this isn't a failure
		} else if b.failure == nil {
			b.failure = q.wrong(n)
		}
		if o.dropLast {
			n = 0
		}
		q.tellOfUnread()
		q.endEpoch()
	}
	q.done = q.done || b.failure != nil
	b.end = n == 0 || b.failure != nil
	b.resize(n)
	b.final = n < o.batchSize || b.number == q.whole-1
	b.reached = q.epochs.Delivered() * o.world
	if dropped := o.batchSize - n; n > 0 && dropped > 0 {
		b.loadedPlaces(dropped, 0)
	}
	if b.end {
		q.ended.Store(true)
	}
	q.l.ring.Seal(b.seq, n)
}

// tellOfUnread warns if the loader's first whole epoch of WithEpochSamples has not reached the end of any
// shard: then no epoch will.
func (q *streamFill) tellOfUnread() {
	whole := q.epochs.Quota > 0 && q.epochs.Delivered() == q.epochs.Quota && (q.epoch > q.run.course.First || q.run.course.Base == 0)
	if !whole || q.run.ctx.Err() != nil || !q.l.once.First("WithEpochSamples") {
		return
	}
	if k := q.epochs.Unended(); k >= 0 {
		q.l.opts.log.Warn("nwt: an epoch has ended before any of its shards did. The next one begins its shards anew, so their ends are never read: "+
			"raise WithEpochSamples, or give the counts of a CountedStream", "during", q.l.during(), "WithEpochSamples", q.l.opts.epochSamples, "stream", k, "shards", q.l.shards[k])
	}
}

// endEpoch moves on to the next epoch, if there is one.
func (q *streamFill) endEpoch() {
	q.epochs.End()
	q.started, q.number = false, 0
	if q.epoch == q.last {
		q.done = true
	} else {
		q.epoch++
	}
}

// fillPlaces reads records until the batch is full or the epoch ends. It returns how many it has read.
func (q *streamFill) fillPlaces(b *Batch) (n int) {
	o := q.l.opts
	for n < o.batchSize && q.epochs.Delivered() < q.most && !q.l.ring.Stopped() && q.epochs.Next(&b.records[n]) {
		b.indices[n] = (q.epochs.Delivered()-1)*o.world + o.rank
		n++
		if n < o.batchSize && !o.dropLast {
			q.l.ring.Offer(b.seq, n)
		}
	}
	return n
}

// wrong returns what is wrong with an epoch whose last batch has n records. An epoch without a batch is
// an error: otherwise nobody would notice, and the other ranks would wait for this one.
func (q *streamFill) wrong(n int) error {
	o, delivered, dry := q.l.opts, q.epochs.Delivered(), max(0, q.epochs.Dry())
	shards := fmt.Sprintf("for rank %d of %d: its shards (of %d in all)", o.rank, o.world, q.l.shards[dry])
	switch {
	case delivered == q.most:
		return fmt.Errorf("nwt: epoch %d of %d ranks has more samples than fit in an int", q.epoch, o.world)
	case q.l.plan != nil && q.epochs.Dry() >= 0:
		return fmt.Errorf("nwt: epoch %d has no sample of stream %d %s are empty", q.epoch, dry, shards)
	case delivered > 0 && delivered < q.epochs.Quota:
		return fmt.Errorf("nwt: epoch %d has only %d of %d samples %s have become empty", q.epoch, delivered, q.epochs.Quota, shards)
	case q.number > 0 || n > 0 && !o.dropLast:
		return nil
	case n > 0:
		return fmt.Errorf("nwt: epoch %d has no batch for rank %d: WithDropLast, and fewer samples (%d) than one batch of %d", q.epoch, o.rank, n, o.batchSize)
	}
	return fmt.Errorf("nwt: epoch %d has no sample %s are empty", q.epoch, shards)
}

// planOf returns the order of the records of stream k, whose records are counted and whose shards are
// numbered from first.
func (q *streamFill) planOf(k, first int) *lanes.Plan {
	o, counts := q.l.opts, q.l.counts[k]
	p := &lanes.Plan{
		N: counts.n, Counts: counts.all, Shard: o.shardOrder(len(counts.all), k).At, First: first, Lanes: counts.lanes,
		Block: 64, Mixes: o.shuffle, Key: permute.SeedKey(o.seedOfStream(k)),
	}
	if o.shuffle {
		p.Block = (o.window-1)/p.Lanes + 1
	}
	return p
}

// readLanes prepares q for a CountedStream, whose records are in lanes.
func (q *streamFill) readLanes() {
	c, p := q.run.course, q.planOf(0, 0)
	q.origin = p.Begin(c.First, c.N, c.Base)
	steps := &lanes.Steps{
		Lanes: p.Lanes, Origin: q.origin, Base: c.Base, Epoch: int64(c.N), Step: c.Step(), Head: c.Head, Whole: c.Whole, Len: c.Len(),
		Span: func(k int) (first, after int64, low, high int) {
			epoch, base, k, _ := c.At(k)
			from, to := c.Bounds(base, k)
			low, high, _ = c.Part(base, k)
			start := q.startOf(epoch)
			return start + int64(from), start + int64(to), low - from, high - from
		},
	}
	q.lanes = shards.NewLanes(q.group(), 0, p, steps, q.config(0, 0))
}

// draws prepares a CountedStream that is part k of a mixture. Each step contains the same number of
// records of each lane, and each rank draws the same number of records from a step, so that ranks seldom
// share a lane.
func (q *streamFill) draws(g *shards.Group, k, first int) *shards.Draws[Record] {
	rank, world, n := q.l.opts.rank, q.l.opts.world, q.l.counts[k].lanes
	each := lanes.Each(n, world)
	return &shards.Draws[Record]{Each: each, Open: func(step uint64) *shards.Lanes[Record] {
		p := q.planOf(k, first)
		origin, all := p.Begin(int(step), each*world, 0), each*world
		steps := &lanes.Steps{
			Lanes: n, Origin: origin, Epoch: math.MaxInt64, Step: all, Head: math.MaxInt, Len: math.MaxInt,
			Span: func(k int) (first, after int64, low, high int) {
				first = origin + int64(k)*int64(all)
				return first, first + int64(all), rank * each, (rank + 1) * each
			},
		}
		return shards.NewLanes(g, k, p, steps, q.config(k, first))
	}}
}

// startOf returns where in the lanes an epoch begins.
func (q *streamFill) startOf(epoch int) int64 {
	c := &q.run.course
	return q.origin + int64(epoch-c.First)*int64(c.N)
}

// fillStep reads the records of a batch of a CountedStream, and offers each to the workers as soon as it
// is read. Which part of the epoch the batch is, and so its State, run.place has written, as for a dataset.
func (q *streamFill) fillStep(b *Batch) {
	start := q.startOf(b.epoch)
	horizon := start + 2*int64(q.run.course.N) // the end of the next epoch
	if !q.begun {
		q.begun = true
		q.lanes.Begin(q.l.opts.aheadBytes, horizon)
	}
	q.lanes.Turn(int(b.seq-q.run.first), horizon)
	n := 0
	for ; n < b.opened && !q.l.ring.Stopped(); n++ {
		position, ok := q.lanes.Next(&b.records[n])
		if !ok {
			break
		}
		if b.indices[n] = int(position - start); n == 0 {
			b.from = b.indices[0]
		} else {
			q.l.ring.Offer(b.seq, n)
		}
	}
	b.resize(n) // fewer if the run ends: the batch will not be delivered
	q.l.ring.Seal(b.seq, n)
}
