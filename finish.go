package nwt

import (
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/nwt-go/nwt/internal/guard"
	"github.com/nwt-go/nwt/internal/permute"
)

// expect says how many places loadedPlaces is to count.
func (b *Batch) expect(n int) {
	if b.l.opts.finish != nil {
		b.unfinished.Store(int32(n))
	}
}

// loadedPlaces counts n more places of the batch as loaded. Whoever counts the last
// of them finishes the batch, before it is reported to the ring.
func (b *Batch) loadedPlaces(n, worker int) {
	if b.l.opts.finish != nil && b.unfinished.Add(-int32(n)) == 0 {
		b.finish(worker)
	}
}

// finish calls the function of WithFinish. Before that, it leaves out bad samples as
// far as the budget may allow; admit counts them later.
func (b *Batch) finish(worker int) {
	if b.l.ring.Stopped() || b.l.opts.maxBad == 0 && b.bad.any() {
		return // nobody will see it
	}
	if b.finishErr = b.leaveOutBad(); b.finishErr != nil || b.size == 0 {
		return
	}
	fail := func(stack []byte, err error) {
		b.finishErr = &LoadError{
			Index: -1, Position: -1, Epoch: b.epoch, Worker: worker,
			Err: finishError{fmt.Errorf("WithFinish of batch %d: %w", b.index, err)}, Stack: stack,
		}
	}
	guard.Call(func() error { return b.l.opts.finish(b.run.ctx, b) }, fail)
}

// A finishError is what the function of WithFinish failed with.
type finishError struct{ error }

func (e finishError) Unwrap() error { return errors.Unwrap(e.error) }

// batchRand keeps Batch.Rand apart from Sample.Rand. It too is taken from the
// fractional part of π.
const batchRand = 0x13198a2e03707344

// Rand is the batch's source of randomness, for numbers that are drawn once per batch:
// for example, how much of another image mixup mixes in. It is seeded by (seed, epoch,
// position of the batch's first sample) alone.
func (b *Batch) Rand() *rand.Rand {
	if b.rand == nil {
		b.rand = rand.New(&b.pcg)
	}
	if !b.seeded {
		b.seeded = true
		key := permute.EpochKey(b.l.seedKey, b.epoch) ^ batchRand + uint64(b.first())*permute.Golden
		b.pcg.Seed(permute.Mix64(key), permute.Mix64(key^permute.Golden))
	}
	return b.rand
}

// first is the position of place 0 in the epoch, over all ranks, even if its sample
// was left out.
func (b *Batch) first() int {
	if b.records != nil {
		return b.from*b.l.opts.world + b.l.opts.rank
	}
	return b.from
}
