package cache

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// get gets an item of 8 bytes, which are its number, and reports whether it was loaded.
func get(t *testing.T, c *Cache, index int) (loaded bool, full error) {
	t.Helper()
	take := func(b []byte) error {
		require.EqualValues(t, index, binary.LittleEndian.Uint64(b))
		return nil
	}
	load := func() (int, error) { loaded = true; return 8, nil }
	keep := func(dst []byte) { binary.LittleEndian.PutUint64(dst, uint64(index)) }
	full, err := c.Get(t.Context(), index, index, take, load, keep)
	require.NoError(t, err)
	return loaded, full
}

// Between a look for a kept item and the claim, another worker may have kept it.
func TestAnItemThatWasKeptMeanwhileIsNotLoadedAgain(t *testing.T) {
	c := New(5, 8, 1<<20)
	for i := range 5 {
		get(t, c, i)
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
