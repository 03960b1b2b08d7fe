// Webdataset packs a folder of images into WebDataset shards, tunes the loading of the shards, and then
// goes through them once as a training program would.
//
//	go run .                                  # does all of it, with the images that come with Go
//	go run . -pack -dir photos -shards DIR    # packs, once
//	torchrun … -shards DIR                    # reads: each rank its part
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/examples/internal/progress"
	"github.com/nwt-go/nwt/vision"
	"github.com/nwt-go/nwt/wds"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "webdataset:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("webdataset", flag.ExitOnError)
	dir := flags.String("dir", "", "`folder` of JPEG, PNG, GIF, WebP, BMP and TIFF files to pack, in one folder per class (default: the images that come with Go)")
	shards := flags.String("shards", "", "`folder` of the shards (default: one for this run)")
	only := flags.Bool("pack", false, "only pack, into the folder of -shards")
	perShard := flags.Int("per-shard", 100, "`images` per shard")
	repeat := flags.Int("repeat", 0, "`times` to pack each image (default: until there are 1000)")
	size := flags.Int("size", 128, "width and height that images are brought to, in `pixels`")
	batch := flags.Int("batch", 32, "`images` per batch")
	samples := flags.Int("epoch", 0, "`images` per epoch, so that all ranks have the same number of batches (default: all there are)")
	_ = flags.Parse(args) // exits if parsing fails
	switch {
	case flags.NArg() > 0:
		return fmt.Errorf("unexpected %q: the folder is named by -dir", flags.Arg(0))
	case *perShard < 1 || *perShard > 1_000_000:
		return fmt.Errorf("-per-shard %d: must be 1 … 1000000", *perShard)
	case *repeat < 0 || *repeat > 1_000_000:
		return fmt.Errorf("-repeat %d: must be 0 … 1000000", *repeat)
	case *size < 1 || *size > 4096:
		return fmt.Errorf("-size %d: must be 1 … 4096", *size)
	}
	opts := []nwt.Option{nwt.WithBatchSize(*batch), nwt.WithShuffle(1)}
	if *samples != 0 {
		opts = append(opts, nwt.WithEpochSamples(*samples))
	}
	switch {
	case *only && *shards == "":
		return errors.New("-pack: needs -shards")
	case *only:
		return pack(ctx, *dir, *shards, *perShard, *repeat, stdout)
	case *shards != "":
		opts = append(opts, nwt.WithRankFromEnv())
	default:
		temporary, err := os.MkdirTemp("", "webdataset")
		if err != nil {
			return err
		}
		defer os.RemoveAll(temporary)
		*shards = filepath.Join(temporary, "shards")
		if err := pack(ctx, *dir, *shards, *perShard, *repeat, stdout); err != nil {
			return err
		}
	}
	names, err := wds.Glob(os.DirFS(*shards), "*.tar")
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "%s: %d shards, %s … %s\n", *shards, len(names), names[0], names[len(names)-1])

	pipeline, err := vision.New([]vision.Transform{
		vision.RandomResizedCrop{Size: vision.Square(*size)},
		vision.RandomHorizontalFlip{P: 0.5},
		vision.ImageNetNormalize,
	})
	if err != nil {
		return err
	}
	ds, err := records(*shards, names, pipeline)
	if err != nil {
		return err
	}
	report, done := progress.Show(stderr)
	result, err := nwt.Tune(ctx, ds, append(opts, nwt.WithProgress(report))...)
	done()
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "\n%v\n", result)
	return epoch(ctx, ds, append(opts, nwt.WithWorkers(result.Workers)), stdout)
}

// records returns a stream of the records in shards: the image of each record, loaded by a pipeline, and
// its class.
func records(dir string, shards []string, pipeline *vision.Pipeline) (nwt.Dataset, error) {
	var schema nwt.Schema
	image := nwt.AddField[float32](&schema, "image", pipeline.Field("image").Shape...)
	label := nwt.AddField[int64](&schema, "label")
	stream, err := wds.New(os.DirFS(dir), shards, schema.Fields(), func(_ context.Context, r *wds.Record, dst *nwt.Sample) error {
		data, err := r.File("jpg", "jpeg", "png", "gif", "webp")
		if err != nil {
			return err
		}
		if err := pipeline.Load(dst, image.Field(), data); err != nil {
			return err
		}
		number, err := r.File("cls")
		if err != nil {
			return err
		}
		label.Of(dst)[0], err = strconv.ParseInt(strings.TrimSpace(string(number)), 10, 64)
		return err
	})
	if err != nil {
		return nil, err
	}
	return nwt.Streamed(stream), nil
}

// epoch goes through the samples once, and prints how fast that was.
func epoch(ctx context.Context, ds nwt.Dataset, opts []nwt.Option, stdout io.Writer) error {
	loader, err := nwt.NewLoader(ds, opts...)
	if err != nil {
		return err
	}
	defer loader.Close()
	label, err := nwt.ColumnOf[int64](loader, "label")
	if err != nil {
		return err
	}
	perClass := map[int64]int{}
	start := time.Now()
	for batch, err := range loader.Epoch(ctx, 0) {
		if err != nil {
			return err
		}
		for _, c := range label.Of(batch) {
			perClass[c]++ // here a training program would train
		}
	}
	took, stats := time.Since(start), loader.Stats()
	fmt.Fprintf(stdout, "An epoch, workers: %d: %d images of %d classes in %v, %.0f images/s, %.0f %% of the time waiting.\n",
		loader.Workers(), stats.Samples, len(perClass), took.Round(time.Millisecond), float64(stats.Samples)/took.Seconds(), 100*stats.Wait.Seconds()/took.Seconds())
	return nil
}
