package nwt_test

import (
	"context"
	"iter"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

// worded is n samples with a ragged field, a random number and an index, named by
// what.
func worded(n int, what string) nwt.Dataset {
	fields := []nwt.Field{
		{Name: what + " index", Type: nwt.Int64},
		{Name: what + " words", Type: nwt.Uint16, Shape: []int{9}, Ragged: true},
		{Name: what + " random", Type: nwt.Uint32},
	}
	return nwt.NewDataset(n, fields, func(_ context.Context, i int, dst *nwt.Sample) error {
		nwt.Values[int64](dst, 0)[0] = int64(i)
		dst.SetLen(1, i%10)
		for k := range i % 10 {
			nwt.Values[uint16](dst, 1)[k] = uint16(i)
		}
		nwt.Values[uint32](dst, 2)[0] = dst.Rand().Uint32()
		return nil
	})
}

// inBatches loads a dataset with LoadBatch.
type inBatches struct{ nwt.Dataset }

func (d inBatches) LoadBatch(ctx context.Context, indices []int, dst []*nwt.Sample) error {
	for i, index := range indices {
		if err := d.Load(ctx, index, dst[i]); err != nil {
			return err
		}
		indices[i] = -1 // its own
	}
	nwt.ValuesOf[int64](dst, 0)[0] += 0
	return nil
}

func TestAZipHasTheFieldsOfItsPartsSideBySide(t *testing.T) {
	const n = 103
	copied := func(ds nwt.Dataset) nwt.Dataset {
		return nwt.Map(ds, ds.Fields(), func(_ context.Context, src, dst *nwt.Sample) error {
			dst.SetLen(1, src.Len(1))
			for f := range ds.Fields() {
				copy(dst.Bytes(f), src.Bytes(f))
			}
			return nil
		})
	}
	for name, parts := range map[string][2]nwt.Dataset{
		"plain":   {worded(n, "left"), worded(n, "right")},
		"batched": {inBatches{worded(n, "left")}, worded(n, "right")},
		"both":    {inBatches{worded(n, "left")}, inBatches{worded(n, "right")}},
		"mapped":  {copied(worded(n, "left")), copied(inBatches{worded(n, "right")})},
		"cached":  {nwt.Cached(worded(n, "left"), 1<<20), worded(n, "right")},
	} {
		t.Run(name, func(t *testing.T) {
			zip, err := nwt.Zip(parts[0], parts[1])
			require.NoError(t, err)
			require.Equal(t, n, zip.Len())
			require.Len(t, zip.Fields(), 6)
			require.Equal(t, "right index", zip.Fields()[3].Name)
			twice, err := nwt.Concat(zip, zip)
			require.NoError(t, err)
			for _, ds := range []nwt.Dataset{zip, twice} {
				for _, workers := range []int{0, 3} {
					l := newLoader(t, ds, nwt.WithShuffle(1), nwt.WithWorkers(workers), nwt.WithBatchSize(8))
					for b, err := range l.Epoch(t.Context(), 0) {
						require.NoError(t, err)
						for place, index := range b.Indices() {
							index %= n
							for _, side := range []int{0, 3} {
								require.EqualValues(t, index, nwt.Values[int64](b, side)[place])
								require.EqualValues(t, index%10, b.Lens(side + 1)[place])
								for k, word := range nwt.Values[uint16](b, side+1)[9*place : 9*place+9] {
									want := 0
									if k < index%10 {
										want = index
									}
									require.EqualValues(t, want, word)
								}
							}
							if name != "cached" {
								require.NotEqual(t, nwt.Values[uint32](b, 2)[place], nwt.Values[uint32](b, 5)[place], "the right goes on where the left stopped")
							}
						}
					}
				}
			}
		})
	}
}

func TestAZipResumesOnOtherRanks(t *testing.T) {
	other := worded(100, "other")
	zip, err := nwt.Zip(drawn(100), other)
	require.NoError(t, err)
	resumesAnywhere(t, zip, nwt.WithShuffle(7))
}

func TestAFaultInAZipNamesTheSample(t *testing.T) {
	bad := nwt.NewDataset(10, scalar, func(_ context.Context, i int, _ *nwt.Sample) error {
		if i == 4 {
			return errBad
		}
		return nil
	})
	zip, err := nwt.Zip(worded(10, "left"), bad)
	require.NoError(t, err)
	_, err = epoch(t.Context(), newLoader(t, zip), 0)
	var le *nwt.LoadError
	require.ErrorAs(t, err, &le)
	require.Equal(t, 4, le.Index)
	require.ErrorIs(t, err, errBad)
}

func TestWhatCanNotBeZippedIsNamed(t *testing.T) {
	for _, c := range []struct {
		ds   []nwt.Dataset
		says []string
	}{
		{nil, []string{"needs at least one dataset"}},
		{[]nwt.Dataset{worded(5, "a"), worded(4, "b")}, []string{"Zip: dataset 1: has 4 samples: must have 5, as dataset 0"}},
		{[]nwt.Dataset{worded(5, "a"), worded(5, "a")}, []string{`Zip: a words: a field of dataset 1 must not have the name of a field of dataset 0`}},
		{[]nwt.Dataset{nil, worded(5, "a"), nwt.Streamed(&shelves{lengths: []int{1}})}, []string{"Zip: dataset 0: Dataset: must not be nil", "Zip: dataset 2: "}},
	} {
		_, err := nwt.Zip(c.ds...)
		var oe *nwt.OptionError
		require.ErrorAs(t, err, &oe)
		for _, s := range c.says {
			require.ErrorContains(t, err, s)
		}
	}
}

func TestAZipAllocatesNothingPerBatch(t *testing.T) {
	zip, err := nwt.Zip(worded(1<<16, "left"), worded(1<<16, "right"))
	require.NoError(t, err)
	next, stop := iter.Pull2(newLoader(t, zip, nwt.WithWorkers(0)).Epochs(t.Context(), 0, 9))
	defer stop()
	next()
	require.Zero(t, testing.AllocsPerRun(100, func() { next() }))
}
