package batches_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/loadertest/kit"
	"github.com/nwt-go/nwt/sampler"
)

func TestEveryWorkerHasItsOwnScratchUntilItEnds(t *testing.T) {
	for _, workers := range []int{0, 1, 5} {
		var d kit.Decoders
		ds := d.Decoded(1000, nil)
		training, validation := kit.NewLoader(t, ds, nwt.WithWorkers(workers)), kit.NewLoader(t, ds, nwt.WithWorkers(workers))
		for e := range 3 {
			for range training.Epoch(t.Context(), e) {
				for _, err := range validation.Epoch(t.Context(), e) { // at the same time
					require.NoError(t, err)
					break
				}
			}
		}
		made := d.Made.Load()
		require.LessOrEqual(t, made, int64(2*max(1, workers)), "one for each worker of each loader")
		require.Equal(t, made, d.Open.Load())
		require.NoError(t, training.SetWorkers(0))
		require.NoError(t, training.Close())
		require.NoError(t, validation.Close())
		require.Zero(t, d.Open.Load())
	}
}

func TestScratchOfAWorkerThatIsTooManyIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d kit.Decoders
		l := kit.NewLoader(t, d.Decoded(1000, func(context.Context, int) error { time.Sleep(time.Millisecond); return nil }), nwt.WithWorkers(6), nwt.WithBatchSize(8))
		_, err := kit.Epoch(t.Context(), l, 0)
		require.NoError(t, err)
		require.EqualValues(t, 6, d.Open.Load())
		require.NoError(t, l.SetWorkers(2))
		synctest.Wait()
		require.EqualValues(t, 2, d.Open.Load())
		require.NoError(t, l.Close())
		require.Zero(t, d.Open.Load())
	})
}

func TestAReplacedWorkerHasNewScratchAndTheCallThatHangsKeepsIts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d kit.Decoders
		release := make(chan struct{})
		ds := nwt.NewDataset(40, kit.Scalar, func(_ context.Context, i int, dst *nwt.Sample) error {
			dec, err := nwt.Scratch(dst, d.Create)
			if err != nil {
				return err
			}
			if i == 13 {
				kit.Hold(t, release)
			}
			return dec.Use()
		})
		l := kit.NewLoader(t, ds, nwt.WithBatchSize(8), nwt.WithWorkers(1), nwt.WithTimeout(time.Second), nwt.WithErrorBudget(1))
		_, err := kit.Epoch(t.Context(), l, 0)
		require.NoError(t, err)
		require.EqualValues(t, 2, d.Made.Load())
		require.NoError(t, l.Close())
		require.EqualValues(t, 1, d.Open.Load(), "the call that hangs still uses it")
		close(release)
		synctest.Wait()
		require.Zero(t, d.Open.Load())
	})
}

// An opening is no sample's fault.
func TestWhatScratchNeedsForCreateIsNotTheSamplesTime(t *testing.T) {
	for name, takes := range map[string]time.Duration{"longer than the timeout": 300 * time.Millisecond, "nearly ten times as long": 1900 * time.Millisecond} {
		for _, slow := range []time.Duration{time.Millisecond, 150 * time.Millisecond} {
			synctest.Test(t, func(t *testing.T) {
				var d kit.Decoders
				ds := nwt.NewDataset(100, kit.Scalar, func(_ context.Context, _ int, dst *nwt.Sample) error {
					time.Sleep(slow)
					_, err := nwt.Scratch(dst, func() (*kit.Decoder, error) { time.Sleep(takes); return d.Create() })
					return err
				})
				l := kit.NewLoader(t, ds, nwt.WithBatchSize(8), nwt.WithWorkers(2), nwt.WithTimeout(200*time.Millisecond))
				batches, err := kit.Epoch(t.Context(), l, 0)
				require.NoError(t, err, name)
				require.Len(t, batches, 13)
				require.EqualValues(t, 2, d.Made.Load())
				require.NoError(t, l.Close())
				require.Zero(t, d.Open.Load())
			})
		}
	}
}

func TestASampleThatHangsAfterCreateIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ds := nwt.NewDataset(16, kit.Scalar, func(ctx context.Context, i int, dst *nwt.Sample) error {
			_, err := nwt.Scratch(dst, func() (int, error) { time.Sleep(time.Second); return 0, nil })
			if i == 0 {
				<-ctx.Done()
			}
			return err
		})
		l := kit.NewLoader(t, ds, nwt.WithBatchSize(8), nwt.WithWorkers(1), nwt.WithTimeout(200*time.Millisecond), nwt.WithErrorBudget(1), kit.Silent)
		batches, err := kit.Epoch(t.Context(), l, 0)
		require.NoError(t, err)
		require.Len(t, slices.Concat(batches...), 15)
		require.NoError(t, l.Close())
	})
}

func TestASampleIsAugmentedAnewInEachEpoch(t *testing.T) {
	const n, epochs = 20, 3
	drawn := map[int64]bool{}
	l := kit.NewLoader(t, kit.Drawn(n))
	for b, err := range l.Epochs(t.Context(), 0, epochs) {
		require.NoError(t, err)
		for place := range b.Len() {
			drawn[nwt.Values[int64](b, 0)[2*place+1]] = true
		}
	}
	require.Len(t, drawn, n*epochs, "no sample draws the same twice")
}

func TestACreateThatHangsIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var d kit.Decoders
		ds := nwt.NewDataset(16, kit.Scalar, func(_ context.Context, i int, dst *nwt.Sample) error {
			_, err := nwt.Scratch(dst, func() (*kit.Decoder, error) {
				if i == 0 {
					kit.Hold(t, release)
				}
				return d.Create()
			})
			return err
		})
		l := kit.NewLoader(t, ds, nwt.WithBatchSize(8), nwt.WithWorkers(1), nwt.WithTimeout(time.Second), nwt.WithErrorBudget(1), kit.Silent)
		batches, err := kit.Epoch(t.Context(), l, 0)
		require.NoError(t, err)
		require.Len(t, slices.Concat(batches...), 15)
		require.NoError(t, l.Close())
		close(release)
		synctest.Wait()
		require.Zero(t, d.Open.Load(), "nobody is left to keep it for")
	})
}

func TestScratchIsMadeAnewAfterAPanicAndAfterAnError(t *testing.T) {
	for _, workers := range []int{0, 1} {
		var d kit.Decoders
		ds := d.Decoded(100, func(_ context.Context, i int) error {
			if i == 50 {
				panic("half decoded")
			}
			return nil
		})
		l := kit.NewLoader(t, ds, nwt.WithWorkers(workers), nwt.WithErrorBudget(100), nwt.WithLogger(slog.New(slog.DiscardHandler)))
		d.Fail.Store(true)
		batches, err := kit.Epoch(t.Context(), l, 0)
		require.NoError(t, err)
		require.Empty(t, batches)
		require.ErrorContains(t, l.BadSamples()[0], "no decoder")
		d.Fail.Store(false)
		_, err = kit.Epoch(t.Context(), l, 1)
		require.NoError(t, err)
		require.EqualValues(t, 2, d.Made.Load())
		require.EqualValues(t, 1, d.Open.Load())
		require.NoError(t, l.Close())
		require.Zero(t, d.Open.Load())
	}
}

func TestDatasetsThatAreComposedHaveScratchOfTheirOwn(t *testing.T) {
	var here, there, above kit.Decoders
	concat, err := nwt.Concat(here.Decoded(50, nil), there.Decoded(50, nil))
	require.NoError(t, err)
	ds := nwt.Map(concat, kit.Scalar, func(_ context.Context, _, dst *nwt.Sample) error {
		dec, err := nwt.Scratch(dst, above.Create)
		if err != nil {
			return err
		}
		return dec.Use()
	})
	for _, ds := range []nwt.Dataset{ds, nwt.Cached(ds, 1<<20)} {
		l := kit.NewLoader(t, ds, nwt.WithWorkers(0))
		_, err = kit.Epoch(t.Context(), l, 0)
		require.NoError(t, err)
		require.NoError(t, l.Close())
	}
	for _, d := range []*kit.Decoders{&here, &there, &above} {
		require.EqualValues(t, 2, d.Made.Load(), "one with each loader that loads")
		require.Zero(t, d.Open.Load())
	}
}

func TestLoadSampleLeavesNoScratchOpen(t *testing.T) {
	var d kit.Decoders
	_, err := nwt.LoadSample(t.Context(), d.Decoded(1, nil), 0)
	require.NoError(t, err)
	require.EqualValues(t, 1, d.Made.Load())
	require.Zero(t, d.Open.Load())
}

// A broken can't be closed.
type broken struct{ panics bool }

func (b broken) Close() error {
	if b.panics {
		panic("stuck")
	}
	return errors.New("disk full")
}

func TestScratchThatCanNotBeClosedIsLogged(t *testing.T) {
	for _, b := range []broken{{false}, {true}} {
		var log bytes.Buffer
		ds := nwt.NewDataset(1, kit.Scalar, func(_ context.Context, _ int, dst *nwt.Sample) error {
			_, err := nwt.Scratch(dst, func() (broken, error) { return b, nil })
			return err
		})
		l := kit.NewLoader(t, ds, nwt.WithWorkers(1), nwt.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		_, err := kit.Epoch(t.Context(), l, 0)
		require.NoError(t, err)
		require.NoError(t, l.Close())
		require.Contains(t, log.String(), "could not be closed")
	}
}

func TestAMapsFunctionKeepsWhatTheDatasetDoesntSee(t *testing.T) {
	owned := func(s *nwt.Sample, by string) error {
		owner, err := nwt.Scratch(s, func() (string, error) { return by, nil })
		if err == nil && owner != by {
			err = fmt.Errorf("%s got what %s keeps", by, owner)
		}
		return err
	}
	inner := kit.Loads(40, func(_ context.Context, _ int, dst *nwt.Sample) error { return owned(dst, "the dataset") })
	ds := nwt.Map(inner, kit.Scalar, func(_ context.Context, src, dst *nwt.Sample) error {
		return errors.Join(owned(src, "the function"), owned(dst, "the function"))
	})
	l := kit.NewLoader(t, ds, nwt.WithWorkers(1))
	for _, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
	}
}

func TestADatasetInAConcatKeepsOneForEachWorkerHoweverItsSamplesLie(t *testing.T) {
	var d kit.Decoders
	part := func() nwt.Dataset {
		return &kit.Pages{N: 64,
			OnLoad: func(_ context.Context, _ int, dst *nwt.Sample) error {
				_, err := nwt.Scratch(dst, d.Create)
				return err
			},
			OnLoadMany: func(_ context.Context, _ []int, dst []*nwt.Sample) error {
				_, err := nwt.Scratch(dst[0], d.Create)
				return err
			}}
	}
	ds, err := nwt.Concat(part(), part())
	require.NoError(t, err)
	l := kit.NewLoader(t, ds, nwt.WithWorkers(1), nwt.WithShuffle(1), nwt.WithBatchSize(7))
	for epoch := range 5 {
		for _, err := range l.Epoch(t.Context(), epoch) {
			require.NoError(t, err)
		}
	}
	require.EqualValues(t, 2, d.Made.Load())
}

// Slow to close: what a worker that ends still has to do.
type unhurried struct{ closed *atomic.Int32 }

func (u unhurried) Close() error { time.Sleep(time.Hour); u.closed.Add(1); return nil }

// It is Close that waits for workers to end, not something that follows it.
func TestNoCloseReturnsBeforeTheWorkersHaveEnded(t *testing.T) {
	for _, workers := range []int{0, 1, 4} {
		for _, during := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				var made, closed atomic.Int32
				l := kit.NewLoader(t, kit.Loads(400, func(_ context.Context, _ int, dst *nwt.Sample) error {
					_, err := nwt.Scratch(dst, func() (unhurried, error) { made.Add(1); return unhurried{&closed}, nil })
					time.Sleep(time.Millisecond)
					return err
				}), nwt.WithBatchSize(4), nwt.WithWorkers(workers))
				closeIt := func() {
					require.NoError(t, l.Close())
					require.Equal(t, made.Load(), closed.Load())
				}
				for b, err := range l.Epoch(t.Context(), 0) {
					if during && err == nil && b.Number() == 10 {
						closeIt()
					}
				}
				closeIt()
				require.EqualValues(t, max(1, workers), made.Load())
			})
		}
	}
}

// shapedBatches are the batches of an epoch, which must not fail.
func shapedBatches(t *testing.T, ds nwt.Dataset, opts ...nwt.Option) iter.Seq[*nwt.Batch] {
	t.Helper()
	l, err := nwt.NewLoader(ds, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	return func(yield func(*nwt.Batch) bool) {
		for b, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
			if !yield(b) {
				return
			}
		}
	}
}

// What is made of a dataset that knows its sizes knows them too.
func TestWhatIsMadeOfASizedDatasetIsSized(t *testing.T) {
	ds := kit.Words{N: 40}
	odd := make([]int, 20)
	for i := range odd {
		odd[i] = 2*i + 1
	}
	subset, err := nwt.Subset(ds, odd)
	require.NoError(t, err)
	split, err := nwt.Split(ds, 1, 0.5, 0.5)
	require.NoError(t, err)
	both, err := nwt.Concat(subset, split[0], nwt.Sized(bare{ds}, ds.Sizes))
	require.NoError(t, err)
	label, err := nwt.FromSlices(nwt.SliceOf("label", make([]int64, 40)))
	require.NoError(t, err)
	zipped, err := nwt.Zip(ds, label) // a BatchDataset, of a part that isn't one
	require.NoError(t, err)
	nested, err := nwt.Zip(nwt.Cached(zipped, 1<<20))
	require.NoError(t, err)
	file, err := nwt.Precompute(t.Context(), ds, t.TempDir()+"/samples", "1")
	require.NoError(t, err)
	t.Cleanup(func() { file.Close() })
	for name, ds := range map[string]nwt.Dataset{
		"Subset": subset, "Split": split[1], "Concat": both, "Zip": zipped, "Zip of Cached of Zip": nested,
		"Cached": nwt.Cached(ds, 1<<20), "Precompute": file, "Sized": nwt.Sized(bare{ds}, ds.Sizes),
		"Cached of LoadMany": nwt.Cached(zipped, 1),
	} {
		t.Run(name, func(t *testing.T) {
			for range 2 { // the second time from the cache
				for b := range shapedBatches(t, ds, nwt.WithBatchSize(6), nwt.WithShuffle(3)) {
					ids := make([]int, b.Len())
					for p, id := range nwt.Values[int64](b, 1) {
						ids[p] = int(id)
					}
					holds(t, b, ids)
				}
			}
		})
	}
}

// bare hides what else a dataset is.
type bare struct{ nwt.Dataset }

// A part that doesn't know its sizes is as long as it may be.
func TestAPartOfUnknownSizeHasTheLongestShape(t *testing.T) {
	known := nwt.Sized(kit.Words{N: 4}, func(_ int, sizes []int) { sizes[0], sizes[1], sizes[2] = 9, 4, 3 })
	both, err := nwt.Concat(known, bare{kit.Words{N: 4}})
	require.NoError(t, err)
	var shapes [][]int
	for b := range shapedBatches(t, both, nwt.WithBatchSize(4)) {
		shapes = append(shapes, b.Shape(0), b.Shape(2))
	}
	require.Equal(t, [][]int{{4, 9}, {4, 4, 3, 3}, {4, 100}, {4, 50, 60, 3}}, shapes)
}

// Sizes that are rounded up are padding.
func TestSizesMayBeRoundedUp(t *testing.T) {
	rounded := kit.Words{N: 40, Tell: func(i int, sizes []int) { sizes[0], sizes[1], sizes[2] = (i%10+7)/8*8, 4, 3 }}
	for b := range shapedBatches(t, rounded, nwt.WithBatchSize(2)) {
		require.Contains(t, []int{8, 16}, b.Shape(0)[1])
		require.Equal(t, []int{2, 4, 3, 3}, b.Shape(2))
		for p, id := range b.Indices() {
			row := nwt.Values[int32](b, 0)[p*b.Shape(0)[1]:][:b.Shape(0)[1]]
			for k, word := range row {
				require.Equal(t, k < id%10, word == int32(id) && id > 0)
			}
		}
	}
}

// Sizes that can't be, or that Load goes beyond, make their sample bad, and no other.
func TestWrongSizesAreAnErrorOfTheirSample(t *testing.T) {
	for _, c := range []struct {
		tell func(sizes []int)
		want string
	}{
		{func(sizes []int) { sizes[0] = -3 }, `Sizes(7) gives -3 for dimension 0 of field 0 ("words"): must be 0 … 100`},
		{func(sizes []int) { sizes[2] = 61 }, `Sizes(7) gives 61 for dimension 1 of field 2 ("picture"): must be 0 … 60`},
		{func(sizes []int) { sizes[0] = 6 }, `length 7 of field "words" is more than the 6 that Sizes gave for sample 7`},
		{func(sizes []int) { sizes[1] = 2 }, `length 3 of field "picture" is more than the 2 that Sizes gave for sample 7`},
		{func([]int) { panic("no sizes") }, `no sizes`},
	} {
		ds := kit.Words{N: 12, Tell: func(i int, sizes []int) {
			kit.Words{}.Sizes(i, sizes)
			if i == 7 {
				c.tell(sizes)
			}
		}}
		together := sizedBatches{ds, new(atomic.Int64)}
		for _, ds := range []nwt.Dataset{ds, together, nwt.Cached(ds, 1<<20)} {
			for _, workers := range []int{0, 2} {
				l, err := nwt.NewLoader(ds, nwt.WithBatchSize(6), nwt.WithWorkers(workers), nwt.WithErrorBudget(1), kit.Silent)
				require.NoError(t, err)
				var got []int
				for b, err := range l.Epoch(t.Context(), 0) {
					require.NoError(t, err)
					got = append(got, b.Indices()...)
				}
				require.Equal(t, []int{0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11}, got)
				require.Len(t, l.BadSamples(), 1)
				require.Equal(t, 7, l.BadSamples()[0].Index)
				require.ErrorContains(t, l.BadSamples()[0], c.want)
				require.NoError(t, l.Close())
			}
		}
	}
}

// What is wrong with the sizes is known once they were told. If a worker asked again, the
// call might hang where nothing bounds it.
func TestSizesIsNotAskedForASampleThatIsNotThere(t *testing.T) {
	for _, workers := range []int{0, 3} {
		for _, wrong := range []int{-5, 100} {
			s := kit.SamplerFunc{N: 40, Order: func(_, i int) int {
				if i == 25 {
					return wrong
				}
				return 99 - i
			}}
			ds := nwt.Sized(&kit.Pages{N: 100}, func(i int, sizes []int) {
				if i < 0 || i > 99 {
					t.Errorf("asked for the sizes of sample %d", i)
				}
				sizes[0] = i % 4
			})
			l := kit.NewLoader(t, ds, nwt.WithBatchSize(10), nwt.WithWorkers(workers), nwt.WithSampler(s))
			batches, err := kit.Epoch(t.Context(), l, 0)
			require.Len(t, batches, 2)
			require.ErrorContains(t, err, fmt.Sprintf("index %d for position 25 is out of range 0 … 99", wrong))
		}
	}
}

func TestSizesIsAskedOnceForEachSample(t *testing.T) {
	for _, workers := range []int{0, 2} {
		var asked, loaded [12]atomic.Int32
		sizes := func(i int, sizes []int) {
			asked[i].Add(1)
			sizes[0] = 0
			switch i {
			case 3:
				sizes[0] = -1
			case 7:
				panic("no sizes")
			}
		}
		var schema nwt.Schema
		nwt.AddRagged[int64](&schema, "x", 1, 4)
		ds := nwt.NewDataset(12, schema.Fields(), func(_ context.Context, i int, dst *nwt.Sample) error {
			loaded[i].Add(1)
			dst.SetLen(0, 0)
			return nil
		})
		l := kit.NewLoader(t, nwt.Sized(ds, sizes), nwt.WithBatchSize(6), nwt.WithWorkers(workers), nwt.WithErrorBudget(2), kit.Silent)
		for _, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
		}
		for i := range asked {
			bad := i == 3 || i == 7
			require.EqualValues(t, 1, asked[i].Load())
			require.Equal(t, !bad, loaded[i].Load() == 1)
		}
		require.Empty(t, l.BadSamples()[0].Stack)
		require.NotEmpty(t, l.BadSamples()[1].Stack)
		require.ErrorContains(t, l.BadSamples()[1], "sample_test.go:")
	}
}

// A cache may hold a sample that is larger than another loader is told.
func TestACachedSampleLargerThanToldIsAnError(t *testing.T) {
	cache := nwt.Cached(bare{kit.Words{N: 3}}, 1<<20)
	_, err := nwt.LoadSample(t.Context(), cache, 2)
	require.NoError(t, err)
	l, err := nwt.NewLoader(nwt.Sized(cache, func(_ int, sizes []int) { clear(sizes) }), nwt.WithSampler(kit.Must(sampler.Select(nwt.Sequential(1), []int{2}))(t)))
	require.NoError(t, err)
	defer l.Close()
	require.ErrorContains(t, kit.Refusal(t, l.Epoch(t.Context(), 0)), `length 2 of field "words" is more than the 0 that Sizes gave for sample 2`)
}

// The batch is as long as the longest of its other samples.
func TestASamplerThatPanicsWhileABatchIsOpenedIsAnErrorOfItsPosition(t *testing.T) {
	l, err := nwt.NewLoader(kit.Words{N: 12}, nwt.WithBatchSize(6), nwt.WithErrorBudget(1), nwt.WithSampler(failsAt(3)), kit.Silent)
	require.NoError(t, err)
	defer l.Close()
	var got []int
	for b, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
		got = append(got, b.Indices()...)
		if b.Number() == 0 {
			require.Equal(t, []int{5, 5}, b.Shape(0))
			require.Equal(t, []int{5, 2, 2, 3}, b.Shape(2))
		} else {
			require.Equal(t, []int{6, 9}, b.Shape(0))
		}
	}
	require.Equal(t, []int{0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11}, got)
	require.Equal(t, 3, l.BadSamples()[0].Position)
}

type failsAt int

func (s failsAt) Len() int { return 12 }
func (s failsAt) At(_, i int) int {
	if i == int(s) {
		panic("no index")
	}
	return i
}

// sizedBatches loads many samples in one call, in reverse order.
type sizedBatches struct {
	kit.Words
	calls *atomic.Int64
}

func (d sizedBatches) LoadMany(ctx context.Context, indices []int, dst []*nwt.Sample) error {
	if d.calls.Add(1); len(indices) > 1 {
		stride := len(nwt.Values[int32](dst[0], 0))
		if all := nwt.ValuesOf[int32](dst, 0); len(all) != stride*len(dst) {
			return errors.New("the samples don't lie one after the other")
		}
	}
	for k := len(indices) - 1; k >= 0; k-- {
		if err := d.Load(ctx, indices[k], dst[k]); err != nil {
			return err
		}
	}
	return nil
}

// The function of WithBatchTransform sees the shape, and a batch from which samples were left
// out keeps that of all.
func TestWithBatchTransformSeesTheBatchsShape(t *testing.T) {
	ds := nwt.Map(kit.Words{N: 20}, kit.Words{}.Fields(), func(ctx context.Context, src, dst *nwt.Sample) error {
		if src.Index() == 9 {
			return kit.ErrBoom
		}
		return kit.Words{}.Load(ctx, src.Index(), dst)
	})
	finished := 0
	for b := range shapedBatches(t, nwt.Sized(ds, kit.Words{}.Sizes), nwt.WithBatchSize(10), nwt.WithErrorBudget(2), nwt.WithWorkers(0), kit.Silent,
		nwt.WithBatchTransform(func(_ context.Context, b *nwt.Batch) error {
			finished++
			require.Equal(t, []int{b.Len(), 9}, b.Shape(0))
			require.Len(t, nwt.Values[int32](b, 0), b.Len()*9)
			return nil
		})) {
		require.Equal(t, []int{b.Len(), 9}, b.Shape(0))
		require.Equal(t, []int{b.Len(), 3, 2, 3}, b.Shape(2))
	}
	require.Equal(t, 2, finished)
}

// Only the batch's own shape is copied to a device, in one copy.
func TestOnlyTheBatchsOwnShapeIsCopied(t *testing.T) {
	copied := func(t *testing.T, ds nwt.Dataset) int64 {
		device := &kit.FakeDevice{}
		l, err := nwt.NewLoader(ds, nwt.WithBatchSize(8), nwt.WithDevice(device))
		require.NoError(t, err)
		defer l.Close()
		for b, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
			require.True(t, device.Holds(b))
		}
		return l.Stats().CopiedBytes
	}
	synctest.Test(t, func(t *testing.T) {
		require.EqualValues(t, 16*(100*4+8+50*60*3), copied(t, bare{kit.Words{N: 16}}))
		require.EqualValues(t, 8*(7*4+8+3*2*3)+8*(9*4+8+3*2*3), copied(t, kit.Words{N: 16}))
	})
}

func TestSetShapeAndLenOfNameWhatIsWrong(t *testing.T) {
	s, err := nwt.LoadSample(t.Context(), kit.Words{N: 12}, 11)
	require.NoError(t, err)
	require.Equal(t, 1, s.Len(0, 0))
	require.Equal(t, []int{3, 2}, []int{s.Len(2, 0), s.Len(2, 1)})
	require.Equal(t, []int{50, 60, 3}, s.Shape(2))
	require.PanicsWithValue(t, `nwt: SetShape(1, 1): field "id" isn't ragged: AddRagged or Field.RaggedDims makes it so`, func() { s.SetShape(1, 1) })
	require.PanicsWithValue(t, `nwt: SetShape(2, 1 2 3): field "picture" has 2 ragged dimensions: call SetShape with a length for each`, func() { s.SetShape(2, 1, 2, 3) })
	require.PanicsWithValue(t, `nwt: SetLen(2, 1): field "picture" has 2 ragged dimensions: call SetShape with a length for each`, func() { s.SetLen(2, 1) })
	require.PanicsWithValue(t, `nwt: SetShape(2, …): dimension 1: length 61 of field "picture" is out of range 0 … 60`, func() { s.SetShape(2, 1, 61) })
	require.PanicsWithValue(t, `nwt: Len(2, 2): field "picture" has 2 ragged dimensions`, func() { s.Len(2, 2) })
	require.Zero(t, testing.AllocsPerRun(10, func() { s.SetShape(2, 3, 2) }))
}

func TestSizedRefusesWhatItCantUse(t *testing.T) {
	for _, ds := range []nwt.Dataset{
		nwt.Sized(kit.Words{N: 1}, nil), nwt.Sized(nil, kit.Words{}.Sizes), nwt.Sized(nwt.Streamed(nil), kit.Words{}.Sizes),
	} {
		_, err := nwt.NewLoader(ds)
		require.ErrorContains(t, err, "Sized")
	}
	for _, dims := range []int{-1, 2} {
		_, err := nwt.NewLoader(fieldsOf{{Name: "x", Type: nwt.Bool, Shape: []int{3}, RaggedDims: dims}})
		require.ErrorContains(t, err, fmt.Sprintf("RaggedDims is %d: must be 0 … 1, the dimensions of shape [3]", dims))
	}
}

type fieldsOf []nwt.Field

func (f fieldsOf) Len() int                                     { return 1 }
func (f fieldsOf) Fields() []nwt.Field                          { return f }
func (f fieldsOf) Load(context.Context, int, *nwt.Sample) error { return nil }

// holds tells what is wrong with a batch of words that was padded to its longest
// samples.
func holds(t *testing.T, b *nwt.Batch, ids []int) {
	t.Helper()
	longest := [3]int{1, 1, 1}
	for _, id := range ids {
		longest = [3]int{max(longest[0], id%10), max(longest[1], id%4), max(longest[2], id%3)}
	}
	require.Equal(t, []int{len(ids), longest[0]}, b.Shape(0))
	require.Equal(t, []int{len(ids)}, b.Shape(1))
	require.Equal(t, []int{len(ids), longest[1], longest[2], 3}, b.Shape(2))
	for p, id := range ids {
		want := make([]int32, longest[0])
		for k := range id % 10 {
			want[k] = int32(id)
		}
		require.Equal(t, want, nwt.Values[int32](b, 0)[p*longest[0]:][:longest[0]])
		require.EqualValues(t, id, nwt.Values[int64](b, 1)[p])
		picture := make([]byte, longest[1]*longest[2]*3)
		for y := range id % 4 {
			for k := range id % 3 * 3 {
				picture[y*longest[2]*3+k] = byte(id)
			}
		}
		require.Equal(t, picture, b.Bytes(2)[p*len(picture):][:len(picture)])
		require.EqualValues(t, id%10, b.Lens(0, 0)[p])
		require.EqualValues(t, id%4, b.Lens(2, 0)[p])
		require.EqualValues(t, id%3, b.Lens(2, 1)[p])
	}
	require.Len(t, nwt.Values[int32](b, 0), len(ids)*longest[0])
}
