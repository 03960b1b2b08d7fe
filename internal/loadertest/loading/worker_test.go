package loading_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/loadertest/kit"
	"github.com/nwt-go/nwt/sampler"
)

// A beginning is what WithWorkerInit does: the first workers are ready at once, the others
// take a while, unless their context ends before.
type beginning struct {
	first int
	takes time.Duration
	fails error

	calls, under, ready atomic.Int32
}

func (b *beginning) option() nwt.Option {
	return nwt.WithWorkerInit(func(ctx context.Context, worker int) error {
		b.calls.Add(1)
		b.under.Add(1)
		defer b.under.Add(-1)
		if worker >= b.first {
			if err := kit.Heed(ctx, b.takes); err != nil {
				return err
			}
			if b.fails != nil {
				return b.fails
			}
		}
		b.ready.Add(1)
		return nil
	})
}

func TestWorkersThatBeginHoldUpNoBatch(t *testing.T) {
	const load, batch, takes = 10 * time.Millisecond, 8, 5 * time.Second
	ds := kit.Sleeping(1_000_000, load)
	for name, c := range map[string]struct {
		ds  nwt.Dataset
		opt nwt.Option
	}{
		"in order":      {ds, kit.Silent},
		"without order": {ds, nwt.WithUnordered()},
		"whole batches": {kit.SlowTogether{Dataset: ds, Each: load}, nwt.WithPrefetch(32)}, // without checks of the depth, one of which may fall into the second
		"a timeout":     {ds, nwt.WithTimeout(time.Second)},
		"a device":      {ds, nwt.WithDevice(kit.Nowhere{})},
		"a stream":      {nwt.Streamed(kit.Heeding{Reading: time.Microsecond, Loading: load}), kit.Silent},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := &beginning{first: 2, takes: takes}
				l := kit.NewLoader(t, c.ds, nwt.WithBatchSize(batch), nwt.WithWorkers(2), b.option(), c.opt)
				var n, atOnce int
				var longest time.Duration
				last, more := time.Now(), time.Time{}
				for _, err := range l.Epochs(t.Context(), 0, 1000) {
					require.NoError(t, err)
					now := time.Now()
					if n++; n == 20 {
						require.NoError(t, l.SetWorkers(16))
						more = now
					}
					if n >= 20 {
						longest = max(longest, now.Sub(last))
						if now.Sub(more) >= takes+time.Second {
							atOnce++
						}
						if now.Sub(more) >= takes+2*time.Second {
							break
						}
					}
					last = now
				}
				require.LessOrEqual(t, longest, 2*batch*load)
				require.InDelta(t, int(16*time.Second/(batch*load)), atOnce, 20, "the new ones load too: two load 25")
				require.EqualValues(t, 16, b.calls.Load())
				require.EqualValues(t, 16, b.ready.Load())
			})
		})
	}
}

// An epoch that ended before them would have them begin again and again.
func TestAnEpochWaitsInTheEndForWorkersThatBegin(t *testing.T) {
	for _, opt := range []nwt.Option{kit.Silent, nwt.WithUnordered(), nwt.WithDevice(kit.Nowhere{})} {
		synctest.Test(t, func(t *testing.T) {
			b := &beginning{first: 1, takes: 3 * time.Second}
			l := kit.NewLoader(t, kit.Sleeping(80, 10*time.Millisecond), nwt.WithBatchSize(8), nwt.WithWorkers(6), b.option(), opt)
			for n := range 4 {
				batches, err := kit.Epoch(t.Context(), l, n)
				require.NoError(t, err)
				require.Len(t, batches, 10)
				require.Zero(t, b.under.Load())
			}
			require.EqualValues(t, 6, b.calls.Load())
			require.EqualValues(t, 6, b.ready.Load())
		})
	}
}

func TestWorkersThatBeginEndWithTheirEpoch(t *testing.T) {
	for name, end := range map[string]func(l *nwt.Loader, cancel func()){
		"break":        func(*nwt.Loader, func()) {},
		"cancellation": func(_ *nwt.Loader, cancel func()) { cancel() },
		"Close":        func(l *nwt.Loader, _ func()) { _ = l.Close() },
	} {
		for _, when := range []int{3, 10} { // in the middle, and at the last batch
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b := &beginning{first: 1, takes: time.Hour}
					l := kit.NewLoader(t, kit.Sleeping(80, 10*time.Millisecond), nwt.WithBatchSize(8), nwt.WithWorkers(3), b.option())
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					began, n := time.Now(), 0
					for _, err := range l.Epoch(ctx, 0) {
						if err != nil {
							break
						}
						if n++; n == when {
							if end(l, cancel); name == "break" {
								break
							}
						}
					}
					require.Equal(t, when, n)
					require.Zero(t, b.under.Load())
					require.Less(t, time.Since(began), time.Minute)
					require.Zero(t, l.Stats().Retained)
					if name == "Close" {
						return
					}
					b.takes = 0
					_, err := kit.Epoch(t.Context(), l, 1)
					require.NoError(t, err)
					require.EqualValues(t, 3, b.ready.Load())
				})
			})
		}
	}
}

func TestAWorkerThatIsAskedToLeaveWhileItBeginsLeaves(t *testing.T) {
	for fewer, calls := range []int{9, 7} { // the caller prepares too
		synctest.Test(t, func(t *testing.T) {
			b := &beginning{first: 1, takes: time.Second}
			l := kit.NewLoader(t, kit.Sleeping(1_000_000, 10*time.Millisecond), nwt.WithBatchSize(8), nwt.WithWorkers(1), b.option())
			n := 0
			for _, err := range l.Epoch(t.Context(), 0) {
				require.NoError(t, err)
				switch n++; n {
				case 10:
					require.NoError(t, l.SetWorkers(4))
				case 12:
					require.EqualValues(t, 3, b.under.Load())
					require.NoError(t, l.SetWorkers(fewer))
				case 100:
					require.Zero(t, b.under.Load())
					require.NoError(t, l.SetWorkers(4))
				case 102: // others have come in their place
					require.EqualValues(t, calls, b.calls.Load())
				}
				if n == 102 {
					break
				}
			}
		})
	}
}

func TestAWorkerThatCannotBeginEndsTheEpochThatIsOn(t *testing.T) {
	for _, batches := range []int{10, 10_000} { // the last batch is delivered before, or not
		synctest.Test(t, func(t *testing.T) {
			b := &beginning{first: 1, takes: 3 * time.Second, fails: kit.ErrBoom}
			l := kit.NewLoader(t, kit.Sleeping(8*batches, 10*time.Millisecond), nwt.WithBatchSize(8), nwt.WithWorkers(3), b.option())
			got, err := kit.Epoch(t.Context(), l, 7)
			require.Less(t, len(got), 40)
			var failed *nwt.LoadError
			require.ErrorAs(t, err, &failed)
			require.ErrorIs(t, err, kit.ErrBoom)
			require.Equal(t, -1, failed.Index)
			require.Equal(t, 7, failed.Epoch)
			require.Positive(t, failed.Worker)
			require.Zero(t, l.Stats().Retained)
			b.fails = nil
			for range l.Epoch(t.Context(), 8) {
				if b.under.Load() == 0 {
					break
				}
			}
			require.EqualValues(t, 3, b.ready.Load())
		})
	}
}

// Batches of the next epoch are loaded by then, but the last that was delivered is of this one.
func TestAWorkerThatCannotBeginSaysInWhichEpoch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &beginning{first: 1, takes: time.Second, fails: kit.ErrBoom}
		l := kit.NewLoader(t, kit.Sleeping(16, 10*time.Millisecond), nwt.WithBatchSize(8), nwt.WithWorkers(1), b.option())
		last := 0
		for batch, err := range l.Epochs(t.Context(), 0, 1000) {
			if err != nil {
				var failed *nwt.LoadError
				require.ErrorAs(t, err, &failed)
				require.Equal(t, last, failed.Epoch)
				break
			}
			if last = batch.Epoch(); last == 20 {
				require.NoError(t, l.SetWorkers(2))
			}
		}
		require.Greater(t, last, 20)
	})
}

func TestNobodyBeginsOnceAnEpochWaitsForItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &beginning{first: 1, takes: 3 * time.Second}
		l := kit.NewLoader(t, kit.Sleeping(80, 10*time.Millisecond), nwt.WithBatchSize(8), nwt.WithWorkers(2), b.option())
		began := time.Now()
		time.AfterFunc(2900*time.Millisecond, func() { require.NoError(t, l.SetWorkers(6)) })
		_, err := kit.Epoch(t.Context(), l, 0)
		require.NoError(t, err)
		require.Equal(t, b.takes, time.Since(began))
		require.EqualValues(t, 2, b.calls.Load())
		_, err = kit.Epoch(t.Context(), l, 1)
		require.NoError(t, err)
		require.EqualValues(t, 6, b.ready.Load())
	})
}

func TestAWorkerThatCannotBeginDoesNotTryAgainInThatEpoch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		l := kit.NewLoader(t, kit.Sleeping(800, 10*time.Millisecond), nwt.WithBatchSize(8), nwt.WithWorkers(1), nwt.WithWorkerInit(func(_ context.Context, worker int) error {
			if calls++; calls == 1 || calls > 100 {
				return nil
			}
			return kit.ErrBoom
		}))
		var last error
		for _, err := range l.Epoch(t.Context(), 0) {
			if last = err; err == nil {
				require.NoError(t, l.SetWorkers(2))
				time.Sleep(time.Minute)
				require.NoError(t, l.SetWorkers(2))
				time.Sleep(time.Minute)
			}
		}
		require.ErrorIs(t, last, kit.ErrBoom)
		require.Equal(t, 2, calls)
	})
}

// A caller is a program of which whatever the loader calls calls the loader: all but Close and
// epochs.
type caller struct {
	t  *testing.T
	mu sync.Mutex
	of map[string]int // calls
	l  *nwt.Loader    // nil until it is made
}

func (c *caller) call(from string) {
	c.mu.Lock()
	if c.of == nil {
		c.of = map[string]int{}
	}
	c.of[from]++
	nested := c.of["now "+from] > 0
	c.of["now "+from]++
	c.mu.Unlock()
	if c.l != nil && !nested { // what it calls may call it
		_, _, _, _, _ = c.l.Stats(), c.l.Len(), c.l.Fields(), c.l.Result(), c.l.BadSamples()
		require.NoError(c.t, c.l.SetWorkers(c.l.Workers()))
		if from == "Load" || from == "WithWorkerInit" || from == "WithBatchTransform" || from == "At" {
			for _, err := range c.l.Epoch(context.Background(), 1) {
				require.ErrorIs(c.t, err, nwt.ErrBusy)
			}
		}
	}
	c.mu.Lock()
	c.of["now "+from]--
	c.mu.Unlock()
}

type callingDataset struct {
	nwt.Dataset
	*caller
}

type callingSampler struct {
	nwt.BatchSampler
	*caller
}

type callingHandler struct {
	slog.Handler
	*caller
}

func (d callingDataset) Len() int            { d.call("Len"); return d.Dataset.Len() }
func (s callingSampler) At(epoch, i int) int { s.call("At"); return s.BatchSampler.At(epoch, i) }
func (s callingSampler) Start(epoch, batch int) int {
	s.call("Start")
	return s.BatchSampler.Start(epoch, batch)
}
func (h callingHandler) Handle(_ context.Context, r slog.Record) error {
	h.call(r.Message)
	return nil
}
func (h callingHandler) WithAttrs([]slog.Attr) slog.Handler       { return h }
func (h callingHandler) Enabled(context.Context, slog.Level) bool { return true }

func TestWhateverALoaderCallsMayCallIt(t *testing.T) {
	for _, workers := range []int{0, 2} {
		c := &caller{t: t}
		ds := callingDataset{kit.Numbered(64, func(_ context.Context, i int, _ *nwt.Sample) error {
			c.call("Load")
			if i == 5 {
				return kit.ErrBoom
			}
			return nil
		}), c}
		full := errors.New("the driver is gone")
		dev := &kit.FakeDevice{Fail: func(call string, _ int) error {
			c.call("a device")
			if call == "FreeHost" {
				return full
			}
			return nil
		}}
		l := kit.NewLoader(t, ds, nwt.WithSampler(callingSampler{kit.TokenBatches(t, 64, sampler.Tokens{Max: 1000}), c}), nwt.WithBatchSize(64), nwt.WithWorkers(workers),
			nwt.WithErrorBudget(1), nwt.WithDevice(dev), nwt.WithLogger(slog.New(callingHandler{slog.DiscardHandler, c})),
			nwt.WithWorkerInit(func(context.Context, int) error { c.call("WithWorkerInit"); return nil }),
			nwt.WithBatchTransform(func(context.Context, *nwt.Batch) error { c.call("WithBatchTransform"); return nil }))
		c.l = l
		kit.Promptly(t, func() {
			var states []nwt.State
			for b, err := range l.Epoch(t.Context(), 0) {
				require.NoError(t, err)
				states = append(states, b.State())
			}
			for _, err := range l.Resume(t.Context(), states[1]) {
				require.NoError(t, err)
			}
			require.NoError(t, l.SetWorkers(9)) // more slots, and then fewer
			_, err := kit.Epoch(t.Context(), l, 1)
			require.NoError(t, err)
			require.NoError(t, l.SetWorkers(0))
			c.l = nil
			require.NoError(t, l.Close())
		})
		for _, from := range []string{"Load", "Len", "At", "Start", "WithWorkerInit", "WithBatchTransform", "a device", "nwt: a bad sample is left out", "nwt: the memory of a batch could not be freed"} {
			require.Positive(t, c.of[from], from)
		}
	}
}

// The lines come from many places; this one comes while Close waits.
func TestALogHandlerThatBlocksHoldsUpNoCallOfTheLoader(t *testing.T) {
	kit.Promptly(t, func() {
		synctest.Test(t, func(t *testing.T) {
			blocked, release := make(chan struct{}), make(chan struct{})
			log := slog.New(blockingHandler{slog.DiscardHandler, func() { close(blocked); <-release }})
			l := kit.NewLoader(t, kit.Late(64, 13, time.Minute), nwt.WithBatchSize(4), nwt.WithWorkers(2), nwt.WithLogger(log))
			for b, err := range l.Epoch(t.Context(), 0) {
				require.NoError(t, err)
				if b.Number() == 2 {
					break // it waits for Load, and logs that
				}
			}
			<-blocked
			require.Equal(t, 16, l.Len())
			require.NoError(t, l.SetWorkers(3))
			_, err := kit.Epoch(t.Context(), l, 1)
			require.NoError(t, err)
			require.NoError(t, l.Close())
			close(release)
		})
	})
}

type blockingHandler struct {
	slog.Handler
	block func()
}

func (h blockingHandler) Enabled(context.Context, slog.Level) bool  { return true }
func (h blockingHandler) Handle(context.Context, slog.Record) error { h.block(); return nil }
func (h blockingHandler) WithAttrs([]slog.Attr) slog.Handler        { return h }

func TestWhatTuneCallsMayPanic(t *testing.T) {
	for name, opt := range map[string]nwt.Option{
		"WithStep":     nwt.WithStep(func(context.Context, *nwt.Batch) error { panic(kit.ErrBoom) }),
		"WithProgress": nwt.WithProgress(func(nwt.Progress) { panic(kit.ErrBoom) }),
	} {
		kit.Promptly(t, func() {
			done := make(chan any)
			go func() {
				defer func() { done <- recover() }()
				_, err := nwt.Tune(t.Context(), kit.Numbers(0, 1000), opt, nwt.WithMaxWorkers(2), nwt.WithIterations(3), kit.Silent)
				if err == nil {
					done <- "it goes on"
				}
			}()
			require.NotEqual(t, "it goes on", <-done, name)
		})
		require.NoError(t, kit.Leftover(), name)
	}
}

// Batches take 40 ms, so that most of what a search decides is decided while the loop waits; with 0
// workers too.
func TestWhatTuneCallsRunsInItsGoroutine(t *testing.T) {
	shown, stepped := map[string]int{}, map[string]int{}
	_, err := nwt.Tune(t.Context(), kit.Sleeping(100_000, 10*time.Millisecond), nwt.WithBatchSize(8), nwt.WithTuningTime(2*time.Second), kit.Silent,
		nwt.WithProgress(func(nwt.Progress) { shown[kit.Goroutine()]++ }),
		nwt.WithStep(func(context.Context, *nwt.Batch) error { stepped[kit.Goroutine()]++; return nil }))
	require.NoError(t, err)
	require.Equal(t, []string{kit.Goroutine()}, slices.Collect(maps.Keys(shown)))
	require.Equal(t, []string{kit.Goroutine()}, slices.Collect(maps.Keys(stepped)))
}

func TestAFunctionThatShowsProgressMayPanicAtEachCall(t *testing.T) {
	for last := range 8 {
		calls := 0
		require.PanicsWithValue(t, kit.ErrBoom, func() {
			_, err := nwt.Tune(t.Context(), kit.Sleeping(100_000, 10*time.Millisecond), nwt.WithBatchSize(8), nwt.WithMaxWorkers(8), kit.Silent,
				nwt.WithProgress(func(nwt.Progress) {
					if calls++; calls > last {
						panic(kit.ErrBoom)
					}
				}))
			require.NoError(t, err)
		})
		require.Equal(t, last+1, calls)
		require.NoError(t, kit.Leftover())
	}
}

// noting notes where its methods run.
type noting struct {
	kit.InFours
	note func(what string)
}

func (n noting) At(epoch, i int) int    { n.note("At"); return n.InFours.At(epoch, i) }
func (n noting) Start(epoch, b int) int { n.note("Start"); return n.InFours.Start(epoch, b) }

// Loading is late, so idle workers and a timer have further batches opened, also while the loop's body runs.
func TestWhatABatchIsIsAskedInTheLoopsGoroutine(t *testing.T) {
	for _, workers := range []int{0, 4} {
		var mu sync.Mutex
		calls := map[string]map[string]int{"At": {}, "Start": {}, "Sizes": {}}
		note := func(what string) {
			mu.Lock()
			defer mu.Unlock()
			calls[what][kit.Goroutine()]++
		}
		rng := rand.New(rand.NewPCG(1, 1))
		ds := lateWords{kit.Words{N: 4000, Tell: func(_ int, sizes []int) { note("Sizes"); sizes[0], sizes[1], sizes[2] = 9, 3, 2 }}}
		l := kit.NewLoader(t, ds, nwt.WithSampler(noting{4000, note}), nwt.WithWorkers(workers), nwt.WithBatchSize(4), kit.Silent)
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
			require.Equal(t, []string{kit.Goroutine()}, slices.Collect(maps.Keys(by)), "%s, %d workers: %v", what, workers, by)
		}
	}
}

// lateWords take a while at times.
type lateWords struct{ kit.Words }

func (d lateWords) Load(ctx context.Context, index int, dst *nwt.Sample) error {
	if index%16 == 0 {
		time.Sleep(5 * time.Millisecond)
	}
	return d.Words.Load(ctx, index, dst)
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
	for name, ds := range map[string]nwt.Dataset{"Load": kit.Numbered(64, load), "LoadMany": &kit.Pages{N: 64, OnLoadMany: together}} {
		for _, opts := range [][]nwt.Option{nil, {nwt.WithErrorBudget(64)}, {nwt.WithTimeout(time.Hour)}, {nwt.WithDevice(kit.Nowhere{})}} {
			for _, workers := range []int{0, 1, 4} {
				kit.Promptly(t, func() {
					l, err := nwt.NewLoader(ds, append(opts, nwt.WithBatchSize(4), nwt.WithWorkers(workers), kit.Silent)...)
					require.NoError(t, err)
					var last error
					returned := false
					kit.Apart(func() {
						_, last = kit.Epoch(t.Context(), l, 0)
						returned = true
					})
					require.Equal(t, workers > 0, returned, "without workers it is the caller's goroutine that ends")
					if workers > 0 {
						var failed *nwt.LoadError
						require.ErrorAs(t, last, &failed, name)
						require.Equal(t, 12, failed.Index)
						require.NotEmpty(t, failed.Stack)
						require.ErrorContains(t, last, "Load ended its goroutine: runtime.Goexit was called (")
						require.ErrorContains(t, last, "worker_test.go:")
					}
					require.Zero(t, l.Stats().Retained)
					batches, err := kit.Epoch(t.Context(), l, 1)
					require.NoError(t, err)
					require.Len(t, batches, 16)
					require.NoError(t, l.Close())
					require.Zero(t, l.Stats().Slots)
				})
				require.NoError(t, kit.Leftover())
			}
		}
	}
}

func TestAWorkerThatCannotStartEndsTheEpochAndTriesAgain(t *testing.T) {
	for _, f := range []struct {
		name  string
		fail  func() error
		says  string
		stack bool
	}{
		{"error", func() error { return kit.ErrBoom }, "WithWorkerInit: boom", false},
		{"panic", func() error { panic(kit.ErrBoom) }, "WithWorkerInit: panic: boom", true},
	} {
		for _, workers := range []int{0, 1, 3} {
			t.Run(fmt.Sprintf("%s/workers=%d", f.name, workers), func(t *testing.T) {
				broken := true
				l := kit.NewLoader(t, kit.EmptyDataset(100), nwt.WithBatchSize(10), nwt.WithWorkers(workers),
					nwt.WithWorkerInit(func(_ context.Context, worker int) error {
						if broken {
							return f.fail()
						}
						return nil
					}))
				batches, err := kit.Epoch(t.Context(), l, 2)
				require.Empty(t, batches)
				var le *nwt.LoadError
				require.ErrorAs(t, err, &le)
				require.Equal(t, -1, le.Index)
				require.Equal(t, 2, le.Epoch)
				require.Equal(t, f.stack, len(le.Stack) > 0)
				require.ErrorContains(t, err, f.says)
				require.ErrorContains(t, err, fmt.Sprintf("worker %d", le.Worker))
				require.Zero(t, l.Stats().Retained)
				broken = false
				batches, err = kit.Epoch(t.Context(), l, 2)
				require.NoError(t, err)
				require.Len(t, batches, 10)
			})
		}
	}
}

// computing returns n samples, each of which takes a CPU for some time; begun counts them.
func computing(n int, d time.Duration, begun *atomic.Int64) nwt.Dataset {
	return kit.Loads(n, func(context.Context, int, *nwt.Sample) error {
		begun.Add(1)
		for from := time.Now(); time.Since(from) < d; {
		}
		return nil
	})
}

// On one CPU. A worker that never yielded would keep it for the 10 ms that Go's scheduler allows: 100 samples.
func TestALoopGetsACPUThoughTheWorkersOfAnotherLoaderCompute(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	var begun atomic.Int64
	busy := kit.NewLoader(t, computing(1<<30, 100*time.Microsecond, &begun), nwt.WithWorkers(2), kit.Silent)
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() {
		for _, err := range busy.Epoch(ctx, 0) {
			if err != nil {
				return
			}
		}
	})
	defer done.Wait()
	defer cancel()

	const steps = 50
	var first, last int64
	for b, err := range kit.NewLoader(t, kit.EmptyDataset(1000), nwt.WithBatchSize(1), nwt.WithWorkers(1), kit.Silent).Epoch(ctx, 0) {
		require.NoError(t, err)
		if last = begun.Load(); b.Number() == 10 {
			first = last
		} else if b.Number() == 10+steps {
			break
		}
		time.Sleep(100 * time.Microsecond)
	}
	require.Positive(t, last-first, "the other loader loads meanwhile")
	require.Less(t, last-first, int64(20*steps))
}

// On one CPU. If the workers kept it, the loop would run once nothing more may be loaded ahead: it would see
// one batch in 17 before the next one is loaded.
func TestALoopSeesABatchBeforeTheNextIsLoadedThoughItsWorkersCompute(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const size, prefetch, batches = 4, 16, 1000
	var begun atomic.Int64
	l := kit.NewLoader(t, computing(size*batches, 20*time.Microsecond, &begun), nwt.WithBatchSize(size), nwt.WithPrefetch(prefetch), nwt.WithWorkers(2), kit.Silent)
	atOnce := 0
	for b, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
		if int(begun.Load()) < size*(b.Number()+2) {
			atOnce++
		}
	}
	require.Greater(t, atOnce, batches/10)
}
