package nwt_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

func TestArraysInMemoryAreADataset(t *testing.T) {
	const n = 101
	pixels, labels, halves := make([]uint8, n*6), make([]int64, n), make([]nwt.F16, n)
	for i := range n {
		for k := range 6 {
			pixels[i*6+k] = uint8(i + k)
		}
		labels[i], halves[i] = int64(-i), nwt.F16(i)
	}
	ds, err := nwt.FromSlices(nwt.SliceOf("image", pixels, 2, 3), nwt.SliceOf("label", labels), nwt.SliceOf("half", halves))
	require.NoError(t, err)
	require.Equal(t, n, ds.Len())
	require.Equal(t, []nwt.Field{
		{Name: "image", Type: nwt.Uint8, Shape: []int{2, 3}}, {Name: "label", Type: nwt.Int64}, {Name: "half", Type: nwt.Float16},
	}, ds.Fields())

	concat, err := nwt.Concat(ds, ds) // its calls get samples that don't lie one after the other
	require.NoError(t, err)
	for _, ds := range []nwt.Dataset{ds, concat} {
		for _, workers := range []int{0, 3} {
			l := newLoader(t, ds, nwt.WithBatchSize(8), nwt.WithShuffle(1), nwt.WithWorkers(workers))
			seen := 0
			for b, err := range l.Epoch(t.Context(), 0) {
				require.NoError(t, err)
				for place, index := range b.Indices() {
					index %= n
					require.Equal(t, pixels[index*6:index*6+6], nwt.Values[uint8](b, 0)[place*6:place*6+6])
					require.Equal(t, labels[index], nwt.Values[int64](b, 1)[place])
					require.Equal(t, halves[index], nwt.Values[nwt.F16](b, 2)[place])
					seen++
				}
			}
			require.Equal(t, ds.Len(), seen)
		}
	}
	s, err := nwt.LoadSample(t.Context(), ds, 100)
	require.NoError(t, err)
	require.Equal(t, []int64{-100}, nwt.Values[int64](s, 1))
}

func TestArraysThatDoNotFitTogetherAreNamed(t *testing.T) {
	for _, c := range []struct {
		columns []nwt.Slice
		says    []string
	}{
		{nil, []string{"at least one field"}},
		{[]nwt.Slice{{}}, []string{"unknown type"}},
		{[]nwt.Slice{nwt.SliceOf("x", []int64{})}, []string{`columns[0] = x: must hold at least 1 sample`}},
		{[]nwt.Slice{nwt.SliceOf("x", make([]int64, 6), 4)}, []string{`columns[0] = x: has 6 values: must be a multiple of 4`}},
		{[]nwt.Slice{nwt.SliceOf("x", make([]int64, 6), 0)}, []string{"must be at least 1"}},
		{
			[]nwt.Slice{nwt.SliceOf("x", make([]int64, 6), 2), nwt.SliceOf("y", make([]uint8, 4)), nwt.SliceOf("x", make([]uint8, 2))},
			[]string{`columns[1] = y: holds 4 samples: must hold 3, as x`, `columns[2] = x: holds`, "column 0 has this name too"},
		},
		{ // each column that can't be used, whatever is wrong with it
			[]nwt.Slice{nwt.SliceOf("x", make([]int64, 6), 2), {}, nwt.SliceOf("y", make([]uint8, 7), 3), nwt.SliceOf("z", make([]uint8, 3), 0), nwt.SliceOf("x", make([]uint8, 4))},
			[]string{`Dataset.Fields[1] = "": unknown type`, `columns[2] = y: has 7 values: must be a multiple of 3`, `Dataset.Fields[3] = "z": dimension 0`,
				`columns[4] = x: holds 4 samples: must hold 3, as x`, "columns[4] = x: column 0 has this name too"},
		},
		{ // the first column that can be used says how many
			[]nwt.Slice{nwt.SliceOf("x", make([]int64, 6), 0), nwt.SliceOf("y", make([]uint8, 7)), nwt.SliceOf("z", make([]uint8, 3))},
			[]string{`Dataset.Fields[0] = "x": dimension 0`, `columns[2] = z: holds 3 samples: must hold 7, as y`},
		},
	} {
		_, err := nwt.FromSlices(c.columns...)
		var oe *nwt.OptionError
		require.ErrorAs(t, err, &oe)
		for _, oe := range optionErrors(err) {
			require.Contains(t, oe.Option, "FromSlices")
		}
		for _, s := range c.says {
			require.ErrorContains(t, err, s)
		}
	}
}

// BenchmarkFromSlices compares an array in memory with a Load of one's own that
// copies the same, 3 kB or 4 bytes a sample.
func BenchmarkFromSlices(b *testing.B) {
	for _, size := range []int{4, 3072} {
		const n = 50_000
		images := make([]uint8, n*size)
		ds, err := nwt.FromSlices(nwt.SliceOf("image", images, size))
		if err != nil {
			b.Fatal(err)
		}
		for name, ds := range map[string]nwt.Dataset{"load=batch": ds, "load=single": nwt.NewDataset(n, ds.Fields(), ds.Load)} {
			for _, workers := range []int{0, 2} {
				b.Run(fmt.Sprintf("bytes=%d/workers=%d/%s", size, workers, name), func(b *testing.B) {
					benchBatches(b, ds, nwt.WithBatchSize(128), nwt.WithWorkers(workers), nwt.WithShuffle(1))
				})
			}
		}
	}
}
