package main

import (
	"context"
	"crypto/sha256"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/examples/internal/cifar"
)

// grid measures worker counts × batch sizes on images like CIFAR-10's: beside a step that computes on a
// CPU, loading alone, and beside a step that leaves the CPUs to the workers, as an accelerator does, and
// takes longer than one worker needs to load.
func grid(ctx context.Context, args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("grid", flag.ExitOnError)
	n := flags.Int("images", 10_000, "`number` of images of an epoch")
	rounds := flags.Int("rounds", 3, "`times` to measure each, of which the quickest counts")
	_ = flags.Parse(args) // exits if it fails
	if *n < 1 || *rounds < 1 || flags.NArg() > 0 {
		return fmt.Errorf("-images %d -rounds %d %q: must be at least 1, at least 1, and nothing", *n, *rounds, flags.Args())
	}
	ds, err := noise(*n)
	if err != nil {
		return err
	}
	measure := func(name string, step func(*nwt.Batch)) (*table, error) {
		t := &table{workers: []int{0, 1, 2, 4, 8, 16}, batches: []int{max(*n/100, 1), max(*n/10, 1), *n}}
		if err := t.measure(ctx, ds, step, *rounds); err != nil {
			return nil, err
		}
		fmt.Fprintf(stdout, "%s, ms per 1000 images:\n\n%v\n", name, t)
		return t, nil
	}
	compute := func(b *nwt.Batch) {
		for range 4 {
			sha256.Sum256(b.Bytes(0))
		}
	}
	if _, err := measure("Loading and computing on the CPUs", compute); err != nil {
		return err
	}
	alone, err := measure("Loading alone", func(*nwt.Batch) {})
	if err != nil {
		return err
	}
	perImage := time.Duration(1.5 * alone.oneWorker() * float64(time.Microsecond))
	_, err = measure("Loading beside an accelerator, whose step takes 1.5 times as long as one worker's loading", func(b *nwt.Batch) {
		time.Sleep(perImage * time.Duration(b.Len()))
	})
	return err
}

// noise returns n images of noise: they take the same time to load as CIFAR-10's.
func noise(n int) (*cifar.Set, error) {
	dir, err := os.MkdirTemp("", "cifar10-noise-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if err := cifar.WriteSynthetic(filepath.Join(dir, "data_batch_1.bin"), n, 1); err != nil {
		return nil, err
	}
	return cifar.Open(dir)
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
