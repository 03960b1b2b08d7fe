package main

import (
	"context"
	"crypto/sha256"
	"flag"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/nwt-go/nwt"
)

// choice tunes datasets that wait, queue or stall, and trains at the default count and at the chosen one
// in turns, to see what tuning gained.
func choice(ctx context.Context, args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("choice", flag.ExitOnError)
	batch := flags.Int("batch", 32, "`samples` per batch")
	step := flags.Duration("step", 10*time.Millisecond, "`time` that a step takes by itself")
	budget := flags.Duration("budget", 20*time.Second, "`time` to spend on each tuning, and on each comparison")
	_ = flags.Parse(args) // exits if it fails
	if *step < 100*time.Microsecond || flags.NArg() > 0 {
		return fmt.Errorf("-step %v %q: must be at least 100µs, and nothing", *step, flags.Args())
	}
	accelerator := func() { time.Sleep(*step) }
	var onAll []func()
	for range runtime.GOMAXPROCS(0) {
		onAll = append(onAll, computation(*step))
	}
	connections, hashed := make(chan struct{}, 2), make([]byte, 100_000)
	w := tabwriter.NewWriter(stdout, 0, 0, 3, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "a sample\tdefault\tper batch\tchosen\tper batch\tfaster\t")
	for _, c := range []struct {
		name string
		load func(i int)
		step func()
	}{
		{"waits 20 ms for a store", func(int) { time.Sleep(20 * time.Millisecond) }, accelerator},
		{"takes 1 ms, one in 100 takes 100 ms", func(i int) {
			time.Sleep(time.Duration(1+i%100/99*99) * time.Millisecond)
		}, accelerator},
		{"needs one of 2 connections for 1 ms", func(int) {
			connections <- struct{}{}
			time.Sleep(time.Millisecond)
			<-connections
		}, accelerator},
		{"hashes 100 kB, step computes on all CPUs", func(int) { sha256.Sum256(hashed) }, func() {
			var all sync.WaitGroup
			for _, compute := range onAll {
				all.Go(compute)
			}
			all.Wait()
		}},
	} {
		var schema nwt.Schema
		number := nwt.AddField[int64](&schema, "number")
		ds := nwt.NewDataset(1_000_000, schema.Fields(), func(_ context.Context, i int, dst *nwt.Sample) error {
			c.load(i)
			number.Set(dst, int64(i))
			return nil
		})
		opts := []nwt.Option{nwt.WithBatchSize(*batch), nwt.WithShuffle(1)}
		result, err := nwt.Tune(ctx, ds, append(opts, nwt.WithTuningTime(*budget), nwt.WithStep(func(context.Context, *nwt.Batch) error {
			c.step()
			return nil
		}))...)
		if err != nil {
			return err
		}
		fmt.Fprintf(stdout, "A sample %s:\n%v\n", c.name, result)
		times, workers, err := inTurns(ctx, ds, c.step, *budget, opts, append(slices.Clone(opts), nwt.WithWorkers(result.Workers)))
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "%s\t%d\t%.1f ms\t%d\t%.1f ms\t%.1f ×\t\n", c.name,
			workers[0], ms(times[0]), workers[1], ms(times[1]), times[0].Seconds()/times[1].Seconds())
	}
	return w.Flush()
}

// computation returns a function whose work is always the same. It takes about the given time if nothing
// disturbs it.
func computation(d time.Duration) func() {
	data, times := make([]byte, 10_000), 0
	for start := time.Now(); time.Since(start) < 10*d; times++ {
		sha256.Sum256(data)
	}
	return func() {
		for range max(1, times/10) {
			sha256.Sum256(data)
		}
	}
}

// inTurns trains with each of the options for a tenth of the budget, five times in turn, and returns the
// medians of the time per batch, and the worker counts.
func inTurns(ctx context.Context, ds nwt.Dataset, step func(), budget time.Duration, options ...[]nwt.Option) ([]time.Duration, []int, error) {
	times, workers := make([][]time.Duration, len(options)), make([]int, len(options))
	for range 5 {
		for i, opts := range options {
			loader, err := nwt.NewLoader(ds, opts...)
			if err != nil {
				return nil, nil, err
			}
			var batches int
			var began time.Time
			for _, err := range loader.Epoch(ctx, 0) {
				if err != nil {
					loader.Close()
					return nil, nil, err
				}
				if batches == 0 {
					began = time.Now() // after the first batch: workers have started
				}
				step()
				batches++
				if time.Since(began) > budget/10 {
					break
				}
			}
			workers[i] = loader.Stats().Workers
			times[i] = append(times[i], time.Since(began)/time.Duration(batches))
			loader.Close()
		}
	}
	medians := make([]time.Duration, len(options))
	for i := range times {
		slices.Sort(times[i])
		medians[i] = times[i][len(times[i])/2]
	}
	return medians, workers, nil
}

func ms(d time.Duration) float64 { return 1000 * d.Seconds() }
