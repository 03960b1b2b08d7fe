//go:build !race

package nwt_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

// A store that is slow for a second of three makes figures that are never sure.
func TestALoaderThatDoubtsItsCountMeasuresOthersAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		ds := nwt.NewDataset(1_000_000, scalar, func(context.Context, int, *nwt.Sample) error {
			if time.Since(began)%(3*time.Second) > 2*time.Second {
				time.Sleep(4 * msec)
			}
			time.Sleep(msec)
			return nil
		})
		l := tuning(t, ds, 4, 32)
		var found []*nwt.Result
		train(t, l, 20_000, func() {
			if r := l.Result(); r != nil && (len(found) == 0 || found[len(found)-1] != r) {
				found = append(found, r)
			}
			time.Sleep(6 * msec)
		})
		require.Greater(t, len(found), 2)
		for _, r := range found {
			require.Greater(t, len(r.Trials), 2, "%v", r)
		}
	})
}

func TestHowLongTuningTookIsUntilItSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := tuning(t, sleeping(1_000_000, msec), 4, 32)
		var first *nwt.Result
		train(t, l, 10_000, func() {
			if r := l.Result(); first == nil {
				first = r
			}
			time.Sleep(4 * msec)
		})
		last := l.Result()
		require.NotSame(t, first, last, "more was seen")
		require.Equal(t, first.Elapsed, last.Elapsed)
	})
}
