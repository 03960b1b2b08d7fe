package orders_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/loadertest/kit"
	"github.com/nwt-go/nwt/sampler"
)

func TestIndicesAreThoseOfTheBatchWithoutLoadingIt(t *testing.T) {
	const n = 103
	byTokens, err := sampler.TokenBatches(n, func(i int) int { return 1 + i%9 }, sampler.Tokens{Max: 20, MaxSamples: 8}, 3)
	require.NoError(t, err)
	for name, opts := range map[string][]nwt.Option{
		"in order": nil, "shuffled": {nwt.WithShuffle(7)}, "the last left out": {nwt.WithShuffle(7), nwt.WithDropLast()},
		"batches of its own": {nwt.WithSampler(byTokens)}, "bad samples": {nwt.WithErrorBudget(n), kit.Silent},
	} {
		for _, world := range []int{1, 3} {
			for rank := range world {
				loads := 0
				ds := kit.Numbered(n, func(_ context.Context, i int, _ *nwt.Sample) error {
					loads++
					if name == "bad samples" && i%10 == 0 {
						return kit.ErrBad
					}
					return nil
				})
				l := kit.NewLoader(t, ds, append(opts, nwt.WithBatchSize(8), nwt.WithWorkers(0), nwt.WithRank(rank, world))...)
				for epoch := range 3 {
					var said [][]int
					for number := range l.Len() {
						indices, err := l.Indices(epoch, number)
						require.NoError(t, err)
						said = append(said, indices)
					}
					before := loads
					for b, err := range l.Epoch(t.Context(), epoch) {
						require.NoError(t, err)
						during, err := l.Indices(epoch, b.Number())
						require.NoError(t, err)
						require.Equal(t, said[b.Number()], during)
						if name == "bad samples" {
							require.Subset(t, during, b.Indices())
						} else {
							require.Equal(t, b.Indices(), during)
						}
					}
					require.Greater(t, loads, before)
				}
			}
		}
	}
}

func TestIndicesOfABatchThatIsNotThereAreAnError(t *testing.T) {
	loads := 0
	ds := kit.Numbered(20, func(context.Context, int, *nwt.Sample) error { loads++; return nil })
	l := kit.NewLoader(t, ds, nwt.WithBatchSize(8), nwt.WithSampler(oddly{}))
	for want, of := range map[string][2]int{
		"nwt: State.Epoch: -1: must be at least 0":                         {-1, 0},
		"nwt: Indices: number: -1: must be 0 … 2, the batches of an epoch": {0, -1},
		"nwt: Indices: number: 3: must be 0 … 2, the batches of an epoch":  {0, 3},
	} {
		_, err := l.Indices(of[0], of[1])
		require.EqualError(t, err, want)
		require.ErrorAs(t, err, new(*nwt.ArgumentError))
	}
	_, err := l.Indices(1, 1)
	var failed *nwt.LoadError
	require.ErrorAs(t, err, &failed)
	require.Equal(t, 11, failed.Position)
	require.ErrorContains(t, err, "panic: position 11")
	require.Zero(t, loads)
	stream := kit.NewLoader(t, nwt.Streamed(&kit.Tallies{Lengths: []int{9}}))
	_, err = stream.Indices(0, 0)
	require.EqualError(t, err, "nwt: Indices: a stream has no sample by index")
}

// oddly fails at position 11.
type oddly struct{}

func (oddly) Len() int { return 20 }
func (oddly) At(_, i int) int {
	if i == 11 {
		panic("position 11")
	}
	return i
}
