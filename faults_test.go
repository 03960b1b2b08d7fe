package nwt_test

import (
	"bytes"
	"context"
	"errors"
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
)

// numbered is a dataset whose samples are their index, loaded by load before.
func numbered(n int, load func(ctx context.Context, i int, dst *nwt.Sample) error) nwt.Dataset {
	return nwt.NewDataset(n, []nwt.Field{{Name: "i", Type: nwt.Int64}}, func(ctx context.Context, i int, dst *nwt.Sample) error {
		if err := load(ctx, i, dst); err != nil {
			return err
		}
		nwt.Values[int64](dst, 0)[0] = int64(i)
		return nil
	})
}

func values(t *testing.T, l *nwt.Loader, epoch int) (all []int64, err error) {
	t.Helper()
	for b, e := range l.Epoch(t.Context(), epoch) {
		if e != nil {
			return all, e
		}
		all = append(all, nwt.Values[int64](b, 0)...)
	}
	return all, nil
}

func upTo(n int, without ...int64) (out []int64) {
	for i := range int64(n) {
		out = append(out, i)
		for _, w := range without {
			if w == i {
				out = out[:len(out)-1]
			}
		}
	}
	return out
}

func TestASampleThatHangsIsNamedAndTheEpochGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var loose atomic.Int32
		ds := numbered(40, func(_ context.Context, i int, dst *nwt.Sample) error {
			if i == 13 && dst.Epoch() == 0 {
				loose.Add(1)
				<-release
				nwt.Values[int64](dst, 0)[0] = -1
				loose.Add(-1)
			}
			return nil
		})
		l := newLoader(t, ds, nwt.WithBatchSize(8), nwt.WithWorkers(2), nwt.WithTimeout(time.Second), nwt.WithErrorBudget(1))
		got, err := values(t, l, 0)
		require.NoError(t, err)
		require.Equal(t, upTo(40, 13), got)
		require.Len(t, l.BadSamples(), 1)
		require.Equal(t, 13, l.BadSamples()[0].Index)
		require.ErrorIs(t, l.BadSamples()[0], context.DeadlineExceeded)
		got, err = values(t, l, 1)
		require.NoError(t, err)
		require.Equal(t, upTo(40), got)
		require.NoError(t, l.Close()) // although the call still hangs
		require.EqualValues(t, 1, loose.Load())
		close(release)
		synctest.Wait()
		require.Zero(t, loose.Load())
	})
}

func TestWithoutABudgetAHungSampleEndsTheEpochInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ds := numbered(40, func(ctx context.Context, i int, dst *nwt.Sample) error {
			if i == 20 {
				<-ctx.Done() // a Load that minds its context ends with it
				return ctx.Err()
			}
			return nil
		})
		l := newLoader(t, ds, nwt.WithBatchSize(8), nwt.WithWorkers(3), nwt.WithTimeout(time.Second))
		for range 3 {
			got, err := values(t, l, 0)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.ErrorContains(t, err, "sample 20")
			require.Equal(t, upTo(16), got)
		}
		require.NoError(t, l.Close())
	})
}

type busyError struct{}

func (busyError) Error() string   { return "busy" }
func (busyError) Temporary() bool { return true }

func TestWhatCallsItselfTemporaryIsLoadedAgain(t *testing.T) {
	for _, workers := range []int{0, 2} {
		var tries sync.Map
		ds := numbered(20, func(_ context.Context, i int, dst *nwt.Sample) error {
			n, _ := tries.LoadOrStore(i, new(atomic.Int32))
			if i%5 == 0 && n.(*atomic.Int32).Add(1) <= 2 {
				return busyError{}
			}
			return nil
		})
		l := newLoader(t, ds, nwt.WithBatchSize(4), nwt.WithWorkers(workers), nwt.WithRetry(2, time.Microsecond))
		got, err := values(t, l, 0)
		require.NoError(t, err)
		require.Equal(t, upTo(20), got)
	}
}

func TestTheWaitBeforeARepetitionDoublesEachTime(t *testing.T) {
	for _, workers := range []int{0, 2} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			var loaded, opened []time.Duration
			ds := numbered(1, func(context.Context, int, *nwt.Sample) error {
				loaded = append(loaded, time.Since(began))
				return busyError{}
			})
			s := &breaking{shelves: newShelves(1), onOpen: func(int) error {
				opened = append(opened, time.Since(began))
				return busyError{}
			}}
			for _, ds := range []nwt.Dataset{ds, nwt.Streamed(s)} {
				began = time.Now()
				_, err := epoch(t.Context(), newLoader(t, ds, nwt.WithWorkers(workers), nwt.WithRetry(4, time.Second)), 0)
				require.ErrorIs(t, err, busyError{})
			}
			at := []time.Duration{0, time.Second, 3 * time.Second, 7 * time.Second, 15 * time.Second}
			require.Equal(t, at, loaded)
			require.Equal(t, at, opened)
		})
	}
}

// together is a dataset that loads many samples at once.
type together struct {
	nwt.Dataset
	calls, samples atomic.Int64
	fail           func(index int) error
	look           func(dst []*nwt.Sample)
}

func (d *together) LoadBatch(ctx context.Context, indices []int, dst []*nwt.Sample) error {
	d.calls.Add(1)
	if d.look != nil {
		d.look(dst)
	}
	for i, index := range indices {
		if d.fail != nil && d.fail(index) != nil {
			return d.fail(index)
		}
		d.samples.Add(1)
		nwt.Values[int64](dst[i], 0)[0] = int64(index)
	}
	return nil
}

func TestABatchDatasetIsGivenManySamplesAtOnce(t *testing.T) {
	for _, workers := range []int{0, 1, 4} {
		ds := &together{Dataset: numbered(256, func(context.Context, int, *nwt.Sample) error { return errors.New("one by one") })}
		l := newLoader(t, ds, nwt.WithBatchSize(32), nwt.WithWorkers(workers))
		got, err := values(t, l, 0)
		require.NoError(t, err)
		require.Equal(t, upTo(256), got)
		require.EqualValues(t, 256, ds.samples.Load())
		require.LessOrEqual(t, ds.calls.Load(), int64(256/16))
	}
}

func TestOnlyTheBadSamplesOfABatchDatasetAreBad(t *testing.T) {
	bad := errors.New("bad")
	fail := func(i int) error {
		if i == 7 || i == 90 {
			return bad
		}
		return nil
	}
	ds := &together{Dataset: numbered(100, func(_ context.Context, i int, _ *nwt.Sample) error { return fail(i) }), fail: fail}
	l := newLoader(t, ds, nwt.WithBatchSize(32), nwt.WithWorkers(2), nwt.WithErrorBudget(2))
	got, err := values(t, l, 0)
	require.NoError(t, err)
	require.Equal(t, upTo(100, 7, 90), got)
}

func TestALoadBatchThatFailsWhereLoadDoesNotIsLoggedOnce(t *testing.T) {
	for want, fail := range map[string]func(dst []*nwt.Sample){
		"panic: runtime error: index out of range": func(dst []*nwt.Sample) { _ = dst[64] },
	} {
		for _, workers := range []int{0, 2} {
			var log bytes.Buffer
			ds := &together{Dataset: numbered(100, func(context.Context, int, *nwt.Sample) error { return nil }), look: fail}
			l := newLoader(t, ds, nwt.WithBatchSize(10), nwt.WithWorkers(workers), nwt.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
			got, err := values(t, l, 0)
			require.NoError(t, err)
			require.Equal(t, upTo(100), got)
			require.Equal(t, 1, strings.Count(log.String(), "LoadBatch failed"))
			require.Contains(t, log.String(), want)
		}
	}
}

func TestASampleThatStaysTemporarilyBadIsBad(t *testing.T) {
	for _, workers := range []int{0, 2} {
		var tries atomic.Int32
		ds := numbered(20, func(_ context.Context, i int, _ *nwt.Sample) error {
			if i == 7 {
				tries.Add(1)
				return busyError{}
			}
			return nil
		})
		l := newLoader(t, ds, nwt.WithBatchSize(4), nwt.WithWorkers(workers), nwt.WithRetry(2, time.Microsecond), nwt.WithErrorBudget(1), quietLog)
		got, err := values(t, l, 0)
		require.NoError(t, err)
		require.Equal(t, upTo(20, 7), got)
		require.EqualValues(t, 1+2, tries.Load())
		require.ErrorIs(t, l.BadSamples()[0], busyError{})
	}
}

// A repetition begins as the first attempt did.
func TestASampleThatIsLoadedAgainIsTheSameAsAtOnce(t *testing.T) {
	drawn := func(fails bool) (all []float64) {
		first := true
		ds := &pages{n: 4, load: func(_ context.Context, i int, dst *nwt.Sample) error {
			draw := dst.Rand().Float64()
			if i == 2 && fails && first {
				first = false
				dst.SetLen(1, 3)
				return busyError{}
			}
			require.Equal(t, -1, dst.Len(1))
			all = append(all, draw)
			return nil
		}}
		l := newLoader(t, oneByOne{ds}, nwt.WithWorkers(0), nwt.WithRetry(1, time.Microsecond))
		requirePages(t, l, 0)
		return all
	}
	require.Equal(t, drawn(false), drawn(true))
}

// oneByOne hides LoadBatch.
type oneByOne struct{ nwt.Dataset }

func TestALoadBatchThatForgetsALengthIsNoticedInEveryEpoch(t *testing.T) {
	ds := inOneCall{&pages{n: 8}, func(_ []int, dst []*nwt.Sample) error {
		for _, s := range dst {
			if s.Epoch() == 0 {
				s.SetLen(1, 2)
			}
		}
		return nil
	}}
	l := newLoader(t, ds, nwt.WithBatchSize(4), nwt.WithWorkers(0))
	_, err := epoch(t.Context(), l, 0)
	require.NoError(t, err)
	_, err = epoch(t.Context(), l, 1)
	require.ErrorContains(t, err, "did not call SetLen(1, n)")
}

func TestScratchIsMadeAnewAfterAPanicInLoadBatch(t *testing.T) {
	var d decoders
	var used []*decoder
	ds := inOneCall{d.decoded(8, nil), nil}
	ds.loadBatch = func(_ []int, dst []*nwt.Sample) error {
		dec, err := nwt.Scratch(dst[0], d.create)
		used = append(used, dec)
		if len(used) == 1 {
			panic(errBoom)
		}
		return err
	}
	l := newLoader(t, ds, nwt.WithBatchSize(4), nwt.WithWorkers(0), quietLog)
	_, err := epoch(t.Context(), l, 0)
	require.NoError(t, err)
	require.True(t, used[0].closed.Load())
	require.NotSame(t, used[0], used[1])
	require.NoError(t, l.Close())
	require.Zero(t, d.open.Load())
}

// inOneCall is a dataset with a LoadBatch.
type inOneCall struct {
	nwt.Dataset
	loadBatch func(indices []int, dst []*nwt.Sample) error
}

func (d inOneCall) LoadBatch(_ context.Context, indices []int, dst []*nwt.Sample) error {
	return d.loadBatch(indices, dst)
}

func TestALoadBatchThatSucceedsAllocatesNothing(t *testing.T) {
	requireNoAllocations(t, emptyBatches{emptyDataset(1 << 16)}, nwt.WithBatchSize(64))
}

// Whatever a dataset is made of, the bad samples of its parts are left out, and no others.
func TestTheBadSamplesOfAPartAreThoseOfTheWhole(t *testing.T) {
	part := func(bad ...int) nwt.Dataset {
		load := func(_ context.Context, i int, _ *nwt.Sample) error {
			if slices.Contains(bad, i) {
				return errBad
			}
			return nil
		}
		return &pages{n: 20, load: load, loadBatch: func(ctx context.Context, indices []int, dst []*nwt.Sample) error {
			for k, i := range indices {
				if err := load(ctx, i, dst[k]); err != nil {
					return err
				}
			}
			return nil
		}}
	}
	must := func(ds nwt.Dataset, err error) nwt.Dataset {
		require.NoError(t, err)
		return ds
	}
	copied := func(ds nwt.Dataset) nwt.Dataset {
		return nwt.Map(ds, ds.Fields(), func(_ context.Context, src, dst *nwt.Sample) error {
			i := int(nwt.Values[int64](src, 0)[0])
			writePage(i, dst)
			if i == 9 {
				return errBad
			}
			return nil
		})
	}
	split := func(ds nwt.Dataset) nwt.Dataset {
		parts, err := nwt.Split(ds, 3, 0.5, 0.5)
		require.NoError(t, err)
		return must(nwt.Concat(parts...))
	}
	for name, c := range map[string]struct {
		ds   nwt.Dataset
		want []int64 // the values of the good ones, sorted
	}{
		"Subset":           {must(nwt.Subset(part(3, 7), []int{7, 1, 3, 2, 1})), []int64{1, 1, 2}},
		"Map of Map":       {copied(copied(part(3, 7))), upTo(20, 3, 7, 9)},
		"Concat":           {must(nwt.Concat(part(3, 7), oneByOne{part(4)}, part(5))), sorted(upTo(20, 3, 7), upTo(20, 4), upTo(20, 5))},
		"Concat of Map":    {must(nwt.Concat(part(3, 7), copied(part(5)))), sorted(upTo(20, 3, 7), upTo(20, 5, 9))},
		"Split and Concat": {split(part(3, 7)), upTo(20, 3, 7)},
		"Zip":              {must(nwt.Zip(part(3), nwt.Map(part(5), scalar, func(context.Context, *nwt.Sample, *nwt.Sample) error { return nil }))), upTo(20, 3, 5)},
	} {
		for _, workers := range []int{0, 3} {
			l := newLoader(t, c.ds, nwt.WithBatchSize(16), nwt.WithWorkers(workers), nwt.WithShuffle(4), nwt.WithErrorBudget(20), quietLog)
			var got []int64
			for b, err := range l.Epoch(t.Context(), 0) {
				require.NoError(t, err)
				for k, v := range nwt.Values[int64](b, 0) {
					got = append(got, v)
					require.EqualValues(t, v%4, b.Lens(1)[k])
				}
			}
			require.Equal(t, c.want, sorted(got), name)
		}
	}
}

func sorted(all ...[]int64) []int64 { return slices.Sorted(slices.Values(slices.Concat(all...))) }
