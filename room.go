package nwt

// The memory of the records that chains have ready is bounded. It is counted in bytes, before
// it is taken:
//
//	chain.reserved    for the record that the chain reads
//	chain.held        reserved, and what the chain's other records have
//	streamPart.bytes  held of all chains of the part, and what exchange has yet to give away
//
// A chain reserves room (makeRoom), reads a record, and corrects held to what the record has
// (readOne). The sequence takes the record, sends an empty one back (exchange), and gives the
// room of the first, as far as the second doesn't need it, to chains that wait (giveRoom).

const (
	// maxAheadBytes bounds the memory of the records that all chains have ready.
	maxAheadBytes = 256 << 20
	// enoughRefused is how many chains that need too much room giveRoom asks before it ends.
	enoughRefused = 16
)

// makeRoom reserves room for a record as large as the last one. If there is none, it waits
// until it is given some, or a record with enough memory comes back. It waits no longer once
// the sequence waits for the record. It reports false if the chain is closed.
func (c *chain) makeRoom() bool {
	if c.takeRoom(c.part.waiting.Load() > 0) {
		return true
	}
	b := c.backlog.Load()
	for {
		c.idle = append(c.idle, c.reading)
		c.collect(b)
		c.choose() // one with memory may have come back
		lacks := c.last - c.reserved
		if lacks <= 0 {
			return true
		}
		c.setNeeds(int64(lacks))
		taken := c.takeRoom(c.part.waiting.Load() > 1) // beside this chain
		wanted, closed := c.isWanted(), false
		if !taken && !wanted {
			closed = !c.awaitRoom(b)
		}
		given := c.setNeeds(0) == 0
		switch {
		case given && taken: // one of the two is too much
			c.hold(-lacks)
		case given:
			c.reserved = c.last
		}
		if closed {
			return false
		}
		if taken || given || wanted {
			return true
		}
	}
}

// awaitRoom waits until the chain is woken or a record comes back. It reports false if the
// chain is closed.
func (c *chain) awaitRoom(b *backlog) bool {
	select {
	case <-c.woken:
	case r := <-b.empty:
		c.cameBack(r)
	case <-c.ctx.Done():
		return false
	}
	return true
}

// isWanted tells whether the sequence waits for the record that the chain reads next.
func (c *chain) isWanted() bool { return c.wanted.Load() > int64(c.sent) }

// takeRoom reserves room for a record as large as the last one, and reports whether there was
// room. If others wait, a chain that would come above its share must wait to be given room:
// what its own records free is otherwise taken again before the sequence can give it to the
// chains whose turn is next. The record may be larger than the last one: the chain is within
// its share only if one as large as the one before that is, too.
func (c *chain) takeRoom(othersWait bool) bool {
	lacks := c.last - c.reserved
	if lacks <= 0 {
		return true
	}
	if othersWait && c.aboveShare(int(c.recent.Load())-c.reserved) || !c.holdWithin(c.bound, lacks) {
		return false
	}
	c.reserved = c.last
	return true
}

// exchange puts got, a full record of the chain, into *r, and sends back the record that was
// there. The room that this frees goes to chains that wait. Until then p.bytes counts it, or
// this chain, whose next turn is the last, could take it again.
func (p *streamPart) exchange(c *chain, b *backlog, got *Record, r **Record) {
	freed := int64(cap(got.Data))
	c.held.Add(-freed)
	empty := *r
	*r = got
	if n := cap(empty.Data); n > 0 && !c.keepMemory(n, freed) {
		empty = &Record{part: p.number}
	}
	p.giveRoom(freed)
	p.bytes.Add(-freed)
	p.giveRoom(0)
	b.empty <- empty // has room: it is one of the chain's
}

// leaveRoom leaves the room of a chain that has nothing left to the others.
func (p *streamPart) leaveRoom(c *chain, b *backlog) {
	c.reading, c.idle = nil, nil
	c.backlog.Store(&backlog{b.most, b.full, nil})
	c.recent.Store(0)
	c.holdNothing()
	p.giveRoom(0)
}

// keepMemory has the chain hold the n bytes of a record that comes back, if it may. It may if
// the chain, with a record in it, holds no more than its share of the bound; or if no chain
// waits for room and all together hold no more than half of the bound. So memory that isn't
// used leaves the other chains room for reading ahead. freed bytes, which streamPart.bytes
// still counts, are there to be taken.
func (c *chain) keepMemory(n int, freed int64) bool {
	bound := c.bound
	if c.aboveShare(max(n, int(c.recent.Load()))) {
		if c.part.waiting.Load() > 0 {
			return false
		}
		bound /= 2
	}
	return c.holdWithin(bound+freed, n)
}

// aboveShare tells whether n bytes more are more than the chain's share of the bound.
func (c *chain) aboveShare(n int) bool {
	return c.held.Load()+int64(n) > c.bound/int64(c.q.l.opts.interleave)
}

// holdWithin is hold, unless all chains of the part would then hold more than bound: it then
// reports false.
func (c *chain) holdWithin(bound int64, n int) bool {
	for {
		now := c.part.bytes.Load()
		if now+int64(n) > bound {
			return false
		}
		if c.part.bytes.CompareAndSwap(now, now+int64(n)) {
			c.held.Add(int64(n))
			return true
		}
	}
}

// hold counts n bytes more, or less, as the chain's.
func (c *chain) hold(n int) {
	c.held.Add(int64(n))
	c.part.bytes.Add(int64(n))
}

// holdNothing stops counting the chain's bytes.
func (c *chain) holdNothing() { c.part.bytes.Add(-c.held.Swap(0)) }

// giveRoom gives the room that there is to chains that wait for room, and wakes them; freed
// bytes, which p.bytes still counts, are part of it. It begins with the chain whose turn is
// next; chains that have a record ready come last. If a chain needs more than is left, the
// chains after it wait until it has that much: otherwise records whose turn is later would fill
// the room, and the earlier ones would be read one by one. Only a chain that needs more than
// half of all room isn't waited for. If there are many such chains, giveRoom doesn't ask all
// others: with hundreds, that would cost more than reading.
func (p *streamPart) giveRoom(freed int64) {
	if p.waiting.Load() <= 0 {
		return
	}
	refused, bound := 0, p.bound+freed
	for _, readyToo := range []bool{false, true} {
		for k := 0; k < len(p.chains) && p.bytes.Load() < bound; k++ {
			c := p.chains[(p.turn+k)%len(p.chains)]
			n := c.needs.Load()
			switch {
			case n == 0 || !readyToo && len(c.backlog.Load().full) > 0:
			case !c.holdWithin(bound, int(n)):
				if refused++; n <= p.bound/2 || refused == enoughRefused {
					return
				}
			case c.needs.CompareAndSwap(n, 0):
				p.waiting.Add(-1)
				c.wake()
			default: // meanwhile it needs less, or nothing
				c.hold(int(-n))
			}
		}
	}
}

// setNeeds sets how many bytes the chain waits for, and returns how many it waited for: 0 if it
// didn't wait, or was given them.
func (c *chain) setNeeds(n int64) (before int64) {
	before = c.needs.Swap(n)
	switch {
	case n > 0 && before == 0:
		c.part.waiting.Add(1)
	case n == 0 && before > 0:
		c.part.waiting.Add(-1)
	}
	return before
}

// wake wakes the chain if it waits for room.
func (c *chain) wake() {
	select {
	case c.woken <- struct{}{}:
	default:
	}
}
