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
	require.NoError(t, c.(*cached).Close())
	require.Zero(t, cacheBytes(ds))
	require.Zero(t, cacheBytes(source))
}

func TestACacheKeepsToItsBoundInItsBlocksToo(t *testing.T) {
	b := &blocks{}
	b.init(1<<20, 3<<20, 100<<20)
	require.EqualValues(t, minBlock, b.size)
	defer func() { require.NoError(t, b.free()) }()
	used := int64(0)
	places := map[uint64]bool{}
	for used+3<<20 <= 100<<20 {
		place, err := b.reserve(3<<20, 100<<20-used)
		require.NoError(t, err)
		require.GreaterOrEqual(t, len(b.at(place)), 3<<20)
		require.False(t, places[place])
		places[place] = true
		used += 3 << 20
	}
	require.Equal(t, 4, b.count)
}
