package nwt_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

func TestWithoutOrderASlowBatchHoldsUpNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rest := make(chan struct{})
		ds := numbered(100, func(ctx context.Context, i int, _ *nwt.Sample) error {
			if i == 11 {
				<-rest
			}
			return nil
		})
		l := newLoader(t, ds, nwt.WithBatchSize(10), nwt.WithWorkers(2), nwt.WithUnordered(), nwt.WithPrefetch(3))
		var batches []int
		var all []int64
		for b, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
			require.Equal(t, -1, b.State().Samples)
			batches = append(batches, b.Index())
			all = append(all, nwt.Values[int64](b, 0)...)
			if len(batches) == 9 {
				close(rest)
			}
		}
		require.Equal(t, 1, batches[9], "the slow batch comes last")
		slices.Sort(all)
		require.Equal(t, upTo(100), all)
	})
}

func TestALoaderWithoutOrderSaysThatItCannotResume(t *testing.T) {
	l := newLoader(t, augmented(10), nwt.WithUnordered())
	require.ErrorContains(t, refusal(t, l.Resume(t.Context(), nwt.State{Epoch: 0, Samples: 4})), "WithUnordered")
	ordered := newLoader(t, augmented(10))
	require.ErrorContains(t, refusal(t, ordered.Resume(t.Context(), nwt.State{Epoch: 0, Samples: -1})), "WithUnordered")
}
