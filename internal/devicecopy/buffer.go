package devicecopy

import (
	"errors"
	"fmt"
	"slices"
)

// atOnce is how many batches are on the device at once: one in use, one being copied, and one whose copy
// is queued behind that, so that the device needn't wait between two copies for the stage to wake up. If
// the device's memory is short, there are fewer.
const atOnce = 3

// A Buffer is a batch's memory on the device.
type Buffer struct {
	Ptr   uintptr
	event uintptr // marks the end of the copy into it
}

// take finds or makes a buffer. It returns nil if a buffer that is in use must come back first.
func (s *Stage) take() (*Buffer, error) {
	b, surplus, full := s.pop()
	if surplus != nil { // left over from a buffer that was detached
		s.drop(surplus)
	}
	if b != nil || full {
		return b, nil
	}
	ptr, err := s.dev.Alloc(s.size)
	if err != nil {
		return nil, s.doWithout(fmt.Errorf("%d bytes for a batch: %w (a smaller WithBatchSize needs less)", s.size, err))
	}
	event, err := s.dev.NewEvent()
	if err != nil {
		return nil, s.doWithout(errors.Join(err, s.dev.Free(ptr)))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total++
	return &Buffer{Ptr: ptr, event: event}, nil
}

// pop takes a free buffer and, if there are too many, another one to drop. full reports that no more
// buffers may be used.
func (s *Stage) pop() (b, surplus *Buffer, full bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	have, n := s.total-s.loose, len(s.free)
	if full = have-n >= s.most; full || n == 0 {
		return nil, nil, full
	}
	b, n = s.free[0], 1
	if have > s.most && len(s.free) > 1 {
		surplus, n = s.free[1], 2
	}
	s.free = slices.Delete(s.free, 0, n)
	return b, surplus, false
}

// doWithout makes do with the existing buffers, since the device has no memory for another one. It
// returns err if there are none; then no copy is under way. Detached buffers don't count: the program may
// give them back only after the next batch.
func (s *Stage) doWithout(err error) error {
	s.mu.Lock()
	had, have := s.most, s.total-s.loose
	if have > 0 {
		s.most = have
	}
	s.mu.Unlock()
	if have == 0 {
		return err
	}
	if had == atOnce {
		s.log.Warn(fmt.Sprintf("nwt: only %d of %d batches fit into the memory of the device: copies overlap less with training", have, had),
			"device", s.dev.String(), "error", err)
	}
	return nil
}

// Return takes a buffer back. Any goroutine may call it, even after Close.
func (s *Stage) Return(b *Buffer, detached bool) {
	s.mu.Lock()
	if detached {
		s.loose--
	}
	closed := s.closed
	if !closed {
		s.free = append(s.free, b)
	}
	s.mu.Unlock()
	if closed {
		s.drop(b)
	}
	s.notify()
}

// Detach says that a batch keeps its buffer for longer than the stage should wait for it.
func (s *Stage) Detach() {
	s.mu.Lock()
	s.loose++
	s.mu.Unlock()
	s.notify()
}

func (s *Stage) notify() {
	select {
	case s.back <- struct{}{}:
	default:
	}
}

// drop frees a buffer's memory.
func (s *Stage) drop(b *Buffer) {
	err := errors.Join(s.dev.FreeEvent(b.event), s.dev.Free(b.Ptr))
	s.mu.Lock()
	s.total--
	s.mu.Unlock()
	if err != nil {
		s.log.Warn("nwt: device memory could not be freed", "device", s.dev.String(), "error", err)
	}
}
