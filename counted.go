package nwt

import (
	"cmp"
	"fmt"

	"github.com/nwt-go/nwt/internal/deal"
	"github.com/nwt-go/nwt/internal/guard"
	"github.com/nwt-go/nwt/internal/permute"
	"github.com/nwt-go/nwt/internal/shards"
)

// A CountedStream knows how many records its shards have. So the order of an epoch depends on
// seed and epoch alone: [Loader.Resume] goes on with any number of ranks, and every rank has the
// same number of batches. There may be more ranks than shards.
//
// The records are dealt to lanes of equal length, [WithInterleave] over all ranks. Ranks that
// share a lane pass over each other's records: fastest with [Skipper]s, and if WithBatchSize ×
// world is a multiple of the lanes. A shard with fewer or more records than told makes bad
// samples, with a *[ShardError]. With [WithEpochSamples] and in [MixedStreams] the counts aren't
// used.
type CountedStream interface {
	Stream
	// Records is the number of records of a shard, 0 ≤ shard < Shards, or −1 if it isn't
	// known: then the stream is like one without counts. A loader asks once.
	Records(shard int) int
}

// defaultLanes is how many lanes a CountedStream has.
const defaultLanes = 32

// anyWorld is State.World of a CountedStream: any number of ranks may go on.
const anyWorld = -1

// A recordCounts is how many records the shards of a CountedStream have.
type recordCounts struct {
	order       // of positions
	all   []int // of each shard
	lanes int
}

// newCounts is nil if the records of the stream aren't all counted, or the counts aren't used.
func newCounts(s Stream, n int, o *options) (c *recordCounts, err error) {
	told, ok := s.(CountedStream)
	if !ok || o.epochSamples > 0 {
		return nil, nil
	}
	defer func() {
		if p := recover(); p != nil {
			_, cause := guard.Recovered(p)
			c, err = nil, optionError("CountedStream.Records", fmt.Sprintf("%T", s), "%v", cause)
		}
	}()
	c = &recordCounts{order: order{batch: o.batchSize, rank: o.rank, world: o.world, dropLast: o.dropLast}}
	for shard := range n {
		k := told.Records(shard)
		if k < 0 {
			return nil, nil
		}
		if k > maxSamples-c.n {
			return nil, optionError("CountedStream.Records", k, "shard %d: all shards together must have at most %d records", shard, maxSamples)
		}
		c.all, c.n = append(c.all, k), c.n+k
	}
	if c.n == 0 {
		return nil, nil // an epoch without a sample is an error in any case
	}
	c.lanes = min(cmp.Or(o.interleave, defaultLanes), n, c.n)
	return c, c.hasBatch()
}

// deals makes the parts of a sequence the lanes of a deal.
func (q *sequence) deals(s Stream) {
	c, o := q.l.counted, q.l.opts
	q.deal = &deal.Deal{
		N: c.n, Counts: c.all, Shard: o.shardOrder(len(c.all), 0).all.At, Lanes: c.lanes, Key: permute.SeedKey(o.seedOfStream(0)),
		Block: 64, Mixes: o.shuffle, Step: c.step(), Steps: c.steps,
		Span: func(base, k int) (first, after, low, high int) {
			first, _ = c.bounds(base, k)
			low, high, after = c.part(base, k)
			return first, after, low - first, high - first
		},
	}
	if o.shuffle {
		q.deal.Block = (o.window-1)/c.lanes + 1
	}
	files := shards.NewFiles()
	for k := range c.lanes {
		ln := deal.NewLane(q.deal, k, q.config(s, k, len(c.all), 0, files))
		q.parts, q.lanes = append(q.parts, &streamPart{Set: ln.Set, shards: len(c.all)}), append(q.lanes, ln)
	}
}

// beginDeal begins an epoch of a counted stream at the position that a State says.
func (q *sequence) beginDeal() {
	c := q.l.counted
	q.deal.Begin(q.epoch, q.skip)
	q.index = c.steps(0) - c.steps(q.skip)
	q.started, q.delivered, q.skip, q.step = true, 0, 0, 0
	needed := int64(0)
	for k, ln := range q.lanes {
		if q.parts[k].draws = 0; ln.Ready() {
			q.parts[k].draws = endless
			needed++
		}
	}
	for _, p := range q.parts {
		p.Begin(q.epoch, p.draws, q.l.opts.aheadBytes/max(1, needed))
		p.GoAhead()
	}
}

// fillStep reads the records of the next step into a batch. It reports false after the
// epoch's last step, and if the run ends.
func (q *sequence) fillStep(seq uint64, b *Batch) (n int, more bool) {
	c, base := q.l.counted, q.deal.Base
	b.reached, b.left = base, 0
	if q.step == c.steps(base) {
		return 0, false
	}
	from, end := endless, 0
	for _, ln := range q.lanes {
		if low, high := ln.Turn(q.step); low < high {
			from, end = min(from, low), max(end, high)
		}
	}
	for offset := from; offset < end; offset++ {
		for _, ln := range q.lanes {
			position, ok := ln.Takes(offset)
			if !ok {
				continue
			}
			r := ln.Take(offset)
			if r == nil || q.l.ring.Stopped() {
				return n, false
			}
			q.parts[b.records[n].Part].Return(b.records[n])
			b.records[n], b.indices[n] = r, position
			n++
			if n < c.batch && !c.dropLast {
				q.l.ring.Offer(seq, n)
			}
		}
	}
	_, _, b.reached = c.part(base, q.step)
	if q.step++; q.step < c.steps(base) {
		b.left = max(1, c.n-b.reached)
	}
	return n, b.left > 0
}
