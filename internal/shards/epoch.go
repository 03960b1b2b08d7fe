package shards

import (
	"cmp"
	"fmt"
	"iter"
	"math"

	"golang.org/x/sync/errgroup"

	"github.com/nwt-go/nwt/internal/mixture"
)

// Epochs reads the records of epochs of one stream, or of several that are mixed, in order. It
// belongs to one goroutine.
//
// An epoch is one pass over the shards or, if its quota is more than they hold, several passes, one after
// the other. What is read next depends only on the epoch and the position in it, because everything left
// of an epoch is dropped when it ends. Parts whose records are counted continue where the epoch before
// ended; that position, too, follows from the number of the epoch.
type Epochs[R any] struct {
	Group *Group
	Quota int                              // records per epoch; 0: all that the shards hold
	Mix   *mixture.Plan                    // says which part each record comes from; nil if there is one part
	Bytes int64                            // memory that may be read ahead
	Lost  func(epoch int, err error) error // called with the error of a record that was delivered before and now can't be read; returns the error to end with, or nil if the record may be left out

	parts     []*part[R]
	epoch     int
	delivered int   // records of the epoch that were delivered or skipped
	dry       int   // number of the part that had no record left; −1: none
	bound     int64 // limit of the bytes that a part reads ahead
}

// A part reads the records of one stream.
type part[R any] struct {
	reads[R] // either set or counted
	set      *set[R]
	counted  *Draws[R] // for a part of Mix; else nil
	draws    int       // records of it in all blocks of Mix that the epoch touches; math.MaxInt if the epoch ends with the shards
}

type reads[R any] interface {
	next(r **Item[R]) bool
	blank() *Item[R]
	giveBack(r *Item[R])
}

// Add adds a part.
func (e *Epochs[R]) Add(c Config[R]) {
	s := newSet(e.Group, len(e.parts), c)
	e.parts = append(e.parts, &part[R]{reads: s, set: s})
}

// AddCounted adds a part of Mix whose records are counted.
func (e *Epochs[R]) AddCounted(d *Draws[R]) {
	e.parts = append(e.parts, &part[R]{reads: d, counted: d})
}

// Begin begins an epoch after n of its records, which are skipped, or read and dropped.
func (e *Epochs[R]) Begin(epoch, n int) error {
	e.epoch, e.delivered, e.dry = epoch, 0, -1
	needed := int64(0)
	for k, p := range e.parts {
		p.draws = cmp.Or(e.Quota, math.MaxInt)
		if e.Mix != nil {
			p.draws = e.Mix.Draws(k, e.position(0), e.position(e.Quota))
		}
		if p.draws > 0 {
			needed++
		}
	}
	e.bound = e.Bytes / max(1, needed)
	for _, p := range e.uncounted() {
		p.set.begin(epoch, p.draws, e.bound)
	}
	var err error
	switch {
	case n > 0 && n == e.Quota:
		e.delivered = n
	case n > 0 && e.skips():
		err = e.skip(n)
	default:
		for _, p := range e.uncounted() {
			p.set.goAhead()
		}
		if err = e.beginCounted(0); err == nil {
			err = e.drop(n)
		}
	}
	if err != nil {
		return fmt.Errorf("to resume after %d samples of epoch %d isn't possible: %w", n, epoch, err)
	}
	return nil
}

// uncounted yields the parts whose records aren't counted, by number.
func (e *Epochs[R]) uncounted() iter.Seq2[int, *part[R]] {
	return func(yield func(int, *part[R]) bool) {
		for k, p := range e.parts {
			if p.set != nil && !yield(k, p) {
				return
			}
		}
	}
}

// beginCounted begins the parts whose records are counted after n records of the epoch. Its error is the
// context's.
func (e *Epochs[R]) beginCounted(n int) error {
	var before []uint64
	for k, p := range e.parts {
		if p.counted == nil || p.draws == 0 {
			continue
		}
		if before == nil {
			before = e.Mix.Before(e.Group.Context, e.position(n))
		}
		if err := e.Group.Context.Err(); err != nil {
			return err // the counts in before may be too low
		}
		p.counted.begin(before[k], e.bound)
	}
	return nil
}

// Next replaces *r by the next record of the epoch. It returns false after the last record, or if the
// context ends.
func (e *Epochs[R]) Next(r **Item[R]) bool {
	if e.Quota > 0 && e.delivered == e.Quota {
		return false
	}
	k := 0
	if e.Mix != nil {
		k = e.choose(r)
	}
	if !e.parts[k].next(r) {
		e.dry = k
		return false
	}
	e.delivered++
	return true
}

// choose returns the part that the next record comes from. If *r is a record of another part, choose
// gives it back to that part, which will reuse it, and takes a record of this part.
func (e *Epochs[R]) choose(r **Item[R]) int {
	k, _ := e.Mix.At(e.position(e.delivered))
	if old := *r; old.Part != k {
		e.parts[old.Part].giveBack(old)
		*r = e.parts[k].blank()
	}
	return k
}

// position returns the position of record i of the epoch, counted over all epochs.
func (e *Epochs[R]) position(i int) uint64 { return uint64(e.epoch)*uint64(e.Quota) + uint64(i) }

// Delivered returns how many records of the epoch were delivered or skipped.
func (e *Epochs[R]) Delivered() int { return e.delivered }

// Dry returns the number of the part that had no record left, or −1 if there is none.
func (e *Epochs[R]) Dry() int { return e.dry }

// Unended returns the numbers of the parts for which set.unended is true. It takes records from the epoch.
func (e *Epochs[R]) Unended(ordersDiffer bool) (parts []int) {
	for k, p := range e.uncounted() {
		if p.draws > 0 && p.set.unended(ordersDiffer) {
			parts = append(parts, k)
		}
	}
	return parts
}

// End ends the epoch.
func (e *Epochs[R]) End() {
	for _, p := range e.uncounted() {
		p.set.stop()
	}
}

// Stop ends reading.
func (e *Epochs[R]) Stop() {
	e.End()
	for _, p := range e.parts {
		if p.counted != nil {
			p.counted.stop()
		}
	}
}

// skips reports whether all readers can skip records.
func (e *Epochs[R]) skips() bool {
	for _, p := range e.uncounted() {
		if p.draws > 0 && !p.set.skips() {
			return false
		}
	}
	return true
}

// skip skips the epoch's first n records, as if they had been read and dropped.
func (e *Epochs[R]) skip(n int) error {
	counts := []uint64{uint64(n)} // for each part
	if e.Mix != nil {
		counts = e.Mix.Before(e.Group.Context, e.position(n))
		for k, before := range e.Mix.Before(e.Group.Context, e.position(0)) {
			counts[k] -= before
		}
	}
	if err := e.Group.Context.Err(); err != nil {
		return err // counts may be too low
	}
	if err := e.beginCounted(n); err != nil {
		return err
	}
	var group errgroup.Group
	var err error
	for k, p := range e.uncounted() {
		if n := int(counts[k]); e.Group.Ahead {
			group.Go(func() error { return p.set.skipTo(n, e.lost) })
		} else {
			err = cmp.Or(err, p.set.skipTo(n, e.lost))
		}
	}
	e.delivered = n
	return cmp.Or(err, group.Wait())
}

func (e *Epochs[R]) lost(err error) error { return e.Lost(e.epoch, err) }

// drop reads the epoch's first n records.
func (e *Epochs[R]) drop(n int) error {
	if n == 0 {
		return nil
	}
	r := &Item[R]{}
	for range n {
		if !e.Next(&r) {
			return fmt.Errorf("this rank's shards have %d", e.delivered)
		}
		if r.Err == nil {
			continue
		}
		if err := e.lost(r.Err); err != nil {
			return fmt.Errorf("record %d of these can't be read: %w", e.delivered-1, err)
		}
	}
	return nil
}
