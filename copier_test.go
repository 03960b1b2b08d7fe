package nwt_test

import (
	"bytes"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nwt-go/nwt"
)

// A copier is a device whose copies are made some time after they were queued.
type copier struct {
	faulty int
	bare   bool         // its sessions can't clear memory
	host   atomic.Int32 // slots that were allocated and not freed

	mu     sync.Mutex
	next   uintptr
	memory map[uintptr][]byte
	events map[uintptr]*time.Time // when each has come
}

func newCopier(faulty int) *copier {
	return &copier{faulty: faulty, next: 1 << 20, memory: map[uintptr][]byte{}, events: map[uintptr]*time.Time{}}
}

var errCopier = errors.New("the device is broken")

func (c *copier) String() string        { return "copier" }
func (c *copier) FreeHost([]byte) error { c.host.Add(-1); return nil }

func (c *copier) AllocHost(size int) ([]byte, error) {
	c.host.Add(1)
	return make([]byte, size), nil
}

func (c *copier) Alloc(size int) (uintptr, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next += 1 << 20
	c.memory[c.next] = bytes.Repeat([]byte{0xEE}, size) // new memory isn't zero
	return c.next, nil
}

func (c *copier) Free(ptr uintptr) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.memory, ptr)
	return nil
}

func (c *copier) NewEvent() (uintptr, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next += 1 << 20
	c.events[c.next] = &time.Time{}
	return c.next, nil
}

func (c *copier) FreeEvent(e uintptr) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.events, e)
	return nil
}

// at is the device's memory from ptr on.
func (c *copier) at(ptr uintptr) []byte {
	for from, mem := range c.memory {
		if from <= ptr && ptr < from+uintptr(len(mem)) {
			return mem[ptr-from:]
		}
	}
	return nil
}

// overwrite is a step that uses a batch's memory as its own, padding too. No device does nothing.
func (c *copier) overwrite(b *nwt.Batch) {
	if c == nil {
		return
	}
	c.wait(b.Event())
	c.mu.Lock()
	defer c.mu.Unlock()
	for f := range b.Fields() {
		fill(c.at(b.DevicePtr(f))[:len(b.Bytes(f))], 0xAA)
	}
}

// holds tells whether the device holds a batch.
func (c *copier) holds(b *nwt.Batch) bool {
	c.wait(b.Event())
	for f := range b.Fields() {
		if !bytes.Equal(c.read(b.DevicePtr(f), len(b.Bytes(f))), b.Bytes(f)) {
			return false
		}
	}
	return true
}

// read is what lies at ptr.
func (c *copier) read(ptr uintptr, n int) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.at(ptr)[:n])
}

func (c *copier) wait(e uintptr) {
	c.mu.Lock()
	left := time.Until(*c.events[e])
	c.mu.Unlock()
	time.Sleep(left)
	c.mu.Lock() // what was copied before is seen from here on
	defer c.mu.Unlock()
}

func (c *copier) Open() (nwt.Session, error) {
	s := &copierSession{c: c, last: time.Now()}
	if c.bare {
		return struct{ nwt.Session }{s}, nil
	}
	return s, nil
}

type copierSession struct {
	c     *copier
	calls int
	last  time.Time    // when all that is queued is done
	gaps  []nwt.Region // to clear before the next copy
	wg    sync.WaitGroup
}

func (s *copierSession) fails() error {
	if s.calls++; s.calls == s.c.faulty {
		s.c.faulty = 0 // once
		return errCopier
	}
	return nil
}

func (s *copierSession) Copy(parts []nwt.Copy, e uintptr) error {
	if err := s.fails(); err != nil {
		return err
	}
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if now := time.Now(); s.last.Before(now) {
		s.last = now
	}
	s.last = s.last.Add(time.Duration(1+len(parts)) * 7 * time.Millisecond)
	*s.c.events[e] = s.last
	kept, gaps, after := slices.Clone(parts), s.gaps, time.Until(s.last)-time.Millisecond
	s.gaps = nil
	s.wg.Go(func() {
		time.Sleep(after)
		s.c.mu.Lock()
		defer s.c.mu.Unlock()
		for _, g := range gaps {
			clear(s.c.at(g.Dst)[:g.Size])
		}
		for _, p := range kept {
			copy(s.c.at(p.Dst), p.Src)
		}
	})
	return nil
}

func (s *copierSession) Zero(gaps []nwt.Region) error {
	if err := s.fails(); err != nil {
		return err
	}
	s.gaps = slices.Clone(gaps)
	return nil
}

func (s *copierSession) Wait(e uintptr) error {
	if err := s.fails(); err != nil {
		return err
	}
	s.c.wait(e)
	return nil
}

func (s *copierSession) WaitEvent(uintptr) error  { return nil }
func (s *copierSession) WaitStream(uintptr) error { return nil }

func (s *copierSession) Close() error {
	s.wg.Wait()
	return nil
}
