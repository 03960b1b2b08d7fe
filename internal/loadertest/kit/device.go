package kit

import (
	"bytes"
	"context"
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
	"github.com/nwt-go/nwt/driver"
)

// A FakeDevice is a device that a test scripts. It makes copies later than they are queued, each
// session's in order, and notes what a loader must not do: free memory that a copy touches,
// say, or give anything back twice.
type FakeDevice struct {
	// Fail is asked at every call; n counts the calls of a method, from 1. What it returns is the
	// call's error. "copying" is the copy itself, which Wait reports. It may block, as a device
	// that hangs does.
	Fail func(call string, n int) error
	Took time.Duration // of each copy

	mu     sync.Mutex
	Calls  map[string]int
	last   uintptr                 // the latest address or event
	memory map[uintptr]*fakeMemory // of the host too
	events map[uintptr]*fakeCopy
	open   int  // sessions
	kept   bool // a session didn't end, so that memory may be kept
	Wrongs []string
}

type fakeMemory struct {
	bytes []byte
	busy  int // copies that touch it
}

type fakeCopy struct {
	done chan struct{}
	err  error
}

// ErrFake is the error of a FakeDevice that fails.
var ErrFake = errors.New("burnt")

func (d *FakeDevice) call(name string) error {
	d.mu.Lock()
	if d.Calls == nil {
		d.Calls, d.memory, d.events = map[string]int{}, map[uintptr]*fakeMemory{}, map[uintptr]*fakeCopy{}
	}
	d.Calls[name]++
	n := d.Calls[name]
	d.mu.Unlock()
	if d.Fail == nil {
		return nil
	}
	return d.Fail(name, n)
}

func (d *FakeDevice) wrong(format string, args ...any) {
	d.Wrongs = append(d.Wrongs, fmt.Sprintf(format, args...))
}

func (d *FakeDevice) String() string { return "fake" }

// allocate returns memory that isn't zero.
func (d *FakeDevice) allocate(call string, size int) (uintptr, []byte, error) {
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
func (d *FakeDevice) free(call string, ptr uintptr) error {
	err := d.call(call)
	d.mu.Lock()
	defer d.mu.Unlock()
	switch m := d.memory[ptr]; {
	case m == nil:
		d.wrong("%s of what isn't there", call)
	case m.busy > 0:
		d.wrong("%s of memory that a copy touches", call)
	default:
		Fill(m.bytes, 0xDD)
	}
	delete(d.memory, ptr)
	return err
}

func (d *FakeDevice) AllocHost(size int) ([]byte, error) {
	_, mem, err := d.allocate("AllocHost", size)
	return mem, err
}

func (d *FakeDevice) FreeHost(mem []byte) error {
	return d.free("FreeHost", uintptr(unsafe.Pointer(&mem[0])))
}

func (d *FakeDevice) Alloc(size int) (uintptr, error) {
	ptr, _, err := d.allocate("Alloc", size)
	return ptr, err
}

func (d *FakeDevice) Free(ptr uintptr) error { return d.free("Free", ptr) }

func (d *FakeDevice) NewEvent() (uintptr, error) {
	if err := d.call("NewEvent"); err != nil {
		return 0, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.last++
	d.events[d.last] = nil
	return d.last, nil
}

func (d *FakeDevice) FreeEvent(event uintptr) error {
	err := d.call("FreeEvent")
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.events[event]; !ok {
		d.wrong("FreeEvent of what isn't there")
	}
	delete(d.events, event)
	return err
}

func (d *FakeDevice) Open() (driver.Session, error) {
	if err := d.call("Open"); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open++
	return &fakeSession{d: d}, nil
}

// find returns the memory of an address. The caller holds mu.
func (d *FakeDevice) find(ptr uintptr, n int) (*fakeMemory, []byte) {
	for from, m := range d.memory {
		if from <= ptr && ptr+uintptr(n) <= from+uintptr(len(m.bytes)) {
			return m, m.bytes[ptr-from:][:n]
		}
	}
	return nil, nil
}

// read returns what lies on the device.
func (d *FakeDevice) read(ptr uintptr, n int) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	m, mem := d.find(ptr, n)
	if m != nil && m.busy > 0 {
		d.wrong("a batch is delivered before its copy has ended")
	}
	return slices.Clone(mem)
}

// Holds reports whether the device holds a batch.
func (d *FakeDevice) Holds(b *nwt.Batch) bool {
	for f := range b.Fields() {
		if !bytes.Equal(d.read(b.DevicePtr(f), len(b.Bytes(f))), b.Bytes(f)) {
			return false
		}
	}
	return true
}

// Overwrite is a step that uses a batch's memory as its own, padding too. No device does nothing.
func (d *FakeDevice) Overwrite(b *nwt.Batch) {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for f := range b.Fields() {
		_, mem := d.find(b.DevicePtr(f), len(b.Bytes(f)))
		Fill(mem, 0xAA)
	}
}

// Left counts what was not given back.
func (d *FakeDevice) Left() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.memory) + len(d.events) + d.open
}

// Settled checks that the loaders, which are closed, did nothing wrong and gave all back, except
// for what a session that didn't end may touch.
func (d *FakeDevice) Settled(t testing.TB, what ...any) {
	t.Helper()
	d.mu.Lock()
	require.Empty(t, d.Wrongs, what...)
	require.Zero(t, d.open, what...)
	kept := d.kept
	copies := slices.Collect(maps.Values(d.events))
	d.mu.Unlock()
	if !kept {
		require.Zero(t, d.Left(), what...)
	}
	for _, c := range copies {
		if c != nil {
			<-c.done
		}
	}
}

type fakeSession struct {
	d      *FakeDevice
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
func (s *fakeSession) Copy(parts []driver.Copy, event uintptr) error {
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
		time.Sleep(d.Took)
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

// GPU0 returns the fake GPU of a test, as a loader's device.
func GPU0(t testing.TB) nwt.Device {
	t.Helper()
	dev, err := nwt.CUDA(0)
	require.NoError(t, err)
	return dev
}

// Hangs is how long something takes that never ends: less than go test waits, and
// more than a busy machine needs.
const Hangs = 4 * time.Minute

// Ragged returns a dataset whose samples have 0 to 5 elements, and their number.
func Ragged(n int) nwt.Dataset {
	fields := []nwt.Field{{Name: "words", Type: nwt.Int32, Shape: []int{5}, RaggedDims: 1}, {Name: "count", Type: nwt.Uint8}}
	return nwt.NewDataset(n, fields, func(_ context.Context, i int, dst *nwt.Sample) error {
		dst.SetLen(0, i%6)
		for k := range i % 6 {
			nwt.Values[int32](dst, 0)[k] = int32(i)
		}
		nwt.Values[uint8](dst, 1)[0] = uint8(i % 6)
		return nil
	})
}
