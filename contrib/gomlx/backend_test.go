package gomlx

import (
	"context"
	"math"
	"testing"

	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/ml/train"
	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

// What follows holds for every backend; .ci/xla runs it on XLA.

func TestTensorsKeepTheirValuesWhenTheSlotIsOverwritten(t *testing.T) {
	fields := []nwt.Field{{Name: "x", Type: nwt.Float32, Shape: []int{1 << 16}}} // 8 MiB per batch: no short cut for small ones
	ds := nwt.NewDataset(32, fields, func(_ context.Context, i int, dst *nwt.Sample) error {
		for j := range nwt.Values[float32](dst, 0) {
			nwt.Values[float32](dst, 0)[j] = float32(i)
		}
		return nil
	})
	a, err := New(Config{Backend: backend()})
	require.NoError(t, err)
	l, err := nwt.NewLoader(ds, nwt.WithBatchSize(32))
	require.NoError(t, err)
	defer l.Close()
	for b, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
		batch, err := a.Batch(b)
		require.NoError(t, err)
		for i := range nwt.Values[float32](b, 0) {
			nwt.Values[float32](b, 0)[i] = -1
		}
		got := tensors.MustCopyFlatData[float32](batch.Inputs[0])
		for i, x := range got {
			if want := float32(i >> 16); x != want {
				t.Fatalf("value %d is %v; want %v", i, x, want)
			}
		}
		require.NoError(t, batch.Finalize())
	}
}

func TestLossesAreEqualToTheBitWhateverTheWorkers(t *testing.T) {
	losses := func(workers int) (all []uint32) {
		d, _ := feed(t, quadrants(400), nwt.WithBatchSize(32), nwt.WithShuffle(1), nwt.WithWorkers(workers))
		loop := train.NewLoop(trainer())
		loop.OnStep("loss", 0, func(_ *train.Loop, metrics []*tensors.Tensor) error {
			all = append(all, math.Float32bits(tensors.ToScalar[float32](metrics[0])))
			return nil
		})
		_, err := loop.RunEpochs(d, 3)
		require.NoError(t, err)
		return all
	}
	want := losses(0)
	require.Len(t, want, 3*13)
	for _, workers := range []int{1, 2, 4} {
		require.Equal(t, want, losses(workers), "workers: %d", workers)
	}
}

// BenchmarkTensorsOfALargeBatch is a batch of 38 MB: 64 images of 3 × 224 × 224.
func BenchmarkTensorsOfALargeBatch(b *testing.B) {
	fields := []nwt.Field{{Name: "x", Type: nwt.Float32, Shape: []int{3, 224, 224}}}
	ds := nwt.NewDataset(64, fields, func(context.Context, int, *nwt.Sample) error { return nil })
	a, err := New(Config{Backend: backend()})
	require.NoError(b, err)
	l, err := nwt.NewLoader(ds, nwt.WithBatchSize(64))
	require.NoError(b, err)
	defer l.Close()
	for batch, err := range l.Epoch(b.Context(), 0) {
		require.NoError(b, err)
		b.SetBytes(int64(len(batch.Bytes(0))))
		for b.Loop() {
			tensors, err := a.Batch(batch)
			require.NoError(b, err)
			require.NoError(b, tensors.Finalize())
		}
	}
}
