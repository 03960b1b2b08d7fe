// Package shards reads shards side by side, each ahead of its turn, and gives their records in an
// order that depends on nothing but the configuration: not on which shard is faster.
//
// A [Set] belongs to one goroutine. It has a shardReader for each shard that is read at once,
// which reads ahead in a goroutine of its own:
//
//	shardReader    Open ──► Next ──► full ─┐                ┌─ empty ◄─ the caller's record
//	                                       └─► Set.Next ────┘
//	Set            takes one record of each in turn ──► window of a shuffle ──► the caller
//
// What is read ahead is bounded in bytes. Half of the bound is shared equally by the
// shardReaders. The other half is for those whose turn is next and whose record doesn't fit into
// their share.
package shards

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"sync/atomic"

	"github.com/nwt-go/nwt/internal/lanes"
	"github.com/nwt-go/nwt/internal/watch"
)

// A Reader reads one shard. A Reader of which records can be skipped has a method
// Skip(ctx, n) (skipped int, err error).
type Reader[R any] interface {
	Next(ctx context.Context, r *R) error
	Close() error
}

type skipper interface {
	Skip(ctx context.Context, n int) (skipped int, err error)
}

// An Item is a record and what is known of it.
type Item[R any] struct {
	Record R
	Part   int // number of its Set
	Shard  int
	Number int   // of the record in the shard
	Err    error // that the record couldn't be read
}

// Of names the record in an error of its sample.
func (r *Item[R]) Of(err error) error {
	if r.Err != nil {
		return err // which names it
	}
	return fmt.Errorf("record %d of shard %d: %w", r.Number, r.Shard, err)
}

// A Config says what is read, and in which order.
type Config[R any] struct {
	Open func(ctx context.Context, shard int) (Reader[R], error)
	// Again waits before a shard is opened again whose Open, Next or Skip has failed with err,
	// for the failures-th time since it gave a record; an error, if it isn't to be.
	Again  func(ctx context.Context, failures int, err error) error
	Size   func(r *R) int                           // bytes of a record that count as read ahead; 0: unknown
	Failed func(shard, record int, err error) error // makes the error of a record that can't be read

	Shards func(epoch int) []int     // that a pass reads, at least one
	AtOnce int                       // how many are read at once
	Window int                       // records of the shuffle's window; below 2 there is none
	Draw   func(epoch, i, n int) int // the place in a window of n records from which record i of an epoch is taken
	// If records are picked, from shards without an end: a function that says which one is the
	// next from a number on, false if there is none. Each shardReader has its own. There is one at
	// once, and Shards isn't asked.
	Pick func() func(from int64) (lanes.Pick, bool)
}

// A Group is what the Sets of an epoch that are read side by side share.
type Group struct {
	Context  context.Context // reading ends with it
	Log      *slog.Logger
	Mixing   func(bytes int) // a shuffle window holds so many bytes more, or less
	Ahead    bool            // shards are read in goroutines; otherwise the caller of Next reads. What follows matters only then
	Watchdog *watch.Watchdog // of each call of Open and of a Reader; nil: none
	Stop     func(err error) // a reader has ended its goroutine: reading must end

	short atomic.Bool // it was logged that too many files are open
}

// A Set reads the shards of one stream.
type Set[R any] struct {
	Config[R]
	group     *Group
	part      int
	epoch     int
	draws     int          // records that the epoch may take; math.MaxInt if it ends with the shards
	delivered int          // records of the epoch that were handed out or skipped
	bound     int64        // of the bytes read ahead
	horizon   atomic.Int64 // records picked for this position or a later one aren't read ahead

	passes int // of the epoch, with the one under way

	// For the pass under way.
	readers   []*shardReader[R]
	turn      int        // shardReader to ask next
	passed    int        // records that it has given
	share     int64      // of the bound's half, for each shardReader
	soon      int        // shardReaders, from the one whose turn it is, that read even above their share
	soonBytes int64      // of one record of each of them
	window    []*Item[R] // of the shuffle: the records it holds
	spare     []*Item[R] // records that nothing holds
}

// New makes a Set that has read nothing. part is its number, which its Items tell.
func New[R any](g *Group, part int, c Config[R]) *Set[R] {
	return &Set[R]{Config: c, group: g, part: part}
}

// Begin opens the shards of an epoch. The epoch takes draws records, in several passes if need be;
// if that is math.MaxInt, it is one pass. What is read ahead takes at most bound bytes.
func (s *Set[R]) Begin(epoch, draws int, bound int64) {
	s.epoch, s.draws, s.bound, s.delivered, s.passes = epoch, draws, bound, 0, 0
	s.open()
}

// GoAhead has the shards that Begin has opened read ahead, if the epoch takes anything of them.
func (s *Set[R]) GoAhead() {
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

// Near lets records be read ahead that are needed before a position.
func (s *Set[R]) Near(position int64) {
	s.horizon.Store(position)
	for _, c := range s.readers {
		if c.full != nil {
			c.wake()
		}
	}
}

// open makes the shardReaders of a pass.
func (s *Set[R]) open() {
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

// Stop ends a pass: it closes what is open, and waits for the shardReaders.
func (s *Set[R]) Stop() {
	for _, c := range s.readers {
		c.close()
	}
	s.readers = nil
	for _, r := range s.window {
		s.mixOut(r)
		s.Return(r)
	}
	s.window = s.window[:0]
}

// hold counts a record that comes into a window, and release one that goes.
func (s *Set[R]) mixIn(r *Item[R])  { s.group.Mixing(s.Size(&r.Record)) }
func (s *Set[R]) mixOut(r *Item[R]) { s.group.Mixing(-s.Size(&r.Record)) }

// Next replaces *r by the next record. It reports false after the last one, and if the context
// ends.
func (s *Set[R]) Next(r **Item[R]) bool {
	for !s.readOfPass(r) {
		if !s.repeats() || s.passed == 0 || s.group.Context.Err() != nil {
			return false
		}
		s.Stop()
		s.open()
		s.GoAhead()
	}
	s.delivered++
	return true
}

// take replaces *r by the next record of shardReader number i. It reports false after the
// last.
func (s *Set[R]) take(i int, r **Item[R]) bool {
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
		c.empty = nil // with what is in there
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
	c.empty <- back // has room: it is one of the shardReader's
	return true
}

// wantSoon has the shardReaders whose turn is next read a record each, even above their share, as many
// as there is room for in the bound's other half. The turn of shardReader number i is over.
func (s *Set[R]) wantSoon(i int) {
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

// Unended reports whether the epoch has come to no shard's end: each shard that is open was the
// first of its shardReader, and has another record. It takes these records from the epoch.
func (s *Set[R]) Unended() bool {
	for i := range s.readers {
		r := s.Blank()
		there := s.take(i, &r)
		s.Return(r)
		if !there || r.Err != nil || r.Shard != s.readers[i].shards[0] {
			return false
		}
	}
	return s.passes == 1
}

// Blank returns a record for Next to replace.
func (s *Set[R]) Blank() *Item[R] {
	if n := len(s.spare) - 1; n >= 0 {
		r := s.spare[n]
		s.spare = s.spare[:n]
		return r
	}
	return s.newItem()
}

func (s *Set[R]) newItem() *Item[R] { return &Item[R]{Part: s.part} }

// repeats reports whether the epoch may have several passes.
func (s *Set[R]) repeats() bool { return s.draws < math.MaxInt }

// Return gives back a record of the Set.
func (s *Set[R]) Return(r *Item[R]) { s.spare = append(s.spare, r) }

// readOfPass replaces *r by the next record of the pass, mixed in the window.
func (s *Set[R]) readOfPass(r **Item[R]) bool {
	if s.Window < 2 {
		return s.readInOrder(r)
	}
	for len(s.window) < s.Window {
		next := s.Blank()
		if !s.readInOrder(&next) {
			s.Return(next)
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
	s.Return(s.window[pick])
	s.window[pick], s.window = s.window[n-1], s.window[:n-1]
	return true
}

// readInOrder replaces *r by the next record as it is read: one of each shardReader in turn.
func (s *Set[R]) readInOrder(r **Item[R]) bool {
	empty := 0 // shardReaders in a row that had nothing
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
