//go:build !race

package tuning_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/loadertest/kit"
)

// tuning returns a loader that tunes itself.
func tuning(t *testing.T, ds nwt.Dataset, workers, most int, opts ...nwt.Option) *nwt.Loader {
	return kit.NewLoader(t, ds, append([]nwt.Option{nwt.WithAutoWorkers(), nwt.WithWorkers(workers), nwt.WithMaxWorkers(most), kit.Silent, virtual}, opts...)...)
}

// In virtual time workers don't hinder each other: the most are the fastest.
func TestTuningWhileTrainingCostsLittle(t *testing.T) {
	const batch, batches, most = 32, 3000, 32
	sleep := func(d time.Duration) func(*rand.Rand) time.Duration {
		return func(*rand.Rand) time.Duration { return d }
	}
	noisy := func(d time.Duration) func(*rand.Rand) time.Duration {
		return func(rng *rand.Rand) time.Duration { return time.Duration(float64(d) * (0.9 + 0.1*rng.ExpFloat64())) }
	}
	for _, tt := range []struct {
		name       string
		load, step func(*rand.Rand) time.Duration // load: of a batch, as if one worker loaded it
		start      int
		want       [2]int // workers, from … to
	}{
		{"loading is faster than the step", sleep(4 * time.Millisecond), sleep(5 * time.Millisecond), 4, [2]int{1, 1}},
		{"too few workers", sleep(32 * time.Millisecond), sleep(4 * time.Millisecond), 2, [2]int{8, 9}},
		{"far too few workers", sleep(32 * time.Millisecond), sleep(2 * time.Millisecond), 2, [2]int{15, 18}},
		{"far too many workers", sleep(32 * time.Millisecond), sleep(10 * time.Millisecond), most, [2]int{4, 4}},
		{"no workers", sleep(16 * time.Millisecond), sleep(4 * time.Millisecond), 0, [2]int{4, 4}},
		{"workers are of no use", sleep(32), sleep(5 * time.Millisecond), 2, [2]int{0, 2}},
		{"no step to speak of", sleep(32 * time.Millisecond), sleep(100 * time.Microsecond), 16, [2]int{30, most}},
		{"noise", noisy(20 * time.Millisecond), noisy(5 * time.Millisecond), 2, [2]int{4, 6}},
		{"noise and pauses", noisy(20 * time.Millisecond), func(rng *rand.Rand) time.Duration {
			if rng.IntN(40) == 0 {
				return time.Second
			}
			return noisy(5 * time.Millisecond)(rng)
		}, 2, [2]int{3, 6}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ds := nwt.NewDataset(1_000_000, kit.Scalar, func(_ context.Context, _ int, s *nwt.Sample) error {
					time.Sleep(tt.load(s.Rand()) / batch)
					return nil
				})
				run := func(l *nwt.Loader) time.Duration {
					rng := rand.New(rand.NewPCG(1, 1))
					return kit.Train(t, l, batches, func() { time.Sleep(tt.step(rng)) })
				}
				best := run(kit.NewLoader(t, ds, nwt.WithWorkers(most), kit.Silent, virtual))
				l := tuning(t, ds, tt.start, most)
				took := run(l)
				r := l.Result()
				require.NotNil(t, r)
				require.Equal(t, r.Workers, l.Workers())
				require.GreaterOrEqual(t, r.Workers, tt.want[0], "%v", r)
				require.LessOrEqual(t, r.Workers, tt.want[1], "%v", r)
				require.LessOrEqual(t, float64(took), 1.05*float64(best), "%v", r)
			})
		})
	}
}

func TestALoaderThatTunesItselfDeliversTheSameBatches(t *testing.T) {
	ds := kit.Augmented(3000)
	opts := []nwt.Option{nwt.WithBatchSize(4), nwt.WithShuffle(7), nwt.WithMaxWorkers(8), kit.Silent}
	fixed := kit.NewLoader(t, ds, append(opts, nwt.WithWorkers(3))...)
	l := kit.NewLoader(t, ds, append(opts, nwt.WithAutoWorkers())...)
	for epoch := range 3 {
		require.Equal(t, kit.Collect(t, fixed, epoch), kit.Collect(t, l, epoch))
	}
}

// slowShelves take a millisecond for each sample.
type slowShelves struct{ *kit.Shelves }

func (s slowShelves) Load(ctx context.Context, r *nwt.Record, dst *nwt.Sample) error {
	time.Sleep(time.Millisecond)
	return s.Shelves.Load(ctx, r, dst)
}

func TestAStreamsLoaderTunesItselfToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stream := nwt.Streamed(slowShelves{kit.NewShelves(9000, 50, 9000, 9000)})
		fixed := kit.NewLoader(t, stream, nwt.WithBatchSize(8), nwt.WithWorkers(3))
		l := tuning(t, stream, 2, 8, nwt.WithBatchSize(8))
		var want [][]byte
		for b, err := range fixed.Epoch(t.Context(), 0) {
			require.NoError(t, err)
			want = append(want, slices.Clone(b.Bytes(0)))
		}
		for b, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
			require.Equal(t, want[b.Number()], b.Bytes(0))
			time.Sleep(2 * time.Millisecond)
		}
		require.NotNil(t, l.Result())
		require.GreaterOrEqual(t, l.Result().Workers, 4, "%v", l.Result())
		require.LessOrEqual(t, l.Result().Workers, 5, "%v", l.Result())
	})
}

// In an epoch of a few batches each is the first or among the last. Validation between them isn't measured.
func TestALoaderTunesItselfThoughItsEpochsAreShort(t *testing.T) {
	const batch = 32
	for _, per := range []int{3, 5, 20} {
		for name, of := range map[string]func() (nwt.Dataset, nwt.Option){
			"by default": func() (nwt.Dataset, nwt.Option) { return kit.Sleeping(per*batch, time.Millisecond), kit.Silent },
			"with a fixed prefetch": func() (nwt.Dataset, nwt.Option) {
				return kit.Sleeping(per*batch, time.Millisecond), nwt.WithPrefetch(16)
			},
			"without order": func() (nwt.Dataset, nwt.Option) {
				return kit.Sleeping(per*batch, time.Millisecond), nwt.WithUnordered()
			},
			"a stream": func() (nwt.Dataset, nwt.Option) {
				return nwt.Streamed(slowShelves{kit.NewShelves(per*batch, 16)}), kit.Silent
			},
		} {
			t.Run(fmt.Sprintf("%d batches, %s", per, name), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					ds, opt := of()
					l, n := tuning(t, ds, 2, 32, nwt.WithBatchSize(batch), opt), 0
					for epoch := 0; n < 1500; epoch++ {
						for _, err := range l.Epoch(t.Context(), epoch) {
							require.NoError(t, err)
							n++
							time.Sleep(2 * time.Millisecond)
						}
						time.Sleep(time.Second)
					}
					r := l.Result()
					require.NotNil(t, r)
					require.GreaterOrEqual(t, r.Workers, 12, "%v", r)
				})
			})
		}
	}
}

// A run of a single batch shows nothing of the next.
func TestOneLineSaysThatRunsMayBeTooShortToBeTuned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log kit.Journal
		l := tuning(t, kit.Sleeping(32, time.Millisecond), 2, 32, log.Option())
		for epoch := range 30 {
			for _, err := range l.Epoch(t.Context(), epoch) {
				require.NoError(t, err)
			}
		}
		require.Nil(t, l.Result())
		require.Equal(t, 1, strings.Count(log.String(), "so short a run may not be enough"), "%s", &log)
	})
}

// A worker's connection, which Scratch keeps, is six times as slow for its first ten
// samples, and is closed if the worker leaves. Others prepare for seconds.
func TestALoaderThatTunesItselfWaitsUntilItsWorkersAreWarm(t *testing.T) {
	const load, step, batch = 10 * time.Millisecond, 5 * time.Millisecond, 8
	for name, c := range map[string]struct {
		ds  nwt.Dataset
		opt nwt.Option
	}{
		"slow at first": {connecting(load, 50*time.Millisecond), kit.Silent},
		"preparing":     {kit.Sleeping(1_000_000, load), nwt.WithWorkerInit(func(ctx context.Context, _ int) error { return kit.Heed(ctx, time.Second) })},
		"one after the other": {kit.Sleeping(1_000_000, load), nwt.WithWorkerInit(func(ctx context.Context, worker int) error {
			return kit.Heed(ctx, time.Duration(worker)*300*time.Millisecond)
		})},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := tuning(t, c.ds, 2, 32, nwt.WithBatchSize(batch), c.opt)
				kit.Train(t, l, 10_000, func() { time.Sleep(step) })
				r := l.Result()
				require.NotNil(t, r)
				require.GreaterOrEqual(t, r.Workers, 15, "%v", r)
			})
		})
	}
}

// changeable returns a dataset of which loading a batch of 32 takes a worker as long as load says.
func changeable(batch time.Duration) (load *atomic.Int64, ds nwt.Dataset) {
	load = new(atomic.Int64)
	load.Store(int64(batch))
	return load, nwt.NewDataset(1_000_000, kit.Scalar, func(context.Context, int, *nwt.Sample) error {
		time.Sleep(time.Duration(load.Load()) / 32)
		return nil
	})
}

func TestALoaderTunesAgainWhenTheDataBecomesSlower(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log kit.Journal
		load, ds := changeable(4 * time.Millisecond)
		l := tuning(t, ds, 2, 32, log.Option())
		step := func() { time.Sleep(5 * time.Millisecond) }
		kit.Train(t, l, 2000, step)
		require.Equal(t, 1, l.Result().Workers, "%v", l.Result())
		require.Contains(t, log.String(), "nwt: worker count settled while training\" workers=1")
		kit.Train(t, l, 2000, step)
		require.NotContains(t, log.String(), "tuning the worker count again", "nothing has changed")

		load.Store(int64(40 * time.Millisecond))
		kit.Train(t, l, 2000, step)
		require.Contains(t, log.String(), "tuning the worker count again")
		require.GreaterOrEqual(t, l.Workers(), 8)
		require.LessOrEqual(t, l.Result().Workers, 9, "%v", l.Result())
	})
}

// Four workers are too few at first, and training waits. Then data comes ten times as fast.
func TestALoaderTunesAgainWhenTheDataBecomesFaster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log kit.Journal
		load, ds := changeable(40 * time.Millisecond)
		l := tuning(t, ds, 4, 4, log.Option())
		step := func() { time.Sleep(5 * time.Millisecond) }
		kit.Train(t, l, 1000, step)
		require.Equal(t, 4, l.Result().Workers, "%v", l.Result())
		load.Store(int64(4 * time.Millisecond))
		kit.Train(t, l, 2000, step)
		require.Equal(t, 1, l.Workers())
		require.Equal(t, 1, l.Result().Workers, "%v", l.Result())
		require.Equal(t, 1, strings.Count(log.String(), "tuning the worker count again"))
		require.Equal(t, 2, strings.Count(log.String(), "worker count settled while training"))
	})
}

// Without a loop body the share of time spent waiting says nothing: it is always 1.
func TestASettledLoaderLooksAgainIfAnotherCountPromisesMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var loaded, under atomic.Int64
		ds := nwt.NewDataset(10_000_000, kit.Scalar, func(context.Context, int, *nwt.Sample) error {
			n := under.Add(1)
			defer under.Add(-1)
			d := time.Millisecond
			if loaded.Add(1) > 32*1500 && n > 4 { // a cache has run full: they hinder each other
				d *= time.Duration(n * n / 16)
			}
			time.Sleep(d)
			return nil
		})
		l := tuning(t, ds, 2, 16)
		kit.Train(t, l, 1400, func() {})
		require.NotNil(t, l.Result())
		require.GreaterOrEqual(t, l.Result().Workers, 15, "%v", l.Result())
		kit.Train(t, l, 6000, func() {})
		require.LessOrEqual(t, l.Result().Workers, 5, "%v", l.Result())
		require.GreaterOrEqual(t, l.Result().Workers, 4, "%v", l.Result())
	})
}

func TestAWorkerCountSetByHandStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := tuning(t, kit.Sleeping(1_000_000, time.Millisecond), 2, 8)
		kit.Train(t, l, 3, func() {})
		require.NoError(t, l.SetWorkers(5))
		kit.Train(t, l, 500, func() {})
		require.Equal(t, 5, l.Workers())
		require.Nil(t, l.Result())
	})
}

func TestWithATimeoutALoaderThatTunesItselfEndsThoughASampleHangs(t *testing.T) {
	for _, batch := range []int{1, 4} {
		synctest.Test(t, func(t *testing.T) {
			ds := nwt.NewDataset(5000, kit.Scalar, func(ctx context.Context, index int, _ *nwt.Sample) error {
				if index%1000 == 999 {
					return kit.Heed(ctx, 24*time.Hour)
				}
				return ctx.Err()
			})
			l := tuning(t, ds, 0, 4, nwt.WithBatchSize(batch), nwt.WithTimeout(time.Second), nwt.WithErrorBudget(5))
			began := time.Now()
			for _, err := range l.Epoch(t.Context(), 0) {
				require.NoError(t, err)
				require.Positive(t, l.Workers(), "%v", l.Result())
				time.Sleep(time.Millisecond) // loading is nothing beside it
			}
			require.Less(t, time.Since(began), time.Minute)
		})
	}
}

// A batch of four takes one worker 4 ms, of which 1 ms computes, and the loop body 3 ms.
func TestALiveResultTellsWhatABatchCostAndNoMoreThanItKnows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := kit.NewVirtualMachine(virtualCPUs)
		m.OthersUnknown = true
		ds := workload{sample: constant(750 * time.Microsecond), compute: constant(250 * time.Microsecond)}.dataset(m, 1)
		l := tuning(t, ds, 1, 2, nwt.WithBatchSize(4), m.Option())
		require.Nil(t, l.Result())
		kit.Train(t, l, 1000, func() { time.Sleep(3 * time.Millisecond) })
		r := l.Result()
		require.NotNil(t, r)
		require.Equal(t, []any{2, 2, "live", "host", 4, 16, true, 100}, []any{r.Workers, r.Fastest, r.Strategy, r.Device, r.BatchSize, int(r.BatchBytes), r.Step, r.Iterations})
		require.InEpsilon(t, 3*time.Millisecond, r.Floor, 0.02)
		require.InEpsilon(t, 6*time.Millisecond, r.Alpha, 0.05, "2 % of 100 batches")
		require.Less(t, r.Elapsed, 3*time.Second)
		require.Positive(t, r.Repeatability)
		for workers, mean := range map[int]time.Duration{1: 4 * time.Millisecond, 2: 3 * time.Millisecond} {
			trial := trialOf(t, r, workers)
			require.InEpsilon(t, mean, trial.Mean, 0.05, "%v", r)
			require.InEpsilon(t, 3*time.Millisecond, trial.Step, 0.05)
			require.InEpsilon(t, 100*mean, trial.Total, 0.05)
			require.Equal(t, -1.0, trial.OtherCPU)
			require.False(t, trial.PeakExact)
			require.Positive(t, trial.PeakRSS)
			require.GreaterOrEqual(t, trial.Prefetch, 2)
		}
	})
}

func TestALiveResultSaysThatOtherProgramsKeptCPUsBusy(t *testing.T) {
	for _, others := range []float64{0, 0.5} {
		synctest.Test(t, func(t *testing.T) {
			m := kit.NewVirtualMachine(virtualCPUs)
			m.Others = others
			l := tuning(t, workload{sample: constant(time.Millisecond)}.dataset(m, 1), 1, 2, nwt.WithBatchSize(4), m.Option())
			kit.Train(t, l, 1000, func() { time.Sleep(3 * time.Millisecond) })
			require.NotNil(t, l.Result())
			said := slices.ContainsFunc(l.Result().Warnings, func(w string) bool { return strings.Contains(w, "other processes kept 50 %") })
			require.Equal(t, others > 0, said, "%v", l.Result())
		})
	}
}

func TestALoaderThatTunesItselfKeepsTheFewestWorkersIfNoCountFitsIntoMemory(t *testing.T) {
	for _, opt := range []nwt.Option{kit.Silent, nwt.WithTimeout(time.Minute)} {
		synctest.Test(t, func(t *testing.T) {
			var log kit.Journal
			l := tuning(t, kit.Sleeping(1_000_000, time.Millisecond), 4, 16, opt, nwt.WithMemoryLimit(1<<20), log.Option())
			kit.Train(t, l, 10_000, func() { time.Sleep(time.Millisecond) })
			r := l.Result()
			require.NotNil(t, r)
			require.Equal(t, []int{1, 1}, []int{l.Workers(), r.Workers}, "%v", r)
			require.Regexp(t, `warning  no worker count fits into memory: 1 worker took [0-9.]+ MB: over the limit of 1.05 MB \(set by WithMemoryLimit\)`, r.String())
			require.Contains(t, r.String(), "Memory bounds the workers")
			require.NotContains(t, r.String(), "WithMaxWorkers")
			require.NotContains(t, r.String(), "nearly used up")
			require.Equal(t, 1, strings.Count(log.String(), "no worker count fits into memory"))
			require.Regexp(t, `took [0-9.]+ MB: over the limit of 1.05 MB`, log.String())
		})
	}
}

// Its steps take longer once it doesn't skip them; then each fortieth writes a checkpoint.
func TestPausesOfTheProgramDoNotCount(t *testing.T) {
	const step, checkpoint = 10 * time.Millisecond, 2 * time.Second
	for _, skipped := range []int{0, 1, 20, 100} {
		synctest.Test(t, func(t *testing.T) {
			n := 0
			l := tuning(t, kit.Sleeping(1_000_000, time.Millisecond), 2, 8)
			kit.Train(t, l, 1500, func() {
				switch n++; {
				case n <= skipped:
					time.Sleep(time.Microsecond)
				case n%40 == 0:
					time.Sleep(checkpoint)
				default:
					time.Sleep(step)
				}
			})
			r := l.Result()
			require.NotNil(t, r)
			require.Less(t, r.Floor, 2*step, "%d skipped: %v", skipped, r)
			require.GreaterOrEqual(t, r.Workers, 3, "%v", r) // they take 10.7 ms
			require.LessOrEqual(t, r.Workers, 4, "%v", r)
		})
	}
}

// Each fiftieth step writes a checkpoint. Meanwhile all batches become ready that may be ahead, which
// may be the rest of the epoch.
func TestALoaderTunesItselfBesidePauses(t *testing.T) {
	const batches, step, pause = 3000, 4 * msec, 600 * msec
	for name, c := range map[string]struct {
		per   int // batches of an epoch
		shape []int
		start int
	}{
		"small samples, from 2":    {150, nil, 2},
		"small samples, from 16":   {150, nil, 16},
		"pictures, from 8":         {150, []int{3, 64, 64}, 8},
		"each epoch has one pause": {50, nil, 2},
		"some epochs have a pause": {20, nil, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fields := []nwt.Field{{Name: "x", Type: nwt.Uint8, Shape: c.shape}}
				ds := nwt.WritesAll(nwt.NewDataset(c.per*32, fields, func(context.Context, int, *nwt.Sample) error { time.Sleep(msec); return nil }))
				run := func(l *nwt.Loader) time.Duration {
					began, n := time.Now(), 0
					for epoch := 0; n < batches; epoch++ {
						for _, err := range l.Epoch(t.Context(), epoch) {
							require.NoError(t, err)
							if time.Sleep(step); n%50 == 49 {
								time.Sleep(pause)
							}
							n++
						}
					}
					return time.Since(began) - batches/50*pause
				}
				fixed := run(kit.NewLoader(t, ds, nwt.WithWorkers(8), kit.Silent, virtual))
				l := tuning(t, ds, c.start, 32)
				took := run(l)
				require.NotNil(t, l.Result())
				require.Equal(t, 8, l.Workers(), "%v", l.Result())
				require.LessOrEqual(t, float64(took), 1.05*float64(fixed), "%v", l.Result())
			})
		})
	}
}

// A store that is slow for a second of three makes figures that are never sure.
func TestALoaderThatDoubtsItsCountMeasuresOthersAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		ds := nwt.NewDataset(1_000_000, kit.Scalar, func(context.Context, int, *nwt.Sample) error {
			if time.Since(began)%(3*time.Second) > 2*time.Second {
				time.Sleep(4 * msec)
			}
			time.Sleep(msec)
			return nil
		})
		l := tuning(t, ds, 4, 32)
		var found []*nwt.Result
		kit.Train(t, l, 20_000, func() {
			if r := l.Result(); r != nil && (len(found) == 0 || found[len(found)-1] != r) {
				found = append(found, r)
			}
			time.Sleep(6 * msec)
		})
		require.Greater(t, len(found), 2)
		for _, r := range found {
			require.Greater(t, len(r.Trials), 2, "%v", r)
		}
	})
}

func TestHowLongTuningTookIsUntilItSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := tuning(t, kit.Sleeping(1_000_000, msec), 4, 32)
		var first *nwt.Result
		kit.Train(t, l, 10_000, func() {
			if r := l.Result(); first == nil {
				first = r
			}
			time.Sleep(4 * msec)
		})
		last := l.Result()
		require.NotSame(t, first, last, "more was seen")
		require.Equal(t, first.Elapsed, last.Elapsed)
	})
}

// runFor trains for so long.
func runFor(t *testing.T, l *nwt.Loader, d time.Duration, step func()) {
	began := time.Now()
	for _, err := range l.Epochs(t.Context(), 0, 1<<20) {
		require.NoError(t, err)
		if step(); time.Since(began) >= d {
			return
		}
	}
}

// A store gives a burst for some seconds, and then 200 samples per second. Training waits nearly always, before
// and after.
func TestWhatALiveResultSaysIsTrueSoonAfterTheSourceHasChanged(t *testing.T) {
	for _, batch := range []int{8, 64} { // of 40 ms, or 320 ms
		synctest.Test(t, func(t *testing.T) {
			var log kit.Journal
			burst, next := time.Now().Add(5*time.Second), make(chan time.Time, 1)
			next <- burst
			ds := nwt.NewDataset(100_000_000, kit.Scalar, func(context.Context, int, *nwt.Sample) error {
				time.Sleep(msec)
				if time.Now().After(burst) {
					at := <-next
					if now := time.Now(); at.Before(now) {
						at = now
					}
					next <- at.Add(5 * msec)
					time.Sleep(time.Until(at))
				}
				return nil
			})
			l := kit.NewLoader(t, ds, nwt.WithAutoWorkers(), nwt.WithBatchSize(batch), virtual, log.Option())
			runFor(t, l, 20*time.Second, func() {})
			require.Contains(t, log.String(), "tuning the worker count again", "15 s have passed")
			runFor(t, l, 60*time.Second, func() {})
			r := l.Result()
			require.LessOrEqual(t, r.Workers, 16, "%v", r)
			require.InEpsilon(t, time.Duration(batch)*5*msec, trialOf(t, r, r.Workers).Mean, 0.1, "%v", r)
		})
	}
}

// A store is slow for five seconds of ten: each search ends as the store happens to be.
func TestALoaderWhoseSourceFlapsIsNotTunedWithoutEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log kit.Journal
		began := time.Now()
		one := make(chan struct{}, 1)
		ds := nwt.NewDataset(100_000_000, kit.Scalar, func(context.Context, int, *nwt.Sample) error {
			if time.Since(began)%(10*time.Second) > 5*time.Second { // one at a time
				one <- struct{}{}
				time.Sleep(2 * msec)
				<-one
			}
			time.Sleep(msec)
			return nil
		})
		l := tuning(t, ds, 4, 64, log.Option())
		runFor(t, l, 10*time.Minute, func() {})
		require.LessOrEqual(t, strings.Count(log.String(), "tuning the worker count again"), 12, "%s", &log)
	})
}
