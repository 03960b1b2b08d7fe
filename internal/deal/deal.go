// Package deal says which record is at which position of an epoch, if it is known how many
// records each shard has, and which of them a rank takes.
//
// The records, in the order of the epoch's shards, are cut into lanes of equal length.
// Position p is in lane p mod lanes, at offset p / lanes: the same for any number of ranks.
// A step takes some positions in a row. Ordered by lane, they are shared among the ranks.
// So a rank reads its part of the lanes, and neighbours may share a lane.
package deal

import (
	"slices"
	"sort"

	"github.com/nwt-go/nwt/internal/permute"
	"github.com/nwt-go/nwt/internal/shards"
)

// A Deal is of one run. Between calls of Begin it doesn't change.
type Deal struct {
	N      int                    // records, at least 1
	Counts []int                  // of each shard
	Shard  func(epoch, i int) int // number i in the order of an epoch
	Lanes  int                    // 1 … N
	Block  int                    // offsets of a lane that are looked at together, at least 1
	Mixes  bool                   // the records of a block are mixed
	Key    uint64                 // of the mixing

	Step  int                // positions per step
	Steps func(base int) int // steps of an epoch that begins at position base
	// Span is the positions of step k from base, and which of them, counted from the first,
	// are the rank's once they are ordered by lane.
	Span func(base, k int) (first, after, low, high int)

	Epoch, Base int
	before      []int // records before shard number i of the epoch's order
}

// Begin turns to the positions of an epoch from base on.
func (d *Deal) Begin(epoch, base int) {
	d.Epoch, d.Base, d.before = epoch, base, make([]int, 1, len(d.Counts)+1)
	for i := range d.Counts {
		d.before = append(d.before, d.before[i]+d.Counts[d.Shard(epoch, i)])
	}
}

// below is how many of the positions 0 … p−1 are in the lanes before lane.
func (d *Deal) below(p, lane int) int { return p/d.Lanes*lane + min(p%d.Lanes, lane) }

// offset is how many of the positions 0 … p−1 are in a lane.
func (d *Deal) offset(p, lane int) int { return d.below(p, lane+1) - d.below(p, lane) }

// start is the lane's first record, of all in the order of the shards.
func (d *Deal) start(lane int) int { return d.below(d.N, lane) }

// shardOf is the number, in the epoch's order, of the shard that has a record of a lane.
func (d *Deal) shardOf(lane, record int) int {
	return sort.SearchInts(d.before, d.start(lane)+record+1) - 1
}

// share is the offsets of a lane that the rank takes in step k.
func (d *Deal) share(lane, k int) (from, to int) {
	first, after, low, high := d.Span(d.Base, k)
	in := d.below(after, lane) - d.below(first, lane) // of the step's positions, in the lanes before
	from, to = d.offset(first, lane), d.offset(after, lane)
	n := to - from
	return from + min(max(0, low-in), n), from + min(max(0, high-in), n)
}

// A pick is a record of a lane that the rank takes, and its offset in the lane.
type pick struct{ record, offset int }

// picks is what the rank takes of a block of a lane, in the order of the records.
func (d *Deal) picks(lane, block int) (all []pick) {
	from, end := block*d.Block, min((block+1)*d.Block, d.offset(d.N, lane))
	last := (end-1)*d.Lanes + lane // position
	if last < d.Base {
		return nil
	}
	mixed, key := permute.New(end-from), permute.Mix64(permute.EpochKey(d.Key, d.Epoch)+uint64(d.start(lane)+from)*permute.Golden)
	// The last step may take some of the positions of the step before.
	k := max(0, from*d.Lanes+lane-d.Base) / d.Step
	for ; k < d.Steps(d.Base) && k <= (last-d.Base)/d.Step+1; k++ {
		low, high := d.share(lane, k)
		for o := max(low, from); o < min(high, end); o++ {
			record := o
			if d.Mixes {
				record = from + mixed.At(key, o-from)
			}
			all = append(all, pick{record, o})
		}
	}
	slices.SortFunc(all, func(a, b pick) int { return a.record - b.record })
	return all
}

// next returns a function that finds the first record, from one on, that the rank takes of
// a lane; −1 if there is none. Each goroutine needs its own.
func (d *Deal) next(lane int) func(record int) int {
	block, picks, length := -1, []pick(nil), d.offset(d.N, lane)
	return func(record int) int {
		record = max(record, d.offset(d.Base, lane)/d.Block*d.Block)
		for record < length {
			if b := record / d.Block; b != block {
				block, picks = b, d.picks(lane, b)
			}
			if i := sort.Search(len(picks), func(i int) bool { return picks[i].record >= record }); i < len(picks) {
				return picks[i].record
			}
			record = (block + 1) * d.Block
		}
		return -1
	}
}

// A Lane reads the records of a lane that the rank takes.
type Lane[R any] struct {
	*shards.Set[R]
	deal   *Deal
	number int
	block  int               // under way; −1: none
	at     []int             // where in held the record at an offset of the block is
	held   []*shards.Item[R] // of the block, in the order of reading; nil once handed out
	low    int               // of the step under way: the offsets low … high−1 are the rank's
	high   int
}

// NewLane makes lane number k. The configuration says how to read a shard.
func NewLane[R any](g *shards.Group, d *Deal, k int, c shards.Config[R]) *Lane[R] {
	c.AtOnce, c.Window = 1, 0
	c.Shards = func(epoch int) (all []int) {
		for i, last := d.shardOf(k, 0), d.shardOf(k, d.offset(d.N, k)-1); i <= last; i++ {
			all = append(all, d.Shard(epoch, i))
		}
		return all
	}
	c.Pick = func() func(i, read int) (record, of int) {
		next, first := d.next(k), d.shardOf(k, 0)
		return func(i, read int) (record, of int) {
			begins, end := d.before[first+i]-d.start(k), d.before[first+i+1]-d.start(k)
			if record := next(max(0, begins+read)); record >= 0 && record < end {
				return record - begins, end - begins
			}
			return -1, 0
		}
	}
	return &Lane[R]{Set: shards.New(g, k, c), deal: d, number: k, block: -1}
}

// Ready tells whether the rank takes anything of the lane in the epoch that the deal has begun.
func (ln *Lane[R]) Ready() bool {
	return ln.deal.next(ln.number)(0) >= 0
}

// Turn turns to step k, of which the rank takes the offsets low … high−1.
func (ln *Lane[R]) Turn(k int) (low, high int) {
	ln.low, ln.high = ln.deal.share(ln.number, k)
	return ln.low, ln.high
}

// Takes tells whether the rank takes an offset in the step, and at which position that is.
func (ln *Lane[R]) Takes(offset int) (position int, ok bool) {
	return offset*ln.deal.Lanes + ln.number, ln.low <= offset && offset < ln.high
}

// Take returns the record at an offset; nil if the context ends.
func (ln *Lane[R]) Take(offset int) *shards.Item[R] {
	size := ln.deal.Block
	if b := offset / size; b != ln.block {
		ln.Drop()
		ln.block, ln.at = b, append(ln.at[:0], make([]int, size)...)
		for i, p := range ln.deal.picks(ln.number, b) {
			ln.at[p.offset%size] = i
		}
	}
	i := ln.at[offset%size]
	for len(ln.held) <= i {
		r := ln.Blank()
		if !ln.Next(&r) {
			ln.Return(r)
			return nil
		}
		ln.held = append(ln.held, r)
	}
	r := ln.held[i]
	ln.held[i] = nil
	return r
}

// Drop gives back what the lane holds.
func (ln *Lane[R]) Drop() {
	for _, r := range ln.held {
		if r != nil {
			ln.Return(r)
		}
	}
	ln.block, ln.held = -1, ln.held[:0]
}
