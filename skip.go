package nwt

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/nwt-go/nwt/internal/files"
)

// skips tells whether to skip the records that a State says were delivered: if all
// readers can, and the records are more than the shuffle window holds. (Those in the
// window must be read in any case.)
func (q *sequence) skips() bool {
	o := q.l.opts
	if q.skip == 0 || o.shuffle && q.skip < o.window {
		return false
	}
	for _, p := range q.parts {
		if p.draws > 0 && !p.skips() {
			return false
		}
	}
	return true
}

func (p *streamPart) skips() bool {
	for i := range p.chains {
		p.here(i, func(c *chain) { // opens its first shard
			c.probing = true
			if c.fault == nil {
				_, c.fault = c.attemptSkip(0)
			}
			c.probing = false
		})
		c := p.chains[i]
		if files.TooMany(c.fault) {
			c.fault = nil // more can be read than is open
		}
		if _, ok := c.reader.(Skipper); !ok {
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
		counts = q.plan.before(q.ctx, q.position(n))
		for k, before := range q.plan.before(q.ctx, q.position(0)) {
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
			group.Go(func() error { return p.skipAhead(n) })
		} else {
			err = cmp.Or(err, p.skipAhead(n))
		}
	}
	if err = cmp.Or(err, group.Wait()); err != nil {
		return fmt.Errorf("nwt: to resume after %d samples of epoch %d isn't possible: %w", n, q.epoch, err)
	}
	q.delivered = n
	return nil
}

// skipAhead goes on after n records of the part, as if they had been read and dropped. It
// reads the records that the window still holds at that point, and skips the others.
// The chains of the first pass are open.
func (p *streamPart) skipAhead(n int) error {
	repeats, known := p.q.quota > 0, 0
	for records := math.MaxInt; ; p.open() { // records of a pass over the shards, as far as is known
		there, err := p.skipInPass(n-p.delivered, records)
		if err != nil {
			return fmt.Errorf("a record of these can't be read: %w", err)
		}
		if there || p.q.ctx.Err() != nil {
			p.delivered = n
			return nil
		}
		// The pass has fewer records than was assumed. Begin anew, in the pass that
		// record n is in, and with a window that shrinks at the end of the pass.
		if records = p.passed; records == 0 || !repeats && n > records {
			return fmt.Errorf("this rank's shards have %d", records)
		}
		if known > 0 {
			return fmt.Errorf("this rank's shards had %d at first, and then %d", known, records)
		}
		known = records
		p.stop()
		if repeats {
			p.delivered = n / records * records
		}
	}
}

// skipInPass goes to record n of a pass whose chains are open, and has them read ahead.
// It reports false if the pass has fewer records than that needs.
func (p *streamPart) skipInPass(n, records int) (there bool, err error) {
	window, next := p.windowAfter(n, records)
	// The places of the window, in the order in which their records are read.
	places := make([]int, len(window))
	for i := range places {
		places[i] = i
	}
	slices.SortFunc(places, func(a, b int) int { return window[a] - window[b] })
	kept, at := make([]*Record, len(window)), 0
	for _, place := range places {
		if there, err = p.skipTo(&at, window[place]); !there {
			return false, err
		}
		r := &Record{}
		if !p.readInOrder(&r) {
			return false, nil
		}
		kept[place], at = r, at+1
	}
	if there, err = p.skipTo(&at, next); there {
		p.window = append(p.window, kept...)
		p.goAhead()
	}
	return there, err
}

// windowAfter returns which records of the pass, by number, the shuffle window holds
// after n were taken from it, and the number of the record that is read next.
//
// As long as there are records to read, draw i puts record size-1+i into the place that
// is drawn. So a place holds what the last draw that hit it has put there, and the draws
// are looked at backwards until each place was hit: about size × ln(size) of them,
// however large n is.
func (p *streamPart) windowAfter(n, records int) (window []int, next int) {
	size := p.q.l.opts.window
	if !p.q.l.opts.shuffle || size < 2 {
		return nil, n
	}
	full := min(n, max(0, records-size+1)) // draws from a full window
	if full > 0 {
		window, next = make([]int, size-1), size-1+full
		for unhit, i := size-1, full-1; unhit > 0 && i >= 0; i-- {
			if i%(1<<20) == 0 && p.q.ctx.Err() != nil {
				break
			}
			if place := p.draw(p.delivered+i, size); place < size-1 && window[place] == 0 {
				window[place] = size - 1 + i
				unhit--
			}
		}
		for place, record := range window {
			if record == 0 { // never hit: it holds what it was filled with
				window[place] = place
			}
		}
	}
	for i := full; i < n; i++ {
		for len(window) < size && next < records {
			window = append(window, next)
			next++
		}
		last := len(window) - 1
		window[p.draw(p.delivered+i, len(window))] = window[last]
		window = window[:last]
	}
	return window, next
}

// skipTo skips from record *at of the pass to another one. It reports false if the
// pass ends before.
func (p *streamPart) skipTo(at *int, to int) (there bool, err error) {
	for *at < to && p.q.ctx.Err() == nil {
		n := p.skipSome(to - *at)
		if err := p.unread(); n == 0 || err != nil {
			return false, err
		}
		*at += n
	}
	return *at == to, nil
}

// unread returns an error if a record that was delivered before can't be read now.
// With an error budget it only warns, since the record may have been bad then too.
func (p *streamPart) unread() error {
	for _, c := range p.chains {
		unread := c.unread
		c.unread = nil
		for _, err := range unread {
			if p.q.l.opts.maxBad == 0 {
				return err
			}
			p.q.l.opts.log.Warn("nwt: a record that was delivered before can't be read now: unless it was bad then, samples are lost", "epoch", p.q.epoch, "error", err)
		}
	}
	return nil
}

// skipSome skips up to n records in order. From each chain it skips only the records that
// are due however many the other chains still have. It returns 0 if none is left.
func (p *streamPart) skipSome(n int) (skipped int) {
	live := 0
	for _, c := range p.chains {
		if !c.spent {
			live++
		}
	}
	if live == 0 {
		return 0
	}
	// A chain gives one record in turn as long as it has any. So in n/live turns each
	// gives n/live records, or all that it has.
	if turns := n / live; turns > 0 {
		var group sync.WaitGroup
		for i := range p.chains {
			if p.q.ahead {
				group.Go(func() { p.skipIn(i, turns) })
			} else {
				p.skipIn(i, turns)
			}
		}
		group.Wait()
		for _, c := range p.chains {
			skipped += c.passed
		}
	}
	for i := 0; i < len(p.chains) && skipped == 0; i++ {
		at := p.turn
		p.turn = (p.turn + 1) % len(p.chains)
		p.skipIn(at, 1)
		skipped = p.chains[at].passed
	}
	p.passed += skipped
	return skipped
}

// skipIn skips up to n records in chain number i, which notes how many it has passed.
func (p *streamPart) skipIn(i, n int) {
	p.chains[i].passed = 0
	p.here(i, func(c *chain) { c.skip(n) })
}

// skip passes over records until that makes n or the chain is spent. If the reader is given
// up, another chain calls skip again.
func (c *chain) skip(n int) {
	for c.passed < n && c.ctx.Err() == nil {
		if c.fault == nil {
			if c.at == len(c.shards) {
				c.spent = true
				return
			}
			over, err := c.attemptSkip(n - c.passed)
			c.read, c.fault = c.read+over, err
			if c.passed += over; c.fault == nil {
				continue
			}
		}
		if err := c.leaveShard(); err != nil {
			c.passed++ // the failure is a record too
			c.unread = append(c.unread, err)
		}
	}
}

// attemptSkip opens the shard if it isn't open, and passes over up to n records, and
// over at least one if nothing is wrong. With n = 0 it only opens the shard.
func (c *chain) attemptSkip(n int) (skipped int, err error) {
	defer func() { c.answers(recover(), &err) }()
	c.begins()
	if err = c.open(); err == nil && n > 0 {
		skipped, err = c.passOver(n)
	}
	return skipped, err
}

// passOver passes over up to n records of the shard, and over at least one if nothing is wrong.
func (c *chain) passOver(n int) (skipped int, err error) {
	if c.timed() {
		n = min(n, 1) // so that it is known at which record a call hangs
	}
	if s, ok := c.reader.(Skipper); ok {
		c.begins()
		if skipped, err = s.Skip(c.ctx, n); skipped < 0 || skipped > n {
			skipped, err = 0, fmt.Errorf("Skip(%d) says that it has skipped %d", n, skipped)
		}
	}
	if err == nil && skipped == 0 {
		c.begins()
		if err = c.reader.Next(c.ctx, &c.dropped); err == nil {
			skipped = 1
		}
	}
	return skipped, err
}

// takeNow is take from a chain that doesn't read ahead yet.
func (p *streamPart) takeNow(i int, r **Record) bool {
	if !p.q.ahead {
		return p.chains[i].next(*r)
	}
	p.here(i, func(c *chain) {
		next := &Record{} // which a call that is given up keeps
		if c.got = nil; c.next(next) {
			c.got = next
		}
	})
	if got := p.chains[i].got; got != nil {
		*r = got
		return true
	}
	return false
}

// here runs f, which calls a reader, for chain number i, which doesn't read ahead yet.
// If the call takes too long, f runs again for the chain that replaces this one.
func (p *streamPart) here(i int, f func(*chain)) {
	for !p.chains[i].here(f) {
		p.chains[i] = p.chains[i].replace()
	}
}

// here runs f for the chain. If the consumer reads, here calls f itself; else f gets a
// goroutine of its own, and here reports false if a call in it was given up.
func (c *chain) here(f func(*chain)) (answered bool) {
	if !c.q.ahead {
		f(c)
		return true
	}
	done := make(chan struct{})
	go c.apart(f, done)
	_, _, answered = await(c, done)
	return answered
}

// apart runs f, and closes done.
func (c *chain) apart(f func(*chain), done chan struct{}) {
	finished := false
	defer func() {
		c.endsWith(finished)
		close(done)
		if c.call.isLost() {
			c.q.l.away.Add(-1)
		}
	}()
	f(c)
	if c.call.isLost() {
		c.shut()
	}
	finished = true
}
