package devicecopy_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt/driver"
	"github.com/nwt-go/nwt/internal/devicecopy"
)

var errBurnt = errors.New("burnt")

// A fake is a device whose copies take a second each, one after the other. The call that fails
// says "Copy 3" for the third Copy; "Close" for each of them.
type fake struct {
	fails string
	room  int // for buffers

	calls  map[string]int
	buffer map[uintptr]string // what was copied to each
	event  map[uintptr]time.Time
	last   uintptr
	free   time.Time // from when on the device has nothing to do
	most   int       // buffers at once
}

func newFake(room int, fails string) *fake {
	return &fake{fails: fails, room: room, calls: map[string]int{}, buffer: map[uintptr]string{}, event: map[uintptr]time.Time{}}
}

func (d *fake) call(name string) error {
	d.calls[name]++
	if d.fails == name || d.fails == fmt.Sprint(name, " ", d.calls[name]) || d.fails == fmt.Sprint("Close after ", name, " ", d.calls[name]) {
		if d.fails[:5] == "Close" {
			d.fails = "Close"
		}
		return errBurnt
	}
	return nil
}

func (d *fake) String() string { return "fake" }

func (d *fake) Alloc(int) (uintptr, error) {
	if err := d.call("Alloc"); err != nil {
		return 0, err
	}
	if len(d.buffer) == d.room {
		return 0, errors.New("full")
	}
	d.last++
	d.buffer[d.last] = ""
	d.most = max(d.most, len(d.buffer))
	return d.last, nil
}

func (d *fake) Free(ptr uintptr) error { delete(d.buffer, ptr); return d.call("Free") }

func (d *fake) NewEvent() (uintptr, error) {
	if err := d.call("NewEvent"); err != nil {
		return 0, err
	}
	d.last++
	d.event[d.last] = time.Time{}
	return d.last, nil
}

func (d *fake) FreeEvent(event uintptr) error { delete(d.event, event); return nil }

func (d *fake) Open() (driver.Session, error) {
	d.free = time.Time{}
	return d, d.call("Open")
}

func (d *fake) Copy(parts []driver.Copy, event uintptr) error {
	for _, p := range parts {
		d.buffer[p.Dst] = string(p.Src)
	}
	if now := time.Now(); d.free.Before(now) {
		d.free = now
	}
	d.free = d.free.Add(time.Second)
	d.event[event] = d.free
	return d.call("Copy")
}

func (d *fake) Wait(event uintptr) error {
	time.Sleep(time.Until(d.event[event]))
	return d.call("Wait")
}

func (d *fake) Close() error { return d.call("Close") }

// A batch notes what the stage says of it.
type batch struct {
	t      *testing.T
	d      *fake
	n      int
	buffer *devicecopy.Buffer
	lost   bool
	err    error
	said   chan<- *batch
}

func (b *batch) String() string { return fmt.Sprint("batch ", b.n) }

func (b *batch) Parts(parts []driver.Copy, to uintptr) ([]driver.Copy, int) {
	return append(parts, driver.Copy{Dst: to, Src: []byte(b.String())}), 10
}

func (b *batch) Copied(buffer *devicecopy.Buffer, began, ended time.Time) {
	require.Equal(b.t, b.String(), b.d.buffer[buffer.Ptr])
	require.Equal(b.t, time.Second, ended.Sub(began))
	b.buffer = buffer
	b.said <- b
}

func (b *batch) Lost() { b.lost = true }

func (b *batch) Failed(err error) {
	b.err = err
	b.said <- b
}

// A bench is a stage with a fake device.
type bench struct {
	*devicecopy.Stage
	t      *testing.T
	d      *fake
	log    bytes.Buffer
	served []*batch // what it was given to copy
	said   chan *batch
	opened error // what Serve returned
}

func newBench(t *testing.T, room int, fails string) *bench {
	b := &bench{t: t, d: newFake(room, fails)}
	b.Stage = devicecopy.New(b.d, 100, slog.New(slog.NewTextHandler(&b.log, nil)))
	return b
}

// serve begins a run of n batches. What the stage says of each comes through said, which is
// closed at the end.
func (b *bench) serve(ctx context.Context, n int) {
	b.served, b.said = nil, make(chan *batch, n)
	go func() {
		defer close(b.said)
		b.opened = b.Serve(ctx, func(bool) devicecopy.Batch {
			if len(b.served) == n {
				return nil
			}
			next := &batch{t: b.t, d: b.d, n: len(b.served), said: b.said}
			b.served = append(b.served, next)
			return next
		})
	}()
}

// consume gives back what comes, and returns how many batches arrived and what came instead.
func (b *bench) consume() (arrived int, err error) {
	for c := range b.said {
		if c.err != nil {
			return arrived, c.err
		}
		require.Equal(b.t, arrived, c.n)
		arrived++
		b.Return(c.buffer, false)
	}
	return arrived, nil
}

func TestBatchesArriveInOrderInThreeBuffers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 10, "")
		for range 2 {
			b.serve(t.Context(), 20)
			arrived, err := b.consume()
			require.NoError(t, err)
			require.Equal(t, 20, arrived)
		}
		require.Equal(t, 3, b.d.most)
		require.Equal(t, 1, b.d.calls["Open"], "the second run goes on with the session")
		require.Equal(t, devicecopy.Figures{Copies: 40, Bytes: 400, Took: 40 * time.Second, Held: 300}, b.Figures())
		b.Close()
		require.Empty(t, b.d.buffer)
		require.Empty(t, b.d.event)
		require.Zero(t, b.Figures().Held)
		require.Zero(t, (*devicecopy.Stage)(nil).Figures())
	})
}

func TestABatchIsAskedForBeforeThereIsABufferAndADetachedOneMakesRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 10, "")
		b.serve(t.Context(), 6)
		synctest.Wait()
		time.Sleep(time.Minute)
		require.Len(t, b.said, 3)
		require.Len(t, b.served, 4)
		kept := <-b.said
		b.Detach()
		time.Sleep(time.Minute)
		require.Len(t, b.said, 3)
		require.Len(t, b.served, 5)
		require.Equal(t, 4, b.d.most)
		b.Return(kept.buffer, true)
		time.Sleep(time.Minute)
		require.Len(t, b.said, 3, "a buffer too many isn't used")
		for range 3 {
			b.Return((<-b.said).buffer, false)
			time.Sleep(time.Minute)
		}
		require.Len(t, b.d.buffer, 3, "but freed")
		b.Close()
		for c := range b.said {
			b.Return(c.buffer, false)
		}
		require.Empty(t, b.d.buffer, "what comes back after Close is freed")
	})
}

func TestAnErrorComesInPlaceOfTheFirstBatchThatIsNotCopied(t *testing.T) {
	for call, want := range map[string]string{
		"Copy 3":     "nwt: transfer to fake: batch 2: burnt",
		"Wait 3":     "nwt: transfer to fake: batch 2: burnt",
		"Alloc 1":    "nwt: transfer to fake: 100 bytes for a batch: burnt (a smaller WithBatchSize needs less)",
		"NewEvent 1": "nwt: transfer to fake: burnt",
	} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t, 10, call)
			b.serve(t.Context(), 9)
			arrived, err := b.consume()
			require.EqualError(t, err, want)
			require.Equal(t, arrived, map[byte]int{'3': 2, '1': 0}[call[len(call)-1]], call)
			synctest.Wait()
			for _, c := range b.served {
				require.False(t, c.lost)
			}
			b.serve(t.Context(), 9)
			arrived, err = b.consume()
			require.NoError(t, err, "the next run opens another session")
			require.Equal(t, 9, arrived)
			b.Close()
			require.Equal(t, 2, b.d.calls["Open"])
			require.Equal(t, 2, b.d.calls["Close"])
			require.Empty(t, b.d.buffer)
			require.Empty(t, b.d.event)
		})
	}
}

func TestADeviceThatCannotBeOpenedIsTheRunsError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 10, "Open 1")
		b.serve(t.Context(), 9)
		arrived, err := b.consume()
		require.NoError(t, err)
		require.Zero(t, arrived)
		require.Empty(t, b.served)
		require.EqualError(t, b.opened, "nwt: transfer to fake: burnt")
		b.serve(t.Context(), 9)
		arrived, err = b.consume()
		require.NoError(t, err)
		require.Equal(t, 9, arrived)
		b.Close()
	})
}

func TestWhatASessionThatDoesNotEndMayTouchIsLost(t *testing.T) {
	for _, call := range []string{"Close after Copy 3", "Close after Wait 3"} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t, 10, call)
			b.serve(t.Context(), 9)
			arrived, err := b.consume()
			require.ErrorIs(t, err, errBurnt)
			require.Equal(t, 2, arrived)
			synctest.Wait()
			lost := 0
			for _, c := range b.served {
				if c.lost {
					lost++
					require.GreaterOrEqual(t, c.n, 2)
				}
			}
			require.NotZero(t, lost)
			require.True(t, b.served[2].lost)
			require.Contains(t, b.log.String(), "neither used again nor freed")
			b.d.fails = ""
			b.serve(t.Context(), 9)
			arrived, err = b.consume()
			require.NoError(t, err)
			require.Equal(t, 9, arrived)
			b.Close()
			require.Len(t, b.d.buffer, lost)
			require.Equal(t, 100*lost, b.Figures().Held)
		})
	}
}

func TestADeviceThatIsShortOfMemoryDoesWithFewerBuffers(t *testing.T) {
	for room := range 3 {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t, room, "")
			b.serve(t.Context(), 9)
			arrived, err := b.consume()
			if b.Close(); room == 0 {
				require.EqualError(t, err, "nwt: transfer to fake: 100 bytes for a batch: full (a smaller WithBatchSize needs less)")
				return
			}
			require.NoError(t, err)
			require.Equal(t, 9, arrived)
			require.Equal(t, 1, bytes.Count(b.log.Bytes(), fmt.Appendf(nil, "only %d of 3 batches fit", room)), b.log.String())
		})
	}
}

func TestARunWhoseContextEndsFinishesTheCopiesUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 10, "")
		for after, want := range map[time.Duration]int{500 * time.Millisecond: 3, time.Hour: 9} {
			ctx, cancel := context.WithTimeout(t.Context(), after)
			b.serve(ctx, 9)
			arrived, err := b.consume()
			cancel()
			require.NoError(t, err)
			require.Equal(t, want, arrived, "what was queued by then")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		began := time.Now()
		b.serve(ctx, 9)
		for range b.said { // the buffers don't come back
		}
		require.Equal(t, time.Hour, time.Since(began))
	})
}
