package sampler

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLengthsAreSortedAsByComparingThem(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, longest := range []int{1, 2, 2047, 2048, 1 << 20, math.MaxInt32, math.MaxInt} {
		for _, n := range []int{1, 2, 10_000} {
			lengths := make([]int, n)
			for i := range lengths {
				if lengths[i] = 1 + rng.IntN(longest); i%3 == 0 { // many that are equal, also in their upper digits
					lengths[i] = 1 + rng.IntN(min(longest, 5))
				}
			}
			lengths[n/2] = longest
			want := make([]int, n)
			for i := range want {
				want[i] = i
			}
			slices.SortStableFunc(want, func(a, b int) int { return cmp.Compare(lengths[b], lengths[a]) })
			require.Equal(t, want, longestFirst(lengths, longest), "%d lengths up to %d", n, longest)
		}
	}
}
