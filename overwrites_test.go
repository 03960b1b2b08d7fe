package nwt_test

import (
	"context"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

const classes = 10

var oneHotFields = []nwt.Field{{Name: "class", Type: nwt.Float32, Shape: []int{classes}}, {Name: "seen", Type: nwt.Uint8, Shape: []int{9}, Ragged: true}}

// markOneHot writes one element of each field, and sets a length that leaves the other's
// neighbours inside it.
func markOneHot(i int, dst *nwt.Sample) {
	nwt.Values[float32](dst, 0)[i%classes] = 1
	dst.SetLen(1, i%9+1)
	dst.Bytes(1)[i%9/2] = 1
}

// oneHots is a dataset that sets an element and leaves all others as they are.
func oneHots(n int) nwt.Dataset {
	return nwt.NewDataset(n, oneHotFields, func(_ context.Context, i int, dst *nwt.Sample) error {
		markOneHot(i, dst)
		return nil
	})
}

// requireOneHots checks that each sample has one element set in each field, however often its
// slot was used.
func requireOneHots(t *testing.T, ds nwt.Dataset, opts ...nwt.Option) {
	t.Helper()
	l := newLoader(t, ds, append([]nwt.Option{nwt.WithBatchSize(4), nwt.WithWorkers(2), nwt.WithShuffle(1), silent}, opts...)...)
	for b, err := range l.Epochs(t.Context(), 0, 4) {
		require.NoError(t, err)
		for f := range oneHotFields {
			size := b.Shape(f)[1]
			for k := range b.Len() {
				set := 0
				for j := range size {
					if f == 0 && nwt.Values[float32](b, 0)[k*size+j] != 0 || f == 1 && b.Bytes(1)[k*size+j] != 0 {
						set++
					}
				}
				require.Equal(t, 1, set, "field %d of sample %d of batch %d of epoch %d", f, k, b.Index(), b.Epoch())
			}
		}
	}
}

// shardsOfOneHots is a stream of oneHots(50).
type shardsOfOneHots struct{ *shelves }

func (shardsOfOneHots) Fields() []nwt.Field { return oneHotFields }
func (shardsOfOneHots) Load(_ context.Context, r *nwt.Record, dst *nwt.Sample) error {
	markOneHot(int(r.Data[0]), dst)
	return nil
}

func TestWhatLoadLeavesUnwrittenIsZero(t *testing.T) {
	ds := oneHots(50)
	copied := nwt.Map(ds, oneHotFields, func(_ context.Context, src, dst *nwt.Sample) error {
		copy(dst.Bytes(0), src.Bytes(0))
		copy(dst.Bytes(1), src.Bytes(1))
		dst.SetLen(1, src.Len(1))
		return nil
	})
	whole, err := nwt.Precompute(t.Context(), ds, filepath.Join(t.TempDir(), "file"), "1", silent)
	require.NoError(t, err)
	for name, ds := range map[string]nwt.Dataset{
		"NewDataset":                    ds,
		"LoadBatch":                     batchwise{ds},
		"Map":                           copied,
		"Map with LoadBatch":            nwt.Map(batchwise{ds}, oneHotFields, func(_ context.Context, src, dst *nwt.Sample) error { markOneHot(src.Index(), dst); return nil }),
		"Subset":                        must(nwt.Subset(ds, []int{0, 11, 22, 33, 44, 5, 16, 27, 38, 49})),
		"Concat":                        must(nwt.Concat(ds, nwt.Overwrites(copied))),
		"Concat with LoadBatch":         must(nwt.Concat(batchwise{ds}, whole, batchwise{copied})),
		"Cached":                        nwt.Cached(ds, 1<<20),
		"Cached, with room for a few":   nwt.Cached(ds, 1000),
		"Cached Map":                    nwt.Cached(copied, 1<<20),
		"Precompute":                    whole,
		"Precompute embedded":           replaced{whole},
		"Sized":                         nwt.Sized(ds, func(i int, sizes []int) { sizes[0] = i%9 + 1 }),
		"Overwrites of what overwrites": nwt.Overwrites(whole),
	} {
		t.Run(name, func(t *testing.T) {
			requireOneHots(t, ds)
			requireOneHots(t, ds, nwt.WithWorkers(0), nwt.WithBatchSize(7))
		})
	}
}

// replaced has a Load of its own in place of the embedded dataset's.
type replaced struct{ *nwt.Precomputed }

func (replaced) Load(_ context.Context, i int, dst *nwt.Sample) error {
	markOneHot(i, dst)
	return nil
}

func TestWhatAStreamsLoadLeavesUnwrittenIsZero(t *testing.T) {
	requireOneHots(t, nwt.Streamed(shardsOfOneHots{newShelves(20, 30)}))
}

// errFlaky is an error that calls itself temporary.
type errFlaky struct{ error }

func (errFlaky) Temporary() bool { return true }

// A call that fails has written something before. What comes after it is clean all the same.
func TestWhatAFailedCallHasWrittenIsCleared(t *testing.T) {
	failing := func(fail error) nwt.Dataset {
		var calls [50]atomic.Int64 // of each sample
		return nwt.NewDataset(50, oneHotFields, func(_ context.Context, i int, dst *nwt.Sample) error {
			if calls[i].Add(1)%3 != 0 {
				nwt.Values[float32](dst, 0)[(i+1)%classes] = 1
				nwt.Values[float32](dst, 0)[(i+2)%classes] = 1
				dst.SetLen(1, 9)
				copy(dst.Bytes(1), "all of it")
				return fail
			}
			markOneHot(i, dst)
			return nil
		})
	}
	t.Run("and is retried", func(t *testing.T) {
		requireOneHots(t, failing(errFlaky{errTorn}), nwt.WithRetry(5, time.Nanosecond))
	})
	t.Run("by Load after LoadBatch", func(t *testing.T) {
		requireOneHots(t, batchwise{failing(errTorn)}, nwt.WithErrorBudget(50))
	})
	t.Run("and its sample is bad", func(t *testing.T) {
		requireOneHots(t, failing(errTorn), nwt.WithErrorBudget(50))
	})
}

// A call that hangs writes on when it is given up; so does one of LoadBatch.
func TestWhatIsLoadedBesideACallThatWasGivenUpIsClean(t *testing.T) {
	for _, batches := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			ds := nwt.NewDataset(50, oneHotFields, func(ctx context.Context, i int, dst *nwt.Sample) error {
				if i%10 == 3 {
					for k := range classes {
						nwt.Values[float32](dst, 0)[k] = 1
					}
					<-ctx.Done()
				}
				markOneHot(i, dst)
				return nil
			})
			if batches {
				ds = batchwise{ds}
			}
			requireOneHots(t, ds, nwt.WithErrorBudget(50), nwt.WithTimeout(time.Second))
		})
	}
}

// unclean counts the samples whose place isn't zero when their Load begins.
func unclean(t *testing.T, of func(nwt.Dataset) nwt.Dataset) int64 {
	t.Helper()
	var found atomic.Int64
	ds := of(nwt.NewDataset(50, oneHotFields[:1], func(_ context.Context, _ int, dst *nwt.Sample) error {
		for _, x := range nwt.Values[float32](dst, 0) {
			if x != 0 {
				found.Add(1)
				break
			}
		}
		nwt.Values[float32](dst, 0)[0] = 1
		return nil
	}))
	for _, err := range newLoader(t, ds, nwt.WithBatchSize(5), nwt.WithWorkers(1)).Epochs(t.Context(), 0, 20) {
		require.NoError(t, err)
	}
	return found.Load()
}

func TestOnlyADatasetThatPromisesToWriteEverythingIsNotCleared(t *testing.T) {
	plain := func(ds nwt.Dataset) nwt.Dataset { return ds }
	over := func(t *testing.T, ds nwt.Dataset) map[string]nwt.Dataset {
		all := made(t, ds)
		delete(all, "Cached")
		all["Sized"] = nwt.Sized(ds, func(int, []int) {})
		return all
	}
	require.Zero(t, unclean(t, plain))
	require.Positive(t, unclean(t, nwt.Overwrites))
	for name := range over(t, oneHots(50)) {
		t.Run(name, func(t *testing.T) {
			require.Positive(t, unclean(t, func(ds nwt.Dataset) nwt.Dataset { return over(t, nwt.Overwrites(ds))[name] }))
			require.Positive(t, unclean(t, func(ds nwt.Dataset) nwt.Dataset { return over(t, nwt.Overwrites(batchwise{ds}))[name] }))
			if name != "Overwrites" && name != "Overwrites of Subset" {
				require.Zero(t, unclean(t, func(ds nwt.Dataset) nwt.Dataset { return over(t, ds)[name] }))
			}
		})
	}
	require.Zero(t, unclean(t, func(ds nwt.Dataset) nwt.Dataset {
		return must(nwt.Concat(nwt.Overwrites(ds), ds))
	}), "a Concat of which one part may leave something out")
}

func TestOverwritesOfWhatCanNotBeUsedIsTheSameError(t *testing.T) {
	for name, ds := range map[string]nwt.Dataset{"nil": nil, "Map": nwt.Map(oneHots(1), nil, nil), "load": nwt.NewDataset(1, oneHotFields, nil), "length": oneHots(0)} {
		_, want := nwt.NewLoader(ds)
		_, err := nwt.NewLoader(nwt.Overwrites(ds))
		require.Error(t, err, name)
		require.Equal(t, want.Error(), err.Error(), name)
	}
}
