package nwt_test

import (
	"context"
	"math"
	"math/big"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

// contents is the number that each sample of a dataset of numbers holds.
func contents(t *testing.T, ds nwt.Dataset) (all []int64) {
	t.Helper()
	for _, batch := range batchesOf[int64](t, newLoader(t, ds)) {
		all = append(all, batch...)
	}
	return all
}

// batchesOf is field 0 of every batch of epoch 0.
func batchesOf[T nwt.Element](t *testing.T, l *nwt.Loader) (batches [][]T) {
	t.Helper()
	for b, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
		batches = append(batches, slices.Clone(nwt.Values[T](b, 0)))
	}
	return batches
}

func numbersTo(t *testing.T, n int) nwt.Dataset {
	t.Helper()
	numbers := make([]int64, n)
	for i := range numbers {
		numbers[i] = int64(i)
	}
	ds, err := nwt.FromSlices(nwt.SliceOf("number", numbers))
	require.NoError(t, err)
	return ds
}

func TestThePartsOfASplitAreDisjointAndComplete(t *testing.T) {
	for _, n := range []int{4, 10, 1000, 1001} {
		ds := numbersTo(t, n)
		parts, err := nwt.Split(ds, 7, 0.5, 0.3, 0.2)
		require.NoError(t, err)
		require.Len(t, parts, 3)
		seen := make([]bool, n)
		for i, part := range parts {
			require.Equal(t, ds.Fields(), part.Fields())
			require.InDelta(t, []float64{0.5, 0.3, 0.2}[i]*float64(n), part.Len(), 1)
			for _, number := range contents(t, part) {
				require.False(t, seen[number])
				seen[number] = true
			}
		}
		require.NotContains(t, seen, false)
	}
}

func TestASplitIsItsSeedsAndShuffled(t *testing.T) {
	ds := numbersTo(t, 1000)
	split := func(seed uint64) []int64 {
		parts, err := nwt.Split(ds, seed, 0.9, 0.1)
		require.NoError(t, err)
		require.Implements(t, (*nwt.BatchDataset)(nil), parts[1])
		return contents(t, parts[1])
	}
	require.Equal(t, split(1), split(1))
	require.NotEqual(t, split(1), split(2))
	part := split(1)
	require.False(t, slices.IsSorted(part))
	slices.Sort(part)
	require.Less(t, part[0], int64(200))
	require.Greater(t, part[99], int64(800))
}

func TestAPartIsWholeWhereThereIsOneShare(t *testing.T) {
	parts, err := nwt.Split(numbersTo(t, 5), 1, 1)
	require.NoError(t, err)
	require.ElementsMatch(t, []int64{0, 1, 2, 3, 4}, contents(t, parts[0]))
}

func TestASampleThatIsBadIsBadInItsPartToo(t *testing.T) {
	bad := numbered(10, func(_ context.Context, i int, _ *nwt.Sample) error {
		if i == 7 {
			return errBad
		}
		return nil
	})
	for _, ds := range []nwt.Dataset{bad, batched{bad}} {
		parts, err := nwt.Split(ds, 1, 0.5, 0.5)
		require.NoError(t, err)
		failed := 0
		for _, part := range parts {
			if _, err := epoch(t.Context(), newLoader(t, part, nwt.WithBatchSize(1)), 0); err != nil {
				require.ErrorIs(t, err, errBad)
				failed++
			}
		}
		require.Equal(t, 1, failed)
	}
}

func TestSharesThatCanNotBeUsedAreNamed(t *testing.T) {
	ds := numbersTo(t, 10)
	for _, c := range []struct {
		shares []float64
		says   []string
	}{
		{nil, []string{"add up to 1, not 0"}},
		{[]float64{0.5, 0.4}, []string{"[0.5 0.4]: shares are fractions that add up to 1, not 0.9"}},
		{[]float64{8, 2}, []string{"shares[0] = 8: shares are fractions", "shares[1] = 2: shares"}},
		{[]float64{1, 0}, []string{"shares[1] = 0: shares are fractions that add up to 1"}},
		{[]float64{math.NaN()}, []string{"shares[0] = NaN"}},
		{[]float64{0.99, 0.01}, []string{"shares[1] = 0.01: less than 1 of 10 samples"}},
	} {
		_, err := nwt.Split(ds, 1, c.shares...)
		var oe *nwt.OptionError
		require.ErrorAs(t, err, &oe)
		for _, s := range c.says {
			require.ErrorContains(t, err, s)
		}
	}
	_, err := nwt.Split(nil, 1, 1)
	require.ErrorContains(t, err, "must not be nil")
}

func TestAShareThatIsAWholeNumberOfSamplesIsExact(t *testing.T) {
	for _, c := range []struct {
		n      int
		shares []float64
		part   int
		want   int
	}{
		{250, []float64{0.35, 0.58, 0.01, 0.06}, 1, 145},
		{375, []float64{0.22, 0.12, 0.66}, 1, 45},
		{150, []float64{0.57, 0.38, 0.03, 0.02}, 1, 57},
		{250, []float64{0.59, 0.34, 0.03, 0.02, 0.02}, 1, 85},
	} {
		parts, err := nwt.Split(augmented(c.n), 1, c.shares...)
		require.NoError(t, err)
		require.Equal(t, c.want, parts[c.part].Len(), c)
	}
}

// However many samples there are: no sum of shares is a little off.
func TestAPartsSizeIsItsShareRoundedUpOrDown(t *testing.T) {
	none := func(context.Context, int, *nwt.Sample) error { return nil }
	for _, samples := range []int64{1000, 12_345_678, 20_000_000_000_001, 1<<62 - 1} {
		if samples > int64(nwt.MaxSamples) {
			continue
		}
		n := int(samples)
		ds := nwt.NewDataset(n, []nwt.Field{{Name: "x", Type: nwt.Uint8}}, none)
		for _, thousandths := range [][]int64{{1000}, {900, 100}, {333, 333, 334}, {100, 200, 300, 400}, {1, 999}, {499, 1, 499, 1}, {7, 11, 13, 17, 952}} {
			var shares []float64
			for _, s := range thousandths {
				shares = append(shares, float64(s)/1000)
			}
			parts, err := nwt.Split(ds, 1, shares...)
			require.NoError(t, err)
			all := 0
			for k, part := range parts {
				share := big.NewRat(thousandths[k], 1000)
				off := new(big.Rat).SetInt64(int64(part.Len()))
				off.Sub(off, share.Mul(share, new(big.Rat).SetInt64(int64(n))))
				require.Negative(t, off.Abs(off).Cmp(big.NewRat(1, 1)), "%d of %d: share %d has %d", k, n, thousandths[k], part.Len())
				all += part.Len()
			}
			require.Equal(t, n, all)
		}
		for thirds := range 3 { // as a program computes them, or as a person rounds them
			share := []float64{1.0 / 3, 0.3333333, 0.33333334}[thirds]
			parts, err := nwt.Split(ds, 1, share, share, share)
			require.NoError(t, err)
			for _, part := range parts {
				require.InDelta(t, 0, float64(part.Len()-n/3), 1)
			}
		}
	}
}
