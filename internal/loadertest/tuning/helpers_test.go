package tuning_test

import (
	"context"
	"flag"
	"io"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/loadertest/kit"
)

func TestMain(m *testing.M) {
	if os.Getenv(helps) != "" {
		help()
		return
	}
	kit.Main(m)
}

var calibrate = flag.Bool("calibrate", false, "measure how well simulated workloads are tuned")

var seeds = flag.Int("seeds", 1, "with -calibrate, tune each workload with so many seeds")

const virtualCPUs = 4

// virtual is for everything that tunes in virtual time.
var virtual = kit.NewVirtualMachine(virtualCPUs).Option()

// channel returns a source that serves one request at a time.
func channel(n int, d time.Duration) nwt.Dataset {
	free := make(chan struct{}, 1) // a mutex would stop virtual time
	return nwt.NewDataset(n, kit.Scalar, func(context.Context, int, *nwt.Sample) error {
		free <- struct{}{}
		time.Sleep(d)
		<-free
		return nil
	})
}

// stepOf returns a training step that takes d.
func stepOf(d time.Duration) nwt.Option {
	return nwt.WithStep(func(context.Context, *nwt.Batch) error { time.Sleep(d); return nil })
}

// trialOf returns what a result has of a worker count.
func trialOf(t *testing.T, r *nwt.Result, workers int) nwt.Trial {
	t.Helper()
	i := slices.IndexFunc(r.Trials, func(t nwt.Trial) bool { return t.Workers == workers })
	require.GreaterOrEqual(t, i, 0, "%d workers weren't measured: %v", workers, r)
	return r.Trials[i]
}

// tune tunes, in virtual time.
func tune(t *testing.T, ds nwt.Dataset, opts ...nwt.Option) *nwt.Result {
	t.Helper()
	r, err := nwt.Tune(t.Context(), ds, append([]nwt.Option{virtual, kit.Silent}, opts...)...)
	require.NoError(t, err)
	return r
}

// shows requires that a result's figures are right, or known to be inexact. load is what a worker
// needs for a batch, and workers don't hinder each other.
func shows(t *testing.T, r *nwt.Result, load, step time.Duration) {
	t.Helper()
	for _, trial := range r.Trials {
		truth := load + step
		if trial.Workers > 0 {
			truth = max(step, load/time.Duration(trial.Workers))
		}
		may := 0.2 * float64(truth)
		if trial.Low == trial.High { // measured once
			may *= 2
		}
		require.InDelta(t, float64(truth), float64(trial.Mean), max(may, float64(trial.High-trial.Low)), "%d workers: %v", trial.Workers, r)
	}
}

// A connection is kept by Scratch, and is closed if its worker leaves. Its first samples are slow.
type connection struct{ loaded int }

func connecting(usual, more time.Duration) nwt.Dataset {
	return nwt.NewDataset(1_000_000, kit.Scalar, func(ctx context.Context, _ int, s *nwt.Sample) error {
		c, err := nwt.Scratch(s, func() (*connection, error) { return &connection{}, nil })
		if c.loaded++; c.loaded <= 10 {
			usual := usual + more
			return kit.Heed(ctx, usual)
		}
		return errorOr(err, kit.Heed(ctx, usual))
	})
}

func errorOr(err, other error) error {
	if err != nil {
		return err
	}
	return other
}

// library is a stream whose records take time to read and to load.
type library struct {
	shards, records int
	read, load      time.Duration
	open            time.Duration // that a shard takes to open
	desk            chan struct{} // through which all reading goes; nil: shards are read side by side
	dear            bool          // later shards' samples take up to 21 times as long to load
	stuck           int           // number of a record of each shard that hangs until its context ends; 0: none
	torn            int           // number of a record of each shard that can't be read; 0: none
	opened          *atomic.Int32 // readers that are open; nil: nobody asks
}

func (l library) Fields() []nwt.Field { return kit.Scalar }
func (l library) Shards() int         { return l.shards }

func (l library) Open(ctx context.Context, shard int) (nwt.ShardReader, error) {
	if l.opened != nil {
		l.opened.Add(1)
	}
	return &book{library: l, shard: shard}, kit.Heed(ctx, l.open)
}

func (l library) Load(ctx context.Context, rec *nwt.Record, _ *nwt.Sample) error {
	d := l.load
	if l.dear {
		d += 20 * l.load * time.Duration(rec.Value.(int)) / time.Duration(l.shards)
	}
	return kit.Heed(ctx, d)
}

// book is a shard of a library.
type book struct {
	library
	shard, at int
}

func (b *book) Next(ctx context.Context, rec *nwt.Record) error {
	switch {
	case b.at == b.records:
		return io.EOF
	case b.torn > 0 && b.at == b.torn:
		return kit.ErrTorn
	case b.stuck > 0 && b.at == b.stuck:
		<-ctx.Done()
		return ctx.Err()
	}
	b.at++
	rec.Value = b.shard
	if b.desk != nil {
		b.desk <- struct{}{}
		defer func() { <-b.desk }()
	}
	return kit.Heed(ctx, b.read)
}

func (b *book) Close() error {
	if b.opened != nil {
		b.opened.Add(-1)
	}
	return nil
}
