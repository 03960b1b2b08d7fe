package nwt_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

// A hostile device is late, fails as it likes, and notes what no device would forgive. It
// runs in a bubble of testing/synctest.
type hostile struct {
	late  func() time.Duration // how long a piece of queued work takes
	fails func(call string) error

	mu      sync.Mutex
	rng     *rand.Rand
	notes   []string // what was done wrong
	next    uintptr
	host    map[*byte]*region
	memory  map[uintptr]*region
	events  map[uintptr]*work // the work that each stands for; nil: none yet
	streams map[uintptr]*work // of the program: the last work in each
	closed  map[string]int    // sessions, by how they ended
	open    int               // sessions, those that were closed too
	busy    int               // pieces of work that aren't over

	ownEvents int // of the program
}

// A region is memory of the host's or of the device's.
type region struct {
	bytes []byte
	freed bool
	users int // pieces of queued work that read or write it
}

// work is what was queued; done is closed when it is over.
type work struct {
	done chan struct{}
	err  error // written before done is closed
}

var errHostile = errors.New("hostile")

func newHostile(rng *rand.Rand) *hostile {
	return &hostile{
		rng: rng, next: 1 << 20, host: map[*byte]*region{}, memory: map[uintptr]*region{},
		events: map[uintptr]*work{}, streams: map[uintptr]*work{}, closed: map[string]int{},
		late: func() time.Duration { return time.Millisecond }, fails: func(string) error { return nil },
	}
}

func (d *hostile) note(format string, args ...any) {
	d.notes = append(d.notes, fmt.Sprintf(format, args...))
}

// call begins a call with mu held, and ends it with the error that comes of it.
func (d *hostile) call(name string) error {
	d.mu.Lock()
	failed := true
	defer func() {
		if failed {
			d.mu.Unlock()
		}
	}()
	if err := d.fails(name); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	failed = false
	return nil
}

func (d *hostile) String() string { return "hostile" }

func (d *hostile) AllocHost(size int) ([]byte, error) {
	if err := d.call("AllocHost"); err != nil {
		return nil, err
	}
	defer d.mu.Unlock()
	mem := bytes.Repeat([]byte{0xCC}, size)
	d.host[unsafe.SliceData(mem)] = &region{bytes: mem}
	return mem, nil
}

func (d *hostile) FreeHost(mem []byte) error {
	err := d.call("FreeHost")
	if err != nil {
		d.mu.Lock()
	}
	defer d.mu.Unlock()
	r := d.host[unsafe.SliceData(mem)]
	if r == nil || len(r.bytes) != len(mem) {
		d.note("FreeHost of what AllocHost didn't return")
		return nil
	}
	d.free("host memory", r)
	return err
}

// free frees a region; one whose call fails too, since it won't be tried again.
func (d *hostile) free(what string, r *region) {
	if r.freed {
		d.note("%s is freed twice", what)
	}
	if r.users > 0 {
		d.note("%s is freed while it is in use", what)
	}
	r.freed = true
}

func (d *hostile) Alloc(size int) (uintptr, error) {
	if err := d.call("Alloc"); err != nil {
		return 0, err
	}
	defer d.mu.Unlock()
	d.next += 1 << 20
	d.memory[d.next] = &region{bytes: bytes.Repeat([]byte{0xEE}, size)}
	return d.next, nil
}

func (d *hostile) Free(ptr uintptr) error {
	err := d.call("Free")
	if err != nil {
		d.mu.Lock()
	}
	defer d.mu.Unlock()
	if r := d.memory[ptr]; r == nil {
		d.note("Free of what Alloc didn't return")
	} else {
		d.free("device memory", r)
	}
	return err
}

func (d *hostile) NewEvent() (uintptr, error) {
	if err := d.call("NewEvent"); err != nil {
		return 0, err
	}
	defer d.mu.Unlock()
	d.next += 1 << 20
	d.events[d.next] = nil
	return d.next, nil
}

func (d *hostile) FreeEvent(event uintptr) error {
	err := d.call("FreeEvent")
	if err != nil {
		d.mu.Lock()
	}
	defer d.mu.Unlock()
	if _, ok := d.events[event]; !ok {
		d.note("FreeEvent of what NewEvent didn't return")
	}
	delete(d.events, event)
	return err
}

func (d *hostile) Open() (nwt.Session, error) {
	if err := d.call("Open"); err != nil {
		return nil, err
	}
	defer d.mu.Unlock()
	d.open++
	return &hostileSession{d: d}, nil
}

// at is the device's memory from ptr on, and the region that it is in.
func (d *hostile) at(ptr uintptr) ([]byte, *region) {
	for from, r := range d.memory {
		if from <= ptr && ptr < from+uintptr(len(r.bytes)) {
			if r.freed {
				d.note("freed device memory is used")
			}
			return r.bytes[ptr-from:], r
		}
	}
	panic("no memory of the device's")
}

// hostOf is the region of host memory that a slice lies in.
func (d *hostile) hostOf(mem []byte) *region {
	at := uintptr(unsafe.Pointer(unsafe.SliceData(mem)))
	for _, r := range d.host {
		from := uintptr(unsafe.Pointer(unsafe.SliceData(r.bytes)))
		if from <= at && at < from+uintptr(len(r.bytes)) {
			if r.freed {
				d.note("freed host memory is copied from")
			}
			return r
		}
	}
	return nil
}

// enqueue does something once all of after is over, and a while later. Until then the
// regions are in use. The caller holds mu.
func (d *hostile) enqueue(after []*work, regions []*region, took time.Duration, do func() error) *work {
	w := &work{done: make(chan struct{})}
	for _, r := range regions {
		r.users++
	}
	d.busy++
	go func() {
		for _, a := range after {
			if a != nil {
				<-a.done
			}
		}
		time.Sleep(took)
		w.err = do() // without mu, so that the race detector sees who else is there
		d.mu.Lock()
		for _, r := range regions {
			r.users--
		}
		d.busy--
		d.mu.Unlock()
		close(w.done)
	}()
	return w
}

type hostileSession struct {
	d     *hostile
	after []*work // what the next work waits for besides the last
	last  *work
	ended bool
}

func (s *hostileSession) call(name string) error {
	err := s.d.call(name)
	if s.ended {
		s.d.note("%s after Close", name)
	}
	return err
}

func (s *hostileSession) Copy(parts []nwt.Copy, event uintptr) error {
	failed := s.call("Copy")
	if failed != nil { // it may have begun
		s.d.mu.Lock()
		parts = parts[:s.d.rng.IntN(len(parts)+1)]
	}
	defer s.d.mu.Unlock()
	d, parts := s.d, slices.Clone(parts)
	var regions []*region
	var dst [][]byte
	for _, p := range parts {
		mem, r := d.at(p.Dst)
		dst, regions = append(dst, mem), append(regions, r)
		if h := d.hostOf(p.Src); h != nil {
			regions = append(regions, h)
		}
	}
	broken := d.fails("late")
	s.last = d.enqueue(append(s.after, s.last), regions, d.late(), func() error {
		for k, p := range parts {
			if broken != nil && k == len(parts)/2 {
				return broken
			}
			copy(dst[k], p.Src)
		}
		return broken
	})
	s.after = nil
	if failed == nil {
		d.events[event] = s.last
	}
	return failed
}

// wait is what a program does that waits for an event.
func (d *hostile) wait(event uintptr) error {
	d.mu.Lock()
	w, ok := d.events[event]
	if !ok {
		d.note("a wait for no event")
	}
	d.mu.Unlock()
	if w == nil {
		return nil
	}
	<-w.done
	return w.err
}

func (s *hostileSession) Wait(event uintptr) error {
	if err := s.call("Wait"); err != nil {
		return err
	}
	s.d.mu.Unlock()
	return s.d.wait(event)
}

func (s *hostileSession) WaitEvent(event uintptr) error {
	if err := s.call("WaitEvent"); err != nil {
		return err
	}
	defer s.d.mu.Unlock()
	w, ok := s.d.events[event]
	if !ok {
		s.d.note("WaitEvent of no event")
	}
	s.after = append(s.after, w)
	return nil
}

func (s *hostileSession) WaitStream(stream uintptr) error {
	if err := s.call("WaitStream"); err != nil {
		return err
	}
	defer s.d.mu.Unlock()
	s.after = append(s.after, s.d.streams[stream])
	return nil
}

func (s *hostileSession) Close() error {
	err := s.call("Close")
	if err != nil { // and hasn't waited
		s.d.mu.Lock()
		s.d.closed["failed"]++
	} else {
		s.d.closed["well"]++
	}
	again, after, last := s.ended, s.after, s.last
	s.ended = true
	if again {
		s.d.note("a session is closed twice")
	}
	s.d.mu.Unlock()
	if err == nil {
		for _, w := range append(after, last) {
			if w != nil {
				<-w.done
			}
		}
	}
	return err
}

// step is work of the training program, in a stream of its own: some time after the
// copy of a batch is done, it must still find the batch.
func (d *hostile) step(stream uintptr, b *nwt.Batch, want []byte, took time.Duration) *work {
	d.mu.Lock()
	defer d.mu.Unlock()
	copied := d.events[b.Event()]
	mem, r := d.at(b.DevicePtr(0))
	d.streams[stream] = d.enqueue([]*work{copied, d.streams[stream]}, []*region{r}, took, func() error {
		if copied.err == nil && !bytes.Equal(want, mem[:len(want)]) {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.note("a step found another batch")
		}
		return nil
	})
	return d.streams[stream]
}

// record makes a new event of the program's for the work in a stream.
func (d *hostile) record(stream uintptr) uintptr {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.next += 1 << 20
	d.ownEvents++
	d.events[d.next] = d.streams[stream]
	return d.next
}

// holds tells whether a batch has come to the device; it is undefined if its copy failed.
func (d *hostile) holds(b *nwt.Batch, want []byte) error {
	if err := d.wait(b.Event()); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if mem, _ := d.at(b.DevicePtr(0)); !bytes.Equal(want, mem[:len(want)]) {
		d.note("batch %d of epoch %d isn't on the device", b.Index(), b.Epoch())
	}
	return nil
}

// idle waits for all work, also that which nobody has waited for.
func (d *hostile) idle() {
	for wait := time.Millisecond; ; wait *= 2 {
		d.mu.Lock()
		busy := d.busy
		d.mu.Unlock()
		if busy == 0 {
			return
		}
		time.Sleep(wait)
	}
}

// kept is how much was not freed.
func (d *hostile) kept() (host, device int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, r := range d.host {
		if !r.freed {
			host++
		}
	}
	for _, r := range d.memory {
		if !r.freed {
			device++
		}
	}
	return host, device
}

func TestTheErrorOfAStreamsLastAsynchronousCopyIsTold(t *testing.T) {
	for _, workers := range []int{0, 1, 3} {
		for _, prefetch := range []int{1, 2, 8} {
			synctest.Test(t, func(t *testing.T) {
				dev, copies := newHostile(nil), 0
				dev.fails = func(call string) error {
					if call == "late" {
						if copies++; copies == 4 {
							return errHostile
						}
					}
					return nil
				}
				dev.late = func() time.Duration { return time.Second }
				l := newLoader(t, nwt.Streamed(newShelves(32)), nwt.WithBatchSize(8), nwt.WithWorkers(workers), nwt.WithPrefetch(prefetch), nwt.WithDevice(dev), nwt.WithAsyncTransfer())
				n := 0
				var last error
				for _, err := range l.Epoch(t.Context(), 0) {
					if last = err; err == nil {
						n++
					}
				}
				require.Equal(t, 4, n)
				require.EqualError(t, last, "nwt: transfer to hostile: batch 3 of epoch 0: hostile")
				require.NoError(t, l.Close())
			})
		}
	}
}

// A session that doesn't end properly may go on copying.
func TestWhatASessionThatDidNotEndMayStillTouchIsNeitherUsedNorFreed(t *testing.T) {
	for _, async := range []bool{false, true} {
		for _, call := range []string{"Copy", "Wait", "WaitStream", "late"} {
			for _, workers := range []int{0, 3} {
				for n := 1; n <= 6; n++ {
					what := fmt.Sprintf("%s %d, async %v, %d workers", call, n, async, workers)
					synctest.Test(t, func(t *testing.T) {
						dev, calls := newHostile(rand.New(rand.NewPCG(1, uint64(n)))), 0
						dev.late = func() time.Duration { return time.Minute }
						dev.fails = func(c string) error {
							if c == call {
								calls++
							}
							if c == call && calls == n || c == "Close" && dev.closed["failed"]+dev.closed["well"] == 0 {
								return errHostile
							}
							return nil
						}
						opts := []nwt.Option{nwt.WithBatchSize(8), nwt.WithWorkers(workers), nwt.WithDevice(dev), quietLog}
						if async {
							opts = append(opts, nwt.WithAsyncTransfer())
						}
						l := newLoader(t, ragged(200), opts...)
						for epoch := range 2 {
							for b, err := range l.Epoch(t.Context(), epoch) {
								if err != nil {
									require.ErrorIs(t, err, errHostile)
									continue
								}
								dev.step(1, b, bytes.Clone(b.Bytes(0)), 10*time.Minute)
								b.ReleaseAfterStream(1)
							}
						}
						require.NoError(t, l.Close())
						dev.idle()
						require.Empty(t, dev.notes, what)
					})
				}
			}
		}
	}
}

func TestABufferThatRetainedBatchesLeftIsKeptIfTheSessionThatWaitsForTheProgramDoesNotEnd(t *testing.T) {
	for _, call := range []string{"Copy", "Wait"} {
		synctest.Test(t, func(t *testing.T) {
			armed := false
			dev := newHostile(rand.New(rand.NewPCG(1, 1)))
			dev.fails = func(c string) error {
				switch {
				case armed && c == call, !armed && c == "Close" && dev.closed["failed"] == 0 && dev.closed["well"] == 0:
					armed = false
					return errHostile
				}
				return nil
			}
			l := newLoader(t, augmented(200), nwt.WithBatchSize(10), nwt.WithWorkers(0), nwt.WithDevice(dev), quietLog)
			var kept []*nwt.Batch
			var last error
			for b, err := range l.Epoch(t.Context(), 0) {
				if last = err; err == nil && b.Index() < 8 {
					stream, took := uintptr(b.Index()), time.Minute
					if b.Index() == 1 { // whose buffer is the second that comes back, and the first that is surplus
						took = time.Hour
					}
					dev.step(stream, b, bytes.Clone(b.Bytes(0)), took)
					b.ReleaseAfterStream(stream)
					b.Retain()
					kept = append(kept, b)
				}
				if err == nil && b.Index() == 8 {
					for _, b := range kept {
						b.Release()
					}
					dev.mu.Lock()
					armed = true
					dev.mu.Unlock()
				}
			}
			require.ErrorIs(t, last, errHostile, call)
			require.Len(t, collect(t, l, 1), 20, "the next epoch is whole")
			require.NoError(t, l.Close())
			dev.idle()
			require.Empty(t, dev.notes, call)
		})
	}
}

func TestAnErrorThatALoopWasLeftTooEarlyForIsLogged(t *testing.T) {
	for _, workers := range []int{0, 2} {
		for how, leave := range map[string]func(l *nwt.Loader, cancel func()) (again bool){
			"break":  func(*nwt.Loader, func()) bool { return false },
			"cancel": func(_ *nwt.Loader, cancel func()) bool { cancel(); return true },
			"close":  func(l *nwt.Loader, _ func()) bool { _ = l.Close(); return true },
		} {
			synctest.Test(t, func(t *testing.T) {
				dev := newHostile(nil)
				dev.late = func() time.Duration { return time.Second }
				dev.fails = (&plan{late: true, first: 1, last: 1}).fails
				var log journal
				l := newLoader(t, augmented(100), nwt.WithBatchSize(10), nwt.WithWorkers(workers), nwt.WithDevice(dev), nwt.WithAsyncTransfer(), log.option())
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				for _, err := range l.Epoch(ctx, 0) {
					if err == nil && !leave(l, cancel) {
						break
					}
				}
				require.Contains(t, log.String(), "the epoch was left before this error could be told", how)
				require.Contains(t, log.String(), "nwt: transfer to hostile: batch 0 of epoch 0: hostile", how)
			})
		}
	}
}

// The memory that a copy reads can't be taken from under it.
func TestALoopOnADeviceThatHangsHasItsContextsErrorAtOnceAndEndsWithTheCopy(t *testing.T) {
	for _, async := range []bool{false, true} {
		for _, workers := range []int{0, 2} {
			synctest.Test(t, func(t *testing.T) {
				dev := newHostile(nil)
				dev.late = func() time.Duration { return time.Hour }
				opts := []nwt.Option{nwt.WithBatchSize(10), nwt.WithWorkers(workers), nwt.WithDevice(dev)}
				if async {
					opts = append(opts, nwt.WithAsyncTransfer())
				}
				l := newLoader(t, augmented(100), opts...)
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				began := time.Now()
				var last error
				var told time.Duration
				for _, err := range l.Epoch(ctx, 0) {
					last, told = err, time.Since(began)
				}
				require.ErrorIs(t, last, context.DeadlineExceeded)
				require.Equal(t, time.Second, told)
				require.Zero(t, dev.busy)
				require.Less(t, time.Since(began), 4*time.Hour)
				require.NoError(t, l.Close())
				require.Empty(t, dev.notes)
			})
		}
	}
}

// tooSmall is a device that gives less page-locked memory than it was asked for.
type tooSmall struct{ nowhere }

func (tooSmall) AllocHost(n int) ([]byte, error) { return make([]byte, n-1), nil }

func TestADeviceThatGivesTooLittleMemoryIsAnError(t *testing.T) {
	for _, workers := range []int{0, 2} {
		l := newLoader(t, augmented(8), nwt.WithBatchSize(8), nwt.WithWorkers(workers), nwt.WithDevice(tooSmall{}))
		for b, err := range l.Epoch(t.Context(), 0) {
			require.Nil(t, b)
			require.ErrorContains(t, err, "nwt: 256 bytes of host memory for a batch: AllocHost returned only 255 bytes")
		}
	}
}

// A doubleLeaver ends the goroutine of its n-th copy, and of the Close that follows.
type doubleLeaver struct{ leaver }

func (d *doubleLeaver) Open() (nwt.Session, error) { return d, nil }
func (d *doubleLeaver) Close() error {
	if d.n.Load() == 0 {
		d.n.Store(-1)
		runtime.Goexit()
	}
	return nil
}

func TestADeviceThatEndsItsGoroutineInCloseTooEndsTheEpochWithAnError(t *testing.T) {
	for _, async := range []bool{false, true} {
		for _, workers := range []int{0, 2} {
			opts := []nwt.Option{nwt.WithBatchSize(7), nwt.WithWorkers(workers), nwt.WithPrefetch(2), quietLog}
			if async {
				opts = append(opts, nwt.WithAsyncTransfer())
			}
			dev := &doubleLeaver{}
			l := newLoader(t, augmented(31), append(opts, nwt.WithDevice(dev))...)
			for n := int64(1); n <= 5; n++ {
				dev.n.Store(n)
				endsWithGoexit(t, l, n)
				noSlotLost(t, l, 0)
			}
			require.Len(t, collect(t, l, 0), 5)
		}
	}
}

// A plan says which calls of a hostile device fail.
type plan struct {
	call        string // "": any
	first, last int    // of these calls
	late        bool   // a copy fails while it is made, not when it is queued
	close       int    // 0: sessions end well; 1: the first doesn't, 2: none does
	panics      bool
	hangs       bool // a copy does, until the context ends
	calls       int
}

func (p *plan) fails(call string) error {
	switch {
	case call == "Close" && p.close > 0:
		if p.close == 1 {
			p.close = 0
		}
		return errHostile
	case (call == "late") != p.late || p.call != "" && !p.late && p.call != call:
		return nil
	}
	if p.calls++; p.calls < p.first || p.calls > p.last {
		return nil
	}
	if p.panics && !p.late && call != "Close" && !strings.HasPrefix(call, "Free") {
		panic(errHostile)
	}
	return errHostile
}

// A drill is a training program on a hostile device.
type drill struct {
	*testing.T
	rng    *rand.Rand
	dev    *hostile
	plan   plan
	stream bool // the dataset
	n      int
	batch  int
	async  bool
	closes bool // somebody closes the loader meanwhile
	unit   time.Duration
	l      *nwt.Loader
	log    journal
	kept   sync.WaitGroup
}

func (p *drill) one(in int) bool { return p.rng.IntN(in) == 0 }

func (p *drill) upTo(n int) time.Duration {
	return time.Duration(p.rng.IntN(n)) * p.unit
}

func newDrill(t *testing.T, seed uint64, closes bool) *drill {
	p := &drill{T: t, rng: rand.New(rand.NewPCG(seed, 21)), closes: closes, unit: time.Millisecond}
	if closes {
		p.unit = 20 * time.Microsecond
	}
	p.dev = newHostile(rand.New(rand.NewPCG(seed, 22)))
	calls := []string{"", "", "AllocHost", "FreeHost", "Alloc", "Alloc", "Free", "NewEvent", "FreeEvent", "Open", "Copy", "Copy", "Wait", "Wait", "WaitEvent", "WaitStream"}
	p.plan = plan{call: calls[p.rng.IntN(len(calls))], first: 1 + p.rng.IntN(12), panics: p.one(6), close: max(0, p.rng.IntN(5)-2), late: p.one(3)}
	p.plan.last = p.plan.first + []int{-1, 0, 0, 1, 3, 10000}[p.rng.IntN(6)]
	p.plan.hangs = p.one(8) && !closes
	slow := 1 + p.rng.IntN(40)
	p.dev.late = func() time.Duration { return time.Duration(p.dev.rng.IntN(slow)) * p.unit }
	p.dev.fails = p.plan.fails
	p.stream, p.n, p.batch, p.async = p.one(3), 1+p.rng.IntN(80), 1+p.rng.IntN(9), p.one(2)
	load := p.rng.IntN(4)
	rough := rand.New(rand.NewPCG(seed, 23))
	var mu sync.Mutex
	ds := ragged(p.n)
	if p.stream {
		ds = nwt.Streamed(newShelves(p.n))
	} else {
		ds = nwt.NewDataset(p.n, ds.Fields(), func(ctx context.Context, i int, dst *nwt.Sample) error {
			mu.Lock()
			d := time.Duration(rough.IntN(1+load*4)) * p.unit
			mu.Unlock()
			time.Sleep(d)
			if err := ctx.Err(); err != nil {
				return err
			}
			return ragged(p.n).Load(ctx, i, dst)
		})
	}
	opts := []nwt.Option{
		nwt.WithBatchSize(p.batch), nwt.WithWorkers(p.rng.IntN(6)), nwt.WithPrefetch(1 + p.rng.IntN(6)),
		nwt.WithDevice(p.dev), p.log.option(), nwt.WithPinned(!p.one(4)),
	}
	if p.async {
		opts = append(opts, nwt.WithAsyncTransfer())
	}
	if p.one(4) {
		opts = append(opts, nwt.WithUnordered())
	}
	l, err := nwt.NewLoader(ds, opts...)
	require.NoError(t, err)
	p.l = l
	return p
}

// epoch runs an epoch, or the rest of one, and returns where it ended and with what.
func (p *drill) epoch(resume bool, s nwt.State) (last nwt.State, whole bool, err error) {
	ctx, cancel := context.WithCancel(p.Context())
	defer cancel()
	if p.one(5) || p.plan.hangs {
		defer time.AfterFunc(p.upTo(400), cancel).Stop()
	}
	if p.plan.hangs {
		late := p.dev.late
		hung := 1 + p.rng.IntN(5)
		p.dev.mu.Lock()
		p.dev.late = func() time.Duration {
			if hung--; hung == 0 {
				return time.Hour
			}
			return late()
		}
		p.dev.mu.Unlock()
		defer func() { p.dev.mu.Lock(); p.dev.late = late; p.dev.mu.Unlock() }()
	}
	if p.closes && p.one(2) {
		defer time.AfterFunc(p.upTo(300), func() { _ = p.l.Close() }).Stop()
	}
	for range p.rng.IntN(4) {
		n := p.rng.IntN(6)
		time.AfterFunc(p.upTo(200), func() { _ = p.l.SetWorkers(n) })
	}
	seq, at, leave, last := p.l.Epoch(ctx, s.Epoch), 0, -1, s
	if resume {
		seq = p.l.Resume(ctx, s)
	}
	if p.one(5) {
		leave = p.rng.IntN(8)
	}
	position, torn := s.Samples, error(nil)
	for b, e := range seq {
		require.NoError(p, err, "an error ends the epoch")
		if err = e; e != nil {
			require.Nil(p, b)
			continue
		}
		want := slices.Clone(b.Bytes(0))
		p.content(b, position)
		if !p.async {
			require.NoError(p, p.dev.holds(b, want))
		}
		p.use(b, want, &torn)
		position += b.Len()
		if last = b.State(); at == leave {
			return last, false, nil
		}
		at++
	}
	if p.dev.mu.Lock(); err == nil && torn != nil {
		p.dev.note("a copy failed, and nobody was told")
	}
	p.dev.mu.Unlock()
	if err == nil {
		require.Equal(p, p.n, position, "the epoch is whole")
	}
	return last, err == nil, err
}

// content checks what is in a batch on the host.
func (p *drill) content(b *nwt.Batch, position int) {
	require.Equal(p, min(p.batch, p.n-position), b.Len())
	for k := range b.Len() {
		i := position + k
		if p.stream {
			require.Equal(p, int64(i), nwt.Values[int64](b, 0)[k])
			continue
		}
		require.Equal(p, i, b.Indices()[k])
		require.Equal(p, uint8(i%6), nwt.Values[uint8](b, 1)[k])
		for j, v := range nwt.Values[int32](b, 0)[5*k : 5*k+5] {
			require.Equal(p, int32(i)*int32(min(1, max(0, i%6-j))), v)
		}
	}
}

// use is what the loop body does with a batch.
func (p *drill) use(b *nwt.Batch, want []byte, torn *error) {
	if p.async && (p.closes || p.one(2)) {
		if err := p.dev.holds(b, want); err != nil {
			*torn = err
		}
	}
	if p.one(3) {
		time.Sleep(p.upTo(40))
	}
	var step *work
	if !p.closes && p.one(2) {
		stream := uintptr(1 + p.rng.IntN(2))
		step = p.dev.step(stream, b, want, p.upTo(100))
		if p.one(2) {
			b.ReleaseAfterStream(stream)
		} else {
			b.ReleaseAfterEvent(p.dev.record(stream))
		}
	}
	if p.one(4) {
		took := p.upTo(500)
		b.Retain()
		failed := p.async
		p.kept.Go(func() {
			time.Sleep(took)
			if err := p.dev.holds(b, want); err != nil && !failed {
				p.dev.mu.Lock()
				p.dev.note("a batch that was retained: %v", err)
				p.dev.mu.Unlock()
			}
			if !bytes.Equal(want, b.Bytes(0)) {
				p.dev.mu.Lock()
				p.dev.note("a batch that was retained has changed")
				p.dev.mu.Unlock()
			}
			if step != nil {
				<-step.done
			}
			b.Release()
		})
	}
	if p.one(10) && p.closes {
		_ = p.l.Close()
	}
}

func (p *drill) run() {
	defer func() {
		if p.Failed() && !p.closes {
			time.Sleep(10 * time.Hour) // until all work is over, or the bubble would panic before the reason is told
		}
	}()
	s, resume := nwt.State{}, false
	for range 4 {
		last, whole, err := p.epoch(resume, s)
		if err != nil {
			require.True(p, errors.Is(err, errHostile) || errors.Is(err, context.Canceled) || errors.Is(err, nwt.ErrClosed), "%v", err)
			if errors.Is(err, errHostile) {
				require.True(p, strings.HasPrefix(err.Error(), "nwt: transfer to hostile: ") || strings.Contains(err.Error(), "bytes of host memory for a batch: "), "%v", err)
			}
		}
		s, resume = nwt.State{Epoch: s.Epoch + 1}, false
		if !whole && last.Samples > 0 && !p.async {
			s, resume = last, true
		}
	}
	if p.one(2) {
		p.kept.Wait()
	}
	require.NoError(p, p.l.Close())
	p.kept.Wait()
	p.dev.idle()
	require.Empty(p, p.dev.notes, "%+v, log: %s", p.plan, &p.log)
	host, device := p.dev.kept()
	if p.dev.closed["failed"] == 0 && !strings.Contains(p.log.String(), "isn't freed, since the training program may still use it") {
		require.Equal(p, [3]int{0, 0, 0}, [3]int{host, device, len(p.dev.events) - p.dev.ownEvents}, "%+v, log: %s", p.plan, &p.log)
	}
	require.Equal(p, p.dev.open, p.dev.closed["failed"]+p.dev.closed["well"], "every session is closed")
}

var drills = flag.Int("drills", 300, "so many random programs of TestRandomProgramsOnHostileDevices")

// Programs whose loader somebody closes meanwhile run in real time: in a bubble, whoever
// waits for a mutex keeps the clock from going on.
func TestRandomProgramsOnHostileDevices(t *testing.T) {
	for seed := range uint64(*drills) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			if seed%4 == 3 {
				newDrill(t, seed, true).run()
			} else {
				synctest.Test(t, func(t *testing.T) { newDrill(t, seed, false).run() })
			}
		})
	}
	require.NoError(t, leftover())
}

func TestTuningOnHostileDevicesEndsWithTheirErrorAndKeepsNothing(t *testing.T) {
	for seed := range uint64(100) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 24))
			half := func() bool { return rng.IntN(2) == 0 }
			dev := newHostile(rand.New(rand.NewPCG(seed, 25)))
			call := []string{"AllocHost", "FreeHost", "Alloc", "Free", "NewEvent", "FreeEvent", "Open", "Copy", "Wait", "late", "Close"}[rng.IntN(11)]
			p := plan{call: call, late: call == "late", first: 1 + rng.IntN(200), close: max(0, rng.IntN(5)-2)}
			p.last = p.first + []int{0, 1, 10000}[rng.IntN(3)]
			dev.fails = p.fails
			dev.late = func() time.Duration { return time.Duration(dev.rng.IntN(5)) * time.Millisecond }
			var log journal
			opts := []nwt.Option{nwt.WithBatchSize(4), nwt.WithDevice(dev), log.option(), nwt.WithMaxWorkers(4), nwt.WithIterations(10)}
			if half() {
				opts = append(opts, nwt.WithAsyncTransfer())
			}
			if half() {
				opts = append(opts, nwt.WithPinnedComparison())
			}
			if half() {
				opts = append(opts, nwt.WithStep(func(context.Context, *nwt.Batch) error { time.Sleep(2 * time.Millisecond); return nil }))
			}
			ds := numbered(100, func(context.Context, int, *nwt.Sample) error { time.Sleep(time.Millisecond); return nil })
			if _, err := nwt.Tune(t.Context(), ds, opts...); err != nil {
				require.ErrorIs(t, err, errHostile)
			}
			dev.idle()
			require.Empty(t, dev.notes, "%+v", p)
			host, device := dev.kept()
			if dev.closed["failed"] == 0 {
				require.Zero(t, host+device, "%+v", p)
			} else if host+device > 0 {
				require.Contains(t, log.String(), "neither used again nor freed", "%+v", p)
			}
			require.Equal(t, dev.open, dev.closed["failed"]+dev.closed["well"], "every session is closed")
		})
	}
}
