package gomlx

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/ml/dataset"
	"github.com/gomlx/gomlx/ml/layers"
	"github.com/gomlx/gomlx/ml/model"
	"github.com/gomlx/gomlx/ml/train"
	"github.com/gomlx/gomlx/ml/train/loss"
	"github.com/gomlx/gomlx/ml/train/metric"
	"github.com/gomlx/gomlx/ml/train/optimizer"
	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

// What follows is what GoMLX's own tests of its package dataset ask of a
// dataset, asked of ours: every one of its datasets that wraps another, with the
// same iterations and expectations.

// count iterates over d, twice, and answers the batches of each.
func count(t *testing.T, d train.Dataset) (first, second int) {
	t.Helper()
	counts := [2]int{}
	for i := range counts {
		for batch, err := range d.Iter() {
			require.NoError(t, err)
			require.Len(t, batch.Inputs, 1)
			counts[i]++
			require.NoError(t, batch.Finalize())
		}
	}
	return counts[0], counts[1]
}

func TestGoMLXBuffersIt(t *testing.T) {
	for _, size := range []int{0, 10} {
		d, _ := feed(t, numbers(1000), nwt.WithBatchSize(4))
		first, second := count(t, dataset.Buffer(d, size))
		require.Equal(t, 250, first)
		require.Equal(t, 250, second)
	}
}

func TestGoMLXBatchesItsBatches(t *testing.T) {
	for _, dropIncomplete := range []bool{true, false} {
		d, _ := feed(t, numbers(1000), nwt.WithBatchSize(1))
		want := 334
		if dropIncomplete {
			want--
		}
		first, second := count(t, dataset.Batch(backend(), d, 3, false, dropIncomplete))
		require.Equal(t, want, first)
		require.Equal(t, want, second)
	}
}

func TestGoMLXPutsItOnADevice(t *testing.T) {
	d, _ := feed(t, numbers(400), nwt.WithBatchSize(4))
	on, err := dataset.NewOnDevice(backend(), d, 3, 0)
	require.NoError(t, err)
	for range 2 {
		seen := map[int64]bool{}
		for batch, err := range on.Iter() {
			require.NoError(t, err)
			require.True(t, batch.Inputs[0].IsOnDevice(0))
			require.True(t, batch.Labels[0].IsOnDevice(0))
			for _, y := range tensors.MustCopyFlatData[int64](batch.Labels[0]) {
				seen[y] = true
			}
			require.NoError(t, batch.Finalize())
		}
		require.Len(t, seen, 400)
	}
}

func TestGoMLXReadsItIntoMemory(t *testing.T) {
	d, _ := feed(t, numbers(50), nwt.WithBatchSize(8))
	all, err := dataset.InMemory(backend(), d, true)
	require.NoError(t, err)
	require.Equal(t, 50, all.NumExamples())
	var got []int64
	for _, batch := range labels(t, all.BatchSize(7, false), whole) {
		got = append(got, batch...)
	}
	require.Len(t, got, 50)
	for i, y := range got {
		require.EqualValues(t, -i, y)
	}
}

func TestGoMLXMapsIt(t *testing.T) {
	d, _ := feed(t, numbers(8), nwt.WithBatchSize(4))
	mapped := dataset.Map(backend(), d, func(b dataset.GraphBatch) dataset.GraphBatch {
		return dataset.GraphBatch{Inputs: []*graph.Node{graph.AddScalar(b.Inputs[0], 1)}}
	})
	i := 0
	for batch, err := range mapped.Iter() {
		require.NoError(t, err)
		require.Empty(t, batch.Labels)
		require.Equal(t, float32(4*i+1), tensors.MustCopyFlatData[float32](batch.Inputs[0])[0])
		i++
	}
	require.Equal(t, 2, i)
}

func TestGoMLXNormalizesByIt(t *testing.T) {
	fields := []nwt.Field{{Name: "x", Type: nwt.Float64, Shape: []int{3}}}
	ds := nwt.NewDataset(4000, fields, func(_ context.Context, _ int, dst *nwt.Sample) error {
		for i := range 3 {
			nwt.Values[float64](dst, 0)[i] = float64(i) + float64(i+1)*dst.Rand().NormFloat64()
		}
		return nil
	})
	a, err := New(Config{Backend: backend()})
	require.NoError(t, err)
	l, err := nwt.NewLoader(ds, nwt.WithBatchSize(100))
	require.NoError(t, err)
	defer l.Close()
	mean, deviation, err := dataset.Normalization(backend(), a.Dataset(t.Context(), "normal", l), 0, -1)
	require.NoError(t, err)
	require.InDeltaSlice(t, []float64{0, 1, 2}, tensors.MustCopyFlatData[float64](mean), 0.2)
	require.InDeltaSlice(t, []float64{1, 2, 3}, tensors.MustCopyFlatData[float64](deviation), 0.2)
}

func TestGoMLXTakesAFewBatchesOfIt(t *testing.T) {
	d, _ := feed(t, numbers(100), nwt.WithBatchSize(4))
	first, second := count(t, dataset.Take(d, 5))
	require.Equal(t, 5, first)
	require.Equal(t, 5, second)
}

// quadrants is points whose class is their quadrant of the plane.
func quadrants(n int) nwt.Dataset {
	fields := []nwt.Field{
		{Name: "x", Type: nwt.Float32, Shape: []int{2}},
		{Name: "y", Type: nwt.Int64},
	}
	return nwt.NewDataset(n, fields, func(_ context.Context, i int, dst *nwt.Sample) error {
		r := rand.New(rand.NewPCG(uint64(i), 1))
		x, y := r.Float32()-0.5, r.Float32()-0.5
		copy(nwt.Values[float32](dst, 0), []float32{x, y})
		class := int64(0)
		if x > 0 {
			class++
		}
		if y > 0 {
			class += 2
		}
		nwt.Values[int64](dst, 1)[0] = class
		return nil
	})
}

func trainer() *train.Trainer {
	linear := func(scope *model.Scope, _ any, inputs []*graph.Node) []*graph.Node {
		return []*graph.Node{layers.DenseWithBias(scope.In("linear"), inputs[0], 4)}
	}
	store := model.NewStore()
	store.SetParam(model.ParamInitialSeed, int64(1))
	return train.NewTrainer(backend(), store, linear, loss.SparseCategoricalCrossEntropyLogits,
		optimizer.Adam().LearningRate(0.1).Done(), nil,
		[]metric.Interface{metric.NewSparseCategoricalAccuracy("accuracy", "acc")})
}

func scalar(t *testing.T, v *tensors.Tensor) float64 {
	t.Helper()
	return float64(tensors.ToScalar[float32](v))
}

func TestGoMLXTrainsAndEvaluatesOnIt(t *testing.T) {
	d, l := feed(t, quadrants(400), nwt.WithBatchSize(32), nwt.WithShuffle(1))
	tr := trainer()
	loop := train.NewLoop(tr)
	first, last := 0.0, 0.0
	loop.OnStep("loss", 0, func(loop *train.Loop, metrics []*tensors.Tensor) error {
		if last = scalar(t, metrics[0]); loop.LoopStep == 0 {
			first = last
		}
		return nil
	})
	_, err := loop.RunEpochs(d, 5)
	require.NoError(t, err)
	require.Less(t, last, first/2)
	require.Equal(t, nwt.State{Epoch: 4, Samples: 400}, progress(d.State()))
	require.Equal(t, 5*13, l.Stats().Batches)
	require.Zero(t, l.Stats().Retained)

	held, _ := feed(t, quadrants(400), nwt.WithBatchSize(100))
	metrics, err := tr.Eval(held)
	require.NoError(t, err)
	require.Greater(t, scalar(t, metrics[1]), 0.9, "accuracy")
}

func TestGoMLXTrainsForSteps(t *testing.T) {
	d, _ := feed(t, quadrants(400), nwt.WithBatchSize(100))
	loop := train.NewLoop(trainer())
	_, err := loop.RunSteps(d, 5)
	require.ErrorContains(t, err, "reached Dataset end")

	_, err = loop.RunSteps(d.Infinite(), 9)
	require.NoError(t, err)
	require.Equal(t, nwt.State{Epoch: 3, Samples: 100}, progress(d.State()))
}

func TestTuneRunsGoMLXsStep(t *testing.T) {
	ds := quadrants(400)
	a, err := New(Config{Backend: backend(), Labels: []string{"y"}})
	require.NoError(t, err)
	tr := trainer()
	steps := 0
	_, err = nwt.Tune(t.Context(), ds, nwt.WithBatchSize(32), nwt.WithMaxWorkers(1), nwt.WithIterations(3),
		nwt.WithStep(func(_ context.Context, b *nwt.Batch) error {
			batch, err := a.Batch(b)
			if err != nil {
				return err
			}
			steps++
			_, err = tr.TrainStep(batch)
			return err
		}))
	require.NoError(t, err)
	require.EqualValues(t, steps, tr.GlobalStep())
	require.Positive(t, steps)
}
