// Gomlx-cifar10 trains a small convolutional network with GoMLX's own training
// loop, on images in the format of CIFAR-10. At start-up it finds, with the real
// training step, how many workers must load so that training doesn't wait.
//
// GOMLX_BACKEND names GoMLX's backend, for example xla:cpu or go. By default it is XLA if an XLA plugin
// is installed, else GoMLX's own backend in Go.
package main

import (
	"context"
	"flag"
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
	"github.com/nwt-go/nwt/examples/internal/cifar"
	"github.com/nwt-go/nwt/examples/internal/progress"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "gomlx-cifar10:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("gomlx-cifar10", flag.ExitOnError)
	dir := flags.String("dir", "", "`folder` with data_batch_*.bin (default: synthetic images of the same format)")
	n := flags.Int("images", 1024, "`number` of synthetic images")
	batch := flags.Int("batch", 32, "`images` per batch")
	epochs := flags.Int("epochs", 4, "`epochs` to train")
	budget := flags.Duration("budget", 5*time.Second, "`time` to spend on tuning")
	_ = flags.Parse(args) // exits if parsing fails
	if *n < 1 || *epochs < 1 {
		return fmt.Errorf("-images %d, -epochs %d: must be at least 1", *n, *epochs)
	}
	if *dir == "" {
		temp, err := os.MkdirTemp("", "cifar10-synthetic-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(temp)
		if err := writeImages(temp, *n); err != nil {
			return err
		}
		fmt.Fprintf(stdout, "NOT CIFAR-10: without -dir, these are %d stripes and colours to tell apart.\n", *n)
		*dir = temp
	}
	images, err := cifar.Open(*dir)
	if err != nil {
		return err
	}

	backend, err := newBackend()
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "GoMLX's backend: %s\n", backend.Description())
	adapter, err := gomlx.New(gomlx.Config{Backend: backend, Labels: []string{"label"}})
	if err != nil {
		return err
	}
	opts := []nwt.Option{nwt.WithBatchSize(*batch), nwt.WithShuffle(1), nwt.WithDropLast()}

	// This trainer is used for tuning only and then dropped, so that tuning doesn't train the real model.
	trial := newTrainer(backend)
	report, done := progress.Show(stderr)
	loader, err := nwt.NewTunedLoader(ctx, images, append(opts, nwt.WithTuningTime(*budget), nwt.WithProgress(report),
		nwt.WithStep(func(_ context.Context, b *nwt.Batch) error {
			batch, err := adapter.Batch(b)
			if err != nil {
				return err
			}
			_, err = trial.TrainStep(batch)
			return err
		}))...)
	done()
	if err != nil {
		return err
	}
	defer loader.Close()
	fmt.Fprintf(stdout, "%v\n", loader.Result())
	loop := train.NewLoop(newTrainer(backend))
	start, sum := time.Now(), float32(0)
	loop.OnStep("report", 0, func(loop *train.Loop, metrics []*tensors.Tensor) error {
		sum += tensors.ToScalar[float32](metrics[0])
		if steps := loader.Len(); (loop.LoopStep+1)%steps == 0 {
			fmt.Fprintf(stdout, "epoch %d: loss %.3f, accuracy %.0f %%\n",
				loop.Epoch+1, sum/float32(steps), 100*tensors.ToScalar[float32](metrics[2]))
			sum = 0
		}
		return nil
	})
	if _, err := loop.RunEpochs(adapter.Dataset(ctx, "cifar10", loader), *epochs); err != nil {
		return err
	}
	took, stats := time.Since(start), loader.Stats()
	fmt.Fprintf(stdout, "%d images in %v, %.0f images/s; workers: %d, waiting for them: %.2f %% of the time\n",
		stats.Samples, took.Round(time.Millisecond), float64(stats.Samples)/took.Seconds(),
		stats.Workers, 100*stats.Wait.Seconds()/took.Seconds())
	return nil
}

// newBackend returns the backend that GOMLX_BACKEND names. By default it is XLA or, if XLA isn't
// installed, GoMLX's own.
func newBackend() (b compute.Backend, err error) {
	defer func() {
		if unknown := recover(); unknown != nil { // GoMLX panics if no backend has the name
			err = fmt.Errorf("%s: %v", compute.ConfigEnvVar, unknown)
		}
	}()
	if os.Getenv(compute.ConfigEnvVar) != "" {
		return compute.New()
	}
	if b, ok := installedXLA(); ok {
		return b, nil
	}
	return gobackend.GetBackend(), nil
}

// newTrainer makes an untrained network and its trainer.
func newTrainer(backend compute.Backend) *train.Trainer {
	store := model.NewStore()
	store.SetParam(model.ParamInitialSeed, int64(1))
	return train.NewTrainer(backend, store, network, loss.SparseCategoricalCrossEntropyLogits,
		optimizer.Adam().LearningRate(0.01).Done(),
		[]metric.Interface{metric.NewMovingAverageSparseCategoricalAccuracy("accuracy", "acc", 0.05)}, nil)
}

// network has two convolutions, a mean over what is left of the image, and a dense layer: n × 3 × 32 × 32
// pixels become n × 10 logits.
func network(scope *model.Scope, _ any, inputs []*graph.Node) []*graph.Node {
	x := graph.TransposeAllAxes(inputs[0], 0, 2, 3, 1) // the backend is faster with channels last
	x = layers.Convolution(scope.In("patches"), x).Channels(8).KernelSize(4).Strides(4).NoPadding().Done()
	x = graph.MaxScalar(x, 0)
	x = layers.Convolution(scope.In("shapes"), x).Channels(16).KernelSize(3).Strides(2).PadSame().Done()
	x = graph.ReduceMean(graph.MaxScalar(x, 0), 1, 2)
	return []*graph.Node{layers.DenseWithBias(scope.In("classes"), x, cifar.Classes)}
}
