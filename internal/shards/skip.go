package shards

// What is here resumes a stream whose records aren't counted: it reads what the shuffle window held, and
// passes over all else. Lanes need none of it: their plan begins at the state, and says which record comes
// next, which shardReader.reach goes to.

import (
	"fmt"
	"math"
	"slices"
	"sync"
)

// skips reports whether all readers can skip records. begin must have opened the epoch.
func (s *set[R]) skips() bool {
	for i := range s.readers {
		s.here(i, func(c *shardReader[R]) { // opens its first shard
			if c.fault == nil {
				_, c.fault = c.attemptSkip(0)
			}
		})
		if _, ok := s.readers[i].reader.(skipper); !ok {
			return false
		}
	}
	return true
}

// skipTo moves to record n of the epoch that begin has opened, as if the records before it had been read
// and dropped, and makes the shards read ahead. It reads the records that the window still holds at that
// point, and skips the others. unread is called if one of these can't be read now; the error that it
// returns ends the skipping.
func (s *set[R]) skipTo(n int, unread func(err error) error) error {
	known := 0
	for records := math.MaxInt; ; s.open() { // number of records in a pass over the shards, as far as is known
		there, err := s.skipInPass(n-s.delivered, records, unread)
		if err != nil {
			return fmt.Errorf("a record of these can't be read: %w", err)
		}
		if there || s.group.Context.Err() != nil {
			s.delivered = n
			return nil
		}
		// The pass has fewer records than was assumed. Begin again, in the pass that contains record n,
		// and with a window that shrinks at the end of the pass.
		if records = s.passed; records == 0 || !s.repeats() && n > records {
			return fmt.Errorf("this rank's shards have %d", records)
		}
		if known > 0 {
			return fmt.Errorf("this rank's shards had %d at first, and then %d", known, records)
		}
		known = records
		s.stop()
		if s.repeats() {
			s.delivered = n / records * records
		}
	}
}

// skipInPass moves to record n of a pass whose shardReaders are open, and makes them read ahead. It
// returns false if the pass has too few records for that.
func (s *set[R]) skipInPass(n, records int, unread func(err error) error) (there bool, err error) {
	window, next := s.windowAfter(n, records)
	// The places of the window, in the order in which their records are read.
	places := make([]int, len(window))
	for i := range places {
		places[i] = i
	}
	slices.SortFunc(places, func(a, b int) int { return window[a] - window[b] })
	kept, at := make([]*Item[R], len(window)), 0
	for _, place := range places {
		if there, err = s.passTo(&at, window[place], unread); !there {
			return false, err
		}
		r := s.newItem()
		if !s.readInOrder(&r) {
			return false, nil
		}
		kept[place], at = r, at+1
	}
	if there, err = s.passTo(&at, next, unread); there {
		for _, r := range kept {
			s.mixIn(r)
		}
		s.window = append(s.window, kept...)
		s.goAhead()
	}
	return there, err
}

// windowAfter returns the records of the pass, by number, that the shuffle window holds after n records
// were taken from it, and the number of the record that is read next.
//
// As long as there are records to read, draw i puts record size-1+i into the place that is drawn. So a
// place holds the record that the last draw from it has put there. Draws are looked at backwards until
// each place has been drawn from, which takes about size × ln(size) draws, however large n is.
func (s *set[R]) windowAfter(n, records int) (window []int, next int) {
	size := s.Window
	if size < 2 {
		return nil, n
	}
	full := min(n, max(0, records-size+1)) // draws from a full window
	if full > 0 {
		window, next = make([]int, size-1), size-1+full
		for unhit, i := size-1, full-1; unhit > 0 && i >= 0; i-- {
			if i%(1<<20) == 0 && s.group.Context.Err() != nil {
				break
			}
			if place := s.Draw(s.epoch, s.delivered+i, size); place < size-1 && window[place] == 0 {
				window[place] = size - 1 + i
				unhit--
			}
		}
		for place, record := range window {
			if record == 0 { // never drawn from: it holds the record it was filled with
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
		window[s.Draw(s.epoch, s.delivered+i, len(window))] = window[last]
		window = window[:last]
	}
	return window, next
}

// passTo skips from record *at of the pass to record to. It returns false if the pass ends before that.
func (s *set[R]) passTo(at *int, to int, unread func(err error) error) (there bool, err error) {
	for *at < to && s.group.Context.Err() == nil {
		n := s.skipSome(to - *at)
		for _, c := range s.readers {
			lost := c.unread
			c.unread = nil
			for _, failed := range lost {
				if err := unread(failed); err != nil {
					return false, err
				}
			}
		}
		if n == 0 {
			return false, nil
		}
		*at += n
	}
	return *at == to, nil
}

// skipSome skips up to n records in order. From each shardReader it skips only the records that are due,
// however many records the other shardReaders still have. It returns 0 if none is left.
func (s *set[R]) skipSome(n int) (skipped int) {
	live := 0
	for _, c := range s.readers {
		if !c.spent {
			live++
		}
	}
	if live == 0 {
		return 0
	}
	// A shardReader delivers one record per turn as long as it has any. So in n/live turns each delivers
	// n/live records, or all that it has.
	if turns := n / live; turns > 0 {
		var group sync.WaitGroup
		for i := range s.readers {
			if s.group.Ahead {
				group.Go(func() { s.skipIn(i, turns) })
			} else {
				s.skipIn(i, turns)
			}
		}
		group.Wait()
		for _, c := range s.readers {
			skipped += c.passed
		}
	}
	for i := 0; i < len(s.readers) && skipped == 0; i++ {
		at := s.turn
		s.turn = (s.turn + 1) % len(s.readers)
		s.skipIn(at, 1)
		skipped = s.readers[at].passed
	}
	s.passed += skipped
	return skipped
}

// skipIn skips up to n records in shardReader number i, which counts how many it has passed.
func (s *set[R]) skipIn(i, n int) {
	s.readers[i].passed = 0
	s.here(i, func(c *shardReader[R]) { c.skip(n) })
}

// skip passes over records until there are n in all, or the shardReader has none left. If the shardReader
// is given up, another shardReader calls skip again.
func (c *shardReader[R]) skip(n int) {
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
			c.passed++ // the failure counts as a record too
			c.unread = append(c.unread, err)
		}
	}
}

// attemptSkip passes over up to n records, and over at least one if there is no error. With n = 0 it only
// opens the shard.
func (c *shardReader[R]) attemptSkip(n int) (skipped int, err error) {
	defer func() { c.answers(recover(), &err) }()
	for failures := 0; ; {
		if err = c.reach(c.read); err == nil && n > 0 {
			skipped, err = c.passOver(n)
		}
		if !c.again(&failures, &err) || skipped > 0 {
			return skipped, err
		}
	}
}
