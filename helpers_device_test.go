package nwt_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/device"
)

// A fakeDevice is a device that a test scripts. It makes copies later than they are queued, each
// session's in order, and notes what a loader must not do: free memory that a copy touches,
// say, or give anything back twice.
type fakeDevice struct {
	// fail is asked at every call; n counts the calls of a method, from 1. What it returns is the
	// call's error. "copying" is the copy itself, which Wait reports. It may block, as a device
	// that hangs does.
	fail func(call string, n int) error
	took time.Duration // of each copy

	mu     sync.Mutex
	calls  map[string]int
	last   uintptr                 // the latest address or event
	memory map[uintptr]*fakeMemory // of the host too
	events map[uintptr]*fakeCopy
	open   int  // sessions
	kept   bool // a session didn't end, so that memory may be kept
	wrongs []string
}

type fakeMemory struct {
	bytes []byte
	busy  int // copies that touch it
}

type fakeCopy struct {
	done chan struct{}
	err  error
}

var errFake = errors.New("burnt")

// failing returns a script by which the calls first … last of a method fail.
func failing(call string, first, last int) func(string, int) error {
	return func(c string, n int) error {
		if c != call || n < first || n > last {
			return nil
		}
		return errFake
	}
}

func (d *fakeDevice) call(name string) error {
	d.mu.Lock()
	if d.calls == nil {
		d.calls, d.memory, d.events = map[string]int{}, map[uintptr]*fakeMemory{}, map[uintptr]*fakeCopy{}
	}
	d.calls[name]++
	n := d.calls[name]
	d.mu.Unlock()
	if d.fail == nil {
		return nil
	}
	return d.fail(name, n)
}

func (d *fakeDevice) wrong(format string, args ...any) {
	d.wrongs = append(d.wrongs, fmt.Sprintf(format, args...))
}

func (d *fakeDevice) String() string { return "fake" }

// allocate returns memory that isn't zero.
func (d *fakeDevice) allocate(call string, size int) (uintptr, []byte, error) {
	if err := d.call(call); err != nil {
		return 0, nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	m := &fakeMemory{bytes: bytes.Repeat([]byte{0xEE}, size)}
	ptr := uintptr(unsafe.Pointer(&m.bytes[0]))
	d.memory[ptr] = m
	return ptr, m.bytes, nil
}

// free notes it if the memory isn't there any more or in use. A call that fails has freed it.
func (d *fakeDevice) free(call string, ptr uintptr) error {
	err := d.call(call)
	d.mu.Lock()
	defer d.mu.Unlock()
	switch m := d.memory[ptr]; {
	case m == nil:
		d.wrong("%s of what isn't there", call)
	case m.busy > 0:
		d.wrong("%s of memory that a copy touches", call)
	default:
		fill(m.bytes, 0xDD)
	}
	delete(d.memory, ptr)
	return err
}

func (d *fakeDevice) AllocHost(size int) ([]byte, error) {
	_, mem, err := d.allocate("AllocHost", size)
	return mem, err
}

func (d *fakeDevice) FreeHost(mem []byte) error {
	return d.free("FreeHost", uintptr(unsafe.Pointer(&mem[0])))
}

func (d *fakeDevice) Alloc(size int) (uintptr, error) {
	ptr, _, err := d.allocate("Alloc", size)
	return ptr, err
}

func (d *fakeDevice) Free(ptr uintptr) error { return d.free("Free", ptr) }

func (d *fakeDevice) NewEvent() (uintptr, error) {
	if err := d.call("NewEvent"); err != nil {
		return 0, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.last++
	d.events[d.last] = nil
	return d.last, nil
}

func (d *fakeDevice) FreeEvent(event uintptr) error {
	err := d.call("FreeEvent")
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.events[event]; !ok {
		d.wrong("FreeEvent of what isn't there")
	}
	delete(d.events, event)
	return err
}

func (d *fakeDevice) Open() (device.Session, error) {
	if err := d.call("Open"); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open++
	return &fakeSession{d: d}, nil
}

// find returns the memory of an address. The caller holds mu.
func (d *fakeDevice) find(ptr uintptr, n int) (*fakeMemory, []byte) {
	for from, m := range d.memory {
		if from <= ptr && ptr+uintptr(n) <= from+uintptr(len(m.bytes)) {
			return m, m.bytes[ptr-from:][:n]
		}
	}
	return nil, nil
}

// read returns what lies on the device.
func (d *fakeDevice) read(ptr uintptr, n int) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	m, mem := d.find(ptr, n)
	if m != nil && m.busy > 0 {
		d.wrong("a batch is delivered before its copy has ended")
	}
	return slices.Clone(mem)
}

// holds reports whether the device holds a batch.
func (d *fakeDevice) holds(b *nwt.Batch) bool {
	for f := range b.Fields() {
		if !bytes.Equal(d.read(b.DevicePtr(f), len(b.Bytes(f))), b.Bytes(f)) {
			return false
		}
	}
	return true
}

// overwrite is a step that uses a batch's memory as its own, padding too. No device does nothing.
func (d *fakeDevice) overwrite(b *nwt.Batch) {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for f := range b.Fields() {
		_, mem := d.find(b.DevicePtr(f), len(b.Bytes(f)))
		fill(mem, 0xAA)
	}
}

// left counts what was not given back.
func (d *fakeDevice) left() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.memory) + len(d.events) + d.open
}

// settled checks that the loaders, which are closed, did nothing wrong and gave all back, except
// for what a session that didn't end may touch.
func (d *fakeDevice) settled(t testing.TB, what ...any) {
	t.Helper()
	d.mu.Lock()
	require.Empty(t, d.wrongs, what...)
	require.Zero(t, d.open, what...)
	kept := d.kept
	copies := slices.Collect(maps.Values(d.events))
	d.mu.Unlock()
	if !kept {
		require.Zero(t, d.left(), what...)
	}
	for _, c := range copies {
		if c != nil {
			<-c.done
		}
	}
}

type fakeSession struct {
	d      *fakeDevice
	inside sync.Mutex
	last   *fakeCopy
	closed bool
}

// begin notes a call beside another one or after Close. The caller unlocks inside.
func (s *fakeSession) begin(call string) error {
	alone := s.inside.TryLock()
	if !alone {
		s.inside.Lock()
	}
	err := s.d.call(call)
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	if !alone || s.closed {
		s.d.wrong("%s beside another call, or after Close", call)
	}
	return err
}

// Copy queues the copies even if it fails: nobody knows how far it came.
func (s *fakeSession) Copy(parts []device.Copy, event uintptr) error {
	failed := s.begin("Copy")
	defer s.inside.Unlock()
	d := s.d
	d.mu.Lock()
	defer d.mu.Unlock()
	parts = slices.Clone(parts)
	var touched []*fakeMemory
	dst := make([][]byte, len(parts))
	for i, p := range parts {
		to, mem := d.find(p.Dst, len(p.Src))
		if to == nil || to.busy > 0 && !slices.Contains(touched, to) {
			d.wrong("Copy to memory that isn't there, or that another copy touches")
			return failed
		}
		dst[i] = mem
		touched = append(touched, to)
		to.busy++
		if from, _ := d.find(uintptr(unsafe.Pointer(&p.Src[0])), len(p.Src)); from != nil {
			touched = append(touched, from)
			from.busy++
		}
	}
	before, now := s.last, &fakeCopy{done: make(chan struct{})}
	s.last = now
	if failed == nil {
		d.events[event] = now
	}
	go func() {
		if before != nil {
			<-before.done
		}
		time.Sleep(d.took)
		if now.err = d.call("copying"); now.err == nil {
			for i, p := range parts { // without mu, so that the race detector sees who else is there
				copy(dst[i], p.Src)
			}
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		for _, m := range touched {
			m.busy--
		}
		close(now.done)
	}()
	return failed
}

func (s *fakeSession) Wait(event uintptr) error {
	err := s.begin("Wait")
	defer s.inside.Unlock()
	if err != nil {
		return err
	}
	s.d.mu.Lock()
	c := s.d.events[event]
	s.d.mu.Unlock()
	if c == nil {
		return nil
	}
	<-c.done
	return c.err
}

// Close doesn't wait if it fails.
func (s *fakeSession) Close() error {
	err := s.begin("Close")
	defer s.inside.Unlock()
	if err == nil && s.last != nil {
		<-s.last.done
	}
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	s.closed = true
	s.d.open--
	s.d.kept = s.d.kept || err != nil
	return err
}
