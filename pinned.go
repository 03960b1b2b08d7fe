package nwt

import (
	"fmt"

	"github.com/nwt-go/nwt/internal/cuda"
)

// hostMemory is where slots come from. They lie outside the Go heap: a gigabyte
// of them there would let the collector pile up a gigabyte of garbage, and
// would not go back to the system when a loader closes.
type hostMemory struct {
	alloc func(size int) ([]byte, error)
	free  func(mem []byte) error
}

func newHostMemory(o *options) hostMemory {
	pages := hostMemory{mapPages, unmapPages}
	host := onHost(o.device)
	switch pinned := o.pinned == nil && !host || o.pinned != nil && *o.pinned; {
	case !pinned:
		return pages
	case !host:
		return hostMemory{o.device.AllocHost, o.device.FreeHost}
	}
	// The driver's page-locked memory is what other runtimes in the process
	// (XLA's, say) recognize and copy from at full speed.
	if gpu, err := cuda.Open(0); err == nil {
		return hostMemory{gpu.AllocHost, gpu.FreeHost}
	}
	warned := false
	pages.alloc = func(size int) ([]byte, error) {
		mem, err := mapPages(size)
		if err != nil {
			return nil, err
		}
		if err := lockPages(mem); err != nil && !warned {
			warned = true
			o.log.Warn(fmt.Sprintf("nwt: batches of %d bytes lie in ordinary memory, since page-locked memory was refused", size), "limit", lockLimit(), "error", err)
		}
		return mem, nil
	}
	return pages
}
