package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/examples/internal/cifar"
)

// grid measures worker counts × batch sizes on CIFAR-10: loading alone, beside a step that computes on
// the CPUs, and beside a step that leaves the CPUs to the workers, as an accelerator does, and takes
// longer than one worker needs to load.
func grid(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o := newOptions("grid")
	dir := o.String("dir", "", "`folder` with data_batch_*.bin (default: noise of the same format)")
	n := o.Int("images", 10_000, "`number` of images of an epoch")
	rounds := o.Int("rounds", 3, "`times` to measure each, of which the quickest counts")
	workers := o.counts("workers", "0,1,2,4,8,16", "worker `counts`")
	batches := o.counts("batches", "100,1000,10000", "batch `sizes`")
	longer := o.Float64("accelerator", 1.5, "the accelerator's step, in `times` of what one worker needs to load a batch")
	if err := o.parse(args); err != nil {
		return err
	}
	images, err := openCIFAR(*dir, stdout)
	if err != nil {
		return err
	}
	some := make([]int, min(*n, images.Len()))
	for i := range some {
		some[i] = i
	}
	ds, err := nwt.Subset(images, some)
	if err != nil {
		return err
	}
	model := newSoftmax(cifar.Classes, cifar.Channels*cifar.Side*cifar.Side)
	train := func(b *nwt.Batch) { model.step(cifar.Image.Of(b), cifar.Label.Of(b)) }
	var figures []figure
	measure := func(name string, step func(*nwt.Batch)) (*table, error) {
		t := &table{workers: *workers, batches: *batches}
		if err := t.measure(ctx, ds, step, *rounds); err != nil {
			return nil, err
		}
		fmt.Fprintf(stdout, "%s, ms per 1000 images:\n\n%v\n", name, t)
		figures = append(figures, t.figure(name))
		return t, nil
	}
	if _, err := measure("Loading and training on the CPUs (softmax regression)", train); err != nil {
		return err
	}
	alone, err := measure("Loading alone", func(*nwt.Batch) {})
	if err != nil {
		return err
	}
	perImage := time.Duration(*longer * alone.oneWorker() * float64(time.Microsecond))
	name := fmt.Sprintf("Loading beside an accelerator, whose step takes %.1f times as long as one worker's loading", *longer)
	if _, err := measure(name, func(b *nwt.Batch) { time.Sleep(perImage * time.Duration(b.Len())) }); err != nil {
		return err
	}
	return drawTo(*o.plot, figures...)
}

// A table is the milliseconds that 1000 images take, by worker count and batch
// size.
type table struct {
	workers, batches []int
	ms               [][]float64
}

// measure fills the table. It goes through the whole table in each round, so that a disturbance doesn't
// affect one cell alone.
func (t *table) measure(ctx context.Context, ds nwt.Dataset, step func(*nwt.Batch), rounds int) error {
	for range t.workers {
		t.ms = append(t.ms, slices.Repeat([]float64{math.Inf(1)}, len(t.batches)))
	}
	for range rounds {
		for w, workers := range t.workers {
			for b, batch := range t.batches {
				n := max(fewestEpochs, (fewestBatches*batch+ds.Len()-1)/ds.Len())
				took, err := epochs(ctx, ds, n, step, nwt.WithWorkers(workers), nwt.WithBatchSize(batch))
				if err != nil {
					return err
				}
				t.ms[w][b] = min(t.ms[w][b], 1e6*took.Seconds()/float64(n*ds.Len()))
			}
		}
	}
	return nil
}

// So many batches are measured at once: nothing is computed while the first batch is loaded, so few
// batches would mislead.
const (
	fewestEpochs  = 2
	fewestBatches = 10
)

// epochs returns the time that n epochs take, from the start of the first. Some batches are loaded before
// that, so that their memory is allocated.
func epochs(ctx context.Context, ds nwt.Dataset, n int, step func(*nwt.Batch), opts ...nwt.Option) (time.Duration, error) {
	loader, err := nwt.NewLoader(ds, append(opts, nwt.WithShuffle(1))...)
	if err != nil {
		return 0, err
	}
	defer loader.Close()
	warm := 0
	for _, err := range loader.Epochs(ctx, 0, 8) {
		if err != nil {
			return 0, err
		}
		if warm++; warm == 8 { // more batches than are ever loaded ahead here
			break
		}
	}
	start := time.Now()
	for b, err := range loader.Epochs(ctx, 1, 1+n) {
		if err != nil {
			return 0, err
		}
		step(b)
	}
	return time.Since(start), nil
}

// oneWorker returns the time of the slowest batch size with one worker, or with the
// fewest workers in the table.
func (t *table) oneWorker() float64 { return slices.Max(t.ms[max(0, slices.Index(t.workers, 1))]) }

// near is how many times slower than the best of its batch size a count may be and still count as good.
const near = 1.05

// best returns the row of the fastest count of a column, and the row of the fewest workers that are as
// good.
func (t *table) best(column int) (quickest, fewest int) {
	for w := range t.workers {
		if t.ms[w][column] < t.ms[quickest][column] {
			quickest = w
		}
	}
	fewest = quickest
	for w, workers := range t.workers {
		if workers < t.workers[fewest] && t.ms[w][column] <= near*t.ms[quickest][column] {
			fewest = w
		}
	}
	return quickest, fewest
}

// String returns the table with a column for each batch size: its best cell is marked ◄, and the fewest
// workers that are as good ✓.
func (t *table) String() string {
	var s strings.Builder
	w := tabwriter.NewWriter(&s, 0, 0, 3, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "workers\t")
	for _, b := range t.batches {
		fmt.Fprintf(w, "batch %d  \t", b)
	}
	fmt.Fprintln(w)
	for row, workers := range t.workers {
		fmt.Fprintf(w, "%d\t", workers)
		for column := range t.batches {
			mark := " "
			switch quickest, fewest := t.best(column); row {
			case quickest:
				mark = "◄"
			case fewest:
				mark = "✓"
			}
			fmt.Fprintf(w, "%.2f %s\t", t.ms[row][column], mark)
		}
		fmt.Fprintln(w)
	}
	w.Flush()
	return s.String() + "(◄ the best, ✓ the fewest workers within 5 % of it)\n"
}

func (t *table) figure(title string) figure {
	f := figure{title: title, x: "workers", y: "ms per 1000 images"}
	for _, w := range t.workers {
		f.ticks = append(f.ticks, strconv.Itoa(w))
	}
	for b, batch := range t.batches {
		l := line{name: fmt.Sprintf("batch %d", batch)}
		for w := range t.workers {
			l.y = append(l.y, t.ms[w][b])
		}
		f.lines = append(f.lines, l)
	}
	return f
}
