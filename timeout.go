package nwt

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/nwt-go/nwt/internal/callctx"
	"github.com/nwt-go/nwt/internal/osmemory"
)

// With WithTimeout, a call that takes too long is given up. The watchdog (internal/watch) calls pool.replace,
// and another goroutine takes over from the call's worker (takeOver). If the call is of Load, its sample is bad:
// "no answer within WithTimeout(1s)" (internal/callctx). If it is of LoadMany, its samples are loaded one by one,
// in the batch's spare (openSpare). The call goes on in its goroutine, which the loader no longer counts on. It
// keeps everything that it may touch: its worker, with the samples and the indices it was given, and the whole
// slot that they lie in (slot.holders). The batch is moved to another slot before it is delivered (leaveOutBad in
// badsamples.go, moveOut). When the call returns, its hand learns that it is tooLate (its clock is Lost), and its
// worker frees what it kept (returned). While too many calls are Away, no batch is opened (tooManyAway). Calls of
// a ShardReader are given up in internal/shards, call.go.

// TimeoutOf returns how long a call of Load, or of a [ShardReader], may take, as [WithTimeout] set it;
// 0 means no bound. Pass the context of the call.
func TimeoutOf(ctx context.Context) time.Duration { return callctx.Timeout(ctx) }

// takeOver implements poolHooks. If a call of Load is given up, its sample is bad. The samples of a
// LoadMany are loaded one by one, if there is memory for that.
func (l *engine) takeOver(next, w *worker) {
	b := w.claim.Item
	err := callctx.NoAnswer(w.ctx)
	w.slot.holders.Add(1) // the call; the last holder frees the slot
	w.keeps = w.slot
	w.cancel(err)
	next.claim, next.claimed, next.asked, next.slot, next.next = w.claim, true, true, w.slot, w.upto
	if w.ofBatch {
		if refused := b.openSpare(w.next, w.claim.To); refused != nil {
			err = fmt.Errorf("%w; nor can its samples be loaded one by one: %w", err, refused)
		} else {
			next.slot, next.next = b.spare, w.next
		}
		if !l.ring.Stopped() { // else it is not a failure
			next.failed = err
		}
	}
	for place := w.next; place < next.next; place++ {
		b.fail(place, w.number, err, nil)
	}
}

// returned frees what a call that was given up has held.
func (w *worker) returned() {
	w.l.release(w.keeps)
	w.l.pool.returned(w)
	w.locals.close(w.l.opts.log)
}

// tooManyAway returns an error if too many calls that were given up haven't returned: each keeps a
// goroutine, and perhaps a slot.
func (l *engine) tooManyAway() error {
	const most = 1024
	if away := l.pool.watchdog.Away(); away >= most {
		return fmt.Errorf("nwt: %d calls that WithTimeout(%v) gave up haven't returned, the bound is %d: what they wait for is down", away, l.opts.timeout, most)
	}
	return nil
}

// patience is how long a run that is ending waits for calls before it says so.
const patience = 5 * time.Second

// A slowCallLog logs, once, that a run that is ending waits for calls.
type slowCallLog struct {
	armed sync.Once
	timer *time.Timer // nil: not armed
}

func (s *slowCallLog) arm(r *run) {
	s.armed.Do(func() {
		s.timer = time.AfterFunc(patience, func() {
			r.l.opts.log.Warn("nwt: the epoch is over, but a call of Load is still running, and is waited for: Load should return when its context ends, or WithTimeout should bound it", "epoch", r.yielded.Load())
		})
	})
}

func (s *slowCallLog) stop() {
	s.armed.Do(func() {})
	if s.timer != nil {
		s.timer.Stop()
	}
}

// openSpare prepares the batch's spare for the places from … to−1, which are then loaded one by one: a
// call of LoadMany that was given up may still write to these places in the batch's own slot. In the
// spare, the index of any other place is −1. Its memory is ordinary memory, since the places are moved
// to another slot afterwards.
func (b *Batch) openSpare(from, to int) error {
	if b.spare == nil {
		s, err := b.slotLike(slotMemory{osmemory.Map, osmemory.Unmap})
		if err != nil {
			return err
		}
		for place := range s.indices {
			s.indices[place] = -1
		}
		b.spare = s
	}
	copy(b.spare.indices[from:to], b.indices[from:to])
	return nil
}

// slotLike returns a slot in which the batch has the same shape as in its own slot.
func (b *Batch) slotLike(mem slotMemory) (*slot, error) {
	s, err := b.l.newSlot(mem)
	if err == nil && b.l.ownShapes() {
		s.places.Like(&b.places)
	}
	return s, err
}

// moveOut moves a loaded batch, except its bad places, to a slot that no call that was given up can write to.
func (b *Batch) moveOut() error {
	memory := b.l.slotMem
	if b.request != nil && b.request.memory.alloc != nil {
		memory = b.request.memory
	}
	to, err := b.slotLike(memory)
	if err != nil {
		return fmt.Errorf("out of the way of a Load that hangs: %w", err)
	}
	bad := b.bad.sorted()
	for place := range b.size {
		if len(bad) > 0 && bad[0].place == place {
			bad = bad[1:]
			continue
		}
		home := b.slot
		if b.spare != nil && b.spare.indices[place] >= 0 {
			home = b.spare
		}
		to.copyPlaces(place, home, place, place+1)
	}
	b.giveUp(b.slot)
	b.slot = to
	b.resize(b.size)
	b.leaveSpare()
	return nil
}
