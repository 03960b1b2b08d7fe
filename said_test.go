package nwt_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

// rotting is a BatchDataset in which every tenth sample is bad.
func rotting(n int) *pages {
	rotten := errors.New("rotten")
	return &pages{n: n,
		load: func(_ context.Context, i int, _ *nwt.Sample) error {
			if i%10 == 3 {
				return rotten
			}
			return nil
		},
		loadBatch: func(_ context.Context, indices []int, _ []*nwt.Sample) error {
			for _, i := range indices {
				if i%10 == 3 {
					return rotten
				}
			}
			return nil
		},
	}
}

func TestTuningWarnsOfABadSampleOnceAndSaysThatItTunes(t *testing.T) {
	for _, bad := range []int{1, 10} {
		var log journal
		_, err := nwt.Tune(t.Context(), rotting(10*bad), nwt.WithBatchSize(8), nwt.WithMaxWorkers(2), nwt.WithIterations(20), nwt.WithErrorBudget(100), log.option())
		require.NoError(t, err)
		for line := range strings.Lines(log.String()) {
			require.Contains(t, line, "during=tuning")
		}
		require.Equal(t, bad, strings.Count(log.String(), "a bad sample is left out"), &log)
		require.Equal(t, 1, strings.Count(log.String(), "LoadBatch failed:"), &log)
		require.Contains(t, log.String(), fmt.Sprintf("bad samples were left out\" during=tuning samples=%d\n", bad))
	}
}

func TestALoaderSaysHowOftenLoadBatchHasFailed(t *testing.T) {
	var log journal
	l := newLoader(t, rotting(100), nwt.WithBatchSize(10), nwt.WithWorkers(0), nwt.WithErrorBudget(100), log.option())
	requirePages(t, l, 0)
	require.Equal(t, 1, strings.Count(log.String(), "LoadBatch failed:"))
	require.NotContains(t, log.String(), "again and again")
	require.NoError(t, l.Close())
	require.Contains(t, log.String(), "LoadBatch failed again and again\" during=loading times=")
	require.Equal(t, 10, strings.Count(log.String(), "a bad sample is left out\" during=loading"))
}

func TestALoadBatchThatFailsOnceIsLoggedOnceAndLaterFailuresAreCounted(t *testing.T) {
	for times := range 4 {
		var log journal
		failed := 0
		ds := &pages{n: 40, loadBatch: func(context.Context, []int, []*nwt.Sample) error {
			if failed == times {
				return nil
			}
			failed++
			return errBad
		}}
		l := newLoader(t, ds, nwt.WithBatchSize(10), nwt.WithWorkers(0), log.option())
		require.Equal(t, indicesUpTo(40), requirePages(t, l, 0))
		require.Equal(t, min(times, 1), strings.Count(log.String(), "LoadBatch failed:"))
		require.NoError(t, l.Close())
		require.NoError(t, l.Close())
		if times < 2 {
			require.NotContains(t, log.String(), "again and again")
		} else {
			require.Equal(t, 1, strings.Count(log.String(), fmt.Sprintf("again and again\" during=loading times=%d\n", times)), &log)
		}
	}
}

// Without order, batches of two epochs come by turns: each has its own budget.
func TestEveryEpochHasItsBudgetWithoutOrderToo(t *testing.T) {
	bad := errors.New("bad")
	second := make(chan struct{}) // closed when a batch of the second epoch is delivered
	ds := numbered(64, func(_ context.Context, i int, dst *nwt.Sample) error {
		if i == 1 && dst.Epoch() == 0 {
			<-second
		}
		if i%4 == 0 && (dst.Epoch() == 0 || i == 8) {
			return bad
		}
		return nil
	})
	l := newLoader(t, ds, nwt.WithBatchSize(4), nwt.WithWorkers(4), nwt.WithPrefetch(40), nwt.WithUnordered(), nwt.WithErrorBudget(15), quietLog)
	var last error
	delivered := map[int]int{}
	for b, err := range l.Epochs(t.Context(), 0, 2) {
		if last = err; b == nil {
			break
		}
		if delivered[b.Epoch()]++; b.Epoch() == 1 && delivered[1] == 16 {
			close(second)
		}
	}
	require.Equal(t, map[int]int{0: 15, 1: 16}, delivered)
	require.ErrorContains(t, last, "16 bad samples in epoch 0, WithErrorBudget allows 15")
	require.ErrorIs(t, last, bad)
}

func TestSetWorkersWithThePresentNumberEndsAutoModeToo(t *testing.T) {
	l := newLoader(t, augmented(4096), nwt.WithBatchSize(16), nwt.WithWorkers(2), nwt.WithAutoWorkers(), quietLog)
	require.NoError(t, l.SetWorkers(2))
	for _, err := range l.Epochs(t.Context(), 0, 20) {
		require.NoError(t, err)
		require.Equal(t, 2, l.Workers())
	}
	require.Nil(t, l.Result())
}

// A raging log's handler panics at each line, or ends its goroutine.
type raging struct {
	slog.Handler
	lines  *atomic.Int32
	sooner bool // it does so when it is asked whether it wants a line
	exits  bool
}

func (h raging) Enabled(context.Context, slog.Level) bool {
	if h.sooner {
		h.rage()
	}
	return true
}

func (h raging) Handle(context.Context, slog.Record) error {
	h.rage()
	return nil
}

func (h raging) rage() {
	h.lines.Add(1)
	if h.exits {
		runtime.Goexit()
	}
	panic("no space left for logs")
}

// Lines come from the loop's goroutine, workers, the stage, readers and the watchdog.
func TestALogThatPanicsOrEndsItsGoroutineLosesItsLineAndNothingElse(t *testing.T) {
	hangs := &pages{n: 64, loadBatch: func(ctx context.Context, _ []int, _ []*nwt.Sample) error { <-ctx.Done(); return nil }}
	rotten := numbered(64, func(_ context.Context, i int, _ *nwt.Sample) error {
		if i == 7 {
			return errBoom
		}
		return nil
	})
	kept := numbered(64, func(_ context.Context, _ int, dst *nwt.Sample) error {
		_, err := nwt.Scratch(dst, func() (io.Closer, error) { return fallible{}, nil })
		return err
	})
	torn := nwt.Streamed(&breaking{shelves: newShelves(32, 32), onClose: func(int) error { return errBoom }})
	for name, c := range map[string]struct {
		ds      nwt.Dataset
		opts    []nwt.Option
		samples int
	}{
		"a bad sample":             {rotten, nil, 63},
		"a bad sample on a device": {rotten, []nwt.Option{nwt.WithDevice(nowhere{})}, 63},
		"a LoadBatch that fails":   {rotting(64), nil, 57},
		"a LoadBatch that hangs":   {hangs, []nwt.Option{nwt.WithTimeout(time.Second)}, 64},
		"a shard's Close":          {torn, nil, 64},
		"Close of Scratch":         {kept, nil, 64},
	} {
		for k := range 8 {
			workers, sooner, exits := k/4*2, k%2 == 1, k/2%2 == 1
			if c.ds == hangs && workers == 0 {
				continue // the caller waits
			}
			synctest.Test(t, func(t *testing.T) {
				log := raging{lines: new(atomic.Int32), sooner: sooner, exits: exits}
				l := newLoader(t, c.ds, append(c.opts, nwt.WithWorkers(workers), nwt.WithErrorBudget(10), nwt.WithLogger(slog.New(log)))...)
				n := 0
				for b, err := range l.Epoch(t.Context(), 0) {
					require.NoError(t, err)
					n += b.Len()
				}
				require.Equal(t, c.samples, n, name)
				require.NoError(t, l.Close())
				require.Positive(t, log.lines.Load(), name)
			})
		}
	}
}

// fallible can't be closed.
type fallible struct{}

func (fallible) Close() error { return errBoom }
