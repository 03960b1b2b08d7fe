// Experiments repeats, on this machine, what is known of loading data beside training:
//
//	sweep     time and memory of every worker count, on CIFAR-10: the figures of
//	          Synn and Kim's "Num Worker Tuner" (2021)
//	grid      worker counts × batch sizes: loading alone, beside a step that computes
//	          on the CPUs, and beside a longer one that leaves them to the workers
//	choice    what tuning gains over the default count: a store that waits, a tail, a
//	          database with two connections, a step that computes on the workers' CPUs
//	waiting   a dataset that waits, kept in memory, augmented beforehand
//	overlap   loading beside computing: the longer of the two, not their sum
//
// Each experiment prints its table; with -plot it also draws it.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/nwt-go/nwt/examples/internal/cifar"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "experiments:", err)
		os.Exit(1)
	}
}

var experiments = map[string]func(ctx context.Context, args []string, stdout, stderr io.Writer) error{
	"sweep": sweep, "grid": grid, "choice": choice, "waiting": waiting, "overlap": overlap,
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) == 0 || experiments[args[0]] == nil {
		return fmt.Errorf("%q: must be sweep, grid, choice, waiting or overlap, and then its flags (-help)", args)
	}
	return experiments[args[0]](ctx, args[1:], stdout, stderr)
}

// options holds an experiment's flags.
type options struct {
	*flag.FlagSet
	plot *string
}

func newOptions(name string) options {
	f := flag.NewFlagSet(name, flag.ExitOnError)
	return options{f, f.String("plot", "", "`file.png` to draw the figure to")}
}

// counts returns a flag of whole numbers, each at least 0.
func (o options) counts(name, value, usage string) *[]int {
	all := &[]int{}
	parse := func(s string) error {
		*all = nil
		for part := range strings.SplitSeq(s, ",") {
			n, err := strconv.Atoi(part)
			if err != nil || n < 0 {
				return fmt.Errorf("%q: must be whole numbers of at least 0, with commas between", part)
			}
			*all = append(*all, n)
		}
		return nil
	}
	_ = parse(value)
	o.Func(name, usage+" (default "+value+")", parse)
	return all
}

// parse reads the arguments; it exits if they are wrong.
func (o options) parse(args []string) error {
	_ = o.Parse(args)
	if o.NArg() > 0 {
		return fmt.Errorf("%s: unexpected %q", o.Name(), o.Arg(0))
	}
	if *o.plot != "" && filepath.Ext(*o.plot) != ".png" {
		return fmt.Errorf("-plot %q: must end in .png", *o.plot)
	}
	return nil
}

// openCIFAR reads a folder of CIFAR-10 into memory. If dir is empty, it makes noise in the same format.
func openCIFAR(dir string, stdout io.Writer) (*cifar.Set, error) {
	if dir != "" {
		return cifar.Open(dir)
	}
	dir, err := os.MkdirTemp("", "cifar10-noise-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	const n = 10_000
	if err := cifar.WriteSynthetic(filepath.Join(dir, "data_batch_1.bin"), n, 1); err != nil {
		return nil, err
	}
	fmt.Fprintf(stdout, "NOT CIFAR-10: without -dir, these are %d images of noise.\n\n", n)
	return cifar.Open(dir)
}
