package nwt

import (
	"fmt"
	"os"

	"github.com/nwt-go/nwt/internal/launch"
)

// Rank is the place of this process among those that train together.
type Rank struct {
	Rank, World           int    // number of this process, from 0, and how many processes there are
	LocalRank, LocalWorld int    // the same among the ranks of this host; 0 of 1 if the launcher doesn't set it
	Source                string // the launcher: "torchrun", "Open MPI", "MPICH", "Slurm", "Kubernetes" or "none"
	Vars                  string // the variables that were read, with up to 200 characters of each value: "WORLD_SIZE=8 RANK=3 …"
}

// String returns the rank, and where it was found.
func (r Rank) String() string {
	found := fmt.Sprintf("rank %d of %d, %d of %d on this host, launcher: %s", r.Rank, r.World, r.LocalRank, r.LocalWorld, r.Source)
	if r.Vars != "" {
		found += " (" + r.Vars + ")"
	}
	return found
}

// byProcess is what is logged once per process: Tune, NewLoader and each trial read the options anew.
var byProcess = &onceLog{}

// logRank logs the rank, unless it was logged before.
func (o *options) logRank() {
	if r := o.launcher; r != nil && o.log != nil && o.logged.first(*r) {
		o.log.Info("nwt: " + r.String())
	}
}

// RankFromEnv reads rank and world from the environment variables of the first launcher that has set any:
// torchrun, Open MPI, MPICH, Intel MPI, Slurm's srun, or a Kubernetes indexed Job with WORLD_SIZE.
// Without a launcher it returns rank 0 of 1. Variables that are malformed, out of range, missing or
// contradictory are an error. An empty variable counts as missing. If lookup is nil, RankFromEnv uses
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
