package nwt

import (
	"fmt"
	"time"

	"github.com/nwt-go/nwt/device"
	"github.com/nwt-go/nwt/internal/devicecopy"
)

// transfer copies the run's batches to the device.
func (r *run) transfer() {
	next, end := r.first, r.first+uint64(r.course.Len())
	err := r.l.stage.Serve(r.ctx, func(wait bool) devicecopy.Batch {
		for ; next < end; next++ {
			if wait {
				r.l.ring.AwaitLoaded(next)
			}
			// The order matters: workers that see the ring stopped skip places, and an error of Load
			// because the context has ended is not a bad sample.
			if !r.l.ring.Loaded(next) || r.isOver() {
				return nil
			}
			b := r.l.ring.Item(next)
			if b.err = r.tally.admit(b); b.err == nil && b.size > 0 {
				next++
				return staged{b}
			}
			r.l.ring.Staged(next) // there is nothing to copy
		}
		return nil
	})
	if err != nil {
		r.stop(err)
	}
}

// A staged is a batch in the form that the stage uses.
type staged struct{ *Batch }

func (b staged) String() string { return fmt.Sprintf("batch %d of epoch %d", b.number, b.epoch) }

func (b staged) Parts(parts []device.Copy, buffer uintptr) (all []device.Copy, size int) {
	for f, offset := range b.places.Offsets {
		mem := b.Bytes(f)
		parts = append(parts, device.Copy{Dst: buffer + uintptr(offset), Src: mem})
		size += len(mem)
	}
	if b.size == b.places.Laid { // then one copy is enough
		parts = append(parts[:0], device.Copy{Dst: buffer, Src: b.places.Bytes[:b.places.Used]})
	}
	return parts, size
}

func (b staged) Copied(buffer *devicecopy.Buffer, began, ended time.Time) {
	b.device, b.copyBegan, b.copyEnded = buffer, began, ended
	b.l.ring.Staged(b.seq)
}

func (b staged) Lost() { b.holders.Add(1) } // the copy becomes a holder

func (b staged) Failed(err error) {
	b.err = err
	b.l.ring.Staged(b.seq)
}
