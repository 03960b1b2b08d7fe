package nwt

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"sync/atomic"
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
	ahead bool // chains read ahead, each in a goroutine of its own
	quota int  // records of an epoch, from WithEpochSamples; else 0
	most  int  // records that an epoch may have, so that all ranks' places fit into an int
	parts []*streamPart
	plan  *mixPlan // which part each record is of; nil without MixedStreams
	shift int      // by how many records the plan is rotated: 0, except in a tuner's visits

	epoch, last int
	over        bool // nothing comes after epoch
	index       int  // of the next batch in its epoch
	delivered   int  // records of the epoch that were handed out or skipped
	skip        int  // records to drop before the first
	started     bool
	dry         *streamPart // the part that had no record left
	ended       atomic.Bool // a batch was the end: those opened after it hold nothing

	short atomic.Bool        // too many files were open
	lends chan chan struct{} // where a chain asks others for a file; what it sends is closed once one has closed its shard
}

// A streamPart reads the records of one of a run's streams in order. It belongs to the
// sequence.
type streamPart struct {
	q         *sequence
	number    int
	stream    Stream
	shards    int
	first     int    // number of its first shard among those of all parts
	seed      uint64 // of WithShuffle, for this part
	order     shardOrder
	from      int   // the place in the order that a pass begins with: 0, except in a tuner's visits
	draws     int   // its records in all blocks of the plan that the epoch touches; math.MaxInt if the epoch ends with the shards
	delivered int   // records of the epoch that were handed out or skipped
	bound     int64 // of the bytes read ahead: an equal share for each part that the epoch needs

	// For the pass under way.
	chains    []*chain
	turn      int       // chain to ask next
	passed    int       // records that it has given
	share     int64     // of the bound's half, for each chain
	soon      int       // chains, from the one whose turn it is, that read even above their share
	soonBytes int64     // of one record of each of them
	window    []*Record // of the shuffle: the records it holds
	spare     []*Record // records that nothing holds
}

func newSequence(r *run, ahead bool) *sequence {
	c, o := r.course, r.l.opts
	q := &sequence{
		run: r, l: r.l, ctx: r.ctx, ahead: ahead, epoch: c.first, last: c.last,
		skip: c.base / o.world, index: c.skipped, most: (math.MaxInt - o.rank) / o.world, quota: o.quota(o.world), plan: r.l.plan,
	}
	ds, first := r.l.ds.(*streamDataset), 0
	for k, s := range ds.streams {
		n := r.l.shards[k]
		p := &streamPart{q: q, number: k, stream: s, shards: n, first: first, seed: o.seedOfStream(k), order: o.shardOrder(n, k)}
		if v := r.l.visits; v == nil {
			q.lends = make(chan chan struct{})
		} else { // whose readers stay open
			p.stream, p.from, q.shift = v.streams[k], v.streams[k].from, v.shift
		}
		q.parts = append(q.parts, p)
		first += n
	}
	return q
}

// seedOfStream is what the order of stream k of a dataset is computed from.
func (o *options) seedOfStream(k int) uint64 { return o.shuffled + uint64(k)*golden }

// A shardOrder is the order of a stream's shards for a rank.
type shardOrder struct {
	all         Sampler // of all ranks
	rank, world int
	n           int // shards of the rank
}

// shardOrder is the order of the shards of stream k of a dataset.
func (o *options) shardOrder(shards, k int) shardOrder {
	s := shardOrder{Sequential(shards), o.rank, o.world, (shards - o.rank + o.world - 1) / o.world}
	if o.shuffle {
		s.all = Shuffled(shards, o.seedOfStream(k))
	}
	return s
}

// at is the rank's shard number i of an epoch.
func (s shardOrder) at(epoch, i int) int { return s.all.At(epoch, s.rank+i*s.world) }

// start opens the chains of a pass, and has them read ahead.
func (p *streamPart) start() {
	p.open()
	p.goAhead()
}

// goAhead has the chains read ahead, if they may and are needed.
func (p *streamPart) goAhead() {
	if !p.q.ahead || p.draws == 0 {
		return
	}
	due := p.draws
	if due < math.MaxInt {
		due -= p.delivered + p.passed
		if o := p.q.l.opts; o.shuffle {
			due += o.window
		}
		due = due/len(p.chains) + 1
	}
	for _, c := range p.chains {
		c.due = due
		c.start()
	}
}

// open makes the chains of a pass.
func (p *streamPart) open() {
	o := p.q.l.opts
	mine := make([]int, p.order.n)
	for i := range mine {
		mine[i] = p.order.at(p.q.epoch, (p.from+i)%len(mine))
	}
	n := min(o.interleave, len(mine))
	p.turn, p.passed, p.share, p.soon, p.soonBytes = 0, 0, p.bound/2/int64(n), 0, 0
	for i := range n {
		var shards []int
		for k := i; k < len(mine); k += o.interleave {
			shards = append(shards, mine[k])
		}
		p.chains = append(p.chains, newChain(p, shards))
	}
}

// stop ends the passes of all parts.
func (q *sequence) stop() {
	for _, p := range q.parts {
		p.stop()
	}
}

// stop ends a pass: closes what is open, joins the chains, and drops what is in
// the window.
func (p *streamPart) stop() {
	for _, c := range p.chains {
		c.close()
	}
	p.chains = nil
	p.spare, p.window = append(p.spare, p.window...), p.window[:0]
}

// feed fills the batches that the run opens, until it ends.
func (q *sequence) feed(r *run) error {
	defer q.stop()
	for {
		select {
		case b := <-r.toFill:
			q.fill(b.seq, b)
		case <-r.ctx.Done():
			return nil
		}
	}
}

// read replaces *r by the next record of the epoch. It reports false after the last
// record, and if the run ends.
func (q *sequence) read(r **Record) bool {
	if q.quota > 0 && q.delivered == q.quota {
		return false
	}
	p := q.parts[0]
	if q.plan != nil {
		p = q.choose(r)
	}
	if !p.read(r) {
		q.dry = p
		return false
	}
	q.delivered++
	return true
}

// choose is the part that the next record is of. If *r is a record of another part, choose
// gives it back to that part, which will read into it again, and takes one of this part.
func (q *sequence) choose(r **Record) *streamPart {
	at := q.delivered
	if q.shift > 0 {
		at = (at + q.shift) % q.quota
	}
	part, _ := q.plan.at(q.position(at))
	p := q.parts[part]
	if old := *r; old.part != part {
		q.parts[old.part].spare = append(q.parts[old.part].spare, old)
		*r = p.blank()
	}
	return p
}

// position is the number of the rank's record i of the epoch, counted over all epochs.
func (q *sequence) position(i int) uint64 { return uint64(q.epoch)*uint64(q.quota) + uint64(i) }

// read replaces *r by the part's next record.
func (p *streamPart) read(r **Record) bool {
	for !p.readOfPass(r) {
		if p.q.quota == 0 || p.passed == 0 || p.q.ctx.Err() != nil {
			return false
		}
		p.stop()
		p.start()
	}
	p.delivered++
	return true
}

// blank is a record for the part to read into.
func (p *streamPart) blank() *Record {
	if n := len(p.spare) - 1; n >= 0 {
		r := p.spare[n]
		p.spare = p.spare[:n]
		return r
	}
	return &Record{part: p.number}
}

// readOfPass replaces *r by the next record of the pass, mixed as WithShuffle
// asks for.
func (p *streamPart) readOfPass(r **Record) bool {
	o := p.q.l.opts
	if !o.shuffle || o.window < 2 {
		return p.readInOrder(r)
	}
	for len(p.window) < o.window {
		next := p.blank()
		if !p.readInOrder(&next) {
			p.spare = append(p.spare, next)
			break
		}
		p.window = append(p.window, next)
	}
	n := len(p.window)
	if n == 0 {
		return false
	}
	pick := p.draw(p.delivered, n)
	*r, p.window[pick] = p.window[pick], *r
	p.spare, p.window[pick], p.window = append(p.spare, p.window[pick]), p.window[n-1], p.window[:n-1]
	return true
}

// draw is the place in a window of n records from which the part's record i of the epoch,
// counted in this rank, is taken.
func (p *streamPart) draw(i, n int) int {
	o := p.q.l.opts
	key := epochKey(seedKey(p.seed), p.q.epoch) + uint64(i*o.world+o.rank)*golden
	return int(mix64(key) % uint64(n)) // a window is too small for the bias to show
}

// readInOrder replaces *r by the next record as it is read: one of each chain in
// turn.
func (p *streamPart) readInOrder(r **Record) bool {
	empty := 0 // chains in a row that had nothing
	for empty < len(p.chains) {
		at := p.turn
		p.turn = (p.turn + 1) % len(p.chains)
		there := p.take(at, r)
		p.wantSoon(at)
		if there {
			p.passed++
			return true
		}
		empty++
	}
	return false
}

// begin begins an epoch. What a State says was delivered is skipped, or read and dropped.
func (q *sequence) begin(scratch **Record) error {
	needed := int64(0)
	for _, p := range q.parts {
		p.draws = cmp.Or(q.quota, math.MaxInt)
		if q.plan != nil {
			p.draws = q.plan.draws(p.number, q.position(0), q.position(q.quota))
		}
		if p.draws > 0 {
			needed++
		}
	}
	for _, p := range q.parts {
		p.bound, p.delivered = q.l.opts.aheadBytes/needed, 0
		p.open()
	}
	q.started, q.delivered = true, 0
	if o := q.l.opts; q.skip > 0 && o.endsEpoch(q.skip*o.world, o.world) {
		q.delivered = q.quota
		return nil
	}
	if q.skips() {
		return q.skipAhead()
	}
	for _, p := range q.parts {
		p.goAhead()
	}
	return q.drop(scratch)
}

// drop reads the records that were delivered before. If one of them can't be read now but
// could be read then, the records after it aren't the rest of the epoch. Without an error
// budget it could be read then, so it is an error.
func (q *sequence) drop(scratch **Record) error {
	o := q.l.opts
	for from := q.skip; q.skip > 0; q.skip-- {
		if !q.read(scratch) {
			return fmt.Errorf("nwt: to resume after %d samples of epoch %d isn't possible: this rank's shards have %d", from, q.epoch, q.delivered)
		}
		if err := (*scratch).err; err != nil && o.maxBad == 0 {
			return fmt.Errorf("nwt: to resume after %d samples of epoch %d isn't possible: record %d of these can't be read: %w", from, q.epoch, q.delivered-1, err)
		} else if err != nil {
			o.log.Warn("nwt: a record that was delivered before can't be read now: unless it was bad then, samples are lost", "epoch", q.epoch, "record", q.delivered-1, "error", err)
		}
	}
	return nil
}

// fill reads the records of a batch and offers them to the workers: each as it
// comes, or with WithDropLast all at once, since a short batch must not be loaded.
// If nothing is left to read, b is marked as the end, with a failure if there was
// one.
func (q *sequence) fill(seq uint64, b *Batch) {
	q.l.counters.reading.start()
	defer q.l.counters.reading.stop()
	o := q.l.opts
	n := 0
	b.failure = nil
	for n == 0 && b.failure == nil && !q.over && !q.l.ring.Stopped() {
		if !q.started {
			b.failure = q.begin(&b.records[0])
		}
		b.epoch, b.index, b.from = q.epoch, q.index, q.delivered
		if b.failure == nil {
			n = q.fillPlaces(seq, b)
		}
		if n == o.batchSize {
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
		q.endEpoch()
	}
	q.over = q.over || b.failure != nil
	b.end = n == 0 || b.failure != nil
	b.resize(n)
	b.reached = q.delivered * o.world
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
	if q.ctx.Err() != nil {
		b.skipped.Add(int32(o.batchSize - n))
	}
	q.l.ring.Seal(seq, n)
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

// fillPlaces reads records until the batch is full or the epoch over.
func (q *sequence) fillPlaces(seq uint64, b *Batch) (n int) {
	o := q.l.opts
	for n < o.batchSize && q.delivered < q.most && !q.l.ring.Stopped() && q.read(&b.records[n]) {
		b.indices[n] = (q.delivered-1)*o.world + o.rank
		n++
		if n < o.batchSize && !o.dropLast {
			q.l.ring.Offer(seq, n)
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
