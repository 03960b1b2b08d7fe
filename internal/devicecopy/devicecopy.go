// Package devicecopy copies batches to a device, in order. A stage has a session of the device, the
// buffers on the device, and the goroutine that copies. The stage's caller decides what a batch is, and
// when the batch is loaded.
package devicecopy

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/pprof"
	"runtime/trace"
	"slices"
	"sync"
	"time"

	"github.com/nwt-go/nwt/driver"
)

// A Device has the methods of a device that a stage needs.
type Device interface {
	String() string
	Alloc(size int) (uintptr, error)
	Free(ptr uintptr) error
	NewEvent() (uintptr, error)
	FreeEvent(event uintptr) error
	Open() (driver.Session, error)
}

// A Batch is what a stage copies. The goroutine of Serve calls its methods.
type Batch interface {
	String() string // names the batch in errors
	// Parts appends the copies that bring the batch to a buffer. size is the total size of its samples in
	// bytes.
	Parts(parts []driver.Copy, buffer uintptr) (all []driver.Copy, size int)
	// Copied delivers the batch on the device. The receiver must give the buffer to Return.
	Copied(buffer *Buffer, began, ended time.Time)
	// Lost says that a copy of the batch may be under way and that nobody will know when it ends.
	Lost()
	// Failed says that err takes the place of the batch.
	Failed(err error)
}

// Figures sums up what a stage has done, and how much memory it has.
type Figures struct {
	Copies int           // batches copied to the device
	Bytes  int64         // of these batches
	Took   time.Duration // sum of the times of copies, each from its start or, if that is later, from the end of the one before
	Held   int           // size of all buffers
}

// A Stage copies the batches of one run after the other.
type Stage struct {
	dev  Device
	size int // size of a buffer, in bytes
	log  *slog.Logger

	// Serve uses these fields, and afterwards Close does.
	session driver.Session // nil before the first run, and after an error
	queue   []queued       // copies under way, in order
	parts   []driver.Copy  // of a batch; the memory is reused for each batch
	last    time.Time      // end of the latest copy

	back chan struct{} // gets a token when a buffer has come back, or was detached or lost

	mu      sync.Mutex
	figures Figures   // guarded by mu, except Held, which is computed on demand
	free    []*Buffer // guarded by mu; the one that has been free longest comes first
	total   int       // guarded by mu; number of all buffers
	most    int       // guarded by mu; number of buffers wanted, apart from the loose ones
	loose   int       // guarded by mu; number of buffers that are detached or lost
	closed  bool      // guarded by mu
}

// A queued is a batch whose copy is under way.
type queued struct {
	batch  Batch
	buffer *Buffer
	since  time.Time
	size   int
}

// New makes a stage whose buffers have size bytes.
func New(dev Device, size int, log *slog.Logger) *Stage {
	return &Stage{dev: dev, size: size, log: log, most: atOnce, back: make(chan struct{}, 1)}
}

// Serve copies the batches of a run until there are no more or ctx ends. It queues copies as long as
// there is a batch and a buffer. Then it waits for the oldest copy or, if none is queued, for a batch or
// a buffer. Copied is called in the order of the batches. If something fails, Failed is called for the
// first batch that isn't copied, and for no other. If the device can't be opened, Serve returns its
// error. When it returns, no copy is under way, unless Lost was called for a batch.
//
// Serve calls next for the next batch before there is a buffer for it. next returns nil if there are no
// more or, unless wait is true, if none is ready.
func (s *Stage) Serve(ctx context.Context, next func(wait bool) Batch) error {
	pprof.SetGoroutineLabels(pprof.WithLabels(context.Background(), pprof.Labels("nwt", "transfer", "device", s.dev.String())))
	var err error
	if s.session == nil {
		if s.session, err = s.dev.Open(); err != nil {
			s.session = nil
			return s.transferError(err)
		}
	}
	var b Batch // the next batch to copy
	for err == nil {
		if b == nil {
			b = next(len(s.queue) == 0)
		}
		begun := false
		if b != nil && ctx.Err() == nil {
			begun, err = s.begin(ctx, b)
		}
		switch {
		case err != nil:
		case begun:
			b = nil
		case len(s.queue) > 0:
			err = s.awaitOldest(ctx)
		case b == nil || ctx.Err() != nil:
			return nil
		default:
			select {
			case <-s.back:
			case <-ctx.Done():
			}
		}
	}
	s.fail(b, err)
	return nil
}

// begin queues the copy of a batch. It returns false if the batch must wait for a buffer.
func (s *Stage) begin(ctx context.Context, b Batch) (begun bool, err error) {
	buffer, err := s.take()
	if buffer == nil {
		return false, err
	}
	c := queued{batch: b, buffer: buffer, since: time.Now()}
	s.parts, c.size = b.Parts(s.parts[:0], buffer.Ptr)
	s.queue = append(s.queue, c)
	if err := s.session.Copy(s.parts, buffer.event); err != nil {
		for len(s.queue) > 1 { // the batches before this one come before its error
			if err := s.awaitOldest(ctx); err != nil {
				return false, err
			}
		}
		return false, fmt.Errorf("%v: %w", b, err)
	}
	return true, nil
}

// awaitOldest waits for the oldest queued copy.
func (s *Stage) awaitOldest(ctx context.Context) error {
	c := s.queue[0]
	region := trace.StartRegion(ctx, "nwt.transfer")
	err := s.session.Wait(c.buffer.event)
	region.End()
	if err != nil {
		return fmt.Errorf("%v: %w", c.batch, err)
	}
	s.queue = slices.Delete(s.queue, 0, 1)
	began, ended := c.since, time.Now()
	if s.last.After(began) {
		began = s.last
	}
	s.last = ended
	s.mu.Lock()
	s.figures.Copies++
	s.figures.Bytes += int64(c.size)
	s.figures.Took += ended.Sub(began)
	s.mu.Unlock()
	c.batch.Copied(c.buffer, began, ended)
	return nil
}

// fail ends the copies of a run: the error takes the place of the first batch that isn't copied, which is
// the oldest of the queue or, if the queue is empty, b. For some queued copies there may be no event;
// only the end of the session waits for all of them.
func (s *Stage) fail(b Batch, err error) {
	queue := s.queue
	if len(queue) > 0 {
		b = queue[0].batch
	}
	ended := s.session.Close()
	s.session, s.queue = nil, nil
	for _, c := range queue {
		if ended == nil {
			s.Return(c.buffer, false)
			continue
		}
		s.Detach()
		s.log.Warn("nwt: memory of a batch is neither used again nor freed, since a copy to the device may still be under way", "device", s.dev.String(), "error", ended)
		c.batch.Lost()
	}
	b.Failed(s.transferError(err))
}

func (s *Stage) transferError(err error) error {
	return fmt.Errorf("nwt: transfer to %v: %w", s.dev, err)
}

// Close ends the session and frees the buffers. Buffers that batches still use are freed by Return. No
// run may be in progress.
func (s *Stage) Close() {
	s.mu.Lock()
	free := s.free
	s.free, s.closed = nil, true
	s.mu.Unlock()
	if s.session != nil {
		if err := s.session.Close(); err != nil {
			s.log.Warn("nwt: a device could not be closed cleanly", "device", s.dev.String(), "error", err)
		}
	}
	for _, b := range free {
		s.drop(b)
	}
}

// Figures returns the current figures. For a nil stage they are zero.
func (s *Stage) Figures() Figures {
	if s == nil {
		return Figures{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.figures
	f.Held = s.total * s.size
	return f
}
