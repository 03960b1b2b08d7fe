package main

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strconv"
	"time"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/examples/internal/progress"
)

// sweep measures every worker count, as the paper does: 0 … N−1 on N CPUs, 100 batches of 128 each. It
// finds the fewest workers within half a second of the fastest.
func sweep(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o := newOptions("sweep")
	dir := o.String("dir", "", "`folder` with data_batch_*.bin (default: noise of the same format)")
	batch := o.Int("batch", 128, "`images` per batch")
	iterations := o.Int("iterations", 100, "`batches` to measure at each count")
	most := o.Int("max-workers", runtime.GOMAXPROCS(0)-1, "highest `count`")
	alpha := o.Duration("alpha", 500*time.Millisecond, "`difference` over all iterations that the choice ignores")
	if err := o.parse(args); err != nil {
		return err
	}
	images, err := openCIFAR(*dir, stdout)
	if err != nil {
		return err
	}
	report, done := progress.Show(stderr)
	result, err := nwt.Tune(ctx, images, nwt.WithBatchSize(*batch), nwt.WithShuffle(1), nwt.WithStrategy(nwt.Exhaustive),
		nwt.WithIterations(*iterations), nwt.WithMaxWorkers(*most), nwt.WithAlpha(*alpha), nwt.WithProgress(report))
	done()
	if err != nil {
		return err
	}
	fmt.Fprintln(stdout, result)
	if few := fewest(result, 0.02); few != result.Workers {
		fmt.Fprintf(stdout, "%v is what was asked to be ignored; within 2 %% of the fastest, nwt's own bound, the fewest workers are %d.\n", *alpha, few)
	}
	return drawTo(*o.plot, sweepFigures(result)...)
}

// sweepFigures returns the paper's two figures: time and memory.
func sweepFigures(r *nwt.Result) []figure {
	seconds := figure{
		title: fmt.Sprintf("Time of %d batches of %d", r.Iterations, r.BatchSize),
		x:     "workers", y: "seconds", lines: []line{{name: "time"}},
	}
	memory := figure{title: "Peak memory of the process", x: "workers", y: "MB", lines: []line{{name: "memory"}}}
	for i, t := range r.Trials {
		s, mb := t.Total.Seconds(), float64(t.PeakRSS)/1e6
		seconds.ticks = append(seconds.ticks, strconv.Itoa(t.Workers))
		seconds.lines[0].y = append(seconds.lines[0].y, s)
		memory.lines[0].y = append(memory.lines[0].y, mb)
		if t.Workers == r.Fastest {
			seconds.marks = append(seconds.marks, mark{"fastest", i, s})
		}
		if t.Workers == r.Workers {
			seconds.marks = append(seconds.marks, mark{"chosen", i, s})
			memory.marks = append(memory.marks, mark{"chosen", i, mb})
		}
	}
	memory.ticks = seconds.ticks
	return []figure{seconds, memory}
}

// fewest returns the fewest workers that are slower than the fastest by at most a
// share of its time.
func fewest(r *nwt.Result, share float64) int {
	best := r.Trials[0].Total
	for _, t := range r.Trials {
		best = min(best, t.Total)
	}
	i := slices.IndexFunc(r.Trials, func(t nwt.Trial) bool { return float64(t.Total) <= (1+share)*float64(best) })
	return r.Trials[i].Workers
}
