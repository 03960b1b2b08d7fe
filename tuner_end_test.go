package nwt_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/files"
)

// A heeding is a stream whose records wait, and heed their context meanwhile.
type heeding struct{ read, load time.Duration }

func (h heeding) Fields() []nwt.Field { return scalar }
func (h heeding) Shards() int         { return 64 }

func (h heeding) Open(context.Context, int) (nwt.ShardReader, error) { return heedingReader{h}, nil }

func (h heeding) Load(ctx context.Context, _ *nwt.Record, _ *nwt.Sample) error {
	return heed(ctx, h.load)
}

type heedingReader struct{ heeding }

func (h heedingReader) Next(ctx context.Context, _ *nwt.Record) error {
	return heed(ctx, h.read)
}

func (h heedingReader) Close() error { return nil }

// slowTogether loads samples one after the other in a call, and heeds its context meanwhile.
type slowTogether struct {
	nwt.Dataset
	each time.Duration
}

func (d slowTogether) LoadBatch(ctx context.Context, indices []int, _ []*nwt.Sample) error {
	return heed(ctx, time.Duration(len(indices))*d.each)
}

// When the time is over, calls return with an error and the samples behind them are left
// out. None of that is loading. Which of it the tuner sees depends on the order in which
// goroutines run.
func TestSamplesThatTheEndOfTheTimeCutShortDoNotCount(t *testing.T) {
	const load = 500 * time.Millisecond
	for name, ds := range map[string]nwt.Dataset{
		"a dataset": sleeping(1_000_000, load),
		"a stream":  nwt.Streamed(heeding{time.Millisecond, load}),
	} {
		t.Run(name, func(t *testing.T) {
			for range 30 {
				synctest.Test(t, func(t *testing.T) {
					r, err := nwt.Tune(t.Context(), ds, nwt.WithTuningTime(9*time.Second), virtual, silent,
						nwt.WithStep(func(context.Context, *nwt.Batch) error { time.Sleep(20 * time.Millisecond); return nil }))
					require.NoError(t, err)
					require.Len(t, r.Trials, 1)
					require.InEpsilon(t, 32*load/virtualCPUs, r.Trials[0].Mean, 0.15, "%v", r)
				})
			}
		})
	}
}

// How long calls that are under way would have taken can't be known.
func TestAVisitThatEndsWithinItsFirstWaveSaysHowFarOffItMayBe(t *testing.T) {
	const load, workers = 100 * time.Millisecond, 8
	warning := regexp.MustCompile(`8 workers: what they had begun when time was over .* up to ([\d.]+) times too high`)
	ds := sleeping(1_000_000, load)
	for name, c := range map[string]struct {
		ds    nwt.Dataset
		batch int
	}{
		"whole batches": {slowTogether{ds, load}, 32},
		"few samples":   {ds, 2},
	} {
		t.Run(name, func(t *testing.T) {
			for limit := range 100 { // in tenths of a wave
				synctest.Test(t, func(t *testing.T) {
					perBatch := time.Duration(c.batch) * load / workers
					wave := max(load, workers*perBatch)
					if c.batch == 2 {
						wave = load
					}
					r, err := nwt.Tune(t.Context(), c.ds, nwt.WithBatchSize(c.batch), nwt.WithTuningTime(time.Duration(limit+1)*wave/10), nwt.NewVirtualMachine(workers).Option(), silent)
					require.NoError(t, err)
					trial := r.Trials[slices.IndexFunc(r.Trials, func(t nwt.Trial) bool { return t.Workers == workers })]
					most := 1.25
					if said := warning.FindStringSubmatch(strings.Join(r.Warnings, "\n")); said != nil {
						most, err = strconv.ParseFloat(said[1], 64)
						require.NoError(t, err)
					}
					require.LessOrEqual(t, float64(trial.Mean)/float64(perBatch), most+0.05, "%.1f waves: %v", float64(limit+1)/10, r)
					if limit >= 60 {
						require.Equal(t, 1.25, most, "%v", r)
					}
				})
			}
		})
	}
}

// The batch that the caller is loading when time is over doesn't count, nor does its time, if it
// is no longer than that of the others.
func TestTheEndOfTheTimeAddsNothingToATimePerBatchWithoutWorkers(t *testing.T) {
	const load, batch = 100 * time.Millisecond, 32
	sleeps := sleeping(1_000_000, load)
	for name, ds := range map[string]nwt.Dataset{
		"one by one":    sleeps,
		"whole batches": slowTogether{sleeps, load},
		"heedless": nwt.NewDataset(1_000_000, scalar, func(context.Context, int, *nwt.Sample) error {
			time.Sleep(load)
			return nil
		}),
		"a stream": nwt.Streamed(heeding{0, load}),
	} {
		t.Run(name, func(t *testing.T) {
			for limit := range 60 { // in tenths of a batch
				synctest.Test(t, func(t *testing.T) {
					r, err := nwt.Tune(t.Context(), ds, nwt.WithBatchSize(batch), nwt.WithTuningTime(time.Duration(limit+1)*batch*load/10), nwt.WithMaxWorkers(0), virtual, silent)
					require.NoError(t, err)
					nearly(t, []time.Duration{r.Trials[0].Mean, r.Trials[0].Wait}, batch*load, batch*load)
				})
			}
		})
	}
}

// A batch that took longer than the others when time was over may hang. How long the worker
// took to begin, and the step, don't make the others longer.
func TestABatchThatHangsWhenTimeIsOverCountsWithoutWorkers(t *testing.T) {
	const load, batch, hangs, other = time.Millisecond, 32, 2 * time.Second, 5 * time.Second
	for name, opt := range map[string]nwt.Option{
		"alone":          silent,
		"WithWorkerInit": nwt.WithWorkerInit(func(ctx context.Context, _ int) error { return heed(ctx, other) }),
		"WithStep":       nwt.WithStep(func(context.Context, *nwt.Batch) error { time.Sleep(other); return nil }),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				loads, limit := 0, hangs
				if name != "alone" {
					limit += other // the first step is prepared, and counts for nothing
				}
				ds := nwt.NewDataset(1_000_000, scalar, func(ctx context.Context, _ int, _ *nwt.Sample) error {
					if loads++; loads > 2*batch {
						return heed(ctx, time.Hour)
					}
					return heed(ctx, load)
				})
				r, err := nwt.Tune(t.Context(), ds, nwt.WithBatchSize(batch), nwt.WithTuningTime(limit), nwt.WithMaxWorkers(0), virtual, silent, opt)
				require.NoError(t, err)
				require.Greater(t, r.Trials[0].Wait, hangs/3, "%v", r)
			})
		})
	}
}

// The first step with a batch isn't measured, but that batch was loaded like the others.
func TestTheEndOfTheTimeTakesNothingFromATimePerBatchWithAStepAndWithoutWorkers(t *testing.T) {
	const load, batch, step = 100 * time.Millisecond, 32, 5 * time.Second
	for limit := range 40 { // in half seconds
		synctest.Test(t, func(t *testing.T) {
			r, err := nwt.Tune(t.Context(), sleeping(1_000_000, load), nwt.WithBatchSize(batch), nwt.WithTuningTime(time.Duration(limit+1)*time.Second/2), nwt.WithMaxWorkers(0), virtual, silent,
				nwt.WithStep(func(context.Context, *nwt.Batch) error { time.Sleep(step); return nil }))
			require.NoError(t, err)
			nearly(t, []time.Duration{r.Trials[0].Mean, r.Trials[0].Wait, r.Trials[0].Step}, batch*load+step, batch*load, step)
		})
	}
}

func TestAResultThatIsCompleteWhenTuningIsCancelledIsReturnedAndKept(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var log journal
	ds := emptyDataset(1_000_000)
	opts := []nwt.Option{nwt.WithResultCache(filepath.Join(t.TempDir(), "tuned.json")), nwt.WithMaxWorkers(1), nwt.WithIterations(1), log.option()}
	r, err := nwt.Tune(ctx, ds, append(opts, nwt.WithProgress(func(p nwt.Progress) {
		if p.Phase == "done" {
			cancel()
		}
	}))...)
	require.NoError(t, err)
	require.Error(t, ctx.Err())
	require.NotContains(t, log.String(), "not kept")
	again, err := nwt.Tune(t.Context(), ds, opts...)
	require.NoError(t, err)
	require.True(t, again.Cached)
	require.Equal(t, r.Workers, again.Workers)
}

// WithWorkerInit says what it likes of the end of its context.
func TestTuningEndsInItsTimeThoughWorkersAreStillToBegin(t *testing.T) {
	for range 30 {
		synctest.Test(t, func(t *testing.T) {
			r, err := nwt.Tune(t.Context(), sleeping(1_000_000, time.Millisecond), nwt.WithTuningTime(500*time.Millisecond), nwt.WithMaxWorkers(16), virtual,
				nwt.WithWorkerInit(func(ctx context.Context, worker int) error {
					if worker >= virtualCPUs && heed(ctx, 10*time.Second) != nil {
						return errors.New("not connected")
					}
					return nil
				}))
			require.NoError(t, err)
			require.LessOrEqual(t, r.Elapsed, 500*time.Millisecond)
		})
	}
}

func TestHowLongWorkersTakeToBeginIsNoPartOfATimePerBatch(t *testing.T) {
	const load, perBatch = 10 * time.Millisecond, 32 * 10 * time.Millisecond / virtualCPUs
	for limit := time.Millisecond; limit < 20*perBatch; limit *= 2 {
		synctest.Test(t, func(t *testing.T) {
			r, err := nwt.Tune(t.Context(), sleeping(1_000_000, load), nwt.WithTuningTime(5*time.Second+limit), virtual, silent,
				nwt.WithWorkerInit(func(ctx context.Context, worker int) error { return heed(ctx, 5*time.Second) }))
			require.NoError(t, err)
			require.InEpsilon(t, perBatch, r.Trials[0].Mean, 0.3, "%v: %v", limit, r)
		})
	}
}

func TestNoWorkerBeginsOnceTimeIsOver(t *testing.T) {
	const limit, begins = 3 * time.Second, 4 * time.Second
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		r, err := nwt.Tune(t.Context(), sleeping(1_000_000, time.Millisecond), nwt.WithDevice(nowhere{}), nwt.WithTuningTime(limit), virtual, silent,
			nwt.WithWorkerInit(func(context.Context, int) error {
				if time.Since(began) >= limit {
					t.Errorf("a worker begins after %v", time.Since(began))
				}
				time.Sleep(begins)
				return nil
			}))
		require.NoError(t, err)
		require.LessOrEqual(t, r.Elapsed, begins+time.Second, "%v", r)
	})
}

func TestACallThatEndsWithItsContextIsNoFailure(t *testing.T) {
	for range 30 {
		synctest.Test(t, func(t *testing.T) {
			var log bytes.Buffer
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			_, err := nwt.Tune(ctx, slowTogether{sleeping(1_000_000, time.Millisecond), time.Millisecond}, nwt.WithMaxWorkers(16), virtual, nwt.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.Empty(t, log.String())
		})
	}
}

// Whatever the functions that heed the context make of its end; with a file of results and
// without; before tuning, and while it waits for another process.
func TestTheErrorOfATuningThatWasCancelledHasTheCause(t *testing.T) {
	stop := errors.New("stop")
	path := filepath.Join(t.TempDir(), "tuning.json")
	for _, opts := range [][]nwt.Option{{silent}, {silent, nwt.WithResultCache(path)}} {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(stop)
		_, err := nwt.Tune(ctx, sleeping(1000, time.Millisecond), opts...)
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, stop)
		require.NotContains(t, err.Error(), "another process")
	}
	for _, opts := range [][]nwt.Option{
		{nwt.WithStep(func(ctx context.Context, _ *nwt.Batch) error { <-ctx.Done(); return errors.New("not sent") })},
		{nwt.WithFinish(func(ctx context.Context, _ *nwt.Batch) error { <-ctx.Done(); return errors.New("not sent") })},
		{nwt.WithWorkerInit(func(ctx context.Context, _ int) error { <-ctx.Done(); return errors.New("not sent") })},
	} {
		ctx, cancel := context.WithTimeoutCause(t.Context(), 100*time.Millisecond, stop)
		defer cancel()
		_, err := nwt.Tune(ctx, sleeping(1000, time.Microsecond), append(opts, silent)...)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, stop)
		require.NotContains(t, err.Error(), "not sent")
	}
	unlock, err := files.Lock(t.Context(), path+".tune")
	require.NoError(t, err)
	defer unlock()
	ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Millisecond, stop)
	defer cancel()
	_, err = nwt.Tune(ctx, sleeping(1000, time.Millisecond), silent, nwt.WithResultCache(path))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorIs(t, err, stop)
	require.ErrorContains(t, err, "another process")
}

// inWholes counts the calls that get fewer samples than a batch has.
type inWholes struct {
	slowTogether
	batch       int
	calls, part *atomic.Int32
}

func (d inWholes) LoadBatch(ctx context.Context, indices []int, dst []*nwt.Sample) error {
	d.calls.Add(1)
	if len(indices) < d.batch {
		d.part.Add(1)
	}
	return d.slowTogether.LoadBatch(ctx, indices, dst)
}

// A visit ends the calls that are under way. That these took next to no time doesn't mean that
// batches are loaded so fast that workers may share one.
func TestCallsThatTheEndOfAVisitCutShortDoNotCount(t *testing.T) {
	const load, batch = time.Millisecond, 16
	synctest.Test(t, func(t *testing.T) {
		ds := inWholes{slowTogether{sleeping(1_000_000, load), load}, batch, new(atomic.Int32), new(atomic.Int32)}
		_, err := nwt.Tune(t.Context(), ds, nwt.WithBatchSize(batch), nwt.WithMaxWorkers(100), nwt.WithIterations(10), nwt.WithStrategy(nwt.Exhaustive()), virtual, silent)
		require.NoError(t, err)
		require.Less(t, ds.part.Load(), ds.calls.Load()/100)
	})
}

func TestCallsThatTheEndOfAnEpochCutShortDoNotCount(t *testing.T) {
	const load, batch = time.Millisecond, 16
	synctest.Test(t, func(t *testing.T) {
		l := newLoader(t, slowTogether{sleeping(batch*8, load), load}, nwt.WithBatchSize(batch), nwt.WithWorkers(8))
		for n := range 20 {
			ctx, cancel := context.WithTimeout(t.Context(), load)
			_, err := epoch(ctx, l, n)
			cancel()
			require.ErrorIs(t, err, context.DeadlineExceeded)
		}
		_, err := epoch(t.Context(), l, 20)
		require.NoError(t, err)
		require.InEpsilon(t, load, l.Stats().LoadMedian, 0.1)
	})
}

// The floor is measured with slots that aren't loaded again: they hold what was finished
// before, and where a sample was bad, anything.
func TestAStepOrFinishThatRefusesTheFloorsBatchesCostsTheFloorAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ds := nwt.NewDataset(64, summed(1).Fields(), func(_ context.Context, i int, dst *nwt.Sample) error {
			time.Sleep(time.Millisecond)
			nwt.Values[int64](dst, 0)[0], nwt.Values[int64](dst, 1)[0] = -1, 0
			if i%8 == 7 {
				return errBad
			}
			nwt.Values[int64](dst, 0)[0] = int64(i)
			return nil
		})
		whole := func(_ context.Context, b *nwt.Batch) error {
			time.Sleep(time.Millisecond)
			if slices.Contains(nwt.Values[int64](b, 0), -1) {
				return errors.New("a bad sample")
			}
			return nil
		}
		once := func(_ context.Context, b *nwt.Batch) error {
			for p, finished := range nwt.Values[int64](b, 1) {
				if finished != 0 {
					return errors.New("finished twice")
				}
				nwt.Values[int64](b, 1)[p] = 1
			}
			return nil
		}
		for _, opt := range []nwt.Option{nwt.WithStep(whole), nwt.WithFinish(once)} {
			r, err := nwt.Tune(t.Context(), ds, nwt.NewVirtualMachine(4).Option(), nwt.WithBatchSize(8), nwt.WithErrorBudget(8), quietLog, opt)
			require.NoError(t, err)
			require.Zero(t, r.Floor)
			require.Contains(t, r.String(), "not known")
		}
	})
}
