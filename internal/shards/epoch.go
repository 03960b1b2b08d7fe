package shards

import (
	"cmp"
	"fmt"
	"math"

	"golang.org/x/sync/errgroup"

	"github.com/nwt-go/nwt/internal/mix"
)

// Epochs reads the records of epochs of one stream, or of several that are mixed, in order. It
// belongs to one goroutine.
//
// An epoch is one pass over the shards or, if its quota is more than they hold, several passes,
// one after the other. What is read next depends on the epoch and the place in it alone, because
// whatever is left of an epoch is dropped when it ends.
type Epochs[R any] struct {
	Group *Group
	Quota int                              // records of an epoch; 0: all that the shards hold
	Mix   *mix.Plan                        // which part each record is of; nil if there is one part
	Bytes int64                            // that what is read ahead may take
	Lost  func(epoch int, err error) error // what to make of the error of a record that was delivered before and can't be read now; nil: it may be left out

	parts     []*part[R]
	epoch     int
	delivered int // records of the epoch that were handed out or skipped
	dry       int // number of the part that had no record left; −1: none
}

// A part reads the records of one of the streams.
type part[R any] struct {
	*Set[R]
	draws int // its records in all blocks of Mix that the epoch touches; math.MaxInt if the epoch ends with the shards
}

// Add adds a part.
func (e *Epochs[R]) Add(c Config[R]) {
	e.parts = append(e.parts, &part[R]{Set: New(e.Group, len(e.parts), c)})
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
	for _, p := range e.parts {
		p.Begin(epoch, p.draws, e.Bytes/needed)
	}
	var err error
	switch {
	case n > 0 && n == e.Quota:
		e.delivered = n
	case e.skips(n):
		err = e.skip(n)
	default:
		for _, p := range e.parts {
			p.GoAhead()
		}
		err = e.drop(n)
	}
	if err != nil {
		return fmt.Errorf("to resume after %d samples of epoch %d isn't possible: %w", n, epoch, err)
	}
	return nil
}

// Next replaces *r by the next record of the epoch. It reports false after the last record, and if
// the context ends.
func (e *Epochs[R]) Next(r **Item[R]) bool {
	if e.Quota > 0 && e.delivered == e.Quota {
		return false
	}
	k := 0
	if e.Mix != nil {
		k = e.choose(r)
	}
	if !e.parts[k].Next(r) {
		e.dry = k
		return false
	}
	e.delivered++
	return true
}

// choose is the part that the next record is of. If *r is a record of another part, choose
// gives it back to that part, which will read into it again, and takes one of this part.
func (e *Epochs[R]) choose(r **Item[R]) int {
	k, _ := e.Mix.At(e.position(e.delivered))
	if old := *r; old.Part != k {
		e.parts[old.Part].Return(old)
		*r = e.parts[k].Blank()
	}
	return k
}

// position is the number of record i of the epoch, counted over all epochs.
func (e *Epochs[R]) position(i int) uint64 { return uint64(e.epoch)*uint64(e.Quota) + uint64(i) }

// Delivered returns how many records of the epoch were handed out or skipped.
func (e *Epochs[R]) Delivered() int { return e.delivered }

// Dry returns the number of the part that had no record left; −1 if none was dry.
func (e *Epochs[R]) Dry() int { return e.dry }

// Unended returns the number of a part of whose shards none has come to its end in the epoch; −1
// if there is none. It takes records from the epoch.
func (e *Epochs[R]) Unended() int {
	for k, p := range e.parts {
		if p.draws > 0 && p.Unended() {
			return k
		}
	}
	return -1
}

// Stop ends the epoch.
func (e *Epochs[R]) Stop() {
	for _, p := range e.parts {
		p.Stop()
	}
}

// skips reports whether to skip n records: if all readers can, and the records are more than a
// shuffle window holds. (Those in the window must be read in any case.)
func (e *Epochs[R]) skips(n int) bool {
	for _, p := range e.parts {
		if n == 0 || p.Window > n || p.draws > 0 && !p.Skips() {
			return false
		}
	}
	return true
}

// skip skips the epoch's first n records, as if they had been read and dropped.
func (e *Epochs[R]) skip(n int) error {
	counts := []uint64{uint64(n)} // of each part
	if e.Mix != nil {
		counts = e.Mix.Before(e.Group.Context, e.position(n))
		for k, before := range e.Mix.Before(e.Group.Context, e.position(0)) {
			counts[k] -= before
		}
	}
	if e.Group.Context.Err() != nil {
		return nil // counts may be too low
	}
	var group errgroup.Group
	var err error
	for k, p := range e.parts {
		if n := int(counts[k]); e.Group.Ahead {
			group.Go(func() error { return p.SkipTo(n, e.lost) })
		} else {
			err = cmp.Or(err, p.SkipTo(n, e.lost))
		}
	}
	e.delivered = n
	return cmp.Or(err, group.Wait())
}

func (e *Epochs[R]) lost(err error) error { return e.Lost(e.epoch, err) }

// drop reads the epoch's first n records.
func (e *Epochs[R]) drop(n int) error {
	r := e.parts[0].Blank()
	defer func() { e.parts[r.Part].Return(r) }()
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
