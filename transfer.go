package nwt

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/pprof"
	"runtime/trace"
	"sync"
	"sync/atomic"
	"time"
)

// A Device is where batches must end up. [Host] and [CUDA] give the two that
// nwt brings; others can be written. All methods may be called from any
// goroutine.
type Device interface {
	// String names the device in reports, and tells it from others that are
	// differently fast: "host", "cuda:0 (NVIDIA H200)".
	String() string
	// AllocHost returns memory that the device copies from at full speed.
	AllocHost(size int) ([]byte, error)
	// FreeHost frees what AllocHost returned.
	FreeHost(mem []byte) error
	// Alloc returns the address of new memory on the device.
	Alloc(size int) (uintptr, error)
	// Free frees what Alloc returned.
	Free(ptr uintptr) error
	// Open begins a loader's session. The loader calls Open and all methods of
	// the session from one goroutine that is locked to an OS thread of its own.
	Open() (Session, error)
}

// A Session is a queue of copies to a device, for one loader.
type Session interface {
	// NewEvent returns an event: a handle for a point in a queue that the
	// program's other code for the device understands too.
	NewEvent() (uintptr, error)
	// FreeEvent frees an event.
	FreeEvent(event uintptr) error
	// Copy queues a copy to device memory and doesn't wait for it.
	Copy(dst uintptr, src []byte) error
	// Record makes event stand for the end of all copies queued so far.
	Record(event uintptr) error
	// Wait blocks the thread until the point that event stands for is reached.
	Wait(event uintptr) error
	// WaitEvent makes copies that are queued later wait, on the device, for
	// an event of the training program's.
	WaitEvent(event uintptr) error
	// WaitStream makes copies that are queued later wait, on the device, for
	// all that is in a queue (a CUDA stream) of the training program's now.
	WaitStream(stream uintptr) error
	// Close waits for all copies and ends the session.
	Close() error
}

// Host is the device that needs no copy: a batch is used where it was loaded.
// It is the default.
func Host() Device { return hostDevice{} }

type hostDevice struct{}

func onHost(d Device) bool {
	_, ok := d.(hostDevice)
	return ok
}

func (hostDevice) String() string                  { return "host" }
func (hostDevice) AllocHost(n int) ([]byte, error) { return mapPages(n) }
func (hostDevice) FreeHost(mem []byte) error       { return unmapPages(mem) }
func (hostDevice) Alloc(int) (uintptr, error)      { return 0, errors.ErrUnsupported }
func (hostDevice) Free(uintptr) error              { return errors.ErrUnsupported }
func (hostDevice) Open() (Session, error)          { return nil, errors.ErrUnsupported }

// DevicePtr is the address of a field of all samples on the loader's device,
// laid out as Bytes; 0 where the device is the host. It is valid as long as the
// batch is, and what lies there is complete when the batch is delivered (with
// [WithAsyncTransfer]: once Event has come).
func (b *Batch) DevicePtr(field int) uintptr {
	b.column(field)
	if b.device == nil {
		return 0
	}
	return b.device.ptr + uintptr(b.l.offsets[field])
}

// Event is the event that stands for the end of the batch's copy: a stream of
// the training program's can wait for it without blocking a CPU (for CUDA a
// CUevent, for cuStreamWaitEvent). It is the loader's, valid as long as the
// batch is and the loader open; 0 where the device is the host.
func (b *Batch) Event() uintptr {
	if b.device == nil {
		return 0
	}
	return b.device.event
}

// ReleaseAfterEvent makes the loader wait, on the device, for an event of the
// training program's before it overwrites the batch's device memory. A program
// that leaves work queued on the batch when it asks for the next one must call
// this or ReleaseAfterStream first. The event must stay valid until the loader
// is closed or the batch's memory comes back with another batch.
func (b *Batch) ReleaseAfterEvent(event uintptr) {
	if b.device != nil {
		b.device.after, b.device.afterStream = event, 0
	}
}

// ReleaseAfterStream is ReleaseAfterEvent for everything that is in a stream
// when the loader is about to overwrite the memory; an event waits for less.
func (b *Batch) ReleaseAfterStream(stream uintptr) {
	if b.device != nil {
		b.device.after, b.device.afterStream = 0, stream
	}
}

// A deviceBuffer is a batch's memory on the device.
type deviceBuffer struct {
	ptr   uintptr
	event uintptr // end of the copy into it

	// after and afterStream are what the copy into it must wait for. Written
	// by the consumer while it has the batch, read by the stage once it has
	// the buffer back.
	after, afterStream uintptr
}

// deviceBuffers is how many batches are on the device at once: one that is used
// and one that is copied.
const deviceBuffers = 2

// A stage copies loaded batches to the loader's device, in order, in a
// goroutine that is locked to its OS thread. It starts with the first epoch and
// ends with Close.
type stage struct {
	l    *Loader
	dev  Device
	runs chan *run // the run to serve next; closed by Close

	// The stage's alone.
	session Session
	events  []uintptr
	queue   []transfer // copies under way, in order
	last    time.Time  // end of the latest copy

	mu     sync.Mutex
	free   []*deviceBuffer // guarded by mu
	total  int             // guarded by mu; buffers, wherever they are
	loose  int             // guarded by mu; of these, with batches retained past their iteration
	closed bool            // guarded by mu
	back   chan struct{}   // a token after a buffer came back or went loose

	copied    atomic.Int64 // batches
	copyNanos atomic.Int64 // time that copying them took, each from its start or the end of the one before
}

func newStage(l *Loader, dev Device) *stage {
	return &stage{l: l, dev: dev, runs: make(chan *run, 1), back: make(chan struct{}, 1)}
}

// run is the stage's goroutine.
func (s *stage) run() {
	defer s.l.pool.Done()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	pprof.SetGoroutineLabels(pprof.WithLabels(context.Background(), pprof.Labels("nwt", "transfer", "device", s.dev.String())))
	for r := range s.runs {
		if err := s.serve(r); err != nil {
			r.stop(fmt.Errorf("nwt: transfer to %s: %w", s.dev, err))
		}
		close(r.staged)
	}
	if err := s.close(); err != nil {
		s.l.opts.log.Warn("nwt: a device could not be closed cleanly", "device", s.dev.String(), "error", err)
	}
}

// A transfer is a batch whose copy is queued.
type transfer struct {
	*Batch
	seq    uint64
	queued time.Time
}

// serve copies the batches of a run until it stops or has no more: queues
// copies as early as there are a batch and a buffer, and announces batches in
// order. No copy is under way when it returns.
func (s *stage) serve(r *run) (err error) {
	if s.session == nil {
		if s.session, err = s.dev.Open(); err != nil {
			return err
		}
	}
	begun := 0 // batches of the run
	defer func() {
		for len(s.queue) > 0 {
			err = errors.Join(err, s.finish())
		}
	}()
	for {
		seq := r.first + uint64(begun)
		switch {
		case begun < r.course.len() && s.available() && s.l.ring.Loaded(seq) && !s.l.ring.Stopped():
			if err := s.begin(r, seq); err != nil {
				return err
			}
			begun++
		case s.l.ring.Stopped():
			return nil
		case len(s.queue) > 0:
			if err := s.finish(); err != nil {
				return err
			}
		case begun == r.course.len():
			return nil
		case s.available():
			s.l.ring.AwaitLoaded(seq)
		default:
			select {
			case <-s.back:
			case <-r.ctx.Done():
			}
		}
	}
}

// begin queues the copy of a loaded batch.
func (s *stage) begin(r *run, seq uint64) (err error) {
	b := s.l.ring.Item(seq)
	if b.err = r.tally.admit(b); b.err != nil || b.size == 0 {
		for len(s.queue) > 0 { // the batches before it come first
			if err := s.finish(); err != nil {
				return err
			}
		}
		s.l.ring.Staged(seq)
		return nil
	}
	if b.device, err = s.take(); err != nil {
		return err
	}
	s.queue = append(s.queue, transfer{b, seq, time.Now()})
	if err := s.copy(b); err != nil {
		return fmt.Errorf("batch %d of epoch %d: %w", b.index, b.epoch, err)
	}
	if s.l.opts.async {
		b.Retain() // the slot must outlast the copy, even if the consumer doesn't wait for it
		s.l.ring.Staged(seq)
	}
	return nil
}

// finish waits for the oldest copy that is queued.
func (s *stage) finish() error {
	t := s.queue[0]
	s.queue = append(s.queue[:0], s.queue[1:]...)
	region := trace.StartRegion(t.run.ctx, "nwt.transfer")
	err := s.session.Wait(t.device.event)
	region.End()
	began := later(t.queued, s.last)
	s.last = time.Now()
	s.copied.Add(1)
	s.copyNanos.Add(int64(s.last.Sub(began)))
	if s.l.opts.async {
		t.Release()
	} else {
		t.copyBegan, t.copyEnded = began, s.last
		if err == nil {
			s.l.ring.Staged(t.seq)
		}
	}
	if err != nil {
		return fmt.Errorf("batch %d of epoch %d: %w", t.index, t.epoch, err)
	}
	return nil
}

// copy queues the copies of a batch.
func (s *stage) copy(b *Batch) error {
	d := b.device
	switch {
	case d.after != 0:
		if err := s.session.WaitEvent(d.after); err != nil {
			return err
		}
	case d.afterStream != 0:
		if err := s.session.WaitStream(d.afterStream); err != nil {
			return err
		}
	}
	d.after, d.afterStream = 0, 0
	if b.size == s.l.opts.batchSize {
		if err := s.session.Copy(d.ptr, b.mem); err != nil {
			return err
		}
		return s.session.Record(d.event)
	}
	for f := range s.l.layout.columns {
		if err := s.session.Copy(d.ptr+uintptr(s.l.offsets[f]), b.Bytes(f)); err != nil {
			return err
		}
	}
	return s.session.Record(d.event)
}

// available tells whether take would have a buffer.
func (s *stage) available() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.free) > 0 || s.total-s.loose < deviceBuffers
}

// take finds or makes a buffer.
func (s *stage) take() (*deviceBuffer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.free) - 1; n >= 0 {
		d := s.free[n]
		s.free = s.free[:n]
		return d, nil
	}
	ptr, err := s.dev.Alloc(s.l.slotBytes)
	if err != nil {
		return nil, fmt.Errorf("%d bytes for a batch: %w (a smaller WithBatchSize needs less)", s.l.slotBytes, err)
	}
	event, err := s.session.NewEvent()
	if err != nil {
		return nil, errors.Join(err, s.dev.Free(ptr))
	}
	s.events = append(s.events, event)
	s.total++
	return &deviceBuffer{ptr: ptr, event: event}, nil
}

// put takes a buffer back.
func (s *stage) put(d *deviceBuffer, loose bool) {
	s.mu.Lock()
	if loose {
		s.loose--
	}
	if s.closed {
		s.drop(d)
	} else {
		s.free = append(s.free, d)
	}
	s.mu.Unlock()
	s.notify()
}

// detach counts a buffer whose batch is retained past its iteration.
func (s *stage) detach() {
	s.mu.Lock()
	s.loose++
	s.mu.Unlock()
	s.notify()
}

func (s *stage) notify() {
	select {
	case s.back <- struct{}{}:
	default:
	}
}

// drop gives a buffer's memory back. The caller holds mu.
func (s *stage) drop(d *deviceBuffer) {
	if err := s.dev.Free(d.ptr); err != nil {
		s.l.opts.log.Warn("nwt: device memory could not be freed", "device", s.dev.String(), "error", err)
	}
	s.total--
}

// close ends the session and frees the buffers; those in use once they come
// back.
func (s *stage) close() error {
	s.mu.Lock()
	s.closed = true
	for _, d := range s.free {
		s.drop(d)
	}
	s.free = nil
	s.mu.Unlock()
	if s.session == nil {
		return nil
	}
	var errs []error
	for _, event := range s.events {
		errs = append(errs, s.session.FreeEvent(event))
	}
	return errors.Join(append(errs, s.session.Close())...)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
