// Experiments measures, on this machine, what docs/tuning.md and README say of tuning:
//
//	go run . choice    what tuning gains over the default count: a store that waits, a tail, a
//	                   database with two connections, a step that computes on the workers' CPUs
//	go run . grid      worker counts × batch sizes: beside a step that computes on a CPU, loading
//	                   alone, and beside a longer step that leaves the CPUs to the workers
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "experiments:", err)
		os.Exit(1)
	}
}

var experiments = map[string]func(ctx context.Context, args []string, stdout io.Writer) error{"choice": choice, "grid": grid}

func run(ctx context.Context, args []string, stdout io.Writer) error {
	if len(args) == 0 || experiments[args[0]] == nil {
		return fmt.Errorf("%q: must be choice or grid, and then its flags (-help)", args)
	}
	return experiments[args[0]](ctx, args[1:], stdout)
}
