package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/host"
)

// side is the width and height of the images that are loaded with a wait.
const side = 64

// waiting loads samples that each wait, as samples from a network store do. It measures the first epoch,
// an epoch from the in-memory cache, and an epoch over samples that were augmented beforehand.
func waiting(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o := newOptions("waiting")
	n := o.Int("samples", 1000, "`number` of samples")
	wait := o.Duration("wait", time.Millisecond, "`time` that a sample waits")
	batch := o.Int("batch", 64, "`samples` per batch")
	counts := o.counts("workers", "0,4,16", "worker `counts`")
	if err := o.parse(args); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "nwt-waiting-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	slow := read(*n, *wait)
	most := slices.Max(*counts)
	start := time.Now()
	beforehand, err := nwt.Precompute(ctx, augmented(slow), filepath.Join(dir, "augmented"), "1", nwt.WithWorkers(most), nwt.WithBatchSize(*batch))
	if err != nil {
		return err
	}
	defer beforehand.Close()
	fmt.Fprintf(stdout, "%d samples that wait %v each, batches of %d. Augmented beforehand, once, in %v.\n\n",
		*n, *wait, *batch, time.Since(start).Round(time.Millisecond))

	w := tabwriter.NewWriter(stdout, 0, 0, 3, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "workers\tfirst epoch\tCPUs busy\tfrom the cache\tCPUs busy\taugmented beforehand\tCPUs busy\t")
	f := figure{title: fmt.Sprintf("%d samples that wait %v each", *n, *wait), x: "workers", y: "ms an epoch", log: true,
		lines: []line{{name: "first epoch"}, {name: "from the cache"}, {name: "augmented beforehand"}}}
	for _, workers := range *counts {
		fmt.Fprintf(w, "%d\t", workers)
		f.ticks = append(f.ticks, strconv.Itoa(workers))
		cached := nwt.Cached(slow, 1<<30)
		opts := []nwt.Option{nwt.WithWorkers(workers), nwt.WithBatchSize(*batch), nwt.WithShuffle(1)}
		figures, err := twice(ctx, augmented(cached), opts)
		if err != nil {
			return err
		}
		done, err := twice(ctx, beforehand, opts) // in the first epoch each sample's checksum is compared
		if err != nil {
			return err
		}
		for i, e := range []epoch{figures[0], figures[1], done[1]} {
			fmt.Fprintf(w, "%.1f ms\t%.0f %%\t", 1000*e.took.Seconds(), 100*e.cpu)
			f.lines[i].y = append(f.lines[i].y, 1000*e.took.Seconds())
		}
		fmt.Fprintln(w)
		if err := cached.Close(); err != nil {
			return err
		}
	}
	w.Flush()
	return drawTo(*o.plot, f)
}

var (
	stored, normalized nwt.Schema
	pixels             = nwt.AddField[uint8](&stored, "image", side, side)
	intensities        = nwt.AddField[float32](&normalized, "image", side, side)
)

// read returns a dataset of n images, each of which takes some time to load.
func read(n int, wait time.Duration) nwt.Dataset {
	return nwt.NewDataset(n, stored.Fields(), func(_ context.Context, i int, dst *nwt.Sample) error {
		time.Sleep(wait)
		image := pixels.Of(dst)
		for j := range image {
			image[j] = byte(i + j)
		}
		return nil
	})
}

// augmented turns images by a random one of four angles, changes their contrast and normalizes them.
func augmented(ds nwt.Dataset) nwt.Dataset {
	return nwt.Map(ds, normalized.Fields(), func(_ context.Context, src, dst *nwt.Sample) error {
		in, out := pixels.Of(src), intensities.Of(dst)
		turns, contrast := dst.Rand().IntN(4), 0.8+0.4*dst.Rand().Float32()
		for y := range side {
			for x := range side {
				fx, fy := x, y
				for range turns {
					fx, fy = fy, side-1-fx
				}
				out[y*side+x] = contrast * (float32(in[fy*side+fx]) - 127.5) / 127.5
			}
		}
		return nil
	})
}

// An epoch holds what was measured in one epoch.
type epoch struct {
	took time.Duration
	cpu  float64 // share of the CPUs that is in use
}

// twice iterates over two epochs.
func twice(ctx context.Context, ds nwt.Dataset, opts []nwt.Option) (took [2]epoch, err error) {
	loader, err := nwt.NewLoader(ds, opts...)
	if err != nil {
		return took, err
	}
	defer loader.Close()
	for i := range took {
		cpu, start := host.StartCPU(), time.Now()
		for _, err := range loader.Epoch(ctx, i) {
			if err != nil {
				return took, err
			}
		}
		took[i].took = time.Since(start)
		took[i].cpu = cpu.Used().Own / float64(host.CPUs().Usable())
	}
	return took, nil
}
