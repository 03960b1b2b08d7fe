package nwt

import (
	"fmt"

	"github.com/nwt-go/nwt/internal/cuda"
	"github.com/nwt-go/nwt/internal/oncelog"
	"github.com/nwt-go/nwt/internal/osmemory"
)

// WithPinned loads batches into page-locked memory. This is the default on a GPU. On the [Host], it is for
// programs that copy to a GPU themselves. If the system refuses to lock memory, a log line names the limit.
func WithPinned() Option {
	return option("WithPinned", everywhere, nil, func(o *options) { o.pinned = new(true) }, true)
}

// WithoutPinned loads batches into ordinary memory.
func WithoutPinned() Option {
	return option("WithoutPinned", everywhere, nil, func(o *options) { o.pinned = new(false) }, true)
}

// slotMemory allocates the memory of slots, always outside the Go heap. On the heap, a gigabyte of slots
// would let a gigabyte of garbage accumulate between collections, and the memory wouldn't go back to the
// system when a loader closes.
type slotMemory struct {
	alloc func(size int) ([]byte, error)
	free  func(mem []byte) error
}

// newSlotMemory chooses the memory by device and WithPinned. For a GPU it is the driver's page-locked
// memory, unless WithoutPinned declines it. For the host it is ordinary pages or, with
// WithPinned, the driver's memory or locked pages. With checks it is ordinary pages.
func newSlotMemory(o *options) slotMemory {
	host := onHost(o.device)
	switch pinned := o.pinned == nil && !host || o.pinned != nil && *o.pinned; {
	case !pinned || o.checks:
		return slotMemory{osmemory.Map, osmemory.Unmap}
	case !host:
		return slotMemory{o.device.AllocHost, o.device.FreeHost}
	}
	// Other runtimes in the process (XLA, for example) recognize the driver's
	// page-locked memory and copy from it at full speed.
	if gpu, err := gpuOfRank(o); err == nil {
		return slotMemory{gpu.AllocHost, gpu.FreeHost}
	}
	return lockedPages(o)
}

// gpuOfRank returns the GPU that this process most likely trains on. Page-locked memory needs a context.
// If every rank made a context on the first GPU, these would take memory of that GPU.
func gpuOfRank(o *options) (*cuda.Device, error) {
	n, err := cuda.Count()
	if err != nil {
		return nil, err
	}
	local := o.rank
	if o.launcher != nil {
		local = o.launcher.LocalRank
	}
	return cuda.Open(local % n)
}

// lockedPages locks pages as long as the system's limit allows. It logs once if the limit is reached.
func lockedPages(o *options) slotMemory {
	var once oncelog.Log
	alloc := func(size int) ([]byte, error) {
		mem, err := osmemory.Map(size)
		if err != nil {
			return nil, err
		}
		if err := osmemory.Lock(mem); err != nil {
			if once.First("refused") {
				o.log.Warn(fmt.Sprintf("nwt: batches of %d bytes lie in ordinary memory, since page-locked memory was refused", size), "limit", osmemory.LockLimit(), "error", err)
			}
		}
		return mem, nil
	}
	return slotMemory{alloc, osmemory.Unmap}
}
