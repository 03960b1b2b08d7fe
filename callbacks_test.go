package nwt_test

import (
	"context"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

// From whatever loads, everything may be called, except Close.
func TestWhatLoadsMayCallTheLoader(t *testing.T) {
	for _, workers := range []int{0, 2} {
		var l *nwt.Loader
		calls := map[string]*atomic.Int32{"Load": {}, "WithWorkerInit": {}, "WithBatchTransform": {}}
		call := func(from string) error {
			calls[from].Add(1)
			_, _, _, _, _ = l.Stats(), l.Len(), l.Fields(), l.Result(), l.BadSamples()
			for _, err := range l.Epoch(context.Background(), 1) {
				require.ErrorIs(t, err, nwt.ErrBusy)
			}
			return l.SetWorkers(l.Workers())
		}
		l = newLoader(t, numbered(64, func(context.Context, int, *nwt.Sample) error { return call("Load") }), nwt.WithBatchSize(4), nwt.WithWorkers(workers),
			nwt.WithWorkerInit(func(context.Context, int) error { return call("WithWorkerInit") }),
			nwt.WithBatchTransform(func(context.Context, *nwt.Batch) error { return call("WithBatchTransform") }))
		promptly(t, func() {
			got, err := values(t, l, 0)
			require.NoError(t, err)
			require.Equal(t, upTo(64), got)
			require.NoError(t, l.Close())
		})
		for from, n := range calls {
			require.Positive(t, n.Load(), from)
		}
	}
}

func TestWhatTuneCallsMayPanic(t *testing.T) {
	for name, opt := range map[string]nwt.Option{
		"WithStep":     nwt.WithStep(func(context.Context, *nwt.Batch) error { panic(errBoom) }),
		"WithProgress": nwt.WithProgress(func(nwt.Progress) { panic(errBoom) }),
	} {
		promptly(t, func() {
			done := make(chan any)
			go func() {
				defer func() { done <- recover() }()
				_, err := nwt.Tune(t.Context(), numbersTo(t, 1000), opt, nwt.WithMaxWorkers(2), nwt.WithIterations(3), silent)
				if err == nil {
					done <- "it goes on"
				}
			}()
			require.NotEqual(t, "it goes on", <-done, name)
		})
		require.NoError(t, leftover(), name)
	}
}

// Batches take 40 ms, so that most of what a search decides is decided while the loop waits; with 0
// workers too.
func TestWhatTuneCallsRunsInItsGoroutineWhileItWaitsToo(t *testing.T) {
	shown, stepped := map[string]int{}, map[string]int{}
	_, err := nwt.Tune(t.Context(), sleeping(100_000, 10*time.Millisecond), nwt.WithBatchSize(8), nwt.WithTuningTime(2*time.Second), silent,
		nwt.WithProgress(func(nwt.Progress) { shown[goroutine()]++ }),
		nwt.WithStep(func(context.Context, *nwt.Batch) error { stepped[goroutine()]++; return nil }))
	require.NoError(t, err)
	require.Equal(t, []string{goroutine()}, slices.Collect(maps.Keys(shown)))
	require.Equal(t, []string{goroutine()}, slices.Collect(maps.Keys(stepped)))
}

func TestAFunctionThatShowsProgressMayPanicWhileTrainingWaits(t *testing.T) {
	for last := range 8 {
		calls := 0
		require.PanicsWithValue(t, errBoom, func() {
			_, err := nwt.Tune(t.Context(), sleeping(100_000, 10*time.Millisecond), nwt.WithBatchSize(8), nwt.WithMaxWorkers(8), nwt.WithTuningTime(2*time.Second), silent,
				nwt.WithProgress(func(nwt.Progress) {
					if calls++; calls > last {
						panic(errBoom)
					}
				}))
			require.NoError(t, err)
		})
		require.Equal(t, last+1, calls)
		require.NoError(t, leftover())
	}
}

// noting notes where its methods run.
type noting struct {
	inFours
	note func(what string)
}

func (n noting) At(epoch, i int) int    { n.note("At"); return n.inFours.At(epoch, i) }
func (n noting) Start(epoch, b int) int { n.note("Start"); return n.inFours.Start(epoch, b) }

// Loading is late, so idle workers and a timer have further batches opened, also while the loop's body runs.
func TestWhatABatchIsIsAskedInTheLoopsGoroutine(t *testing.T) {
	for _, workers := range []int{0, 4} {
		var mu sync.Mutex
		calls := map[string]map[string]int{"At": {}, "Start": {}, "Sizes": {}}
		note := func(what string) {
			mu.Lock()
			defer mu.Unlock()
			calls[what][goroutine()]++
		}
		rng := rand.New(rand.NewPCG(1, 1))
		ds := lateWords{words{n: 4000, tell: func(_ int, sizes []int) { note("Sizes"); sizes[0], sizes[1], sizes[2] = 9, 3, 2 }}}
		l := newLoader(t, ds, nwt.WithSampler(noting{4000, note}), nwt.WithWorkers(workers), nwt.WithBatchSize(4), silent)
		n := 0
		for _, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
			if rng.IntN(4) == 0 {
				time.Sleep(3 * time.Millisecond)
			}
			if n++; n == 300 {
				break
			}
		}
		for what, by := range calls {
			require.Equal(t, []string{goroutine()}, slices.Collect(maps.Keys(by)), "%s, %d workers: %v", what, workers, by)
		}
	}
}

// lateWords take a while at times.
type lateWords struct{ words }

func (d lateWords) Load(ctx context.Context, index int, dst *nwt.Sample) error {
	if index%16 == 0 {
		time.Sleep(5 * time.Millisecond)
	}
	return d.words.Load(ctx, index, dst)
}

// As t.FailNow does: nothing else ends, and nobody waits for the worker.
func TestALoadThatEndsItsGoroutineEndsTheEpochAndSaysSo(t *testing.T) {
	load := func(_ context.Context, i int, dst *nwt.Sample) error {
		if dst.Epoch() == 0 && i == 12 {
			runtime.Goexit()
		}
		return nil
	}
	together := func(ctx context.Context, indices []int, dst []*nwt.Sample) error {
		return load(ctx, indices[0], dst[0])
	}
	for name, ds := range map[string]nwt.Dataset{"Load": numbered(64, load), "LoadBatch": &pages{n: 64, loadBatch: together}} {
		for _, opts := range [][]nwt.Option{nil, {nwt.WithErrorBudget(64)}, {nwt.WithTimeout(time.Hour)}, {nwt.WithDevice(nowhere{})}} {
			for _, workers := range []int{0, 1, 4} {
				promptly(t, func() {
					l, err := nwt.NewLoader(ds, append(opts, nwt.WithBatchSize(4), nwt.WithWorkers(workers), quietLog)...)
					require.NoError(t, err)
					var last error
					returned := false
					apart(func() {
						_, last = epoch(t.Context(), l, 0)
						returned = true
					})
					require.Equal(t, workers > 0, returned, "without workers it is the caller's goroutine that ends")
					if workers > 0 {
						var failed *nwt.LoadError
						require.ErrorAs(t, last, &failed, name)
						require.Equal(t, 12, failed.Index)
						require.NotEmpty(t, failed.Stack)
						require.ErrorContains(t, last, "Load ended its goroutine: runtime.Goexit was called (")
						require.ErrorContains(t, last, "callbacks_test.go:")
					}
					noSlotLost(t, l, 0)
					batches, err := epoch(t.Context(), l, 1)
					require.NoError(t, err)
					require.Len(t, batches, 16)
					require.NoError(t, l.Close())
				})
				require.NoError(t, leftover())
			}
		}
	}
}

// apart runs f in a goroutine that it may end.
func apart(f func()) {
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	<-done
}
