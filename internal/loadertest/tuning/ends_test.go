//go:build !race

package tuning_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/files"
	"github.com/nwt-go/nwt/internal/host"
	"github.com/nwt-go/nwt/internal/loadertest/kit"
)

func TestTuningEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	_, err := nwt.Tune(ctx, kit.Sleeping(1000, time.Millisecond), nwt.WithProgress(func(nwt.Progress) { cancel() }))
	require.ErrorIs(t, err, context.Canceled)
}

// Whatever the functions that heed the context make of its end; with a file of results and
// without; before tuning, and while it waits for another process.
func TestTheErrorOfATuningThatWasCancelledHasTheCause(t *testing.T) {
	stop := errors.New("stop")
	path := filepath.Join(t.TempDir(), "tuning.json")
	for _, opts := range [][]nwt.Option{{kit.Silent}, {kit.Silent, nwt.WithResultCache(path, "a")}} {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(stop)
		_, err := nwt.Tune(ctx, kit.Sleeping(1000, time.Millisecond), opts...)
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, stop)
		require.NotContains(t, err.Error(), "another process")
	}
	failing := func(ctx context.Context) error { <-ctx.Done(); return errors.New("not sent") }
	for _, opt := range []nwt.Option{
		nwt.WithStep(func(ctx context.Context, _ *nwt.Batch) error { return failing(ctx) }),
		nwt.WithBatchTransform(func(ctx context.Context, _ *nwt.Batch) error { return failing(ctx) }),
		nwt.WithWorkerInit(func(ctx context.Context, _ int) error { return failing(ctx) }),
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeoutCause(t.Context(), 100*time.Millisecond, stop)
			defer cancel()
			_, err := nwt.Tune(ctx, kit.Sleeping(1000, time.Microsecond), opt, kit.Silent, virtual)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.ErrorIs(t, err, stop)
			require.NotContains(t, err.Error(), "not sent")
		})
	}
	unlock, err := files.Lock(t.Context(), path+".tune")
	require.NoError(t, err)
	defer unlock()
	ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Millisecond, stop)
	defer cancel()
	_, err = nwt.Tune(ctx, kit.Sleeping(1000, time.Millisecond), kit.Silent, nwt.WithResultCache(path, "a"))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorIs(t, err, stop)
	require.ErrorContains(t, err, "another process")
}

func TestAResultThatIsCompleteWhenTuningIsCancelledIsReturnedAndKept(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var log kit.Journal
	path := filepath.Join(t.TempDir(), "tuned.json")
	_, err := nwt.Tune(ctx, kit.Sleeping(1_000_000, 100*time.Microsecond), nwt.WithResultCache(path, "a"), nwt.WithMaxWorkers(1), nwt.WithIterations(1), log.Option(),
		nwt.WithProgress(func(p nwt.Progress) {
			if p.Phase == "done" {
				cancel()
			}
		}))
	require.NoError(t, err)
	require.Error(t, ctx.Err())
	require.NotContains(t, log.String(), "not kept")
	require.FileExists(t, path)
}

func TestTuningRunsTheStepAndItsErrorsComeBack(t *testing.T) {
	steps := 0
	r, err := nwt.Tune(t.Context(), kit.EmptyDataset(1000), nwt.WithMaxWorkers(1), nwt.WithIterations(10), kit.Silent,
		nwt.WithStep(func(context.Context, *nwt.Batch) error { steps++; return nil }))
	require.NoError(t, err)
	require.Positive(t, steps)
	require.True(t, r.Step)
	_, err = nwt.Tune(t.Context(), kit.EmptyDataset(1000), kit.Silent, nwt.WithStep(func(context.Context, *nwt.Batch) error { return kit.ErrBoom }))
	require.ErrorIs(t, err, kit.ErrBoom)
	_, err = nwt.Tune(t.Context(), kit.EmptyDataset(1000), kit.Silent, nwt.WithStep(func(context.Context, *nwt.Batch) error { panic(kit.ErrBoom) }))
	require.ErrorIs(t, err, kit.ErrBoom)
	require.ErrorContains(t, err, "WithStep, batch 0 of epoch 0: ")
	require.ErrorContains(t, err, "ends_test.go:", "with the stack")
}

// Samples of a stream and of a dataset, waited for by workers that heed their context.
func TestTuningEndsInItsTime(t *testing.T) {
	const load = 100 * time.Millisecond
	for name, of := range map[string]func() nwt.Dataset{
		"a dataset":     func() nwt.Dataset { return kit.Sleeping(1_000_000, load) },
		"whole batches": func() nwt.Dataset { return kit.SlowTogether{Dataset: kit.Sleeping(1_000_000, load), Each: load} },
		"a stream":      func() nwt.Dataset { return nwt.Streamed(kit.Heeding{Reading: time.Millisecond, Loading: load}) },
		"one channel":   func() nwt.Dataset { return channel(1_000_000, load) },
	} {
		for _, limit := range []time.Duration{time.Millisecond, 300 * time.Millisecond, 3 * time.Second, 10 * time.Second, 30 * time.Second} {
			t.Run(fmt.Sprint(name, ", ", limit), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r := tune(t, of(), nwt.WithMaxWorkers(16), nwt.WithTuningTime(limit))
					first, calls := 2*32*load, 16*load // a wave is measured in any case; calls of Load that don't heed their context
					require.LessOrEqual(t, r.Elapsed, max(limit, first)+calls, "%v", r)
					require.NotEmpty(t, r.Trials)
					if r.Elapsed >= limit {
						require.Contains(t, r.String(), "the time for tuning was over")
					}
				})
			})
		}
	}
}

// The default is a minute, however slow batches are.
func TestTuningTakesAMinuteByDefault(t *testing.T) {
	for name, of := range map[string]func(int, time.Duration) nwt.Dataset{"side by side": kit.Sleeping, "one channel": channel} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := tune(t, of(1_000_000, 5*time.Second/32))
				require.LessOrEqual(t, r.Elapsed, 70*time.Second, "%v", r)
				if name == "side by side" {
					require.GreaterOrEqual(t, r.Workers, 8, "%v", r)
				}
			})
		})
	}
}

// Whatever the time, the answer isn't worse than the default by more than alpha and 2 %.
func TestAnyTimeIsBetterThanNotTuning(t *testing.T) {
	for name, of := range map[string]func() nwt.Dataset{
		"latency":     func() nwt.Dataset { return kit.Sleeping(1_000_000, time.Second/16) },
		"one channel": func() nwt.Dataset { return channel(1_000_000, time.Second/16) },
		"tail": func() nwt.Dataset {
			ds, _ := kit.Tailed(100_000, 10*time.Millisecond, time.Second, 0.01)
			return ds
		},
	} {
		for _, limit := range []time.Duration{time.Millisecond, time.Second, 3 * time.Second, 10 * time.Second, 30 * time.Second} {
			t.Run(name+", "+limit.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					ds := of()
					perBatch := func(workers int) float64 {
						l := kit.NewLoader(t, ds, nwt.WithBatchSize(16), nwt.WithWorkers(workers), kit.Silent, virtual)
						defer l.Close()
						return float64(kit.Train(t, l, 400, func() {}))
					}
					r := tune(t, ds, nwt.WithBatchSize(16), nwt.WithMaxWorkers(32), nwt.WithTuningTime(limit))
					require.LessOrEqual(t, perBatch(r.Workers), 1.07*perBatch(virtualCPUs), "%v", r)
				})
			})
		}
	}
}

func TestATuningTimeThatIsOverBeforeItBeginsMeasuresABatch(t *testing.T) {
	for _, workers := range []int{0, 4} {
		synctest.Test(t, func(t *testing.T) {
			r := tune(t, kit.Sleeping(100_000, time.Millisecond), nwt.WithBatchSize(4), nwt.WithTuningTime(time.Nanosecond), nwt.WithMaxWorkers(workers), stepOf(time.Microsecond))
			require.Len(t, r.Trials, 1)
			require.Positive(t, r.Trials[0].Mean, "%v", r)
			require.NotEmpty(t, r.Reason)
		})
	}
}

// After some quick batches loading hangs, with a step or without, with workers or without.
func TestTheTimeForTuningEndsALoadThatHangs(t *testing.T) {
	for _, opts := range [][]nwt.Option{{nwt.WithMaxWorkers(1)}, {nwt.WithMaxWorkers(0)}, {nwt.WithMaxWorkers(8), stepOf(0)}} {
		synctest.Test(t, func(t *testing.T) {
			var loads atomic.Int64
			ds := nwt.NewDataset(1_000_000, kit.Scalar, func(ctx context.Context, _ int, _ *nwt.Sample) error {
				if loads.Add(1) <= 200 {
					return kit.Heed(ctx, time.Millisecond)
				}
				return kit.Heed(ctx, time.Hour)
			})
			r := tune(t, ds, append(opts, nwt.WithBatchSize(4), nwt.WithTuningTime(10*time.Second))...)
			require.LessOrEqual(t, r.Elapsed, 11*time.Second)
		})
	}
}

// WithWorkerInit says what it likes of the end of its context.
func TestTuningEndsInItsTimeThoughWorkersAreStillToBegin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := tune(t, kit.Sleeping(1_000_000, time.Millisecond), nwt.WithTuningTime(500*time.Millisecond), nwt.WithMaxWorkers(16),
			nwt.WithWorkerInit(func(ctx context.Context, worker int) error {
				if worker >= virtualCPUs && kit.Heed(ctx, 10*time.Second) != nil {
					return errors.New("not connected")
				}
				return nil
			}))
		require.LessOrEqual(t, r.Elapsed, 520*time.Millisecond)
	})
}

func TestALoadThatSaysItWasCanceledIsAnErrorOfTheDataset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var loads atomic.Int64
		ds := nwt.NewDataset(1_000_000, kit.Scalar, func(context.Context, int, *nwt.Sample) error {
			time.Sleep(time.Millisecond)
			if loads.Add(1) > 200 {
				return context.Canceled
			}
			return nil
		})
		_, err := nwt.Tune(t.Context(), ds, nwt.WithBatchSize(4), nwt.WithMaxWorkers(1), virtual, kit.Silent)
		var failed *nwt.LoadError
		require.ErrorAs(t, err, &failed)
	})
}

// Within the error budget an epoch may lose all its samples. Then the next epoch won't
// have a batch either, nor the one after it.
func TestTuningEndsIfNoSampleCanBeLoaded(t *testing.T) {
	for name, ds := range map[string]nwt.Dataset{
		"map":    kit.Numbered(20, func(context.Context, int, *nwt.Sample) error { return kit.ErrBoom }),
		"stream": nwt.Streamed(&kit.Breaking{Shelves: kit.NewShelves(10, 10), OnLoad: func(*nwt.Sample) { panic(kit.ErrBoom) }}),
		"later": kit.Numbered(20, func(_ context.Context, _ int, dst *nwt.Sample) error {
			if dst.Epoch() > 3 {
				return kit.ErrBoom
			}
			return nil
		}),
	} {
		for _, opt := range []nwt.Option{nwt.WithTuningTime(time.Hour), nwt.WithIterations(100), nwt.WithUnordered(), nwt.WithDevice(kit.Nowhere{})} {
			kit.Promptly(t, func() {
				_, err := nwt.Tune(t.Context(), ds, nwt.WithBatchSize(4), nwt.WithMaxWorkers(2), nwt.WithErrorBudget(20), nwt.WithIterations(100), kit.Silent, opt)
				require.ErrorContains(t, err, "could be loaded, so there is no batch to measure; the last: ", name)
				require.ErrorIs(t, err, kit.ErrBoom)
			})
		}
	}
}

// hangingAt takes a millisecond for each sample, except for one that waits for its context.
func hangingAt(bad int) nwt.Dataset {
	return nwt.NewDataset(64, kit.Scalar, func(ctx context.Context, index int, _ *nwt.Sample) error {
		if index == bad {
			<-ctx.Done()
			return ctx.Err()
		}
		return kit.Heed(ctx, time.Millisecond)
	})
}

// Only with workers can a call be given up, so 0 workers aren't measured.
func TestWithATimeoutTuningEndsThoughASampleHangs(t *testing.T) {
	for name, opts := range map[string][]nwt.Option{
		"default":            {nwt.WithMaxWorkers(8)},
		"iterations":         {nwt.WithMaxWorkers(8), nwt.WithIterations(20)},
		"every count":        {nwt.WithMaxWorkers(8), nwt.WithIterations(20), nwt.WithStrategy(nwt.Exhaustive)},
		"one worker at most": {nwt.WithMaxWorkers(1), nwt.WithIterations(20)},
		"a step":             {nwt.WithMaxWorkers(8), nwt.WithIterations(20), stepOf(time.Millisecond)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				opts := append([]nwt.Option{nwt.WithBatchSize(4), nwt.WithTimeout(time.Second), kit.Silent, virtual}, opts...)
				_, err := nwt.Tune(t.Context(), hangingAt(2), opts...)
				var bad *nwt.LoadError
				require.ErrorAs(t, err, &bad)
				require.Equal(t, 2, bad.Index)

				r := tune(t, hangingAt(2), append(opts, nwt.WithErrorBudget(1))...)
				require.Positive(t, r.Workers, "%v", r)
				require.Positive(t, r.Trials[0].Workers, "%v", r)
				require.Contains(t, r.String(), "0 workers weren't tried: WithTimeout")
			})
		})
	}
}

func TestIfNoOtherCountIsLeftNoWorkersAreMeasuredAndTheResultWarns(t *testing.T) {
	const size = 32 << 20 // a batch
	large := nwt.NewDataset(100, []nwt.Field{{Name: "x", Type: nwt.Uint8, Shape: []int{size}}}, func(_ context.Context, _ int, s *nwt.Sample) error {
		clear(s.Bytes(0))
		return nil
	})
	debug.FreeOSMemory() // as tuning does
	for name, only := range map[string]nwt.Option{
		"WithMaxWorkers": nwt.WithMaxWorkers(0),
		"memory":         nwt.WithMemoryLimit(int64(host.Memory().RSS + 5*size)),
	} {
		t.Run(name, func(t *testing.T) {
			r, err := nwt.Tune(t.Context(), large, nwt.WithBatchSize(1), nwt.WithPrefetch(8), nwt.WithIterations(2), nwt.WithTimeout(time.Minute), only, kit.Silent)
			require.NoError(t, err)
			require.Equal(t, 0, r.Workers, "%v", r)
			require.Contains(t, r.Warnings, "WithTimeout doesn't hold without workers: a call that hangs is waited for")
		})
	}
}

func TestWorkerCountsThatNeedTooMuchMemoryAreRuledOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 8 << 20 // a batch; with more workers there are more of them
		ds := nwt.NewDataset(1000, []nwt.Field{{Name: "x", Type: nwt.Uint8, Shape: []int{size}}},
			func(ctx context.Context, _ int, s *nwt.Sample) error {
				clear(s.Bytes(0))
				return kit.Heed(ctx, 5*time.Millisecond)
			})
		debug.FreeOSMemory() // as tuning does
		limit := int64(host.Memory().RSS + 10*size)
		r := tune(t, ds, nwt.WithBatchSize(1), nwt.WithMaxWorkers(32), nwt.WithIterations(8), nwt.WithMemoryLimit(limit))
		require.LessOrEqual(t, r.Workers, 10)
		require.NotEmpty(t, r.RuledOut)
		require.Contains(t, r.RuledOut[0].Reason, "(set by WithMemoryLimit)")
		require.Contains(t, r.String(), r.RuledOut[0].Reason)
		for _, trial := range r.Trials {
			if trial.Memory > 0 { // else the peak, pages of files included
				require.LessOrEqual(t, trial.Memory, limit)
			}
		}
	})
}

func TestALimitThatNothingFitsInIsAnError(t *testing.T) {
	for _, opt := range []nwt.Option{kit.Silent, nwt.WithTuningTime(time.Millisecond), nwt.WithStrategy(nwt.Exhaustive)} {
		synctest.Test(t, func(t *testing.T) {
			_, err := nwt.Tune(t.Context(), kit.Sleeping(1000, time.Millisecond), nwt.WithMemoryLimit(1), kit.Silent, virtual, opt)
			require.ErrorContains(t, err, "nwt: no worker count fits into memory: ")
			require.ErrorContains(t, err, "over the limit of 1 B (set by WithMemoryLimit)")
		})
	}
}

func TestTuningTellsWhichRecordOfAStreamIsTornOrHangs(t *testing.T) {
	for _, at := range []int{5, 40} {
		synctest.Test(t, func(t *testing.T) {
			var open atomic.Int32
			ds := library{shards: 6, records: 1000, load: time.Millisecond, torn: at, opened: &open}
			_, err := nwt.Tune(t.Context(), nwt.Streamed(ds), nwt.WithMaxWorkers(4), virtual, kit.Silent)
			var shard *nwt.ShardError
			require.ErrorAs(t, err, &shard)
			require.ErrorIs(t, err, kit.ErrTorn)
			require.Equal(t, at, shard.Record)

			ds.torn, ds.stuck = 0, at
			_, err = nwt.Tune(t.Context(), nwt.Streamed(ds), nwt.WithMaxWorkers(4), nwt.WithTimeout(time.Second), virtual, kit.Silent)
			require.ErrorAs(t, err, &shard)
			require.Equal(t, at, shard.Record)
			synctest.Wait() // calls that were given up aren't waited for
			require.Zero(t, open.Load())
		})
	}
}

// Its time, its context or an error of the step ends tuning soon, though a record never comes.
func TestTuningEndsInTimeThoughAStreamHangs(t *testing.T) {
	const limit = time.Second
	for name, end := range map[string]nwt.Option{
		"time": nwt.WithTuningTime(limit), "context": kit.Silent,
		"step": nwt.WithStep(func(_ context.Context, b *nwt.Batch) error {
			if b.Number() == 5 {
				return kit.ErrBad
			}
			return nil
		}),
	} {
		t.Run(name, func(t *testing.T) {
			for _, stuck := range []int{60, 100, 300} {
				synctest.Test(t, func(t *testing.T) {
					var open atomic.Int32
					ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
					defer cancel()
					if name == "context" {
						time.AfterFunc(limit, cancel)
					}
					began := time.Now()
					r, err := nwt.Tune(ctx, nwt.Streamed(library{shards: 6, records: 1000, load: time.Millisecond, stuck: stuck, opened: &open}), nwt.WithMaxWorkers(4), virtual, kit.Silent, end)
					switch name {
					case "time":
						require.NoError(t, err)
						require.NotEmpty(t, r.Trials)
					case "context":
						require.ErrorIs(t, err, context.Canceled)
					case "step":
						require.ErrorIs(t, err, kit.ErrBad)
					}
					require.LessOrEqual(t, time.Since(began), limit+20*time.Millisecond)
					require.Zero(t, open.Load())
				})
			}
		})
	}
}

// A call that isn't answered in time counts as a bad sample, and tuning goes on.
func TestTuningGoesOnAfterACallOfAStreamThatWasGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var open atomic.Int32
		r := tune(t, nwt.Streamed(library{shards: 60, records: 1000, load: time.Millisecond, stuck: 150, opened: &open}),
			nwt.WithMaxWorkers(4), nwt.WithTimeout(2*time.Second), nwt.WithErrorBudget(1_000_000))
		require.NotEmpty(t, r.Trials)
		synctest.Wait() // calls that were given up aren't waited for
		require.Zero(t, open.Load())
	})
}

func TestTuningLeavesNothingBehind(t *testing.T) {
	ds := nwt.NewDataset(1000, []nwt.Field{{Name: "x", Type: nwt.Uint8, Shape: []int{1 << 20}}}, func(_ context.Context, _ int, s *nwt.Sample) error {
		clear(s.Bytes(0))
		return nil
	})
	tune := func() {
		_, err := nwt.Tune(t.Context(), ds, nwt.WithBatchSize(4), nwt.WithMaxWorkers(4), nwt.WithIterations(10), kit.Silent)
		require.NoError(t, err)
	}
	tune() // what is loaded once stays
	percent, limit := debug.SetGCPercent(50), debug.SetMemoryLimit(1<<40)
	defer debug.SetGCPercent(percent)
	defer debug.SetMemoryLimit(limit)
	goroutines, procs := runtime.NumGoroutine(), runtime.GOMAXPROCS(0)
	debug.FreeOSMemory()
	rss := kit.ResidentMemory()

	tune()
	for range 1000 { // a goroutine that was joined may not have quite ended
		if runtime.NumGoroutine() <= goroutines {
			break
		}
		time.Sleep(time.Millisecond)
	}
	require.LessOrEqual(t, runtime.NumGoroutine(), goroutines)
	require.Equal(t, procs, runtime.GOMAXPROCS(0))
	require.Equal(t, 50, debug.SetGCPercent(50))
	require.Equal(t, int64(1<<40), debug.SetMemoryLimit(-1))
	debug.FreeOSMemory()
	const batches = 4 * 4 << 20 // of the smallest loader
	require.Less(t, kit.ResidentMemory(), rss+batches/2)
}

func TestTuningReportsWhereItStands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen []nwt.Progress
		var shown []*nwt.Trial
		var copies []nwt.Trial
		var log kit.Journal
		r := tune(t, kit.Sleeping(1_000_000, time.Millisecond), nwt.WithMaxWorkers(4), log.Option(), nwt.WithProgress(func(p nwt.Progress) {
			if seen = append(seen, p); p.Trial != nil {
				shown, copies = append(shown, p.Trial), append(copies, *p.Trial)
				require.Equal(t, 100*p.Trial.Mean, p.Trial.Total)
			}
		}))
		require.Empty(t, log.String(), "the program shows it")
		require.NotEmpty(t, shown)
		for i, trial := range shown {
			require.Equal(t, copies[i], *trial, "what a program was shown stays as it was")
		}
		for i, p := range seen[:len(seen)-1] {
			require.LessOrEqual(t, p.Done, seen[i+1].Done)
			require.LessOrEqual(t, p.Elapsed, seen[i+1].Elapsed)
			require.Equal(t, "measuring", p.Phase)
			require.LessOrEqual(t, p.Left, time.Minute)
		}
		last := seen[len(seen)-1]
		require.Equal(t, []any{"done", 1.0, r.Workers}, []any{last.Phase, last.Done, last.Workers})
	})
}

// At the start, every ten seconds and at the end.
func TestTheLogTellsWhereTuningStands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log kit.Journal
		r := tune(t, kit.Sleeping(1_000_000, 500*time.Millisecond), log.Option())
		require.Greater(t, r.Elapsed, 20*time.Second)
		lines := strings.Count(log.String(), "nwt: tuning the worker count")
		require.GreaterOrEqual(t, lines, int(r.Elapsed/(15*time.Second)), "%s", &log)
		require.LessOrEqual(t, lines, 2+int(r.Elapsed/(10*time.Second)), "%s", &log)
		require.Contains(t, log.String(), fmt.Sprintf("workers=%d", r.Workers), "the end tells what was chosen")
	})
}
