package nwt

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheMemoryOfACacheShowsOnceThroughEverythingMadeOfIt(t *testing.T) {
	bytes := []Field{{Name: "x", Type: Uint8, Shape: []int{100}}}
	source := NewDataset(10, bytes, func(context.Context, int, *Sample) error { return nil })
	c := Cached(source, 1<<20)
	part, err := Subset(c, []int{1, 2})
	require.NoError(t, err)
	both, err := Concat(part, c)
	require.NoError(t, err)
	ds := Map(both, bytes, func(context.Context, *Sample, *Sample) error { return nil })
	require.EqualValues(t, 80, cacheBytes(ds))
	for i := range 5 {
		_, err := LoadSample(t.Context(), ds, i)
		require.NoError(t, err)
	}
	require.EqualValues(t, 80+3*100, cacheBytes(ds), "samples 1 and 2 of the subset, 0 to 2 of the whole")
	l, err := NewLoader(ds)
	require.NoError(t, err)
	require.Equal(t, 80+3*100, l.Stats().DatasetBytes)
	require.NoError(t, l.Close())
	require.NoError(t, c.Close())
	require.Zero(t, cacheBytes(ds))
	require.Zero(t, cacheBytes(source))
}

func TestARankReadsItsShareOfTheStreamThatHasTheMostShards(t *testing.T) {
	for world := 1; world <= 7; world++ {
		sum := 0
		for rank := range world {
			s := &source{shards: []int{3, 7, 5}, opts: &options{rank: rank, world: world}}
			require.Contains(t, []int{7 / world, 7/world + 1}, s.shardsOfRank())
			sum += s.shardsOfRank()
		}
		require.Equal(t, 7, sum)
	}
}
