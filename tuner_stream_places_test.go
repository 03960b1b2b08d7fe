package nwt_test

import (
	"context"
	"fmt"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

// A rising stream's samples take the longer to load the later their shard comes.
type rising struct {
	shards, records int
	first, last     time.Duration // to load a sample of the first shard, and of the last
	torn, stuck     int           // numbers of a record of each shard that can't be read, and that hangs until its context ends; 0: none
	open, ends      *atomic.Int32 // readers, and of them those that came to an end; nil: nobody asks
	within          bool          // samples take the longer the later they come in their shard
}

func (r rising) Fields() []nwt.Field { return scalar }
func (r rising) Shards() int         { return r.shards }

func (r rising) Open(_ context.Context, shard int) (nwt.ShardReader, error) {
	if r.open != nil {
		r.open.Add(1)
	}
	return &rise{r, shard, 0}, nil
}

func (r rising) Load(_ context.Context, rec *nwt.Record, _ *nwt.Sample) error {
	of := r.shards
	if r.within {
		of = r.records
	}
	time.Sleep(r.first + (r.last-r.first)*time.Duration(rec.Value.(int))/time.Duration(max(1, of-1)))
	return nil
}

type rise struct {
	rising
	shard, at int
}

func (r *rise) Next(ctx context.Context, rec *nwt.Record) error {
	switch {
	case r.at == r.records:
		if r.ends != nil {
			r.ends.Add(1)
		}
		return io.EOF
	case r.torn > 0 && r.at == r.torn:
		return errTorn
	case r.stuck > 0 && r.at == r.stuck:
		<-ctx.Done()
		return ctx.Err()
	}
	r.at++
	if rec.Value = r.shard; r.within {
		rec.Value = r.at - 1
	}
	return nil
}

func (r *rise) Close() error {
	if r.open != nil {
		r.open.Add(-1)
	}
	return nil
}

// The first shards are cheap, and the last ones are dear.
func TestTheWholeStreamIsLookedAt(t *testing.T) {
	const us = time.Microsecond
	for _, opts := range [][]nwt.Option{nil, {nwt.WithShuffle(1)}, {nwt.WithRank(1, 2)}} {
		t.Run(fmt.Sprint(len(opts)), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ds := nwt.Streamed(rising{shards: 128, records: 1000, first: 200 * us, last: 4200 * us})
				r, err := nwt.Tune(t.Context(), ds, append(opts, nwt.WithMaxWorkers(32), virtual, nwt.WithStep(func(context.Context, *nwt.Batch) error {
					time.Sleep(8 * time.Millisecond)
					return nil
				}))...)
				require.NoError(t, err)
				// 2.2 ms per sample in the mean, 4.2 at the end: 9 to 17 workers hide it.
				require.GreaterOrEqual(t, r.Workers, 8, "%v", r)
			})
		})
	}
}

// Within each shard the first records are cheap, and the last ones dear. The ends of short
// shards are seen.
func TestShortShardsAreLookedAtWhole(t *testing.T) {
	const us = time.Microsecond
	for _, records := range []int{200, 1000, 10_000} {
		synctest.Test(t, func(t *testing.T) {
			var ends atomic.Int32
			ds := nwt.Streamed(rising{shards: 128, records: records, first: 200 * us, last: 4200 * us, within: true, ends: &ends})
			r, err := nwt.Tune(t.Context(), ds, nwt.WithMaxWorkers(32), virtual, nwt.WithStep(func(context.Context, *nwt.Batch) error {
				time.Sleep(8 * time.Millisecond)
				return nil
			}))
			require.NoError(t, err)
			t.Logf("shards of %d: %d workers after %v, %d shards read to their end", records, r.Workers, r.Elapsed, ends.Load())
			if records == 200 { // 2.2 ms per sample in the mean, 4.2 at the end: 9 to 17 workers hide it, and 8 take 8.9 ms
				require.GreaterOrEqual(t, r.Workers, 8, "%v", r)
				require.GreaterOrEqual(t, ends.Load(), int32(64))
			}
		})
	}
}

// Visits go on in a shard, and count its records on.
func TestTuningTellsWhichRecordOfAStreamCanNotBeRead(t *testing.T) {
	for _, torn := range []int{5, 700} {
		synctest.Test(t, func(t *testing.T) {
			var open atomic.Int32
			ds := nwt.Streamed(rising{shards: 6, records: 1000, first: time.Millisecond, last: time.Millisecond, torn: torn, open: &open})
			_, err := nwt.Tune(t.Context(), ds, nwt.WithMaxWorkers(4), virtual)
			var shard *nwt.ShardError
			require.ErrorAs(t, err, &shard)
			require.ErrorIs(t, err, errTorn)
			require.Equal(t, torn, shard.Record)
			require.Zero(t, open.Load())
		})
	}
}

func TestTuningTellsAtWhichRecordOfAStreamACallHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ds := nwt.Streamed(rising{shards: 6, records: 1000, first: time.Millisecond, last: time.Millisecond, stuck: 700})
		_, err := nwt.Tune(t.Context(), ds, nwt.WithMaxWorkers(4), nwt.WithTimeout(time.Second), virtual, silent)
		var shard *nwt.ShardError
		require.ErrorAs(t, err, &shard)
		require.Equal(t, 700, shard.Record)
	})
}

func TestTuningEndsInTimeThoughAStreamHangs(t *testing.T) {
	const limit = time.Second
	tune := func(ctx context.Context, open *atomic.Int32, stuck int, opts ...nwt.Option) (*nwt.Result, error) {
		ds := nwt.Streamed(rising{shards: 6, records: 1000, first: time.Millisecond, last: time.Millisecond, stuck: stuck, open: open})
		return nwt.Tune(ctx, ds, append(opts, nwt.WithMaxWorkers(4), virtual, silent)...)
	}
	for _, stuck := range []int{100, 300} {
		t.Run(fmt.Sprint(stuck), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var open atomic.Int32
				began := time.Now()
				r, err := tune(t.Context(), &open, stuck, nwt.WithTuningTime(limit))
				require.NoError(t, err)
				require.NotEmpty(t, r.Trials)
				require.LessOrEqual(t, time.Since(began), limit+time.Millisecond, "with the samples in hand")
				require.Zero(t, open.Load())
			})
			synctest.Test(t, func(t *testing.T) {
				var open atomic.Int32
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				defer cancel()
				began := time.Now()
				_, err := tune(ctx, &open, stuck)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.LessOrEqual(t, time.Since(began), limit+time.Millisecond)
				require.Zero(t, open.Load())
			})
		})
	}
}

// A step that fails ends tuning soon, though a record is being read that never comes.
func TestTuningFailsSoonThoughAStreamHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var open atomic.Int32
		ds := nwt.Streamed(rising{shards: 6, records: 1000, first: time.Millisecond, last: time.Millisecond, stuck: 60, open: &open})
		began, n := time.Now(), 0
		_, err := nwt.Tune(t.Context(), ds, nwt.WithMaxWorkers(4), virtual, silent, nwt.WithStep(func(context.Context, *nwt.Batch) error {
			if n++; n == 5 {
				return errBad
			}
			return nil
		}))
		require.ErrorIs(t, err, errBad)
		require.Less(t, time.Since(began), time.Second)
		require.Zero(t, open.Load())
	})
}

// A call that isn't answered in time counts as a bad sample, and tuning goes on.
func TestTuningGoesOnAfterACallOfAStreamThatWasGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var open atomic.Int32
		ds := nwt.Streamed(rising{shards: 60, records: 1000, first: time.Millisecond, last: time.Millisecond, stuck: 150, open: &open})
		r, err := nwt.Tune(t.Context(), ds, nwt.WithMaxWorkers(4), virtual, silent, nwt.WithTimeout(2*time.Second), nwt.WithErrorBudget(1_000_000))
		require.NoError(t, err)
		require.NotEmpty(t, r.Trials)
		synctest.Wait() // calls that were given up aren't waited for
		require.Zero(t, open.Load())
	})
}
