package nwt_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

var (
	quiet  = slog.New(slog.DiscardHandler)
	silent = nwt.WithLogger(quiet)
)

const virtualCPUs = 4

// virtual is for everything that tunes in virtual time.
var virtual = nwt.NewVirtualMachine(virtualCPUs).Option()

// train runs so many batches with a step each, and returns what they took.
func train(t *testing.T, l *nwt.Loader, batches int, step func()) time.Duration {
	began, n := time.Now(), 0
	for _, err := range l.Epochs(t.Context(), 0, 1<<20) {
		require.NoError(t, err)
		step()
		if n++; n == batches {
			break
		}
	}
	return time.Since(began)
}

// In virtual time workers don't hinder each other: the most are the fastest.
func TestTuningWhileTrainingCostsLittle(t *testing.T) {
	if testing.Short() {
		t.Skip("measures in virtual time")
	}
	const batch, batches, most = 32, 2000, 64
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
		{"loading is as fast as the step", sleep(5 * time.Millisecond), sleep(5 * time.Millisecond), 4, [2]int{1, 1}},
		{"loading is a little slower than the step", sleep(5200 * time.Microsecond), sleep(5 * time.Millisecond), 4, [2]int{2, 2}},
		{"too few workers", sleep(32 * time.Millisecond), sleep(4 * time.Millisecond), 2, [2]int{8, 9}},
		{"far too few workers", sleep(32 * time.Millisecond), sleep(2 * time.Millisecond), 2, [2]int{16, 18}},
		{"far too many workers", sleep(32 * time.Millisecond), sleep(10 * time.Millisecond), most, [2]int{4, 4}},
		{"no workers", sleep(16 * time.Millisecond), sleep(4 * time.Millisecond), 0, [2]int{4, 4}},
		{"workers are of no use", sleep(32), sleep(5 * time.Millisecond), 2, [2]int{0, 0}},
		{"no step to speak of", sleep(32 * time.Millisecond), sleep(100 * time.Microsecond), 16, [2]int{most, most}},
		{"noise", noisy(20 * time.Millisecond), noisy(5 * time.Millisecond), 2, [2]int{4, 6}},
		{"noise and pauses", noisy(20 * time.Millisecond), func(rng *rand.Rand) time.Duration {
			if rng.IntN(40) == 0 {
				return time.Second
			}
			return noisy(5 * time.Millisecond)(rng)
		}, 2, [2]int{4, 6}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ds := nwt.NewDataset(1_000_000, scalar, func(_ context.Context, _ int, s *nwt.Sample) error {
					time.Sleep(tt.load(s.Rand()) / batch)
					return nil
				})
				run := func(opts ...nwt.Option) (*nwt.Loader, time.Duration) {
					rng := rand.New(rand.NewPCG(1, 1))
					l := newLoader(t, ds, append(opts, nwt.WithBatchSize(batch), nwt.WithMaxWorkers(most), silent, virtual)...)
					return l, train(t, l, batches, func() { time.Sleep(tt.step(rng)) })
				}
				_, best := run(nwt.WithWorkers(most))
				var slower []float64
				for range 3 { // the order in which goroutines run isn't fixed
					l, took := run(nwt.WithAutoWorkers(), nwt.WithWorkers(tt.start))
					r := l.Result()
					require.NotNil(t, r)
					require.Equal(t, r.Workers, l.Workers())
					require.GreaterOrEqual(t, r.Workers, tt.want[0], "%v", r)
					require.LessOrEqual(t, r.Workers, tt.want[1], "%v", r)
					slower = append(slower, float64(took)/float64(best)-1)
					require.NoError(t, l.Close())
				}
				slices.Sort(slower)
				t.Logf("slower than %d workers from the start by %.4f", most, slower)
				require.LessOrEqual(t, slower[1], 0.03)
				require.LessOrEqual(t, slower[2], 0.05)
			})
		})
	}
}

func TestALoaderThatTunesItselfDeliversTheSameBatches(t *testing.T) {
	ds := augmented(3000)
	opts := []nwt.Option{nwt.WithBatchSize(4), nwt.WithShuffle(7), nwt.WithMaxWorkers(8), silent}
	fixed := newLoader(t, ds, append(opts, nwt.WithWorkers(3))...)
	l := newLoader(t, ds, append(opts, nwt.WithAutoWorkers())...)
	for epoch := range 3 {
		require.Equal(t, collect(t, fixed, epoch), collect(t, l, epoch))
	}
}

func TestAStreamsLoaderTunesItselfToo(t *testing.T) {
	for _, start := range []int{0, 2} {
		l := newLoader(t, nwt.Streamed(newShelves(9000, 50)), nwt.WithBatchSize(4), nwt.WithMaxWorkers(8), silent, nwt.WithAutoWorkers(), nwt.WithWorkers(start))
		fixed := newLoader(t, nwt.Streamed(newShelves(9000, 50)), nwt.WithBatchSize(4), nwt.WithWorkers(3))
		for epoch := 0; l.Result() == nil; epoch++ { // with a coarse clock, many are needed
			require.Less(t, epoch, 10_000)
			var want [][]byte
			for b, err := range fixed.Epoch(t.Context(), epoch) {
				require.NoError(t, err)
				want = append(want, slices.Clone(b.Bytes(0)))
			}
			for b, err := range l.Epoch(t.Context(), epoch) {
				require.NoError(t, err)
				require.Equal(t, want[b.Index()], b.Bytes(0))
			}
		}
	}
}

func TestTheHighestCountBoundsTheFirstToo(t *testing.T) {
	require.Equal(t, 2, newLoader(t, emptyDataset(1), nwt.WithAutoWorkers(), nwt.WithWorkers(8), nwt.WithMaxWorkers(2)).Workers())
	require.Equal(t, 8, newLoader(t, emptyDataset(1), nwt.WithWorkers(8), nwt.WithMaxWorkers(2)).Workers())
}

func TestTuningGoesOnFromRunToRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoader(t, sleeping(64*10, time.Millisecond), nwt.WithBatchSize(64), nwt.WithAutoWorkers(), nwt.WithWorkers(4), nwt.WithMaxWorkers(32), silent, virtual)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for epoch := 0; l.Result() == nil; epoch++ { // ten batches each, and some broken off
			require.Less(t, epoch, 100)
			var at nwt.State
			for b, err := range l.Epoch(ctx, epoch) {
				require.NoError(t, err)
				at = b.State()
				time.Sleep(8 * time.Millisecond)
				if b.Index() == epoch%10 {
					break
				}
			}
			for _, err := range l.Resume(ctx, at) {
				require.NoError(t, err)
				time.Sleep(8 * time.Millisecond)
			}
		}
		require.Equal(t, 32, l.Result().Workers, "each run waits for its first batch: %v", l.Result())
		cancel()
		for _, err := range l.Epoch(ctx, 0) {
			require.ErrorIs(t, err, context.Canceled)
		}
	})
}

// slowShelves take a millisecond for each sample.
type slowShelves struct{ *shelves }

func (s slowShelves) Load(ctx context.Context, r *nwt.Record, dst *nwt.Sample) error {
	time.Sleep(time.Millisecond)
	return s.shelves.Load(ctx, r, dst)
}

// In an epoch of a few batches each is the first or among the last. Then epochs are
// measured whole. What waits for the first batch is part of them.
func TestALoaderTunesItselfHoweverShortItsEpochsAre(t *testing.T) {
	if testing.Short() {
		t.Skip("measures in virtual time")
	}
	const batch = 32
	run := func(t *testing.T, ds nwt.Dataset, opts ...nwt.Option) *nwt.Result {
		l, n := newLoader(t, ds, append(opts, nwt.WithBatchSize(batch), nwt.WithMaxWorkers(32), silent, virtual)...), 0
		for epoch := 0; n < 1500; epoch++ {
			for _, err := range l.Epoch(t.Context(), epoch) {
				require.NoError(t, err)
				n++
				time.Sleep(2 * time.Millisecond)
			}
			time.Sleep(time.Second) // for validation, say, which isn't loading's
		}
		require.NoError(t, l.Close())
		return l.Result()
	}
	for _, per := range []int{1, 2, 3, 5, 20} {
		for name, opts := range map[string][]nwt.Option{"by default": nil, "with a fixed prefetch": {nwt.WithPrefetch(16)}, "without order": {nwt.WithUnordered()}} {
			t.Run(fmt.Sprintf("%d batches, %s", per, name), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					ds := sleeping(per*batch, time.Millisecond)
					r := run(t, ds, append(opts, nwt.WithWorkers(2), nwt.WithAutoWorkers())...)
					require.NotNil(t, r)
					require.GreaterOrEqual(t, r.Workers, 12, "%v", r)
					if per == 1 {
						require.Equal(t, 32, r.Workers, "each batch is waited for: %v", r)
					}
				})
			})
		}
	}
	t.Run("a stream", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := run(t, nwt.Streamed(slowShelves{newShelves(3*batch, 16)}), nwt.WithWorkers(2), nwt.WithAutoWorkers())
			require.NotNil(t, r)
			require.GreaterOrEqual(t, r.Workers, 12, "%v", r)
		})
	})
}

// A worker's connection, which Scratch keeps, is six times as slow for its first ten
// samples, and is closed if the worker leaves.
func TestALoaderThatTunesItselfWaitsUntilItsWorkersAreWarm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoader(t, connecting(10*time.Millisecond, 50*time.Millisecond), nwt.WithBatchSize(8), nwt.WithAutoWorkers(), nwt.WithWorkers(2), nwt.WithMaxWorkers(32), nwt.WithPrefetch(1), silent, virtual)
		train(t, l, 3000, func() {})
		require.NotNil(t, l.Result())
		require.GreaterOrEqual(t, l.Result().Workers, 12, "%v", l.Result())
	})
}

// Workers prepare for seconds. That isn't loading, whoever waits for it, and batches that are
// loaded meanwhile aren't needed.
func TestALoaderThatTunesItselfWaitsUntilItsWorkersHaveBegun(t *testing.T) {
	if testing.Short() {
		t.Skip("measures in virtual time")
	}
	const load, step, batch = 10 * time.Millisecond, 5 * time.Millisecond, 8
	for name, begins := range map[string]func(worker int) time.Duration{
		"all in a second":     func(int) time.Duration { return time.Second },
		"all in 5 seconds":    func(int) time.Duration { return 5 * time.Second },
		"one after the other": func(worker int) time.Duration { return time.Duration(worker) * 300 * time.Millisecond },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLoader(t, sleeping(1_000_000, load), nwt.WithBatchSize(batch), nwt.WithAutoWorkers(), nwt.WithWorkers(2), nwt.WithMaxWorkers(32), silent, virtual,
					nwt.WithWorkerInit(func(_ context.Context, worker int) error { time.Sleep(begins(worker)); return nil }))
				deepest := 0
				train(t, l, 20_000, func() {
					time.Sleep(step)
					deepest = max(deepest, l.Stats().Prefetch)
				})
				require.LessOrEqual(t, deepest, 20)
				r := l.Result()
				require.NotNil(t, r)
				require.GreaterOrEqual(t, r.Workers, 16, "%v", r)
				for _, trial := range r.Trials {
					require.InEpsilon(t, max(step, batch*load/time.Duration(trial.Workers)), trial.Mean, 0.15, "%d workers: %v", trial.Workers, r)
				}
			})
		})
	}
}

// Without order, the batches of the others go on coming while a worker begins.
func TestALoaderWithoutOrderThatTunesItselfWaitsUntilItsWorkersHaveBegun(t *testing.T) {
	if testing.Short() {
		t.Skip("measures in virtual time")
	}
	synctest.Test(t, func(t *testing.T) {
		l := newLoader(t, sleeping(1_000_000, 2*time.Millisecond), nwt.WithBatchSize(8), nwt.WithAutoWorkers(), nwt.WithWorkers(2), nwt.WithMaxWorkers(32), nwt.WithUnordered(), silent, virtual,
			nwt.WithWorkerInit(func(context.Context, int) error { time.Sleep(5 * time.Second); return nil }))
		train(t, l, 80_000, func() { time.Sleep(time.Millisecond) })
		require.NotNil(t, l.Result())
		require.GreaterOrEqual(t, l.Result().Workers, 14, "%v", l.Result())
	})
}

// Once it has settled, the depth follows need again, whichever count it looked at last: a
// sample in a thousand takes a second.
func TestOnceWorkersHaveBegunDepthFollowsNeed(t *testing.T) {
	for _, start := range []int{2, 8, 12, 16, 24, 32} {
		synctest.Test(t, func(t *testing.T) {
			slow := false
			ds := nwt.NewDataset(1_000_000, scalar, func(_ context.Context, index int, _ *nwt.Sample) error {
				time.Sleep(10 * time.Millisecond)
				if slow && index%1000 == 0 {
					time.Sleep(time.Second)
				}
				return nil
			})
			l := newLoader(t, ds, nwt.WithBatchSize(8), nwt.WithAutoWorkers(), nwt.WithWorkers(start), nwt.WithMaxWorkers(32), silent, virtual,
				nwt.WithWorkerInit(func(context.Context, int) error { time.Sleep(time.Second); return nil }))
			train(t, l, 10_000, func() { time.Sleep(5 * time.Millisecond) })
			require.NotNil(t, l.Result())
			require.LessOrEqual(t, l.Stats().Prefetch, 20)
			slow = true
			train(t, l, 1000, func() { time.Sleep(5 * time.Millisecond) })
			require.GreaterOrEqual(t, l.Stats().Prefetch, 40)
		})
	}
}

// A count that is set by hand may be set while workers begin.
func TestDepthFollowsNeedWhereTheCountWasSetByHandWhileWorkersBegan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ds := nwt.NewDataset(1_000_000, scalar, func(_ context.Context, index int, _ *nwt.Sample) error {
			time.Sleep(10 * time.Millisecond)
			if index%1000 == 0 {
				time.Sleep(time.Second)
			}
			return nil
		})
		l := newLoader(t, ds, nwt.WithBatchSize(8), nwt.WithAutoWorkers(), nwt.WithWorkers(2), nwt.WithMaxWorkers(32), silent, virtual,
			nwt.WithWorkerInit(func(context.Context, int) error { time.Sleep(time.Second); return nil }))
		require.NoError(t, l.SetWorkers(16))
		train(t, l, 3000, func() { time.Sleep(5 * time.Millisecond) })
		require.GreaterOrEqual(t, l.Stats().Prefetch, 40)
	})
}

// changeable is a dataset of which loading a batch of 32 takes a worker as long as load says.
func changeable(batch time.Duration) (load *atomic.Int64, ds nwt.Dataset) {
	load = new(atomic.Int64)
	load.Store(int64(batch))
	return load, nwt.NewDataset(1_000_000, scalar, func(context.Context, int, *nwt.Sample) error {
		time.Sleep(time.Duration(load.Load()) / 32)
		return nil
	})
}

func TestALoaderTunesAgainWhenTheDataBecomesSlower(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		load, ds := changeable(4 * time.Millisecond)
		l := newLoader(t, ds, nwt.WithAutoWorkers(), nwt.WithWorkers(2), nwt.WithMaxWorkers(32), silent, virtual)
		step := func() { time.Sleep(5 * time.Millisecond) }
		train(t, l, 1000, step)
		before := l.Result()
		require.Equal(t, 1, before.Workers)

		train(t, l, 1000, step)
		require.Same(t, before, l.Result(), "nothing has changed")

		load.Store(int64(40 * time.Millisecond))
		train(t, l, 1000, step)
		require.Equal(t, 8, l.Workers())
		require.Equal(t, 8, l.Result().Workers, "%v", l.Result())

		load.Store(int64(4 * time.Millisecond)) // more workers than needed wait for nothing, and stay
		train(t, l, 2000, step)
		require.Equal(t, 8, l.Workers())
	})
}

// One worker is enough at first. Then training waits for 9 % of the time. Whether that counts
// depends on alpha, however it was set: 5 ms per batch are 500 ms over 100 batches.
func TestHowMuchMoreWaitingASettledLoaderPutsUpWithFollowsAlpha(t *testing.T) {
	for _, tt := range []struct {
		name  string
		alpha nwt.Option
		again bool
	}{
		{"no alpha", nwt.WithAlpha(0), true},
		{"2 % in seconds", nwt.WithAlpha(10 * time.Millisecond), true},
		{"8 % in seconds", nwt.WithAlpha(40 * time.Millisecond), false},
		{"2 %", nwt.WithRelativeAlpha(0.02), true},
		{"8 %", nwt.WithRelativeAlpha(0.08), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				load, ds := changeable(4 * time.Millisecond)
				var log bytes.Buffer
				l := newLoader(t, ds, nwt.WithAutoWorkers(), nwt.WithWorkers(2), nwt.WithMaxWorkers(32), virtual, tt.alpha, nwt.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
				step := func() { time.Sleep(5 * time.Millisecond) }
				train(t, l, 1000, step)
				require.Equal(t, 1, l.Workers())
				load.Store(int64(5500 * time.Microsecond))
				train(t, l, 400, step)
				require.Equal(t, tt.again, strings.Contains(log.String(), "training waits for data more"), "%s", &log)
			})
		})
	}
}

// Four workers are too few at first, and training waits. Then data comes ten times as fast.
func TestALoaderTunesAgainWhenTheDataBecomesFaster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		load, ds := changeable(40 * time.Millisecond)
		var log bytes.Buffer
		l := newLoader(t, ds, nwt.WithAutoWorkers(), nwt.WithWorkers(4), nwt.WithMaxWorkers(4), virtual, nwt.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		step := func() { time.Sleep(5 * time.Millisecond) }
		train(t, l, 1000, step)
		require.Equal(t, 4, l.Result().Workers, "%v", l.Result())
		require.NotContains(t, log.String(), "tuning again")
		load.Store(int64(4 * time.Millisecond))
		train(t, l, 2000, step)
		require.Equal(t, 1, l.Workers())
		require.Equal(t, 1, l.Result().Workers, "%v", l.Result())
		require.Equal(t, 1, strings.Count(log.String(), "tuning again"))
		require.Equal(t, 2, strings.Count(log.String(), "worker count settled while training"))
	})
}

func TestAWorkerCountSetByHandStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoader(t, sleeping(1_000_000, time.Millisecond), nwt.WithAutoWorkers(), nwt.WithWorkers(2), silent, virtual)
		train(t, l, 3, func() {})
		require.NoError(t, l.SetWorkers(5))
		train(t, l, 500, func() {})
		require.Equal(t, 5, l.Workers())
		require.Nil(t, l.Result())
	})
}

func TestWhereTheClockIsCoarseACountIsMeasuredForManyOfItsSteps(t *testing.T) {
	const step = 15600 * time.Microsecond
	m := nwt.NewVirtualMachine(virtualCPUs)
	m.Step = step
	for name, body := range map[string]time.Duration{"a body of 2 ms": 2 * time.Millisecond, "a body of 100 µs": 100 * time.Microsecond} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLoader(t, sleeping(100_000_000, body/64), nwt.WithAutoWorkers(), nwt.WithWorkers(1), nwt.WithMaxWorkers(1), m.Option(), silent)
				for n := 0; l.Result() == nil && n < 1000; n++ {
					train(t, l, 1000, func() { time.Sleep(body) })
				}
				require.NotNil(t, l.Result())
				for _, trial := range l.Result().Trials {
					require.GreaterOrEqual(t, time.Duration(trial.Iterations)*trial.Mean, 20*step, "%d workers", trial.Workers)
				}
			})
		})
	}
}

func TestOnlyALoaderThatTunesItselfHasAResult(t *testing.T) {
	l := newLoader(t, emptyDataset(100_000), nwt.WithWorkers(1))
	train(t, l, 1000, func() {})
	require.Nil(t, l.Result())
	l = newLoader(t, emptyDataset(100_000), nwt.WithAutoWorkers())
	require.Nil(t, l.Result())
}

func TestALiveResultClaimsNoMoreThanItKnows(t *testing.T) {
	m := nwt.NewVirtualMachine(virtualCPUs)
	m.OthersUnknown = true
	synctest.Test(t, func(t *testing.T) {
		ds := nwt.NewDataset(1_000_000, scalar, func(_ context.Context, _ int, s *nwt.Sample) error {
			time.Sleep(time.Duration(s.Rand().ExpFloat64() * float64(time.Millisecond)))
			return nil
		})
		l := newLoader(t, ds, nwt.WithAutoWorkers(), nwt.WithWorkers(2), nwt.WithMaxWorkers(32), m.Option(), silent)
		train(t, l, 1000, func() { time.Sleep(3 * time.Millisecond) })
		r := l.Result()
		require.NotNil(t, r)
		require.Positive(t, r.Slower, "the times vary: %v", r)
		for _, trial := range r.Trials {
			require.Equal(t, -1.0, trial.OtherCPU, "%d workers", trial.Workers)
			require.False(t, trial.PeakExact)
			require.Positive(t, trial.Prefetch, "%d workers", trial.Workers)
		}
	})
}

func TestSettlingIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		l := newLoader(t, sleeping(1_000_000, time.Microsecond), nwt.WithAutoWorkers(), nwt.WithWorkers(2), virtual, nwt.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		train(t, l, 500, func() { time.Sleep(time.Millisecond) })
		require.Contains(t, log.String(), "workers=1")
	})
}

// A batch of four takes one worker 4 ms, of which 1 ms computes, and the loop body 3 ms.
func TestALiveResultTellsWhatABatchCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := nwt.NewVirtualMachine(virtualCPUs)
		l := newLoader(t, busyFor(m, 750*time.Microsecond, 250*time.Microsecond), nwt.WithBatchSize(4), nwt.WithAutoWorkers(), nwt.WithWorkers(1), nwt.WithMaxWorkers(2), m.Option(), silent)
		began, settled := time.Now(), time.Duration(0)
		train(t, l, 1000, func() {
			if settled == 0 && l.Result() != nil {
				settled = time.Since(began)
			}
			time.Sleep(3 * time.Millisecond)
		})
		r := l.Result()
		require.NotNil(t, r)
		require.Equal(t, []any{2, 2, "live", "host", 4, 16, true, 100}, []any{r.Workers, r.Fastest, r.Strategy, r.Device, r.BatchSize, r.BatchBytes, r.Step, r.Iterations})
		nearly(t, []time.Duration{r.Alpha, r.Floor}, 6*time.Millisecond, 3*time.Millisecond) // 2 % of 100 batches, and the loop body
		require.InDelta(t, float64(settled), float64(r.Elapsed), float64(5*time.Millisecond))
		require.Positive(t, r.Confidence)
		require.Len(t, r.Trials, 2)
		for k, mean := range []time.Duration{4 * time.Millisecond, 3 * time.Millisecond} {
			trial := r.Trials[k]
			require.Equal(t, k+1, trial.Workers)
			require.GreaterOrEqual(t, trial.Iterations, 16)
			nearly(t, []time.Duration{trial.Mean, trial.Wait + trial.Step, trial.Step, trial.Total}, mean, mean, 3*time.Millisecond, 100*mean)
			require.GreaterOrEqual(t, trial.CPU, 0.98/mean.Seconds()/1000/virtualCPUs)
			require.LessOrEqual(t, trial.CPU, 1.02/4*float64(k+1)/virtualCPUs, "what is loaded ahead costs CPU too")
			require.Zero(t, trial.OtherCPU)
			require.Positive(t, trial.PeakRSS)
			require.GreaterOrEqual(t, trial.Prefetch, 2)
		}
	})
}

// WithMaxWorkers, which the advice named, doesn't hold it back.
func TestALoaderThatTunesItselfSaysThatMemoryAllowsNoMoreWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoader(t, sleeping(1_000_000, time.Millisecond), nwt.WithAutoWorkers(), nwt.WithWorkers(4), nwt.WithMemoryLimit(1), silent, virtual)
		train(t, l, 1000, func() {})
		r := l.Result()
		require.NotNil(t, r)
		require.Len(t, r.RuledOut, 1)
		require.Contains(t, r.String(), "4 workers is the highest count that memory allows")
		require.NotContains(t, r.String(), "WithMaxWorkers")
		require.NoError(t, l.Close())
	})
}

// A program may skip its first batches, as when it resumes. That its steps take longer from
// then on makes none of them a pause, nor a later checkpoint an ordinary step.
func TestACheckpointIsNoOrdinaryStepThoughTheFirstStepsWereSkipped(t *testing.T) {
	const step, checkpoint = 10 * time.Millisecond, 2 * time.Second
	for _, skipped := range []int{0, 1, 20, 100} {
		synctest.Test(t, func(t *testing.T) {
			n := 0
			l := newLoader(t, sleeping(1_000_000, time.Millisecond), nwt.WithAutoWorkers(), silent, virtual)
			train(t, l, 1500, func() {
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
			require.NoError(t, l.Close())
		})
	}
}
