package nwt

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/nwt-go/nwt/internal/files"
	"github.com/nwt-go/nwt/internal/human"
	"github.com/nwt-go/nwt/internal/lanes"
	"github.com/nwt-go/nwt/internal/mix"
	"github.com/nwt-go/nwt/internal/permute"
	"github.com/nwt-go/nwt/internal/retry"
	"github.com/nwt-go/nwt/internal/shards"
)

// A sequence reads the records of a run in order. It belongs to one goroutine:
// the run's reader or, without workers, the consumer.
//
// An epoch is one pass over the rank's shards or, if WithEpochSamples asks for
// more than they hold, several passes, one after the other. What is read next
// depends on (seed, epoch, place) alone, because whatever is left of an epoch is
// dropped when it ends.
type sequence struct {
	run   *run
	l     *Loader
	ctx   context.Context
	ahead bool // shards are read ahead, each in a goroutine of its own
	quota int  // records of an epoch, from WithEpochSamples; else 0
	most  int  // records that an epoch may have, so that all ranks' places fit into an int
	parts []*streamPart
	plan  *mix.Plan // which part each record is of; nil without MixedStreams

	lanes  *shards.Lanes[Record] // of a CountedStream; else nil
	origin int64                 // where in the lanes the first epoch begins

	epoch, last int
	over        bool // nothing comes after epoch
	index       int  // of the next batch in its epoch
	delivered   int  // records of the epoch that were handed out or skipped
	skip        int  // records to drop before the first
	started     bool
	dry         *streamPart // the part that had no record left
	ended       atomic.Bool // a batch was the end: those opened after it hold nothing
}

// A streamPart reads the records of one of a run's streams in order. It belongs to the
// sequence.
type streamPart struct {
	*shards.Set[Record]
	number int
	shards int // of all ranks
	draws  int // its records in all blocks of the plan that the epoch touches; math.MaxInt if the epoch ends with the shards
}

func newSequence(r *run, ahead bool) *sequence {
	c, o := r.course, r.l.opts
	q := &sequence{
		run: r, l: r.l, ctx: r.ctx, ahead: ahead, epoch: c.first, last: c.last,
		skip: c.base / o.world, index: c.skipped, most: (math.MaxInt - o.rank) / o.world, quota: o.quota(o.world), plan: r.l.plan,
	}
	if q.quota > 0 {
		perRank := o.perRank()
		q.index = perRank.steps(0) - perRank.steps(q.skip)
	}
	if r.l.counted != nil {
		q.readLanes()
		return q
	}
	first, group := 0, q.group()
	for k, s := range r.l.ds.(*streamDataset).streams {
		n := r.l.shards[k]
		q.parts = append(q.parts, &streamPart{Set: shards.New(group, k, q.config(s, k, n, first)), number: k, shards: n})
		first += n
	}
	return q
}

// group is what the parts share.
func (q *sequence) group() *shards.Group {
	return &shards.Group{
		Context: retry.With(q.ctx, q.l.opts.retry), Log: q.l.opts.log, Mixing: q.l.mixing, Ahead: q.ahead, Timeout: q.l.opts.timeout, Away: &q.l.away,
		Stop: func(err error) {
			q.run.stop(fmt.Errorf("nwt: the epoch ends because of a stream's reader: %w", err))
		},
	}
}

// config says how to read stream k of the dataset, whose n shards are counted from first.
func (q *sequence) config(s Stream, k, n, first int) shards.Config[Record] {
	o, order, key := q.l.opts, q.l.opts.shardOrder(n, k), permute.SeedKey(q.l.opts.seedOfStream(k))
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
			return int(permute.Mix64(key) % uint64(n)) // a window is too small for the bias to show
		},
	}
	if o.shuffle {
		c.Window = o.window
	}
	return c
}

// mixing counts bytes that come into a shuffle window or, if negative, go. It warns when they take
// much of the memory that was left before.
func (l *Loader) mixing(bytes int) {
	most := l.windowRoom()
	now := l.windowBytes.Add(int64(bytes))
	if float64(now) > most && float64(now-int64(bytes)) <= most && l.once.isNews("WithShuffleWindow") {
		l.opts.log.Warn("nwt: the records that are mixed take more than an eighth of the memory left: lower WithShuffleWindow",
			"during", l.once.during, "WithShuffleWindow", l.opts.window, "bytes", human.Bytes(uint64(now)), "left", human.Bytes(uint64(most/extraShare)))
	}
}

// seedOfStream is what the order of stream k of a dataset is computed from.
func (o *options) seedOfStream(k int) uint64 { return o.shuffled + uint64(k)*permute.Golden }

// shardOrder is the order of the shards of stream k of a dataset, for all ranks together.
func (o *options) shardOrder(shards, k int) Sampler {
	if o.shuffle {
		return Shuffled(shards, o.seedOfStream(k))
	}
	return Sequential(shards)
}

// stop ends the passes of all parts.
func (q *sequence) stop() {
	if q.lanes != nil {
		q.lanes.Stop()
	}
	for _, p := range q.parts {
		p.Stop()
	}
}

// feed fills the batches that the run opens, until it ends.
func (q *sequence) feed(r *run) error {
	defer q.stop()
	for {
		select {
		case b := <-r.toFill:
			q.fill(b)
		case <-r.ctx.Done():
			return nil
		}
	}
}

// read replaces *r by the next record of the epoch. It reports false after the last
// record, and if the run ends.
func (q *sequence) read(r **record) bool {
	if q.quota > 0 && q.delivered == q.quota {
		return false
	}
	p := q.parts[0]
	if q.plan != nil {
		p = q.choose(r)
	}
	if !p.Next(r) {
		q.dry = p
		return false
	}
	q.delivered++
	return true
}

// choose is the part that the next record is of. If *r is a record of another part, choose
// gives it back to that part, which will read into it again, and takes one of this part.
func (q *sequence) choose(r **record) *streamPart {
	part, _ := q.plan.At(q.position(q.delivered))
	p := q.parts[part]
	if old := *r; old.Part != part {
		q.parts[old.Part].Return(old)
		*r = p.Blank()
	}
	return p
}

// position is the number of the rank's record i of the epoch, counted over all epochs.
func (q *sequence) position(i int) uint64 { return uint64(q.epoch)*uint64(q.quota) + uint64(i) }

// begin begins an epoch. What a State says was delivered is skipped, or read and dropped.
func (q *sequence) begin(scratch **record) error {
	needed := int64(0)
	for k, p := range q.parts {
		p.draws = cmp.Or(q.quota, math.MaxInt)
		if q.plan != nil {
			p.draws = q.plan.Draws(k, q.position(0), q.position(q.quota))
		}
		if p.draws > 0 {
			needed++
		}
	}
	for _, p := range q.parts {
		p.Begin(q.epoch, p.draws, q.l.opts.aheadBytes/needed)
	}
	q.started, q.delivered = true, 0
	if o := q.l.opts; q.skip > 0 && o.endsEpoch(q.skip*o.world, o.world) {
		q.delivered, q.skip = q.quota, 0
		return nil
	}
	if q.skips() {
		return q.skipAhead()
	}
	for _, p := range q.parts {
		p.GoAhead()
	}
	return q.drop(scratch)
}

// skips tells whether to skip the records that a State says were delivered: if all
// readers can, and the records are more than the shuffle window holds. (Those in the
// window must be read in any case.)
func (q *sequence) skips() bool {
	o := q.l.opts
	if q.skip == 0 || o.shuffle && q.skip < o.window {
		return false
	}
	for _, p := range q.parts {
		if p.draws > 0 && !p.Skips() {
			return false
		}
	}
	return true
}

// skipAhead begins an epoch after q.skip records of it, as if they had been read and
// dropped.
func (q *sequence) skipAhead() error {
	n := q.skip
	q.skip = 0
	counts := []uint64{uint64(n)} // of each part
	if q.plan != nil {
		counts = q.plan.Before(q.ctx, q.position(n))
		for k, before := range q.plan.Before(q.ctx, q.position(0)) {
			counts[k] -= before
		}
	}
	if q.ctx.Err() != nil {
		return nil // counts may be too low
	}
	var group errgroup.Group
	var err error
	for k, p := range q.parts {
		if n := int(counts[k]); q.ahead {
			group.Go(func() error { return p.SkipTo(n, q.unread) })
		} else {
			err = cmp.Or(err, p.SkipTo(n, q.unread))
		}
	}
	if err = cmp.Or(err, group.Wait()); err != nil {
		return fmt.Errorf("nwt: to resume after %d samples of epoch %d isn't possible: %w", n, q.epoch, err)
	}
	q.delivered = n
	return nil
}

// unread returns the error of a record that was delivered before and can't be read now: what
// follows isn't the rest of the epoch. With an error budget it only warns, since the record may
// have been bad then too.
func (q *sequence) unread(err error) error {
	if q.l.opts.maxBad == 0 {
		return err
	}
	q.l.opts.log.Warn("nwt: a record that was delivered before can't be read now: unless it was bad then, samples are lost", "epoch", q.epoch, "error", err)
	return nil
}

// drop reads the records that were delivered before.
func (q *sequence) drop(scratch **record) error {
	for from := q.skip; q.skip > 0; q.skip-- {
		if !q.read(scratch) {
			return fmt.Errorf("nwt: to resume after %d samples of epoch %d isn't possible: this rank's shards have %d", from, q.epoch, q.delivered)
		}
		if err := (*scratch).Err; err != nil {
			if err = q.unread(err); err != nil {
				return fmt.Errorf("nwt: to resume after %d samples of epoch %d isn't possible: record %d of these can't be read: %w", from, q.epoch, q.delivered-1, err)
			}
		}
	}
	return nil
}

// fill reads the records of a batch and offers them to the workers: each as it
// comes, or with WithDropLast all at once, since a short batch must not be loaded.
// If nothing is left to read, b is marked as the end, with a failure if there was
// one.
func (q *sequence) fill(b *Batch) {
	q.l.counters.reading.start()
	defer q.l.counters.reading.stop()
	if q.lanes != nil {
		q.fillStep(b)
		return
	}
	o := q.l.opts
	n, more := 0, false
	b.failure = nil
	for n == 0 && b.failure == nil && !q.over && !q.l.ring.Stopped() {
		if !q.started {
			b.failure = q.begin(&b.records[0])
		}
		b.epoch, b.index, b.from = q.epoch, q.index, q.delivered*o.world+o.rank
		if b.failure == nil {
			n = q.fillPlaces(b)
			more = n == o.batchSize
		}
		if more {
			q.index++
			break
		}
		if q.ctx.Err() != nil {
			b.failure = nil // reading has ended with the run, which proves nothing
		} else if b.failure == nil {
			b.failure = q.wrong(n)
		}
		if o.dropLast {
			n = 0
		}
		q.tellOfUnread()
		q.endEpoch()
	}
	q.over = q.over || b.failure != nil
	b.end = n == 0 || b.failure != nil
	b.resize(n)
	b.left, b.reached = q.left(n), q.delivered*o.world
	b.state = State{Epoch: b.epoch, Samples: b.reached, World: o.world}
	if o.unordered {
		b.state.Samples = -1
	}
	if dropped := o.batchSize - n; n > 0 && dropped > 0 {
		b.loadedPlaces(dropped, 0)
	}
	if b.end {
		q.ended.Store(true)
	}
	q.l.ring.Seal(b.seq, n)
}

// left is how many places follow in the epoch after a batch of n; −1: not known.
func (q *sequence) left(n int) int {
	o := q.l.opts
	switch {
	case n < o.batchSize:
		return 0
	case q.quota == 0:
		return -1
	}
	left := q.quota - q.delivered
	if o.dropLast {
		left -= left % o.batchSize
	}
	return left
}

// tellOfUnread looks whether the loader's first whole epoch of WithEpochSamples has come to the end
// of any shard, and warns if not: then no epoch does.
func (q *sequence) tellOfUnread() {
	whole := q.quota > 0 && q.delivered == q.quota && (q.epoch > q.run.course.first || q.run.course.base == 0)
	if !whole || q.ctx.Err() != nil || !q.l.once.isNews("WithEpochSamples") {
		return
	}
	for k, p := range q.parts {
		if p.draws > 0 && p.Unended() {
			q.l.opts.log.Warn("nwt: an epoch has ended before any of its shards did. The next one begins its shards anew, so their ends are never read: "+
				"raise WithEpochSamples, or give the counts of a CountedStream", "during", q.l.once.during, "WithEpochSamples", q.l.opts.epochSamples, "stream", k, "shards", p.shards)
			return
		}
	}
}

// endEpoch goes on to the next epoch, if there is one.
func (q *sequence) endEpoch() {
	q.stop()
	q.started, q.index = false, 0
	if q.epoch == q.last {
		q.over = true
	} else {
		q.epoch++
	}
}

// fillPlaces reads records until the batch is full or the epoch over. It returns how many.
func (q *sequence) fillPlaces(b *Batch) (n int) {
	o := q.l.opts
	for n < o.batchSize && q.delivered < q.most && !q.l.ring.Stopped() && q.read(&b.records[n]) {
		b.indices[n] = (q.delivered-1)*o.world + o.rank
		n++
		if n < o.batchSize && !o.dropLast {
			q.l.ring.Offer(b.seq, n)
		}
	}
	return n
}

// wrong tells what is wrong with an epoch whose last batch has n records. An epoch
// without any batch is an error: otherwise nobody would notice, and the other ranks
// would wait for this one.
func (q *sequence) wrong(n int) error {
	o := q.l.opts
	switch {
	case q.delivered == q.most:
		return fmt.Errorf("nwt: epoch %d of %d ranks has more samples than an int counts", q.epoch, o.world)
	case q.plan != nil && q.dry != nil:
		return fmt.Errorf("nwt: epoch %d has no sample of stream %d for rank %d of %d: its shards, of the stream's %d, are empty", q.epoch, q.dry.number, o.rank, o.world, q.dry.shards)
	case q.delivered > 0 && q.delivered < q.quota:
		return fmt.Errorf("nwt: epoch %d has no more than %d samples of the %d for rank %d of %d: its shards, of the stream's %d, have become empty", q.epoch, q.delivered, q.quota, o.rank, o.world, q.parts[0].shards)
	case q.index > 0 || n > 0 && !o.dropLast:
		return nil
	case n > 0:
		return fmt.Errorf("nwt: epoch %d has no batch: rank %d has %d samples, WithDropLast leaves out less than WithBatchSize(%d)", q.epoch, o.rank, n, o.batchSize)
	}
	return fmt.Errorf("nwt: epoch %d has no sample for rank %d of %d: its shards, of the stream's %d, are empty", q.epoch, o.rank, o.world, q.parts[0].shards)
}

// shardsOfRank is how many shards this rank reads of the stream that has the most.
func (s *source) shardsOfRank() int {
	return (slices.Max(s.shards) - s.opts.rank + s.opts.world - 1) / s.opts.world
}

// readLanes readies the sequence for a CountedStream, whose records are in lanes.
func (q *sequence) readLanes() {
	o, c, counts := q.l.opts, q.run.course, q.l.counted
	p := &lanes.Plan{
		N: counts.n, Counts: counts.all, Shard: o.shardOrder(len(counts.all), 0).At, Lanes: counts.lanes,
		Block: 64, Mixes: o.shuffle, Key: permute.SeedKey(o.seedOfStream(0)),
	}
	if o.shuffle {
		p.Block = (o.window-1)/p.Lanes + 1
	}
	q.origin = p.Begin(c.first, c.n, c.base)
	steps := &lanes.Steps{
		Lanes: p.Lanes, Origin: q.origin, Base: c.base, Epoch: c.n, Step: c.step(), Head: c.head, Whole: c.whole, Len: c.len(),
		Span: func(k int) (first, after int64, low, high int) {
			epoch, base, k, _ := c.at(k)
			from, to := c.bounds(base, k)
			low, high, _ = c.part(base, k)
			start := q.startOf(epoch)
			return start + int64(from), start + int64(to), low - from, high - from
		},
	}
	p.Taker = steps
	s := q.l.ds.(*streamDataset).streams[0]
	q.lanes = shards.NewLanes(q.group(), p, steps, func(k int) shards.Config[Record] { return q.config(s, 0, len(counts.all), 0) })
}

// startOf is where in the lanes an epoch begins.
func (q *sequence) startOf(epoch int) int64 {
	c := &q.run.course
	return q.origin + int64(epoch-c.first)*int64(c.n)
}

// fillStep reads the records of a batch of a CountedStream, and offers each to the workers.
func (q *sequence) fillStep(b *Batch) {
	start := q.startOf(b.epoch)
	horizon := start + 2*int64(q.run.course.n) // the end of the next epoch
	if !q.started {
		q.started = true
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
	b.resize(n) // less if the run ends: nobody will see it
	q.l.ring.Seal(b.seq, n)
}
