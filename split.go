package nwt

import (
	"errors"
	"math"

	"github.com/nwt-go/nwt/internal/mix"
	"github.com/nwt-go/nwt/internal/permute"
)

// Split cuts a dataset into parts at random, one part per share. The shares must be
// above 0 and add up to 1, give or take a millionth. Each sample is in exactly one part,
// and the same seed always makes the same parts. Each must have a sample. Each part is a
// [SubsetDataset], and a [BatchDataset] or a [SizedDataset] if ds is.
func Split(ds Dataset, seed uint64, shares ...float64) ([]Dataset, error) {
	n, _, err := checkIndexed(ds)
	if err != nil {
		return nil, within("Split", err)
	}
	var errs []error
	sum := 0.0
	for i, share := range shares {
		if !(share > 0 && share <= 1) { // in this form NaN fails too
			errs = append(errs, optionError("Split", share, "share %d must be more than 0 and at most 1", i))
		}
		sum += share
	}
	if len(errs) == 0 && math.Abs(sum-1) > 1e-6 {
		errs = append(errs, optionError("Split", shares, "the shares must add up to 1, not %g", sum))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	perm, key := permute.New(n), permute.SeedKey(seed)
	var parts []Dataset
	ends := mix.Divide(n, shares)
	from := 0
	for i, share := range shares {
		to := ends[i]
		if to == from {
			return nil, optionError("Split", share, "share %d of %d samples must be at least 1 sample", i, n)
		}
		begin := from
		parts = append(parts, newSubset(ds, to-from, func(i int) int { return perm.At(key, begin+i) }))
		from = to
	}
	return parts, nil
}
