package nwt_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
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
	"github.com/nwt-go/nwt/sampler"
)

var errBoom = errors.New("boom")

// epoch runs an epoch to its end: the batches before the error, and the error.
func epoch(ctx context.Context, l *nwt.Loader, n int) (batches [][]int, err error) {
	for b, e := range l.Epoch(ctx, n) {
		if e != nil {
			err = e
			continue
		}
		batches = append(batches, slices.Clone(b.Indices()))
	}
	return batches, err
}

// The ways in which user code fails to load a sample.
var failures = []struct {
	name  string
	fail  func(dst *nwt.Sample) error
	says  string
	is    error
	stack bool
}{
	{"error", func(*nwt.Sample) error { return fmt.Errorf("file: %w", errBoom) }, "file: boom", errBoom, false},
	{"panic", func(*nwt.Sample) error { panic("a bad day") }, "panic: a bad day", nil, true},
	{"panic with an error", func(*nwt.Sample) error { panic(errBoom) }, "panic: boom", errBoom, true},
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
							ds := loads(100, func(_ context.Context, i int, dst *nwt.Sample) error {
								if i == bad && dst.Epoch() == 3 {
									return f.fail(dst)
								}
								return nil
							})
							l := newLoader(t, ds, nwt.WithBatchSize(batch), nwt.WithWorkers(workers))
							batches, err := epoch(t.Context(), l, 3)
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
							noSlotLost(t, l, 0)

							batches, err = epoch(t.Context(), l, 0)
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
	ds := loads(100, func(_ context.Context, i int, _ *nwt.Sample) error {
		if i%10 == 3 {
			return errBoom
		}
		return nil
	})
	for _, workers := range []int{0, 1, 7} {
		l := newLoader(t, ds, nwt.WithBatchSize(50), nwt.WithWorkers(workers))
		for n := range 20 {
			_, err := epoch(t.Context(), l, n)
			var le *nwt.LoadError
			require.ErrorAs(t, err, &le)
			require.Equal(t, 3, le.Index)
		}
	}
}

type samplerFunc struct {
	n  int
	at func(epoch, i int) int
}

func (s samplerFunc) Len() int            { return s.n }
func (s samplerFunc) At(epoch, i int) int { return s.at(epoch, i) }

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
				s := samplerFunc{40, func(epoch, i int) int {
					if i == 25 && epoch == 0 {
						return f.at()
					}
					return 99 - i
				}}
				var loaded atomic.Bool
				ds := loads(100, func(_ context.Context, i int, _ *nwt.Sample) error {
					if i < 0 || i > 99 {
						loaded.Store(true)
					}
					return nil
				})
				l := newLoader(t, ds, nwt.WithBatchSize(10), nwt.WithWorkers(workers), nwt.WithSampler(s))
				batches, err := epoch(t.Context(), l, 0)
				require.False(t, loaded.Load(), "there is no such sample")
				require.Len(t, batches, 2)
				require.ErrorAs(t, err, new(*nwt.LoadError))
				for _, s := range f.says {
					require.ErrorContains(t, err, s)
				}
				batches, err = epoch(t.Context(), l, 1)
				require.NoError(t, err)
				require.Equal(t, []int{69, 68, 67, 66, 65, 64, 63, 62, 61, 60}, batches[3])
			})
		}
	}
}

// However the places are shared out, it is one sample that is left out.
func TestASamplerThatPanicsOnceCostsOneSample(t *testing.T) {
	s := samplerFunc{40, func(_, i int) int {
		if i == 25 {
			panic("no such thing")
		}
		return i
	}}
	for _, workers := range []int{0, 1, 3} {
		l := newLoader(t, emptyDataset(40), nwt.WithBatchSize(40), nwt.WithWorkers(workers), nwt.WithSampler(s),
			nwt.WithErrorBudget(40), nwt.WithLogger(slog.New(slog.DiscardHandler)))
		batches, err := epoch(t.Context(), l, 0)
		require.NoError(t, err)
		require.Len(t, batches[0], 39)
		require.Len(t, l.BadSamples(), 1)
	}
}

func TestTheFirstTenThousandBadSamplesAreRemembered(t *testing.T) {
	ds := nwt.NewDataset(10_020, scalar, func(context.Context, int, *nwt.Sample) error { return errBoom })
	l := newLoader(t, ds, nwt.WithBatchSize(100), nwt.WithWorkers(2), nwt.WithErrorBudget(20_000), nwt.WithLogger(slog.New(slog.DiscardHandler)))
	for range l.Epoch(t.Context(), 0) {
	}
	require.Equal(t, 10_020, l.Stats().Bad)
	require.Equal(t, 10_000, len(l.BadSamples()), "not all of them are printed")
	for i, bad := range l.BadSamples() {
		require.Equal(t, i, bad.Index)
	}
}

func TestAWorkerThatCannotStartEndsTheEpochAndTriesAgain(t *testing.T) {
	for _, f := range []struct {
		name  string
		fail  func() error
		says  string
		stack bool
	}{
		{"error", func() error { return errBoom }, "WithWorkerInit: boom", false},
		{"panic", func() error { panic(errBoom) }, "WithWorkerInit: panic: boom", true},
	} {
		for _, workers := range []int{0, 1, 3} {
			t.Run(fmt.Sprintf("%s/workers=%d", f.name, workers), func(t *testing.T) {
				broken := true
				l := newLoader(t, emptyDataset(100), nwt.WithBatchSize(10), nwt.WithWorkers(workers),
					nwt.WithWorkerInit(func(_ context.Context, worker int) error {
						if broken {
							return f.fail()
						}
						return nil
					}))
				batches, err := epoch(t.Context(), l, 2)
				require.Empty(t, batches)
				var le *nwt.LoadError
				require.ErrorAs(t, err, &le)
				require.Equal(t, -1, le.Index)
				require.Equal(t, 2, le.Epoch)
				require.Equal(t, f.stack, len(le.Stack) > 0)
				require.ErrorContains(t, err, f.says)
				require.ErrorContains(t, err, fmt.Sprintf("worker %d", le.Worker))
				noSlotLost(t, l, 0)
				broken = false
				batches, err = epoch(t.Context(), l, 2)
				require.NoError(t, err)
				require.Len(t, batches, 10)
			})
		}
	}
}

// budgeted is a loader of 60 samples of which those of bad fail.
func budgeted(t *testing.T, workers, budget int, bad func(i int) bool, opts ...nwt.Option) *nwt.Loader {
	fields := []nwt.Field{
		{Name: "x", Type: nwt.Float32},
		{Name: "tokens", Type: nwt.Int16, Shape: []int{4}, Ragged: true},
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
			panic(errBoom)
		}
		return errBoom
	})
	return newLoader(t, ds, append([]nwt.Option{nwt.WithBatchSize(6), nwt.WithWorkers(workers), nwt.WithErrorBudget(budget),
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
					require.Equal(t, b.Index(), b.Indices()[0]/6)
					require.Equal(t, 6*(b.Index()+1), b.State().Samples)
					good = append(good, b.Indices()...)
					for p, i := range b.Indices() {
						require.Equal(t, float32(i), nwt.Values[float32](b, 0)[p])
						require.Equal(t, int32(i%5), b.Lens(1)[p])
						row := make([]int16, 4)
						for k := range i % 5 {
							row[k] = int16(i)
						}
						require.Equal(t, row, nwt.Values[int16](b, 1)[4*p:4*p+4])
					}
				}
				require.Equal(t, want, good)
				for _, e := range l.BadSamples() {
					require.ErrorIs(t, e, errBoom)
					gotBad = append(gotBad, e.Index)
				}
				require.Equal(t, wantBad, gotBad)
				noSlotLost(t, l, 0)
			})
		}
	}
}

func TestOneBadSampleTooManyEndsTheEpoch(t *testing.T) {
	for _, workers := range []int{0, 3} {
		for budget, last := range []int{5, 20, 33} { // the sample that is one too many
			l := budgeted(t, workers, budget, func(i int) bool { return i == 5 || i == 20 || i == 33 })
			for n := 1; n <= 2; n++ { // the budget is that of one epoch
				batches, err := epoch(t.Context(), l, n)
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
		ds := numbered(2, func(_ context.Context, i int, dst *nwt.Sample) error {
			if i == 0 || dst.Epoch() == last {
				return errBad
			}
			return nil
		})
		l := newLoader(t, ds, nwt.WithBatchSize(2), nwt.WithWorkers(0), nwt.WithErrorBudget(1), quietLog)
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
		batches, err := epoch(t.Context(), l, 0)
		require.Len(t, batches, 12/(2*size))
		require.ErrorIs(t, err, errBoom)
		require.ErrorContains(t, err, "other ranks")
		noSlotLost(t, l, 0)
	}
}

// Messages begin with "nwt: ", and the reasons within them don't again.
func TestAMessageNamesThePackageOnce(t *testing.T) {
	ragged := []nwt.Field{{Name: "tokens", Type: nwt.Int32, Shape: []int{4}, Ragged: true}}
	forgotten := nwt.NewDataset(3, ragged, func(context.Context, int, *nwt.Sample) error { return nil })
	tooLong := nwt.NewDataset(3, ragged, func(_ context.Context, _ int, dst *nwt.Sample) error { dst.SetLen(0, 5); return nil })
	closed, err := nwt.Precompute(t.Context(), emptyDataset(3), t.TempDir()+"/samples", "v1")
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
			l := newLoader(t, c.ds, append(c.opts, nwt.WithBatchSize(1), nwt.WithWorkers(0), silent)...)
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
	_, err = nwt.LoadSample(t.Context(), nwt.Streamed(newShelves(3)), 0)
	require.Equal(t, 1, strings.Count(err.Error(), "nwt: "), err)
	_, err = nwt.LoadSample(t.Context(), closed, 0)
	require.ErrorIs(t, err, os.ErrClosed)
}

// With 0 workers the loop's own function runs the loader's code, inlined. A panic in
// nwt is told with the line of the program that led to it, not with a line of nwt.
func TestAPanicInASamplerOfNwtIsToldWithTheProgramsLine(t *testing.T) {
	s, err := sampler.Select(nwt.Sequential(5), []int{0, 1})
	require.NoError(t, err)
	l := newLoader(t, emptyDataset(3), nwt.WithSampler(s), nwt.WithWorkers(0), nwt.WithBatchSize(1))
	var last error
	for _, err := range l.Epoch(t.Context(), 0) {
		last = err
	}
	require.ErrorContains(t, last, "selects index 2 of 2")
	require.NotContains(t, last.Error(), "loader.go")
	require.Contains(t, last.Error(), "loader_errors_test.go:")
}

// refusal is the error that is all a sequence yields.
func refusal(t testing.TB, seq iter.Seq2[*nwt.Batch, error]) (only error) {
	t.Helper()
	n := 0
	for b, err := range seq {
		require.Nil(t, b)
		only = err
		n++
	}
	require.Equal(t, 1, n)
	require.Error(t, only)
	return only
}

func TestOfManyBadSamplesFewAreLogged(t *testing.T) {
	var log journal
	ds := loads(3000, func(_ context.Context, i int, _ *nwt.Sample) error {
		if i%2 == 0 {
			return errBad
		}
		return nil
	})
	l := newLoader(t, ds, nwt.WithErrorBudget(1500), nwt.WithBatchSize(100), log.option())
	for n := range 2 {
		before := strings.Count(log.String(), "a bad sample is left out")
		_, err := epoch(t.Context(), l, n)
		require.NoError(t, err)
		require.Equal(t, 28, strings.Count(log.String(), "a bad sample is left out")-before, "1 … 9, 10 … 90, 100 … 900 and 1000")
		require.Contains(t, log.String(), "bad=1000 budget=1500")
	}
	require.Equal(t, 3000, l.Stats().Bad)
}
