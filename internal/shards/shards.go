// Package shards reads shards side by side, each ahead of its turn, and delivers their records in an
// order that depends only on the configuration, not on which shard is faster.
//
// [Epochs] reads one stream, or several that are mixed, epoch after epoch. [Lanes] reads the records of counted
// shards that a rank takes, in the order of package lanes; [Draws] does so for a part of a mixture. Beneath
// them a set reads the shards of one stream, or those of one lane. It belongs to one goroutine. For each shard
// that is being read, it has a shardReader, which reads ahead in its own goroutine:
//
//	shardReader    Open ──► Next ──► full ─┐                ┌─ empty ◄─ the caller's record
//	                                       └─► set.next ────┘
//	set            takes one record of each in turn ──► window of a shuffle ──► the caller
//
// The memory of records that are read ahead has a limit, the bound. Half of it is shared equally by the
// shardReaders. The other half is for a shardReader whose turn comes next but whose record doesn't fit
// into its share.
package shards

import (
	"context"
	"fmt"
	"log/slog"
	"math"

	"github.com/nwt-go/nwt/internal/lanes"
	"github.com/nwt-go/nwt/internal/watch"
)

// A Reader reads one shard. A Reader that can skip records has a method Skip(ctx, n) (skipped int, err
// error).
type Reader[R any] interface {
	Next(ctx context.Context, r *R) error
	Close() error
}

type skipper interface {
	Skip(ctx context.Context, n int) (skipped int, err error)
}

// An Item is a record, with what is known of it.
type Item[R any] struct {
	Record R
	Part   int // number of its set
	Shard  int
	Number int   // of the record in the shard
	Err    error // why the record couldn't be read
}

// Of adds the record to an error of its sample.
func (r *Item[R]) Of(err error) error {
	if r.Err != nil {
		return err // it names the record already
	}
	return fmt.Errorf("record %d of shard %d: %w", r.Number, r.Shard, err)
}

// A Config says what is read, and in which order.
type Config[R any] struct {
	Open func(ctx context.Context, shard int) (Reader[R], error)
	// Again waits before a shard is opened again whose Open, Next or Skip has failed with err, for the
	// failures-th time since it delivered a record. It returns an error if the shard must not be opened
	// again.
	Again  func(ctx context.Context, failures int, err error) error
	Size   func(r *R) int                           // bytes of a record that count as memory read ahead; 0: not known
	Failed func(shard, record int, err error) error // makes the error for a record that can't be read

	Shards func(epoch int) []int     // the shards that a pass reads, at least one
	AtOnce int                       // how many shards are read at once
	Window int                       // records in the shuffle window; below 2 there is none
	Draw   func(epoch, i, n int) int // the place in a window of n records from which record i of an epoch is taken
	// If records are picked, from shards without an end: Pick returns a function that returns the next
	// record from a number on, or false if there is none. Each shardReader has its own. There is one
	// shardReader, and Shards isn't called.
	Pick func() func(from int64) (lanes.Pick, bool)
}

// A Group holds what the sets of an epoch share, which are read side by side.
type Group struct {
	Context  context.Context // reading ends when it ends
	Log      *slog.Logger
	Mixing   func(bytes int) // called when a shuffle window holds more bytes than before or, if bytes is negative, fewer
	Ahead    bool            // goroutines read the shards; otherwise the caller of next does. The fields below matter only if it is set
	Watchdog *watch.Watchdog // watches each call of Open and of a Reader; nil: none
	Stop     func(err error) // called when a reader has ended its goroutine: reading must end
}

// A set reads the shards of one stream.
type set[R any] struct {
	Config[R]
	group     *Group
	part      int
	epoch     int
	draws     int   // records that the epoch may take; math.MaxInt if it ends with the shards
	delivered int   // records of the epoch that were delivered or skipped
	bound     int64 // limit of the bytes read ahead

	passes int // passes of the epoch, with the current one

	// These belong to the current pass.
	readers   []*shardReader[R]
	turn      int        // number of the shardReader to ask next
	passed    int        // records that it has delivered
	share     int64      // part of the bound's first half that each shardReader has
	soon      int        // number of shardReaders, from the one whose turn it is, that read even beyond their share
	soonBytes int64      // size of one record of each of them
	window    []*Item[R] // records in the shuffle window
	spare     []*Item[R] // records that are not in use
}

// newSet makes a set that has read nothing. part is the number in its Items.
func newSet[R any](g *Group, part int, c Config[R]) *set[R] {
	return &set[R]{Config: c, group: g, part: part}
}

// begin opens the shards of an epoch. The epoch takes draws records, in several passes if necessary; if
// draws is math.MaxInt, it is one pass. At most bound bytes are read ahead.
func (s *set[R]) begin(epoch, draws int, bound int64) {
	s.epoch, s.draws, s.bound, s.delivered, s.passes = epoch, draws, bound, 0, 0
	s.open()
}

// goAhead starts reading ahead in the shards that begin has opened, if the epoch takes records from them.
func (s *set[R]) goAhead() {
	if !s.group.Ahead || s.draws == 0 {
		return
	}
	due := s.draws
	if due < math.MaxInt {
		due = (due-s.delivered-s.passed+s.Window)/len(s.readers) + 1
	}
	for _, c := range s.readers {
		c.due = due
		c.start()
	}
}

// open makes the shardReaders of a pass.
func (s *set[R]) open() {
	s.turn, s.passed, s.soon, s.soonBytes = 0, 0, 0, 0
	s.passes++
	if s.Pick != nil {
		s.share = s.bound / 2
		s.readers = append(s.readers, newShardReader(s, nil))
		return
	}
	all := s.Shards(s.epoch)
	n := min(s.AtOnce, len(all))
	s.share = s.bound / 2 / int64(n)
	for i := range n {
		var shards []int
		for k := i; k < len(all); k += s.AtOnce {
			shards = append(shards, all[k])
		}
		s.readers = append(s.readers, newShardReader(s, shards))
	}
}

// stop ends a pass: it closes what is open, and waits for the shardReaders.
func (s *set[R]) stop() {
	for _, c := range s.readers {
		c.close()
	}
	s.readers = nil
	for _, r := range s.window {
		s.mixOut(r)
		s.giveBack(r)
	}
	s.window = s.window[:0]
}

// mixIn counts a record that enters a window; mixOut counts one that leaves it.
func (s *set[R]) mixIn(r *Item[R])  { s.group.Mixing(s.Size(&r.Record)) }
func (s *set[R]) mixOut(r *Item[R]) { s.group.Mixing(-s.Size(&r.Record)) }

// next replaces *r by the next record. It returns false after the last one, or if the context ends.
func (s *set[R]) next(r **Item[R]) bool {
	for !s.readOfPass(r) {
		if !s.repeats() || s.passed == 0 || s.group.Context.Err() != nil {
			return false
		}
		s.stop()
		s.open()
		s.goAhead()
	}
	s.delivered++
	return true
}

// take replaces *r by the next record of shardReader number i. It returns false after the last.
func (s *set[R]) take(i int, r **Item[R]) bool {
	c := s.readers[i]
	if c.full == nil {
		return s.takeNow(i, r)
	}
	got, ok, answered := awaitRecord(c)
	for !answered {
		c = c.replace()
		c.start()
		s.readers[i] = c
		got, ok, answered = awaitRecord(c)
	}
	if !ok {
		c.empty = nil // together with the records in it
		return false
	}
	c.taken++
	size, back := int64(s.Size(&got.Record)), *r
	c.size = size
	if n := int64(s.Size(&back.Record)); c.held.Add(n-size) > c.share && n > 0 {
		c.held.Add(-n)
		back = s.newItem()
	}
	*r = got
	c.empty <- back // has room, because the record is one of the shardReader's
	return true
}

// wantSoon makes the shardReaders whose turn comes next read one record each, even beyond their share.
// They are as many as the other half of the bound has room for. shardReader number i has just had its
// turn.
func (s *set[R]) wantSoon(i int) {
	if c := s.readers[i]; s.soon > 0 {
		s.soon, s.soonBytes, c.counted = s.soon-1, s.soonBytes-c.counted, 0
	}
	for s.soon < len(s.readers) {
		c := s.readers[(s.turn+s.soon)%len(s.readers)]
		if s.soonBytes+c.size > s.bound/2 {
			return
		}
		s.soon, s.soonBytes, c.counted = s.soon+1, s.soonBytes+c.size, c.size
		c.want()
	}
}

// unended reports whether records of the shards never come, if each epoch ends where this one does: the
// first pass has records left and, if the order of the shards differs by epoch, no shard has ended. It
// takes a record of each shardReader from the epoch.
func (s *set[R]) unended(ordersDiffer bool) bool {
	left, ended := false, false
	for i := range s.readers {
		r := s.blank()
		there := s.take(i, &r)
		s.giveBack(r)
		left = left || there
		ended = ended || !there || r.Err != nil || r.Shard != s.readers[i].shards[0]
	}
	return s.passes == 1 && left && !(ended && ordersDiffer)
}

// blank returns a record for next to replace.
func (s *set[R]) blank() *Item[R] {
	if n := len(s.spare) - 1; n >= 0 {
		r := s.spare[n]
		s.spare = s.spare[:n]
		return r
	}
	return s.newItem()
}

func (s *set[R]) newItem() *Item[R] { return &Item[R]{Part: s.part} }

// repeats reports whether the epoch may have several passes.
func (s *set[R]) repeats() bool { return s.draws < math.MaxInt }

// giveBack takes back a record of the set.
func (s *set[R]) giveBack(r *Item[R]) { s.spare = append(s.spare, r) }

// readOfPass replaces *r by the next record of the pass, mixed in the window.
func (s *set[R]) readOfPass(r **Item[R]) bool {
	if s.Window < 2 {
		return s.readInOrder(r)
	}
	for len(s.window) < s.Window {
		next := s.blank()
		if !s.readInOrder(&next) {
			s.giveBack(next)
			break
		}
		s.mixIn(next)
		s.window = append(s.window, next)
	}
	n := len(s.window)
	if n == 0 {
		return false
	}
	pick := s.Draw(s.epoch, s.delivered, n)
	*r, s.window[pick] = s.window[pick], *r
	s.mixOut(*r)
	s.giveBack(s.window[pick])
	s.window[pick], s.window = s.window[n-1], s.window[:n-1]
	return true
}

// readInOrder replaces *r by the next record in the order of reading: one record of each shardReader in
// turn.
func (s *set[R]) readInOrder(r **Item[R]) bool {
	empty := 0 // successive shardReaders that had no record
	for empty < len(s.readers) {
		at := s.turn
		s.turn = (s.turn + 1) % len(s.readers)
		there := s.take(at, r)
		s.wantSoon(at)
		if there {
			s.passed++
			return true
		}
		empty++
	}
	return false
}
