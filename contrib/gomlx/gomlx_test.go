package gomlx

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/dtypes/bfloat16"
	"github.com/gomlx/compute/dtypes/float16"
	"github.com/gomlx/compute/gobackend"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/ml/train"
	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

// backend is the one that GOMLX_BACKEND names, or GoMLX's own in Go. For XLA the
// tests need the tag xla.
var backend = sync.OnceValue(func() compute.Backend {
	if os.Getenv(compute.ConfigEnvVar) != "" {
		return compute.MustNew()
	}
	return gobackend.GetBackend()
})

// numbers returns a dataset whose sample is its own number, as the input x and, minus
// that, the label y.
func numbers(n int) nwt.Dataset {
	fields := []nwt.Field{
		{Name: "x", Type: nwt.Float32, Shape: []int{2}},
		{Name: "y", Type: nwt.Int64},
	}
	return nwt.NewDataset(n, fields, func(_ context.Context, i int, dst *nwt.Sample) error {
		x := nwt.Values[float32](dst, 0)
		x[0], x[1] = float32(i), float32(i)+0.5
		nwt.Values[int64](dst, 1)[0] = int64(-i)
		return nil
	})
}

// feed returns a Dataset over ds, whose field y is the label.
func feed(t *testing.T, ds nwt.Dataset, opts ...nwt.Option) (*Dataset, *nwt.Loader) {
	t.Helper()
	a, err := New(Config{Backend: backend(), Labels: []string{"y"}})
	require.NoError(t, err)
	l, err := nwt.NewLoader(ds, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return a.Dataset(t.Context(), "numbers", l), l
}

// labels returns the labels of an iteration, one slice for each batch, at most most.
func labels(t *testing.T, d train.Dataset, most int) [][]int64 {
	t.Helper()
	var all [][]int64
	for batch, err := range d.Iter() {
		require.NoError(t, err)
		all = append(all, tensors.MustCopyFlatData[int64](batch.Labels[0]))
		require.NoError(t, batch.Finalize())
		if len(all) == most {
			break
		}
	}
	return all
}

const whole = -1

// end returns the error that ends an iteration, and how many batches came before it.
func end(t *testing.T, d train.Dataset) (batches int, last error) {
	t.Helper()
	for batch, err := range d.Iter() {
		require.NoError(t, last, "an error comes last")
		if last = err; err == nil {
			batches++
			require.NoError(t, batch.Finalize())
		}
	}
	return batches, last
}

func TestEveryTypeArrivesAsItIs(t *testing.T) {
	fields := []nwt.Field{
		{Name: "bool", Type: nwt.Bool},
		{Name: "uint8", Type: nwt.Uint8, Shape: []int{2}},
		{Name: "int8", Type: nwt.Int8},
		{Name: "int16", Type: nwt.Int16},
		{Name: "int32", Type: nwt.Int32, Shape: []int{1, 2}},
		{Name: "int64", Type: nwt.Int64},
		{Name: "float16", Type: nwt.Float16},
		{Name: "bfloat16", Type: nwt.BFloat16},
		{Name: "float32", Type: nwt.Float32},
		{Name: "float64", Type: nwt.Float64},
		{Name: "uint16", Type: nwt.Uint16},
		{Name: "uint32", Type: nwt.Uint32},
	}
	ds := nwt.NewDataset(2, fields, func(_ context.Context, i int, dst *nwt.Sample) error {
		nwt.Values[bool](dst, 0)[0] = i == 1
		copy(nwt.Values[uint8](dst, 1), []uint8{uint8(i), 255})
		nwt.Values[int8](dst, 2)[0] = int8(-i)
		nwt.Values[int16](dst, 3)[0] = int16(-300 * i)
		copy(nwt.Values[int32](dst, 4), []int32{int32(i), -70000})
		nwt.Values[int64](dst, 5)[0] = int64(i) << 40
		nwt.Values[uint16](dst, 6)[0] = uint16(float16.FromFloat32(float32(i) + 0.5))
		nwt.Values[uint16](dst, 7)[0] = uint16(bfloat16.FromFloat32(float32(i) + 0.5))
		nwt.Values[float32](dst, 8)[0] = float32(i) + 0.25
		nwt.Values[float64](dst, 9)[0] = float64(i) + 0.125
		nwt.Values[uint16](dst, 10)[0] = 65535
		nwt.Values[uint32](dst, 11)[0] = 1 << 31
		return nil
	})
	a, err := New(Config{Backend: backend()})
	require.NoError(t, err)
	l, err := nwt.NewLoader(ds, nwt.WithBatchSize(2), nwt.WithWorkers(0))
	require.NoError(t, err)
	defer l.Close()
	for batch, err := range a.Dataset(t.Context(), "types", l).Iter() {
		require.NoError(t, err)
		require.Empty(t, batch.Labels)
		for i, want := range []any{
			[]bool{false, true},
			[][]uint8{{0, 255}, {1, 255}},
			[]int8{0, -1},
			[]int16{0, -300},
			[][][]int32{{{0, -70000}}, {{1, -70000}}},
			[]int64{0, 1 << 40},
			[]float16.Float16{float16.FromFloat32(0.5), float16.FromFloat32(1.5)},
			[]bfloat16.BFloat16{bfloat16.FromFloat32(0.5), bfloat16.FromFloat32(1.5)},
			[]float32{0.25, 1.25},
			[]float64{0.125, 1.125},
			[]uint16{65535, 65535},
			[]uint32{1 << 31, 1 << 31},
		} {
			require.Equal(t, want, batch.Inputs[i].Value(), fields[i].Name)
		}
		require.NoError(t, batch.Finalize())
	}
}

func TestFieldsAreInputsAndLabelsInTheirOrder(t *testing.T) {
	fields := []nwt.Field{
		{Name: "class", Type: nwt.Int64},
		{Name: "image", Type: nwt.Float32, Shape: []int{3, 4}},
		{Name: "weight", Type: nwt.Float32},
		{Name: "box", Type: nwt.Float32, Shape: []int{4}},
	}
	ds := nwt.NewDataset(5, fields, func(context.Context, int, *nwt.Sample) error { return nil })
	a, err := New(Config{Backend: backend(), Labels: []string{"box", "class"}})
	require.NoError(t, err)
	l, err := nwt.NewLoader(ds, nwt.WithBatchSize(5))
	require.NoError(t, err)
	defer l.Close()
	for batch, err := range a.Dataset(t.Context(), "fields", l).Iter() {
		require.NoError(t, err)
		require.Len(t, batch.Inputs, 2)
		require.NoError(t, batch.Inputs[0].Shape().Check(dtypes.Float32, 5, 3, 4))
		require.NoError(t, batch.Inputs[1].Shape().Check(dtypes.Float32, 5))
		require.Len(t, batch.Labels, 2)
		require.NoError(t, batch.Labels[0].Shape().Check(dtypes.Int64, 5, 1))
		require.NoError(t, batch.Labels[1].Shape().Check(dtypes.Float32, 5, 4))
	}
}

func TestARaggedFieldIsItsPaddedValuesAndTheirLengths(t *testing.T) {
	fields := []nwt.Field{
		{Name: "words", Type: nwt.Int32, Shape: []int{3}, RaggedDims: 1},
		{Name: "after", Type: nwt.Int32},
	}
	ds := nwt.NewDataset(4, fields, func(_ context.Context, i int, dst *nwt.Sample) error {
		dst.SetLen(0, i)
		for j := range i {
			nwt.Values[int32](dst, 0)[j] = int32(10*i + j)
		}
		nwt.Values[int32](dst, 1)[0] = 7
		return nil
	})
	a, err := New(Config{Backend: backend()})
	require.NoError(t, err)
	l, err := nwt.NewLoader(ds, nwt.WithBatchSize(4))
	require.NoError(t, err)
	defer l.Close()
	for batch, err := range a.Dataset(t.Context(), "words", l).Iter() {
		require.NoError(t, err)
		require.Equal(t, [][]int32{{0, 0, 0}, {10, 0, 0}, {20, 21, 0}, {30, 31, 32}}, batch.Inputs[0].Value())
		require.Equal(t, []int32{0, 1, 2, 3}, batch.Inputs[1].Value())
		require.Equal(t, []int32{7, 7, 7, 7}, batch.Inputs[2].Value())
	}
}

func TestARaggedFieldHasTheBatchsOwnShape(t *testing.T) {
	fields := []nwt.Field{{Name: "grid", Type: nwt.Int32, Shape: []int{9, 9}, RaggedDims: 2}}
	ds := nwt.Sized(nwt.NewDataset(2, fields, func(_ context.Context, i int, dst *nwt.Sample) error {
		dst.SetShape(0, 1, i+1)
		nwt.Values[int32](dst, 0)[i] = 7
		return nil
	}), func(i int, sizes []int) { sizes[0], sizes[1] = 1, i+1 })
	a, err := New(Config{Backend: backend()})
	require.NoError(t, err)
	l, err := nwt.NewLoader(ds, nwt.WithBatchSize(2))
	require.NoError(t, err)
	defer l.Close()
	for batch, err := range a.Dataset(t.Context(), "grids", l).Iter() {
		require.NoError(t, err)
		require.Equal(t, [][][]int32{{{7, 0}}, {{0, 7}}}, batch.Inputs[0].Value())
		require.Equal(t, []int32{1, 1}, batch.Inputs[1].Value())
		require.Equal(t, []int32{1, 2}, batch.Inputs[2].Value())
	}
}

func TestEveryIterationIsTheNextEpoch(t *testing.T) {
	ds := numbers(10)
	d, _ := feed(t, ds, nwt.WithBatchSize(4), nwt.WithShuffle(7))
	l, err := nwt.NewLoader(ds, nwt.WithBatchSize(4), nwt.WithShuffle(7))
	require.NoError(t, err)
	defer l.Close()
	epoch := func(n int) [][]int64 {
		var all [][]int64
		for b, err := range l.Epoch(t.Context(), n) {
			require.NoError(t, err)
			all = append(all, append([]int64(nil), nwt.Values[int64](b, 1)...))
		}
		return all
	}
	require.Equal(t, epoch(0), labels(t, d, whole))
	require.Equal(t, epoch(1)[:2], labels(t, d, 2), "left early")
	require.Equal(t, epoch(2), labels(t, d, whole))
	require.Equal(t, nwt.State{Epoch: 2, Samples: 10}, progress(d.State()))
}

// progress returns a state without its order.
func progress(s nwt.State) nwt.State {
	s.Order = 0
	return s
}

func TestAnInfiniteIterationGoesOnWithTheNextEpoch(t *testing.T) {
	d, _ := feed(t, numbers(10), nwt.WithBatchSize(4), nwt.WithShuffle(7))
	var finite [][]int64
	for range 3 {
		finite = append(finite, labels(t, d, whole)...)
	}
	again, _ := feed(t, numbers(10), nwt.WithBatchSize(4), nwt.WithShuffle(7))
	again.Infinite()
	require.Equal(t, finite[:4], labels(t, again, 4))
	require.Equal(t, finite[6:], labels(t, again, 3), "left within epoch 1, it goes on with 2")
}

func TestResumeGoesOnWhereTheStateWasTaken(t *testing.T) {
	opts := []nwt.Option{nwt.WithBatchSize(4), nwt.WithShuffle(7)}
	d, _ := feed(t, numbers(10), opts...)
	var all [][]int64
	for range 3 {
		all = append(all, labels(t, d, whole)...)
	}
	for _, c := range []struct {
		name     string
		batches  int
		infinite bool
		want     [][]int64
	}{
		{"the rest of an epoch", 1, false, all[1:3]},
		{"the rest of an epoch and what follows", 1, true, all[1:8]},
		{"from the end of an epoch", 3, false, all[3:6]},
		{"from the end of an epoch without end", 3, true, all[3:9]},
	} {
		t.Run(c.name, func(t *testing.T) {
			before, _ := feed(t, numbers(10), opts...)
			labels(t, before, c.batches)
			after, _ := feed(t, numbers(10), opts...)
			after.Resume(before.State())
			require.Equal(t, before.State(), after.State())
			most := whole
			if c.infinite {
				after.Infinite()
				most = len(c.want)
			}
			require.Equal(t, c.want, labels(t, after, most))
		})
	}
	t.Run("of a loader without order: it can't", func(t *testing.T) {
		d, _ := feed(t, numbers(10), append(opts, nwt.WithUnordered())...)
		labels(t, d, 1)
		d.Resume(d.State())
		_, err := end(t, d)
		require.ErrorContains(t, err, "WithUnordered")
	})
}

func TestTensorsBelongToWhoGetsThem(t *testing.T) {
	d, l := feed(t, numbers(1000), nwt.WithBatchSize(4), nwt.WithWorkers(2))
	var kept []train.Batch
	for batch, err := range d.Iter() {
		require.NoError(t, err)
		kept = append(kept, batch)
	}
	require.Len(t, kept, 250, "more than a loader lets be retained")
	require.Zero(t, l.Stats().Retained)
	require.NoError(t, l.Close())
	for i, batch := range kept {
		require.Equal(t, float32(4*i)+0.5, tensors.MustCopyFlatData[float32](batch.Inputs[0])[1])
		require.NoError(t, batch.Finalize())
		require.False(t, batch.Inputs[0].Ok())
	}
}

func TestErrorsReachWhoIterates(t *testing.T) {
	damaged := errors.New("damaged")
	ds := numbers(10)
	bad := nwt.NewDataset(10, ds.Fields(), func(ctx context.Context, i int, dst *nwt.Sample) error {
		if i == 6 {
			return damaged
		}
		return ds.Load(ctx, i, dst)
	})
	d, l := feed(t, bad, nwt.WithBatchSize(4))
	batches, last := end(t, d)
	require.Equal(t, 1, batches, "those before it come")
	require.ErrorIs(t, last, damaged)
	var where *nwt.LoadError
	require.ErrorAs(t, last, &where)
	require.Equal(t, 6, where.Index)

	for batch, err := range d.Iter() {
		require.NoError(t, err)
		require.NoError(t, batch.Finalize())
		_, err := end(t, d)
		require.ErrorIs(t, err, nwt.ErrBusy)
		break
	}

	require.NoError(t, l.Close())
	_, err := end(t, d)
	require.ErrorIs(t, err, nwt.ErrClosed)
}

func TestTheContextEndsAnIteration(t *testing.T) {
	a, err := New(Config{Backend: backend()})
	require.NoError(t, err)
	l, err := nwt.NewLoader(numbers(8), nwt.WithBatchSize(2))
	require.NoError(t, err)
	defer l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var last error
	for _, err := range a.Dataset(ctx, "numbers", l).Iter() {
		last = err
		cancel()
	}
	require.ErrorIs(t, last, context.Canceled)
}

func TestAnAdapterServesLoadersOfDifferentFields(t *testing.T) {
	a, err := New(Config{Backend: backend(), Labels: []string{"y"}})
	require.NoError(t, err)
	wide := numbers(4).Fields()
	wide[0].Shape = []int{3}
	for _, ds := range []nwt.Dataset{numbers(4), nwt.NewDataset(4, wide, func(context.Context, int, *nwt.Sample) error { return nil }), numbers(4)} {
		l, err := nwt.NewLoader(ds, nwt.WithBatchSize(4))
		require.NoError(t, err)
		for batch, err := range a.Dataset(t.Context(), "numbers", l).Iter() {
			require.NoError(t, err)
			require.Equal(t, append([]int{4}, ds.Fields()[0].Shape...), batch.Inputs[0].Shape().Dimensions)
			require.NoError(t, batch.Finalize())
		}
		require.NoError(t, l.Close())
	}
}

func TestWhatCanNotBeUsedIsNamed(t *testing.T) {
	_, err := New(Config{})
	require.ErrorContains(t, err, "Config.Backend: is nil")
	for _, c := range []struct {
		name   string
		labels []string
		want   []string
	}{
		{"labels that aren't there", []string{"z", "w"}, []string{`Config.Labels: z: must be one of the fields: "x", "y"`, `Config.Labels: w`}},
		{"labels alone", []string{"x", "y"}, []string{"must leave at least one field as an input"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, err := New(Config{Backend: backend(), Labels: c.labels})
			require.NoError(t, err)
			l, err := nwt.NewLoader(numbers(8), nwt.WithBatchSize(2))
			require.NoError(t, err)
			defer l.Close()
			batches, err := end(t, a.Dataset(t.Context(), "numbers", l))
			require.Zero(t, batches)
			for _, want := range c.want {
				require.ErrorContains(t, err, want)
			}
			var option *nwt.ArgumentError
			require.ErrorAs(t, err, &option)
		})
	}
}

func TestShortNames(t *testing.T) {
	for name, want := range map[string]string{"cifar10": "cif", "x": "x", "": "", "日本語です": "日本語"} {
		require.Equal(t, want, (&Dataset{name: name}).ShortName())
	}
}

func TestADeviceThatTheBackendLacksIsAnError(t *testing.T) {
	a, err := New(Config{Backend: backend(), Device: 99, Labels: []string{"y"}})
	require.NoError(t, err)
	l, err := nwt.NewLoader(numbers(10))
	require.NoError(t, err)
	defer l.Close()
	batches, err := end(t, a.Dataset(t.Context(), "numbers", l))
	require.Zero(t, batches)
	require.ErrorContains(t, err, `field 0 ("x")`)
	require.ErrorContains(t, err, "99")
}
