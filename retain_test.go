package nwt_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

func TestARetainedBatchStaysUntilItsRelease(t *testing.T) {
	for _, workers := range []int{0, 3} {
		var nothing = func(context.Context, int, *nwt.Sample) error { return nil }
		l := newLoader(t, loads(90, nothing), nwt.WithBatchSize(3), nwt.WithWorkers(workers), nwt.WithShuffle(1))
		var kept []*nwt.Batch
		for b, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
			if b.Index()%3 == 0 {
				b.Retain()
				b.Retain()
				kept = append(kept, b)
			}
		}
		noSlotLost(t, l, 10)
		for range 2 {
			_, err := epoch(t.Context(), l, 1)
			require.NoError(t, err)
		}
		for k, b := range kept[:5] {
			require.Equal(t, 3*k, b.Index())
			require.Zero(t, b.Epoch())
			intact(t, b)
			b.Release()
			intact(t, b)
			b.Release()
		}
		noSlotLost(t, l, 5)
		require.NoError(t, l.Close())
		require.Equal(t, nwt.SlotCount{Memory: 5, Retained: 5}, l.SlotCount())
		var wg sync.WaitGroup
		for _, b := range kept[5:] {
			for range 2 {
				wg.Go(func() { intact(t, b); b.Release() })
			}
		}
		wg.Wait()
		require.Zero(t, l.SlotCount())
	}
}

func TestRetainOfABatchThatHasGoneBackPanics(t *testing.T) {
	ds, _ := indexed(4)
	l := newLoader(t, ds, nwt.WithBatchSize(2))
	var kept []*nwt.Batch
	for b, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
		kept = append(kept, b)
	}
	for _, b := range kept {
		require.PanicsWithValue(t, fmt.Sprintf("nwt: Retain of batch %d of epoch 0 after it had gone back to the loader", b.Index()), b.Retain)
		require.Panics(t, b.Release)
	}
}

func TestBatchesAreReleasedByOtherGoroutinesAtAnyMoment(t *testing.T) {
	var nothing = func(context.Context, int, *nwt.Sample) error { return nil }
	l := newLoader(t, loads(3000, nothing), nwt.WithBatchSize(3), nwt.WithWorkers(2), nwt.WithPrefetch(2))
	var wg sync.WaitGroup
	room := make(chan struct{}, 20)
	for b, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
		b.Retain()
		room <- struct{}{}
		wg.Go(func() {
			time.Sleep(time.Duration(b.Index()%7) * 10 * time.Microsecond)
			intact(t, b)
			b.Release()
			<-room
		})
	}
	wg.Wait()
	noSlotLost(t, l, 0)
	require.LessOrEqual(t, l.SlotCount().Memory, 3+1, "as many as without")
}

func TestForgettingToReleaseIsNoticed(t *testing.T) {
	for _, workers := range []int{0, 2} {
		l := newLoader(t, emptyDataset(300), nwt.WithBatchSize(1), nwt.WithWorkers(workers))
		var kept []*nwt.Batch
		var last error
		for b, err := range l.Epoch(t.Context(), 0) {
			if last = err; err == nil {
				b.Retain()
				kept = append(kept, b)
				require.Less(t, len(kept), 300)
			}
		}
		require.ErrorIs(t, last, nwt.ErrRetained)
		require.ErrorContains(t, last, "the bound is 64")
		require.GreaterOrEqual(t, len(kept), 64)
		for i, b := range kept {
			require.Equal(t, i, b.Index(), "every batch before the error was delivered")
			b.Release()
		}
		noSlotLost(t, l, 0)
		_, err := epoch(t.Context(), l, 1)
		require.NoError(t, err)
	}
}

func TestAsManyBatchesAsTheBoundMayBeRetained(t *testing.T) {
	for _, workers := range []int{0, 1, 4} {
		l := newLoader(t, emptyDataset(300), nwt.WithBatchSize(1), nwt.WithWorkers(workers))
		var kept []*nwt.Batch
		for b, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
			if len(kept) < 64 {
				b.Retain()
				kept = append(kept, b)
			}
			if b.Index() == 100 {
				require.NoError(t, l.SetWorkers(0), "whose slots are given back")
			}
			if b.Index() == 200 {
				require.NoError(t, l.SetWorkers(4))
			}
		}
		for _, b := range kept {
			b.Release()
		}
		noSlotLost(t, l, 0)
	}
}

// As long as some slot is left the epoch goes on.
func TestAProgramAtTheBoundGoesOnWithFewerBatchesAhead(t *testing.T) {
	l := newLoader(t, emptyDataset(300), nwt.WithBatchSize(1), nwt.WithWorkers(2), nwt.WithPrefetch(8))
	var kept []*nwt.Batch
	for b, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
		b.Retain()
		if kept = append(kept, b); len(kept) > 64 {
			kept[0].Release()
			kept = kept[1:]
		}
	}
	for _, b := range kept {
		b.Release()
	}
	noSlotLost(t, l, 0)
}

func TestAReleaseTooManyPanicsAndHarmsNobody(t *testing.T) {
	l := newLoader(t, emptyDataset(30), nwt.WithBatchSize(3), nwt.WithWorkers(1))
	tooMany := func(b *nwt.Batch) {
		require.PanicsWithValue(t, "nwt: Release of batch 2 of epoch 7 without a Retain", b.Release)
	}
	for range 100 {
		var kept *nwt.Batch
		for b, err := range l.Epoch(t.Context(), 7) {
			require.NoError(t, err)
			if b.Index() == 2 {
				tooMany(b)
				b.Retain()
				b.Release()
				tooMany(b)
				b.Retain()
				kept = b
				break
			}
		}
		kept.Release()
		tooMany(kept)
		noSlotLost(t, l, 0)
	}
}

func TestARetainedBatchSurvivesALoopThatPanics(t *testing.T) {
	l := newLoader(t, numbers(0, 30), nwt.WithBatchSize(3), nwt.WithWorkers(2))
	var kept *nwt.Batch
	require.PanicsWithError(t, "boom", func() {
		for b, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
			if b.Index() < 2 {
				continue
			}
			b.Retain()
			kept = b
			panic(errors.New("boom"))
		}
	})
	for _, err := range l.Epoch(t.Context(), 1) { // in all other slots
		require.NoError(t, err)
	}
	require.Equal(t, []int64{6, 7, 8}, nwt.Values[int64](kept, 0))
	noSlotLost(t, l, 1)
	require.NoError(t, l.Close())
	require.Equal(t, []int64{6, 7, 8}, nwt.Values[int64](kept, 0))
	require.Equal(t, []int{6, 7, 8}, kept.Indices())
	kept.Release()
	require.Zero(t, l.SlotCount())
}

// A frugal device has memory for so many batches. It takes a second to refuse more.
type frugal struct {
	nowhere
	slots, buffers atomic.Int32 // that are left
}

var errFull = errors.New("the memory is full")

func newFrugal(slots, buffers int32) *frugal {
	d := &frugal{}
	d.slots.Store(slots)
	d.buffers.Store(buffers)
	return d
}

func oneOf(left *atomic.Int32) error {
	if left.Add(-1) >= 0 {
		return nil
	}
	left.Add(1)
	time.Sleep(time.Second)
	return errFull
}

func (d *frugal) Free(uintptr) error    { d.buffers.Add(1); return nil }
func (d *frugal) FreeHost([]byte) error { d.slots.Add(1); return nil }
func (d *frugal) Alloc(int) (uintptr, error) {
	return 1, oneOf(&d.buffers)
}

func (d *frugal) AllocHost(n int) ([]byte, error) {
	if err := oneOf(&d.slots); err != nil {
		return nil, err
	}
	return make([]byte, n), nil
}

// Nothing but the loader orders the releases and what it does meanwhile: the race
// detector sees what it forgets.
func TestBatchesMayBeReleasedWhileMemoryIsRefusedAndAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dev := newFrugal(4, 3)
		var log journal
		l := newLoader(t, augmented(160), nwt.WithBatchSize(8), nwt.WithWorkers(1), nwt.WithPrefetch(8), nwt.WithDevice(dev), log.option())
		var releasing sync.WaitGroup
		release := func(b *nwt.Batch, after time.Duration) {
			b.Retain()
			first := b.Indices()[0]
			releasing.Go(func() {
				time.Sleep(after)
				if b.Indices()[0] != first { // assert would take a lock of t
					t.Error("another batch's sample")
				}
				b.Release()
			})
		}
		var batches int
		for b, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
			require.Equal(t, 8*batches, b.Indices()[0])
			batches++
			release(b, 500*time.Millisecond)
			time.Sleep(300 * time.Millisecond)
		}
		require.Equal(t, 20, batches)
		releasing.Wait()
		noSlotLost(t, l, 0)
		require.Equal(t, 4, l.Stats().Slots)
		require.Equal(t, 1, strings.Count(log.String(), "loading less far ahead than there is room for"))
		for b, err := range l.Epoch(t.Context(), 1) {
			require.NoError(t, err)
			if release(b, time.Minute); b.Index() == 2 {
				break
			}
		}
		require.NoError(t, l.Close())
		releasing.Wait()
		require.Zero(t, l.Stats().Slots)
		require.Zero(t, l.Stats().DeviceBytes)
		require.Equal(t, [2]int32{4, 3}, [2]int32{dev.slots.Load(), dev.buffers.Load()})
	})
}

func TestTheSlotsThatStayAreThoseThatTheWorkersNeed(t *testing.T) {
	l := newLoader(t, emptyDataset(300), nwt.WithBatchSize(3), nwt.WithWorkers(4), nwt.WithPrefetch(6))
	var kept *nwt.Batch
	for b, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
		if b.Index() == 10 {
			b.Retain()
			kept = b
		}
	}
	all := nwt.SlotCount{Memory: 8, Free: 7, Retained: 1}
	require.Equal(t, all, l.SlotCount())
	for _, workers := range []int{2, 9} {
		require.NoError(t, l.SetWorkers(workers))
		require.Equal(t, all, l.SlotCount(), "as many batches are loaded ahead")
	}
	require.NoError(t, l.SetWorkers(0))
	require.Equal(t, nwt.SlotCount{Memory: 2, Free: 1, Retained: 1}, l.SlotCount())
	kept.Release()
	require.Equal(t, 1, l.SlotCount().Memory)
}
