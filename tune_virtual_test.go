package nwt_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/host"
)

// In virtual time sleeping is exact, and nothing else takes any.
func TestTheChoiceIsTheFewestWorkersAtWhichTrainingDoesNotWait(t *testing.T) {
	for _, tt := range []struct {
		name       string
		load, step time.Duration // of a batch, as if one worker loaded it
		want       [2]int        // workers, from … to
	}{
		{"loading is faster than the step", 4 * time.Millisecond, 5 * time.Millisecond, [2]int{1, 1}},
		{"loading takes three steps", 15 * time.Millisecond, 5 * time.Millisecond, [2]int{3, 3}},
		{"the step is nothing beside loading", 16 * time.Millisecond, time.Millisecond, [2]int{15, 16}},
		{"loading is nothing beside the step", 0, 5 * time.Millisecond, [2]int{0, 0}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const batch = 16
				r, err := nwt.Tune(t.Context(), sleeping(100_000, tt.load/batch), nwt.WithBatchSize(batch), nwt.WithMaxWorkers(16), virtual,
					nwt.WithStep(func(context.Context, *nwt.Batch) error { time.Sleep(tt.step); return nil }))
				require.NoError(t, err)
				require.GreaterOrEqual(t, r.Workers, tt.want[0], "%v", r)
				require.LessOrEqual(t, r.Workers, tt.want[1], "%v", r)
				require.Equal(t, tt.step, r.Floor)
			})
		})
	}
}

// longRun is what a batch takes once training has gone on for a while.
func longRun(t *testing.T, ds nwt.Dataset, step func(context.Context, *nwt.Batch) error, opts ...nwt.Option) time.Duration {
	t.Helper()
	l := newLoader(t, ds, opts...)
	const before, measured = 500, 2000
	n, began := 0, time.Now()
	for b, err := range l.Epoch(t.Context(), 1) {
		require.NoError(t, err)
		require.NoError(t, step(t.Context(), b))
		if n++; n == before {
			began = time.Now()
		} else if n == before+measured {
			break
		}
	}
	return time.Since(began) / measured
}

// One sample in a hundred takes a hundred times as long. A visit is so short that the loader
// is seldom as far ahead as in a long run: while training waits for a slow sample, others are
// loaded behind it.
func TestWhatASlowSampleHoldsUpIsNotTakenForSlowLoading(t *testing.T) {
	if testing.Short() {
		t.Skip("measures in virtual time")
	}
	for _, step := range []time.Duration{8 * time.Millisecond, 15 * time.Millisecond} {
		for seed := range uint64(3) {
			synctest.Test(t, func(t *testing.T) {
				ds, _ := tailed(32*20_000, time.Millisecond, 100*time.Millisecond, 0.01)
				opts := []nwt.Option{nwt.WithBatchSize(32), nwt.WithShuffle(seed), nwt.WithMaxWorkers(32), silent, virtual}
				train := func(context.Context, *nwt.Batch) error { time.Sleep(step); return nil }
				r, err := nwt.Tune(t.Context(), ds, append(opts, nwt.WithStep(train))...)
				require.NoError(t, err)

				long := longRun(t, ds, train, append(opts, nwt.WithWorkers(r.Workers))...)
				i := slices.IndexFunc(r.Trials, func(t nwt.Trial) bool { return t.Workers == r.Workers })
				require.InEpsilon(t, long, r.Trials[i].Mean, 0.25, "%v", r)
			})
		}
	}
}

// One sample in 500 takes 400 ms, which is longer than a visit. What four workers can load is known
// from the samples alone. Eight workers load faster than the step needs: they have time for slow
// samples, so these cost nothing there.
func TestASampleThatOutlastsTheVisitIsPaidFor(t *testing.T) {
	if testing.Short() {
		t.Skip("measures in virtual time")
	}
	const batch, step, slow = 32, 8 * time.Millisecond, 400 * time.Millisecond
	silentlySleep := func(_ context.Context, d time.Duration) { time.Sleep(d) }
	for name, tt := range map[string]struct {
		opts []nwt.Option
		wait func(context.Context, time.Duration)
	}{
		"in order":      {nil, silentlySleep},
		"without order": {[]nwt.Option{nwt.WithUnordered()}, silentlySleep},
		"without order, calls heed their context": {[]nwt.Option{nwt.WithUnordered()}, rest},
	} {
		t.Run(name, func(t *testing.T) {
			_, takes := tailed(batch*20_000, time.Millisecond, slow, 0.002)
			all := time.Duration(0)
			for i := range batch * 20_000 {
				all += takes(i)
			}
			ds := nwt.NewDataset(batch*20_000, scalar, func(ctx context.Context, i int, _ *nwt.Sample) error {
				tt.wait(ctx, takes(i))
				return nil
			})
			shown, iterations := map[int]time.Duration{}, map[int]int{}
			for seed := range uint64(12) {
				synctest.Test(t, func(t *testing.T) {
					train := func(context.Context, *nwt.Batch) error { time.Sleep(step); return nil }
					r, err := nwt.Tune(t.Context(), ds, append(tt.opts, nwt.WithBatchSize(batch), nwt.WithShuffle(seed), nwt.WithMaxWorkers(32), silent, virtual, nwt.WithStep(train))...)
					require.NoError(t, err)
					for _, trial := range r.Trials {
						shown[trial.Workers] += trial.Mean * time.Duration(trial.Iterations)
						iterations[trial.Workers] += trial.Iterations
					}
				})
			}
			require.InEpsilon(t, float64(all)/20_000/4, float64(shown[4])/float64(iterations[4]), 0.15)
			require.InEpsilon(t, float64(step), float64(shown[8])/float64(iterations[8]), 0.10)
		})
	}
}

// Nothing is taken while Tune waits for a slow sample to end after a visit. Workers that have
// filled all batches by then show no need of more: without order, nothing waits for that sample.
func TestWaitingForStragglersDeepensNothing(t *testing.T) {
	ds, _ := tailed(100_000, time.Millisecond, 300*time.Millisecond, 0.002)
	for seed := range uint64(6) {
		synctest.Test(t, func(t *testing.T) {
			r, err := nwt.Tune(t.Context(), ds, nwt.WithBatchSize(4), nwt.WithUnordered(), nwt.WithShuffle(seed), nwt.WithMaxWorkers(4), silent, virtual)
			require.NoError(t, err)
			for _, trial := range r.Trials {
				require.LessOrEqual(t, trial.Prefetch, 4, "%v", r)
			}
		})
	}
}

// An epoch of 33 samples has batches of 32 and of 1. What workers can load depends on how many
// samples the batches of a visit had, rather than on how many a batch may have.
func TestStragglersOfBatchesThatAreShorterThanOthersAreNotChargedTwice(t *testing.T) {
	const load, step = 10 * time.Millisecond, 30 * time.Millisecond
	for name, opts := range map[string][]nwt.Option{"in order": nil, "without order": {nwt.WithUnordered()}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				train := func(context.Context, *nwt.Batch) error { time.Sleep(step); return nil }
				r, err := nwt.Tune(t.Context(), slowTogether{sleeping(33, load), load}, append(opts, nwt.WithBatchSize(32), nwt.WithMaxWorkers(16), silent, virtual, nwt.WithStep(train))...)
				require.NoError(t, err)
				i := slices.IndexFunc(r.Trials, func(t nwt.Trial) bool { return t.Workers == 1 })
				require.InEpsilon(t, load*33/2, r.Trials[i].Mean, 0.05, "%v", r)
			})
		})
	}
}

// rest waits, unless the context ends first.
func rest(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// Copies come one after the other: while training waits for one, others are loaded behind it,
// which will wait for their copies too. And a visit finds buffers on the device free, into which
// it copies at once.
func TestNoBatchTakesLessTimeThanItsCopy(t *testing.T) {
	const copying, step = 10 * time.Millisecond, 5 * time.Millisecond
	for _, slow := range []float64{0, 0.01} {
		t.Run(fmt.Sprintf("%g slow", slow), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ds, _ := tailed(32*20_000, time.Millisecond, 100*time.Millisecond, slow)
				r, err := nwt.Tune(t.Context(), ds, nwt.WithBatchSize(32), nwt.WithMaxWorkers(32), silent, virtual,
					nwt.WithDevice(&fakeDevice{took: copying}),
					nwt.WithStep(func(context.Context, *nwt.Batch) error { time.Sleep(step); return nil }))
				require.NoError(t, err)
				for _, trial := range r.Trials {
					require.GreaterOrEqual(t, trial.Mean, copying, "%d workers: %v", trial.Workers, r)
				}
			})
		})
	}
}

// XLA compiles for seconds when it sees a shape for the first time, and so for a
// last batch that is shorter too.
func TestACompilerInTheFirstStepIsNotMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const step, compiling, budget = 5 * time.Millisecond, 4 * time.Second, 2 * time.Second
		compiled := map[int]bool{}
		r, err := nwt.Tune(t.Context(), sleeping(100, time.Millisecond), nwt.WithBatchSize(16), nwt.WithMaxWorkers(8),
			nwt.WithTuningTime(budget), virtual,
			nwt.WithStep(func(_ context.Context, b *nwt.Batch) error {
				if !compiled[b.Len()] {
					compiled[b.Len()] = true
					time.Sleep(compiling)
				}
				time.Sleep(step)
				return nil
			}))
		require.NoError(t, err)
		require.Len(t, compiled, 2)
		require.GreaterOrEqual(t, len(r.Trials), 3, "%v", r)
		for _, trial := range r.Trials {
			require.Equal(t, step, trial.Step, "%d workers", trial.Workers)
		}
		require.Equal(t, step, r.Floor)
		require.GreaterOrEqual(t, r.Elapsed, 2*compiling)
		require.LessOrEqual(t, r.Elapsed, 2*compiling+budget*12/10, "%v", r)
	})
}

// batched loads together what the other loads one by one.
type batched struct{ nwt.Dataset }

func (b batched) LoadBatch(ctx context.Context, indices []int, dst []*nwt.Sample) error {
	return b.Load(ctx, indices[0], dst[0])
}

func TestTheFloorIsWithoutAnyLoading(t *testing.T) {
	for name, ds := range map[string]nwt.Dataset{
		"one by one": sleeping(100_000, time.Millisecond),
		"together":   batched{sleeping(100_000, time.Millisecond)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, err := nwt.Tune(t.Context(), ds, nwt.WithBatchSize(4), nwt.WithMaxWorkers(8), virtual,
					nwt.WithStep(func(context.Context, *nwt.Batch) error { time.Sleep(time.Microsecond); return nil }))
				require.NoError(t, err)
				require.Equal(t, time.Microsecond, r.Floor)
			})
		})
	}
}

// Eight workers that have a batch each finish at the same time: what is
// measured must not depend on where in such a wave a visit begins.
func TestWorkersThatFinishTogetherAreMeasuredInWholeWaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, err := nwt.Tune(t.Context(), sleeping(100_000, 8*time.Millisecond), nwt.WithBatchSize(1), nwt.WithMaxWorkers(8), nwt.WithIterations(8), virtual)
		require.NoError(t, err)
		require.Equal(t, 8, r.Workers, "%v", r)
		require.InEpsilon(t, time.Millisecond, r.Trials[len(r.Trials)-1].Mean, 0.1, "%v", r)
	})
}

// Whatever the time for tuning, one batch is waited for, and is what the answer says.
func TestATuningTimeThatIsOverBeforeItBeginsMeasuresABatch(t *testing.T) {
	for _, workers := range []int{0, 4} {
		synctest.Test(t, func(t *testing.T) {
			r, err := nwt.Tune(t.Context(), sleeping(100_000, time.Millisecond), nwt.WithBatchSize(4), nwt.WithTuningTime(time.Nanosecond), nwt.WithMaxWorkers(workers), virtual,
				nwt.WithStep(func(context.Context, *nwt.Batch) error { time.Sleep(time.Microsecond); return nil }))
			require.NoError(t, err)
			require.Len(t, r.Trials, 1)
			nearly(t, []time.Duration{r.Trials[0].Mean, r.Trials[0].Step}, 4*time.Millisecond/time.Duration(max(1, workers))+time.Microsecond, time.Microsecond)
		})
	}
}

func TestTuningEndsInItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 300 * time.Millisecond
		r, err := nwt.Tune(t.Context(), sleeping(100_000, time.Millisecond), nwt.WithMaxWorkers(64), nwt.WithTuningTime(limit), virtual)
		require.NoError(t, err)
		require.LessOrEqual(t, r.Elapsed, limit+32*time.Millisecond, "%v", r)
		require.Contains(t, r.String(), "the time for tuning was over")
	})
}

// Tune loads the next epoch while one ends. A loop over Epoch doesn't, and waits for the
// first batch of each.
func TestEpochsShorterThanWhatIsLoadedAheadAreAWarning(t *testing.T) {
	for samples, short := range map[int]bool{10: true, 64: true, 100_000: false} {
		synctest.Test(t, func(t *testing.T) {
			r, err := nwt.Tune(t.Context(), sleeping(samples, time.Millisecond), nwt.WithMaxWorkers(8), virtual)
			require.NoError(t, err)
			require.Equal(t, short, strings.Contains(r.String(), "a loop over Epoch takes longer"), "%v", r)
		})
	}
}

// One worker per CPU is where the search begins, and there was no time for more.
func TestIfTimeEndsTheSearchTheAdviceIsMoreTime(t *testing.T) {
	for want, opts := range map[string][]nwt.Option{
		"4 workers is the highest count that there was time for, and this process used 0.0 % of 4 CPUs: more workers may be faster (WithTuningTime).": nil,
		"4 workers is the highest count that was tried, and this process used 0.0 % of 4 CPUs: more workers may be faster (WithMaxWorkers).":          {nwt.WithMaxWorkers(4)},
	} {
		synctest.Test(t, func(t *testing.T) {
			r, err := nwt.Tune(t.Context(), sleeping(100_000, 100*time.Millisecond), append(opts, nwt.WithTuningTime(3*time.Second), virtual)...)
			require.NoError(t, err)
			require.Contains(t, r.Advice, want)
		})
	}
}

// The choice leaves drift out, the table doesn't: a machine that becomes slower all the time
// makes counts look slow that were measured last.
func TestTheReasonNamesTheDriftThatTheTableShows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		ds := nwt.NewDataset(1_000_000, scalar, func(context.Context, int, *nwt.Sample) error {
			time.Sleep(time.Duration((1 + 3*time.Since(began).Seconds()) * float64(time.Millisecond)))
			return nil
		})
		r, err := nwt.Tune(t.Context(), ds, nwt.WithMaxWorkers(8), virtual)
		require.NoError(t, err)
		require.True(t, slices.ContainsFunc(r.Trials, func(trial nwt.Trial) bool {
			return trial.Workers < r.Workers && trial.Mean < r.Trials[len(r.Trials)-1].Mean
		}), "%v", r)
		require.Contains(t, r.Reason, "once drift that all counts share and chance are left out", "%v", r)
	})
}

// busyFor is a dataset whose samples wait, and keep a CPU of m busy after that.
func busyFor(m *nwt.VirtualMachine, wait, compute time.Duration) nwt.Dataset {
	return nwt.NewDataset(1_000_000, scalar, func(context.Context, int, *nwt.Sample) error {
		time.Sleep(wait)
		m.Compute(compute)
		return nil
	})
}

// nearly is for times that depend a little on the order in which goroutines run.
func nearly(t *testing.T, got []time.Duration, want ...time.Duration) {
	t.Helper()
	require.Len(t, got, len(want))
	for i := range got {
		require.InDelta(t, float64(want[i]), float64(got[i]), 0.02*float64(want[i]), "%d of %v, not %v", i, got, want)
	}
}

// A batch of four takes one worker 4 ms, of which 1 ms computes.
func TestATrialTellsWhatABatchCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := nwt.NewVirtualMachine(virtualCPUs)
		m.Collector, m.Others = 0.5, 0.5
		pause := time.Duration(0) // of every tenth step
		tune := func(most int) *nwt.Result {
			r, err := nwt.Tune(t.Context(), busyFor(m, 750*time.Microsecond, 250*time.Microsecond), nwt.WithBatchSize(4), nwt.WithMaxWorkers(most),
				nwt.WithIterations(100), nwt.WithStrategy(nwt.Exhaustive()), m.Option(),
				nwt.WithStep(func(_ context.Context, b *nwt.Batch) error {
					time.Sleep(2 * time.Millisecond)
					if b.Index()%10 == 9 {
						time.Sleep(pause)
					}
					return nil
				}))
			require.NoError(t, err)
			require.Len(t, r.Trials, most+1)
			return r
		}
		r := tune(1)
		require.Equal(t, 2*time.Millisecond, r.Floor)
		for workers, mean := range []time.Duration{6 * time.Millisecond, 4 * time.Millisecond} {
			trial := r.Trials[workers]
			require.Equal(t, 100, trial.Iterations)
			nearly(t, []time.Duration{trial.Mean, trial.Wait, trial.Transfer, trial.Step}, mean, mean-2*time.Millisecond, 0, 2*time.Millisecond)
			nearly(t, []time.Duration{trial.Low, trial.High, trial.Median, trial.P99, trial.Total}, mean, mean, mean, mean, 100*mean)
			require.Equal(t, 4*time.Millisecond, trial.FirstBatch)
			require.InEpsilon(t, (0.5+1/mean.Seconds()/1000)/virtualCPUs, trial.CPU, 0.02)
			require.Equal(t, []float64{0.125, 0.5}, []float64{trial.CollectorCPU, trial.OtherCPU})
			require.Positive(t, trial.PeakRSS)
			require.Positive(t, trial.SystemUsed)
		}
		require.Zero(t, r.Trials[0].Prefetch)
		require.GreaterOrEqual(t, r.Trials[1].Prefetch, 2)

		pause = 10 * time.Millisecond
		trial := tune(0).Trials[0]
		nearly(t, []time.Duration{trial.Mean, trial.Wait, trial.Step}, 7*time.Millisecond, 4*time.Millisecond, 3*time.Millisecond)
		nearly(t, []time.Duration{trial.Median, trial.P99}, 6*time.Millisecond, 16*time.Millisecond)
		require.Less(t, trial.Low, trial.Mean)
		require.Greater(t, trial.High, trial.Mean)
	})
}

// A worker's first twelve samples take 10 ms more: it connects, opens files, fills caches.
func TestWhatAWorkerDoesForTheFirstTimeIsNotMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := make(chan map[int]int, 1) // by worker; waiting for a mutex would stop virtual time
		seen <- map[int]int{}
		ds := nwt.NewDataset(1_000_000, scalar, func(_ context.Context, _ int, s *nwt.Sample) error {
			loaded := <-seen
			loaded[s.Worker()]++
			first := loaded[s.Worker()] <= 12
			seen <- loaded
			time.Sleep(time.Millisecond)
			if first {
				time.Sleep(10 * time.Millisecond)
			}
			return nil
		})
		// What is loaded is counted once all workers that finish at the same time have.
		step := nwt.WithStep(func(context.Context, *nwt.Batch) error { time.Sleep(time.Microsecond); return nil })
		r, err := nwt.Tune(t.Context(), ds, nwt.WithBatchSize(8), nwt.WithMaxWorkers(4), nwt.WithIterations(20), nwt.WithStrategy(nwt.Exhaustive()), step, virtual)
		require.NoError(t, err)
		for _, trial := range r.Trials[1:] {
			nearly(t, []time.Duration{trial.Mean}, 8*time.Millisecond/time.Duration(trial.Workers))
		}
	})
}

// Half of the machine's CPUs are in use by others. That leaves a rank its half.
func TestOthersTakeNothingFromARankIfTheyHaveRoom(t *testing.T) {
	for name, value := range map[string]string{"WORLD_SIZE": "2", "RANK": "0", "LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "0"} {
		t.Setenv(name, value)
	}
	synctest.Test(t, func(t *testing.T) {
		m := nwt.NewVirtualMachine(4)
		m.Others = 0.5
		r, err := nwt.Tune(t.Context(), busyFor(m, time.Millisecond, 2*time.Millisecond), nwt.WithBatchSize(16), nwt.WithMaxWorkers(2), nwt.WithIterations(50), nwt.WithLauncher(), silent, m.Option())
		require.NoError(t, err)
		for _, trial := range r.Trials {
			require.Zero(t, trial.OtherCPU, "%v", r)
		}
		require.NotContains(t, r.String(), "other processes", "%v", r)
	})
}

// A connection is kept by Scratch.
type connection struct{ loaded int }

// connecting is a dataset whose samples take longer if the worker's connection has loaded
// less than ten.
func connecting(usual, more time.Duration) nwt.Dataset {
	return nwt.NewDataset(1_000_000, scalar, func(_ context.Context, _ int, s *nwt.Sample) error {
		c, err := nwt.Scratch(s, func() (*connection, error) { return &connection{}, nil })
		if c.loaded++; c.loaded <= 10 {
			time.Sleep(more)
		}
		time.Sleep(usual)
		return err
	})
}

// A worker that leaves closes its connection. Who takes its seat in a later visit makes a
// new one, and is cold again.
func TestWhatAWorkerDoesOnceItIsBackIsNotMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, err := nwt.Tune(t.Context(), connecting(time.Millisecond, 19*time.Millisecond), nwt.WithBatchSize(32), nwt.WithMaxWorkers(32), virtual,
			nwt.WithStep(func(context.Context, *nwt.Batch) error { time.Sleep(2 * time.Millisecond); return nil }))
		require.NoError(t, err)
		require.GreaterOrEqual(t, r.Workers, 16, "%v", r)
	})
}

// Most visits find their workers there. The first batch is told of a visit that started
// them, or of the floor's loader, whose workers are all new.
func TestTheFirstBatchTakesWhatWorkersNeedToBegin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const begins = 2 * time.Second
		r, err := nwt.Tune(t.Context(), sleeping(1_000_000, time.Millisecond), nwt.WithBatchSize(32), nwt.WithMaxWorkers(8), virtual,
			nwt.WithWorkerInit(func(context.Context, int) error { time.Sleep(begins); return nil }))
		require.NoError(t, err)
		for _, trial := range r.Trials {
			if trial.Workers == r.Workers || trial.Workers == virtualCPUs {
				require.GreaterOrEqual(t, trial.FirstBatch, begins, "%d workers", trial.Workers)
			}
		}
		require.Contains(t, r.String(), "The first batch took 2", "%v", r)
	})
}

// Each count has one more worker than the one before, and those that were there go on loading
// while it begins.
func TestTheFirstBatchTakesWhatAWorkerNeedsToBeginAlthoughOthersWereThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const begins = 2 * time.Second
		r, err := nwt.Tune(t.Context(), sleeping(1_000_000, time.Millisecond), nwt.WithBatchSize(32), nwt.WithMaxWorkers(8), virtual, nwt.WithStrategy(nwt.Exhaustive()),
			nwt.WithWorkerInit(func(context.Context, int) error { time.Sleep(begins); return nil }))
		require.NoError(t, err)
		for _, trial := range r.Trials[1:] {
			require.GreaterOrEqual(t, trial.FirstBatch, begins, "%d workers", trial.Workers)
		}
	})
}

// A worker that comes prepares for seconds, while the others load. What they load meanwhile
// isn't a measure of loading, nor is the time that training waits for the worker.
func TestWhatWorkersDoToBeginIsNotMeasured(t *testing.T) {
	const load = 2 * time.Millisecond
	for _, begins := range []time.Duration{100 * time.Millisecond, time.Second, 5 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			// What is loaded is counted once all workers that finish at the same time have.
			step := nwt.WithStep(func(context.Context, *nwt.Batch) error { time.Sleep(time.Microsecond); return nil })
			r, err := nwt.Tune(t.Context(), sleeping(1_000_000, load), nwt.WithBatchSize(8), nwt.WithMaxWorkers(32), virtual, step,
				nwt.WithWorkerInit(func(context.Context, int) error { time.Sleep(begins); return nil }))
			require.NoError(t, err)
			require.Equal(t, 32, r.Workers, "%v", r)
			for _, trial := range r.Trials {
				require.InEpsilon(t, 8*load/time.Duration(max(1, trial.Workers)), trial.Mean, 0.15, "%d workers: %v", trial.Workers, r)
			}
		})
	}
}

// Without order, the batches of the others go on coming while a worker begins.
func TestAVisitWithoutOrderWaitsForWorkersToBeginToo(t *testing.T) {
	const load, step = 2 * time.Millisecond, time.Millisecond
	for _, begins := range []time.Duration{100 * time.Millisecond, time.Second, 5 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			r, err := nwt.Tune(t.Context(), sleeping(1_000_000, load), nwt.WithBatchSize(8), nwt.WithMaxWorkers(16), virtual, nwt.WithUnordered(),
				nwt.WithStep(func(context.Context, *nwt.Batch) error { time.Sleep(step); return nil }),
				nwt.WithWorkerInit(func(context.Context, int) error { time.Sleep(begins); return nil }))
			require.NoError(t, err)
			require.Equal(t, 16, r.Workers, "%v", r)
			for _, trial := range r.Trials {
				if trial.Workers > 0 {
					require.InEpsilon(t, max(step, 8*load/time.Duration(trial.Workers)), trial.Mean, 0.2, "%d workers: %v", trial.Workers, r)
				}
			}
		})
	}
}

// inFours is an epoch in batches of four.
type inFours int

func (n inFours) Len() int           { return int(n) }
func (n inFours) At(_, i int) int    { return i }
func (n inFours) Batches() int       { return int(n) / 4 }
func (n inFours) Largest() int       { return 4 }
func (n inFours) Start(_, b int) int { return 4 * b }

// A BatchSampler's batches may be much smaller than WithBatchSize allows. Then workers
// have several of them in hand at once, and the floor's slots hold few samples.
func TestBatchesMayBeSmallerThanAllowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const step = 2 * time.Millisecond
		r, err := nwt.Tune(t.Context(), sleeping(1_000_000, 10*time.Millisecond), nwt.WithBatchSize(64), nwt.WithSampler(inFours(1_000_000)), nwt.WithMaxWorkers(32), virtual,
			nwt.WithStep(func(context.Context, *nwt.Batch) error { time.Sleep(step); return nil }))
		require.NoError(t, err)
		require.Equal(t, step, r.Floor, "%v", r)
		for _, trial := range r.Trials {
			if four := 40 * time.Millisecond / time.Duration(max(1, trial.Workers)); trial.Workers > 0 {
				require.InEpsilon(t, max(step, four), trial.Mean, 0.15, "%d workers: %v", trial.Workers, r)
			}
		}
	})
}

// A call takes 10 ms. It gets a whole batch if each worker may have one of its own, for which
// the depth must grow. Then 16 workers hide it behind a step of 0.63 ms.
func TestBatchesThatAreLoadedInACallAreComparedAtTheDepthThatTheyNeed(t *testing.T) {
	for name, prefetch := range map[string]nwt.Option{"by default": silent, "fixed": nwt.WithPrefetch(32)} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const call, step = 10 * time.Millisecond, 630 * time.Microsecond
				r, err := nwt.Tune(t.Context(), calls{sleeping(1_000_000, call), call}, nwt.WithBatchSize(64), nwt.WithMaxWorkers(32), prefetch, virtual,
					nwt.WithStep(func(context.Context, *nwt.Batch) error { time.Sleep(step); return nil }))
				require.NoError(t, err)
				require.GreaterOrEqual(t, r.Workers, 16, "%v", r)
				require.InEpsilon(t, step, r.Floor, 0.001, "%v", r)
				require.NotContains(t, r.String(), "more workers don't help")
				for _, trial := range r.Trials {
					require.InEpsilon(t, max(step, call/time.Duration(max(1, trial.Workers))), trial.Mean, 0.15, "%d workers: %v", trial.Workers, r)
				}
			})
		})
	}
}

// Eight workers finish their batches at the same time. If time is over while these are
// delivered, a batch has not taken nothing.
func TestATimeThatEndsWithinAWaveMeasuresNoBurst(t *testing.T) {
	const load = 1141 * time.Microsecond
	for limit := 3 * time.Millisecond; limit < 40*time.Millisecond; limit += 1700 * time.Microsecond {
		synctest.Test(t, func(t *testing.T) {
			// What is loaded is counted once all workers that finish at the same time have.
			step := nwt.WithStep(func(context.Context, *nwt.Batch) error { time.Sleep(time.Microsecond); return nil })
			r, err := nwt.Tune(t.Context(), sleeping(1_000_000, load), nwt.WithBatchSize(1), nwt.WithTuningTime(limit), step, nwt.NewVirtualMachine(8).Option())
			require.NoError(t, err)
			for _, trial := range r.Trials {
				truth := load / time.Duration(trial.Workers)
				require.Greater(t, trial.Mean, truth/2, "%v: %d workers\n%v", limit, trial.Workers, r)
				require.Less(t, trial.Mean, 3*truth, "%v: %d workers\n%v", limit, trial.Workers, r)
			}
		})
	}
}

// While training waits for a slow sample, batches are loaded behind it. A visit that uses no
// others says nothing of loading by itself.
func TestFewIterationsMeasureLoadingToo(t *testing.T) {
	if testing.Short() {
		t.Skip("measures in virtual time")
	}
	fours := nwt.WithSampler(inFours(100_000))
	for name, opts := range map[string][]nwt.Option{
		"batches of four":                     {nwt.WithBatchSize(4)},
		"of four, though 64 would be allowed": {nwt.WithBatchSize(64), fours},
		"many are loaded ahead":               {nwt.WithBatchSize(4), nwt.WithPrefetch(30)},
	} {
		t.Run(name, func(t *testing.T) {
			for n := 1; n <= 3; n++ {
				for slow := 30; slow < 200; slow += 11 { // one in so many samples
					synctest.Test(t, func(t *testing.T) {
						ds := nwt.NewDataset(100_000, scalar, func(_ context.Context, i int, _ *nwt.Sample) error {
							time.Sleep(100 * time.Microsecond)
							if i%slow == 0 {
								time.Sleep(time.Millisecond)
							}
							return nil
						})
						// What is loaded is counted once all workers that finish at the same time have.
						step := nwt.WithStep(func(context.Context, *nwt.Batch) error { time.Sleep(time.Microsecond); return nil })
						r, err := nwt.Tune(t.Context(), ds, append(opts, nwt.WithMaxWorkers(32), nwt.WithIterations(n), virtual, step)...)
						require.NoError(t, err)
						for _, trial := range r.Trials {
							usual := 4 * 100 * time.Microsecond / time.Duration(max(1, trial.Workers))
							require.GreaterOrEqual(t, trial.Mean, usual/4, "%d iterations, %d workers: %v", n, trial.Workers, r)
						}
					})
				}
			}
		})
	}
}

func TestAlphaMayBeAsLongAsADurationCanBe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, err := nwt.Tune(t.Context(), sleeping(10_000, time.Millisecond), nwt.WithBatchSize(4), nwt.WithMaxWorkers(3), nwt.WithAlpha(math.MaxInt64), virtual)
		require.NoError(t, err)
		require.Zero(t, r.Workers)
		require.EqualValues(t, int64(math.MaxInt64), r.Alpha)
		require.Contains(t, r.Reason, "the fewest tried within ")
		require.NotContains(t, r.String(), "less than the choice")
	})
}

func TestWithoutAlphaEqualCountsDoNotContradictTheChoice(t *testing.T) {
	if testing.Short() {
		t.Skip("measures in virtual time")
	}
	synctest.Test(t, func(t *testing.T) {
		free, rng := make(chan struct{}, 1), rand.New(rand.NewPCG(1, 1)) // so workers don't matter
		ds := nwt.NewDataset(1_000_000, scalar, func(context.Context, int, *nwt.Sample) error {
			free <- struct{}{}
			time.Sleep(900*time.Microsecond + time.Duration(rng.Int64N(200_000)))
			<-free
			return nil
		})
		for i := range 40 {
			alpha := time.Duration(i % 2)
			r, err := nwt.Tune(t.Context(), ds, nwt.WithBatchSize(4), nwt.WithMaxWorkers(8), nwt.WithAlpha(alpha), virtual)
			require.NoError(t, err)
			require.NotContains(t, r.String(), "less than the choice", "%v", r)
		}
	})
}

func TestAResultSaysThatOtherProcessesCannotBeSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := nwt.NewVirtualMachine(4)
		opts := []nwt.Option{nwt.WithBatchSize(16), nwt.WithMaxWorkers(2), nwt.WithIterations(50), m.Option()}
		r, err := nwt.Tune(t.Context(), sleeping(10_000, time.Millisecond), opts...)
		require.NoError(t, err)
		const unknown = "CPU time of other processes unknown: it isn't made up"
		require.NotContains(t, r.Warnings, unknown)
		m.OthersUnknown = true
		r, err = nwt.Tune(t.Context(), sleeping(10_000, time.Millisecond), opts...)
		require.NoError(t, err)
		require.Contains(t, r.Warnings, unknown)
	})
}

func TestAsManyBatchesAreMeasuredAsWithIterationsSays(t *testing.T) {
	for _, n := range []int{1, 2, 7} {
		for _, strategy := range []nwt.Strategy{nwt.Exhaustive(), nwt.Greedy()} {
			synctest.Test(t, func(t *testing.T) {
				r, err := nwt.Tune(t.Context(), sleeping(1_000_000, time.Millisecond), nwt.WithBatchSize(4), nwt.WithMaxWorkers(1), nwt.WithIterations(n), nwt.WithStrategy(strategy), virtual)
				require.NoError(t, err)
				for _, trial := range r.Trials {
					if strategy == nwt.Exhaustive() || trial.Workers == r.Workers {
						require.Equal(t, n, trial.Iterations, "%v, %d workers", strategy, trial.Workers)
					}
					require.LessOrEqual(t, trial.Iterations, n, "what can't win is left early")
				}
			})
		}
	}
}

// After some quick batches loading hangs: the time for tuning ends it, with a step or
// without.
func TestTheTimeForTuningEndsALoadThatHangs(t *testing.T) {
	for _, opts := range [][]nwt.Option{nil, {nwt.WithStep(func(context.Context, *nwt.Batch) error { return nil })}} {
		synctest.Test(t, func(t *testing.T) {
			var loads atomic.Int64
			ds := nwt.NewDataset(1_000_000, scalar, func(ctx context.Context, _ int, _ *nwt.Sample) error {
				if loads.Add(1) <= 200 {
					time.Sleep(time.Millisecond)
					return nil
				}
				<-ctx.Done()
				return ctx.Err()
			})
			r, err := nwt.Tune(t.Context(), ds, append(opts, nwt.WithBatchSize(4), nwt.WithMaxWorkers(1), nwt.WithTuningTime(10*time.Second), virtual)...)
			require.NoError(t, err)
			require.LessOrEqual(t, r.Elapsed, 11*time.Second)
		})
	}
}

// disturbed tunes where, within the first fifth of each second, loading takes twice as
// long, or never. missed tells, by whether that was so in a visit, how many CPUs its
// threads missed.
func disturbed(t *testing.T, ever bool, missed func(disturbed bool) float64) (r *nwt.Result) {
	synctest.Test(t, func(t *testing.T) {
		const part = time.Second / 5
		began := time.Now()
		within := func() time.Duration { return time.Since(began) % time.Second }
		m := nwt.NewVirtualMachine(virtualCPUs)
		m.Missed = func(from, to time.Time) float64 { return missed(within()-to.Sub(from) < part) }
		ds := nwt.NewDataset(1_000_000, scalar, func(context.Context, int, *nwt.Sample) error {
			time.Sleep(time.Millisecond)
			if ever && within() < part {
				time.Sleep(time.Millisecond)
			}
			return nil
		})
		var err error
		r, err = nwt.Tune(t.Context(), ds, nwt.WithBatchSize(8), nwt.WithMaxWorkers(4), m.Option(), silent)
		require.NoError(t, err)
		require.Equal(t, 4, r.Workers)
	})
	return r
}

func TestVisitsInWhichThreadsMissedCPUsAreMeasuredAnew(t *testing.T) {
	r := disturbed(t, true, func(disturbed bool) float64 {
		if disturbed {
			return 1
		}
		return 0
	})
	for i, undisturbed := range []time.Duration{8 * time.Millisecond, 4 * time.Millisecond, 8 * time.Millisecond / 3, 2 * time.Millisecond} {
		require.InEpsilon(t, undisturbed, r.Trials[1+i].Mean, 0.15)
	}
	unseen := disturbed(t, true, func(bool) float64 { return 0.05 })
	require.Greater(t, float64(unseen.Trials[1].Mean), 1.15*float64(8*time.Millisecond))
}

func TestMeasuringAnewEndsWhereThreadsMissCPUsAllTheTime(t *testing.T) {
	none, all := disturbed(t, false, func(bool) float64 { return 0 }), disturbed(t, false, func(bool) float64 { return 1 })
	require.Greater(t, all.Elapsed, none.Elapsed*5/4)
	require.Less(t, all.Elapsed, none.Elapsed*7/4)
	for i, trial := range all.Trials {
		require.InEpsilon(t, none.Trials[i].Mean, trial.Mean, 0.05)
	}
}

// What is waited for when time is over counts: otherwise a load that hangs would look as
// fast as those before it.
func TestABatchThatNeverCameCountsForTheTimeItWasWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var loads atomic.Int64
		ds := nwt.NewDataset(1_000_000, scalar, func(ctx context.Context, _ int, _ *nwt.Sample) error {
			if loads.Add(1) > 200 {
				<-ctx.Done()
			}
			time.Sleep(time.Millisecond)
			return ctx.Err()
		})
		r, err := nwt.Tune(t.Context(), ds, nwt.WithBatchSize(4), nwt.WithMaxWorkers(0), nwt.WithIterations(100), nwt.WithTuningTime(10*time.Second), virtual)
		require.NoError(t, err)
		require.Len(t, r.Trials, 1)
		trial := r.Trials[0]
		require.Greater(t, trial.Mean*time.Duration(trial.Iterations), 8*time.Second, "%v", r)
	})
}

func TestALoadThatSaysItWasCanceledIsAnErrorOfTheDataset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var loads atomic.Int64
		ds := nwt.NewDataset(1_000_000, scalar, func(context.Context, int, *nwt.Sample) error {
			time.Sleep(time.Millisecond)
			if loads.Add(1) > 200 {
				return context.Canceled
			}
			return nil
		})
		_, err := nwt.Tune(t.Context(), ds, nwt.WithBatchSize(4), nwt.WithMaxWorkers(1), virtual)
		var failed *nwt.LoadError
		require.ErrorAs(t, err, &failed)
	})
}

func TestAPeakIsExactIfTheKernelTellsIt(t *testing.T) {
	_, exact := host.StartPeak().Stop()
	synctest.Test(t, func(t *testing.T) {
		r, err := nwt.Tune(t.Context(), sleeping(1_000_000, time.Millisecond), nwt.WithBatchSize(4), nwt.WithTuningTime(time.Nanosecond), virtual)
		require.NoError(t, err)
		for _, trial := range r.Trials {
			require.Equal(t, exact, trial.PeakExact)
		}
		require.Equal(t, exact, !strings.Contains(strings.Join(r.Warnings, "\n"), "it may have been higher"))
	})
}

// The floor's batches are loaded once, and the step gets them over and over.
func TestTheFloorsBatchesHoldWhatWasLoaded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ds := nwt.NewDataset(100_000, scalar, func(_ context.Context, _ int, s *nwt.Sample) error {
			time.Sleep(time.Millisecond)
			nwt.Values[float32](s, 0)[0] = 1
			return nil
		})
		_, err := nwt.Tune(t.Context(), ds, nwt.WithBatchSize(4), nwt.WithMaxWorkers(2), virtual,
			nwt.WithStep(func(_ context.Context, b *nwt.Batch) error {
				for _, x := range nwt.Values[float32](b, 0) {
					if x != 1 {
						return fmt.Errorf("a sample is %v", x)
					}
				}
				return nil
			}))
		require.NoError(t, err)
	})
}

func TestAPanicOfTheStepComesWithItsStack(t *testing.T) {
	_, err := nwt.Tune(t.Context(), emptyDataset(1000), nwt.WithMaxWorkers(0), nwt.WithStep(func(context.Context, *nwt.Batch) error { panic("boom") }))
	require.ErrorContains(t, err, "WithStep, batch 0 of epoch 0: ")
	require.ErrorContains(t, err, "tune_virtual_test.go:")
}

// With a fixed depth, or one that memory bounds, training waits for each slow sample: that
// others were loaded behind it meanwhile saves little. Visits often end right after it, with
// all batches loaded.
func TestWhatASlowSampleHoldsUpCountsIfTheDepthCannotGrow(t *testing.T) {
	if testing.Short() {
		t.Skip("measures in virtual time")
	}
	const batch, step, workers = 32, 8 * time.Millisecond, 4
	for name, of := range map[string]func() nwt.Option{
		"fixed": func() nwt.Option { return nwt.WithPrefetch(3) },
		"bounded": func() nwt.Option {
			m := nwt.NewVirtualMachine(virtualCPUs)
			m.Left = 64 << 20 // an eighth is a batch
			return m.Option()
		},
	} {
		t.Run(name, func(t *testing.T) {
			slow := func(i int) bool { return rand.New(rand.NewPCG(7, uint64(i))).IntN(500) == 0 }
			ds := nwt.NewDataset(batch*20_000, heavy, func(_ context.Context, i int, _ *nwt.Sample) error {
				if time.Sleep(time.Millisecond); slow(i) {
					time.Sleep(300 * time.Millisecond)
				}
				return nil
			})
			train := func(context.Context, *nwt.Batch) error { time.Sleep(step); return nil }
			var long, shown time.Duration
			iterations := 0
			for seed := range uint64(12) {
				synctest.Test(t, func(t *testing.T) {
					opts := []nwt.Option{nwt.WithBatchSize(batch), nwt.WithShuffle(seed), nwt.WithMaxWorkers(16), silent, virtual, of()}
					if seed == 0 {
						long = longRun(t, ds, train, append(opts, nwt.WithWorkers(workers))...)
					}
					r, err := nwt.Tune(t.Context(), ds, append(opts, nwt.WithStep(train))...)
					require.NoError(t, err)
					i := slices.IndexFunc(r.Trials, func(t nwt.Trial) bool { return t.Workers == workers })
					shown += r.Trials[i].Mean * time.Duration(r.Trials[i].Iterations)
					iterations += r.Trials[i].Iterations
				})
			}
			require.Greater(t, float64(shown)/float64(iterations), 0.96*float64(long))
			t.Logf("%v, %v in a long run", shown/time.Duration(iterations), long)
		})
	}
}
