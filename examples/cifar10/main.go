// Cifar10 tunes the loading of CIFAR-10 in the way that is usual for training: batches of 128, randomly
// cropped and mirrored, normalized. With -strategy exhaustive it repeats the sweep of Synn and Kim's "Num
// Worker Tuner" (2021): time and peak memory at every worker count.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"time"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/examples/internal/cifar"
	"github.com/nwt-go/nwt/examples/internal/progress"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "cifar10:", err)
		os.Exit(1)
	}
}

var strategies = map[string]nwt.Strategy{"greedy": nwt.Greedy, "exhaustive": nwt.Exhaustive}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	opts := []nwt.Option{nwt.WithBatchSize(128), nwt.WithShuffle(1)}
	flags := flag.NewFlagSet("cifar10", flag.ExitOnError)
	dir := flags.String("dir", "", "`folder` with data_batch_*.bin (default: noise of the same format)")
	strategy := flags.String("strategy", "greedy", "greedy or exhaustive")
	keep := flags.String("json", "", "`file` to write the result to")
	number := func(name string, option func(int) nwt.Option, usage string) {
		flags.Func(name, usage, func(s string) error {
			n, err := strconv.Atoi(s)
			opts = append(opts, option(n))
			return err
		})
	}
	number("batch", nwt.WithBatchSize, "`images` per batch (default 128)")
	number("iterations", nwt.WithIterations, "`batches` to measure at a worker count (default about 100)")
	number("max-workers", nwt.WithMaxWorkers, "highest `count` to try (default: as long as more win)")
	flags.Func("alpha", "`difference` over all iterations that the choice ignores (default 500ms, at most 2 %)", func(s string) error {
		d, err := time.ParseDuration(s)
		opts = append(opts, nwt.WithAlpha(d))
		return err
	})
	_ = flags.Parse(args) // exits if parsing fails
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected %q: the folder is named by -dir", flags.Arg(0))
	}
	search, known := strategies[*strategy]
	if !known {
		return fmt.Errorf("-strategy %q: must be greedy or exhaustive", *strategy)
	}

	if *dir == "" {
		temp, err := os.MkdirTemp("", "cifar10-noise-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(temp)
		const n = 10_000
		if err := cifar.WriteSynthetic(filepath.Join(temp, "data_batch_1.bin"), n, 1); err != nil {
			return err
		}
		fmt.Fprintf(stdout, "NOT CIFAR-10: without -dir, these are %d images of noise.\n", n)
		*dir = temp
	}
	images, err := cifar.Open(*dir)
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "%s: %d images\n", *dir, images.Len())

	report, done := progress.Show(stderr)
	opts = append(opts, nwt.WithStrategy(search), nwt.WithProgress(report))
	loader, err := nwt.NewTunedLoader(ctx, images, opts...)
	done()
	if err != nil {
		return err
	}
	defer loader.Close()
	result := loader.Result()
	fmt.Fprintf(stdout, "\n%v\n", result)
	if *keep != "" {
		data, err := json.MarshalIndent(result, "", "\t")
		if err != nil {
			return err
		}
		if err := os.WriteFile(*keep, data, 0o644); err != nil {
			return err
		}
	}

	start := time.Now()
	for batch, err := range loader.Epoch(ctx, 0) {
		if err != nil {
			return err
		}
		train(cifar.Image.Of(batch), cifar.Label.Of(batch))
	}
	took := time.Since(start)
	fmt.Fprintf(stdout, "An epoch, workers: %d: %v, %.0f images/s\n",
		loader.Workers(), took.Round(time.Millisecond), float64(images.Len())/took.Seconds())
	return nil
}

// train stands for a model that learns from n × 3 × 32 × 32 pixels and n labels. If it is also given to
// nwt.WithStep, the choice is the fewest workers at which train doesn't wait.
func train(images []float32, labels []int64) {}
