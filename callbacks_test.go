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
	ends   func() // panics or ends the goroutine; nil: the loader is called
}

func (c *caller) call() {
	l := c.l.Load()
	if l != nil && c.ends != nil {
		c.calls.Add(1)
		c.ends()
	}
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

// A device that calls the loader in each of its methods.
type callingDevice struct {
	nwt.Device
	c    *caller
	fail bool // memory can't be freed
}

func (d callingDevice) AllocHost(n int) ([]byte, error) { d.c.call(); return d.Device.AllocHost(n) }
func (d callingDevice) FreeHost(m []byte) error {
	d.c.call()
	err := d.Device.FreeHost(m)
	if d.fail {
		err = errBoom
	}
	return err
}
func (d callingDevice) Alloc(n int) (uintptr, error) { d.c.call(); return d.Device.Alloc(n) }
func (d callingDevice) Free(p uintptr) error {
	d.c.call()
	err := d.Device.Free(p)
	if d.fail {
		err = errBoom
	}
	return err
}
func (d callingDevice) NewEvent() (uintptr, error) { d.c.call(); return d.Device.NewEvent() }
func (d callingDevice) FreeEvent(e uintptr) error  { d.c.call(); return d.Device.FreeEvent(e) }
func (d callingDevice) Open() (nwt.Session, error) {
	d.c.call()
	s, err := d.Device.Open()
	return callingSession{s, d.c}, err
}

type callingSession struct {
	nwt.Session
	c *caller
}

func (s callingSession) Copy(p []nwt.Copy, e uintptr) error { s.c.call(); return s.Session.Copy(p, e) }
func (s callingSession) Wait(e uintptr) error               { s.c.call(); return s.Session.Wait(e) }
func (s callingSession) Close() error                       { s.c.call(); return s.Session.Close() }

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
		"device": func(c *caller) calledBy {
			return calledBy{numbered(64, func(context.Context, int, *nwt.Sample) error { return nil }), []nwt.Option{nwt.WithDevice(callingDevice{nowhere{}, c, false})}}
		},
		"device, log": func(c *caller) calledBy {
			return calledBy{numbered(64, bad), []nwt.Option{nwt.WithDevice(callingDevice{nowhere{}, c, true})}}
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

// The loop, and whoever calls Close, may end with what the loader called there.
func TestWhatALoaderCallsMayPanicOrEndItsGoroutine(t *testing.T) {
	for name, of := range callersOf() {
		for _, workers := range []int{0, 2} {
			for how, ends := range map[string]func(){"panic": func() { panic(errBoom) }, "Goexit": runtime.Goexit} {
				if workers == 0 && name == "log of a LoadBatch that hangs" {
					continue // the caller waits
				}
				t.Run(fmt.Sprintf("%s, %d workers, %s", name, workers, how), func(t *testing.T) {
					c := &caller{ends: ends}
					p := of(c)
					guard := time.AfterFunc(5*time.Second, func() { panic(t.Name() + " hangs") })
					defer guard.Stop()
					apart := func(f func()) {
						apart(func() {
							defer func() { _ = recover() }()
							f()
						})
					}
					opts := append([]nwt.Option{nwt.WithBatchSize(4), nwt.WithWorkers(workers), nwt.WithErrorBudget(64), nwt.WithLogger(slog.New(onLine(c.call)))}, p.opts...)
					l, err := nwt.NewLoader(p.ds, opts...)
					require.NoError(t, err)
					c.l.Store(l)
					for e := range 3 {
						apart(func() {
							for range l.Epoch(t.Context(), e) {
							}
						})
					}
					apart(func() { _ = l.SetWorkers(1) })
					apart(func() { _ = l.Close() })
					require.Positive(t, c.calls.Load())
					c.l.Store(nil)
					require.NoError(t, l.Close())
					require.Zero(t, l.SlotCount().Memory)
					require.NoError(t, leftover())
				})
			}
		}
	}
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

// A freeing device calls functions of the test when memory is freed or waited for.
type freeing struct {
	nowhere
	host, device func()
	wait         func() error
}

func (d freeing) AllocHost(n int) ([]byte, error) { return make([]byte, n), nil }
func (d freeing) FreeHost([]byte) error           { d.host(); return nil }
func (d freeing) Free(uintptr) error              { d.device(); return nil }
func (d freeing) Open() (nwt.Session, error)      { return d, nil }
func (d freeing) Wait(uintptr) error              { return d.wait() }

func newFreeing() freeing {
	return freeing{host: func() {}, device: func() {}, wait: func() error { return nil }}
}

func TestCloseWaitsForMemoryThatSetWorkersGivesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, goOn := newFreeing(), make(chan struct{})
		var first sync.Once
		d.host = func() {
			wait := false
			first.Do(func() { wait = true })
			if wait {
				<-goOn
			}
		}
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

// onceIn ends its caller's goroutine the n-th time that it is called, counting from start.
func onceIn() (start func(n int32), end func()) {
	var left atomic.Int32
	return left.Store, func() {
		if left.Add(-1) == 0 {
			runtime.Goexit()
		}
	}
}

func TestADeviceThatEndsAGoroutineLosesNoMemoryOfTheLoader(t *testing.T) {
	opts := func(d nwt.Device, more ...nwt.Option) []nwt.Option {
		return append([]nwt.Option{nwt.WithBatchSize(4), nwt.WithWorkers(8), nwt.WithDevice(d), silent}, more...)
	}
	released := func(t *testing.T, l *nwt.Loader) {
		require.Zero(t, l.SlotCount().Memory)
		require.Zero(t, l.Stats().DeviceBytes)
	}
	t.Run("while it closes", func(t *testing.T) {
		d := newFreeing()
		start, end := onceIn()
		d.device = end
		l := newLoader(t, numbersTo(t, 64), opts(d)...)
		for _, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
		}
		start(1)
		apart(func() { _ = l.Close() })
		require.NoError(t, l.Close())
		released(t, l)
	})
	t.Run("when a batch is released after Close", func(t *testing.T) {
		d := newFreeing()
		start, end := onceIn()
		d.device = end
		l := newLoader(t, numbersTo(t, 64), opts(d)...)
		var kept *nwt.Batch
		for b, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
			if kept == nil {
				b.Retain()
				kept = b
			}
		}
		require.NoError(t, l.Close())
		start(1)
		apart(kept.Release)
		released(t, l)
	})
	t.Run("when it frees what retained batches have left", func(t *testing.T) {
		d := newFreeing()
		start, end := onceIn()
		d.device = end
		l := newLoader(t, numbersTo(t, 64), opts(d)...)
		for epoch := range 4 {
			var kept []*nwt.Batch
			n := 0
			for b, err := range l.Epoch(t.Context(), epoch) {
				if err != nil {
					break
				}
				switch n++; {
				case n <= 6:
					b.Retain()
					kept = append(kept, b)
				case n == 7:
					start(1)
					for _, k := range kept {
						k.Release()
					}
				}
			}
			require.GreaterOrEqual(t, n, 7, "epoch %d", epoch)
		}
		start(0)
		require.NoError(t, l.Close())
		released(t, l)
	})
	t.Run("while copies are queued", func(t *testing.T) {
		var failing atomic.Bool
		release := make(chan struct{})
		d := newFreeing()
		d.wait = func() error {
			if failing.Load() {
				<-release
				return errBoom
			}
			return nil
		}
		d.host = func() {
			if failing.Load() {
				runtime.Goexit()
			}
		}
		l := newLoader(t, numbersTo(t, 64), opts(d, nwt.WithPrefetch(6), nwt.WithAsyncTransfer())...)
		for _, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
		}
		failing.Store(true)
		apart(func() {
			n := 0
			for _, err := range l.Epoch(t.Context(), 1) {
				if err != nil {
					break
				}
				if n++; n == 3 {
					apart(func() { _ = l.SetWorkers(0) })
					close(release)
				}
			}
		})
		failing.Store(false)
		n := 0
		for b, err := range l.Epoch(t.Context(), 2) {
			require.NoError(t, err)
			n += b.Len()
		}
		require.Equal(t, 64, n)
		require.NoError(t, l.Close())
		released(t, l)
	})
}
