package nwt

import (
	"context"
	"math"
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
	require.NoError(t, c.(*cached).Close())
	require.Zero(t, cacheBytes(ds))
	require.Zero(t, cacheBytes(source))
}

// Between a look for a kept sample and the claim, another worker may have kept it.
func TestASampleThatWasKeptMeanwhileIsNotLoadedAgain(t *testing.T) {
	c := Cached(lines(5), 1<<20).(*cached)
	requireLines(t, c)
	for i := range 5 {
		mine, others := c.claim(i)
		require.False(t, mine)
		<-others
	}
	require.NoError(t, c.Close())
}

func TestLessThanAnEighthOfABlockStaysEmpty(t *testing.T) {
	for _, sample := range []int{100, 3 << 20, 20 << 20, 31 << 20} {
		const limit = 1 << 30
		b := &blocks{}
		b.init(1<<30, int64(sample), limit)
		places := map[uint64]bool{}
		for left := int64(limit); left >= int64(sample) && len(places) < 1000; left -= int64(sample) {
			place, err := b.reserve(sample, left)
			require.NoError(t, err)
			require.GreaterOrEqual(t, len(b.at(place)), sample)
			require.False(t, places[place])
			places[place] = true
		}
		for _, mem := range b.list[:b.count.Load()-1] {
			require.Less(t, len(mem)%sample, len(mem)/8)
		}
		require.NoError(t, b.free())
	}
}

func TestBlocksAreEnoughForTerabytesAndNoLargerThanTheSamplesNeed(t *testing.T) {
	for _, c := range []struct {
		n           int
		most, limit int64
		least, size int64 // of all blocks together; of one
	}{
		{1, 100, 1 << 50, 100, minBlock},
		{1000, 1 << 10, 1 << 50, 1000 << 10, minBlock},
		{1 << 30, 1 << 10, 4 << 40, 1 << 40, 1 << 30},
		{1 << 30, 1 << 20, 1 << 40, 1 << 40, 1 << 30},
		{1 << 30, 1 << 40, 4 << 40, 4 << 40, 8 << 40},
		{math.MaxInt, 16, 4 << 40, min(4<<40, math.MaxInt), maxBlock}, // more bytes in all than an int64 counts
	} {
		b := &blocks{}
		b.init(c.n, c.most, c.limit)
		require.GreaterOrEqual(t, maxBlocks*b.size, c.least)
		require.LessOrEqual(t, b.size, c.size)
	}
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
