package packing_test

import (
	"context"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/packing"
)

// newLoader makes a loader that is closed when the test ends.
func newLoader(t testing.TB, ds nwt.Dataset, opts ...nwt.Option) *nwt.Loader {
	t.Helper()
	l, err := nwt.NewLoader(ds, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l
}

// scalars is a dataset that isn't ragged.
var scalars = nwt.NewDataset(3, []nwt.Field{{Name: "x", Type: nwt.Int64}}, func(context.Context, int, *nwt.Sample) error { return nil })

// documents are of the given lengths. Token k of document i is 1000·i + k, its mask i+1.
func documents(lengths []int) nwt.Dataset {
	var schema nwt.Schema
	tokens := nwt.AddRagged[int64](&schema, "tokens", 1, 500)
	mask := nwt.AddRagged[uint8](&schema, "mask", 1, 500, 2)
	ds := nwt.NewDataset(len(lengths), schema.Fields(), func(_ context.Context, i int, dst *nwt.Sample) error {
		tokens.SetLen(dst, lengths[i])
		mask.SetLen(dst, lengths[i])
		for k := range lengths[i] {
			tokens.Of(dst)[k] = int64(1000*i + k)
			mask.Of(dst)[2*k], mask.Of(dst)[2*k+1] = uint8(i+1), uint8(i+1)
		}
		return nil
	})
	return nwt.Sized(ds, func(i int, sizes []int) { sizes[0], sizes[1] = lengths[i], lengths[i] })
}

func TestPackedRowsHoldEachTokenOfEachDocumentOnce(t *testing.T) {
	lengths := []int{3, 0, 64, 65, 200, 1, 17, 40, 63, 5, 5, 5, 90, 22, 10}
	total := 0
	for _, n := range lengths {
		total += n
	}
	ds, err := packing.New(documents(lengths), 64, 7)
	require.NoError(t, err)
	require.LessOrEqual(t, ds.Len(), total/64+2)
	tokens, err := nwt.ColumnOf[int64](ds, "tokens")
	require.NoError(t, err)
	mask, err := nwt.ColumnOf[uint8](ds, "mask")
	require.NoError(t, err)
	segments, err := nwt.ColumnOf[int32](ds, "segment_ids")
	require.NoError(t, err)
	positions, err := nwt.ColumnOf[int32](ds, "positions")
	require.NoError(t, err)
	l := newLoader(t, ds, nwt.WithBatchSize(2), nwt.WithWorkers(3), nwt.WithShuffle(1))
	for epoch := range 3 {
		seen := map[int64]int{}
		for b, err := range l.Epoch(t.Context(), epoch) {
			require.NoError(t, err)
			require.Equal(t, []int{b.Len(), 64}, tokens.Shape(b))
			for row := range b.Len() {
				last, began := int32(0), int64(0)
				for k := range 64 {
					at := 64*row + k
					token, segment := tokens.Of(b)[at], segments.Of(b)[at]
					if segment == 0 {
						require.Zero(t, token)
						require.Zero(t, positions.Of(b)[at])
						require.Zero(t, mask.Of(b)[2*at])
						last = 1 << 30 // nothing follows
						continue
					}
					if segment != last {
						require.Equal(t, last+1, segment)
						last, began = segment, token
					}
					require.Equal(t, token-began, int64(positions.Of(b)[at]))
					require.Equal(t, uint8(token/1000+1), mask.Of(b)[2*at+1])
					seen[token]++
				}
			}
		}
		require.Len(t, seen, total)
		for token, times := range seen {
			require.Equal(t, 1, times, "token %d", token)
		}
	}
}

func TestPackedTellsWhatCannotBePacked(t *testing.T) {
	_, err := packing.New(scalars, 8, 0)
	require.ErrorContains(t, err, `packing: New: "x": isn't ragged in one dimension`)
	_, err = packing.New(documents([]int{1}), 0, 0)
	require.ErrorContains(t, err, "the length of a row must be 1")
	_, err = packing.New(documents([]int{0, 0}), 8, 0)
	require.ErrorContains(t, err, "pieces")
	_, err = packing.New(documents([]int{501}), 8, 0)
	require.ErrorContains(t, err, "Sizes of document 0")
	var plain nwt.Schema
	nwt.AddRagged[int64](&plain, "tokens", 1, 5)
	_, err = packing.New(nwt.NewDataset(1, plain.Fields(), func(context.Context, int, *nwt.Sample) error { return nil }), 8, 0)
	require.ErrorContains(t, err, "wrap it in nwt.Sized")
}

func TestFieldsThatRowsCannotHaveAreTold(t *testing.T) {
	var schema nwt.Schema
	nwt.AddRagged[int32](&schema, "positions", 1, 8)
	docs := nwt.Sized(nwt.NewDataset(2, schema.Fields(), func(context.Context, int, *nwt.Sample) error { return nil }), func(_ int, sizes []int) { sizes[0] = 1 })
	_, err := packing.New(docs, 8, 0)
	require.ErrorContains(t, err, `packing: New: "positions": rows get a field of that name`)
}

// The documents may be kept: then their sizes are known, and their memory is counted.
func TestCachedDocumentsArePackedAndTheirMemoryIsCounted(t *testing.T) {
	kept := nwt.Cached(documents([]int{3, 40, 5}), 1<<20)
	ds, err := packing.New(kept, 16, 0)
	require.NoError(t, err)
	l := newLoader(t, ds)
	for _, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
	}
	require.Positive(t, l.Stats().DatasetBytes)
	require.NoError(t, kept.Close())
}

func TestADocumentLongerThanToldIsAnErrorOfItsRow(t *testing.T) {
	for _, length := range []int{4, 16} { // cut into pieces, or not
		var schema nwt.Schema
		tokens := nwt.AddRagged[int64](&schema, "tokens", 1, 20)
		docs := nwt.Sized(nwt.NewDataset(3, schema.Fields(), func(_ context.Context, i int, dst *nwt.Sample) error {
			tokens.SetLen(dst, 7+i)
			return nil
		}), func(_ int, sizes []int) { sizes[0] = 8 })
		ds, err := packing.New(docs, length, 0)
		require.NoError(t, err)
		for _, err = range newLoader(t, ds).Epoch(t.Context(), 0) {
		}
		require.ErrorContains(t, err, "document 2: its length 9 is more than the 8 that Sizes gave")
	}
}

func TestRowsMayBeMuchLongerThanTheDocuments(t *testing.T) {
	ds, err := packing.New(documents([]int{3, 40}), 1<<24, 0)
	require.NoError(t, err)
	require.Equal(t, 1, ds.Len())
}

// BenchmarkNew packs 20 000 documents of lognormal lengths into rows of 2048 tokens and loads all of
// them, anew each time. benchmarks/peers/packing.py does the same with Grain.
func BenchmarkNew(b *testing.B) {
	const n, length = 20_000, 2048
	lengths := make([]int, n)
	for i, k := range rand.New(rand.NewPCG(1, 2)).Perm(n) {
		lengths[i] = int(min(max(245*math.Exp(math.Sqrt2*math.Erfinv(2*(float64(k)+0.5)/n-1)), 8), length))
	}
	var schema nwt.Schema
	tokens := nwt.AddRagged[int32](&schema, "tokens", 1, length)
	text := make([]int32, length)
	docs := nwt.NewDataset(n, schema.Fields(), func(_ context.Context, i int, dst *nwt.Sample) error {
		tokens.SetLen(dst, lengths[i])
		copy(tokens.Of(dst), text[:lengths[i]])
		return nil
	})
	rows, empty := 0, 0
	for b.Loop() {
		ds, err := packing.New(nwt.Sized(docs, func(i int, sizes []int) { sizes[0] = lengths[i] }), length, 7)
		require.NoError(b, err)
		segments, err := nwt.ColumnOf[int32](ds, "segment_ids")
		require.NoError(b, err)
		l, err := nwt.NewLoader(ds, nwt.WithBatchSize(8), nwt.WithShuffle(1), nwt.WithWorkers(2))
		require.NoError(b, err)
		for batch, err := range l.Epoch(b.Context(), 0) {
			require.NoError(b, err)
			rows += batch.Len()
			for _, segment := range segments.Of(batch) {
				if segment == 0 {
					empty++
				}
			}
		}
		require.NoError(b, l.Close())
	}
	b.ReportMetric(float64(n*b.N)/b.Elapsed().Seconds(), "documents/s")
	b.ReportMetric(100*float64(empty)/float64(length*rows), "%padding")
}
