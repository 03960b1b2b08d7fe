package nwt

import (
	"cmp"
	"fmt"
	"slices"
	"sort"

	"github.com/nwt-go/nwt/internal/guard"
	"github.com/nwt-go/nwt/internal/permute"
	"github.com/nwt-go/nwt/internal/shards"
)

// A CountedStream knows how many records its shards have. So the order of an epoch depends
// on seed and epoch alone, not on the number of ranks: [Loader.Resume] goes on with any
// other number of ranks in the middle of an epoch, and every rank has the same number of
// batches. There may be more ranks than shards.
//
// The records are dealt to lanes of equal length, each a run of shards: [WithInterleave]
// lanes over all ranks, by default 32. A rank reads its part of the lanes, and a lane may be
// shared by ranks, which pass over each other's records: fastest if the readers are
// [Skipper]s, and if WithBatchSize × world is a multiple of the lanes.
//
// A shard with fewer or more records than told makes bad samples, with a *[ShardError]. So
// does each record that is lost because its shard can't be read.
//
// With [WithEpochSamples] and in [MixedStreams] the counts aren't used.
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

// A deal is which record is at which position of a counted stream's epoch, and which
// positions this rank takes. Position p is in lane p mod lanes, at offset p / lanes. A step
// takes the same positions whatever the world is. Ordered by lane, they are shared
// among the ranks as those of other datasets are.
type deal struct {
	order
	counts      []int // of each shard
	lanes       int
	block       int     // offsets of a lane that are mixed
	shards      Sampler // the order of the shards
	key         uint64  // of the mixing
	mixes       bool
	epoch, base int
	before      []int // records before shard number i of the epoch's order
}

// newDeal is nil if the records of the stream aren't all counted, or the counts aren't used.
func newDeal(s Stream, n int, o *options) (d *deal, err error) {
	c, ok := s.(CountedStream)
	if !ok || o.epochSamples > 0 {
		return nil, nil
	}
	defer func() {
		if p := recover(); p != nil {
			_, cause := guard.Recovered(p)
			d, err = nil, optionError("CountedStream.Records", fmt.Sprintf("%T", s), "%v", cause)
		}
	}()
	d = &deal{counts: make([]int, n), shards: o.shardOrder(n, 0).all, mixes: o.shuffle, key: permute.SeedKey(o.seedOfStream(0))}
	d.order = order{batch: o.batchSize, rank: o.rank, world: o.world, dropLast: o.dropLast}
	for shard := range n {
		switch k := c.Records(shard); {
		case k < 0:
			return nil, nil
		case k > maxSamples-d.n:
			return nil, optionError("CountedStream.Records", k, "shard %d: all shards together must have at most %d records", shard, maxSamples)
		default:
			d.counts[shard] = k
			d.n += k
		}
	}
	if d.n == 0 {
		return nil, nil // an epoch without a sample is an error in any case
	}
	d.lanes = min(cmp.Or(o.interleave, defaultLanes), n, d.n)
	d.block = 1
	if d.mixes {
		d.block = (o.window-1)/d.lanes + 1
	}
	return d, d.hasBatch()
}

// begin turns to the positions of an epoch from base on.
func (d *deal) begin(epoch, base int) {
	d.epoch, d.base, d.before = epoch, base, make([]int, 1, len(d.counts)+1)
	for i := range d.counts {
		d.before = append(d.before, d.before[i]+d.counts[d.shards.At(epoch, i)])
	}
}

// below is how many of the positions 0 … p−1 are in the lanes before lane.
func (d *deal) below(p, lane int) int { return p/d.lanes*lane + min(p%d.lanes, lane) }

// offset is how many of the positions 0 … p−1 are in a lane.
func (d *deal) offset(p, lane int) int { return d.below(p, lane+1) - d.below(p, lane) }

// start is the lane's first record, of all in the order of the shards.
func (d *deal) start(lane int) int { return d.below(d.n, lane) }

// shardOf is the number, in the epoch's order, of the shard that has a record of a lane, and
// where that shard begins in the lane.
func (d *deal) shardOf(lane, record int) (number, begins int) {
	record += d.start(lane)
	number = sort.SearchInts(d.before, record+1) - 1
	return number, d.before[number] - d.start(lane)
}

// share is the offsets of a lane that this rank takes in step k.
func (d *deal) share(lane, k int) (from, to int) {
	first, after := d.bounds(d.base, k)
	low, high, _ := d.part(d.base, k)
	in := d.below(after, lane) - d.below(first, lane) // of the step's positions, in the lanes before
	from, to = d.offset(first, lane), d.offset(after, lane)
	n := to - from
	return from + min(max(0, low-first-in), n), from + min(max(0, high-first-in), n)
}

// A pick is a record of a lane that this rank takes, and its offset in the lane.
type pick struct{ record, offset int }

// picks is what this rank takes of a block of a lane, in the order of the records. It is
// pure between calls of begin.
func (d *deal) picks(lane, block int) (all []pick) {
	from, end := block*d.block, min((block+1)*d.block, d.offset(d.n, lane))
	last := (end-1)*d.lanes + lane // position
	if last < d.base {
		return nil
	}
	mixed, key := permute.New(end-from), permute.Mix64(permute.EpochKey(d.key, d.epoch)+uint64(d.start(lane)+from)*permute.Golden)
	// The last step may take some of the positions of the step before.
	k := max(0, from*d.lanes+lane-d.base) / d.step()
	for ; k < d.steps(d.base) && k <= (last-d.base)/d.step()+1; k++ {
		low, high := d.share(lane, k)
		for o := max(low, from); o < min(high, end); o++ {
			record := o
			if d.mixes {
				record = from + mixed.At(key, o-from)
			}
			all = append(all, pick{record, o})
		}
	}
	slices.SortFunc(all, func(a, b pick) int { return a.record - b.record })
	return all
}

// next returns a function that finds the first record, from one on, that this rank takes of
// a lane; −1 if there is none. Each goroutine needs its own.
func (d *deal) next(lane int) func(record int) int {
	block, picks, length := -1, []pick(nil), d.offset(d.n, lane)
	return func(record int) int {
		record = max(record, d.offset(d.base, lane)/d.block*d.block)
		for record < length {
			if b := record / d.block; b != block {
				block, picks = b, d.picks(lane, b)
			}
			if i := sort.Search(len(picks), func(i int) bool { return picks[i].record >= record }); i < len(picks) {
				return picks[i].record
			}
			record = (block + 1) * d.block
		}
		return -1
	}
}

// A lane is one of the deal's lanes, as its records are handed out.
type lane struct {
	*streamPart
	block int       // under way; −1: none
	at    []int     // where in held the record at an offset of the block is
	held  []*record // of the picks, in the order of reading; nil once handed out
	low   int       // of the step under way: the offsets low … high−1 are this rank's
	high  int
}

// drop gives back what the lane holds.
func (ln *lane) drop() {
	for _, r := range ln.held {
		if r != nil {
			ln.Return(r)
		}
	}
	ln.block, ln.held = -1, ln.held[:0]
}

// take returns the record at an offset, and false if the run ends.
func (ln *lane) take(d *deal, number, offset int) (*record, bool) {
	if b := offset / d.block; b != ln.block {
		ln.drop()
		ln.block, ln.at = b, append(ln.at[:0], make([]int, d.block)...)
		for i, p := range d.picks(number, b) {
			ln.at[p.offset%d.block] = i
		}
	}
	i := ln.at[offset%d.block]
	for len(ln.held) <= i {
		r := ln.Blank()
		if !ln.Next(&r) {
			ln.Return(r)
			return nil, false
		}
		ln.held = append(ln.held, r)
	}
	r := ln.held[i]
	ln.held[i] = nil
	return r, true
}

// deals makes the parts of a sequence the lanes of a deal.
func (q *sequence) deals(d *deal, s Stream) {
	copied := *d
	q.deal, d = &copied, &copied
	files := shards.NewFiles()
	for k := range d.lanes {
		c := q.config(s, k, len(d.counts), 0, files)
		c.AtOnce, c.Window = 1, 0
		c.Shard = func(epoch, i int) int {
			first, _ := d.shardOf(k, 0)
			return d.shards.At(epoch, first+i)
		}
		c.Records = func(shard int) int { return d.counts[shard] }
		c.Pick = func() func(i, read int) int {
			next := d.next(k)
			first, _ := d.shardOf(k, 0)
			return func(i, read int) int {
				begins, end := d.before[first+i]-d.start(k), d.before[first+i+1]-d.start(k)
				if record := next(max(0, begins+read)); record >= 0 && record < end {
					return record - begins
				}
				return -1
			}
		}
		p := &streamPart{Set: shards.New(c), shards: len(d.counts)}
		q.parts, q.lanes = append(q.parts, p), append(q.lanes, &lane{streamPart: p, block: -1})
	}
}

// beginDeal begins an epoch of a counted stream at the position that a State says.
func (q *sequence) beginDeal() {
	d := q.deal
	d.begin(q.epoch, q.skip)
	q.started, q.delivered, q.skip, q.step = true, 0, 0, 0
	q.index = d.steps(0) - d.steps(d.base)
	needed := int64(0)
	for k, p := range q.parts {
		first, _ := d.shardOf(k, 0)
		last, _ := d.shardOf(k, d.offset(d.n, k)-1)
		p.Shards, p.draws = last-first+1, 0
		if d.next(k)(0) >= 0 {
			p.draws = endless
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
	d, steps := q.deal, q.deal.steps(q.deal.base)
	b.reached, b.left = d.base, 0
	if q.step == steps {
		return 0, false
	}
	low, high := endless, 0
	for k, ln := range q.lanes {
		if ln.low, ln.high = d.share(k, q.step); ln.low < ln.high {
			low, high = min(low, ln.low), max(high, ln.high)
		}
	}
	for o := low; o < high; o++ {
		for k, ln := range q.lanes {
			if o < ln.low || o >= ln.high {
				continue
			}
			r, ok := ln.take(d, k, o)
			if !ok || q.l.ring.Stopped() {
				return n, false
			}
			q.parts[b.records[n].Part].Return(b.records[n])
			b.records[n], b.indices[n] = r, o*d.lanes+k
			n++
			if n < q.l.opts.batchSize && !d.dropLast {
				q.l.ring.Offer(seq, n)
			}
		}
	}
	q.step++
	_, _, b.reached = d.part(d.base, q.step-1)
	if q.step < steps {
		b.left = max(1, d.n-b.reached)
	}
	return n, q.step < steps
}
