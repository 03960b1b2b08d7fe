// Package split divides a dataset by classes. [nwt.Split] divides it without regard to classes. [Stratified]
// makes parts that each have their share of every class. [Fold] is for cross-validation. Both look at the
// class of every sample once. While they run, they take about 40 bytes of memory per sample. Each part is a
// [nwt.SubsetDataset].
package split

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/permute"
)

// Stratified does what [nwt.Split] does, but within each class. Every part gets its share of the class,
// rounded up or down. The choice is random, and the same seed gives the same parts. Samples that are left
// after rounding go to the parts that are furthest below their shares. So does the only sample of a class.
// class(i) returns the class of sample i, which may be any number. For a vision.Folder or a folder.Folder,
// pass its method Class.
func Stratified(ds nwt.Dataset, seed uint64, class func(index int) int, shares ...float64) ([]nwt.Dataset, error) {
	if err := check("Stratified", ds, shares...); err != nil {
		return nil, err
	}
	if class == nil {
		return nil, &nwt.ArgumentError{Name: "split.Stratified", Reason: "class is nil; nwt.Split needs no classes"}
	}
	all := deal(ds.Len(), seed, class, shares)
	parts := make([]nwt.Dataset, len(shares))
	for p, share := range shares {
		indices := collect(all, func(part int) bool { return part == p })
		if len(indices) == 0 {
			return nil, &nwt.ArgumentError{Name: fmt.Sprintf("split.Stratified: shares[%d]", p), Value: share, Reason: fmt.Sprintf("too small: none of the %d samples is left for this part", len(all))}
		}
		var err error
		if parts[p], err = nwt.Subset(ds, indices); err != nil {
			return nil, err
		}
	}
	return parts, nil
}

// Fold returns fold i of k, 0 ≤ i < k. A k-th of the samples is for validation, and all others are for
// training. With the same seed, each sample is used for validation in exactly one of the k folds. If class
// isn't nil, every fold has a k-th of each class, rounded up or down. k may be from 2 up to the number of
// samples.
func Fold(ds nwt.Dataset, seed uint64, k, i int, class func(index int) int) (training, validation nwt.Dataset, err error) {
	if err := check("Fold", ds, 1); err != nil {
		return nil, nil, err
	}
	switch n := ds.Len(); {
	case k < 2 || k > n:
		return nil, nil, &nwt.ArgumentError{Name: "split.Fold: k", Value: k, Reason: fmt.Sprintf("must be 2 … %d, the number of samples", n)}
	case i < 0 || i >= k:
		return nil, nil, &nwt.ArgumentError{Name: "split.Fold: i", Value: i, Reason: fmt.Sprintf("must be 0 … %d", k-1)}
	case class == nil:
		class = func(int) int { return 0 }
	}
	all := deal(ds.Len(), seed, class, slices.Repeat([]float64{1}, k))
	if training, err = nwt.Subset(ds, collect(all, func(part int) bool { return part != i })); err != nil {
		return nil, nil, err
	}
	validation, err = nwt.Subset(ds, collect(all, func(part int) bool { return part == i }))
	return training, validation, err
}

// check returns what [nwt.Split] refuses, named after the function that was called.
func check(called string, ds nwt.Dataset, shares ...float64) error {
	_, err := nwt.Split(ds, 0, shares...)
	if e, ok := errors.AsType[*nwt.ArgumentError](err); ok {
		return &nwt.ArgumentError{Name: "split." + called + strings.TrimPrefix(e.Name, "Split"), Value: e.Value, Reason: e.Reason}
	}
	return err
}

type sample struct{ index, class, part int }

// collect returns the indices of the samples whose part is kept.
func collect(all []sample, keep func(part int) bool) (indices []int) {
	for _, s := range all {
		if keep(s.part) {
			indices = append(indices, s.index)
		}
	}
	return indices
}

// deal returns the samples in a random order that depends on seed, each with its part.
func deal(n int, seed uint64, class func(index int) int, shares []float64) []sample {
	perm, key := permute.New(n), permute.SeedKey(seed)
	all, byClass := make([]sample, n), make([]*sample, n)
	for i := range all {
		index := perm.At(key, i)
		all[i], byClass[i] = sample{index: index, class: class(index)}, &all[i]
	}
	slices.SortStableFunc(byClass, func(a, b *sample) int { return cmp.Compare(a.class, b.class) })
	sum := 0.0
	for _, share := range shares {
		sum += share
	}
	have, order := make([]int, len(shares)), make([]int, len(shares)) // samples that each part has so far
	for from := 0; from < n; {
		to := from + 1
		for to < n && byClass[to].class == byClass[from].class {
			to++
		}
		const rounding = 1e-9 // so that a third of 3 is 1
		gets, left := make([]int, len(shares)), to-from
		for p, share := range shares {
			gets[p] = int(share/sum*float64(to-from) + rounding)
			have[p] += gets[p]
			left -= gets[p]
			order[p] = p
		}
		lacks := func(p int) float64 { return shares[p]/sum*float64(to) - float64(have[p]) }
		slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(lacks(b), lacks(a)) })
		for _, p := range order[:left] { // there are fewer of them than parts
			gets[p]++
			have[p]++
		}
		for p, n := range gets {
			for _, s := range byClass[from : from+n] {
				s.part = p
			}
			from += n
		}
	}
	return all
}
