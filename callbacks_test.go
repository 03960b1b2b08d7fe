package nwt_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
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
	do("SetSampler", func() { _ = l.SetSampler(nwt.Sequential(64)) })
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

// A sampler of batches that calls the loader.
type callingSampler struct{ c *caller }

func (s callingSampler) Len() int           { s.c.call(); return 64 }
func (s callingSampler) At(_, i int) int    { s.c.call(); return i }
func (s callingSampler) Batches() int       { s.c.call(); return 16 }
func (s callingSampler) Start(_, b int) int { s.c.call(); return 4 * b }

type callingCloser struct{ c *caller }

func (k callingCloser) Close() error { k.c.call(); return errBoom }

// A calledBy is a program's dataset and options, in which something calls a caller.
type calledBy struct {
	ds   nwt.Dataset
	opts []nwt.Option
}

func callersOf() map[string]func(c *caller) calledBy {
	bad := func(_ context.Context, i int, _ *nwt.Sample) error {
		if i%10 == 7 {
			return errBoom
		}
		return nil
	}
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
		"sampler": func(c *caller) calledBy {
			return calledBy{numbered(64, func(context.Context, int, *nwt.Sample) error { return nil }), []nwt.Option{nwt.WithSampler(callingSampler{c})}}
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
		"log of a bad sample": func(c *caller) calledBy { return calledBy{numbered(64, bad), nil} },
		"log of a LoadBatch":  func(c *caller) calledBy { return calledBy{rotting(64), nil} },
		"log of a shard's Close": func(*caller) calledBy {
			return calledBy{nwt.Streamed(&breaking{shelves: newShelves(32, 32), onClose: func(int) error { return errBoom }}), nil}
		},
		"log of a LoadBatch that hangs": func(*caller) calledBy {
			return calledBy{&pages{n: 64, loadBatch: func(ctx context.Context, _ []int, _ []*nwt.Sample) error { <-ctx.Done(); return nil }}, []nwt.Option{nwt.WithTimeout(10 * time.Millisecond)}}
		},
		"log of Scratch": func(*caller) calledBy {
			return calledBy{numbered(64, func(_ context.Context, _ int, dst *nwt.Sample) error {
				_, err := nwt.Scratch(dst, func() (io.Closer, error) { return fallible{}, nil })
				return err
			}), nil}
		},
	}
}

// What the program gives to a loader is called while the loader waits for it: by workers, by
// the goroutine of the device, by readers, by the loop. From there everything may be called,
// except Close.
func TestWhatALoaderCallsMayCallTheLoader(t *testing.T) {
	for name, of := range callersOf() {
		for _, workers := range []int{0, 2} {
			hung := name == "log of a LoadBatch that hangs"
			if workers == 0 && hung {
				continue // the caller waits
			}
			t.Run(fmt.Sprintf("%s, %d workers", name, workers), func(t *testing.T) {
				c := &caller{}
				p := of(c)
				guard := time.AfterFunc(5*time.Second, func() { panic(fmt.Sprintf("%s hangs in %v", t.Name(), c.called())) })
				defer guard.Stop()
				opts := append([]nwt.Option{nwt.WithBatchSize(4), nwt.WithWorkers(workers), nwt.WithErrorBudget(64), nwt.WithLogger(slog.New(onLine(c.call)))}, p.opts...)
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
					fewer := 0 // batches are kept
					if hung {
						fewer = 1
					}
					require.NoError(t, l.SetWorkers(fewer))
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

func TestWhatTuneCallsMayPanicOrEndItsGoroutine(t *testing.T) {
	for _, end := range []func(){func() { panic(errBoom) }, runtime.Goexit} {
		for name, opt := range map[string]nwt.Option{
			"WithStep":     nwt.WithStep(func(context.Context, *nwt.Batch) error { end(); return nil }),
			"WithProgress": nwt.WithProgress(func(nwt.Progress) { end() }),
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
}

func TestCloseWaitsForMemoryThatSetWorkersGivesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		goOn := make(chan struct{})
		d := &fakeDevice{fail: func(call string, n int) error {
			if call == "FreeHost" && n == 1 {
				<-goOn
			}
			return nil
		}}
		l := newLoader(t, numbersTo(t, 64), nwt.WithBatchSize(4), nwt.WithWorkers(4), nwt.WithDevice(d))
		for _, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
		}
		var fewer, closed atomic.Bool
		go func() { _ = l.SetWorkers(0); fewer.Store(true) }()
		synctest.Wait()
		go func() { _ = l.Close(); closed.Store(true) }()
		synctest.Wait()
		require.False(t, fewer.Load())
		require.False(t, closed.Load())
		close(goOn)
		synctest.Wait()
		require.True(t, fewer.Load())
		require.True(t, closed.Load())
	})
}

func TestCloseWaitsForASamplerThatIsAskedWhereAnEpochBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked, goOn := make(chan struct{}), make(chan struct{})
		sampler := startsLate{callingSampler{&caller{}}, sync.OnceFunc(func() { close(asked); <-goOn })}
		l := newLoader(t, numbersTo(t, 64), nwt.WithBatchSize(4), nwt.WithSampler(sampler))
		told := make(chan error, 1)
		go func() {
			for _, err := range l.Resume(t.Context(), nwt.State{Samples: 32}) {
				told <- err
				break
			}
		}()
		<-asked
		var closed atomic.Bool
		go func() { _ = l.Close(); closed.Store(true) }()
		synctest.Wait()
		require.False(t, closed.Load())
		close(goOn)
		require.ErrorIs(t, <-told, nwt.ErrClosed)
		synctest.Wait()
		require.True(t, closed.Load())
	})
}

// A sampler that is late to say where an epoch begins.
type startsLate struct {
	callingSampler
	start func()
}

func (s startsLate) Start(_, b int) int { s.start(); return 4 * b }

// apart runs f in a goroutine that it may end.
func apart(f func()) {
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	<-done
}
