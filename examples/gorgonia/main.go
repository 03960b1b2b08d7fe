// Gorgonia trains a small network with Gorgonia, on tensors that use the batches' own memory. At start-up
// it finds, with the real training step, how many workers must load so that training doesn't wait.
//
// Gorgonia's tensor v0.9.24 panics at start on Go 1.26 unless the module
// go4.org/unsafe/assume-no-moving-gc is at v0.0.0-20231121144256-b99613f794b6, as
// it is in this program's go.mod.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"time"

	"github.com/nwt-go/nwt"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "gorgonia:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("gorgonia", flag.ExitOnError)
	n := flags.Int("points", 8192, "`number` of points")
	batch := flags.Int("batch", 64, "`points` per batch")
	epochs := flags.Int("epochs", 5, "`epochs` to train")
	budget := flags.Duration("budget", 2*time.Second, "`time` to spend on tuning")
	_ = flags.Parse(args) // exits if parsing fails
	if *batch < 1 {
		return fmt.Errorf("-batch %d: must be at least 1", *batch)
	}

	opts := []nwt.Option{nwt.WithBatchSize(*batch), nwt.WithShuffle(1), nwt.WithDropLast()}
	trial, err := newNetwork(*batch, 2, 32, rings) // used for tuning only, because tuning changes it
	if err != nil {
		return err
	}
	defer trial.machine.Close()
	result, err := nwt.Tune(ctx, points(*n), append(opts, nwt.WithTuningTime(*budget),
		nwt.WithStep(func(_ context.Context, b *nwt.Batch) error {
			_, err := trial.step(b)
			return err
		}))...)
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "%v\n", result)

	network, err := newNetwork(*batch, 2, 32, rings)
	if err != nil {
		return err
	}
	defer network.machine.Close()
	loader, err := nwt.NewLoader(points(*n), append(opts, nwt.WithWorkers(result.Workers))...)
	if err != nil {
		return err
	}
	defer loader.Close()
	start, sum := time.Now(), float32(0)
	for b, err := range loader.Epochs(ctx, 0, *epochs) {
		if err != nil {
			return err
		}
		loss, err := network.step(b)
		if err != nil {
			return err
		}
		sum += loss
		if b.Number() == loader.Len()-1 {
			fmt.Fprintf(stdout, "epoch %d: loss %.3f\n", b.Epoch()+1, sum/float32(loader.Len()))
			sum = 0
		}
	}
	took, stats := time.Since(start), loader.Stats()
	fmt.Fprintf(stdout, "%d points in %v; workers: %d, waiting for them: %.2f %% of the time\n",
		stats.Samples, took.Round(time.Millisecond), stats.Workers, 100*stats.Wait.Seconds()/took.Seconds())
	return nil
}

// rings is how many rings around the origin the network learns to tell apart.
const rings = 3

// These are the fields of a sample.
var (
	schema nwt.Schema
	point  = nwt.AddField[float32](&schema, "point", 2)
	oneHot = nwt.AddField[float32](&schema, "ring", rings) // 1 for the ring in which the point lies, else 0
)

// points returns n points of a plane, new ones in each epoch.
func points(n int) nwt.Dataset {
	return nwt.NewDataset(n, schema.Fields(), func(_ context.Context, _ int, dst *nwt.Sample) error {
		rng := dst.Rand()
		ring := rng.IntN(rings)
		radius, angle := float64(ring)+0.2+0.6*rng.Float64(), 2*math.Pi*rng.Float64()
		p, y := point.Of(dst), oneHot.Of(dst)
		p[0], p[1] = float32(radius*math.Cos(angle)), float32(radius*math.Sin(angle))
		clear(y)
		y[ring] = 1
		return nil
	})
}
