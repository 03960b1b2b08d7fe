// Gomlx-digits trains a small network to read digits, with GoMLX's backend in Go, and prints how its loss
// falls. The workers draw the digits: each time askew, elsewhere and under noise.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/gobackend"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/ml/layers"
	"github.com/gomlx/gomlx/ml/model"
	"github.com/gomlx/gomlx/ml/train"
	"github.com/gomlx/gomlx/ml/train/loss"
	"github.com/gomlx/gomlx/ml/train/metric"
	"github.com/gomlx/gomlx/ml/train/optimizer"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/contrib/gomlx"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, 30_000, 5, 3*time.Second, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "gomlx-digits:", err)
		os.Exit(1)
	}
}

// run tunes, trains for some epochs of n digits each, and prints the mean loss of each.
func run(ctx context.Context, n, epochs int, tuning time.Duration, stdout io.Writer) error {
	backend := gobackend.GetBackend()
	adapter, err := gomlx.New(gomlx.Config{Backend: backend, Labels: []string{"digit"}})
	if err != nil {
		return err
	}
	step := func(trainer *train.Trainer, b *nwt.Batch) (metrics []*tensors.Tensor, err error) {
		batch, err := adapter.Batch(b)
		if err != nil {
			return nil, err
		}
		return trainer.TrainStep(batch)
	}
	trial := newTrainer(backend) // takes the steps of tuning, and is dropped
	loader, err := nwt.NewTunedLoader(ctx, digits(n), nwt.WithBatchSize(100), nwt.WithShuffle(1), nwt.WithTuningTime(tuning),
		nwt.WithStep(func(_ context.Context, b *nwt.Batch) error {
			_, err := step(trial, b)
			return err
		}))
	if err != nil {
		return err
	}
	defer loader.Close()
	fmt.Fprintln(stdout, loader.Result())

	trainer := newTrainer(backend)
	for epoch := range epochs {
		var sum, right float32
		for b, err := range loader.Epoch(ctx, epoch) {
			if err != nil {
				return err
			}
			metrics, err := step(trainer, b)
			if err != nil {
				return err
			}
			sum += tensors.ToScalar[float32](metrics[0])
			right = tensors.ToScalar[float32](metrics[2])
		}
		fmt.Fprintf(stdout, "epoch %d: loss %.3f, accuracy %.0f %%\n", epoch+1, sum/float32(loader.Len()), 100*right)
	}
	return nil
}

const side = 28

// font has the ten digits, each of seven rows of five pixels.
var font = [10][7]byte{
	{0b01110, 0b10001, 0b10011, 0b10101, 0b11001, 0b10001, 0b01110},
	{0b00100, 0b01100, 0b00100, 0b00100, 0b00100, 0b00100, 0b01110},
	{0b01110, 0b10001, 0b00001, 0b00110, 0b01000, 0b10000, 0b11111},
	{0b11111, 0b00010, 0b00100, 0b00010, 0b00001, 0b10001, 0b01110},
	{0b00010, 0b00110, 0b01010, 0b10010, 0b11111, 0b00010, 0b00010},
	{0b11111, 0b10000, 0b11110, 0b00001, 0b00001, 0b10001, 0b01110},
	{0b00110, 0b01000, 0b10000, 0b11110, 0b10001, 0b10001, 0b01110},
	{0b11111, 0b00001, 0b00010, 0b00100, 0b01000, 0b01000, 0b01000},
	{0b01110, 0b10001, 0b10001, 0b01110, 0b10001, 0b10001, 0b01110},
	{0b01110, 0b10001, 0b10001, 0b01111, 0b00001, 0b00010, 0b01100},
}

// digits are n pictures of digits.
func digits(n int) nwt.Dataset {
	var schema nwt.Schema
	picture := nwt.AddField[float32](&schema, "picture", side, side)
	digit := nwt.AddField[int64](&schema, "digit")
	return nwt.NewDataset(n, schema.Fields(), func(_ context.Context, i int, dst *nwt.Sample) error {
		rng, pixels := dst.Rand(), picture.Of(dst)
		left, top, slant := 2+rng.IntN(9), 1+rng.IntN(5), rng.Float64()-0.5
		for y := range side {
			for x := range side {
				pixels[y*side+x] = 0.5 * rng.Float32()
				row := (y - top) / 3
				column := (x - left + int(slant*float64(y-side/2))) / 3
				if y >= top && row < 7 && column >= 0 && column < 5 && font[i%10][row]>>(4-column)&1 == 1 {
					pixels[y*side+x] += 0.5
				}
			}
		}
		digit.Set(dst, int64(i%10))
		return nil
	})
}

// newTrainer makes an untrained network of two layers, and its trainer.
func newTrainer(backend compute.Backend) *train.Trainer {
	network := func(scope *model.Scope, _ any, inputs []*graph.Node) []*graph.Node {
		x := graph.Reshape(inputs[0], inputs[0].Shape().Dim(0), side*side)
		x = graph.MaxScalar(layers.DenseWithBias(scope.In("hidden"), x, 64), 0)
		return []*graph.Node{layers.DenseWithBias(scope.In("digits"), x, 10)}
	}
	store := model.NewStore()
	store.SetParam(model.ParamInitialSeed, int64(1))
	return train.NewTrainer(backend, store, network, loss.SparseCategoricalCrossEntropyLogits, optimizer.Adam().LearningRate(0.002).Done(),
		[]metric.Interface{metric.NewMovingAverageSparseCategoricalAccuracy("accuracy", "acc", 0.05)}, nil)
}
