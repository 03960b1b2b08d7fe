// Ranks trains one model with several processes. Start it with torchrun, mpirun or srun, or by itself. On
// SIGTERM, or SIGUSR1, all ranks finish the same step, rank 0 saves the state, and all exit with 85. If
// they are started again, with any number of ranks, they continue after that step.
//
//	mpirun -n 4 ./ranks -state state.json
//
// docs/across-machines.md has the commands for each launcher.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/examples/internal/checkpoint"
)

// stopped is the exit status if all ranks have stopped after the same step and the state is saved. It
// means: start the program again.
const stopped = 85

var errStopped = errors.New("told to stop; the state is saved")

func main() {
	// A launcher may signal again as soon as the first rank has exited. So only a second Ctrl-C ends a
	// rank that is stopping.
	ctx, stop := signal.NotifyContext(context.Background(), stopSignals...)
	defer stop()
	context.AfterFunc(ctx, func() { signal.Reset(os.Interrupt) })
	err := run(ctx, os.Args[1:], os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "ranks:", err)
	}
	switch {
	case err == nil:
	case errors.Is(err, errStopped):
		os.Exit(stopped)
	default: // also after a signal: the launcher may have sent it because another rank failed
		os.Exit(1)
	}
}

// A progress is everything that training needs to continue.
type progress struct {
	State   nwt.State
	Weights []float64
}

// A report is what a rank sends to the others in each step.
type report struct {
	Stop     bool // the rank was asked to stop
	Samples  int
	Gradient []float64 // sum over its samples
}

func run(ctx context.Context, args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("ranks", flag.ExitOnError)
	samples := flags.Int("samples", 100_000, "`samples` of the dataset")
	batch := flags.Int("batch", 32, "`samples` per batch and rank")
	epochs := flags.Int("epochs", 2, "`epochs` to train")
	compute := flags.Duration("compute", 2*time.Millisecond, "`time` that a step computes")
	state := flags.String("state", "state.json", "`file` to save the state to, and to go on from; rank 0 uses it")
	every := flags.Int("save-every", 100, "`steps` between two saves")
	rendezvous := flags.String("rendezvous", "127.0.0.1:29400", "`host:port` of rank 0, where the others find it")
	tuning := flags.String("tuning", filepath.Join(os.TempDir(), "ranks-tuning.json"), "`file` that keeps the tuning result of this host")
	logs := flags.String("log", "", "`folder` where each rank logs which samples it trained on")
	_ = flags.Parse(args) // exits if parsing fails
	switch {
	case flags.NArg() > 0:
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case *epochs < 1:
		return fmt.Errorf("-epochs %d: must be at least 1", *epochs)
	case *every < 1:
		return fmt.Errorf("-save-every %d: must be at least 1", *every)
	}
	rank, err := nwt.RankFromEnv(nil)
	if err != nil {
		return err
	}
	group, err := join(*rendezvous, rank.Rank, rank.World)
	if err != nil {
		return err
	}
	defer group.close()

	// Rank 0 reads the file and sends it to the others, so all start from the same state.
	var at progress
	if rank.Rank == 0 {
		if at, err = read(*state); err != nil {
			return err
		}
	}
	begin, err := gather(group, at)
	if err != nil {
		return err
	}
	at = begin[0]

	ds := regression(*samples)
	opts := []nwt.Option{nwt.WithRankFromEnv(), nwt.WithShuffle(42), nwt.WithBatchSize(*batch)}
	result, err := nwt.Tune(ctx, ds, append(opts, nwt.WithResultCache(*tuning, "ranks"))...)
	switch {
	case err == nil:
		opts = append(opts, nwt.WithWorkers(result.Workers))
	case ctx.Err() == nil: // else this rank tells the others in the first step that it must stop
		return err
	}
	loader, err := nwt.NewLoader(ds, opts...)
	if err != nil {
		return err
	}
	defer loader.Close()
	log, err := openLog(*logs, rank.Rank)
	if err != nil {
		return err
	}
	if err := log(started{rank, result, loader.Workers(), at.State}); err != nil {
		return err
	}

	for steps := 1; at.State.Epoch < *epochs; at.State = (nwt.State{Epoch: at.State.Epoch + 1}) {
		// The context isn't ctx, because each rank continues loading until all agree to stop.
		for b, err := range loader.Resume(context.Background(), at.State) {
			if err != nil {
				return err
			}
			time.Sleep(*compute) // stands for a larger model
			all, err := gather(group, report{ctx.Err() != nil, b.Len(), gradient(at.Weights, b)})
			if err != nil {
				return err
			}
			stop := descend(at.Weights, all)
			at.State = b.State()
			if err := log(trained{at.State, b.Indices()}); err != nil {
				return err
			}
			if stop || steps%*every == 0 {
				if err := save(group, *state, at); err != nil {
					return err
				}
			}
			if stop {
				return errStopped
			}
			steps++
		}
	}
	if err := save(group, *state, at); err != nil {
		return err
	}
	if rank.Rank == 0 {
		fmt.Fprintf(stdout, "ranks: %d, epochs: %d, weights: %.2f\n", rank.World, *epochs, at.Weights)
	}
	return nil
}

// read returns the checkpoint in a file. If there is none, it returns a checkpoint with untrained
// weights.
func read(name string) (at progress, err error) {
	at.Weights = make([]float64, len(truth))
	if _, err = checkpoint.Restore(name, &at); err == nil && len(at.Weights) != len(truth) {
		err = fmt.Errorf("checkpoint %s: has %d weights; the model has %d", name, len(at.Weights), len(truth))
	}
	return at, err
}

// save makes rank 0 write the checkpoint, which is the same on every rank, and returns when it is on the
// disk. A launcher may kill the other ranks as soon as one has exited.
func save(g *group, name string, at progress) error {
	failed := ""
	if g.rank == 0 {
		if err := checkpoint.Save(name, at); err != nil {
			failed = err.Error()
		}
	}
	all, err := gather(g, failed)
	if err == nil && all[0] != "" {
		err = fmt.Errorf("state in %s: %s", name, all[0])
	}
	return err
}

// These are the lines that a rank logs: first how it started, then each step.
type (
	started struct {
		Rank    nwt.Rank
		Result  *nwt.Result
		Workers int
		From    nwt.State
	}
	trained struct {
		State   nwt.State // after the step
		Indices []int
	}
)

// openLog returns a function that adds a line to the rank's file in the folder.
func openLog(dir string, rank int) (func(line any) error, error) {
	if dir == "" {
		return func(any) error { return nil }, nil
	}
	name := filepath.Join(dir, fmt.Sprintf("rank-%d.jsonl", rank))
	f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	return json.NewEncoder(f).Encode, nil // the file is closed when the process ends
}
