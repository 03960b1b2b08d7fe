package nwt

import (
	"math"
	"sync"
)

// A backlog is what the records of a chain that reads ahead go through: full ones come,
// empty ones go back. Both channels have room for all records that there may be. If there
// may be more from now on, a nil goes back too.
type backlog struct {
	most        int // records
	full, empty chan *Record
}

func newBacklog(most int) *backlog {
	return &backlog{most, make(chan *Record, most), make(chan *Record, most+1)}
}

// A reach is how far a chain may read ahead. It follows need. If all records of a chain are
// full, the chain stands still. If training waits for a record of another chain meanwhile,
// time is lost: some records take long to read, and the chains take turns in being late.
// More records cost memory, so their price is paid in lost time:
//
//   - Once a chain has lost as much time as it takes to fill the memory of more records, it
//     gets up to four times as many. A sixteenth of all time may be lost for free.
//   - No time is lost if the CPUs are busy, since they read for other chains then, or if
//     training always waits for the same few chains: more records of the others wouldn't be
//     taken.
//   - If half of its records are enough for a chain, since more than half, or less than half,
//     of them have been full for long, it gives back the other half. In the first case it gets
//     no more before less than half of them are full.
//
// Each pass begins with the fewest records. A reach belongs to the sequence, except mu and
// over.
type reach struct {
	lost     int64 // nanoseconds, less what is free
	reckoned int64 // when lost was reckoned; a time of Loader.now
	late     bool  // training has waited for the chain while others stood still
	ample    bool  // half of its records weren't needed

	// The window that is on.
	looks int // at how many records are full
	low   int // how many were full at least
	high  int // how many at most

	mu   sync.Mutex // held while the channels of the backlog are changed, or full is closed
	over bool       // guarded by mu; full is closed
}

const (
	// readAhead is how many records a chain may have at first, and at least.
	readAhead = 16
	// mostAhead is how many records a chain may have at most.
	mostAhead = 1024

	reachFactor = 4         // times as many records as before that a chain gets at most
	reachFree   = 1. / 16   // share of all time that may be lost
	reachMost   = 1. / 2    // share of the bound that all records may take, if a chain has more than the fewest
	reachLeast  = 5_000_000 // nanoseconds that must be lost, however small the records are
	reachStall  = 100_000   // nanoseconds that training must wait, else nothing is lost
	reachLate   = 1. / 8    // share of the chains that must be late at times
	reachIdle   = 1. / 8    // share of the CPUs that must be idle
	reachMeter  = 1e8       // nanoseconds for which that is measured at least …
	reachStale  = 1e9       // … and at most: what was measured for longer says little about now
	reachLook   = 4         // records after which a chain is looked at again
	reachWindow = 8         // how often all its records are taken in a window
)

// look notes how many records of the chain are full. At the end of a window it gives back half
// of the records if the other half is enough.
func (c *chain) look(b *backlog) {
	r, full, half := &c.reach, len(b.full), b.most/2
	r.low, r.high = min(r.low, full), max(r.high, full)
	if full < half {
		r.ample = false
	}
	r.looks++
	if b.most == readAhead || r.looks < reachWindow*b.most/reachLook {
		return
	}
	if r.low >= half || r.high <= half {
		r.ample = r.low >= half
		c.backlog.Store(&backlog{max(half, readAhead), b.full, b.empty})
	}
	r.beginWindow()
}

func (r *reach) beginWindow() { r.looks, r.low, r.high = 0, math.MaxInt, 0 }

// losesTime is called when training has waited for a record of one chain, late. The chains that
// stood still meanwhile have lost this time. Those that have paid for it read further ahead.
func (p *streamPart) losesTime(late *chain, waited int64) {
	still := p.standStill(late)
	if len(still) == 0 || !p.takesTurns(late) {
		return
	}
	now, enough := p.q.l.now(), false
	for _, c := range still {
		r := &c.reach
		free := int64(reachFree * float64(now-r.reckoned))
		r.lost, r.reckoned = max(0, r.lost-free)+waited, now
		enough = enough || r.lost >= reachLeast
	}
	if enough {
		p.extendPaid(still, now)
	}
}

// standStill returns the chains, except late, all of whose records are full. Chains whose
// records have no Data are left out: how much memory more of them would take isn't known.
func (p *streamPart) standStill(late *chain) []*chain {
	p.still = p.still[:0]
	for _, c := range p.chains {
		b := c.backlog.Load()
		if c != late && c.recent.Load() > 0 && len(b.full) >= b.most {
			p.still = append(p.still, c)
		}
	}
	return p.still
}

// takesTurns notes that a chain was late, and tells whether enough of them are at times.
func (p *streamPart) takesTurns(late *chain) bool {
	if !late.reach.late {
		late.reach.late = true
		p.late++
	}
	return p.late >= 2 && float64(p.late) >= reachLate*float64(len(p.chains))
}

// extendPaid lets those chains of still read further ahead that have paid for it, if CPUs are
// idle. It overwrites still.
func (p *streamPart) extendPaid(still []*chain, now int64) {
	held := int64(0)
	for _, c := range p.chains {
		held += int64(c.backlog.Load().most) * c.recent.Load()
	}
	sharers := int64(len(still))
	// By the bound alone: what memory is left (farBound) is asked only once a chain has paid.
	room := (int64(reachMost*float64(p.bound)) - held) / sharers
	paid := still[:0]
	for _, c := range still {
		if more := c.wants(room); more > 0 && c.reach.lost >= max(reachLeast, depthPrice*int64(more)*c.recent.Load()) {
			paid = append(paid, c)
		}
	}
	if len(paid) == 0 || !p.q.cpusIdle(now) {
		return
	}
	room = (p.farBound() - held) / sharers
	for _, c := range paid {
		if more := c.wants(room); more > 0 {
			c.extend(c.backlog.Load().most + more)
		}
	}
}

// wants is how many more records the chain should get, if they may take room bytes. It is at
// least half as many as it has, or 0.
func (c *chain) wants(room int64) int {
	most, bytes := c.backlog.Load().most, c.recent.Load()
	// The chain may be reading records of unknown size since standStill saw bytes: if it gave
	// records back, more may be full than it may have, though it doesn't stand still.
	if bytes == 0 || c.reach.ample {
		return 0
	}
	more := min((reachFactor-1)*most, mostAhead-most, int(room/bytes))
	if more < most/2 {
		return 0
	}
	return more
}

// farBound bounds the bytes of all records, if a chain has more than the fewest.
func (p *streamPart) farBound() int64 { return int64(p.q.reachShare() * float64(p.bound)) }

// mostReach is which share of the bound all records may take, if a chain has more than the
// fewest; ask for it through reachShare.
func (q *sequence) mostReach() float64 {
	share, o := reachMost, q.l.opts
	if room := o.machine.Available(); room.Of != "" {
		share = min(share, depthShare*float64(room.Bytes)/float64(o.ranks())/float64(o.aheadBytes))
	}
	return share
}

// cpusIdle tells whether CPUs were idle when that was measured last: false if it wasn't, or too
// long ago. If the time for it has come, it begins to measure anew.
func (q *sequence) cpusIdle(now int64) bool {
	took := now - q.metered
	if q.cpu != nil && took < reachMeter {
		return q.idle
	}
	q.idle = false
	if q.cpu != nil && took < reachStale {
		use := q.cpu.Used()
		q.idle = use.Own/float64(q.l.opts.machine.Procs())+use.Others < 1-reachIdle
	}
	q.cpu, q.metered = q.l.opts.machine.StartCPU(), q.l.now()
	return q.idle
}

// extend lets the chain have more records, unless it is over. If it needs longer channels
// for them, all its records are full: it stands still, and waits for an empty one.
func (c *chain) extend(most int) {
	c.reach.mu.Lock()
	defer c.reach.mu.Unlock()
	if c.reach.over {
		return
	}
	b := c.backlog.Load()
	next := &backlog{min(most, cap(b.full)), b.full, b.empty}
	if most > cap(b.full) && len(b.full) == cap(b.full) {
		next = newBacklog(most)
		for range cap(b.full) {
			next.full <- <-b.full
		}
	}
	c.backlog.Store(next)
	if len(b.empty) == 0 { // otherwise the chain wakes anyway
		b.empty <- nil
	}
	c.reach.lost = 0
	c.reach.beginWindow()
}
