package nwt

import (
	"errors"
	"fmt"
	"time"

	"github.com/nwt-go/nwt/driver"
	"github.com/nwt-go/nwt/internal/cuda"
	"github.com/nwt-go/nwt/internal/devicecopy"
	"github.com/nwt-go/nwt/internal/osmemory"
)

// transfer copies the run's batches to the device.
func (r *run) transfer() {
	next, end := r.first, r.first+uint64(r.schedule.Len())
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
			if b.err = r.tally.applyBudget(b); b.err == nil && b.size > 0 {
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
type staged struct{ *batch }

func (b staged) String() string { return fmt.Sprintf("batch %d of epoch %d", b.number, b.span.epoch) }

func (b staged) Parts(parts []driver.Copy, buffer uintptr) (all []driver.Copy, size int) {
	for f, offset := range b.slot.places.Offsets {
		mem, _ := b.bytesOf(f)
		parts = append(parts, driver.Copy{Dst: buffer + uintptr(offset), Src: mem})
		size += len(mem)
	}
	if b.size == b.slot.places.Laid { // then one copy is enough
		parts = append(parts[:0], driver.Copy{Dst: buffer, Src: b.slot.places.Bytes[:b.slot.places.Used]})
	}
	return parts, size
}

func (b staged) Copied(buffer *devicecopy.Buffer, began, ended time.Time) {
	b.device, b.copyBegan, b.copyEnded = buffer, began, ended
	b.l.ring.Staged(b.seq)
}

func (b staged) Lost() { b.slot.holders.Add(1) } // the copy becomes a holder

func (b staged) Failed(err error) {
	b.err = err
	b.l.ring.Staged(b.seq)
}

// CUDA returns the NVIDIA GPU of this number, from 0. If there is none, the error wraps [ErrNoDevice]. CUDA
// needs NVIDIA's driver. Without cgo, it needs the build tag nwt_purego: without the tag, another error says
// so. With the build tag cuda, it needs the toolkit.
func CUDA(ordinal int) (Device, error) {
	dev, err := cuda.Open(ordinal)
	if err != nil {
		return nil, fmt.Errorf("nwt: CUDA(%d): %w", ordinal, err)
	}
	return cudaDevice{dev, fmt.Sprintf("cuda:%d (%s)", ordinal, dev.Name())}, nil
}

type cudaDevice struct {
	*cuda.Device
	name string
}

func (d cudaDevice) String() string { return d.name }

// A Device says where batches end up: [Host], [CUDA], or one made with package driver. Any goroutine may
// call it. Experimental: may change in v0.
type Device interface {
	String() string                     // returns a name for reports; devices of different speeds must have different names
	AllocHost(size int) ([]byte, error) // returns memory from which the device copies at full speed, aligned for every type
	FreeHost(mem []byte) error
	Alloc(size int) (uintptr, error) // returns memory on the device
	Free(ptr uintptr) error
	NewEvent() (uintptr, error) // returns a handle for a point in a session's queue
	FreeEvent(event uintptr) error
	Open() (driver.Session, error) // opens a session, a queue of copies for one loader
}

// Host returns the default device: batches stay where they were loaded.
func Host() Device { return hostDevice{} }

type hostDevice struct{}

func onHost(d Device) bool {
	_, ok := d.(hostDevice)
	return ok
}

func (hostDevice) String() string                  { return "host" }
func (hostDevice) AllocHost(n int) ([]byte, error) { return osmemory.Map(n) }
func (hostDevice) FreeHost(mem []byte) error       { return osmemory.Unmap(mem) }
func (hostDevice) Alloc(int) (uintptr, error)      { return 0, errors.ErrUnsupported }
func (hostDevice) Free(uintptr) error              { return errors.ErrUnsupported }
func (hostDevice) NewEvent() (uintptr, error)      { return 0, errors.ErrUnsupported }
func (hostDevice) FreeEvent(uintptr) error         { return errors.ErrUnsupported }
func (hostDevice) Open() (driver.Session, error)   { return nil, errors.ErrUnsupported }
