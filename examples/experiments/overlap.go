package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/nwt-go/nwt"
)

// overlap measures loading beside computing, at several ratios of the two. Loading waits, as for a disk;
// computing consists of steps of a softmax regression.
func overlap(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o := newOptions("overlap")
	batches := o.Int("batches", 40, "`batches` to measure")
	rounds := o.Int("rounds", 3, "`times` to measure each, of which the quickest counts")
	step := o.Duration("step", 4*time.Millisecond, "`time` that a batch is computed with")
	if err := o.parse(args); err != nil {
		return err
	}
	if *batches < 2 || *rounds < 1 || *step < 100*time.Microsecond {
		return fmt.Errorf("-batches %d, -rounds %d, -step %v: must be at least 2, 1 and 100µs", *batches, *rounds, *step)
	}
	compute := computation(*step)
	w := tabwriter.NewWriter(stdout, 0, 0, 3, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "loading : computing\tloading alone\tcomputing alone\ttheir sum\t0 workers\tthe longer\t1 worker\tmore than the longer\t")
	f := figure{title: fmt.Sprintf("Loading beside computing, %d batches", *batches), x: "loading : computing", y: "ms",
		lines: []line{{name: "sum of the two", dashed: true}, {name: "0 workers"}, {name: "longer of the two", dashed: true}, {name: "1 worker"}}}
	for _, r := range []struct {
		name  string
		ratio float64
	}{{"1 : 4", 0.25}, {"1 : 2", 0.5}, {"1 : 1", 1}, {"2 : 1", 2}, {"4 : 1", 4}} {
		ds := slowly(*batches, time.Duration(r.ratio*float64(*step)))
		t, err := times(ctx, ds, compute, *rounds)
		if err != nil {
			return err
		}
		longer := max(t.loading, t.computing)
		fmt.Fprintf(w, "%s\t", r.name)
		for i, d := range []time.Duration{t.loading, t.computing, t.loading + t.computing, t.together[0], longer, t.together[1]} {
			fmt.Fprintf(w, "%.0f ms\t", 1000*d.Seconds())
			if i >= 2 {
				f.lines[i-2].y = append(f.lines[i-2].y, 1000*d.Seconds())
			}
		}
		fmt.Fprintf(w, "%+.1f %%\t\n", 100*(t.together[1].Seconds()/longer.Seconds()-1))
		f.ticks = append(f.ticks, r.name)
	}
	w.Flush()
	fmt.Fprintln(stdout, strings.TrimSpace(`
The first batch is loaded before anything can be computed, and the last is
computed when nothing is left to load: what is more than the longer is mostly
that, and less with more batches.`))
	return drawTo(*o.plot, f)
}

// A pair holds the times of loading and computing, each alone and both together.
type pair struct {
	loading, computing time.Duration
	together           [2]time.Duration // by worker count
}

// times measures a pair: the shortest time of each in several rounds.
func times(ctx context.Context, ds nwt.Dataset, compute func(), rounds int) (pair, error) {
	best := pair{math.MaxInt64, math.MaxInt64, [2]time.Duration{math.MaxInt64, math.MaxInt64}}
	for range rounds {
		loading, err := beside(ctx, ds, 1, func() {})
		if err != nil {
			return best, err
		}
		start := time.Now()
		for range ds.Len() {
			compute()
		}
		best.loading, best.computing = min(best.loading, loading), min(best.computing, time.Since(start))
		for workers := range best.together {
			took, err := beside(ctx, ds, workers, compute)
			if err != nil {
				return best, err
			}
			best.together[workers] = min(best.together[workers], took)
		}
	}
	return best, nil
}

// slowly makes a dataset with one slow sample per batch.
func slowly(batches int, wait time.Duration) nwt.Dataset {
	var schema nwt.Schema
	x := nwt.AddField[float32](&schema, "x")
	return nwt.NewDataset(batches, schema.Fields(), func(_ context.Context, i int, dst *nwt.Sample) error {
		time.Sleep(wait)
		x.Of(dst)[0] = float32(i)
		return nil
	})
}

// computation returns a function whose work is always the same. It takes about the given time if nothing
// disturbs it.
func computation(d time.Duration) func() {
	const samples, inputs, classes = 16, 512, 10
	model, images, labels := newSoftmax(classes, inputs), make([]float32, samples*inputs), make([]int64, samples)
	for i := range images {
		images[i] = rand.Float32() - 0.5
	}
	for i := range labels {
		labels[i] = rand.Int64N(classes)
	}
	steps := 0
	for start := time.Now(); time.Since(start) < 10*d; steps++ {
		model.step(images, labels)
	}
	return func() {
		for range max(1, steps/10) {
			model.step(images, labels)
		}
	}
}

// beside returns how long it takes to load all batches and compute with each.
func beside(ctx context.Context, ds nwt.Dataset, workers int, compute func()) (time.Duration, error) {
	loader, err := nwt.NewLoader(ds, nwt.WithBatchSize(1), nwt.WithWorkers(workers))
	if err != nil {
		return 0, err
	}
	defer loader.Close()
	start := time.Now()
	for _, err := range loader.Epoch(ctx, 0) {
		if err != nil {
			return 0, err
		}
		compute()
	}
	return time.Since(start), nil
}
