package nwt_test

import (
	"context"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

// library is a stream whose records take time to read and to load.
type library struct {
	shards, records int
	read, load      time.Duration
	open            time.Duration // that a shard takes to open
	desk            chan struct{} // through which all reading goes; nil: shards are read side by side
}

func (l library) Fields() []nwt.Field { return scalar }
func (l library) Shards() int         { return l.shards }

func (l library) Open(context.Context, int) (nwt.ShardReader, error) {
	time.Sleep(l.open)
	return &book{library: l}, nil
}

func (l library) Load(context.Context, *nwt.Record, *nwt.Sample) error {
	time.Sleep(l.load)
	return nil
}

// book is a shard of a library.
type book struct {
	library
	at int
}

func (b *book) Next(context.Context, *nwt.Record) error {
	if b.at == b.records {
		return io.EOF
	}
	b.at++
	if b.desk != nil {
		b.desk <- struct{}{}
		defer func() { <-b.desk }()
	}
	time.Sleep(b.read)
	return nil
}

func (b *book) Close() error { return nil }

func TestTuningTellsWhetherReadingAStreamSetsThePace(t *testing.T) {
	const ms, batch = time.Millisecond, 32
	for _, tt := range []struct {
		name    string
		library func() library
		step    time.Duration
		opts    []nwt.Option
		reading [2]float64 // at the choice, from … to
		advice  string     // about reading; "": none
	}{
		{"reading sets the pace", func() library { return library{shards: 64, records: 10_000, read: 4 * ms, load: ms} }, 0, nil,
			[2]float64{0.95, 1}, "Reading sets the pace: it goes on for 100 % of the time, 4 shards at once. If WithInterleave(8) isn't faster, storage"},
		{"loading sets the pace", func() library { return library{shards: 64, records: 10_000, read: ms / 10, load: 8 * ms} }, 0, nil,
			[2]float64{0, 0.5}, ""},
		{"the step sets the pace", func() library { return library{shards: 64, records: 10_000, read: ms / 2, load: ms / 2} }, 20 * ms, nil,
			[2]float64{0, 0.5}, ""},
		{"all reading goes through one channel", func() library {
			return library{shards: 64, records: 10_000, read: ms, load: ms, desk: make(chan struct{}, 1)}
		}, 0, nil,
			[2]float64{0.95, 1}, "4 shards at once. If WithInterleave(8) isn't faster, storage"},
		{"all shards are read at once", func() library { return library{shards: 3, records: 100_000, read: 4 * ms, load: ms} }, 0, nil,
			[2]float64{0.95, 1}, "3 shards at once, which are all"},
		{"the interleave is what training will have", func() library { return library{shards: 64, records: 10_000, read: 2 * ms, load: ms} }, 0, []nwt.Option{nwt.WithInterleave(32)},
			[2]float64{0, 0.9}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				opts := append(tt.opts, nwt.WithBatchSize(batch), nwt.WithMaxWorkers(8), virtual)
				if tt.step > 0 {
					opts = append(opts, nwt.WithStep(func(context.Context, *nwt.Batch) error { time.Sleep(tt.step); return nil }))
				}
				r, err := nwt.Tune(t.Context(), nwt.Streamed(tt.library()), opts...)
				require.NoError(t, err)
				for _, trial := range r.Trials {
					if trial.Workers == r.Workers {
						require.GreaterOrEqual(t, trial.Reading, tt.reading[0], "%v", r)
						require.LessOrEqual(t, trial.Reading, tt.reading[1], "%v", r)
					}
				}
				if tt.advice == "" {
					require.NotContains(t, r.String(), "Reading sets the pace")
				} else {
					require.Contains(t, r.String(), tt.advice)
				}
			})
		})
	}
}

// Going on within an epoch would have to read all that comes before. All counts of a
// round are measured in the same epoch.
func TestEachVisitToAStreamBeginsAnEpoch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var epochs []int // of the visits
		last := -1       // batch
		r, err := nwt.Tune(t.Context(), nwt.Streamed(library{shards: 1, records: 1_000_000, load: time.Millisecond}), nwt.WithBatchSize(4), nwt.WithMaxWorkers(2),
			nwt.WithIterations(20), nwt.WithStrategy(nwt.Exhaustive()), virtual,
			nwt.WithStep(func(_ context.Context, b *nwt.Batch) error {
				if b.Index() == 0 {
					epochs = append(epochs, b.Epoch())
				} else if b.Epoch() != epochs[len(epochs)-1] || b.Index() != last+1 {
					return fmt.Errorf("batch %d of epoch %d after batch %d", b.Index(), b.Epoch(), last)
				}
				last = b.Index()
				return nil
			}))
		require.NoError(t, err)
		require.Len(t, r.Trials, 3)
		require.Equal(t, []int{0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3}, epochs, "four rounds of three counts")
	})
}

// Training opens the first shards, and fills the windows of WithShuffle, once in an epoch.
// A visit may have no more batches than that takes.
func TestWhatAStreamDoesAtTheBeginningOfAnEpochIsNotMeasured(t *testing.T) {
	const ms, us = time.Millisecond, time.Microsecond
	for _, tt := range []struct {
		name  string
		ds    func() (nwt.Dataset, error)
		batch int
		step  time.Duration
		opts  []nwt.Option
		alone time.Duration // for a batch without workers and step
	}{
		{"shards are opened", func() (nwt.Dataset, error) {
			return nwt.Streamed(library{shards: 256, records: 10_000, open: 50 * ms, read: 10 * us, load: 490 * us}), nil
		}, 4, 3 * ms, []nwt.Option{nwt.WithInterleave(16)}, 2 * ms},
		{"one sample per batch", func() (nwt.Dataset, error) {
			return nwt.Streamed(library{shards: 256, records: 10_000, open: 50 * ms, read: 10 * us, load: 1990 * us}), nil
		}, 1, 3 * ms, []nwt.Option{nwt.WithInterleave(16)}, 2 * ms},
		{"windows are filled", func() (nwt.Dataset, error) {
			of := library{shards: 16, records: 10_000, read: 500 * us, load: 500 * us}
			return nwt.MixedStreams(nwt.Mix{Phases: []nwt.Phase{{Weights: []float64{1, 4}}}}, 1, of, of)
		}, 1, 2 * ms, []nwt.Option{nwt.WithShuffle(1), nwt.WithEpochSamples(100_000)}, ms},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ds, err := tt.ds()
				require.NoError(t, err)
				r, err := nwt.Tune(t.Context(), ds, append(tt.opts, nwt.WithBatchSize(tt.batch), nwt.WithMaxWorkers(8), virtual,
					nwt.WithStep(func(context.Context, *nwt.Batch) error { time.Sleep(tt.step); return nil }))...)
				require.NoError(t, err)
				require.Equal(t, 1, r.Workers, "%v", r)
				require.Greater(t, r.Confidence, 0.9)
				for _, trial := range r.Trials {
					want := tt.step
					if trial.Workers == 0 {
						want += tt.alone
					}
					require.InEpsilon(t, want, trial.Mean, 0.05, "%d workers: %v", trial.Workers, r)
				}
			})
		})
	}
}
