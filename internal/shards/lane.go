package shards

import (
	"math"

	"github.com/nwt-go/nwt/internal/lanes"
)

// A Lanes reads the records of counted shards that a rank takes, step by step.
type Lanes[R any] struct {
	plan  *lanes.Plan
	steps *lanes.Steps
	lanes []*lane[R]

	// These belong to the current step.
	offset, end int64 // offsets of the lanes that haven't been looked at
	next        int   // lane to look at next
}

// A lane reads the records of one lane.
type lane[R any] struct {
	set       *set[R]
	from, end int64      // offsets of the current block
	before    []int      // for each offset, how many of the block's records are read before its record
	held      []*Item[R] // records of the block, in the order of reading; nil once delivered
	low, high int64      // offsets that the rank takes in the current step
}

// NewLanes starts to read where a plan begins. part is the number in the Items. c says how to read a shard. At
// most bound bytes are read ahead.
func NewLanes[R any](g *Group, part int, p *lanes.Plan, s *lanes.Steps, c Config[R], bound int64) *Lanes[R] {
	p.Taker = s
	l := &Lanes[R]{plan: p, steps: s}
	c.Window = 0        // records are mixed within a block
	var used []*lane[R] // those of which the rank takes records
	for k := range p.Lanes {
		c.Pick = func() func(int64) (lanes.Pick, bool) { return p.Picks(k) }
		ln := &lane[R]{set: newSet(g, part, c)}
		l.lanes = append(l.lanes, ln)
		if p.Next(k, p.FirstOffset(k)) >= 0 {
			used = append(used, ln)
		}
	}
	for _, ln := range used {
		ln.set.begin(0, math.MaxInt, bound/int64(len(used)))
		ln.set.goAhead()
	}
	return l
}

// Turn moves to a step.
func (l *Lanes[R]) Turn(step int) {
	l.offset, l.end, l.next = math.MaxInt64, 0, 0
	for k, ln := range l.lanes {
		if ln.low, ln.high = l.steps.Share(k, step); ln.low < ln.high {
			l.offset, l.end = min(l.offset, ln.low), max(l.end, ln.high)
		}
	}
}

// Next replaces *r by the next record of the step, and returns its position. It returns false after the
// last one, or if the context ends.
func (l *Lanes[R]) Next(r **Item[R]) (position int64, ok bool) {
	for ; l.offset < l.end; l.offset, l.next = l.offset+1, 0 {
		for l.next < len(l.lanes) {
			k, ln := l.next, l.lanes[l.next]
			if l.next++; l.offset < ln.low || l.offset >= ln.high {
				continue
			}
			got := l.take(k, l.offset)
			if got == nil {
				return 0, false
			}
			ln.set.giveBack(*r)
			*r = got
			return l.plan.PositionOf(k, l.offset), true
		}
	}
	return 0, false
}

// take returns the record at an offset of lane k, or nil if the context ends.
func (l *Lanes[R]) take(k int, offset int64) *Item[R] {
	ln := l.lanes[k]
	if offset < ln.from || offset >= ln.end {
		ln.drop()
		ln.from, ln.end, ln.before = l.plan.Order(k, offset, ln.before)
	}
	i := ln.before[offset-ln.from]
	for len(ln.held) <= i {
		r := ln.set.blank()
		if !ln.set.next(&r) {
			ln.set.giveBack(r)
			return nil
		}
		ln.set.mixIn(r)
		ln.held = append(ln.held, r)
	}
	r := ln.held[i]
	ln.held[i] = nil
	ln.set.mixOut(r)
	return r
}

// drop gives back the records that the lane holds.
func (ln *lane[R]) drop() {
	for _, r := range ln.held {
		if r != nil {
			ln.set.mixOut(r)
			ln.set.giveBack(r)
		}
	}
	ln.from, ln.end, ln.held = 0, 0, ln.held[:0]
}

// Stop ends reading.
func (l *Lanes[R]) Stop() {
	for _, ln := range l.lanes {
		ln.drop()
		ln.set.stop()
	}
}

// Draws reads the counted shards of one part of a mixture. Every rank draws the same number of its
// records per step. Unlike a set it continues from one epoch to the next.
type Draws[R any] struct {
	Each int                                      // draws per step and rank
	Open func(step uint64, bound int64) *Lanes[R] // starts to read at a step, at most bound bytes ahead

	lanes *Lanes[R] // nil before the first draw
	first uint64    // step at which they begin
	at    uint64    // draw that they deliver next
	draw  uint64    // draw that is asked for next
}

// begin moves to a draw. It reads ahead at most bound bytes.
func (d *Draws[R]) begin(draw uint64, bound int64) {
	if d.lanes != nil && d.draw == draw {
		return
	}
	d.stop()
	d.first, d.draw = draw/uint64(d.Each), draw
	d.lanes, d.at = d.Open(d.first, bound), d.first*uint64(d.Each)
}

// next replaces *r by the record of the next draw. It returns false if the context ends.
func (d *Draws[R]) next(r **Item[R]) bool {
	for ; d.at <= d.draw; d.at++ {
		if d.at%uint64(d.Each) == 0 {
			d.lanes.Turn(int(d.at/uint64(d.Each) - d.first))
		}
		if _, ok := d.lanes.Next(r); !ok {
			return false
		}
	}
	d.draw++
	return true
}

// blank and giveBack do what those of a set do.
func (d *Draws[R]) blank() *Item[R] { return d.lanes.lanes[0].set.blank() }
func (d *Draws[R]) giveBack(r *Item[R]) {
	if d.lanes != nil { // else r is the item with which batches begin
		d.lanes.lanes[0].set.giveBack(r)
	}
}

func (d *Draws[R]) stop() {
	if d.lanes != nil {
		d.lanes.Stop()
	}
}
