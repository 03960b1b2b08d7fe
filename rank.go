package nwt

import (
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"

	"github.com/nwt-go/nwt/internal/launch"
)

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

// RankFromEnv reads rank and world from the environment variables that a launcher sets.
// If several launchers' are set, the first of this list counts; but if srun itself
// started the process, MPI's don't count.
//
//	torchrun    RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE
//	Open MPI    OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE, …_LOCAL_RANK, …_LOCAL_SIZE
//	MPICH       PMI_RANK PMI_SIZE MPI_LOCALRANKID MPI_LOCALNRANKS; Intel MPI too
//	Slurm       SLURM_PROCID, SLURM_STEP_NUM_TASKS and others of a step that srun sets
//	Kubernetes  JOB_COMPLETION_INDEX and, from the manifest, WORLD_SIZE
//
// Without a launcher, or without srun in a Slurm batch script, it is rank 0 of 1. It is
// an error if a variable is missing, malformed or out of range, if variables contradict
// each other, or if a world size other than 1 is set without a rank. If lookup is nil,
// it is [os.LookupEnv]; an empty variable counts as missing.
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
