package nwt_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

// A reader of lines calls a function for one of the lines that are about a file.
type reader struct {
	slog.Handler
	of     func()
	nth    int32 // the line for which it does so, from 1
	within *atomic.Bool
	lines  *atomic.Int32
}

func readerOf(nth int, f func()) reader {
	return reader{slog.DiscardHandler, f, int32(nth), new(atomic.Bool), new(atomic.Int32)}
}

func (reader) Enabled(context.Context, slog.Level) bool { return true }

func (h reader) Handle(_ context.Context, r slog.Record) error {
	about := false
	r.Attrs(func(a slog.Attr) bool { about = about || a.Key == "path"; return true })
	if about && h.within.CompareAndSwap(false, true) {
		defer h.within.Store(false)
		if h.lines.Add(1) == h.nth {
			h.of()
		}
	}
	return nil
}

func TestALogMayCallPrecomputeForTheFileThatItsLineIsAbout(t *testing.T) {
	other := filepath.Join(t.TempDir(), "other")
	p, err := nwt.Precompute(t.Context(), filled(9, 1), other, "v0", quietLog)
	require.NoError(t, err)
	require.NoError(t, p.Close())
	for name, c := range map[string]struct {
		put    func(path string) error
		before int // lines, if the file is there before
		later  int // lines, if it comes while samples are loaded
	}{
		"a program's file": {func(path string) error { return os.WriteFile(path, []byte("mine"), 0o666) }, 2, 1},
		"a folder":         {func(path string) error { return os.Mkdir(path, 0o777) }, 0, 1},
		"another version":  {func(path string) error { return os.Link(other, path) }, 1, 0},
	} {
		for nth := 1; nth <= c.before+c.later; nth++ {
			t.Run(fmt.Sprint(name, ", line ", nth), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					path := filepath.Join(t.TempDir(), "samples")
					var put sync.Once
					if nth <= c.before {
						put.Do(func() { require.NoError(t, c.put(path)) })
					}
					ds := nwt.NewDataset(9, filled(9, 0).Fields(), func(ctx context.Context, i int, dst *nwt.Sample) error {
						put.Do(func() { require.NoError(t, c.put(path)) })
						return filled(9, 0).Load(ctx, i, dst)
					})
					var log nwt.Option
					line := nth
					if nth > c.before {
						line -= c.before
					}
					h := readerOf(line, func() {
						ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
						defer cancel()
						p, err := nwt.Precompute(ctx, ds, path, "v1", log)
						require.NoError(t, err)
						require.NoError(t, p.Close())
					})
					log = nwt.WithLogger(slog.New(h))
					p, err := nwt.Precompute(t.Context(), ds, path, "v1", log, nwt.WithWorkers(0))
					require.NoError(t, err)
					requireFilled(t, p)
					require.NoError(t, p.Close())
					require.GreaterOrEqual(t, h.lines.Load(), int32(line))
				})
			})
		}
	}
}

func TestALogMayCallTuneForTheFileThatItsLineIsAbout(t *testing.T) {
	for name, put := range map[string]func(path string) error{
		"a program's file": func(path string) error { return os.WriteFile(path, []byte("mine"), 0o666) },
		"a folder":         func(path string) error { return os.Mkdir(path, 0o777) },
	} {
		for nth := 1; nth <= 2; nth++ {
			t.Run(fmt.Sprint(name, ", line ", nth), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					path := filepath.Join(t.TempDir(), "tuning.json")
					require.NoError(t, put(path))
					opts := []nwt.Option{nwt.WithMaxWorkers(1), nwt.WithIterations(2), nwt.WithResultCache(path), nwt.NewVirtualMachine(2).Option()}
					h := readerOf(nth, func() {
						ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
						defer cancel()
						_, err := nwt.Tune(ctx, sleeping(1000, time.Millisecond), append(opts, silent)...)
						require.NoError(t, err)
					})
					_, err := nwt.Tune(t.Context(), sleeping(1000, time.Millisecond), append(opts, nwt.WithLogger(slog.New(h)))...)
					require.NoError(t, err)
					require.GreaterOrEqual(t, h.lines.Load(), int32(nth))
				})
			})
		}
	}
}
