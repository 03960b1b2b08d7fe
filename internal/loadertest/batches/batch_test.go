package batches_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/loadertest/kit"
)

func TestMain(m *testing.M) { kit.Main(m) }

func TestARetainedBatchStaysUntilItsRelease(t *testing.T) {
	for _, workers := range []int{0, 3} {
		var nothing = func(context.Context, int, *nwt.Sample) error { return nil }
		l := kit.NewLoader(t, kit.Loads(90, nothing), nwt.WithBatchSize(3), nwt.WithWorkers(workers), nwt.WithShuffle(1))
		var kept []*nwt.Batch
		for b, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
			if b.Number()%3 == 0 {
				b.Retain()
				b.Retain()
				kept = append(kept, b)
			}
		}
		require.Equal(t, 10, l.Stats().Retained)
		for range 2 {
			_, err := kit.Epoch(t.Context(), l, 1)
			require.NoError(t, err)
		}
		for k, b := range kept[:5] {
			require.Equal(t, 3*k, b.Number())
			require.Zero(t, b.Epoch())
			kit.Intact(t, b)
			b.Release()
			kit.Intact(t, b)
			b.Release()
		}
		require.Equal(t, 5, l.Stats().Retained)
		require.NoError(t, l.Close())
		require.Equal(t, 5, l.Stats().Slots)
		require.Equal(t, 5, l.Stats().Retained)
		var wg sync.WaitGroup
		for _, b := range kept[5:] {
			for range 2 {
				wg.Go(func() { kit.Intact(t, b); b.Release() })
			}
		}
		wg.Wait()
		require.Zero(t, l.Stats().Slots)
	}
}

func TestABatchThatHasGoneBackPanicsWhateverIsAskedOfIt(t *testing.T) {
	ds, x := indexed(400)
	for name, opts := range map[string][]nwt.Option{
		"workers": {nwt.WithWorkers(2)}, "no worker": {nwt.WithWorkers(0)}, "a device": {nwt.WithDevice(kit.Nowhere{})}, "a function for batches": {nwt.WithBatchTransform(func(context.Context, *nwt.Batch) error { return nil })},
	} {
		t.Run(name, func(t *testing.T) {
			l := kit.NewLoader(t, ds, append(opts, nwt.WithBatchSize(2))...)
			gone := func(b *nwt.Batch, number int) {
				said := fmt.Sprintf("nwt: batch %d of epoch 0 was used after the batch had gone back to the loader: call Retain to keep it past its iteration, or copy what you keep", number)
				for _, ask := range []func(){
					func() { x.Of(b) }, func() { b.Bytes(0) }, func() { b.Shape(0) }, func() { x.Shape(b) }, func() { b.DevicePtr(0) }, func() { b.Lens(0, 0) },
					func() { b.Len() }, func() { b.Number() }, func() { b.Epoch() }, func() { b.Last() }, func() { b.Indices() }, func() { b.State() }, func() { b.Fields() }, func() { b.Rand() },
					b.Retain,
				} {
					require.PanicsWithValue(t, said, ask)
				}
				require.PanicsWithValue(t, fmt.Sprintf("nwt: Release of batch %d of epoch 0 without a Retain", number), b.Release)
			}
			var kept, retained []*nwt.Batch
			for b, err := range l.Epoch(t.Context(), 0) {
				require.NoError(t, err)
				if n := len(kept); n > 0 && (n-1)%50 != 3 {
					gone(kept[n-1], n-1) // its memory may hold a later batch by now
				}
				if len(kept)%50 == 3 {
					b.Retain()
					retained = append(retained, b)
					b.Retain()
					b.Release()
				}
				kept = append(kept, b)
			}
			for i, b := range kept {
				if i%50 != 3 {
					gone(b, i)
				}
			}
			for i, b := range retained {
				require.Equal(t, 50*i+3, b.Number())
				require.EqualValues(t, b.Indices()[0], x.Of(b)[0])
				b.Release()
				gone(b, 50*i+3)
			}
		})
	}
}

func TestBatchesAreReleasedByOtherGoroutinesAtAnyMoment(t *testing.T) {
	var nothing = func(context.Context, int, *nwt.Sample) error { return nil }
	l := kit.NewLoader(t, kit.Loads(3000, nothing), nwt.WithBatchSize(3), nwt.WithWorkers(2), nwt.WithPrefetch(2))
	var wg sync.WaitGroup
	room := make(chan struct{}, 20)
	for b, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
		b.Retain()
		room <- struct{}{}
		wg.Go(func() {
			time.Sleep(time.Duration(b.Number()%7) * 10 * time.Microsecond)
			kit.Intact(t, b)
			b.Release()
			<-room
		})
	}
	wg.Wait()
	require.Zero(t, l.Stats().Retained)
	require.LessOrEqual(t, l.Stats().Slots, 3+1, "as many as without")
}

func TestForgettingToReleaseIsNoticed(t *testing.T) {
	for _, workers := range []int{0, 2} {
		l := kit.NewLoader(t, kit.EmptyDataset(300), nwt.WithBatchSize(1), nwt.WithWorkers(workers))
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
			require.Equal(t, i, b.Number(), "every batch before the error was delivered")
			b.Release()
		}
		require.Zero(t, l.Stats().Retained)
		_, err := kit.Epoch(t.Context(), l, 1)
		require.NoError(t, err)
	}
}

func TestAsManyBatchesAsTheBoundMayBeRetained(t *testing.T) {
	for _, workers := range []int{0, 1, 4} {
		l := kit.NewLoader(t, kit.EmptyDataset(300), nwt.WithBatchSize(1), nwt.WithWorkers(workers))
		var kept []*nwt.Batch
		for b, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
			if len(kept) < 64 {
				b.Retain()
				kept = append(kept, b)
			}
			if b.Number() == 100 {
				require.NoError(t, l.SetWorkers(0), "whose slots are given back")
			}
			if b.Number() == 200 {
				require.NoError(t, l.SetWorkers(4))
			}
		}
		for _, b := range kept {
			b.Release()
		}
		require.Zero(t, l.Stats().Retained)
	}
}

// As long as some slot is left the epoch goes on.
func TestAProgramAtTheBoundGoesOnWithFewerBatchesAhead(t *testing.T) {
	l := kit.NewLoader(t, kit.EmptyDataset(300), nwt.WithBatchSize(1), nwt.WithWorkers(2), nwt.WithPrefetch(8))
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
	require.Zero(t, l.Stats().Retained)
}

func TestAReleaseTooManyPanicsAndHarmsNobody(t *testing.T) {
	l := kit.NewLoader(t, kit.EmptyDataset(30), nwt.WithBatchSize(3), nwt.WithWorkers(1))
	tooMany := func(b *nwt.Batch) {
		require.PanicsWithValue(t, "nwt: Release of batch 2 of epoch 7 without a Retain", b.Release)
	}
	for range 100 {
		var kept *nwt.Batch
		for b, err := range l.Epoch(t.Context(), 7) {
			require.NoError(t, err)
			if b.Number() == 2 {
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
		require.Zero(t, l.Stats().Retained)
	}
}

func TestARetainedBatchSurvivesALoopThatPanics(t *testing.T) {
	l := kit.NewLoader(t, kit.Numbers(0, 30), nwt.WithBatchSize(3), nwt.WithWorkers(2))
	var kept *nwt.Batch
	require.PanicsWithError(t, "boom", func() {
		for b, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
			if b.Number() < 2 {
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
	require.Equal(t, 1, l.Stats().Retained)
	require.NoError(t, l.Close())
	require.Equal(t, []int64{6, 7, 8}, nwt.Values[int64](kept, 0))
	require.Equal(t, []int{6, 7, 8}, kept.Indices())
	kept.Release()
	require.Zero(t, l.Stats().Slots)
}

// Nothing but the loader orders the releases and what it does meanwhile: the race
// detector sees what it forgets.
func TestBatchesMayBeReleasedWhileMemoryIsRefusedAndAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dev := kit.NewFrugal(4, 3)
		var log kit.Journal
		l := kit.NewLoader(t, kit.Augmented(160), nwt.WithBatchSize(8), nwt.WithWorkers(1), nwt.WithPrefetch(8), nwt.WithDevice(dev), log.Option())
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
		require.Zero(t, l.Stats().Retained)
		require.Equal(t, 4, l.Stats().Slots)
		require.Equal(t, 1, strings.Count(log.String(), "loading less far ahead than there is room for"))
		for b, err := range l.Epoch(t.Context(), 1) {
			require.NoError(t, err)
			if release(b, time.Minute); b.Number() == 2 {
				break
			}
		}
		require.NoError(t, l.Close())
		releasing.Wait()
		require.Zero(t, l.Stats().Slots)
		require.Zero(t, l.Stats().DeviceBytes)
		require.Equal(t, [2]int32{4, 3}, [2]int32{dev.Slots.Load(), dev.Buffers.Load()})
	})
}

func TestTheSlotsThatStayAreThoseThatTheWorkersNeed(t *testing.T) {
	l := kit.NewLoader(t, kit.EmptyDataset(300), nwt.WithBatchSize(3), nwt.WithWorkers(4), nwt.WithPrefetch(6))
	var kept *nwt.Batch
	for b, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
		if b.Number() == 10 {
			b.Retain()
			kept = b
		}
	}
	require.Equal(t, 1, l.Stats().Retained)
	require.Equal(t, 8, l.Stats().Slots)
	for _, workers := range []int{2, 9} {
		require.NoError(t, l.SetWorkers(workers))
		require.Equal(t, 8, l.Stats().Slots, "as many batches are loaded ahead")
	}
	require.NoError(t, l.SetWorkers(0))
	require.Equal(t, 2, l.Stats().Slots)
	kept.Release()
	require.Equal(t, 1, l.Stats().Slots)
}

// requireSummed checks that what a batch holds is whole, and finished once.
func requireSummed(t *testing.T, b *nwt.Batch) {
	t.Helper()
	total := int64(0)
	for place, index := range b.Indices() {
		require.EqualValues(t, index, nwt.Values[int64](b, 0)[place])
		total += int64(index)
	}
	require.Equal(t, slices.Repeat([]int64{total}, b.Len()), nwt.Values[int64](b, 1))
}

// indexStream is a stream whose samples are summed's.
type indexStream struct{ kit.Shelves }

func (*indexStream) Fields() []nwt.Field { return kit.Summed(1).Fields() }
func (*indexStream) Load(_ context.Context, r *nwt.Record, dst *nwt.Sample) error {
	nwt.Values[int64](dst, 0)[0] = int64(binary.LittleEndian.Uint64(r.Data))
	return nil
}

func TestWithoutABudgetABatchWithABadSampleIsNotFinished(t *testing.T) {
	ds := nwt.NewDataset(16, kit.Summed(1).Fields(), func(_ context.Context, i int, _ *nwt.Sample) error {
		if i == 9 {
			return kit.ErrBad
		}
		return nil
	})
	for _, workers := range []int{0, 2} {
		var finished atomic.Int32
		l := kit.NewLoader(t, ds, nwt.WithBatchSize(8), nwt.WithWorkers(workers), nwt.WithBatchTransform(func(context.Context, *nwt.Batch) error {
			finished.Add(1)
			return nil
		}))
		_, err := kit.Epoch(t.Context(), l, 0)
		require.ErrorIs(t, err, kit.ErrBad)
		require.EqualValues(t, 1, finished.Load(), "the batch before it")
	}
}

func TestAFinishThatFailsEndsTheEpochInOrder(t *testing.T) {
	for name, fail := range map[string]func() error{
		"error": func() error { return kit.ErrBad },
		"panic": func() error { panic(kit.ErrBad) },
	} {
		for _, workers := range []int{0, 1, 4} {
			for _, budget := range []int{0, 100} {
				l := kit.NewLoader(t, kit.Summed(100), nwt.WithBatchSize(8), nwt.WithWorkers(workers), nwt.WithErrorBudget(budget),
					nwt.WithBatchTransform(func(ctx context.Context, b *nwt.Batch) error {
						if b.Number() == 5 && b.Epoch() == 0 {
							return fail()
						}
						return sum(ctx, b)
					}))
				batches, err := kit.Epoch(t.Context(), l, 0)
				var le *nwt.LoadError
				require.ErrorAs(t, err, &le)
				require.ErrorContains(t, err, "WithBatchTransform of batch 5: ")
				require.Equal(t, [2]int{-1, -1}, [2]int{le.Index, le.Position}, "of no sample")
				require.Len(t, batches, 5)
				if name != "error" {
					require.ErrorContains(t, err, "batch_test.go:")
					require.NotEmpty(t, le.Stack)
				}
				for b, err := range l.Epoch(t.Context(), 1) { // the loader can be used again
					require.NoError(t, err)
					requireSummed(t, b)
				}
			}
		}
	}
}

func TestABatchWithAHungSampleIsFinishedElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		ds := nwt.NewDataset(40, kit.Summed(1).Fields(), func(_ context.Context, i int, dst *nwt.Sample) error {
			if i == 13 {
				nwt.Values[int64](dst, 0)[0] = 1000
				kit.Hold(t, release)
			}
			nwt.Values[int64](dst, 0)[0], nwt.Values[int64](dst, 1)[0] = int64(i), -2
			return nil
		})
		finish := func(ctx context.Context, b *nwt.Batch) error {
			err := sum(ctx, b)
			if b.Number() == 1 {
				close(release) // the call writes before the batch is finished
				time.Sleep(time.Millisecond)
			}
			return err
		}
		l := kit.NewLoader(t, ds, nwt.WithBatchSize(8), nwt.WithWorkers(2), nwt.WithTimeout(time.Second), nwt.WithErrorBudget(1), nwt.WithBatchTransform(finish),
			nwt.WithLogger(slog.New(slog.DiscardHandler)))
		for b, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
			if b.Number() == 1 {
				require.Equal(t, 7, b.Len())
			}
			requireSummed(t, b)
		}
		require.NoError(t, l.Close())
	})
}

func TestTheRandomnessOfABatchIsItsPositions(t *testing.T) {
	draw := func(_ context.Context, b *nwt.Batch) error {
		nwt.Values[int64](b, 1)[0] = b.Rand().Int64()
		return nil
	}
	drawn := func(workers int, seed uint64, resumed int, rank, world int) (draws map[int]int64) {
		draws = map[int]int64{}
		l := kit.NewLoader(t, kit.Summed(96), nwt.WithSeed(seed), nwt.WithShuffle(1), nwt.WithBatchSize(8), nwt.WithWorkers(workers), nwt.WithBatchTransform(draw), nwt.WithRank(rank, world))
		for b, err := range l.Resume(t.Context(), nwt.State{Epoch: 1, Samples: resumed}) {
			require.NoError(t, err)
			draws[b.State().Samples] = nwt.Values[int64](b, 1)[0]
		}
		require.NoError(t, l.Close())
		return draws
	}
	alone := drawn(0, 7, 0, 0, 1)
	require.Len(t, alone, 12)
	require.Equal(t, int64(5823587326190775348), alone[5*8], "on every machine")
	require.Equal(t, alone, drawn(5, 7, 0, 0, 1))
	require.NotEqual(t, alone, drawn(0, 8, 0, 0, 1))
	rest := drawn(3, 7, 48, 0, 1)
	require.Len(t, rest, 6)
	for at, draw := range rest {
		require.Equal(t, alone[at], draw)
	}
	distinct := map[int64]bool{}
	for _, draws := range []map[int]int64{drawn(2, 7, 0, 0, 2), drawn(2, 7, 0, 1, 2)} {
		for _, draw := range draws {
			distinct[draw] = true
		}
	}
	require.Len(t, distinct, 12, "each rank's batches have their own")
}

func TestTheRandomnessOfABatchIsTheSameIfItsFirstRecordIsBad(t *testing.T) {
	draw := func(bad int64) (draws []int64) {
		s := &kit.Breaking{Shelves: kit.NewShelves(20, 20)}
		s.OnLoad = func(dst *nwt.Sample) {
			if int64(dst.Index()) == bad {
				panic(kit.ErrBoom)
			}
		}
		l := kit.NewLoader(t, nwt.Streamed(s), nwt.WithBatchSize(4), nwt.WithErrorBudget(1), nwt.WithLogger(kit.Quiet), nwt.WithRank(1, 2))
		for b, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
			draws = append(draws, b.Rand().Int64())
		}
		return draws
	}
	require.Equal(t, draw(-1), draw(1+2*4))
}

// The position is that of the first sample, over all ranks, for a stream too.
func TestTheRandomnessOfABatchIsThatOfItsFirstPosition(t *testing.T) {
	draws := func(ds nwt.Dataset, opts ...nwt.Option) map[int]int64 {
		all := map[int]int64{}
		for b, err := range kit.NewLoader(t, ds, append(opts, nwt.WithSeed(3))...).Epoch(t.Context(), 2) {
			require.NoError(t, err)
			all[b.Indices()[0]] = b.Rand().Int64()
			require.NotEqual(t, all[b.Indices()[0]], b.Rand().Int64(), "it goes on")
		}
		return all
	}
	want := draws(kit.Summed(40), nwt.WithBatchSize(1))
	require.Len(t, want, 40)
	for rank := range 2 {
		stream := draws(nwt.Streamed(&indexStream{kit.Shelves{Lengths: []int{20, 20}, FailAt: -1}}), nwt.WithBatchSize(4), nwt.WithRank(rank, 2))
		require.Len(t, stream, 5)
		for position, draw := range stream {
			require.Equal(t, want[position], draw)
		}
	}
}

// The end of a stream may be found when the samples of its last batch are all loaded.
func TestWhoFinishesTheLastBatchOfAStream(t *testing.T) {
	for _, workers := range []int{0, 1} {
		synctest.Test(t, func(t *testing.T) {
			caller, elsewhere := kit.Goroutine(), 0
			s := &kit.Breaking{Shelves: kit.NewShelves(6), OnNext: func(_, record int) error {
				if record == 6 {
					time.Sleep(time.Second)
				}
				return nil
			}}
			l := kit.NewLoader(t, nwt.Streamed(s), nwt.WithBatchSize(4), nwt.WithWorkers(workers), nwt.WithBatchTransform(func(_ context.Context, b *nwt.Batch) error {
				if kit.Goroutine() != caller {
					elsewhere++
				}
				if b.Number() == 1 {
					return kit.ErrTorn
				}
				return nil
			}))
			_, err := kit.Values(t, l, 0)
			var failed *nwt.LoadError
			require.ErrorAs(t, err, &failed)
			require.ErrorIs(t, failed, kit.ErrTorn)
			require.Zero(t, failed.Worker, "there is no other")
			if workers == 0 {
				require.Zero(t, elsewhere)
			}
			require.NoError(t, l.Close())
		})
	}
}

// tokens is n samples of which number i has i%5+1 tokens, all of them i+1, and i%3 × 2 points.
func tokens(n int, sized bool) nwt.Dataset {
	fields := []nwt.Field{
		{Name: "tokens", Type: nwt.Int32, Shape: []int{8}, RaggedDims: 1},
		{Name: "points", Type: nwt.Int32, Shape: []int{4, 3}, RaggedDims: 2},
	}
	ds := nwt.NewDataset(n, fields, func(_ context.Context, i int, dst *nwt.Sample) error {
		dst.SetLen(0, i%5+1)
		dst.SetShape(1, i%3, 2)
		for f := range 2 {
			for k := range nwt.Values[int32](dst, f) {
				nwt.Values[int32](dst, f)[k] = int32(i + 1)
			}
		}
		return nil
	})
	if sized {
		return nwt.Sized(ds, func(i int, sizes []int) { sizes[0], sizes[1], sizes[2] = i%5+1, i%3, 2 })
	}
	return ds
}

func TestALengthThatDoesNotFitAfterWithBatchTransformIsAnErrorThatNamesIt(t *testing.T) {
	for _, c := range []struct {
		sized  bool
		change func(b *nwt.Batch)
		want   string
	}{
		{false, func(b *nwt.Batch) { b.Lens(0, 0)[2] = 9 }, `WithBatchTransform of batch 3: sample 2: length 9 of field "tokens" must be 0 … 8`},
		{true, func(b *nwt.Batch) { b.Lens(0, 0)[2] = 6 }, `WithBatchTransform of batch 3: sample 2: length 6 of field "tokens" must be 0 … 5`},
		{false, func(b *nwt.Batch) { b.Lens(0, 0)[7] = -1 }, `sample 7: length -1 of field "tokens" must be 0 … 8`},
		{false, func(b *nwt.Batch) { b.Lens(1, 0)[1] = 5 }, `sample 1: length 5 of field "points" must be 0 … 4`},
		{false, func(b *nwt.Batch) { b.Lens(1, 1)[0] = -7 }, `sample 0: length -7 of field "points" must be 0 … 3`},
	} {
		for _, workers := range []int{0, 3} {
			l := kit.NewLoader(t, tokens(80, c.sized), nwt.WithBatchSize(8), nwt.WithWorkers(workers), nwt.WithBatchTransform(func(_ context.Context, b *nwt.Batch) error {
				if b.Number() == 3 {
					c.change(b)
				}
				return nil
			}))
			batches, err := kit.Epoch(t.Context(), l, 0)
			require.Len(t, batches, 3)
			var bad *nwt.LoadError
			require.ErrorAs(t, err, &bad)
			require.Equal(t, [2]int{-1, -1}, [2]int{bad.Index, bad.Position})
			require.ErrorContains(t, err, c.want)
		}
	}
}

func TestWhatLiesBehindALengthIsZeroAfterWithBatchTransform(t *testing.T) {
	for _, sized := range []bool{false, true} {
		l := kit.NewLoader(t, tokens(80, sized), nwt.WithBatchSize(8), nwt.WithBatchTransform(func(_ context.Context, b *nwt.Batch) error {
			for f := range 2 {
				for k := range nwt.Values[int32](b, f) {
					nwt.Values[int32](b, f)[k]++ // behind the ends too
				}
			}
			for place := range 4 {
				b.Lens(0, 0)[place], b.Lens(1, 0)[place], b.Lens(1, 1)[place] = 1, min(b.Lens(1, 0)[place], 1), 1
			}
			return nil
		}))
		for b, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
			for place, i := range b.Indices() {
				for f := range 2 {
					shape, values := b.Shape(f)[1:], nwt.Values[int32](b, f)
					width := 1
					if f == 1 {
						width = shape[1]
					}
					size := shape[0] * width
					for k, value := range values[place*size : (place+1)*size] {
						want := int32(i + 2)
						if k/width >= int(b.Lens(f, 0)[place]) || f == 1 && k%width >= int(b.Lens(1, 1)[place]) {
							want = 0
						}
						require.Equal(t, want, value, "sample %d, field %d, element %d", i, f, k)
					}
				}
			}
		}
	}
}

// sum writes the sum of a batch's indices to each of its samples.
func sum(_ context.Context, b *nwt.Batch) error {
	total := int64(0)
	for _, index := range nwt.Values[int64](b, 0) {
		total += index
	}
	sums := nwt.Values[int64](b, 1)
	for i := range sums {
		sums[i] = total
	}
	return nil
}
