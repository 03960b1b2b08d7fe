package main

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/nwt-go/nwt"
)

// choice tunes the same dataset three times: without a step, with a step that computes on all CPUs, as
// XLA does on the host, and with a step that only waits, as for an accelerator.
func choice(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o := newOptions("choice")
	batch := o.Int("batch", 256, "`images` per batch")
	step := o.Duration("step", 10*time.Millisecond, "`time` that a step takes by itself")
	budget := o.Duration("budget", 20*time.Second, "`time` to spend on each tuning")
	if err := o.parse(args); err != nil {
		return err
	}
	if *step < 100*time.Microsecond {
		return fmt.Errorf("-step %v: must be at least 100µs", *step)
	}
	var compute []func()
	for range runtime.GOMAXPROCS(0) {
		compute = append(compute, computation(*step))
	}
	onAll := func() {
		var all sync.WaitGroup
		for _, c := range compute {
			all.Go(c)
		}
		all.Wait()
	}
	w := tabwriter.NewWriter(stdout, 0, 0, 3, ' ', tabwriter.AlignRight)
	f := figure{title: "Tuned with another step", x: "step", y: "ms per batch", lines: []line{{name: "in all"}, {name: "of it the step"}}}
	fmt.Fprintln(w, "step\tchosen workers\tper batch\tof it waiting\tof it the step\tstep with 0 workers\t")
	for _, c := range []struct {
		name string
		step func()
	}{
		{"none", nil},
		{"computes on all CPUs", onAll},
		{"leaves the CPUs alone", func() { time.Sleep(*step) }},
	} {
		opts := []nwt.Option{nwt.WithBatchSize(*batch), nwt.WithShuffle(1), nwt.WithTuningTime(*budget)}
		if c.step != nil {
			opts = append(opts, nwt.WithStep(func(context.Context, *nwt.Batch) error {
				c.step()
				return nil
			}))
		}
		r, err := nwt.Tune(ctx, augmented(read(1_000_000, 0)), opts...)
		if err != nil {
			return err
		}
		for _, t := range r.Trials {
			if t.Workers == r.Workers {
				fmt.Fprintf(w, "%s\t%d\t%.2f ms\t%.2f ms\t%.2f ms\t%.2f ms\t\n", c.name, t.Workers,
					ms(t.Mean), ms(t.Wait), ms(t.Step), ms(r.Trials[0].Step))
				f.ticks = append(f.ticks, c.name)
				f.lines[0].y, f.lines[1].y = append(f.lines[0].y, ms(t.Mean)), append(f.lines[1].y, ms(t.Step))
			}
		}
	}
	w.Flush()
	return drawTo(*o.plot, f)
}

func ms(d time.Duration) float64 { return 1000 * d.Seconds() }
