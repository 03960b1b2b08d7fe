package nwt_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

// A ledger is a device that writes down what it gives and what it gets back. In the n-th call
// of one of its methods it does something else. What is to be freed counts as freed then too.
type ledger struct {
	method string
	n      int
	fault  func() error // returns an error, panics or ends the goroutine

	mu    sync.Mutex
	calls int // of the method
	next  uintptr
	out   map[string]map[any]bool
	notes []string
}

func newLedger(method string, n int, fault func() error) *ledger {
	return &ledger{method: method, n: n, fault: fault, next: 1 << 20, out: map[string]map[any]bool{"host": {}, "device": {}, "event": {}, "session": {}}}
}

// call is the method's fault, if this is the call in which it has one.
func (d *ledger) call(method string) error {
	d.mu.Lock()
	faulty := false
	if method == d.method {
		d.calls++
		faulty = d.calls == d.n
	}
	d.mu.Unlock()
	if faulty {
		return d.fault()
	}
	return nil
}

func (d *ledger) give(kind string) uintptr {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.next += 1 << 20
	d.out[kind][d.next] = true
	return d.next
}

func (d *ledger) get(kind string, what any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.out[kind][what] {
		d.notes = append(d.notes, kind+" comes back twice")
	}
	delete(d.out[kind], what)
}

// balance is what hasn't come back, and what came back twice.
func (d *ledger) balance() (left []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for kind, of := range d.out {
		if len(of) > 0 {
			left = append(left, fmt.Sprintf("%d × %s", len(of), kind))
		}
	}
	return append(left, d.notes...)
}

func (d *ledger) fell() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.calls >= d.n
}

func (d *ledger) String() string { _ = d.call("String"); return "ledger" }

func (d *ledger) AllocHost(size int) ([]byte, error) {
	if err := d.call("AllocHost"); err != nil {
		return nil, err
	}
	mem := make([]byte, size)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.out["host"][&mem[0]] = true
	return mem, nil
}

func (d *ledger) FreeHost(mem []byte) error { d.get("host", &mem[0]); return d.call("FreeHost") }
func (d *ledger) Alloc(int) (uintptr, error) {
	if err := d.call("Alloc"); err != nil {
		return 0, err
	}
	return d.give("device"), nil
}
func (d *ledger) Free(p uintptr) error { d.get("device", p); return d.call("Free") }
func (d *ledger) NewEvent() (uintptr, error) {
	if err := d.call("NewEvent"); err != nil {
		return 0, err
	}
	return d.give("event"), nil
}
func (d *ledger) FreeEvent(e uintptr) error { d.get("event", e); return d.call("FreeEvent") }
func (d *ledger) Open() (nwt.Session, error) {
	if err := d.call("Open"); err != nil {
		return nil, err
	}
	return ledgerSession{d, d.give("session")}, nil
}

type ledgerSession struct {
	*ledger
	number uintptr
}

func (s ledgerSession) Copy([]nwt.Copy, uintptr) error { return s.call("Copy") }
func (s ledgerSession) Wait(uintptr) error             { return s.call("Wait") }
func (s ledgerSession) WaitEvent(uintptr) error        { return s.call("WaitEvent") }
func (s ledgerSession) WaitStream(uintptr) error       { return s.call("WaitStream") }
func (s ledgerSession) Close() error                   { s.get("session", s.number); return s.call("Close") }

// faults are the ways in which a call may end badly.
func faultsOf() map[string]func() error {
	return map[string]func() error{
		"error":  func() error { return errBurnt },
		"panic":  func() error { panic(errBurnt) },
		"Goexit": func() error { runtime.Goexit(); return nil },
	}
}

var methodsOfDevices = []string{
	"String", "AllocHost", "FreeHost", "Alloc", "Free", "NewEvent", "FreeEvent", "Open",
	"Copy", "Wait", "WaitEvent", "WaitStream", "Close",
}

// trains runs epochs that retain batches, take back and close. It goes on after what a
// device does to it.
func trains(t *testing.T, dev nwt.Device, opts ...nwt.Option) {
	var l *nwt.Loader
	apart(func() {
		made, err := nwt.NewLoader(ragged(60), append(opts, nwt.WithBatchSize(4), nwt.WithDevice(dev), silent)...)
		require.NoError(t, err)
		l = made
	})
	if l == nil {
		return
	}
	for epoch := range 3 {
		apart(func() {
			var kept []*nwt.Batch
			defer func() {
				for _, b := range kept {
					apart(b.Release)
				}
			}()
			for b, err := range l.Epoch(t.Context(), epoch) {
				if err != nil {
					break
				}
				if b.Index()%2 == 0 {
					b.ReleaseAfterStream(1)
				} else {
					b.ReleaseAfterEvent(1)
				}
				switch {
				case b.Index() < 6 && epoch > 0:
					b.Retain()
					kept = append(kept, b)
				case b.Index() == 8:
					for _, b := range kept {
						apart(b.Release)
					}
					kept = nil
					apart(func() { _ = l.SetWorkers(0) })
				}
			}
		})
		apart(func() { _ = l.SetWorkers(3) })
	}
	apart(func() { _ = l.Close() })
}

func TestWhateverCallOfADeviceEndsBadlyAllThatItGaveComesBackOnce(t *testing.T) {
	for _, method := range methodsOfDevices {
		for how, fault := range faultsOf() {
			if method == "String" && how == "error" {
				continue
			}
			for i, opts := range [][]nwt.Option{
				{nwt.WithWorkers(0)},
				{nwt.WithWorkers(3)},
				{nwt.WithWorkers(3), nwt.WithAsyncTransfer()},
			} {
				fell := false
				for n := 1; n <= 40; n++ {
					d := newLedger(method, n, fault)
					what := fmt.Sprintf("%s, call %d: %s, options %d", method, n, how, i)
					promptly(t, func() { trains(t, d, opts...) })
					if !d.fell() {
						break
					}
					fell = true
					if method == "Close" { // the memory that copies may still touch is kept
						delete(d.out, "host")
						delete(d.out, "device")
						delete(d.out, "event")
					}
					require.Empty(t, d.balance(), what)
					require.NoError(t, leftover(), what)
				}
				require.True(t, fell, "%s, options %d", method, i)
			}
		}
	}
}

// A batch whose LoadBatch was given up moves to other memory.
func TestWhateverCallOfADeviceEndsBadlyABatchThatMovesKeepsNothing(t *testing.T) {
	for _, method := range []string{"AllocHost", "FreeHost"} {
		for how, fault := range faultsOf() {
			for _, finish := range []bool{false, true} {
				for n := 1; n <= 30; n++ {
					d := newLedger(method, n, fault)
					what := fmt.Sprintf("%s, call %d: %s, finish: %v", method, n, how, finish)
					synctest.Test(t, func(t *testing.T) {
						ds := &pages{n: 40,
							loadBatch: func(ctx context.Context, _ []int, _ []*nwt.Sample) error { <-ctx.Done(); return ctx.Err() },
							load:      func(context.Context, int, *nwt.Sample) error { time.Sleep(time.Millisecond); return nil },
						}
						opts := []nwt.Option{nwt.WithBatchSize(8), nwt.WithWorkers(2), nwt.WithDevice(d), nwt.WithTimeout(time.Second), silent}
						if finish {
							opts = append(opts, nwt.WithFinish(func(context.Context, *nwt.Batch) error { return nil }))
						}
						l := newLoader(t, ds, opts...)
						for epoch := range 2 {
							apart(func() {
								for range l.Epoch(t.Context(), epoch) {
								}
							})
						}
						apart(func() { _ = l.Close() })
					})
					require.Empty(t, d.balance(), what)
				}
			}
		}
	}
}

// A closed device opens no session, and says nothing.
type closed struct{ *ledger }

func (closed) Open() (nwt.Session, error) { return nil, nil }

func TestADeviceThatOpensNoSessionIsAnErrorAndKeepsNothing(t *testing.T) {
	d := closed{newLedger("", 0, nil)}
	l := newLoader(t, ragged(60), nwt.WithBatchSize(4), nwt.WithDevice(d), silent)
	for epoch := range 3 {
		var last error
		for _, err := range l.Epoch(t.Context(), epoch) {
			last = err
		}
		require.EqualError(t, last, "nwt: transfer to ledger: Open returned no session")
	}
	require.NoError(t, l.Close())
	require.Empty(t, d.balance())
}
