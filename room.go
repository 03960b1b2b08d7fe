package nwt

const (
	// maxAheadBytes bounds the memory of the records that all chains have ready.
	maxAheadBytes = 256 << 20
	// enoughRefused is how many chains that need too much room giveRoom asks before it ends.
	enoughRefused = 16
)

// makeRoom waits until there is room to read ahead a record as large as the last one,
// until one with memory for it comes back, or until the sequence waits for the record.
// It counts the record's bytes, and reports false if the chain is closed.
func (c *chain) makeRoom() bool {
	if c.fits(c.part.waiting.Load() > 0) {
		return true
	}
	b := c.backlog.Load()
	for {
		c.idle = append(c.idle, c.reading)
		c.collect(b)
		c.choose() // one with memory may have come back
		if c.counted >= c.last {
			return true
		}
		grow := c.last - c.counted
		c.waits(int64(grow))
		fits := c.fits(c.part.waiting.Load() > 1)
		wanted, closed := c.wanted.Load() > int64(c.sent), false
		if !fits && !wanted {
			select {
			case <-c.room:
			case r := <-b.empty:
				c.cameBack(r)
			case <-c.ctx.Done():
				closed = true
			}
		}
		given := !c.waits(0)
		switch {
		case given && fits: // counted twice
			c.hold(-grow)
		case given:
			c.counted = c.last
		}
		if closed {
			return false
		}
		if fits || given || wanted {
			return true
		}
	}
}

// fits tells whether there is room for a record as large as the last one, and counts it.
// If others wait, a chain that would come above its share waits to be given room: what its
// own records free is otherwise taken again before the sequence can give it to the chains
// whose turn is next. The record may be larger than the last one: the chain is within its
// share only if one as large as the one before that is, too.
func (c *chain) fits(others bool) bool {
	grow := c.last - c.counted
	if grow <= 0 {
		return true
	}
	if others && c.aboveShare(int(c.recent.Load())-c.counted) || !c.reserve(grow, c.bound) {
		return false
	}
	c.counted = c.last
	return true
}

// reserve adds to the bytes that the chain holds, unless all chains of the part would then
// hold more than bound.
func (c *chain) reserve(n int, bound int64) bool {
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

// keep is reserve for the memory of a record that comes back; bytes still counts freed bytes
// that it won't. The memory is kept if the chain, with a record in it, holds no more than its
// share of the bound; or if no chain waits for room and all together hold no more than half
// of the bound. So memory that isn't used leaves the other chains room for reading ahead.
func (c *chain) keep(n int, freed int64) bool {
	bound := c.bound
	if c.aboveShare(max(n, int(c.recent.Load()))) {
		if c.part.waiting.Load() > 0 {
			return false
		}
		bound /= 2
	}
	return c.reserve(n, bound+freed)
}

// aboveShare tells whether n bytes more are more than the chain's share of the bound.
func (c *chain) aboveShare(n int) bool {
	return c.held.Load()+int64(n) > c.bound/int64(c.q.l.opts.interleave)
}

// hold adds to the bytes that the chain holds.
func (c *chain) hold(n int) {
	c.held.Add(int64(n))
	c.part.bytes.Add(int64(n))
}

// letGo stops counting the chain's bytes.
func (c *chain) letGo() { c.part.bytes.Add(-c.held.Swap(0)) }

// giveRoom gives the room that there is, and freed bytes that bytes still counts, to chains
// that wait for room, and wakes them. It begins with the chain whose turn is next; chains that
// have a record ready come last. If a chain needs more than is left, the chains after it wait
// until it has that much: otherwise records whose turn is later would fill the room, and the
// earlier ones would be read one by one. Only a chain that needs more than half of all room
// isn't waited for. If there are many such chains, giveRoom doesn't ask all others: with
// hundreds, that would cost more than reading.
func (p *streamPart) giveRoom(freed int64) {
	if p.waiting.Load() <= 0 {
		return
	}
	refused, bound := 0, p.bound+freed
	for _, ready := range []bool{false, true} {
		for k := 0; k < len(p.chains) && p.bytes.Load() < bound; k++ {
			c := p.chains[(p.turn+k)%len(p.chains)]
			n := c.needs.Load()
			switch {
			case n == 0 || !ready && len(c.backlog.Load().full) > 0:
			case !c.reserve(int(n), bound):
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

// waits sets how many bytes the chain waits for, and reports whether it waited.
func (c *chain) waits(n int64) bool {
	waited := c.needs.Swap(n) > 0
	switch {
	case n > 0 && !waited:
		c.part.waiting.Add(1)
	case n == 0 && waited:
		c.part.waiting.Add(-1)
	}
	return waited
}

// wake wakes the chain if it waits for room.
func (c *chain) wake() {
	select {
	case c.room <- struct{}{}:
	default:
	}
}
