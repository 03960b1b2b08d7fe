package sampler_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/permute"
	"github.com/nwt-go/nwt/sampler"
)

var rowGroups = []int{100, 90, 100, 1, 100, 95, 100, 100, 100, 100, 100, 100, 100, 114}

func TestALocalShuffleVisitsEverySampleAndReadsEveryBlockOnce(t *testing.T) {
	var block []int // of each sample
	for b, size := range rowGroups {
		block = append(block, slices.Repeat([]int{b}, size)...)
	}
	for _, window := range []int{1, 3, 14, 99} {
		s, err := sampler.LocallyShuffled(rowGroups, window, 1)
		require.NoError(t, err)
		require.Equal(t, len(block), s.Len())
		var kept []int // the blocks read last
		for e := range 3 {
			indices := orderOf(s, e)
			require.NotEqual(t, indices, orderOf(s, e+1))
			kept = kept[:0]
			reads := 0
			for _, index := range indices {
				if i := slices.Index(kept, block[index]); i >= 0 {
					kept = slices.Delete(kept, i, i+1)
				} else {
					reads++
				}
				if kept = append(kept, block[index]); len(kept) > 2*window { // the one before may be in use yet
					kept = kept[1:]
				}
			}
			require.Equal(t, len(rowGroups), reads)
			slices.Sort(indices)
			for i, index := range indices {
				require.Equal(t, i, index)
			}
		}
	}
}

func TestALocalShuffleMixesTheBlocksOfAWindow(t *testing.T) {
	s, err := sampler.LocallyShuffled([]int{50, 50}, 2, 1)
	require.NoError(t, err)
	fromFirst := 0
	for _, index := range orderOf(s, 0)[:50] {
		if index < 50 {
			fromFirst++
		}
	}
	require.InDelta(t, 25, fromFirst, 12)
}

func TestManyPositionsOfALocalShuffleAreThoseOfEach(t *testing.T) {
	for _, window := range []int{1, 3, 99} {
		s, err := sampler.LocallyShuffled(rowGroups, window, 1)
		require.NoError(t, err)
		want := orderOf(s, 2)
		for from := 0; from < len(want); from += 37 {
			for _, n := range []int{1, 64, len(want) - from} {
				got := make([]int, min(n, len(want)-from))
				s.(nwt.SamplerFiller).Fill(2, from, got)
				require.Equal(t, want[from:][:len(got)], got)
			}
		}
	}
}

func TestBlocksThatCanNotBeUsedAreNamed(t *testing.T) {
	for _, c := range []struct {
		sizes  []int
		window int
		says   string
	}{
		{nil, 1, "0: the number of blocks must be 1"},
		{[]int{3, 0}, 1, "sizes[1] = 0: must be at least 1 sample"},
		{[]int{3}, 0, "0: the window must be at least 1 block"},
		{[]int{permute.MaxLen/2 + 1, permute.MaxLen / 2}, 1, fmt.Sprintf("sizes[1] = %d: must be at least 1", permute.MaxLen/2)},
		{[]int{permute.MaxLen, 1}, 1, fmt.Sprintf("sizes[1] = 1: must be at least 1 sample, and all blocks at most %d", permute.MaxLen)},
	} {
		_, err := sampler.LocallyShuffled(c.sizes, c.window, 1)
		var oe *nwt.ArgumentError
		require.ErrorAs(t, err, &oe)
		require.ErrorContains(t, err, c.says)
	}
	_, err := sampler.LocallyShuffled([]int{3, 0, 0, 0}, 1, 1)
	require.NotContains(t, err.Error(), "block 2", "one is enough")
}

func TestBlocksMayHoldAsManySamplesAsAnEpochMay(t *testing.T) {
	for _, sizes := range [][]int{{permute.MaxLen}, {permute.MaxLen - 1, 1}} {
		s, err := sampler.LocallyShuffled(sizes, 1, 9)
		require.NoError(t, err)
		require.Equal(t, permute.MaxLen, s.Len())
		require.Equal(t, fmt.Sprintf("LocallyShuffled(%d in %d blocks, windows of 1, seed 9)", permute.MaxLen, len(sizes)), fmt.Sprint(s))
		last := s.At(0, permute.MaxLen-1)
		require.True(t, 0 <= last && last < permute.MaxLen)
	}
}

func TestLocallyShuffledOrdersStayWhatTheyWere(t *testing.T) {
	s, err := sampler.LocallyShuffled([]int{4, 3, 5, 2}, 2, 42)
	require.NoError(t, err)
	require.Equal(t, []int{1, 8, 7, 3, 10, 0, 11, 9, 2, 6, 5, 4, 12, 13}, orderOf(s, 0))
	require.Equal(t, []int{12, 13, 6, 4, 5, 2, 11, 0, 10, 7, 9, 8, 3, 1}, orderOf(s, 2))
}
