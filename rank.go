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

// RankFromEnv reads rank and world from the environment variables that a launcher
// sets. If variables of several launchers are set, the first launcher of this list
// counts, since it is usually the innermost. There is one exception: if srun itself
// started the process (SLURM_TASK_PID tells), the variables of MPI don't count.
//
//	torchrun    RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE
//	Open MPI    OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE
//	            OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_LOCAL_SIZE
//	MPICH       PMI_RANK PMI_SIZE MPI_LOCALRANKID MPI_LOCALNRANKS; Intel MPI too
//	Slurm       SLURM_PROCID SLURM_STEP_NUM_TASKS SLURM_LOCALID
//	            SLURM_STEP_TASKS_PER_NODE SLURM_NODEID
//	Kubernetes  JOB_COMPLETION_INDEX and, from the manifest, WORLD_SIZE
//
// For Slurm, the variables that srun sets for a step count. A program that a batch
// script starts without srun is a single process, although SLURM_PROCID and
// SLURM_NTASKS are set for it. srun --mpi=pmi2 sets PMI_RANK too, and is still
// Slurm. A batch job that was submitted from inside a step inherits that step's
// variables; this is an error if the job's own variables contradict them.
//
// Kubernetes tells a pod of an Indexed Job its index but not how many there are,
// so the Job's manifest must set WORLD_SIZE to its completions.
//
// Without a launcher it is rank 0 of 1; but a world size other than 1 (WORLD_SIZE,
// OMPI_COMM_WORLD_SIZE, PMI_SIZE) without a rank is an error, since each process would
// train alone. A variable that is missing, malformed or out of range is an error. If lookup is nil, it is [os.LookupEnv]; an empty
// variable counts as missing.
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
