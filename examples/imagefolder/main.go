// Imagefolder tunes the loading of a folder of images, and then goes through them once as a training
// program would. It prints the means and deviations of their channels, which such a program would use to
// normalize them.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"time"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/examples/internal/photos"
	"github.com/nwt-go/nwt/examples/internal/progress"
	"github.com/nwt-go/nwt/folder"
	"github.com/nwt-go/nwt/vision"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "imagefolder:", err)
		os.Exit(1)
	}
}

var strategies = map[string]nwt.Strategy{"greedy": nwt.Greedy, "exhaustive": nwt.Exhaustive}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("imagefolder", flag.ExitOnError)
	dir := flags.String("dir", "", "`folder` of JPEG, PNG, PPM, PGM, GIF, WebP, BMP and TIFF files, in one folder per class (default: the images that come with Go)")
	size := flags.Int("size", 128, "width and height that images are brought to, in `pixels`")
	batch := flags.Int("batch", 32, "`images` per batch")
	repeat := flags.Int("repeat", 0, "`times` that an epoch goes over the files (default: until it has 1000 images)")
	strategy := flags.String("strategy", "greedy", "greedy or exhaustive")
	_ = flags.Parse(args) // exits if parsing fails
	search, known := strategies[*strategy]
	switch {
	case flags.NArg() > 0:
		return fmt.Errorf("unexpected %q: the folder is named by -dir", flags.Arg(0))
	case *size < 1 || *size > 4096:
		return fmt.Errorf("-size %d: must be 1 … 4096", *size)
	case *repeat < 0 || *repeat > 1_000_000:
		return fmt.Errorf("-repeat %d: must be 0 … 1000000", *repeat)
	case !known:
		return fmt.Errorf("-strategy %q: must be greedy or exhaustive", *strategy)
	}
	var folderOpts []folder.Option
	if *dir == "" {
		folderOpts = append(folderOpts, folder.WithEmptyClasses()) // not all of Go's packages have images
		var err error
		if *dir, err = photos.Bundled(ctx); err != nil {
			return err
		}
	}

	images, err := open(ctx, *dir, *size, folderOpts...)
	if err != nil {
		return err
	}
	report, done := progress.Show(stderr)
	bad, err := images.check(ctx, report)
	done()
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "%s: %d images, classes: %d\n", *dir, images.Folder.Len(), len(images.Classes()))
	if len(bad) > 0 {
		fmt.Fprintf(stdout, "left out, for they can't be decoded: %d\n", len(bad))
		for _, err := range bad[:min(len(bad), 10)] {
			fmt.Fprintln(stdout, "  ", err)
		}
	}
	if images.repeat = *repeat; *repeat == 0 {
		images.repeat = (999 + len(images.good)) / len(images.good)
	}

	report, done = progress.Show(stderr)
	opts := []nwt.Option{nwt.WithBatchSize(*batch), nwt.WithShuffle(1)}
	result, err := nwt.Tune(ctx, images, append(opts, nwt.WithStrategy(search), nwt.WithProgress(report))...)
	done()
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "\n%v\n", result)
	return epoch(ctx, images, append(opts, nwt.WithWorkers(result.Workers)), stdout)
}

// epoch goes through the images once, and prints what it has found.
func epoch(ctx context.Context, images *images, opts []nwt.Option, stdout io.Writer) error {
	loader, err := nwt.NewLoader(images, opts...)
	if err != nil {
		return err
	}
	defer loader.Close()
	image, err := nwt.ColumnOf[float32](loader, "image")
	if err != nil {
		return err
	}
	var (
		channels [3]moments
		waited   time.Duration
		start    = time.Now()
		asked    = start
	)
	for batch, err := range loader.Epoch(ctx, 0) {
		if err != nil {
			return err
		}
		waited += time.Since(asked)
		plane := 0
		for pixels := range slices.Chunk(image.Of(batch), images.size*images.size) {
			channels[plane%3].add(pixels)
			plane++
		}
		asked = time.Now()
	}
	took := time.Since(start)
	fmt.Fprintf(stdout, "An epoch, workers: %d: %d images, each file %d times, in %v, %.0f images/s, %.0f %% of the time waiting.\n",
		loader.Workers(), images.Len(), images.repeat, took.Round(time.Millisecond), float64(images.Len())/took.Seconds(), 100*waited.Seconds()/took.Seconds())
	for c, m := range channels {
		// The values are normalized: undo that.
		fmt.Fprintf(stdout, "%-5s  mean %.4f  deviation %.4f\n", [...]string{"red", "green", "blue"}[c],
			vision.ImageNetNormalize.Mean[c]+vision.ImageNetNormalize.Std[c]*m.mean, vision.ImageNetNormalize.Std[c]*m.deviation())
	}
	return nil
}
