package split_test

import (
	"context"
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/split"
)

func numbers(n int) nwt.Dataset {
	return nwt.NewDataset(n, []nwt.Field{{Name: "x", Type: nwt.Int64}}, func(_ context.Context, i int, dst *nwt.Sample) error {
		nwt.Values[int64](dst, 0)[0] = int64(i)
		return nil
	})
}

// indicesOf returns where the samples of a part are in the whole.
func indicesOf(t *testing.T, part nwt.Dataset) (indices []int) {
	t.Helper()
	subset, ok := part.(nwt.SubsetDataset)
	require.True(t, ok)
	for i := range part.Len() {
		indices = append(indices, subset.Index(i))
	}
	return indices
}

func TestEachPartOfAStratifiedSplitHasItsShareOfEachClass(t *testing.T) {
	draws := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		classes := make([]int, 20+draws.IntN(400))
		size := map[int]int{}
		kinds := 1 + draws.IntN(20)
		for i := range classes {
			classes[i] = draws.IntN(1+draws.IntN(kinds)) - 3
			size[classes[i]]++
		}
		shares := [][]float64{{.8, .2}, {.7, .2, .1}, {1}, {.25, .25, .25, .25}, {1. / 3, 1. / 3, 1. / 3}}[draws.IntN(5)]
		parts, err := split.Stratified(numbers(len(classes)), draws.Uint64(), func(i int) int { return classes[i] }, shares...)
		require.NoError(t, err)
		require.Len(t, parts, len(shares))
		seen := map[int]bool{}
		for p, part := range parts {
			has := map[int]int{}
			for _, i := range indicesOf(t, part) {
				require.False(t, seen[i], "sample %d comes twice", i)
				seen[i] = true
				has[classes[i]]++
			}
			for class, n := range size {
				require.Less(t, math.Abs(float64(has[class])-shares[p]*float64(n)), 1+1e-6, "class %d of %d samples", class, n)
			}
		}
		require.Len(t, seen, len(classes))
	}
}

// Of 1000 classes of one sample each, rounding alone would give all to the largest part.
func TestManySmallClassesLeaveThePartsTheirShares(t *testing.T) {
	for each := 1; each <= 3; each++ {
		parts, err := split.Stratified(numbers(1000*each), 7, func(i int) int { return i / each }, .8, .1, .1)
		require.NoError(t, err)
		for p, share := range []float64{.8, .1, .1} {
			require.InDelta(t, share*float64(1000*each), parts[p].Len(), 2)
		}
	}
}

func TestAStratifiedSplitIsTheSameForTheSameSeedAndInNoOrderOfClasses(t *testing.T) {
	of := func(seed uint64) []int {
		parts, err := split.Stratified(numbers(100), seed, func(i int) int { return i / 50 }, .5, .5)
		require.NoError(t, err)
		return indicesOf(t, parts[1])
	}
	require.Equal(t, of(1), of(1))
	require.NotEqual(t, of(1), of(2))
	changes, now := 0, of(1)
	for i := range now[1:] {
		if now[i]/50 != now[i+1]/50 {
			changes++
		}
	}
	require.Greater(t, changes, 10, "classes alternate")
}

func TestEachSampleValidatesInOneFold(t *testing.T) {
	for _, k := range []int{2, 3, 7, 49, 50} {
		for name, class := range map[string]func(int) int{"stratified": func(i int) int { return i % 3 }, "without classes": nil} {
			t.Run(fmt.Sprint(k, " ", name), func(t *testing.T) {
				seen := map[int]bool{}
				for i := range k {
					training, validation, err := split.Fold(numbers(50), 4, k, i, class)
					require.NoError(t, err)
					require.InDelta(t, 50/float64(k), validation.Len(), 1)
					here := map[int]bool{}
					has := [3]int{}
					for _, index := range indicesOf(t, validation) {
						require.False(t, seen[index])
						seen[index], here[index] = true, true
						has[index%3]++
					}
					for _, index := range indicesOf(t, training) {
						require.False(t, here[index])
						here[index] = true
					}
					require.Len(t, here, 50)
					for c, n := range has {
						if class != nil {
							require.InDelta(t, float64((52-c)/3)/float64(k), n, 1)
						}
					}
				}
				require.Len(t, seen, 50)
			})
		}
	}
}

func TestWhatCannotBeSplitIsNamed(t *testing.T) {
	class := func(int) int { return 0 }
	of := func(_ []nwt.Dataset, err error) error { return err }
	fold := func(_, _ nwt.Dataset, err error) error { return err }
	for want, err := range map[string]error{
		"split: Stratified: Dataset: is nil":               of(split.Stratified(nil, 0, class, 1)),
		"split: Stratified: shares[0] = 80: shares are":    of(split.Stratified(numbers(5), 0, class, 80, 20)),
		"split: Stratified: class is nil":                  of(split.Stratified(numbers(5), 0, nil, 1)),
		"Fold: k: 1: must be 2 … 5, the number of samples": fold(split.Fold(numbers(5), 0, 1, 0, nil)),
		"Fold: k: 6: must be 2 … 5":                        fold(split.Fold(numbers(5), 0, 6, 0, nil)),
		"Fold: i: 3: must be 0 … 2":                        fold(split.Fold(numbers(5), 0, 3, 3, nil)),
		"split: Fold: Dataset: is a stream":                fold(split.Fold(nwt.Streamed(nwt.NewStream(numbers(1).Fields(), 1, func(context.Context, int) iter.Seq2[int, error] { return nil }, func(context.Context, int, *nwt.Sample) error { return nil })), 0, 2, 0, nil)),
	} {
		require.ErrorContains(t, err, want)
		require.ErrorAs(t, err, new(*nwt.ArgumentError))
	}
}
