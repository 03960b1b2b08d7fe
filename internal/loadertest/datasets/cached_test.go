package datasets_test

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/loadertest/kit"
	"github.com/nwt-go/nwt/internal/permute"
)

// counted returns a dataset of ragged samples that says how often each was loaded.
// Sample i is i%9 elements of value i, then a random number.
func counted(n int) (nwt.Dataset, []atomic.Int32) {
	loads := make([]atomic.Int32, n)
	fields := []nwt.Field{
		{Name: "tokens", Type: nwt.Int32, Shape: []int{8, 3}, RaggedDims: 1},
		{Name: "noise", Type: nwt.Float64},
	}
	return nwt.NewDataset(n, fields, func(_ context.Context, i int, dst *nwt.Sample) error {
		loads[i].Add(1)
		dst.SetLen(0, i%9)
		for k := range nwt.Values[int32](dst, 0) {
			nwt.Values[int32](dst, 0)[k] = int32(i) // past the length too: nobody may see that
		}
		nwt.Values[float64](dst, 1)[0] = dst.Rand().Float64()
		return nil
	}), loads
}

// countedBytes returns what a cache needs for the first n of counted's samples.
func countedBytes(n int) (size int64) {
	for i := range n {
		size += 8 + 4 + int64(i%9)*12 + 8
	}
	return size
}

// requireCounted checks an epoch of counted's samples.
func requireCounted(t testing.TB, l *nwt.Loader, epoch int) {
	t.Helper()
	n := 0
	for b, err := range l.Epoch(t.Context(), epoch) {
		require.NoError(t, err)
		for p, i := range b.Indices() {
			n++
			require.EqualValues(t, i%9, b.Lens(0, 0)[p])
			want := append(slices.Repeat([]int32{int32(i)}, i%9*3), make([]int32, (8-i%9)*3)...)
			require.Equal(t, want, nwt.Values[int32](b, 0)[p*24:(p+1)*24], "sample %d", i)
		}
	}
	require.NotZero(t, n)
}

func counts(loads []atomic.Int32) (all []int) {
	for i := range loads {
		all = append(all, int(loads[i].Load()))
	}
	return all
}

func TestACachedSampleIsLoadedOnceWhoeverAsks(t *testing.T) {
	const n = 1300 // more than the blocks that there may be
	source, loads := counted(n)
	ds := nwt.Cached(source, 1<<20)
	var all sync.WaitGroup
	for seed := range uint64(3) {
		l := kit.NewLoader(t, ds, nwt.WithBatchSize(7), nwt.WithWorkers(16), nwt.WithShuffle(seed))
		all.Go(func() {
			for epoch := range 4 {
				requireCounted(t, l, epoch)
			}
		})
	}
	all.Wait()
	require.Equal(t, slices.Repeat([]int{1}, n), counts(loads))
	require.NoError(t, ds.Close())
}

func TestWhatDoesNotFitIsLoadedAnew(t *testing.T) {
	source, loads := counted(200)
	ds := nwt.Cached(source, 200*8+countedBytes(80)-80*8)
	l := kit.NewLoader(t, ds, nwt.WithWorkers(1))
	for epoch := range 3 {
		requireCounted(t, l, epoch)
	}
	require.Equal(t, append(slices.Repeat([]int{1}, 80), slices.Repeat([]int{3}, 120)...), counts(loads))
}

func TestACacheTooSmallForItsBookkeepingStillLoads(t *testing.T) {
	source, loads := counted(50)
	ds := nwt.Cached(source, 1)
	l := kit.NewLoader(t, ds, nwt.WithWorkers(4))
	requireCounted(t, l, 0)
	requireCounted(t, l, 1)
	require.Equal(t, slices.Repeat([]int{2}, 50), counts(loads))
}

func TestACacheTooSmallForAnySampleSaysSoOnce(t *testing.T) {
	for maxBytes, lines := range map[int64]int{1: 1, 8: 1, 15: 1, 16: 0, 1 << 20: 0} { // a number takes 8 bytes, and so does its bookkeeping
		var log kit.Journal
		before := slog.Default()
		slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
		nwt.Cached(kit.Numbers(0, 50), maxBytes)
		slog.SetDefault(before)
		require.Equal(t, lines, strings.Count(log.String(), "nwt: Cached keeps nothing: maxBytes is less than a sample takes"), "%d: %s", maxBytes, &log)
	}
}

func TestAugmentationOverACacheDiffersByEpoch(t *testing.T) {
	source, loads := counted(40)
	noise := []nwt.Field{{Name: "kept", Type: nwt.Float64}, {Name: "drawn", Type: nwt.Float64}}
	ds := nwt.Map(nwt.Cached(source, 1<<20), noise, func(_ context.Context, src, dst *nwt.Sample) error {
		nwt.Values[float64](dst, 0)[0] = nwt.Values[float64](src, 1)[0]
		nwt.Values[float64](dst, 1)[0] = src.Rand().Float64()
		return nil
	})
	l := kit.NewLoader(t, ds, nwt.WithWorkers(3), nwt.WithBatchSize(40), nwt.WithSeed(5))
	var kept, drawn [][]float64
	for _, epoch := range []int{0, 1, 0} {
		for b, err := range l.Epoch(t.Context(), epoch) {
			require.NoError(t, err)
			kept = append(kept, slices.Clone(nwt.Values[float64](b, 0)))
			drawn = append(drawn, slices.Clone(nwt.Values[float64](b, 1)))
		}
	}
	require.Equal(t, kept[0], kept[1])
	require.NotEqual(t, drawn[0], drawn[1])
	require.Equal(t, drawn[0], drawn[2], "a hit must draw as many numbers as a miss")
	require.Equal(t, slices.Repeat([]int{1}, 40), counts(loads))
}

func TestAFailedLoadIsNotKept(t *testing.T) {
	var tries atomic.Int32
	ds := nwt.Cached(nwt.NewDataset(1, kit.Scalar, func(_ context.Context, _ int, dst *nwt.Sample) error {
		switch tries.Add(1) {
		case 1:
			return errors.New("busy")
		case 2:
			panic("a bad day")
		}
		nwt.Values[float32](dst, 0)[0] = 7
		return nil
	}), 1<<20)
	for _, want := range []string{"busy", "a bad day"} {
		_, err := nwt.LoadSample(t.Context(), ds, 0)
		require.ErrorContains(t, err, want)
		var le *nwt.LoadError
		require.ErrorAs(t, err, &le)
	}
	for range 3 {
		s, err := nwt.LoadSample(t.Context(), ds, 0)
		require.NoError(t, err)
		require.Equal(t, []float32{7}, nwt.Values[float32](s, 0))
	}
	require.EqualValues(t, 3, tries.Load())
}

func TestABadSampleThatDoesNotFitIsBad(t *testing.T) {
	ds := nwt.Cached(kit.Numbered(9, func(context.Context, int, *nwt.Sample) error { return kit.ErrBad }), 1)
	_, err := nwt.LoadSample(t.Context(), ds, 3)
	require.ErrorIs(t, err, kit.ErrBad)
}

func TestACacheThatCannotBeUsedLoadsNothing(t *testing.T) {
	source, loads := counted(3)
	require.ErrorAs(t, nwt.Cached(source, 0).Load(t.Context(), 1, nil), new(*nwt.ArgumentError))
	require.ErrorAs(t, nwt.Cached(nil, 1).Load(t.Context(), 1, nil), new(*nwt.ArgumentError))
	require.Equal(t, []int{0, 0, 0}, counts(loads))
}

func TestHalfOfACacheIsForBookkeeping(t *testing.T) {
	loads := make([]atomic.Int32, 40)
	ds := nwt.Cached(kit.Numbered(40, func(_ context.Context, i int, _ *nwt.Sample) error { loads[i].Add(1); return nil }), 160)
	for range 2 {
		for i := range loads {
			_, err := nwt.LoadSample(t.Context(), ds, i)
			require.NoError(t, err)
		}
	}
	require.Equal(t, append(slices.Repeat([]int{1}, 10), slices.Repeat([]int{2}, 30)...), counts(loads))
}

func TestACacheClosedWhileASampleLoadsDeliversIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, release, loads := held()
		ds := nwt.Cached(source, 1<<20)
		go func() {
			synctest.Wait()
			assert.NoError(t, ds.Close())
			close(release)
		}()
		for n := range int32(2) {
			s, err := nwt.LoadSample(t.Context(), ds, 0)
			require.NoError(t, err)
			require.Equal(t, []float32{5}, nwt.Values[float32](s, 0))
			require.Equal(t, n+1, loads.Load(), "after Close, it is loaded anew")
		}
		l := kit.NewLoader(t, ds)
		require.Zero(t, l.Stats().DatasetBytes)
		require.NoError(t, l.Close())
	})
}

func TestSamplesThatNoLongerFitOnceTheyAreLoadedHarmNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 64
		release := make(chan struct{})
		loads := make([]atomic.Int32, 3)
		fields := []nwt.Field{{Name: "bytes", Type: nwt.Uint8, Shape: []int{size}}}
		ds := nwt.Cached(nwt.NewDataset(3, fields, func(_ context.Context, i int, dst *nwt.Sample) error {
			if loads[i].Add(1) == 1 && i > 0 {
				kit.Hold(t, release)
			}
			copy(dst.Bytes(0), slices.Repeat([]byte{byte(i)}, size))
			return nil
		}), 3*8+size) // room for one
		check := func(i int) {
			s, err := nwt.LoadSample(t.Context(), ds, i)
			require.NoError(t, err)
			require.Equal(t, slices.Repeat([]byte{byte(i)}, size), s.Bytes(0), "sample %d", i)
		}
		check(0)
		go check(1)
		go check(2)
		synctest.Wait()
		close(release)
		synctest.Wait()
		for i := range 3 {
			check(i)
		}
		require.Equal(t, []int{1, 2, 2}, counts(loads))
	})
}

// The memory comes in blocks of 32 MiB.
func TestLargeSamplesOfACacheAreKeptApart(t *testing.T) {
	const n = 40
	loads := make([]atomic.Int32, n)
	large := []nwt.Field{{Name: "bytes", Type: nwt.Uint8, Shape: []int{2 << 20}}}
	ds := nwt.Cached(nwt.NewDataset(n, large, func(_ context.Context, i int, dst *nwt.Sample) error {
		loads[i].Add(1)
		mem := dst.Bytes(0)
		mem[0], mem[len(mem)-1] = byte(i), byte(i)
		return nil
	}), 1<<30)
	l := kit.NewLoader(t, ds, nwt.WithBatchSize(1), nwt.WithWorkers(2))
	for epoch := range 2 {
		for b, err := range l.Epoch(t.Context(), epoch) {
			require.NoError(t, err)
			mem := b.Bytes(0)
			require.EqualValues(t, b.Number(), mem[0])
			require.EqualValues(t, b.Number(), mem[len(mem)-1])
		}
	}
	require.Equal(t, slices.Repeat([]int{1}, n), counts(loads))
	require.NoError(t, ds.Close())
}

func TestABadSampleOfACacheIsNamedByTheIndexAndEpochOfTheLoader(t *testing.T) {
	source := nwt.NewDataset(10, kit.Scalar, func(_ context.Context, i int, _ *nwt.Sample) error {
		if i == 3 {
			panic("rotten")
		}
		return nil
	})
	sub, err := nwt.Subset(nwt.Cached(source, 1<<20), []int{1, 2, 3})
	require.NoError(t, err)
	l := kit.NewLoader(t, sub, nwt.WithWorkers(2))
	var le *nwt.LoadError
	for _, err = range l.Epoch(t.Context(), 6) {
	}
	require.ErrorAs(t, err, &le)
	require.Equal(t, 2, le.Index)
	require.Equal(t, 6, le.Epoch)
	require.NotNil(t, le.Stack)
}

// held returns a dataset of one sample whose first Load waits for release, or fails
// when its context ends.
func held() (ds nwt.Dataset, release chan struct{}, loads *atomic.Int32) {
	release, loads = make(chan struct{}), new(atomic.Int32)
	return nwt.NewDataset(1, kit.Scalar, func(ctx context.Context, _ int, dst *nwt.Sample) error {
		if loads.Add(1) == 1 {
			select {
			case <-release:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		nwt.Values[float32](dst, 0)[0] = 5
		return nil
	}), release, loads
}

func TestWaitingForAnothersLoadEndsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, release, loads := held()
		ds := nwt.Cached(source, 1<<20)
		go nwt.LoadSample(t.Context(), ds, 0)
		synctest.Wait()
		const waiting = 8
		var cancel [waiting]context.CancelFunc
		var ended [waiting]bool
		var errs [waiting]error
		for i := range waiting {
			var ctx context.Context
			ctx, cancel[i] = context.WithCancel(t.Context())
			defer cancel[i]()
			go func() {
				_, errs[i] = nwt.LoadSample(ctx, ds, 0)
				ended[i] = true
			}()
		}
		var want [waiting]bool
		for _, i := range []int{3, 0, 7, 4} {
			cancel[i]()
			synctest.Wait()
			want[i] = true
			require.Equal(t, want, ended, "the others still wait")
			require.ErrorIs(t, errs[i], context.Canceled)
		}
		close(release)
		synctest.Wait()
		for i := range waiting {
			require.True(t, ended[i])
			if !want[i] {
				require.NoError(t, errs[i])
			}
		}
		require.EqualValues(t, 1, loads.Load())
	})
}

func TestOfThoseWhoWaitForALoadThatFailsOneTriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, _, loads := held()
		ds := nwt.Cached(source, 1<<20)
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			_, err := nwt.LoadSample(ctx, ds, 0)
			assert.ErrorIs(t, err, context.Canceled)
		}()
		synctest.Wait()
		for range 8 {
			go func() {
				s, err := nwt.LoadSample(t.Context(), ds, 0)
				if assert.NoError(t, err) {
					assert.Equal(t, []float32{5}, nwt.Values[float32](s, 0))
				}
			}()
		}
		synctest.Wait()
		cancel()
		synctest.Wait()
		require.EqualValues(t, 2, loads.Load())
	})
}

// Nothing but the cache orders what these do: the race detector sees what it forgets.
func TestACacheMayBeAskedAndClosedWhileALoadFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		after := func(d time.Duration, do func()) func() { return func() { time.Sleep(d); do() } }
		fails := true
		source := kit.Numbered(1, func(context.Context, int, *nwt.Sample) error {
			time.Sleep(time.Second)
			if fails {
				fails = false
				return kit.ErrBad
			}
			return nil
		})
		ds := nwt.Cached(source, 1<<20)
		l := kit.NewLoader(t, ds)
		load := func(want error) func() {
			return func() {
				_, err := nwt.LoadSample(t.Context(), ds, 0)
				assert.ErrorIs(t, err, want)
			}
		}
		var asking sync.WaitGroup
		asking.Go(load(kit.ErrBad))
		asking.Go(after(100*time.Millisecond, load(nil)))
		asking.Go(after(200*time.Millisecond, load(nil)))
		asking.Go(after(1500*time.Millisecond, func() { assert.EqualValues(t, 8, l.Stats().DatasetBytes, "the bookkeeping") }))
		asking.Wait()
		require.EqualValues(t, 8+8, l.Stats().DatasetBytes)

		fails, ds = true, nwt.Cached(source, 1<<20)
		asking.Go(load(kit.ErrBad))
		asking.Go(after(500*time.Millisecond, func() { assert.NoError(t, ds.Close()) }))
		asking.Wait()
		load(nil)()
	})
}

// Calls that were given up keep their numbers, so there are more than workers.
func TestACacheServesWorkersOfAnyNumber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const workers = 1024
		release := make(chan struct{})
		var beyond atomic.Int32
		ds := nwt.Cached(kit.Numbered(4*workers, func(_ context.Context, i int, dst *nwt.Sample) error {
			if dst.Worker() >= workers {
				beyond.Add(1)
			}
			if i == 0 {
				kit.Hold(t, release)
			} else {
				time.Sleep(time.Millisecond)
			}
			return nil
		}), 1<<20)
		l := kit.NewLoader(t, ds, nwt.WithBatchSize(workers), nwt.WithWorkers(workers), nwt.WithPrefetch(1), nwt.WithTimeout(time.Second), nwt.WithErrorBudget(1), kit.Silent)
		got, err := kit.Values(t, l, 0)
		require.NoError(t, err)
		require.Len(t, got, 4*workers-1)
		require.Positive(t, beyond.Load())
		close(release)
		synctest.Wait()
		require.NoError(t, l.Close())
	})
}

func TestACacheLeavesTheRandomnessOfWhoAsksItAlone(t *testing.T) {
	source, _ := counted(1)
	kept := nwt.Cached(source, 1<<20)
	asking := nwt.NewDataset(1, source.Fields(), func(ctx context.Context, i int, dst *nwt.Sample) error {
		first := dst.Rand().Float64()
		if err := kept.Load(ctx, i, dst); err != nil {
			return err
		}
		nwt.Values[float64](dst, 1)[0] = first - dst.Rand().Float64()
		return nil
	})
	var differences []float64
	l := kit.NewLoader(t, asking, nwt.WithSeed(7))
	for range 2 { // a miss, then a hit
		for b, err := range l.Epoch(t.Context(), 3) {
			require.NoError(t, err)
			differences = append(differences, nwt.Values[float64](b, 1)...)
		}
	}
	require.Len(t, differences, 2)
	require.Equal(t, differences[0], differences[1])
	require.NotZero(t, differences[0])
}

func TestAClosedCacheLoadsAnew(t *testing.T) {
	source, loads := counted(100)
	ds := nwt.Cached(source, 1<<20)
	l := kit.NewLoader(t, ds, nwt.WithWorkers(8), nwt.WithBatchSize(5))
	requireCounted(t, l, 0)
	var closing sync.WaitGroup
	for epoch := range 20 {
		if epoch == 3 {
			closing.Go(func() { require.NoError(t, ds.Close()) })
		}
		requireCounted(t, l, epoch)
	}
	closing.Wait()
	requireCounted(t, l, 20)
	require.NoError(t, ds.Close())
	for i := range loads {
		require.Greater(t, loads[i].Load(), int32(1))
	}
}

// Bookkeeping for all of them would take more memory than there is.
func TestACacheOfMoreSamplesThanMemoryHoldsStillLoads(t *testing.T) {
	for _, n := range []int{permute.MaxLen, permute.MaxLen >> 20} {
		for _, maxBytes := range []int64{1 << 20, 1 << 40, math.MaxInt64} {
			var loads atomic.Int32
			ds := nwt.Cached(kit.Numbered(n, func(context.Context, int, *nwt.Sample) error { loads.Add(1); return nil }), maxBytes)
			for range 2 {
				for _, i := range []int{0, 7, n / 2, n - 1} {
					s, err := nwt.LoadSample(t.Context(), ds, i)
					require.NoError(t, err)
					require.EqualValues(t, i, nwt.Values[int64](s, 0)[0])
				}
			}
			require.LessOrEqual(t, loads.Load(), int32(6), "the first ones are kept")
			require.NoError(t, ds.Close())
		}
	}
}

// mirrored loads the samples of a dataset in reverse, and uses the sample before and
// after that.
type mirrored struct{ nwt.Dataset }

func (m mirrored) Load(ctx context.Context, i int, dst *nwt.Sample) error {
	before := dst.Rand().Int64N(1000)
	if err := m.Dataset.Load(ctx, m.Len()-1-i, dst); err != nil {
		return err
	}
	nwt.Values[int64](dst, 0)[0] += 1_000_000*int64(dst.Position()) + 1000*before + dst.Rand().Int64N(1000)
	return nil
}

// Whether the inner cache has a sample or loads it, the outer sample stays what it is.
func TestACacheWithinACacheLeavesTheSampleItsPositionAndItsRand(t *testing.T) {
	one := func(ds nwt.Dataset, i int) int64 {
		s, err := nwt.LoadSample(t.Context(), ds, i)
		require.NoError(t, err)
		return nwt.Values[int64](s, 0)[0]
	}
	drawn := func(bound int64) nwt.Dataset {
		return nwt.NewDataset(10, []nwt.Field{{Name: "i", Type: nwt.Int64}}, func(_ context.Context, _ int, dst *nwt.Sample) error {
			nwt.Values[int64](dst, 0)[0] = 0
			if bound > 0 {
				nwt.Values[int64](dst, 0)[0] = 1_000_000_000 * dst.Rand().Int64N(bound)
			}
			return nil
		})
	}
	source, zeros := drawn(1000), drawn(0)
	inner := nwt.Cached(source, 1<<20)
	for round := range 2 { // the second time, the inner cache has them
		outer := nwt.Cached(mirrored{inner}, 1<<20)
		for i := range 10 {
			require.Equal(t, one(source, 9-i)+one(mirrored{zeros}, i), one(outer, i), "round %d, sample %d", round, i)
		}
	}
}

// What is drawn beneath a cache or a file is drawn once, for all epochs.
func TestWhatDependsOnRandOrTheEpochBeneathACacheIsToldOnce(t *testing.T) {
	identity := func(_ context.Context, src, dst *nwt.Sample) error {
		copy(nwt.Values[int64](dst, 0), nwt.Values[int64](src, 0))
		return nil
	}
	draws := func(_ context.Context, _, dst *nwt.Sample) error {
		dst.Rand().Uint64()
		return nil
	}
	byEpoch := nwt.Map(kit.Summed(60), kit.Summed(1).Fields(), func(_ context.Context, src, dst *nwt.Sample) error {
		nwt.Values[int64](dst, 0)[0] = int64(dst.Epoch())
		return nil
	})
	plain := nwt.Map(kit.Augmented(60), kit.Augmented(1).Fields(), identity)
	quiet := nwt.WritesAll(kit.Summed(60))
	quietly := func(ds nwt.Dataset) nwt.Dataset { return nwt.Map(ds, kit.Summed(1).Fields(), identity) }
	zip := func(ds nwt.Dataset) nwt.Dataset {
		other, err := nwt.FromSlices(nwt.SliceOf("x", make([]float32, 60)))
		require.NoError(t, err)
		zipped, err := nwt.Zip(other, ds)
		require.NoError(t, err)
		return zipped
	}
	for name, c := range map[string]struct {
		ds   nwt.Dataset
		told bool
	}{
		"itself":               {kit.Augmented(60), true},
		"beneath a Map":        {plain, true},
		"by epochs":            {byEpoch, true},
		"by epochs, beneath":   {quietly(byEpoch), true},
		"beneath a Zip":        {zip(plain), true},
		"in a LoadMany":        {kit.Demanding{Dataset: kit.Augmented(60)}, true},
		"it doesn't":           {quiet, false},
		"nor do those beneath": {zip(quietly(quiet)), false},
		"a cache in a cache":   {nwt.Cached(quietly(quiet), 1<<20), false},
	} {
		t.Run(name, func(t *testing.T) {
			for by, keep := range map[string]func(log *kit.Journal) nwt.Dataset{
				"Cached": func(*kit.Journal) nwt.Dataset { return nwt.Cached(c.ds, 1<<20) },
				"Precompute": func(log *kit.Journal) nwt.Dataset {
					return precompute(t, c.ds, filepath.Join(t.TempDir(), "samples"), log.Option())
				},
			} {
				var log kit.Journal
				kept := keep(&log)
				above := nwt.Map(kept, kit.Summed(1).Fields(), draws) // that's where it belongs
				for _, ds := range []nwt.Dataset{kept, above} {
					l := kit.NewLoader(t, ds, nwt.WithBatchSize(7), nwt.WithWorkers(4), log.Option())
					for _, err := range l.Epochs(t.Context(), 0, 3) {
						require.NoError(t, err)
					}
				}
				want := 0
				if c.told {
					want = 1
				}
				require.Equal(t, want, strings.Count(log.String(), "asks for Rand or Epoch"), log.String())
				require.Equal(t, want, strings.Count(log.String(), "by="+by), log.String())
			}
		})
	}
}
