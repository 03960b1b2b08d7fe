package nwt_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

// A workload is a source whose time per sample depends on how many are under way.
type workload struct {
	name   string
	sample func(rng *rand.Rand, under int) time.Duration
	step   time.Duration
	first  time.Duration // more for each of a worker's first ten samples
}

func (w workload) dataset(seed uint64) nwt.Dataset {
	type state struct {
		under int
		rng   *rand.Rand
		seen  map[int]int
	}
	one := make(chan *state, 1) // a mutex would stop virtual time
	one <- &state{rng: rand.New(rand.NewPCG(seed, 0)), seen: map[int]int{}}
	return nwt.NewDataset(10_000_000, scalar, func(_ context.Context, _ int, s *nwt.Sample) error {
		st := <-one
		st.under++
		d := w.sample(st.rng, st.under)
		if st.seen[s.Worker()]++; st.seen[s.Worker()] <= 10 {
			d += w.first
		}
		one <- st
		time.Sleep(d)
		st = <-one
		st.under--
		one <- st
		return nil
	})
}

// shared divides n channels of a source among those who ask.
func shared(d time.Duration, channels int) func(*rand.Rand, int) time.Duration {
	return func(_ *rand.Rand, under int) time.Duration {
		return d * time.Duration(max(under, channels)) / time.Duration(channels)
	}
}

// stalling is a store that stalls now and then if more than 12 ask at once.
func stalling(rng *rand.Rand, under int) time.Duration {
	if under > 12 && rng.IntN(1600) == 0 {
		return 250 * time.Millisecond
	}
	return time.Millisecond
}

var workloads = []workload{
	{name: "latency", sample: func(*rand.Rand, int) time.Duration { return time.Millisecond }, step: 2 * time.Millisecond},
	{name: "latency, no step", sample: func(*rand.Rand, int) time.Duration { return time.Millisecond }},
	{name: "noise", sample: func(rng *rand.Rand, _ int) time.Duration { return time.Duration(rng.ExpFloat64() * 1e6) }, step: 4 * time.Millisecond},
	{name: "1 % of samples 100 × slower", sample: func(rng *rand.Rand, _ int) time.Duration {
		if rng.IntN(100) == 0 {
			return 50 * time.Millisecond
		}
		return 500 * time.Microsecond
	}, step: 4 * time.Millisecond},
	{name: "optimum at 3", sample: func(_ *rand.Rand, under int) time.Duration {
		d := 0.3
		if under > 3 {
			d *= float64(under) / 3 * (1 + 0.15*float64(under-3))
		}
		return time.Duration(d * 1e6)
	}},
	{name: "four channels", sample: shared(400*time.Microsecond, 4), step: time.Millisecond},
	{name: "stalls beyond 12", sample: stalling},
	{name: "cold workers", sample: func(*rand.Rand, int) time.Duration { return time.Millisecond }, step: 2 * time.Millisecond, first: 10 * time.Millisecond},
	{name: "pauses", sample: func(rng *rand.Rand, _ int) time.Duration { return time.Millisecond }, step: 3 * time.Millisecond},
	{name: "flat", sample: func(*rand.Rand, int) time.Duration { return 10 * time.Microsecond }, step: 5 * time.Millisecond},
}

var (
	calibrate = flag.Bool("calibrate", false, "measure how well simulated workloads are tuned")
	seeds     = flag.Int("seeds", 1, "with -calibrate, tune each workload with so many seeds")
)

// 6000 batches, tuned while training, against the best fixed count.
func TestTuningWhileTrainingComesNearToTheBestFixedCount(t *testing.T) {
	if !*calibrate {
		t.Skip("measured with -calibrate")
	}
	const batch, batches, most = 32, 6000, 32
	var slower []float64
	for i := range *seeds * len(workloads) {
		w, seed := workloads[i%len(workloads)], uint64(1+i/len(workloads))
		run := func(t *testing.T, opts ...nwt.Option) (l *nwt.Loader, took time.Duration) {
			synctest.Test(t, func(t *testing.T) {
				l = newLoader(t, w.dataset(seed), append(opts, nwt.WithBatchSize(batch), nwt.WithMaxWorkers(most), silent, virtual)...)
				n := 0
				took = train(t, l, batches, func() {
					if n++; w.name == "pauses" && n%500 == 0 {
						time.Sleep(time.Second)
					}
					time.Sleep(w.step)
				})
				require.NoError(t, l.Close())
			})
			return l, took
		}
		t.Run(w.name, func(t *testing.T) {
			best, at := time.Duration(1<<62), 0
			for _, n := range []int{0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32} {
				if _, took := run(t, nwt.WithWorkers(n)); took < best {
					best, at = took, n
				}
			}
			for _, start := range []int{2, 16} {
				l, took := run(t, nwt.WithAutoWorkers(), nwt.WithWorkers(start))
				more := float64(took)/float64(best) - 1
				settled := -1
				if r := l.Result(); r != nil {
					settled = r.Workers
				}
				t.Logf("from %d: settled on %d, %.1f %% slower than the best, %d", start, settled, 100*more, at)
				slower = append(slower, more)
			}
		})
	}
	slices.Sort(slower)
	t.Logf("%.1f %% in the median, %.1f %% at worst", 100*slower[len(slower)/2], 100*slower[len(slower)-1])
	require.LessOrEqual(t, slower[len(slower)/2], 0.03)
	require.LessOrEqual(t, slower[len(slower)-1], 0.08)
}

// The time of the settled count is that of a long run without tuning.
func TestTheIntervalOfASettledLoaderHoldsTheTimeOfALongRun(t *testing.T) {
	if !*calibrate {
		t.Skip("measured with -calibrate")
	}
	const batch, batches, most, long = 32, 6000, 32, 20_000
	var widths []float64
	held := 0
	for i := range *seeds * len(workloads) {
		w, seed := workloads[i%len(workloads)], uint64(1+i/len(workloads))
		for _, start := range []int{2, 16} {
			synctest.Test(t, func(t *testing.T) {
				opts := []nwt.Option{nwt.WithBatchSize(batch), nwt.WithMaxWorkers(most), silent, virtual}
				step := func() { time.Sleep(w.step) }
				l := newLoader(t, w.dataset(seed), append(opts, nwt.WithAutoWorkers(), nwt.WithWorkers(start))...)
				train(t, l, batches, step)
				r := l.Result()
				require.NotNil(t, r, w.name)
				settled := r.Trials[slices.IndexFunc(r.Trials, func(one nwt.Trial) bool { return one.Workers == r.Workers })]
				fixed := newLoader(t, w.dataset(seed+1000), append(opts, nwt.WithWorkers(r.Workers))...)
				train(t, fixed, batches, step)
				mean := train(t, fixed, long, step) / long
				widths = append(widths, float64(settled.High-settled.Low)/2/float64(settled.Mean))
				if settled.Low-settled.Mean/1000 <= mean && mean <= settled.High+settled.Mean/1000 {
					held++
				} else {
					t.Logf("%s, from %d: %v per batch, not %v to %v, at %d workers", w.name, start, mean, settled.Low, settled.High, r.Workers)
				}
			})
		}
	}
	slices.Sort(widths)
	t.Logf("%d of %d held, ± %.1f %% in the median, ± %.1f %% at most", held, len(widths), 100*widths[len(widths)/2], 100*widths[len(widths)-1])
	require.GreaterOrEqual(t, float64(held), 0.9*float64(len(widths)))
}

// While training waits for the sample that stalls, those behind it are loaded. A look
// must not be charged for all of the wait, and the next one for what it finds loaded.
func TestStallsThatDepthHidesDoNotDecideTheCount(t *testing.T) {
	if testing.Short() {
		t.Skip("measures in virtual time")
	}
	for seed := range uint64(4) {
		synctest.Test(t, func(t *testing.T) {
			w := workload{sample: stalling}
			l := newLoader(t, w.dataset(seed), nwt.WithAutoWorkers(), nwt.WithWorkers(2), nwt.WithMaxWorkers(32), silent, virtual)
			train(t, l, 6000, func() {})
			require.NotNil(t, l.Result())
			require.Equal(t, 32, l.Result().Workers, "%v", l.Result())
		})
	}
}

// Without a loop body the share of time spent waiting says nothing: it is always 1.
func TestASettledLoaderLooksAgainIfAnotherCountPromisesMore(t *testing.T) {
	if testing.Short() {
		t.Skip("measures in virtual time")
	}
	synctest.Test(t, func(t *testing.T) {
		var loaded atomic.Int64
		w := workload{sample: func(_ *rand.Rand, under int) time.Duration {
			d := time.Millisecond
			if loaded.Add(1) > 32*1000 && under > 4 { // a cache has run full: they hinder each other
				d *= time.Duration(under * under / 16)
			}
			return d
		}}
		l := newLoader(t, w.dataset(1), nwt.WithAutoWorkers(), nwt.WithWorkers(2), nwt.WithMaxWorkers(16), silent, virtual)
		train(t, l, 900, func() {})
		require.NotNil(t, l.Result())
		require.Equal(t, 16, l.Result().Workers, "%v", l.Result())
		train(t, l, 4000, func() {})
		require.LessOrEqual(t, l.Result().Workers, 5, "%v", l.Result())
		require.GreaterOrEqual(t, l.Result().Workers, 4, "%v", l.Result())
	})
}

// Training steps vary: with the length of sequences, by chance, or since each fourth waits
// for the device. That isn't the workers' doing, and must not be taken for it.
func TestHowLongStepsHappenedToTakeDoesNotDecideTheCount(t *testing.T) {
	if !*calibrate {
		t.Skip("measured with -calibrate")
	}
	const batch, mean = 32, 18 * time.Millisecond
	for name, step := range map[string]func(rng *rand.Rand, n int) time.Duration{
		"two lengths": func(rng *rand.Rand, _ int) time.Duration { return mean * time.Duration(2+5*rng.IntN(2)) / 9 * 2 },
		"exponential": func(rng *rand.Rand, _ int) time.Duration { return time.Duration(rng.ExpFloat64() * float64(mean)) },
		"each fourth": func(_ *rand.Rand, n int) time.Duration {
			if n%4 == 0 {
				return mean * 13 / 4
			}
			return mean / 4
		},
	} {
		for _, need := range []struct{ share, most int }{{40, 1}, {240, 4}} { // percent of a worker that loading takes; workers
			t.Run(fmt.Sprintf("%s, %d %% of a worker", name, need.share), func(t *testing.T) {
				right, held := 0, 0
				for seed := range uint64(20) {
					synctest.Test(t, func(t *testing.T) {
						rng, n, all := rand.New(rand.NewPCG(seed, 3)), 0, time.Duration(0)
						l := newLoader(t, sleeping(1_000_000, mean*time.Duration(need.share)/100/batch), nwt.WithBatchSize(batch), nwt.WithAutoWorkers(), nwt.WithWorkers(16), nwt.WithMaxWorkers(64), silent, virtual)
						train(t, l, 1500, func() {
							n++
							d := step(rng, n)
							all += d
							time.Sleep(d)
						})
						r := l.Result()
						require.NotNil(t, r)
						if r.Workers <= need.most {
							right++
						}
						i := slices.IndexFunc(r.Trials, func(t nwt.Trial) bool { return t.Workers == r.Workers })
						if r.Trials[i].Low <= mean && mean <= r.Trials[i].High {
							held++
						}
						require.NoError(t, l.Close())
					})
				}
				t.Logf("%d right, %d intervals held", right, held)
				require.GreaterOrEqual(t, right, 16)
				require.GreaterOrEqual(t, held, 16)
			})
		}
	}
}
