package nwt

import (
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"

	"github.com/nwt-go/nwt/internal/guard"
	"github.com/nwt-go/nwt/internal/launch"
	"github.com/nwt-go/nwt/internal/order"
)

// follow sets what depends on the sampler: how many positions and batches an epoch has.
func (o *ordering) follow(option string, s Sampler) (err error) {
	if o.order.N, err = epochLen(option, s); err != nil {
		return err
	}
	b, ok := s.(BatchSampler)
	if !ok {
		if _, starts := s.(interface{ Start(epoch, batch int) int }); starts {
			return optionError(option, nameOfSampler(s), "has Start, but isn't a BatchSampler: Batches or Largest is missing")
		}
		if sorts, ok := s.(interface{ Step() int }); ok {
			o.sorts, err = ask(option, s, "Step", sorts.Step)
		}
		return err
	}
	if o.order.Batches, err = ask(option, s, "Batches", b.Batches); err != nil {
		return err
	}
	o.order.Starts = startsOf(b)
	if o.order.Batches < 1 || o.order.Batches > o.order.N {
		return optionError(option, o.order.Batches, "an epoch of %d samples must have 1 … %d batches", o.order.N, o.order.N)
	}
	n, err := ask(option, s, "Largest", b.Largest)
	if n > o.order.Batch {
		return optionError("WithBatchSize", o.order.Batch, "must be at least %d, the samples of the largest batch of %s", n, nameOfSampler(s))
	}
	return err
}

// startsOf asks a BatchSampler where batches begin.
func startsOf(b BatchSampler) func(epoch, batch int) (position int, err error) {
	return func(epoch, batch int) (position int, err error) {
		guard.Call(func() error { position = b.Start(epoch, batch); return nil }, func(stack []byte, cause error) {
			err = &LoadError{Index: -1, Position: -1, Epoch: epoch, Err: fmt.Errorf("BatchSampler.Start of batch %d: %w", batch, cause), Stack: stack}
		})
		return position, err
	}
}

// orderError is an error of package order as one of this package.
func orderError(err error) error {
	if e, ok := err.(*order.Error); ok {
		return &OptionError{e.Option, e.Value, e.Bound}
	}
	return err
}

const endless = order.Endless

// Rank is the place of this process among those that train together.
type Rank struct {
	Rank, World           int    // number of this process, 0-based, and how many there are
	LocalRank, LocalWorld int    // the same among the ranks of this host; 0 of 1 if the launcher doesn't tell
	Source                string // the launcher: "torchrun", "Open MPI", "MPICH", "Slurm", "Kubernetes" or "none"
	Vars                  string // what it was read from, of each value up to 200 characters: "WORLD_SIZE=8 RANK=3 …"
}

// String says what was found, and where.
func (r Rank) String() string {
	found := fmt.Sprintf("rank %d of %d, %d of %d on this host, launcher: %s", r.Rank, r.World, r.LocalRank, r.LocalWorld, r.Source)
	if r.Vars != "" {
		found += " (" + r.Vars + ")"
	}
	return found
}

// loggedRank is the rank that this process logged last.
var loggedRank atomic.Pointer[Rank]

// logOnce logs the rank unless it was the last one logged: Tune, NewLoader and each
// trial read the environment anew.
func (r Rank) logOnce(log *slog.Logger) {
	if last := loggedRank.Swap(&r); last == nil || *last != r {
		log.Info("nwt: " + r.String())
	}
}

// RankFromEnv reads rank and world from the environment variables of the first launcher that set
// any: torchrun, Open MPI, MPICH, Intel MPI, Slurm's srun, a Kubernetes indexed Job with
// WORLD_SIZE. Without one it is rank 0 of 1. Variables that are malformed, out of range, missing
// or in contradiction are an error. An empty one counts as missing. A nil lookup is
// [os.LookupEnv].
func RankFromEnv(lookup func(key string) (string, bool)) (Rank, error) {
	if lookup == nil {
		lookup = os.LookupEnv
	}
	r, err := launch.Find(lookup, os.Getpid())
	if err != nil {
		return Rank{}, fmt.Errorf("nwt: %w", err)
	}
	return Rank(r), nil
}
