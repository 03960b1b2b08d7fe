package datasets_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/loadertest/kit"
)

func TestABatchDatasetIsGivenManySamplesAtOnce(t *testing.T) {
	for _, workers := range []int{0, 1, 4} {
		ds := &kit.Together{Dataset: kit.Numbered(256, func(context.Context, int, *nwt.Sample) error { return errors.New("one by one") })}
		l := kit.NewLoader(t, ds, nwt.WithBatchSize(32), nwt.WithWorkers(workers))
		got, err := kit.Values(t, l, 0)
		require.NoError(t, err)
		require.Equal(t, kit.UpTo(256), got)
		require.EqualValues(t, 256, ds.Samples.Load())
		require.LessOrEqual(t, ds.Calls.Load(), int64(256/16))
	}
}

func TestALoadManyMayLoadItsSamplesSideBySide(t *testing.T) {
	source := kit.Augmented(64)
	for _, ds := range []nwt.Dataset{unchanged(source), nwt.Cached(source, 1<<20)} {
		opts := []nwt.Option{nwt.WithBatchSize(16), nwt.WithShuffle(3), nwt.WithWorkers(2)}
		for epoch := range 2 {
			got := kit.Collect(t, kit.NewLoader(t, abreast{ds}, opts...), epoch) // first, when nothing is cached
			require.Equal(t, kit.Collect(t, kit.NewLoader(t, ds, opts...), epoch), got)
		}
	}
}

func TestADatasetMaySortWhatLoadManyWasGiven(t *testing.T) {
	same := func(_ context.Context, src, dst *nwt.Sample) error {
		copy(dst.Bytes(0), src.Bytes(0))
		return nil
	}
	mapped := nwt.Map(sorting(64), sorting(64).Fields(), same)
	concat, err := nwt.Concat(sorting(30), mapped)
	require.NoError(t, err)
	named := nwt.Map(sorting(64), []nwt.Field{{Name: "j", Type: nwt.Int64}}, same)
	zip, err := nwt.Zip(named, sorting(64))
	require.NoError(t, err)
	parts, err := nwt.Split(concat, 1, 0.5, 0.5)
	require.NoError(t, err)
	for name, ds := range map[string]nwt.Dataset{"alone": sorting(64), "Map": mapped, "Concat": concat, "Zip": zip, "Split": parts[0]} {
		l := kit.NewLoader(t, ds, nwt.WithShuffle(3), nwt.WithBatchSize(8))
		for b, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
			for k, i := range b.Indices() {
				s, err := nwt.LoadSample(t.Context(), ds, i)
				require.NoError(t, err)
				for f := range ds.Fields() {
					require.Equal(t, nwt.Values[int64](s, f)[0], nwt.Values[int64](b, f)[k], "%s, field %d", name, f)
				}
			}
		}
	}
}

func TestLoadManyMayBeGivenSamplesInAnyOrder(t *testing.T) {
	values := make([]int64, 4000)
	for i := range values {
		values[i] = int64(i)
	}
	array, err := nwt.FromSlices(nwt.SliceOf("i", values))
	require.NoError(t, err)
	concat, err := nwt.Concat(array, array)
	require.NoError(t, err)
	for _, ds := range []nwt.Dataset{array, concat} {
		l := kit.NewLoader(t, inAscendingOrder{ds.(nwt.BatchDataset)}, nwt.WithShuffle(3), nwt.WithBatchSize(5))
		for b, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
			for k, i := range b.Indices() {
				require.EqualValues(t, i%4000, nwt.Values[int64](b, 0)[k])
			}
		}
	}
}
