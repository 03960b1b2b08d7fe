package nwt_test

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

// A caller calls everything that a loader has, except Close, from wherever it is called itself.
// It doesn't call itself.
type caller struct {
	l      atomic.Pointer[nwt.Loader]
	calls  atomic.Int32
	busy   sync.Map // what is being called
	within atomic.Int32
}

func (c *caller) call() {
	l := c.l.Load()
	if l == nil || !c.within.CompareAndSwap(0, 1) {
		return
	}
	defer c.within.Store(0)
	c.calls.Add(1)
	do := func(what string, f func()) {
		c.busy.Store(what, true)
		f()
		c.busy.Delete(what)
	}
	do("Stats", func() { _ = l.Stats() })
	do("Workers", func() { _ = l.SetWorkers(l.Workers()) })
	do("Len", func() { _ = l.Len() })
	do("Fields", func() { _ = l.Fields() })
	do("Result", func() { _ = l.Result() })
	do("BadSamples", func() { _ = l.BadSamples() })
	do("Epoch", func() {
		for range l.Epoch(context.Background(), 1) {
			break
		}
	})
}

func (c *caller) called() (what []string) {
	c.busy.Range(func(k, _ any) bool { what = append(what, k.(string)); return true })
	return what
}

type callingCloser struct{ c *caller }

func (k callingCloser) Close() error { k.c.call(); return errBoom }

// A calledBy is a program's dataset and options, in which something calls a caller.
type calledBy struct {
	ds   nwt.Dataset
	opts []nwt.Option
}

func callersOf() map[string]func(c *caller) calledBy {
	return map[string]func(c *caller) calledBy{
		"Load": func(c *caller) calledBy {
			return calledBy{numbered(64, func(context.Context, int, *nwt.Sample) error { c.call(); return nil }), nil}
		},
		"LoadBatch": func(c *caller) calledBy {
			return calledBy{&pages{n: 64, loadBatch: func(context.Context, []int, []*nwt.Sample) error { c.call(); return nil }}, nil}
		},
		"WithWorkerInit": func(c *caller) calledBy {
			return calledBy{numbered(64, func(context.Context, int, *nwt.Sample) error { return nil }), []nwt.Option{nwt.WithWorkerInit(func(context.Context, int) error { c.call(); return nil })}}
		},
		"WithFinish": func(c *caller) calledBy {
			return calledBy{numbered(64, func(context.Context, int, *nwt.Sample) error { return nil }), []nwt.Option{nwt.WithFinish(func(context.Context, *nwt.Batch) error { c.call(); return nil })}}
		},
		"Close of Scratch": func(c *caller) calledBy {
			return calledBy{numbered(64, func(_ context.Context, i int, dst *nwt.Sample) error {
				_, err := nwt.Scratch(dst, func() (io.Closer, error) { return callingCloser{c}, nil })
				if i == 9 {
					panic("half decoded")
				}
				return err
			}), nil}
		},
		"reader": func(c *caller) calledBy {
			return calledBy{nwt.Streamed(&breaking{shelves: newShelves(32, 32), onLoad: func(*nwt.Sample) { c.call() }, onClose: func(int) error { c.call(); return errBoom }}), nil}
		},
	}
}

// From whatever loads, everything may be called, except Close.
func TestWhatLoadsMayCallTheLoader(t *testing.T) {
	for name, of := range callersOf() {
		for _, workers := range []int{0, 2} {
			t.Run(fmt.Sprintf("%s, %d workers", name, workers), func(t *testing.T) {
				c := &caller{}
				p := of(c)
				guard := time.AfterFunc(5*time.Second, func() { panic(fmt.Sprintf("%s hangs in %v", t.Name(), c.called())) })
				defer guard.Stop()
				opts := append([]nwt.Option{nwt.WithBatchSize(4), nwt.WithWorkers(workers), nwt.WithErrorBudget(64), quietLog}, p.opts...)
				l, err := nwt.NewLoader(p.ds, opts...)
				require.NoError(t, err)
				c.l.Store(l)
				n := 0
				for e := range 2 {
					for b, err := range l.Epoch(t.Context(), e) {
						require.NoError(t, err)
						n += b.Len()
					}
					for b, err := range l.Resume(t.Context(), nwt.State{Epoch: e, Samples: 32}) {
						require.NoError(t, err)
						n += b.Len()
					}
					require.NoError(t, l.SetWorkers(0)) // fewer batches are kept
				}
				require.NoError(t, l.Close())
				require.Positive(t, c.calls.Load())
				require.Greater(t, n, 64)
				require.Zero(t, l.SlotCount().Memory)
			})
		}
	}
	require.NoError(t, leftover())
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
