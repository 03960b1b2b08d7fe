package loading_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/loadertest/kit"
)

// virtual is for everything that looks at memory in virtual time.
var virtual = kit.NewVirtualMachine(4).Option()

// In virtual time. What the workers could load if nothing waited for order is
// the sum of all loads over their number.
func TestAHeavyTailHoldsNothingUpByDefault(t *testing.T) {
	for _, tt := range []struct {
		name           string
		workers, batch int
		slow           time.Duration
		share          float64
		batches        int
		opts           []nwt.Option
		want           float64
	}{
		{"1 % of 100 ms", 16, 64, 100 * time.Millisecond, 0.01, 6000, nil, 0.968},
		{"0.2 % of 400 ms", 32, 32, 400 * time.Millisecond, 0.002, 30000, nil, 0.95},
		{"0.5 % of 200 ms", 64, 256, 200 * time.Millisecond, 0.005, 3000, nil, 0.95},
		{"1 % of 100 ms, unordered", 16, 64, 100 * time.Millisecond, 0.01, 6000, []nwt.Option{nwt.WithUnordered()}, 0.98},
	} {
		if testing.Short() && tt.batch*tt.batches > 500_000 {
			continue
		}
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := tt.batch * tt.batches
				ds, of := kit.Tailed(n, time.Millisecond, tt.slow, tt.share)
				var all time.Duration
				for i := range n {
					all += of(i)
				}
				l := kit.NewLoader(t, ds, append(tt.opts, nwt.WithBatchSize(tt.batch), nwt.WithWorkers(tt.workers), kit.Silent)...)
				took := kit.Train(t, l, tt.batches, func() {})
				share := float64(all) / float64(tt.workers) / float64(took)
				t.Logf("%.3f of what the workers can load, %+v", share, l.Stats())
				require.GreaterOrEqual(t, share, tt.want)
			})
		})
	}
}

// calledOnce loads a batch in one call, which takes as long as its first sample says.
type calledOnce struct {
	nwt.Dataset
	takes func(index int) time.Duration
}

func (d calledOnce) LoadMany(_ context.Context, indices []int, _ []*nwt.Sample) error {
	time.Sleep(d.takes(indices[0]))
	return nil
}

// As above, but one call in 50 takes ten times as long, and each worker has a whole batch. When
// one is opened, one worker takes it, and the others are as idle as before.
func TestACallThatStallsHoldsNothingUpByDefault(t *testing.T) {
	const batch, batches = 32, 8000
	for workers, want := range map[int]float64{8: 0.97, 32: 0.90} {
		synctest.Test(t, func(t *testing.T) {
			ds, takes := kit.Tailed(batch*batches, 20*time.Millisecond, 200*time.Millisecond, 0.02)
			var all time.Duration
			for i := 0; i < batch*batches; i += batch {
				all += takes(i)
			}
			l := kit.NewLoader(t, calledOnce{ds, takes}, nwt.WithBatchSize(batch), nwt.WithWorkers(workers), kit.Silent)
			took := kit.Train(t, l, batches, func() {})
			share := float64(all) / float64(workers) / float64(took)
			t.Logf("%.3f of what %d workers can load, %+v", share, workers, l.Stats())
			require.GreaterOrEqual(t, share, want)
		})
	}
}

// One call in a hundred takes 400 ms, and the step sets the pace: 50 batches ahead hide that. If
// they were given back after each calm window, the next stall would pay for them again.
func TestRareStallsAreHiddenForGood(t *testing.T) {
	const batch, before, batches, step = 32, 2000, 16000, 8 * time.Millisecond
	for _, workers := range []int{8, 16} {
		synctest.Test(t, func(t *testing.T) {
			ds, takes := kit.Tailed(batch*batches, 20*time.Millisecond, 400*time.Millisecond, 0.01)
			l := kit.NewLoader(t, calledOnce{ds, takes}, nwt.WithBatchSize(batch), nwt.WithWorkers(workers), kit.Silent)
			n, began := 0, time.Now()
			kit.Train(t, l, batches, func() {
				time.Sleep(step)
				if n++; n == before {
					began = time.Now()
				}
			})
			took := time.Since(began) / (batches - before)
			t.Logf("%v per batch, %+v", took, l.Stats())
			require.LessOrEqual(t, took, step*1015/1000)
		})
	}
}

// Only the first batch of an epoch is waited for.
func TestTheBeginningOfAnEpochNeedsNoDepth(t *testing.T) {
	const batch, per = 32, 300
	for _, workers := range []int{16, 32} {
		synctest.Test(t, func(t *testing.T) {
			ds, takes := kit.Tailed(batch*per, 20*time.Millisecond, 0, 0)
			l := kit.NewLoader(t, calledOnce{ds, takes}, nwt.WithBatchSize(batch), nwt.WithWorkers(workers), kit.Silent)
			n, slots := 0, 0
			for epoch := range 40 {
				for _, err := range l.Epoch(t.Context(), epoch) {
					require.NoError(t, err)
					time.Sleep(25 * time.Millisecond)
					n, slots = n+1, slots+l.Stats().Slots
				}
			}
			require.LessOrEqual(t, float64(slots)/float64(n), 4.0)
		})
	}
}

// One call in 5000 takes 2 s. Beside a step of 10 ms 200 batches hide that, and idle workers open no more.
func TestAStallBuysNoMoreDepthThanHidesIt(t *testing.T) {
	const batch, batches = 32, 12_000
	synctest.Test(t, func(t *testing.T) {
		calls := atomic.Int64{}
		takes := func(int) time.Duration {
			if calls.Add(1)%5000 == 0 {
				return 2 * time.Second
			}
			return 20 * time.Millisecond
		}
		l, most := kit.NewLoader(t, calledOnce{kit.Sleeping(batch*batches, 0), takes}, nwt.WithBatchSize(batch), nwt.WithWorkers(8), kit.Silent), 0
		kit.Train(t, l, batches, func() {
			most = max(most, l.Stats().Slots)
			time.Sleep(10 * time.Millisecond)
		})
		require.LessOrEqual(t, most, 250)
	})
}

// Loading takes 8.4 ms per batch; the step pauses after each 32 batches, as a
// checkpoint does. At best only the first 32 batches are waited for.
func TestAStepThatPausesFindsItsBatchesReady(t *testing.T) {
	stream := &kit.Breaking{Shelves: kit.NewShelves(8000, 8000, 8000), OnLoad: func(*nwt.Sample) { time.Sleep(2100 * time.Microsecond) }}
	for _, ds := range []nwt.Dataset{kit.Sleeping(1_000_000, 2100*time.Microsecond), nwt.Streamed(stream)} {
		synctest.Test(t, func(t *testing.T) {
			l := kit.NewLoader(t, ds, nwt.WithBatchSize(64), nwt.WithWorkers(16), kit.Silent)
			n := 0
			took := kit.Train(t, l, 320, func() {
				if n++; n%32 == 0 {
					time.Sleep(270 * time.Millisecond)
				}
			})
			t.Logf("%v, %+v", took, l.Stats())
			require.LessOrEqual(t, took, 32*8400*time.Microsecond+10*270*time.Millisecond)
		})
	}
}

func TestTheDepthStaysWhereItIsNotNeeded(t *testing.T) {
	for name, tt := range map[string]struct{ load, step time.Duration }{
		"loading sets the pace":  {4 * time.Millisecond, 0},
		"the step sets the pace": {time.Millisecond, 20 * time.Millisecond},
		"both do":                {4 * time.Millisecond, 16 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := kit.NewLoader(t, kit.Sleeping(1_000_000, tt.load), nwt.WithBatchSize(32), nwt.WithWorkers(8), kit.Silent)
				kit.Train(t, l, 500, func() { time.Sleep(tt.step) })
				require.LessOrEqual(t, l.Stats().Slots, 4)
			})
		})
	}
}

// heavy is a batch of 32 that takes 8 MB of memory, which nobody touches here.
var heavy = []nwt.Field{{Name: "x", Type: nwt.Uint8, Shape: []int{256 << 10}}}

// One sample in 3000 takes 15 ms instead of 1, as when the system leaves a thread
// aside. That loses some 5 % of the time.
func TestRareStallsCostNoMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ds := nwt.NewDataset(1_000_000, heavy, func(_ context.Context, i int, _ *nwt.Sample) error {
			if i%3000 == 2999 {
				time.Sleep(14 * time.Millisecond)
			}
			time.Sleep(time.Millisecond)
			return nil
		})
		l := kit.NewLoader(t, ds, nwt.WithBatchSize(32), nwt.WithWorkers(16), kit.Silent)
		most := 0
		kit.Train(t, l, 2000, func() { most = max(most, l.Stats().Slots) })
		require.Equal(t, 3, most)
	})
}

// The program retains one batch more than it should when a slow sample comes, so that no
// batch more can be had. Later slow samples come when it may have more.
func TestTheDepthGrowsOnceRetainedBatchesAreReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const batch = 64
		ds := nwt.NewDataset(1_000_000, kit.Scalar, func(_ context.Context, i int, _ *nwt.Sample) error {
			if i == 66*batch || i > 200*batch && i%100 == 0 {
				time.Sleep(100 * time.Millisecond)
			}
			time.Sleep(time.Millisecond)
			return nil
		})
		l := kit.NewLoader(t, ds, nwt.WithBatchSize(batch), nwt.WithWorkers(16), kit.Silent)
		var kept []*nwt.Batch
		n := 0
		for b, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
			if n++; n <= 65 {
				b.Retain()
				kept = append(kept, b)
			}
			switch n {
			case 68:
				require.Equal(t, 2, l.Stats().Prefetch)
				for _, b := range kept {
					b.Release()
				}
			case 1000:
				require.Greater(t, l.Stats().Prefetch, 10)
				return
			}
		}
	})
}

func TestADepthThatIsNoLongerUsedShrinks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ds, _ := kit.Tailed(64*10_000, time.Millisecond, 100*time.Millisecond, 0.01)
		l := kit.NewLoader(t, ds, nwt.WithBatchSize(64), nwt.WithWorkers(16), kit.Silent)
		step := time.Duration(0)
		n, deep := 0, 0
		kit.Train(t, l, 3000, func() {
			if n++; n == 500 {
				deep = l.Stats().Slots
				step = 50 * time.Millisecond // from now on the step sets the pace
			}
			time.Sleep(step)
		})
		require.Greater(t, deep, 8)
		require.LessOrEqual(t, l.Stats().Slots, 5)
	})
}

func TestADepthThatIsNoLongerUsedShrinksHoweverOftenWorkersChange(t *testing.T) {
	if testing.Short() {
		t.Skip("measures in virtual time")
	}
	for _, every := range []int{1, 8, 64, 128, 256} {
		synctest.Test(t, func(t *testing.T) {
			ds, _ := kit.Tailed(64*10_000, time.Millisecond, 100*time.Millisecond, 0.01)
			l := kit.NewLoader(t, ds, nwt.WithBatchSize(64), nwt.WithWorkers(16), kit.Silent)
			n, deep, step := 0, 0, time.Duration(0)
			kit.Train(t, l, 5000, func() {
				if n++; n == 500 {
					deep = l.Stats().Slots
					step = 50 * time.Millisecond // from now on the step sets the pace
				}
				if n > 500 && n%every == 0 {
					require.NoError(t, l.SetWorkers(16+n/every%2))
				}
				time.Sleep(step)
			})
			require.Greater(t, deep, 8)
			require.LessOrEqual(t, l.Stats().Slots, 6, "a change after every %d batches", every)
		})
	}
}

// Epochs, too, that are shorter than the depth, or than the batches after which some are
// given back. In each the first batches aren't ready yet.
func TestADepthThatIsNoLongerUsedShrinksHoweverShortEpochsAre(t *testing.T) {
	if testing.Short() {
		t.Skip("measures in virtual time")
	}
	const batch = 64
	for _, per := range []int{10, 40, 1000} {
		for _, streamed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d batches, a stream: %v", per, streamed), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var loads atomic.Int64
					var tails atomic.Bool
					tails.Store(true)
					step := time.Duration(0)
					load := func() {
						time.Sleep(time.Millisecond)
						if loads.Add(1)%100 == 0 && tails.Load() {
							time.Sleep(100 * time.Millisecond)
						}
					}
					ds := nwt.NewDataset(batch*per, kit.Scalar, func(context.Context, int, *nwt.Sample) error { load(); return nil })
					if streamed {
						ds = nwt.Streamed(&kit.Breaking{Shelves: kit.NewShelves(batch * per), OnLoad: func(*nwt.Sample) { load() }})
					}
					l, n, epoch := kit.NewLoader(t, ds, nwt.WithBatchSize(batch), nwt.WithWorkers(16), kit.Silent, virtual), 0, 0
					train := func(batches int) {
						for end := n + batches; n < end; epoch++ {
							for _, err := range l.Epoch(t.Context(), epoch) {
								require.NoError(t, err)
								n++
								time.Sleep(step)
							}
						}
					}
					train(1000)
					require.GreaterOrEqual(t, l.Stats().Prefetch, 8)
					tails.Store(false)
					step = 50 * time.Millisecond // from now on the step sets the pace
					train(10_000)
					require.LessOrEqual(t, l.Stats().Slots, 5)
					require.NoError(t, l.Close())
				})
			})
		}
	}
}

func TestWithPrefetchFixesTheDepth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ds, _ := kit.Tailed(64*1000, time.Millisecond, 100*time.Millisecond, 0.01)
		l := kit.NewLoader(t, ds, nwt.WithBatchSize(64), nwt.WithWorkers(16), nwt.WithPrefetch(3), kit.Silent)
		kit.Train(t, l, 300, func() {})
		require.Equal(t, 4, l.Stats().Slots)
	})
}

// calls is a dataset that loads together: a call takes as long for one sample as
// for a batch.
type calls struct {
	nwt.Dataset
	took time.Duration
}

func (c calls) LoadMany(context.Context, []int, []*nwt.Sample) error {
	time.Sleep(c.took)
	return nil
}

func TestMoreWorkersDoNotCutTheCallsOfABatchDatasetSmaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := kit.NewLoader(t, calls{kit.EmptyDataset(1_000_000), 10 * time.Millisecond}, nwt.WithBatchSize(256), nwt.WithWorkers(16), kit.Silent)
		n, began := 0, time.Time{}
		kit.Train(t, l, 3000, func() {
			if n++; n == 1000 { // it has deepened, and has seen once that this pays
				began = time.Now()
			}
		})
		require.LessOrEqual(t, time.Since(began), 2000*10*time.Millisecond/16*11/10)
	})
}

// A worker would look for ever for a claim of no place.
func TestAWorkerClaimsAtLeastOnePlace(t *testing.T) {
	for _, ds := range []nwt.Dataset{kit.EmptyDataset(4), kit.EmptyBatches{Dataset: kit.EmptyDataset(4)}} {
		for _, workers := range []int{0, 1, 1024} {
			l := kit.NewLoader(t, ds, nwt.WithBatchSize(1), nwt.WithPrefetch(1), nwt.WithWorkers(workers))
			kit.Promptly(t, func() { kit.Train(t, l, 4, func() {}) })
		}
	}
}

// At most 256 MiB, and an eighth of the memory that is left; ranks on a host share that.
func TestExtraBatchesKeepToTheirMemory(t *testing.T) {
	for _, tt := range []struct {
		left  uint64
		ranks string
		extra int
	}{
		{1 << 40, "1", 256 << 20},
		{512 << 20, "1", 64 << 20},
		{512 << 20, "2", 32 << 20},
		{64 << 20, "1", 0},
	} {
		t.Setenv("RANK", "0")
		t.Setenv("WORLD_SIZE", tt.ranks)
		t.Setenv("LOCAL_WORLD_SIZE", tt.ranks)
		t.Setenv("LOCAL_RANK", "0")
		synctest.Test(t, func(t *testing.T) {
			fields := []nwt.Field{{Name: "x", Type: nwt.Uint8, Shape: []int{4 << 20}}} // untouched, so it costs nothing here
			ds := nwt.NewDataset(1_000_000, fields, func(_ context.Context, i int, _ *nwt.Sample) error {
				if i == 0 {
					time.Sleep(time.Hour)
				}
				time.Sleep(time.Millisecond)
				return nil
			})
			m := kit.NewVirtualMachine(4)
			m.Left = tt.left
			l := kit.NewLoader(t, ds, nwt.WithBatchSize(4), nwt.WithWorkers(4), nwt.WithRankFromEnv(), kit.Silent, m.Option())
			kit.Train(t, l, 2, func() {})
			require.EqualValues(t, 3*(16<<20)+tt.extra, l.Stats().SlotBytes)
		})
	}
}
