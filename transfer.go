package nwt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/pprof"
	"runtime/trace"
	"slices"
	"sync"
	"time"

	"github.com/nwt-go/nwt/device"
)

// An opened session is one that the stage uses.
type opened struct {
	device.Session
	failure error // of Close: what was queued may still be under way
}

// A stage copies loaded batches to the loader's device, in order. It serves one run
// after the other, each in a goroutine of that run.
type stage struct {
	l       *Loader
	dev     Device
	buffers bufferPool

	// Used by the goroutine that serves a run, and afterwards by Close.
	session *opened       // nil before the first epoch, and after an error
	queue   []*Batch      // batches whose copies are under way, in order
	parts   []device.Copy // of a batch; the memory is used again for each batch
	last    time.Time     // end of the latest copy

	mu     sync.Mutex
	copies copies // guarded by mu; the sum of all copies that are done
}

// copies sums up the copies of batches.
type copies struct {
	batches, bytes int
	took           time.Duration // sum; each copy from its start, or from the end of the one before
}

// copies is all that the loader has copied so far.
func (l *Loader) copies() copies {
	if l.stage == nil {
		return copies{}
	}
	l.stage.mu.Lock()
	defer l.stage.mu.Unlock()
	return l.stage.copies
}

func newStage(l *Loader, dev Device) *stage {
	return &stage{l: l, dev: dev, buffers: bufferPool{l: l, dev: dev, back: make(chan struct{}, 1), most: deviceBuffers}}
}

// serve copies the batches of a run until the run stops or has no more. It queues copies as
// long as there are a batch and a buffer, then waits for the oldest, and only if none is queued
// for a batch or a buffer. It announces batches in order. No copy is under way when it returns,
// unless a session couldn't be closed.
func (s *stage) serve(r *run) {
	pprof.SetGoroutineLabels(pprof.WithLabels(context.Background(), pprof.Labels("nwt", "transfer", "device", s.dev.String())))
	if err := s.open(); err != nil {
		r.stop(s.transferError(err))
		return
	}
	next, end := r.first, r.first+uint64(r.course.len())
	admitted := next // the first batch that wasn't asked whether it has something to copy
	var err error
	for err == nil {
		switch {
		case next < end && next == admitted && s.isWhole(r, next): // before there is a buffer: a consumer that looks ahead has one
			if admitted++; !s.admit(r, next) {
				next++
			}
		case next < admitted && s.buffers.available() && !r.isOver():
			var begun bool
			begun, err = s.begin(next)
			if err != nil {
				err = cmp.Or(s.drain(), err)
			} else if begun {
				next++
			}
		case len(s.queue) > 0:
			err = s.awaitOldest()
		case next == end || r.isOver():
			return
		case next == admitted:
			s.l.ring.AwaitLoaded(next)
		default:
			select {
			case <-s.buffers.back:
			case <-r.ctx.Done():
			}
		}
	}
	s.fail(next, err)
}

// isWhole tells whether a batch is loaded, and not only because the run is over. The order of
// the conditions matters: workers that see the ring stopped skip places, and what Load makes of
// the end of the context is no bad sample.
func (s *stage) isWhole(r *run, seq uint64) bool { return s.l.ring.Loaded(seq) && !r.isOver() }

// fail ends the copies of a run. The error comes in place of the first batch that isn't
// copied, so that the batches before it are delivered.
func (s *stage) fail(next uint64, err error) {
	if len(s.queue) > 0 {
		next = s.queue[0].seq
	}
	s.abort()
	s.l.ring.AwaitLoaded(next)
	if !s.l.ring.Loaded(next) {
		return // the run was stopped
	}
	s.l.ring.Item(next).err = s.transferError(err)
	s.l.ring.Staged(next)
}

// open opens a session if there is none.
func (s *stage) open() error {
	if s.session != nil {
		return nil
	}
	session, err := s.dev.Open()
	if err != nil {
		return err
	}
	s.session = &opened{Session: session}
	return nil
}

func (s *stage) transferError(err error) error {
	return fmt.Errorf("nwt: transfer to %s: %w", s.dev, err)
}

// drain finishes the copies that were queued before a copy that couldn't be
// queued: their batches come before its error.
func (s *stage) drain() (err error) {
	for err == nil && len(s.queue) > 0 {
		err = s.awaitOldest()
	}
	return err
}

// admit tells whether there is something of a loaded batch to copy. If not, it
// announces the batch.
func (s *stage) admit(r *run, seq uint64) bool {
	b := s.l.ring.Item(seq)
	if b.err = r.tally.admit(b); b.err == nil && b.size > 0 {
		r.tellGoesOn(b)
		return true
	}
	s.l.ring.Staged(seq)
	return false
}

// begin queues the copy of a batch. If the device has no memory for another buffer,
// the batch waits until one that is in use comes back.
func (s *stage) begin(seq uint64) (begun bool, err error) {
	b := s.l.ring.Item(seq)
	if b.device, err = s.take(); err != nil || b.device == nil {
		return false, err
	}
	b.queued = time.Now()
	if err := s.copy(b); err != nil {
		return false, b.copyError(err)
	}
	s.queue = append(s.queue, b)
	return true, nil
}

// copy queues the copies of a batch.
func (s *stage) copy(b *Batch) error {
	b.device.unawaited = s.session
	b.copied = b.bytes()
	s.parts = s.parts[:0]
	if b.size == b.room {
		s.parts = append(s.parts, device.Copy{Dst: b.device.ptr, Src: b.mem[:b.used]})
	} else {
		for f, offset := range b.offsets {
			s.parts = append(s.parts, device.Copy{Dst: b.device.ptr + uintptr(offset), Src: b.Bytes(f)})
		}
	}
	return s.session.Copy(s.parts, b.device.event)
}

// awaitOldest waits for the oldest copy that is queued.
func (s *stage) awaitOldest() error {
	b := s.queue[0]
	region := trace.StartRegion(b.run.ctx, "nwt.transfer")
	err := s.session.Wait(b.device.event)
	region.End()
	if err != nil {
		return b.copyError(err)
	}
	s.queue = slices.Delete(s.queue, 0, 1)
	b.device.unawaited = nil
	began, ended := later(b.queued, s.last), time.Now()
	s.last = ended
	s.mu.Lock()
	s.copies = copies{s.copies.batches + 1, s.copies.bytes + b.copied, s.copies.took + ended.Sub(began)}
	s.mu.Unlock()
	b.copyBegan, b.copyEnded = began, ended
	s.l.ring.Staged(b.seq)
	return nil
}

// abort ends the session after an error. For some queued copies there may be no
// event; only the end of the session waits for all of them.
func (s *stage) abort() {
	s.queue = nil
	if ended := s.session; ended != nil {
		s.session = nil
		ended.failure = ended.Close()
	}
}

// take finds or makes a buffer. It returns nil if the device has no memory for
// another one, and one that is in use will come back.
func (s *stage) take() (*deviceBuffer, error) {
	d, surplus := s.buffers.pop()
	if surplus != nil { // a buffer that a retained batch has left
		s.buffers.drop(surplus)
	}
	if d != nil {
		return d, nil
	}
	d, err := s.buffers.add()
	if err != nil && s.buffers.doWithout(err) {
		return nil, nil
	}
	return d, err
}

// close ends the session and frees the buffers. Buffers in use are freed when they come back.
func (s *stage) close() {
	free := s.buffers.close()
	if s.session != nil {
		if err := s.session.Close(); err != nil {
			s.l.opts.log.Warn("nwt: a device could not be closed cleanly", "device", s.dev.String(), "error", err)
		}
		s.session = nil
	}
	for _, d := range free {
		s.buffers.drop(d)
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

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
