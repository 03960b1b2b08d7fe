package nwt

import (
	"errors"
	"fmt"
	"slices"
	"sync"
)

// deviceBuffers is how many batches are on the device at once: one in use, one
// being copied, and one whose copy is queued behind it, so that between two copies
// the device needn't wait for the stage to wake up. If the device's memory is short,
// there are fewer.
const deviceBuffers = 3

// A deviceBuffer is a batch's memory on the device.
type deviceBuffer struct {
	ptr   uintptr
	event uintptr // end of the copy into it

	// unawaited is the session with work on the buffer that nobody has waited for, or nil.
	// Only the stage writes it, and whoever takes the buffer back reads it.
	unawaited *opened
}

// lost tells whether work may still be under way on a buffer that comes back, and nobody
// will know when it ends: the session with the work couldn't be closed.
func (d *deviceBuffer) lost() bool { return d.unawaited != nil && d.unawaited.failure != nil }

// A bufferPool has the buffers of a loader on its device. Those that a batch has aren't in it,
// but are counted.
type bufferPool struct {
	l    *Loader
	dev  Device
	back chan struct{} // a token after a buffer came back or went loose

	mu     sync.Mutex
	free   []*deviceBuffer // guarded by mu; the longest free first
	total  int             // guarded by mu; all buffers, wherever they are
	most   int             // guarded by mu; how many to have, besides the loose ones
	loose  int             // guarded by mu; buffers with batches retained past their iteration, or lost
	closed bool            // guarded by mu
}

// available tells whether one more buffer may be used.
func (p *bufferPool) available() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.total-p.loose-len(p.free) < p.most
}

// pop takes a free buffer and, if there are too many, another one to drop.
func (p *bufferPool) pop() (d, surplus *deviceBuffer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.free) == 0 {
		return nil, nil
	}
	n := 1
	d = p.free[0]
	if p.total-p.loose > p.most && len(p.free) > 1 {
		surplus = p.free[1]
		n = 2
	}
	p.free = slices.Delete(p.free, 0, n)
	return d, surplus
}

// add makes a buffer for the caller.
func (p *bufferPool) add() (*deviceBuffer, error) {
	ptr, err := p.dev.Alloc(p.l.slotBytes)
	if err != nil {
		return nil, fmt.Errorf("%d bytes for a batch: %w (a smaller WithBatchSize needs less)", p.l.slotBytes, err)
	}
	event, err := p.dev.NewEvent()
	if err != nil {
		return nil, errors.Join(err, p.dev.Free(ptr))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.total++
	return &deviceBuffer{ptr: ptr, event: event}, nil
}

// doWithout makes do with the buffers that there are, since the device has no memory for
// another. It reports false if there are none. Buffers of retained batches don't count: the
// program may release them only after the next batch.
func (p *bufferPool) doWithout(err error) bool {
	p.mu.Lock()
	had, have := p.most, p.total-p.loose
	if have > 0 {
		p.most = have
	}
	p.mu.Unlock()
	if have > 0 && had == deviceBuffers {
		p.l.opts.log.Warn(fmt.Sprintf("nwt: only %d of %d batches fit into the memory of the device: copies overlap less with training", have, had),
			"device", p.dev.String(), "error", err)
	}
	return have > 0
}

// put takes a buffer back.
func (p *bufferPool) put(d *deviceBuffer, loose bool) {
	p.mu.Lock()
	if loose {
		p.loose--
	}
	lost, closed := d.lost(), p.closed
	switch {
	case lost:
		p.loose++
	case !closed:
		p.free = append(p.free, d)
	}
	p.mu.Unlock()
	switch {
	case lost:
		p.l.opts.log.Warn("nwt: memory of a batch is neither used again nor freed, since a copy to the device may still be under way", "device", p.dev.String(), "error", d.unawaited.failure)
	case closed:
		p.drop(d)
	}
	p.notify()
}

// detach counts a buffer whose batch is retained past its iteration.
func (p *bufferPool) detach() {
	p.mu.Lock()
	p.loose++
	p.mu.Unlock()
	p.notify()
}

func (p *bufferPool) notify() {
	select {
	case p.back <- struct{}{}:
	default:
	}
}

// drop gives a buffer's memory back.
func (p *bufferPool) drop(d *deviceBuffer) {
	err := errors.Join(p.dev.FreeEvent(d.event), p.dev.Free(d.ptr))
	p.mu.Lock()
	p.total--
	p.mu.Unlock()
	if err != nil {
		p.l.opts.log.Warn("nwt: device memory could not be freed", "device", p.dev.String(), "error", err)
	}
}

// close gives up the free buffers, and returns them. Others are freed when they come back.
func (p *bufferPool) close() []*deviceBuffer {
	p.mu.Lock()
	defer p.mu.Unlock()
	free := p.free
	p.free, p.closed = nil, true
	return free
}

// bytes is the size of all buffers.
func (p *bufferPool) bytes() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.total * p.l.slotBytes
}
