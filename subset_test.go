package nwt_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/sampler"
)

// sentences is a dataset of one ragged field: sample i is i%7+1 long. It is a BatchDataset if
// batches is set, a SizedDataset if sized is.
func sentences(n int, batches, sized bool) nwt.Dataset {
	ds := nwt.NewDataset(n, []nwt.Field{{Name: "text", Type: nwt.Uint8, Shape: []int{7}, Ragged: true}}, func(_ context.Context, i int, dst *nwt.Sample) error {
		dst.SetLen(0, i%7+1)
		dst.Bytes(0)[i%7] = uint8(i)
		return nil
	})
	if batches {
		ds = batchwise{ds}
	}
	if sized {
		ds = nwt.Sized(ds, func(i int, sizes []int) { sizes[0] = i%7 + 1 })
	}
	return ds
}

// batchwise is a BatchDataset.
type batchwise struct{ nwt.Dataset }

func (d batchwise) LoadBatch(ctx context.Context, indices []int, dst []*nwt.Sample) error {
	for i, index := range indices {
		if err := d.Load(ctx, index, dst[i]); err != nil {
			return err
		}
	}
	return nil
}

// made is what datasets of this package make of one, by name.
func made(t *testing.T, ds nwt.Dataset) map[string]nwt.Dataset {
	t.Helper()
	subset, err := nwt.Subset(ds, []int{12, 3, 5})
	require.NoError(t, err)
	parts, err := nwt.Split(ds, 1, 0.5, 0.5)
	require.NoError(t, err)
	concat, err := nwt.Concat(ds, ds)
	require.NoError(t, err)
	zip, err := nwt.Zip(ds)
	require.NoError(t, err)
	return map[string]nwt.Dataset{
		"Subset": subset, "Split": parts[1], "Concat": concat, "Zip": zip, "Cached": nwt.Cached(ds, 1<<20),
		"Subset of Concat": must(nwt.Subset(concat, []int{1, 2})), "Overwrites": nwt.Overwrites(ds), "Overwrites of Subset": nwt.Overwrites(subset),
	}
}

func TestWhatIsMadeOfADatasetHasItsOptionalMethods(t *testing.T) {
	for _, batches := range []bool{false, true} {
		for _, sized := range []bool{false, true} {
			for name, ds := range made(t, sentences(20, batches, sized)) {
				t.Run(fmt.Sprintf("%s/batches=%t/sized=%t", name, batches, sized), func(t *testing.T) {
					if cache, ok := ds.(*nwt.Cache); ok { // whose sizes the loader knows
						ds = must(nwt.Subset(ds, []int{0, 1, 2, 3, 4}))
						defer func() { require.NoError(t, cache.Close()) }()
					}
					tell, is := ds.(nwt.SizedDataset)
					require.Equal(t, sized, is)
					if _, is := ds.(nwt.BatchDataset); name == "Cached" {
						require.False(t, is)
					} else {
						require.Equal(t, batches, is)
					}
					if !sized {
						return
					}
					for i := range ds.Len() {
						s, err := nwt.LoadSample(t.Context(), ds, i)
						require.NoError(t, err)
						var sizes [1]int
						tell.Sizes(i, sizes[:])
						require.Equal(t, s.Len(0), sizes[0])
					}
				})
			}
		}
	}
}

func TestSubsetAndSplitTellWhichSamplesTheyHold(t *testing.T) {
	for _, batches := range []bool{false, true} {
		for _, sized := range []bool{false, true} {
			whole := sentences(20, batches, sized)
			for name, ds := range made(t, whole) {
				if name != "Subset" && name != "Split" && name != "Overwrites of Subset" {
					_, is := ds.(nwt.SubsetDataset)
					require.Equal(t, name == "Subset of Concat", is, name)
					continue
				}
				sub := ds.(nwt.SubsetDataset)
				for i := range ds.Len() {
					s, err := nwt.LoadSample(t.Context(), ds, i)
					require.NoError(t, err)
					want, err := nwt.LoadSample(t.Context(), whole, sub.Index(i))
					require.NoError(t, err)
					require.Equal(t, want.Bytes(0), s.Bytes(0))
				}
				require.Panics(t, func() { sub.Index(-1) })
				require.PanicsWithValue(t, fmt.Sprintf("nwt: Index(%d) is out of range: the dataset has %d samples", ds.Len(), ds.Len()), func() { sub.Index(ds.Len()) })
			}
		}
	}
}

func TestTheTrainingPartOfASplitCanBeBucketedByItsSizes(t *testing.T) {
	parts, err := nwt.Split(sentences(100, false, true), 3, 0.8, 0.2)
	require.NoError(t, err)
	tell := parts[0].(nwt.SizedDataset)
	length := func(i int) int {
		var sizes [1]int
		tell.Sizes(i, sizes[:])
		return sizes[0]
	}
	order, err := sampler.Bucketed(parts[0].Len(), length, sampler.Buckets{BatchSize: 4}, 1)
	require.NoError(t, err)
	padded, used := 0, 0
	for b, err := range newLoader(t, parts[0], nwt.WithSampler(order), nwt.WithBatchSize(4)).Epoch(t.Context(), 0) {
		require.NoError(t, err)
		padded += len(b.Bytes(0))
		for _, n := range b.Lens(0) {
			used += int(n)
		}
	}
	require.Less(t, float64(padded), 1.15*float64(used))
}
