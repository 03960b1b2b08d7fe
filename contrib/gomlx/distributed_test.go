package gomlx

import (
	"context"
	"slices"
	"testing"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/distributed"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/ml/train"
	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

// sharded returns a sharding of samples over some axes of a mesh of 2 × 2 places, all on
// device 0: GoMLX's own backend has no other.
func sharded(t *testing.T, axes ...string) Sharding {
	t.Helper()
	mesh, err := distributed.NewDeviceMesh([]int{2, 2}, []string{"data", "model"})
	require.NoError(t, err)
	spec, err := distributed.BuildSpec(mesh).S(axes...).Done()
	require.NoError(t, err)
	return Sharding{Spec: spec, Devices: make([]compute.DeviceNum, 4)}
}

// distribute returns a DistributedDataset over ds, whose field y is the label.
func distribute(t *testing.T, ds nwt.Dataset, s Sharding, opts ...nwt.Option) *DistributedDataset {
	t.Helper()
	a, err := New(Config{Backend: backend(), Labels: []string{"y"}})
	require.NoError(t, err)
	l, err := nwt.NewLoader(ds, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	d, err := a.DistributedDataset(t.Context(), "numbers", l, s)
	require.NoError(t, err)
	return d
}

// shards returns the labels of an iteration's batches, place by place.
func shards(t *testing.T, d *DistributedDataset, most int) [][][]int64 {
	t.Helper()
	var all [][][]int64
	for batch, err := range d.DistributedIter() {
		require.NoError(t, err)
		var places [][]int64
		for _, shard := range batch.Labels[0].Shards() {
			places = append(places, tensors.MustCopyFlatData[int64](shard))
		}
		require.NoError(t, batch.Finalize())
		if all = append(all, places); len(all) == most {
			break
		}
	}
	return all
}

// words has a ragged input and a scalar label.
func words(n int) nwt.Dataset {
	var schema nwt.Schema
	x, y := nwt.AddRagged[float32](&schema, "x", 1, 5, 3), nwt.AddField[int64](&schema, "y")
	return nwt.NewDataset(n, schema.Fields(), func(_ context.Context, i int, dst *nwt.Sample) error {
		for j := range i % 6 * 3 {
			x.Of(dst)[j] = float32(100*i + j)
		}
		x.SetLen(dst, i%6)
		y.Of(dst)[0] = int64(-i)
		return nil
	})
}

func TestThePartsOfABatchAreTheBatch(t *testing.T) {
	opts := []nwt.Option{nwt.WithBatchSize(8), nwt.WithShuffle(3)}
	for _, axes := range [][]string{{"data"}, {"model"}, {"data", "model"}, {"model", "data"}} {
		whole, _ := feed(t, words(24), opts...)
		var want []train.Batch
		for batch, err := range whole.Iter() {
			require.NoError(t, err)
			want = append(want, batch)
		}
		got := 0
		for batch, err := range distribute(t, words(24), sharded(t, axes...), opts...).DistributedIter() {
			require.NoError(t, err)
			require.Len(t, batch.Inputs, 2, "values and lengths")
			for i, input := range append(batch.Inputs, batch.Labels...) {
				for _, shard := range input.Shards() {
					require.True(t, shard.IsOnDevice(0))
				}
				merged, err := input.Merge() // GoMLX's own idea of which place has which part
				require.NoError(t, err)
				require.Equal(t, append(want[got].Inputs, want[got].Labels...)[i].Value(), merged.Value(), axes)
			}
			require.NoError(t, batch.Finalize())
			got++
		}
		require.Equal(t, 3, got)
	}
}

func TestAPartIsWhatARankGets(t *testing.T) {
	d := distribute(t, numbers(32), sharded(t, "data", "model"), nwt.WithBatchSize(8), nwt.WithShuffle(3))
	parts := shards(t, d, whole)
	for rank := range 4 {
		of, _ := feed(t, numbers(32), nwt.WithBatchSize(2), nwt.WithShuffle(3), nwt.WithRank(rank, 4))
		for i, want := range labels(t, of, whole) {
			require.Equal(t, want, parts[i][rank], "rank %d, batch %d", rank, i)
		}
	}
}

func TestADistributedIterationGoesOnWhereItsStateWasTaken(t *testing.T) {
	opts := []nwt.Option{nwt.WithBatchSize(8), nwt.WithShuffle(3)}
	before := distribute(t, numbers(32), sharded(t, "data"), opts...)
	all := append(shards(t, before, whole), shards(t, before, whole)...)
	require.Equal(t, nwt.State{Epoch: 1, Samples: 32}, progress(before.State()))

	broken := distribute(t, numbers(32), sharded(t, "data"), opts...)
	require.Equal(t, all[:3], shards(t, broken, 3))
	after := distribute(t, numbers(32), sharded(t, "data"), opts...).Infinite()
	after.Resume(broken.State())
	require.Equal(t, all[3:7], shards(t, after, 4))

	one, _ := feed(t, numbers(32), opts...)
	one.Resume(broken.State())
	require.Equal(t, [][]int64{append(all[3][0], all[3][2]...)}, labels(t, one, whole), "one device")
}

func TestABatchThatHasNoEqualPartsIsAnError(t *testing.T) {
	d := distribute(t, numbers(10), sharded(t, "data", "model"), nwt.WithBatchSize(8))
	given := 0
	for _, err := range d.DistributedIter() {
		if given++; given == 2 {
			require.ErrorContains(t, err, "epoch 0, batch 1: 2 samples must be a multiple of 4")
			require.ErrorContains(t, err, "WithDropLast")
		}
	}
	require.Equal(t, 2, given)
	require.Len(t, shards(t, distribute(t, numbers(10), sharded(t, "data", "model"), nwt.WithBatchSize(8), nwt.WithDropLast()), whole), 1)
}

func TestGoMLXsRunEpochsSaysThatItWouldTrainOnOneDevice(t *testing.T) {
	_, err := train.NewLoop(trainer()).RunEpochs(distribute(t, quadrants(32), sharded(t, "data")), 1)
	require.ErrorContains(t, err, "RunSteps")
}

func TestAShardingThatCanNotBeUsedIsNamed(t *testing.T) {
	a, err := New(Config{Backend: backend()})
	require.NoError(t, err)
	mesh := sharded(t, "data").Spec.Mesh
	spec := func(axes ...distributed.AxisSpec) *distributed.ShardingSpec {
		return &distributed.ShardingSpec{Mesh: mesh, Axes: axes}
	}
	data := distributed.AxisSpec{"data"}
	for _, c := range []struct {
		name string
		Sharding
		want string
	}{
		{"no spec", Sharding{}, "Sharding.Spec"},
		{"no mesh", Sharding{Spec: &distributed.ShardingSpec{}}, "Sharding.Spec"},
		{"an axis that the mesh lacks", Sharding{Spec: spec(distributed.AxisSpec{"row"})}, `"row"`},
		{"nothing sharded", Sharding{Spec: spec()}, "first axis"},
		{"only copies", Sharding{Spec: spec(nil)}, "first axis"},
		{"another axis sharded", Sharding{Spec: spec(data, distributed.AxisSpec{"model"})}, "no other"},
		{"too few devices", Sharding{Spec: spec(data), Devices: []compute.DeviceNum{0}}, "must be 4, as many as the mesh has places"},
		{"devices that the backend lacks", Sharding{Spec: spec(data), Devices: []compute.DeviceNum{0, 0, 0, 99}}, "Sharding.Devices: [0 0 0 99]: must be 0 … "},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := a.DistributedDataset(t.Context(), "numbers", nil, c.Sharding)
			require.ErrorContains(t, err, c.want)
			var option *nwt.ArgumentError
			require.ErrorAs(t, err, &option)
		})
	}
}

// onFour returns a sharding over 2 × 2 devices of their own.
func onFour(t *testing.T, axes ...string) Sharding {
	t.Helper()
	if n := backend().NumDevices(); n < 4 {
		t.Skipf("%s has %d devices: this needs 4", backend().Description(), n)
	}
	s := sharded(t, axes...)
	s.Devices = nil
	return s
}

func TestTrainingOnSeveralDevicesIsTrainingOnOne(t *testing.T) {
	opts := []nwt.Option{nwt.WithBatchSize(32), nwt.WithShuffle(1), nwt.WithDropLast()}
	losses := func(of func(*testing.T) train.Dataset) (all []float64) {
		tr := trainer()
		loop := train.NewLoop(tr)
		loop.OnStep("loss", 0, func(_ *train.Loop, metrics []*tensors.Tensor) error {
			all = append(all, scalar(t, metrics[0]))
			return nil
		})
		_, err := loop.RunSteps(of(t), 36)
		require.NoError(t, err)
		metrics, err := tr.Eval(of(t))
		require.NoError(t, err)
		return append(all, scalar(t, metrics[1]))
	}
	for _, axes := range [][]string{{"data"}, {"model", "data"}} {
		s := onFour(t, axes...)
		want := losses(func(t *testing.T) train.Dataset {
			d, _ := feed(t, quadrants(36*32), opts...)
			return d
		})
		got := losses(func(t *testing.T) train.Dataset { return distribute(t, quadrants(36*32), s, opts...) })
		require.InDeltaSlice(t, want, got, 1e-4)
		require.Greater(t, slices.Max(got), 0.9, "accuracy, which comes last")
	}
}
