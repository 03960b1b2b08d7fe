package faults_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/loadertest/kit"
	"github.com/nwt-go/nwt/sampler"
)

func TestMain(m *testing.M) { kit.Main(m) }

func TestASampleThatHangsIsNamedAndTheEpochGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var loose atomic.Int32
		ds := kit.Numbered(40, func(_ context.Context, i int, dst *nwt.Sample) error {
			if i == 13 && dst.Epoch() == 0 {
				loose.Add(1)
				kit.Hold(t, release)
				nwt.Values[int64](dst, 0)[0] = -1
				loose.Add(-1)
			}
			return nil
		})
		l := kit.NewLoader(t, ds, nwt.WithBatchSize(8), nwt.WithWorkers(2), nwt.WithTimeout(time.Second), nwt.WithErrorBudget(1))
		got, err := kit.Values(t, l, 0)
		require.NoError(t, err)
		require.Equal(t, kit.UpTo(40, 13), got)
		require.Len(t, l.BadSamples(), 1)
		require.Equal(t, 13, l.BadSamples()[0].Index)
		require.ErrorIs(t, l.BadSamples()[0], context.DeadlineExceeded)
		got, err = kit.Values(t, l, 1)
		require.NoError(t, err)
		require.Equal(t, kit.UpTo(40), got)
		require.NoError(t, l.Close()) // although the call still hangs
		require.EqualValues(t, 1, loose.Load())
		close(release)
		synctest.Wait()
		require.Zero(t, loose.Load())
	})
}

func TestWithoutABudgetAHungSampleEndsTheEpochInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ds := kit.Numbered(40, func(ctx context.Context, i int, dst *nwt.Sample) error {
			if i == 20 {
				<-ctx.Done() // a Load that minds its context ends with it
				return ctx.Err()
			}
			return nil
		})
		l := kit.NewLoader(t, ds, nwt.WithBatchSize(8), nwt.WithWorkers(3), nwt.WithTimeout(time.Second))
		for range 3 {
			got, err := kit.Values(t, l, 0)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.ErrorContains(t, err, "sample 20")
			require.Equal(t, kit.UpTo(16), got)
		}
		require.NoError(t, l.Close())
	})
}

type busyError struct{}

func (busyError) Error() string   { return "busy" }
func (busyError) Temporary() bool { return true }

// oneByOne hides LoadMany.
type oneByOne struct{ nwt.Dataset }

// Whatever a dataset is made of, the bad samples of its parts are left out, and no others.
func TestTheBadSamplesOfAPartAreThoseOfTheWhole(t *testing.T) {
	part := func(bad ...int) nwt.Dataset {
		load := func(_ context.Context, i int, _ *nwt.Sample) error {
			if slices.Contains(bad, i) {
				return kit.ErrBad
			}
			return nil
		}
		return &kit.Pages{N: 20, OnLoad: load, OnLoadMany: func(ctx context.Context, indices []int, dst []*nwt.Sample) error {
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
			kit.WritePage(i, dst)
			if i == 9 {
				return kit.ErrBad
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
		"Map of Map":       {copied(copied(part(3, 7))), kit.UpTo(20, 3, 7, 9)},
		"Concat":           {must(nwt.Concat(part(3, 7), oneByOne{part(4)}, part(5))), sorted(kit.UpTo(20, 3, 7), kit.UpTo(20, 4), kit.UpTo(20, 5))},
		"Concat of Map":    {must(nwt.Concat(part(3, 7), copied(part(5)))), sorted(kit.UpTo(20, 3, 7), kit.UpTo(20, 5, 9))},
		"Split and Concat": {split(part(3, 7)), kit.UpTo(20, 3, 7)},
		"Zip":              {must(nwt.Zip(part(3), nwt.Map(part(5), kit.Scalar, func(context.Context, *nwt.Sample, *nwt.Sample) error { return nil }))), kit.UpTo(20, 3, 5)},
	} {
		for _, workers := range []int{0, 3} {
			l := kit.NewLoader(t, c.ds, nwt.WithBatchSize(16), nwt.WithWorkers(workers), nwt.WithShuffle(4), nwt.WithErrorBudget(20), kit.Silent)
			var got []int64
			for b, err := range l.Epoch(t.Context(), 0) {
				require.NoError(t, err)
				for k, v := range nwt.Values[int64](b, 0) {
					got = append(got, v)
					require.EqualValues(t, v%4, b.Lens(1, 0)[k])
				}
			}
			require.Equal(t, c.want, sorted(got), name)
		}
	}
}

func sorted(all ...[]int64) []int64 { return slices.Sorted(slices.Values(slices.Concat(all...))) }

// The ways in which user code fails to load a sample.
var failures = []struct {
	name  string
	fail  func(dst *nwt.Sample) error
	says  string
	is    error
	stack bool
}{
	{"error", func(*nwt.Sample) error { return fmt.Errorf("file: %w", kit.ErrBoom) }, "file: boom", kit.ErrBoom, false},
	{"panic", func(*nwt.Sample) error { panic("a bad day") }, "panic: a bad day", nil, true},
	{"panic with an error", func(*nwt.Sample) error { panic(kit.ErrBoom) }, "panic: boom", kit.ErrBoom, true},
	{"runtime error", func(*nwt.Sample) error { var s []int; _ = s[dst0]; return nil }, "index out of range", nil, true},
	{"misuse", func(dst *nwt.Sample) error { nwt.Values[int64](dst, 0)[0] = 1; return nil }, `Values[int64] of field 0 ("x"), whose type is Float32`, nil, true},
}

const dst0 = 0

func TestABadSampleEndsTheEpochAfterTheBatchesBeforeIt(t *testing.T) {
	for _, f := range failures {
		for _, workers := range []int{0, 1, 4} {
			for _, bad := range []int{0, 9, 10, 47, 99} {
				for _, batch := range []int{1, 10} {
					t.Run(fmt.Sprintf("%s/workers=%d/bad=%d/batch=%d", f.name, workers, bad, batch), func(t *testing.T) {
						synctest.Test(t, func(t *testing.T) {
							ds := kit.Loads(100, func(_ context.Context, i int, dst *nwt.Sample) error {
								if i == bad && dst.Epoch() == 3 {
									return f.fail(dst)
								}
								return nil
							})
							l := kit.NewLoader(t, ds, nwt.WithBatchSize(batch), nwt.WithWorkers(workers))
							batches, err := kit.Epoch(t.Context(), l, 3)
							require.Len(t, batches, bad/batch)
							var le *nwt.LoadError
							require.ErrorAs(t, err, &le)
							require.Equal(t, bad, le.Index)
							require.Equal(t, bad, le.Position)
							require.Equal(t, 3, le.Epoch)
							require.Less(t, le.Worker, max(1, workers))
							require.ErrorContains(t, err, f.says)
							require.ErrorContains(t, err, fmt.Sprintf("sample %d of epoch 3", bad))
							if f.is != nil {
								require.ErrorIs(t, err, f.is)
							}
							require.Equal(t, f.stack, len(le.Stack) > 0)
							require.Zero(t, l.Stats().Retained)

							batches, err = kit.Epoch(t.Context(), l, 0)
							require.NoError(t, err, "usable afterwards")
							require.Len(t, batches, l.Len())
						})
					})
				}
			}
		}
	}
}

func TestTheFirstBadSampleInOrderIsTheOneReported(t *testing.T) {
	ds := kit.Loads(100, func(_ context.Context, i int, _ *nwt.Sample) error {
		if i%10 == 3 {
			return kit.ErrBoom
		}
		return nil
	})
	for _, workers := range []int{0, 1, 7} {
		l := kit.NewLoader(t, ds, nwt.WithBatchSize(50), nwt.WithWorkers(workers))
		for n := range 20 {
			_, err := kit.Epoch(t.Context(), l, n)
			var le *nwt.LoadError
			require.ErrorAs(t, err, &le)
			require.Equal(t, 3, le.Index)
		}
	}
}

func TestASamplerThatFailsEndsTheEpochInOrder(t *testing.T) {
	for _, f := range []struct {
		name string
		at   func() int
		says []string
	}{
		{"too high", func() int { return 100 }, []string{"index 100 for position 25", "0 … 99"}},
		{"negative", func() int { return -5 }, []string{"index -5 for position 25", "0 … 99"}},
		{"panic", func() int { panic("no such thing") }, []string{"panic: no such thing"}},
	} {
		for _, workers := range []int{0, 3} {
			t.Run(fmt.Sprintf("%s/workers=%d", f.name, workers), func(t *testing.T) {
				s := kit.SamplerFunc{N: 40, Order: func(epoch, i int) int {
					if i == 25 && epoch == 0 {
						return f.at()
					}
					return 99 - i
				}}
				var loaded atomic.Bool
				ds := kit.Loads(100, func(_ context.Context, i int, _ *nwt.Sample) error {
					if i < 0 || i > 99 {
						loaded.Store(true)
					}
					return nil
				})
				l := kit.NewLoader(t, ds, nwt.WithBatchSize(10), nwt.WithWorkers(workers), nwt.WithSampler(s))
				batches, err := kit.Epoch(t.Context(), l, 0)
				require.False(t, loaded.Load(), "there is no such sample")
				require.Len(t, batches, 2)
				require.ErrorAs(t, err, new(*nwt.LoadError))
				for _, s := range f.says {
					require.ErrorContains(t, err, s)
				}
				batches, err = kit.Epoch(t.Context(), l, 1)
				require.NoError(t, err)
				require.Equal(t, []int{69, 68, 67, 66, 65, 64, 63, 62, 61, 60}, batches[3])
			})
		}
	}
}

// However the places are shared out, it is one sample that is left out.
func TestASamplerThatPanicsOnceCostsOneSample(t *testing.T) {
	s := kit.SamplerFunc{N: 40, Order: func(_, i int) int {
		if i == 25 {
			panic("no such thing")
		}
		return i
	}}
	for _, workers := range []int{0, 1, 3} {
		l := kit.NewLoader(t, kit.EmptyDataset(40), nwt.WithBatchSize(40), nwt.WithWorkers(workers), nwt.WithSampler(s),
			nwt.WithErrorBudget(40), nwt.WithLogger(slog.New(slog.DiscardHandler)))
		batches, err := kit.Epoch(t.Context(), l, 0)
		require.NoError(t, err)
		require.Len(t, batches[0], 39)
		require.Len(t, l.BadSamples(), 1)
	}
}

func TestTheFirstTenThousandBadSamplesAreRemembered(t *testing.T) {
	ds := nwt.NewDataset(10_020, kit.Scalar, func(context.Context, int, *nwt.Sample) error { return kit.ErrBoom })
	l := kit.NewLoader(t, ds, nwt.WithBatchSize(100), nwt.WithWorkers(2), nwt.WithErrorBudget(20_000), nwt.WithLogger(slog.New(slog.DiscardHandler)))
	for range l.Epoch(t.Context(), 0) {
	}
	require.Equal(t, 10_020, l.Stats().Bad)
	require.Equal(t, 10_000, len(l.BadSamples()), "not all of them are printed")
	for i, bad := range l.BadSamples() {
		require.Equal(t, i, bad.Index)
	}
}

// budgeted returns a loader of 60 samples of which those of bad fail.
func budgeted(t *testing.T, workers, budget int, bad func(i int) bool, opts ...nwt.Option) *nwt.Loader {
	fields := []nwt.Field{
		{Name: "x", Type: nwt.Float32},
		{Name: "tokens", Type: nwt.Int16, Shape: []int{4}, RaggedDims: 1},
	}
	ds := nwt.NewDataset(60, fields, func(_ context.Context, i int, dst *nwt.Sample) error {
		nwt.Values[float32](dst, 0)[0] = float32(i)
		dst.SetLen(1, i%5)
		for k := range i % 5 {
			nwt.Values[int16](dst, 1)[k] = int16(i)
		}
		switch {
		case !bad(i):
			return nil
		case i%2 == 0:
			panic(kit.ErrBoom)
		}
		return kit.ErrBoom
	})
	return kit.NewLoader(t, ds, append([]nwt.Option{nwt.WithBatchSize(6), nwt.WithWorkers(workers), nwt.WithErrorBudget(budget),
		nwt.WithLogger(slog.New(slog.DiscardHandler))}, opts...)...)
}

func TestBadSamplesWithinTheBudgetAreLeftOutInOrder(t *testing.T) {
	for name, bad := range map[string]func(int) bool{
		"none":          func(int) bool { return false },
		"first":         func(i int) bool { return i%6 == 0 },
		"last":          func(i int) bool { return i%6 == 5 },
		"neighbours":    func(i int) bool { return i%6 == 2 || i%6 == 3 },
		"whole batches": func(i int) bool { return i/6 == 0 || i/6 == 4 || i/6 == 9 },
		"all":           func(int) bool { return true },
	} {
		for _, workers := range []int{0, 1, 5} {
			t.Run(fmt.Sprintf("%s/workers=%d", name, workers), func(t *testing.T) {
				l := budgeted(t, workers, 60, bad)
				var good, want []int
				var wantBad, gotBad []int
				for i := range 60 {
					if bad(i) {
						wantBad = append(wantBad, i)
					} else {
						want = append(want, i)
					}
				}
				for b, err := range l.Epoch(t.Context(), 0) {
					require.NoError(t, err)
					require.NotZero(t, b.Len())
					require.Len(t, b.Indices(), b.Len())
					require.Equal(t, b.Number(), b.Indices()[0]/6)
					require.Equal(t, 6*(b.Number()+1), b.State().Samples)
					good = append(good, b.Indices()...)
					for p, i := range b.Indices() {
						require.Equal(t, float32(i), nwt.Values[float32](b, 0)[p])
						require.Equal(t, int32(i%5), b.Lens(1, 0)[p])
						row := make([]int16, 4)
						for k := range i % 5 {
							row[k] = int16(i)
						}
						require.Equal(t, row, nwt.Values[int16](b, 1)[4*p:4*p+4])
					}
				}
				require.Equal(t, want, good)
				for _, e := range l.BadSamples() {
					require.ErrorIs(t, e, kit.ErrBoom)
					gotBad = append(gotBad, e.Index)
				}
				require.Equal(t, wantBad, gotBad)
				require.Zero(t, l.Stats().Retained)
			})
		}
	}
}

func TestOneBadSampleTooManyEndsTheEpoch(t *testing.T) {
	for _, workers := range []int{0, 3} {
		for budget, last := range []int{5, 20, 33} { // the sample that is one too many
			l := budgeted(t, workers, budget, func(i int) bool { return i == 5 || i == 20 || i == 33 })
			for n := 1; n <= 2; n++ { // the budget is that of one epoch
				batches, err := kit.Epoch(t.Context(), l, n)
				require.Len(t, batches, last/6)
				if budget > 0 {
					require.Len(t, batches[0], 5)
					require.ErrorContains(t, err, fmt.Sprintf("%d bad samples in epoch %d, WithErrorBudget allows %d", budget+1, n, budget))
				} else {
					require.NotContains(t, err.Error(), "WithErrorBudget", "the program didn't ask for one")
				}
				var le *nwt.LoadError
				require.ErrorAs(t, err, &le)
				require.Equal(t, last, le.Index)
				require.Len(t, l.BadSamples(), budget*n)
			}
		}
	}
}

// So many epochs are counted at once that counts of old ones are dropped.
func TestEveryEpochHasItsBudgetHoweverManyThereAre(t *testing.T) {
	for last := 2*1024 - 1; last <= 2*1024+1; last++ {
		ds := kit.Numbered(2, func(_ context.Context, i int, dst *nwt.Sample) error {
			if i == 0 || dst.Epoch() == last {
				return kit.ErrBad
			}
			return nil
		})
		l := kit.NewLoader(t, ds, nwt.WithBatchSize(2), nwt.WithWorkers(0), nwt.WithErrorBudget(1), kit.Silent)
		batches := 0
		var err error
		for _, err = range l.Epochs(t.Context(), 0, 3000) {
			batches++
		}
		require.Equal(t, last+1, batches)
		require.ErrorContains(t, err, fmt.Sprintf("2 bad samples in epoch %d, WithErrorBudget allows 1", last))
	}
}

func TestBadSamplesAndFiguresMayBeAskedForAtAnyTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := budgeted(t, 2, 60, func(i int) bool { return i%6 < 3 })
		asked := make(chan struct{})
		go func() {
			defer close(asked)
			for last := 0; last < 30; time.Sleep(700 * time.Millisecond) {
				bad := len(l.BadSamples())
				assert.GreaterOrEqual(t, bad, last)
				assert.GreaterOrEqual(t, l.Stats().Bad, bad)
				last = bad
			}
		}()
		for _, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
			time.Sleep(time.Second)
		}
		<-asked
	})
}

func TestARankWithoutASampleForABatchEndsItsEpoch(t *testing.T) {
	for _, size := range []int{1, 6} {
		l := budgeted(t, 2, 60, func(i int) bool { return 12 <= i && i < 12+size }, nwt.WithBatchSize(size), nwt.WithRank(0, 2))
		batches, err := kit.Epoch(t.Context(), l, 0)
		require.Len(t, batches, 12/(2*size))
		require.ErrorIs(t, err, kit.ErrBoom)
		require.ErrorContains(t, err, "other ranks")
		require.Zero(t, l.Stats().Retained)
	}
}

// Messages begin with "nwt: ", and the reasons within them don't again.
func TestAMessageNamesThePackageOnce(t *testing.T) {
	ragged := []nwt.Field{{Name: "tokens", Type: nwt.Int32, Shape: []int{4}, RaggedDims: 1}}
	forgotten := nwt.NewDataset(3, ragged, func(context.Context, int, *nwt.Sample) error { return nil })
	tooLong := nwt.NewDataset(3, ragged, func(_ context.Context, _ int, dst *nwt.Sample) error { dst.SetLen(0, 5); return nil })
	closed, err := nwt.Precompute(t.Context(), kit.EmptyDataset(3), t.TempDir()+"/samples", "v1")
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	silent := nwt.WithLogger(slog.New(slog.DiscardHandler))
	for name, c := range map[string]struct {
		ds   nwt.Dataset
		opts []nwt.Option
		says string
	}{
		"a length that wasn't set":     {forgotten, nil, `(position 0, worker 0): Load did not call SetLen(0, n) for the ragged field "tokens"`},
		"a length that can't be":       {tooLong, nil, `panic: SetLen(0, 5): length 5 of field "tokens" is out of range 0 … 4`},
		"a closed dataset":             {closed, nil, "precomputed samples in "},
		"more bad samples than may be": {forgotten, []nwt.Option{nwt.WithErrorBudget(1)}, "WithErrorBudget allows 1; the last: sample 1 of epoch 0"},
		"no sample left for a rank":    {forgotten, []nwt.Option{nwt.WithErrorBudget(9), nwt.WithRank(0, 2)}, "the other ranks would wait for it; the last: sample 0 of epoch 0"},
	} {
		t.Run(name, func(t *testing.T) {
			l := kit.NewLoader(t, c.ds, append(c.opts, nwt.WithBatchSize(1), nwt.WithWorkers(0), silent)...)
			var last error
			for _, err := range l.Epoch(t.Context(), 0) {
				last = err
			}
			require.ErrorContains(t, last, c.says)
			require.True(t, strings.HasPrefix(last.Error(), "nwt: "), last)
			require.Equal(t, 1, strings.Count(last.Error(), "nwt: "), last)
			require.ErrorAs(t, last, new(*nwt.LoadError))
		})
	}
	_, err = nwt.LoadSample(t.Context(), nwt.Streamed(kit.NewShelves(3)), 0)
	require.Equal(t, 1, strings.Count(err.Error(), "nwt: "), err)
	_, err = nwt.LoadSample(t.Context(), closed, 0)
	require.ErrorIs(t, err, os.ErrClosed)
}

// With 0 workers the loop's own function runs the loader's code, inlined. A panic in
// nwt is told with the line of the program that led to it, not with a line of nwt.
func TestAPanicInASamplerOfNwtIsToldWithTheProgramsLine(t *testing.T) {
	far, err := sampler.Computed(5, func(int) []int { return []int{0, 1, 2, 3, 4} })
	require.NoError(t, err)
	s, err := sampler.Select(far, []int{0, 1})
	require.NoError(t, err)
	l := kit.NewLoader(t, kit.EmptyDataset(3), nwt.WithSampler(s), nwt.WithWorkers(0), nwt.WithBatchSize(1))
	var last error
	for _, err := range l.Epoch(t.Context(), 0) {
		last = err
	}
	require.ErrorContains(t, last, "is entry 2 of 2")
	require.NotContains(t, last.Error(), "loader.go")
	require.Contains(t, last.Error(), "badsamples_test.go:")
}

func TestOfManyBadSamplesFewAreLogged(t *testing.T) {
	var log kit.Journal
	ds := kit.Loads(3000, func(_ context.Context, i int, _ *nwt.Sample) error {
		if i%2 == 0 {
			return kit.ErrBad
		}
		return nil
	})
	l := kit.NewLoader(t, ds, nwt.WithErrorBudget(1500), nwt.WithBatchSize(100), log.Option())
	for n := range 2 {
		before := strings.Count(log.String(), "a bad sample is left out")
		_, err := kit.Epoch(t.Context(), l, n)
		require.NoError(t, err)
		require.Equal(t, 28, strings.Count(log.String(), "a bad sample is left out")-before, "1 … 9, 10 … 90, 100 … 900 and 1000")
		require.Contains(t, log.String(), "bad=1000 budget=1500")
	}
	require.Equal(t, 3000, l.Stats().Bad)
}

// rotting returns a BatchDataset in which every tenth sample is bad.
func rotting(n int) *kit.Pages {
	rotten := errors.New("rotten")
	return &kit.Pages{N: n,
		OnLoad: func(_ context.Context, i int, _ *nwt.Sample) error {
			if i%10 == 3 {
				return rotten
			}
			return nil
		},
		OnLoadMany: func(_ context.Context, indices []int, _ []*nwt.Sample) error {
			for _, i := range indices {
				if i%10 == 3 {
					return rotten
				}
			}
			return nil
		},
	}
}

func TestTuningWarnsOfABadSampleOnceAndSaysThatItTunes(t *testing.T) {
	for _, bad := range []int{1, 10} {
		var log kit.Journal
		_, err := nwt.Tune(t.Context(), rotting(10*bad), nwt.WithBatchSize(8), nwt.WithMaxWorkers(2), nwt.WithIterations(20), nwt.WithErrorBudget(100), log.Option())
		require.NoError(t, err)
		for line := range strings.Lines(log.String()) {
			require.True(t, strings.Contains(line, "during=tuning") || strings.Contains(line, "the worker count") || strings.Contains(line, "worker count tuned"), line)
		}
		require.Equal(t, bad, strings.Count(log.String(), "a bad sample is left out"), &log)
	}
}

// Without order, batches of two epochs come by turns: each has its own budget.
func TestEveryEpochHasItsBudgetWithoutOrderToo(t *testing.T) {
	bad := errors.New("bad")
	second := make(chan struct{}) // closed when a batch of the second epoch is delivered
	ds := kit.Numbered(64, func(ctx context.Context, i int, dst *nwt.Sample) error {
		if i == 1 && dst.Epoch() == 0 {
			select {
			case <-second:
			case <-ctx.Done():
			}
		}
		if i%4 == 0 && (dst.Epoch() == 0 || i == 8) {
			return bad
		}
		return nil
	})
	l := kit.NewLoader(t, ds, nwt.WithBatchSize(4), nwt.WithWorkers(4), nwt.WithPrefetch(40), nwt.WithUnordered(), nwt.WithErrorBudget(15), kit.Silent)
	var last error
	delivered := map[int]int{}
	for b, err := range l.Epochs(t.Context(), 0, 2) {
		if last = err; b == nil {
			break
		}
		if delivered[b.Epoch()]++; b.Epoch() == 1 && delivered[1] == 16 {
			close(second)
		}
	}
	require.Equal(t, map[int]int{0: 15, 1: 16}, delivered)
	require.ErrorContains(t, last, "16 bad samples in epoch 0, WithErrorBudget allows 15")
	require.ErrorIs(t, last, bad)
}
