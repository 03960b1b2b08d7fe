package nwt_test

import (
	"bytes"
	"context"
	"iter"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

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
	for _, err := range must(nwt.NewLoader(augmented(4), nwt.WithLogger(slog.New(log)))).Epoch(t.Context(), 0) {
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
			dev, log := &fakeDevice{}, newWarnings()
			func() {
				l := must(nwt.NewLoader(augmented(64), append(opts, nwt.WithBatchSize(4), nwt.WithDevice(dev), nwt.WithLogger(slog.New(log)))...))
				for b, err := range l.Epoch(t.Context(), 0) {
					require.NoError(t, err)
					if b.Index() == 5 {
						break
					}
				}
				require.NotZero(t, dev.left())
			}()
			line := log.collected()
			require.Regexp(t, `a loader was lost without Close.* made=\S*lost_test.go:\d+$`, line)
			for dev.left() > 0 { // it is being closed
				runtime.Gosched()
			}
			dev.settled(t)
			require.NoError(t, leftover())
		})
	}
}

func TestALoaderThatIsInUseOrClosedIsNotLost(t *testing.T) {
	sentinel := newWarnings() // of a loader that is lost later
	log := newWarnings()
	begin := func() iter.Seq2[*nwt.Batch, error] {
		l := must(nwt.NewLoader(augmented(40), nwt.WithBatchSize(4), nwt.WithWorkers(2), nwt.WithLogger(slog.New(log))))
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
		if b.Epoch() == 1 && b.Index() == 3 {
			b.Retain()
			kept, was = b, strings.Clone(string(b.Bytes(0)))
		}
	}
	require.Empty(t, log.came)
	epochs = nil
	require.Contains(t, log.collected(), "lost")
	require.NoError(t, leftover(), "nothing waits for a batch that is retained")
	require.Equal(t, was, string(kept.Bytes(0)))
	kept.Release()

	closed := must(nwt.NewLoader(augmented(4), nwt.WithLogger(slog.New(log))))
	require.NoError(t, closed.Close())
	lose()
	sentinel.collected()
	require.Empty(t, log.came)
}

func TestALoaderThatIsLostWhileOthersCloseIsClosedOnce(t *testing.T) {
	log := newWarnings()
	var closing sync.WaitGroup
	for range 20 {
		l := must(nwt.NewLoader(augmented(4), nwt.WithLogger(slog.New(log))))
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
		l := must(nwt.NewLoader(augmented(8), nwt.WithWorkers(0), nwt.WithTimeout(1e9), nwt.WithLogger(slog.New(log))))
		for _, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
		}
	})
	require.Contains(t, log.collected(), "lost")
}
