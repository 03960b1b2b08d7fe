package nwt_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

// sortedByCost is a dataset whose samples take from first to last.
func sortedByCost(n int, first, last time.Duration) nwt.Dataset {
	return nwt.NewDataset(n, scalar, func(_ context.Context, i int, _ *nwt.Sample) error {
		time.Sleep(first + (last-first)*time.Duration(i)/time.Duration(n))
		return nil
	})
}

// The last batches of an epoch, behind which nothing is loaded, are the dearest. Who
// leaves them out chooses a count that is too low.
func TestALoaderThatTunesItselfCountsTheDearEndOfAShortEpoch(t *testing.T) {
	if testing.Short() {
		t.Skip("measures in virtual time")
	}
	const batch, step = 32, 2 * time.Millisecond
	for _, tt := range []struct {
		batches     int
		first, last time.Duration
		opts        []nwt.Option
	}{
		{8, 100 * time.Microsecond, 5 * time.Millisecond, nil},
		{12, 200 * time.Microsecond, 2 * time.Millisecond, nil},
		{20, 100 * time.Microsecond, 5 * time.Millisecond, nil},
		{30, 200 * time.Microsecond, 2 * time.Millisecond, []nwt.Option{nwt.WithPrefetch(16)}},
		{30, 100 * time.Microsecond, 5 * time.Millisecond, []nwt.Option{nwt.WithPrefetch(16)}},
		{12, 5 * time.Millisecond, 100 * time.Microsecond, nil},
		{12, 100 * time.Microsecond, 5 * time.Millisecond, []nwt.Option{nwt.WithUnordered()}},
	} {
		t.Run(fmt.Sprintf("%d batches, %v to %v", tt.batches, tt.first, tt.last), func(t *testing.T) {
			run := func(batches int, opts ...nwt.Option) (r *nwt.Result, perBatch float64) {
				synctest.Test(t, func(t *testing.T) {
					ds := sortedByCost(tt.batches*batch, tt.first, tt.last)
					l, n := newLoader(t, ds, append(opts, append(tt.opts, nwt.WithBatchSize(batch), nwt.WithMaxWorkers(64), silent, virtual)...)...), 0
					for epoch := 0; n < batches; epoch++ {
						began := time.Now()
						for _, err := range l.Epoch(t.Context(), epoch) {
							require.NoError(t, err)
							n++
							time.Sleep(step)
						}
						perBatch += float64(time.Since(began))
					}
					perBatch /= float64(n)
					r = l.Result()
					require.NoError(t, l.Close())
				})
				return r, perBatch
			}
			best, at := 1e18, 0
			for _, n := range []int{4, 8, 16, 32, 64} {
				if _, took := run(20*tt.batches, nwt.WithWorkers(n)); took < best {
					best, at = took, n
				}
			}
			for _, start := range []int{2, 16} {
				r, took := run(2000, nwt.WithAutoWorkers(), nwt.WithWorkers(start))
				require.NotNil(t, r)
				_, end := run(20*tt.batches, nwt.WithWorkers(r.Workers))
				t.Logf("from %d: settled on %d, %.1f %% slower than the best, %d, and %.1f %% in the end", start, r.Workers, 100*(took/best-1), at, 100*(end/best-1))
				require.LessOrEqual(t, end, 1.05*best, "%v", r)
			}
		})
	}
}
