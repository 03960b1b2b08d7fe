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
	looks    int   // at the chain in the window that is on
	low      int   // how many records were full at least in the window
	high     int   // how many at most

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
	reachMeter  = 1e8       // nanoseconds for which that is measured; up to ten times as long counts
	reachLook   = 4         // records after which a chain is looked at again
	reachWindow = 8         // how often all its records are taken in a window
)

// look notes how many records of the chain are full.
func (c *chain) look(b *backlog) {
	r, full, half := &c.reach, len(b.full), b.most/2
	r.low, r.high = min(r.low, full), max(r.high, full)
	if full < half {
		r.ample = false
	}
	if r.looks++; b.most == readAhead || r.looks < reachWindow*b.most/reachLook {
		return
	}
	if r.low >= half || r.high <= half {
		r.ample = r.low >= half
		c.backlog.Store(&backlog{max(half, readAhead), b.full, b.empty})
	}
	r.beginWindow()
}

func (r *reach) beginWindow() { r.looks, r.low, r.high = 0, math.MaxInt, 0 }

// losesTime is called when training has waited for a record of one chain, late. It lets the
// chains that stood still meanwhile read further ahead, if they have paid for it.
func (p *streamPart) losesTime(late *chain, waited int64) {
	p.still = p.still[:0]
	for _, c := range p.chains {
		b := c.backlog.Load()
		if c != late && c.recent.Load() > 0 && len(b.full) >= b.most { // records without Data are of unknown size
			p.still = append(p.still, c)
		}
	}
	if len(p.still) == 0 {
		return
	}
	if !late.reach.late {
		late.reach.late = true
		p.late++
	}
	if p.late < 2 || float64(p.late) < reachLate*float64(len(p.chains)) {
		return
	}
	now, enough := p.q.l.now(), false
	for _, c := range p.still {
		r := &c.reach
		r.lost, r.reckoned = max(0, r.lost-int64(reachFree*float64(now-r.reckoned)))+waited, now
		enough = enough || r.lost >= reachLeast
	}
	if !enough {
		return
	}
	held := int64(0)
	for _, c := range p.chains {
		held += int64(c.backlog.Load().most) * c.recent.Load()
	}
	still := int64(len(p.still))
	most := (int64(reachMost*float64(p.bound)) - held) / still // for each, if there is memory enough
	paid := p.still[:0]
	for _, c := range p.still {
		if more := c.wants(most); more > 0 && c.reach.lost >= max(reachLeast, depthPrice*int64(more)*c.recent.Load()) {
			paid = append(paid, c)
		}
	}
	if len(paid) == 0 || !p.q.cpusIdle(now) {
		return
	}
	free := (p.farBound() - held) / still
	for _, c := range paid {
		if more := c.wants(free); more > 0 {
			c.extend(c.backlog.Load().most + more)
		}
	}
}

// wants is how many more records the chain should get, if they may take so much memory.
func (c *chain) wants(free int64) int {
	most, bytes := c.backlog.Load().most, c.recent.Load()
	if bytes == 0 || c.reach.ample { // it may read while more records than it may have are full
		return 0
	}
	more := min((reachFactor-1)*most, mostAhead-most, int(free/bytes))
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

// cpusIdle tells whether CPUs were idle lately; not if that isn't known.
func (q *sequence) cpusIdle(now int64) bool {
	took := now - q.metered
	if q.cpu != nil && took < reachMeter {
		return q.idle
	}
	q.idle = false
	if q.cpu != nil && took < 10*reachMeter {
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
	if len(b.empty) == 0 { // else it wakes anyway
		b.empty <- nil
	}
	c.reach.lost = 0
	c.reach.beginWindow()
}
