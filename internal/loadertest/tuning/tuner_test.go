//go:build !race

package tuning_test

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
	"github.com/nwt-go/nwt/internal/loadertest/kit"
)

// In virtual time workers don't hinder each other.
func TestTheChoiceHidesLoadingBehindTheStep(t *testing.T) {
	const batch = 16
	for _, tt := range []struct {
		name       string
		load, step time.Duration // load: of a batch, by one worker
		want       [2]int        // workers, from … to
	}{
		{"loading is faster than the step", 3 * time.Millisecond, 5 * time.Millisecond, [2]int{1, 1}},
		{"loading is slower than the step", 18 * time.Millisecond, 5 * time.Millisecond, [2]int{4, 4}},
		{"loading is far slower", 45 * time.Millisecond, 5 * time.Millisecond, [2]int{9, 12}},
		{"the step is nothing beside loading", 16 * time.Millisecond, time.Millisecond, [2]int{15, 16}},
		{"loading is nothing beside the step", 0, 5 * time.Millisecond, [2]int{0, 1}},
		{"half of a worker would do", 160 * time.Millisecond, 320 * time.Millisecond, [2]int{1, 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := tune(t, kit.Sleeping(1_000_000, tt.load/batch), nwt.WithBatchSize(batch), nwt.WithMaxWorkers(16), stepOf(tt.step))
				require.GreaterOrEqual(t, r.Workers, tt.want[0], "%v", r)
				require.LessOrEqual(t, r.Workers, tt.want[1], "%v", r)
				require.InEpsilon(t, tt.step, r.Floor, 0.01, "%v", r)
				shows(t, r, tt.load, tt.step)
			})
		})
	}
}

func TestADatasetThatComputesGetsNoMoreWorkersThanCPUs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := kit.NewVirtualMachine(virtualCPUs)
		ds := workload{compute: constant(time.Millisecond)}.dataset(m, 1)
		r := tune(t, ds, m.Option())
		require.Equal(t, virtualCPUs, r.Workers, "%v", r)
		require.LessOrEqual(t, r.Trials[len(r.Trials)-1].Workers, 2*virtualCPUs, "no CPU was idle: %v", r)
	})
}

// Beside busy loops, each worker more takes a larger share of the CPUs: that makes loading faster, and
// others slower. Samples that wait take nothing from anybody.
func TestBesideOthersWorkersThatComputeAreAsManyAsCPUs(t *testing.T) {
	for _, neighbours := range []int{1, 4, 8} {
		synctest.Test(t, func(t *testing.T) {
			m := kit.NewVirtualMachine(virtualCPUs)
			m.Neighbours, m.Others = neighbours, min(1, float64(neighbours)/virtualCPUs)/2
			r := tune(t, workload{compute: constant(time.Millisecond)}.dataset(m, 1), m.Option(), nwt.WithMaxWorkers(32))
			require.LessOrEqual(t, r.Workers, virtualCPUs, "%v", r)
			require.Greater(t, r.Workers, virtualCPUs/2, "%v", r)
			if neighbours > 1 {
				require.Contains(t, r.Reason, "more workers only take CPUs from other programs", "%v", r)
			}
		})
		synctest.Test(t, func(t *testing.T) {
			m := kit.NewVirtualMachine(virtualCPUs)
			m.Neighbours, m.Others = neighbours, 1
			r := tune(t, workload{sample: constant(time.Millisecond), compute: constant(time.Microsecond)}.dataset(m, 1), m.Option(), nwt.WithMaxWorkers(32), stepOf(2*time.Millisecond))
			require.Equal(t, 16, r.Workers, "%v", r)
		})
	}
}

// A source that serves one at a time: one worker hides it behind the step as well as eight.
// Another model trains, or a step runs on after it returned: other goroutines keep each CPU busy.
func TestSamplesThatWaitGetTheirWorkersThoughTheProcessComputes(t *testing.T) {
	for _, step := range []time.Duration{0, time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			m := kit.NewVirtualMachine(virtualCPUs)
			var over atomic.Bool
			for range virtualCPUs {
				go func() {
					for !over.Load() {
						m.Compute(time.Millisecond)
					}
				}()
			}
			opts := []nwt.Option{kit.Silent, m.Option(), nwt.WithMaxWorkers(64)}
			if step > 0 {
				opts = append(opts, stepOf(step))
			}
			ds := kit.Sleeping(1_000_000, time.Millisecond)
			r, err := nwt.Tune(t.Context(), ds, opts...)
			l, other := nwt.NewLoader(ds, append(opts[:3:3], nwt.WithWorkers(2), nwt.WithAutoWorkers())...)
			took := kit.Train(t, l, 3000, func() { time.Sleep(step) })
			over.Store(true)
			time.Sleep(10 * time.Millisecond) // or they would still run when a test fails
			require.NoError(t, errors.Join(err, other, l.Close()))
			require.GreaterOrEqual(t, r.Workers, 32, "%v", r)
			said := strings.Join(r.Advice, "\n")
			require.NotContains(t, said, "decode", "%v", r)
			require.Equal(t, step == 0, strings.Contains(said, "most of them with what the program does beside loading"), "%v", r)
			require.Less(t, took, 8*time.Second, "%v", l.Result())
		})
	}
}

func TestWorkersThatDoNotHelpAreNotChosen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := tune(t, channel(1_000_000, time.Millisecond), nwt.WithMaxWorkers(8), stepOf(16*time.Millisecond))
		require.Equal(t, 1, r.Workers, "%v", r)
	})
}

// A load of 40 ms and a step of 10 ms, one after the other.
func TestWithoutWorkersLoadingAndStepAddUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := tune(t, kit.Sleeping(1_000_000, 10*time.Millisecond), nwt.WithBatchSize(4), nwt.WithMaxWorkers(1), nwt.WithStrategy(nwt.Exhaustive), stepOf(10*time.Millisecond))
		require.InEpsilon(t, 50*time.Millisecond, trialOf(t, r, 0).Mean, 0.02, "%v", r)
		require.InEpsilon(t, 40*time.Millisecond, trialOf(t, r, 1).Mean, 0.02, "%v", r)
		require.Equal(t, 1, r.Workers)
	})
}

// A lock in Load makes any number of workers as fast as none. But one of them loads beside a step.
func TestAWorkerLoadsBesideTheStepWhereverItHidesLoading(t *testing.T) {
	for name, c := range map[string]struct {
		sample time.Duration
		step   time.Duration // 0: Tune isn't given one
		want   int
	}{
		"a lock, and no step":        {200 * time.Microsecond, 0, 1},
		"loading takes 3 % of steps": {48 * time.Microsecond, 48 * time.Millisecond, 1},
		"… 0.3 % of steps":           {5 * time.Microsecond, 48 * time.Millisecond, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				opts := []nwt.Option{kit.Silent, virtual}
				if c.step > 0 {
					opts = append(opts, stepOf(c.step))
				}
				l, err := nwt.NewTunedLoader(t.Context(), channel(1_000_000, c.sample), opts...)
				require.NoError(t, err)
				defer l.Close()
				require.Equal(t, c.want, l.Workers(), "%v", l.Result())
				const step = 48 * time.Millisecond
				took := kit.Train(t, l, 100, func() { time.Sleep(step) })
				require.Less(t, float64(took), 1.02*float64(100*step))
			})
		})
	}
}

// One worker takes so long per batch; eight are allowed. Counting samples, not batches, shows
// in little time that all of them are needed.
func TestSlowBatchesFitIntoTheTime(t *testing.T) {
	for _, tt := range []struct{ batch, limit time.Duration }{
		{80 * time.Second, 2 * time.Minute}, {20 * time.Second, 2 * time.Minute}, {10 * time.Second, 30 * time.Second}, {time.Second, 5 * time.Second},
	} {
		t.Run(fmt.Sprintf("%v in %v", tt.batch, tt.limit), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := tune(t, kit.Sleeping(1_000_000, tt.batch/32), nwt.WithBatchSize(32), nwt.WithMaxWorkers(8), nwt.WithTuningTime(tt.limit), kit.NewVirtualMachine(2).Option())
				require.GreaterOrEqual(t, r.Workers, 6, "%v", r)
				require.LessOrEqual(t, r.Elapsed, tt.limit+tt.batch/32)
			})
		})
	}
}

// A step of 300 ms hides loading: that shows in a few steps.
func TestALongStepIsRunAFewTimes(t *testing.T) {
	for _, load := range []time.Duration{0, 1600 * time.Microsecond} {
		for _, cpus := range []int{2, 8} {
			synctest.Test(t, func(t *testing.T) {
				steps := 0
				r := tune(t, kit.Sleeping(1_000_000, load/32), kit.NewVirtualMachine(cpus).Option(),
					nwt.WithStep(func(context.Context, *nwt.Batch) error { steps++; time.Sleep(300 * time.Millisecond); return nil }))
				require.LessOrEqual(t, r.Workers, 1, "%v", r)
				require.LessOrEqual(t, steps, 60, "%v", r)
				require.Contains(t, r.Reason, "hardly waits")
			})
		}
	}
}

// XLA compiles for seconds when it sees a shape for the first time, and so for a
// last batch that is shorter too.
func TestACompilerInTheFirstStepIsNotMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const step, compiling, budget = 5 * time.Millisecond, 4 * time.Second, 2 * time.Second
		compiled := map[int]bool{}
		r := tune(t, kit.Sleeping(100, time.Millisecond), nwt.WithBatchSize(16), nwt.WithMaxWorkers(8), nwt.WithTuningTime(budget),
			nwt.WithStep(func(_ context.Context, b *nwt.Batch) error {
				if !compiled[b.Len()] {
					compiled[b.Len()] = true
					time.Sleep(compiling)
				}
				time.Sleep(step)
				return nil
			}))
		require.Len(t, compiled, 2)
		require.GreaterOrEqual(t, len(r.Trials), 3, "%v", r)
		for _, trial := range r.Trials {
			require.InEpsilon(t, step, trial.Step, 0.2, "%d workers: %v", trial.Workers, r)
		}
		require.GreaterOrEqual(t, r.Elapsed, 2*compiling)
		require.LessOrEqual(t, r.Elapsed, 2*compiling+budget*12/10, "%v", r)
	})
}

// Without order, the batches of the others go on coming while a worker begins.
func TestWhatWorkersDoToBeginIsNotMeasured(t *testing.T) {
	const load, step, most = 2 * time.Millisecond, time.Millisecond, 16
	for name, opt := range map[string]nwt.Option{"in order": kit.Silent, "without order": nwt.WithUnordered()} {
		for _, begins := range []time.Duration{100 * time.Millisecond, 2 * time.Second} {
			t.Run(fmt.Sprint(name, ", ", begins), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r := tune(t, kit.Sleeping(1_000_000, load), nwt.WithBatchSize(8), nwt.WithMaxWorkers(most), opt, stepOf(step),
						nwt.WithWorkerInit(func(ctx context.Context, _ int) error { return kit.Heed(ctx, begins) }))
					require.GreaterOrEqual(t, r.Workers, 12, "%v", r)
					if name == "in order" {
						shows(t, r, 8*load, step)
					}
				})
			})
		}
	}
}

// One sample in a hundred takes a hundred times as long. While training waits for it, others are
// loaded behind it: what it holds up is not slow loading.
func TestASlowSampleIsPaidForOnce(t *testing.T) {
	const batch, workers = 32, 8
	ds, takes := kit.Tailed(batch*20_000, time.Millisecond, 100*time.Millisecond, 0.01)
	all := time.Duration(0)
	for i := range batch * 20_000 {
		all += takes(i)
	}
	for name, opt := range map[string]nwt.Option{"in order": kit.Silent, "without order": nwt.WithUnordered()} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := tune(t, ds, nwt.WithShuffle(1), nwt.WithMaxWorkers(workers), opt, stepOf(time.Millisecond))
				require.GreaterOrEqual(t, r.Workers, 7, "%v", r)
				require.InEpsilon(t, all/20_000/workers, trialOf(t, r, workers).Mean, 0.5, "%v", r) // paid for twice, it would be twice as long
			})
		})
	}
}

// Copies come one after the other: no loading hides that.
func TestNoBatchTakesLessTimeThanItsCopy(t *testing.T) {
	const copying, step = 10 * time.Millisecond, 5 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		r := tune(t, kit.Sleeping(1_000_000, time.Millisecond), nwt.WithMaxWorkers(16), nwt.WithDevice(&kit.FakeDevice{Took: copying}), stepOf(step))
		for _, trial := range r.Trials {
			require.GreaterOrEqual(t, trial.Mean, copying-time.Microsecond, "%d workers: %v", trial.Workers, r)
		}
		require.GreaterOrEqual(t, r.Workers, 4, "the copy takes no less at more workers: %v", r)
		require.Less(t, r.Workers, 8)
		chosen := trialOf(t, r, r.Workers)
		require.InEpsilon(t, copying, chosen.Copy, 0.05)
		require.Positive(t, chosen.Bandwidth)
		require.Contains(t, r.String(), "The copy to the device takes")
	})
}

// A BatchSampler's batches may be much smaller than WithBatchSize allows. Then workers
// have several of them in hand at once.
func TestBatchesMayBeSmallerThanAllowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const step = 2 * time.Millisecond
		r := tune(t, kit.Sleeping(1_000_000, 10*time.Millisecond), nwt.WithBatchSize(64), nwt.WithSampler(kit.InFours(1_000_000)), nwt.WithMaxWorkers(32), stepOf(step))
		require.InEpsilon(t, step, r.Floor, 0.02, "%v", r)
		shows(t, r, 40*time.Millisecond, step)
	})
}

func TestAlphaIsWhatMoreWorkersMustGain(t *testing.T) {
	for share, want := range map[float64]int{0: 8, 0.45: 6} {
		synctest.Test(t, func(t *testing.T) {
			r := tune(t, kit.Sleeping(1_000_000, time.Millisecond), nwt.WithMaxWorkers(8), nwt.WithRelativeAlpha(share))
			require.Equal(t, want, r.Workers, "%v: %v", share, r)
		})
	}
}

// A batch of four takes one worker 4 ms, of which 1 ms computes.
func TestATrialTellsWhatABatchCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := kit.NewVirtualMachine(virtualCPUs)
		m.Collector, m.Others = 0.5, 0.5
		ds := workload{sample: constant(750 * time.Microsecond), compute: constant(250 * time.Microsecond)}.dataset(m, 1)
		r := tune(t, ds, nwt.WithBatchSize(4), nwt.WithMaxWorkers(1), nwt.WithIterations(100), nwt.WithStrategy(nwt.Exhaustive), m.Option(), stepOf(2*time.Millisecond))
		require.Equal(t, []any{"host", 4, 16, true, 100, false}, []any{r.Device, r.BatchSize, int(r.BatchBytes), r.Step, r.Iterations, r.Cached})
		require.Zero(t, r.Floor, "training waits at each count: %v", r)
		for workers, mean := range []time.Duration{6 * time.Millisecond, 4 * time.Millisecond} {
			trial := r.Trials[workers]
			for what, got := range map[string][2]time.Duration{
				"mean": {trial.Mean, mean}, "wait": {trial.Wait, mean - 2*time.Millisecond}, "step": {trial.Step, 2 * time.Millisecond}, "low": {trial.Low, mean}, "high": {trial.High, mean},
				"median": {trial.Median, mean}, "p99": {trial.P99, mean}, "total": {trial.Total, 100 * mean},
			} {
				require.InEpsilon(t, got[1], got[0], 0.05, "%s of %d workers: %v", what, workers, r)
			}
			require.Zero(t, trial.Transfer)
			require.GreaterOrEqual(t, trial.Iterations, 100)
			require.InEpsilon(t, (0.5+1/mean.Seconds()/1000)/virtualCPUs, trial.CPU, 0.1)
			require.Equal(t, []float64{0.125, 0.5}, []float64{trial.CollectorCPU, trial.OtherCPU})
			require.Positive(t, trial.PeakRSS)
			require.Positive(t, trial.SystemUsed)
		}
		require.Zero(t, r.Trials[0].Prefetch)
		require.GreaterOrEqual(t, r.Trials[1].Prefetch, 2)
	})
}

func TestTheFirstBatchTakesWhatWorkersNeedToBegin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const begins = 2 * time.Second
		r := tune(t, kit.Sleeping(1_000_000, time.Millisecond), nwt.WithMaxWorkers(8),
			nwt.WithWorkerInit(func(ctx context.Context, _ int) error { return kit.Heed(ctx, begins) }))
		require.GreaterOrEqual(t, trialOf(t, r, virtualCPUs).FirstBatch, begins, "%v", r)
	})
}

func TestTuningTellsWhetherReadingAStreamSetsThePace(t *testing.T) {
	const ms = time.Millisecond
	for _, tt := range []struct {
		name    string
		library library
		channel bool
		step    time.Duration
		opts    []nwt.Option
		reading [2]float64 // at the choice, from … to
		advice  string     // about reading; "": none
	}{
		{"reading sets the pace", library{shards: 64, records: 10_000, read: 4 * ms, load: ms}, false, 0, nil, [2]float64{0.95, 1}, "Reading the stream sets the pace: it goes on for 100 % of the time, 4 of 64 shards at once (WithInterleave)"},
		{"loading sets the pace", library{shards: 64, records: 10_000, read: ms / 10, load: 8 * ms}, false, 0, nil, [2]float64{0, 0.5}, ""},
		{"the step sets the pace", library{shards: 64, records: 10_000, read: ms / 2, load: ms / 2}, false, 20 * ms, nil, [2]float64{0, 0.5}, ""},
		{"all reading goes through one channel", library{shards: 64, records: 10_000, read: ms, load: ms}, true, 0, nil, [2]float64{0.95, 1}, "4 of 64 shards at once"},
		{"all shards are read at once", library{shards: 3, records: 100_000, read: 4 * ms, load: ms}, false, 0, nil, [2]float64{0.95, 1}, "3 of 3 shards at once"},
		{"the interleave is what training will have", library{shards: 64, records: 10_000, read: 2 * ms, load: ms}, false, 0, []nwt.Option{nwt.WithInterleave(32)}, [2]float64{0, 0.9}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if tt.channel {
					tt.library.desk = make(chan struct{}, 1)
				}
				opts := append(tt.opts, nwt.WithMaxWorkers(8))
				if tt.step > 0 {
					opts = append(opts, stepOf(tt.step))
				}
				r := tune(t, nwt.Streamed(tt.library), opts...)
				trial := trialOf(t, r, r.Workers)
				require.GreaterOrEqual(t, trial.Reading, tt.reading[0], "%v", r)
				require.LessOrEqual(t, trial.Reading, tt.reading[1], "%v", r)
				require.Positive(t, r.Workers, "a goroutine reads the stream anyway: %v", r)
				if tt.advice == "" {
					require.NotContains(t, r.String(), "sets the pace: it goes on")
				} else {
					require.Contains(t, r.String(), tt.advice)
				}
			})
		})
	}
}

// Training opens the first shards, and fills the windows of WithShuffle, once in an epoch.
func TestWhatAStreamDoesAtTheBeginningOfAnEpochIsNotMeasured(t *testing.T) {
	const ms, us, step = time.Millisecond, time.Microsecond, 3 * time.Millisecond
	for name, c := range map[string]struct {
		library library
		batch   int
		opt     nwt.Option
	}{
		"shards are opened":    {library{shards: 256, records: 10_000, open: 50 * ms, read: 10 * us, load: 490 * us}, 4, nwt.WithInterleave(16)},
		"one sample per batch": {library{shards: 256, records: 10_000, open: 50 * ms, read: 10 * us, load: 1990 * us}, 1, nwt.WithInterleave(16)},
		"windows are filled":   {library{shards: 16, records: 10_000, read: 500 * us, load: 500 * us}, 1, nwt.WithShuffle(1)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := tune(t, nwt.Streamed(c.library), c.opt, nwt.WithBatchSize(c.batch), nwt.WithMaxWorkers(8), stepOf(step))
				require.Equal(t, 1, r.Workers, "%v", r)
				require.InEpsilon(t, step, trialOf(t, r, 1).Mean, 0.05, "%v", r)
			})
		})
	}
}

// Sorted by size: the front of the dataset is cheap, and its end is dear. 2.2 ms per sample in
// the mean, 4.2 at the end: 9 to 17 workers hide it.
func TestTheWholeDatasetIsLookedAt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 100_000
		ds := nwt.NewDataset(n, kit.Scalar, func(_ context.Context, i int, _ *nwt.Sample) error {
			time.Sleep(200*time.Microsecond + time.Duration(i)*4*time.Millisecond/n)
			return nil
		})
		r := tune(t, ds, nwt.WithMaxWorkers(32), stepOf(8*time.Millisecond))
		require.GreaterOrEqual(t, r.Workers, 8, "%v", r)
	})
}

// Then the default count is as good as any, and stays: a worker too many costs nothing.
func TestCountsThatCanNotBeToldApartAreTheDefault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		free := make(chan struct{}, 1)
		ds := nwt.NewDataset(1_000_000, kit.Scalar, func(_ context.Context, _ int, s *nwt.Sample) error {
			free <- struct{}{}
			time.Sleep(time.Duration(s.Rand().ExpFloat64() * float64(10*time.Millisecond)))
			<-free
			return nil
		})
		r := tune(t, ds, nwt.WithBatchSize(1), nwt.WithMaxWorkers(8), nwt.WithTuningTime(10*time.Second))
		require.Equal(t, virtualCPUs, r.Workers, "%v", r)
	})
}

// Eight workers that have a sample each finish at the same time, however few batches are asked for.
func TestFewIterationsMeasureWholeWavesToo(t *testing.T) {
	for _, n := range []int{20, 100} {
		synctest.Test(t, func(t *testing.T) {
			r := tune(t, kit.Sleeping(1_000_000, 5*time.Millisecond), nwt.WithBatchSize(1), nwt.WithMaxWorkers(16), nwt.WithIterations(n))
			for _, trial := range r.Trials {
				truth := 5 * time.Millisecond / time.Duration(max(1, trial.Workers))
				require.InDelta(t, float64(truth), float64(trial.Mean), float64(truth)/2, "%d iterations, %d workers: %v", n, trial.Workers, r)
			}
			require.GreaterOrEqual(t, r.Workers, 12, "%d iterations: %v", n, r)
		})
	}
}

func TestWorkersAreMeasuredWarm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := tune(t, connecting(time.Millisecond, 19*time.Millisecond), nwt.WithMaxWorkers(32), nwt.WithRelativeAlpha(0.05), stepOf(2*time.Millisecond))
		require.GreaterOrEqual(t, r.Workers, 12, "%v", r)
		require.LessOrEqual(t, r.Workers, 24, "%v", r)
		shows(t, r, 32*time.Millisecond, 2*time.Millisecond)
	})
}

// Each tenth step saves the model.
func savingEachTenth() nwt.Option {
	n := 0
	return nwt.WithStep(func(context.Context, *nwt.Batch) error {
		if n++; n%10 == 0 {
			time.Sleep(490 * msec)
		}
		time.Sleep(10 * msec)
		return nil
	})
}

// Loading is hidden by steps that are long now and then, but only if there is a worker.
func TestWithoutWorkersLoadingIsNotHiddenBehindLongSteps(t *testing.T) {
	for seed := range uint64(4) {
		synctest.Test(t, func(t *testing.T) {
			r := tune(t, kit.Sleeping(1_000_000, msec), nwt.WithMaxWorkers(2), nwt.WithShuffle(seed), savingEachTenth())
			require.Positive(t, r.Workers, "%v", r)
			none := trialOf(t, r, 0)
			require.InDelta(t, 32*msec, none.Wait, float64(4*msec), "%v", r)
		})
	}
}

// Of a batch that takes eight seconds, windows may see no step. Then the step isn't known to be short.
func TestStepsBesideVerySlowBatchesAreMeasuredAsTheyAre(t *testing.T) {
	const step = 2 * time.Second
	for seed := range uint64(4) {
		synctest.Test(t, func(t *testing.T) {
			r := tune(t, kit.Sleeping(1_000_000, 250*msec), nwt.WithShuffle(seed), stepOf(step))
			require.InEpsilon(t, step, r.Floor, 0.02, "%v", r)
			shows(t, r, 8*time.Second, step)
		})
	}
}

// Steps that are short or long in turn make a few workers wait in some windows, but not over many.
func TestTheTableHasTheChoiceAsNearToTheFastestAsTheRuleSaysOrTheHeadlineDoubtsIt(t *testing.T) {
	for name, step := range map[string]nwt.Option{
		"in turn": func() nwt.Option {
			n := 0
			return nwt.WithStep(func(context.Context, *nwt.Batch) error {
				n++
				time.Sleep([]time.Duration{3 * msec, 3 * msec, 30 * msec, 30 * msec}[n/7%4])
				return nil
			})
		}(),
		"saving each tenth": savingEachTenth(),
	} {
		for seed := range uint64(4) {
			synctest.Test(t, func(t *testing.T) {
				r := tune(t, kit.Sleeping(1_000_000, msec), nwt.WithShuffle(seed), step)
				chosen, fastest := trialOf(t, r, r.Workers), trialOf(t, r, r.Fastest)
				if chosen.Total-fastest.Total > r.Alpha {
					require.Contains(t, r.Reason, "the measurements overlap", "%s: %v", name, r)
				}
				for _, one := range r.Trials {
					require.Equal(t, one.Mean, one.Wait+one.Transfer+one.Step, "%v", r)
				}
			})
		}
	}
}

// Where training hardly waits, more time would find nothing better; where more workers were faster,
// they help.
func TestNothingIsSaidOfATuningThatWasCutShortWhichItDidNotSee(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := tune(t, kit.Sleeping(1_000_000, msec), stepOf(20*time.Second))
		require.NotContains(t, r.String(), "the time for tuning was over", "%v", r)
	})
	for left := 30 * msec; left < 100*msec; left += 2 * msec {
		synctest.Test(t, func(t *testing.T) {
			r := tune(t, kit.Sleeping(1_000_000, msec), stepOf(4*msec), nwt.WithTuningTime(left))
			if slow := trialOf(t, r, r.Workers).Mean > trialOf(t, r, r.Fastest).Mean*11/10; slow {
				require.NotContains(t, r.String(), "more workers don't help", "%v", r)
			}
		})
	}
}

// A step that computes on all CPUs takes longer the more workers compute beside it. What is told of a
// count is what a long run has at it.
func TestAStepThatComputesTakesAsLongAsInALongRunOfItsCount(t *testing.T) {
	const load, step, slice = 700 * us, 5 * msec, 500 * us
	for name, c := range map[string]struct {
		cpus int
		opt  nwt.Option
	}{
		"2 CPUs": {2, kit.Silent}, "4 CPUs, every count": {4, nwt.WithStrategy(nwt.Exhaustive)},
	} {
		synctest.Test(t, func(t *testing.T) {
			m := kit.NewVirtualMachine(c.cpus)
			compute := func() { // on each CPU
				var group sync.WaitGroup
				for range c.cpus {
					group.Go(func() {
						for range step / slice {
							m.Compute(slice)
						}
					})
				}
				group.Wait()
			}
			ds := workload{compute: constant(load)}.dataset(m, 1)
			r := tune(t, ds, m.Option(), nwt.WithMaxWorkers(16), c.opt, nwt.WithStep(func(context.Context, *nwt.Batch) error { compute(); return nil }))
			least, chosen := time.Hour, time.Duration(0)
			for _, trial := range r.Trials {
				if trial.Workers == r.Workers {
					chosen = trial.Mean
				}
				steps, n := time.Duration(0), 0
				l := kit.NewLoader(t, ds, nwt.WithWorkers(trial.Workers), kit.Silent, m.Option())
				took := kit.Train(t, l, 400, func() {
					began := time.Now()
					compute()
					steps, n = steps+time.Since(began), n+1
				})
				require.NoError(t, l.Close())
				mean, body := took/400, steps/time.Duration(n)
				require.InEpsilon(t, mean, trial.Mean, 0.12, "%s, %d workers: %v", name, trial.Workers, r)
				require.InEpsilon(t, body, trial.Step, 0.12, "%s, %d workers: %v", name, trial.Workers, r)
				require.InDelta(t, mean-body, trial.Wait, 0.12*float64(mean), "%s, %d workers: %v", name, trial.Workers, r)
				if 20*(trial.Wait+trial.Transfer) <= trial.Mean {
					least = min(least, trial.Step)
				}
			}
			if least > chosen { // more workers make the step longer
				least = 0
			}
			require.Equal(t, least, r.Floor, "the shortest step of counts at which training hardly waits")
		})
	}
}

// Each worker may keep a connection of its own, and few steps are shorter than what ever more workers gain. A store of
// 100 ms needs them.
func TestWithoutAStepWorkersArentAddedOnceABatchTakesTenMilliseconds(t *testing.T) {
	for _, c := range []struct {
		sample time.Duration
		batch  int
		opts   []nwt.Option
		want   int
		says   bool
	}{
		{2 * msec, 32, nil, 64, true},
		{100 * msec, 128, nil, 1024, false},
		{2 * msec, 32, []nwt.Option{nwt.WithMaxWorkers(256)}, 256, false},
		{2 * msec, 32, []nwt.Option{stepOf(250 * us)}, 512, false}, // 256 make a batch in just a step's time
	} {
		synctest.Test(t, func(t *testing.T) {
			r := tune(t, kit.Sleeping(10_000_000, c.sample), append(c.opts, nwt.WithBatchSize(c.batch))...)
			require.LessOrEqual(t, r.Workers, c.want, "%v", r)
			require.GreaterOrEqual(t, r.Workers, c.want/2, "%v", r)
			require.Equal(t, c.says, strings.Contains(r.String(), "WithMaxWorkers allows more"), "%v", r)
		})
	}
}
