package loading_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"log/slog"
	"math"
	"path/filepath"
	"runtime"
	"slices"
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

func TestMain(m *testing.M) { kit.Main(m) }

func TestAnEpochOfABillionSamplesStartsAtOnce(t *testing.T) {
	for _, n := range []int{1e9, math.MaxInt/2 + 1} {
		l := kit.NewLoader(t, kit.Augmented(n), nwt.WithShuffle(1), nwt.WithWorkers(2))
		require.Positive(t, l.Len())
		seen := 0
		for b, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
			require.Equal(t, 32, b.Len())
			if seen++; seen == 3 {
				break
			}
		}
		require.Equal(t, 3, seen)
	}
}

func TestEpochsMayBeEndless(t *testing.T) {
	// With 4 batches per epoch, all batches but the first 4 are 2⁶⁴.
	for batches, end := range map[int]int{2: math.MaxInt / 2, 4: math.MaxInt/2 + 2, 1: math.MaxInt} {
		l := kit.NewLoader(t, kit.Augmented(64), nwt.WithBatchSize(64/batches), nwt.WithWorkers(1))
		seen := 0
		for b, err := range l.Epochs(t.Context(), 0, end) {
			require.NoError(t, err)
			require.Equal(t, seen/batches, b.Epoch())
			if seen++; seen == 100 {
				break
			}
		}
		require.Equal(t, 100, seen)
	}
}

func TestResumeRefusesAStateThatDoesNotFit(t *testing.T) {
	l := kit.NewLoader(t, kit.Augmented(20))
	for _, s := range []nwt.State{{Epoch: -1}, {Samples: -1}, {Samples: 21}, {World: -3}} {
		n := 0
		for b, err := range l.Resume(t.Context(), s) {
			n++
			require.Nil(t, b)
			var bad *nwt.ArgumentError
			require.ErrorAs(t, err, &bad)
			require.Contains(t, bad.Name, "State")
		}
		require.Equal(t, 1, n)
	}
	for range l.Resume(t.Context(), nwt.State{Samples: 20}) {
		require.Fail(t, "nothing is left")
	}
	for _, bad := range [][2]int{{-1, 2}, {3, 2}} {
		n := 0
		for b, err := range l.Epochs(t.Context(), bad[0], bad[1]) {
			n++
			require.Nil(t, b)
			require.ErrorAs(t, err, new(*nwt.ArgumentError))
		}
		require.Equal(t, 1, n)
	}
}

func TestAnEpochThatCannotBeIsNamedWithItsBound(t *testing.T) {
	l := kit.NewLoader(t, kit.EmptyDataset(3))
	said := func(epochs iter.Seq2[*nwt.Batch, error]) (last string) {
		for _, err := range epochs {
			require.Error(t, err)
			last = err.Error()
		}
		return last
	}
	require.Equal(t, "nwt: Epoch: -1: must be at least 0", said(l.Epoch(t.Context(), -1)))
	require.Equal(t, "nwt: Epochs: first: -1: must be at least 0", said(l.Epochs(t.Context(), -1, 2)))
	require.Equal(t, "nwt: Epochs: end: 2: must be at least 3, the first epoch", said(l.Epochs(t.Context(), 3, 2)))
	require.Empty(t, said(l.Epochs(t.Context(), 3, 3)))
	for b, err := range l.Epoch(t.Context(), math.MaxInt) {
		require.NoError(t, err)
		require.Equal(t, math.MaxInt, b.Epoch())
	}
}

func TestWithoutWorkersTheCallerLoads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before := new(atomic.Bool)
		ds := kit.Loads(10, func(context.Context, int, *nwt.Sample) error {
			require.True(t, before.Load(), "loaded ahead")
			return nil
		})
		l := kit.NewLoader(t, ds, nwt.WithBatchSize(4), nwt.WithWorkers(0))
		before.Store(true)
		for _, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
			before.Store(false)
			synctest.Wait()
			require.Equal(t, 1, l.Stats().Slots)
			before.Store(true)
		}
	})
}

func TestWorkersLiveAcrossEpochsAndAreInitializedOnce(t *testing.T) {
	var mu sync.Mutex
	inits := map[int]int{}
	initialize := func(_ context.Context, worker int) error {
		mu.Lock()
		defer mu.Unlock()
		inits[worker]++
		return nil
	}
	ds := kit.Loads(64, func(context.Context, int, *nwt.Sample) error { time.Sleep(50 * time.Microsecond); return nil })
	for _, workers := range []int{0, 3} {
		clear(inits)
		l := kit.NewLoader(t, ds, nwt.WithBatchSize(8), nwt.WithWorkers(workers), nwt.WithWorkerInit(initialize))
		for epoch := range 5 {
			for _, err := range l.Epoch(t.Context(), epoch) {
				require.NoError(t, err)
			}
		}
		mu.Lock()
		require.NotEmpty(t, inits)
		for id, n := range inits {
			require.Less(t, id, max(1, workers))
			require.Equal(t, 1, n)
		}
		mu.Unlock()
	}
}

func TestPrefetchBoundsWhatIsLoadedAhead(t *testing.T) {
	for _, prefetch := range []int{1, 2, 7} {
		t.Run(fmt.Sprint(prefetch), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var loaded atomic.Int64
				ds := kit.Loads(400, func(context.Context, int, *nwt.Sample) error { loaded.Add(1); return nil })
				l := kit.NewLoader(t, ds, nwt.WithBatchSize(4), nwt.WithWorkers(3), nwt.WithPrefetch(prefetch))
				for b, err := range l.Epoch(t.Context(), 0) {
					require.NoError(t, err)
					synctest.Wait()
					require.EqualValues(t, min(400, 4*(b.Number()+1+prefetch)), loaded.Load())
				}
				require.Equal(t, prefetch+1, l.Stats().Slots)
			})
		})
	}
}

func TestAnEpochThatBeginsAnewIsToldTheSecondTime(t *testing.T) {
	pass := func(t *testing.T, seq iter.Seq2[*nwt.Batch, error], batches int) {
		for _, err := range seq {
			require.NoError(t, err)
			if batches--; batches == 0 {
				break
			}
		}
	}
	for name, c := range map[string]struct {
		train func(t *testing.T, l *nwt.Loader)
		opts  []nwt.Option
		told  int
	}{
		"epoch 0 for ever": {func(t *testing.T, l *nwt.Loader) {
			for range 5 {
				pass(t, l.Epoch(t.Context(), 0), -1)
			}
		}, nil, 1},
		"its first batches for ever": {func(t *testing.T, l *nwt.Loader) {
			for range 5 {
				pass(t, l.Epoch(t.Context(), 0), 3)
			}
		}, nil, 1},
		"by Epochs": {func(t *testing.T, l *nwt.Loader) {
			for range 3 {
				pass(t, l.Epochs(t.Context(), 0, 1), -1)
			}
		}, nil, 1},
		"a look at a batch first": {func(t *testing.T, l *nwt.Loader) {
			pass(t, l.Epoch(t.Context(), 0), 1)
			pass(t, l.Epochs(t.Context(), 0, 3), -1)
			pass(t, l.Epoch(t.Context(), 3), -1)
		}, nil, 0},
		"the rest of it": {func(t *testing.T, l *nwt.Loader) {
			pass(t, l.Epoch(t.Context(), 0), 3)
			pass(t, l.Resume(t.Context(), nwt.State{Samples: 30}), -1)
		}, nil, 0},
		"in order": {func(t *testing.T, l *nwt.Loader) {
			for range 5 {
				pass(t, l.Epoch(t.Context(), 0), -1)
			}
		}, []nwt.Option{nwt.WithSampler(nwt.Sequential(100))}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var log kit.Journal
			opts := []nwt.Option{nwt.WithBatchSize(10), log.Option()}
			if c.opts == nil {
				c.opts = []nwt.Option{nwt.WithShuffle(1)}
			}
			c.train(t, kit.NewLoader(t, kit.Augmented(100), append(opts, c.opts...)...))
			require.Equal(t, c.told, strings.Count(log.String(), "begins anew"), log.String())
		})
	}
	var shards, log kit.Journal
	stream := kit.NewLoader(t, nwt.Streamed(kit.NewShelves(20, 20, 20)), nwt.WithBatchSize(10), nwt.WithShuffle(1), shards.Option())
	for range 3 {
		pass(t, stream.Epoch(t.Context(), 0), -1)
	}
	require.Equal(t, 1, strings.Count(shards.String(), "begins anew"), shards.String())
	l, err := nwt.NewTunedLoader(t.Context(), kit.Augmented(100), nwt.WithShuffle(1), nwt.WithIterations(5), nwt.WithMaxWorkers(1), log.Option())
	require.NoError(t, err)
	pass(t, l.Epochs(t.Context(), 0, 3), -1)
	require.NoError(t, l.Close())
	require.NotContains(t, log.String(), "begins anew", "tuning has begun it more than once")
	file := filepath.Join(t.TempDir(), "results")
	for _, d := range []time.Duration{0, time.Millisecond} { // that kept result doesn't hold
		_, err := nwt.Tune(t.Context(), kit.Sleeping(100, d), nwt.WithShuffle(1), nwt.WithBatchSize(10), nwt.WithIterations(5), nwt.WithMaxWorkers(1), nwt.WithResultCache(file, "other data"), log.Option())
		require.NoError(t, err)
	}
	require.Contains(t, log.String(), "tuning anew")
	require.NotContains(t, log.String(), "begins anew", "confirming a result has begun it")
}

func TestWithoutOrderASlowBatchHoldsUpNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rest := make(chan struct{})
		ds := kit.Numbered(100, func(ctx context.Context, i int, _ *nwt.Sample) error {
			if i == 11 {
				kit.Hold(t, rest)
			}
			return nil
		})
		l := kit.NewLoader(t, ds, nwt.WithBatchSize(10), nwt.WithWorkers(2), nwt.WithUnordered(), nwt.WithPrefetch(3))
		var batches []int
		var all []int64
		for b, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
			require.Equal(t, -1, b.State().Samples)
			batches = append(batches, b.Number())
			all = append(all, nwt.Values[int64](b, 0)...)
			if len(batches) == 9 {
				close(rest)
			}
		}
		require.Equal(t, 1, batches[9], "the slow batch comes last")
		slices.Sort(all)
		require.Equal(t, kit.UpTo(100), all)
	})
}

func TestALoaderWithoutOrderSaysThatItCannotResume(t *testing.T) {
	l := kit.NewLoader(t, kit.Augmented(10), nwt.WithUnordered())
	require.ErrorContains(t, kit.Refusal(t, l.Resume(t.Context(), nwt.State{Epoch: 0, Samples: 4})), "WithUnordered")
	ordered := kit.NewLoader(t, kit.Augmented(10))
	require.ErrorContains(t, kit.Refusal(t, ordered.Resume(t.Context(), nwt.State{Epoch: 0, Samples: -1})), "WithUnordered")
}

// warnings are the log lines of level Warn, as they come.
type warnings struct {
	slog.Handler
	came chan string
}

func (l warnings) Handle(_ context.Context, r slog.Record) error {
	text := r.Message
	r.Attrs(func(a slog.Attr) bool { text += " " + a.String(); return true })
	l.came <- text
	return nil
}

func newWarnings() warnings {
	return warnings{slog.NewTextHandler(&bytes.Buffer{}, &slog.HandlerOptions{Level: slog.LevelWarn}), make(chan string, 100)}
}

// collected collects garbage until a line comes.
func (l warnings) collected() string {
	for {
		runtime.GC()
		select {
		case line := <-l.came:
			return line
		default:
			runtime.Gosched()
		}
	}
}

// lose makes a loader that has loaded something, and loses it.
func lose(t *testing.T, log warnings) {
	for _, err := range kit.Must(nwt.NewLoader(kit.Augmented(4), nwt.WithLogger(slog.New(log))))(t).Epoch(t.Context(), 0) {
		require.NoError(t, err)
	}
}

func TestALoaderThatIsLostIsClosedWithAWarning(t *testing.T) {
	for name, opts := range map[string][]nwt.Option{
		"without workers": {nwt.WithWorkers(0)},
		"with workers":    {nwt.WithWorkers(3), nwt.WithTimeout(1e12)},
		"that tunes":      {nwt.WithAutoWorkers()},
		"with checks":     {nwt.WithWorkers(1), nwt.WithChecks()},
	} {
		t.Run(name, func(t *testing.T) {
			dev, log := &kit.FakeDevice{}, newWarnings()
			func() {
				l := kit.Must(nwt.NewLoader(kit.Augmented(64), append(opts, nwt.WithBatchSize(4), nwt.WithDevice(dev), nwt.WithLogger(slog.New(log)))...))(t)
				for b, err := range l.Epoch(t.Context(), 0) {
					require.NoError(t, err)
					if b.Number() == 5 {
						break
					}
				}
				require.NotZero(t, dev.Left())
			}()
			line := log.collected()
			require.Regexp(t, `a loader was lost without Close.* made=\S*loader_test.go:\d+$`, line)
			for dev.Left() > 0 { // it is being closed
				runtime.Gosched()
			}
			dev.Settled(t)
			require.NoError(t, kit.Leftover())
		})
	}
}

func TestALoaderThatIsInUseOrClosedIsNotLost(t *testing.T) {
	sentinel := newWarnings() // of a loader that is lost later
	log := newWarnings()
	begin := func() iter.Seq2[*nwt.Batch, error] {
		l := kit.Must(nwt.NewLoader(kit.Augmented(40), nwt.WithBatchSize(4), nwt.WithWorkers(2), nwt.WithLogger(slog.New(log))))(t)
		return l.Epochs(t.Context(), 0, 2)
	}
	lose := func() { lose(t, sentinel) }
	epochs := begin()
	lose()
	sentinel.collected()
	var kept *nwt.Batch
	var was string
	for b, err := range epochs {
		require.NoError(t, err)
		lose()
		sentinel.collected()
		if b.Epoch() == 1 && b.Number() == 3 {
			b.Retain()
			kept, was = b, strings.Clone(string(b.Bytes(0)))
		}
	}
	require.Empty(t, log.came)
	epochs = nil
	require.Contains(t, log.collected(), "lost")
	require.NoError(t, kit.Leftover(), "nothing waits for a batch that is retained")
	require.Equal(t, was, string(kept.Bytes(0)))
	kept.Release()

	closed := kit.Must(nwt.NewLoader(kit.Augmented(4), nwt.WithLogger(slog.New(log))))(t)
	require.NoError(t, closed.Close())
	lose()
	sentinel.collected()
	require.Empty(t, log.came)
}

func TestALoaderThatIsLostWhileOthersCloseIsClosedOnce(t *testing.T) {
	log := newWarnings()
	var closing sync.WaitGroup
	for range 20 {
		l := kit.Must(nwt.NewLoader(kit.Augmented(4), nwt.WithLogger(slog.New(log))))(t)
		for range 2 {
			closing.Go(func() { _ = l.Close() })
		}
		runtime.GC()
	}
	closing.Wait()
	last := newWarnings()
	lose(t, last)
	last.collected()
	require.Empty(t, log.came)
}

func TestALoaderThatIsLostInABubbleIsClosedOutsideIt(t *testing.T) {
	log := newWarnings()
	synctest.Test(t, func(t *testing.T) {
		l := kit.Must(nwt.NewLoader(kit.Augmented(8), nwt.WithWorkers(0), nwt.WithTimeout(1e9), nwt.WithLogger(slog.New(log))))(t)
		for _, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
		}
	})
	require.Contains(t, log.collected(), "lost")
}

func TestStatsTellWhatTheLoaderHasDone(t *testing.T) {
	l := kit.NewLoader(t, kit.Sleeping(40, time.Millisecond), nwt.WithBatchSize(10), nwt.WithWorkers(2), nwt.WithPrefetch(2))
	for b, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
		if b.Number() == 2 {
			break
		}
	}
	s := l.Stats()
	require.Equal(t, 3, s.Batches)
	require.EqualValues(t, 30, s.Samples)
	require.Equal(t, 2, s.Workers)
	require.Equal(t, 3, s.Slots)
	require.EqualValues(t, 3*64, s.SlotBytes)
	require.Positive(t, s.Wait)
	require.GreaterOrEqual(t, s.LoadMedian, 900*time.Microsecond)
	require.GreaterOrEqual(t, s.LoadP99, s.LoadMedian)
	require.LessOrEqual(t, s.Occupancy, 1.0)
	shown, err := json.Marshal(s) // as expvar does
	require.NoError(t, err)
	require.Contains(t, string(shown), `"Samples":30,`)
}

func TestWithoutWorkersNoBatchIsReadyWhenAskedFor(t *testing.T) {
	l := kit.NewLoader(t, kit.Sleeping(40, 0), nwt.WithBatchSize(10), nwt.WithWorkers(0))
	for _, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
	}
	require.Zero(t, l.Stats().Occupancy)
}

func TestTheDifferenceOfTwoSnapshotsIsWhatWasDoneBetweenThem(t *testing.T) {
	l := kit.NewLoader(t, kit.Sleeping(40, time.Millisecond), nwt.WithBatchSize(10), nwt.WithWorkers(2))
	var earlier nwt.Stats
	for epoch := range 2 {
		earlier = l.Stats()
		for _, err := range l.Epoch(t.Context(), epoch) {
			require.NoError(t, err)
		}
	}
	now := l.Stats()
	done := now.Since(earlier)
	require.Equal(t, 4, done.Batches)
	require.Equal(t, int64(40), done.Samples)
	require.Equal(t, now.Wait-earlier.Wait, done.Wait)
	require.InDelta(t, now.Occupancy*8, earlier.Occupancy*4+done.Occupancy*4, 1e-9)
	require.Contains(t, done.String(), "4 batches of 40 samples")
}

func TestSetWorkersWithThePresentNumberEndsAutoModeToo(t *testing.T) {
	l := kit.NewLoader(t, kit.Augmented(4096), nwt.WithBatchSize(16), nwt.WithWorkers(2), nwt.WithAutoWorkers(), kit.Silent)
	require.NoError(t, l.SetWorkers(2))
	for _, err := range l.Epochs(t.Context(), 0, 20) {
		require.NoError(t, err)
		require.Equal(t, 2, l.Workers())
	}
	require.Nil(t, l.Result())
}

func TestWaitsThatTakeNextToNothingAreNotCountedAsAShare(t *testing.T) {
	for step, want := range map[time.Duration]string{time.Second: "10 batches of 40 samples, hardly waited for, ", time.Millisecond: "100 % of them waited for, "} {
		synctest.Test(t, func(t *testing.T) {
			l := kit.NewLoader(t, kit.Sleeping(40, time.Millisecond), nwt.WithBatchSize(4), nwt.WithWorkers(0))
			for _, err := range l.Epoch(t.Context(), 0) {
				require.NoError(t, err)
				time.Sleep(step)
			}
			require.Contains(t, l.Stats().String(), want)
			require.NoError(t, l.Close())
		})
	}
}
