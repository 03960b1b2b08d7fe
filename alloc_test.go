package nwt_test

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

// What doc.go says of a batch's cost, for what no other test of allocations covers.
func TestABatchCostsNoAllocationWhateverMakesIt(t *testing.T) {
	const n = 1 << 16
	must := func(ds nwt.Dataset, err error) nwt.Dataset {
		require.NoError(t, err)
		return ds
	}
	numbers := numbers(0, n)
	parts, err := nwt.Split(numbers, 1, 0.5, 0.5)
	require.NoError(t, err)
	stream := &tallies{lengths: slices.Repeat([]int{n / 16}, 16)}
	for name, c := range map[string]struct {
		ds   nwt.Dataset
		opts []nwt.Option
	}{
		"Map": {nwt.Map(numbers, numbers.Fields(), func(_ context.Context, src, dst *nwt.Sample) error {
			nwt.Values[int64](dst, 0)[0] = nwt.Values[int64](src, 0)[0]
			return nil
		}), nil},
		"Subset":          {must(nwt.Subset(numbers, indicesUpTo(n))), nil},
		"Concat":          {must(nwt.Concat(numbers, numbers)), nil},
		"Split":           {parts[0], nil},
		"shuffled":        {numbers, []nwt.Option{nwt.WithShuffle(1)}},
		"ranks":           {numbers, []nwt.Option{nwt.WithShuffle(1), nwt.WithRank(1, 3)}},
		"without order":   {numbers, []nwt.Option{nwt.WithUnordered()}},
		"a timeout":       {numbers, []nwt.Option{nwt.WithTimeout(time.Hour)}},
		"random":          {augmented(n), nil},
		"a stream":        {nwt.Streamed(stream), nil},
		"a stream, mixed": {nwt.Streamed(stream), []nwt.Option{nwt.WithShuffle(1), nwt.WithShuffleWindow(64)}},
		"in one call": {inOneCall{numbers, func(indices []int, dst []*nwt.Sample) error {
			for k, i := range indices {
				nwt.Values[int64](dst[k], 0)[0] = int64(i)
			}
			return nil
		}}, nil},
	} {
		for _, workers := range []int{0, 2} {
			t.Run(fmt.Sprintf("%s/workers=%d", name, workers), func(t *testing.T) {
				// A depth that follows need asks once how much memory there is, and adds slots. A
				// stream that has memory for it adds records.
				l := newLoader(t, c.ds, append(c.opts, nwt.WithWorkers(workers), nwt.WithPrefetch(8), nwt.WithReadAhead(1000))...)
				next, stop := iter.Pull2(l.Epoch(t.Context(), 0))
				defer stop()
				for range 100 {
					next()
				}
				require.Zero(t, testing.AllocsPerRun(300, func() { next() }))
			})
		}
	}
}
