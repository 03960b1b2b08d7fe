package nwt_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

var errRotten = errors.New("rotten")

// telling is pages of which LoadBatch names those that bad tells, and loads the
// others; first it sorts what it was given, from the last on.
func telling(n int, bad func(i int) error) (ds *pages, calls, alone *atomic.Int32) {
	ds, calls, alone = &pages{n: n}, new(atomic.Int32), new(atomic.Int32)
	ds.load = func(_ context.Context, i int, _ *nwt.Sample) error { alone.Add(1); return bad(i) }
	ds.loadBatch = func(_ context.Context, indices []int, dst []*nwt.Sample) error {
		calls.Add(1)
		slices.Reverse(indices)
		slices.Reverse(dst)
		told := nwt.SampleErrors{}
		for k, i := range indices {
			if err := bad(i); err != nil {
				told[dst[k]] = err
				nwt.Values[int64](dst[k], 0)[0] = -1 // and no SetLen
			} else {
				writePage(i, dst[k])
			}
		}
		return told
	}
	return ds, calls, alone
}

// told is a BatchDataset of pages that load themselves.
type told struct{ *pages }

func (d told) LoadBatch(ctx context.Context, indices []int, dst []*nwt.Sample) error {
	return d.loadBatch(ctx, indices, dst)
}

func rottenAt(bad ...int) func(int) error {
	return func(i int) error {
		if slices.Contains(bad, i) {
			return errRotten
		}
		return nil
	}
}

func TestALoadBatchThatTellsItsBadSamplesIsCalledOnce(t *testing.T) {
	bad := []int{0, 17, 1023, 1717, 4095}
	ds, calls, alone := telling(4096, rottenAt(bad...))
	l := newLoader(t, told{ds}, nwt.WithBatchSize(1024), nwt.WithWorkers(0), nwt.WithErrorBudget(5), quietLog)
	require.Equal(t, indicesUpTo(4096, bad...), requirePages(t, l, 0))
	require.EqualValues(t, 4, calls.Load())
	require.Zero(t, alone.Load())
	var got []int
	for _, e := range l.BadSamples() {
		got = append(got, e.Index)
		require.Equal(t, e.Index, e.Position)
		require.ErrorIs(t, e, errRotten)
	}
	require.Equal(t, bad, got)
}

// Whatever a dataset is made of, the samples that its parts call bad are left out, and
// no others.
func TestBadSamplesThatAPartTellsAreThoseOfTheWhole(t *testing.T) {
	part := func(n int, bad ...int) nwt.Dataset {
		ds, _, _ := telling(n, rottenAt(bad...))
		return told{ds}
	}
	copied := func(_ context.Context, src, dst *nwt.Sample) error {
		nwt.Values[int64](dst, 0)[0] = nwt.Values[int64](src, 0)[0]
		dst.SetLen(1, src.Len(1))
		copy(nwt.Values[int16](dst, 1), nwt.Values[int16](src, 1))
		if nwt.Values[int64](src, 0)[0] == 9 {
			return errRotten
		}
		return nil
	}
	must := func(ds nwt.Dataset, err error) nwt.Dataset {
		require.NoError(t, err)
		return ds
	}
	fields := (&pages{}).Fields()
	plain := nwt.NewDataset(20, fields, func(_ context.Context, i int, dst *nwt.Sample) error {
		writePage(i, dst)
		return rottenAt(4)(i)
	})
	split := func(ds nwt.Dataset) nwt.Dataset {
		parts, err := nwt.Split(ds, 3, 0.5, 0.5)
		require.NoError(t, err)
		return must(nwt.Concat(parts...))
	}
	for name, c := range map[string]struct {
		ds   nwt.Dataset
		want map[int64]int // how often each sample is delivered, by its value
	}{
		"alone":            {part(20, 3, 7), times(20, 1, 3, 7)},
		"Subset":           {must(nwt.Subset(part(20, 3, 7), []int{7, 1, 3, 2, 1})), map[int64]int{1: 2, 2: 1}},
		"Map":              {nwt.Map(part(20, 3, 7), fields, copied), times(20, 1, 3, 7, 9)},
		"Map of Map":       {nwt.Map(nwt.Map(part(20, 3, 7), fields, copied), fields, copied), times(20, 1, 3, 7, 9)},
		"Concat":           {must(nwt.Concat(part(20, 3, 7), plain, part(20, 5))), added(times(20, 1, 3, 7), times(20, 1, 4), times(20, 1, 5))},
		"Concat of Map":    {must(nwt.Concat(part(20, 3, 7), nwt.Map(part(20, 5), fields, copied))), added(times(20, 1, 3, 7), times(20, 1, 5, 9))},
		"Split and Concat": {split(part(20, 3, 7)), times(20, 1, 3, 7)},
		"Map of a Concat":  {nwt.Map(split(part(20, 3, 7)), fields, copied), times(20, 1, 3, 7, 9)},
	} {
		t.Run(name, func(t *testing.T) {
			for _, workers := range []int{0, 3} {
				l := newLoader(t, c.ds, nwt.WithBatchSize(16), nwt.WithWorkers(workers), nwt.WithShuffle(4), nwt.WithErrorBudget(20), quietLog)
				got := map[int64]int{}
				for b, err := range l.Epoch(t.Context(), 0) {
					require.NoError(t, err)
					for k, v := range nwt.Values[int64](b, 0) {
						got[v]++
						require.EqualValues(t, v%4, b.Lens(1)[k])
					}
				}
				require.Equal(t, c.want, got)
			}
		})
	}
}

func times(n, each int, but ...int) map[int64]int {
	m := map[int64]int{}
	for i := range n {
		if !slices.Contains(but, i) {
			m[int64(i)] = each
		}
	}
	return m
}

func added(all ...map[int64]int) map[int64]int {
	sum := map[int64]int{}
	for _, m := range all {
		for k, v := range m {
			sum[k] += v
		}
	}
	return sum
}

func TestBadSamplesOfAZipAreThoseThatAnyPartTells(t *testing.T) {
	tells := func(name string, bad ...int) nwt.Dataset {
		var s nwt.Schema
		x := nwt.AddField[int64](&s, name)
		is := rottenAt(bad...)
		return inOneCall{nwt.NewDataset(20, s.Fields(), nil), func(indices []int, dst []*nwt.Sample) error {
			slices.Reverse(indices)
			slices.Reverse(dst)
			told := nwt.SampleErrors{}
			for k, i := range indices {
				x.Of(dst[k])[0] = int64(i)
				if err := is(i); err != nil {
					told[dst[k]] = err
				}
			}
			return told
		}}
	}
	var s nwt.Schema
	c := nwt.AddField[int64](&s, "c")
	plain := nwt.NewDataset(20, s.Fields(), func(_ context.Context, i int, dst *nwt.Sample) error {
		c.Of(dst)[0] = int64(i)
		return rottenAt(11)(i)
	})
	z, err := nwt.Zip(tells("a", 3), tells("b", 5), plain)
	require.NoError(t, err)
	l := newLoader(t, z, nwt.WithBatchSize(8), nwt.WithWorkers(2), nwt.WithErrorBudget(3), quietLog)
	var got []int64
	for b, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
		got = append(got, nwt.Values[int64](b, 0)...)
		require.Equal(t, nwt.Values[int64](b, 0), nwt.Values[int64](b, 1))
		require.Equal(t, nwt.Values[int64](b, 0), nwt.Values[int64](b, 2))
	}
	require.Equal(t, upTo(20, 3, 5, 11), got)
}

type inOneCall struct {
	nwt.Dataset
	loadBatch func(indices []int, dst []*nwt.Sample) error
}

func (d inOneCall) LoadBatch(_ context.Context, indices []int, dst []*nwt.Sample) error {
	return d.loadBatch(indices, dst)
}

func TestSampleErrorsThatSayNothingOfTheBatchCountAsAFailedCall(t *testing.T) {
	var other *nwt.Sample
	for name, told := range map[string]func(dst []*nwt.Sample) nwt.SampleErrors{
		"temporary":      func(dst []*nwt.Sample) nwt.SampleErrors { return nwt.SampleErrors{dst[0]: briefly{}} },
		"no error":       func(dst []*nwt.Sample) nwt.SampleErrors { return nwt.SampleErrors{dst[0]: nil} },
		"no sample":      func([]*nwt.Sample) nwt.SampleErrors { return nwt.SampleErrors{nil: errRotten} },
		"another sample": func([]*nwt.Sample) nwt.SampleErrors { return nwt.SampleErrors{other: errRotten} },
	} {
		t.Run(name, func(t *testing.T) {
			var err error
			other, err = nwt.LoadSample(t.Context(), &pages{n: 1}, 0)
			require.NoError(t, err)
			var alone atomic.Int32
			ds := &pages{n: 8, load: func(context.Context, int, *nwt.Sample) error { alone.Add(1); return nil }}
			ds.loadBatch = func(_ context.Context, _ []int, dst []*nwt.Sample) error { return told(dst) }
			l := newLoader(t, ds, nwt.WithBatchSize(8), nwt.WithWorkers(0), quietLog)
			require.Equal(t, indicesUpTo(8), requirePages(t, l, 0))
			require.EqualValues(t, 8, alone.Load())
		})
	}
}

func ExampleSampleErrors() {
	var schema nwt.Schema
	x := nwt.AddField[int64](&schema, "x")
	ds := inOneCall{nwt.NewDataset(6, schema.Fields(), nil), func(indices []int, dst []*nwt.Sample) error {
		bad := nwt.SampleErrors{} // of a query, say, that has answered for all but one
		for k, i := range indices {
			if i == 4 {
				bad[dst[k]] = errors.New("no such row")
				continue
			}
			x.Of(dst[k])[0] = int64(10 * i)
		}
		return bad
	}}
	loader, err := nwt.NewLoader(ds, nwt.WithBatchSize(6), nwt.WithErrorBudget(1), quietLog)
	if err != nil {
		panic(err)
	}
	defer loader.Close()
	for batch, err := range loader.Epoch(context.Background(), 0) {
		fmt.Println(x.Of(batch), err)
	}
	fmt.Println(loader.BadSamples()[0].Index, loader.BadSamples()[0].Err)
	// Output:
	// [0 10 20 30 50] <nil>
	// 4 no such row
}

func TestALoadBatchThatSucceedsAllocatesNothing(t *testing.T) {
	requireNoAllocations(t, emptyBatches{emptyDataset(1 << 16)}, nwt.WithBatchSize(64))
}

func TestJoinedSampleErrorsLoseNone(t *testing.T) {
	load := func(indices []int, dst []*nwt.Sample) error {
		bad := nwt.SampleErrors{}
		for k, i := range indices {
			if i == 1 || i == 6 {
				bad[dst[k]] = errBad
				continue
			}
			nwt.Values[int64](dst[k], 0)[0] = int64(i)
		}
		if len(bad) == 0 {
			return nil
		}
		return bad
	}
	for name, loadBatch := range map[string]func(indices []int, dst []*nwt.Sample) error{
		"two halves": func(indices []int, dst []*nwt.Sample) error {
			h := len(indices) / 2
			return errors.Join(load(indices[:h], dst[:h]), load(indices[h:], dst[h:]))
		},
		"the call itself failed": func(indices []int, dst []*nwt.Sample) error {
			if k := slices.Index(indices, 6); k > 0 {
				return errors.Join(load(indices[:k], dst[:k]), errors.New("the connection is gone"))
			}
			return load(indices, dst)
		},
	} {
		t.Run(name, func(t *testing.T) {
			one := numbered(8, func(_ context.Context, i int, dst *nwt.Sample) error {
				return load([]int{i}, []*nwt.Sample{dst})
			})
			l := newLoader(t, inOneCall{one, loadBatch}, nwt.WithBatchSize(8), nwt.WithErrorBudget(8), quietLog)
			for b, err := range l.Epoch(t.Context(), 0) {
				require.NoError(t, err)
				require.Equal(t, []int{0, 2, 3, 4, 5, 7}, b.Indices())
				require.Equal(t, []int64{0, 2, 3, 4, 5, 7}, nwt.Values[int64](b, 0))
			}
		})
	}
}
