package launch

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func variables(assignments string) map[string]string {
	vars := map[string]string{}
	for assignment := range strings.FieldsSeq(assignments) {
		name, value, _ := strings.Cut(assignment, "=")
		vars[name] = value
	}
	return vars
}

func rankFrom(vars map[string]string) (Rank, error) {
	return Find(func(key string) (string, bool) {
		value, ok := vars[key]
		return value, ok
	}, 4711)
}

const (
	torchrun   = "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 GROUP_RANK=1 MASTER_ADDR=a"
	openMPI    = "OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=6 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=2"
	mpich      = "PMI_RANK=3 PMI_SIZE=4 PMI_FD=7 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2"
	srun       = "SLURM_JOB_ID=9 SLURM_PROCID=9 SLURM_NTASKS=11 SLURM_TASKS_PER_NODE=4(x2),3 SLURM_LOCALID=1 SLURM_NODEID=2 SLURM_GTIDS=8,9,10 SLURM_STEP_NUM_TASKS=11 SLURM_STEP_TASKS_PER_NODE=4(x2),3"
	srunPMI2   = srun + " PMI_FD=13 PMI_JOBID=9.0 PMI_RANK=9 PMI_SIZE=11" // what srun --mpi=pmi2 sets
	sbatch     = "SLURM_JOB_ID=9 SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_TASKS_PER_NODE=1(x4)"
	indexedJob = "JOB_COMPLETION_INDEX=2 WORLD_SIZE=3"
)

// nwt for Python is tested with the same environments.
func TestRankIsWhatTheInnermostLauncherSays(t *testing.T) {
	text, err := os.ReadFile("testdata/environments.json")
	require.NoError(t, err)
	var cases []struct {
		Name, Env string
		Rank
	}
	require.NoError(t, json.Unmarshal(text, &cases))
	require.NotEmpty(t, cases)
	for _, c := range cases {
		got, err := rankFrom(variables(c.Env))
		require.NoError(t, err, c.Name)
		require.Equal(t, c.Rank, got, c.Name)
	}
}

// srun tells each task its process: it started this one itself, and what mpirun has
// left is from further out.
func TestATaskOfSrunIsSlurmsWhateverStartedSrun(t *testing.T) {
	for _, outer := range []string{openMPI, mpich, openMPI + " " + mpich} {
		vars := variables(outer + " " + srun)
		vars["SLURM_TASK_PID"] = "4711"
		got, err := rankFrom(vars)
		require.NoError(t, err)
		require.Equal(t, Rank{9, 11, 1, 3, "Slurm", "SLURM_STEP_NUM_TASKS=11 SLURM_PROCID=9 SLURM_NODEID=2 SLURM_STEP_TASKS_PER_NODE=4(x2),3 SLURM_LOCALID=1"}, got)

		maps.Copy(vars, variables(torchrun)) // what a task sets for itself counts
		got, err = rankFrom(vars)
		require.NoError(t, err)
		require.Equal(t, "torchrun", got.Source)
	}
}

func TestARankThatCannotHaveItsPlaceOnTheHostIsRefused(t *testing.T) {
	for env, want := range map[string]string{
		"RANK=0 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2":                                                     "rank 0 of 4 can't be 1 of 2 on its host",
		"RANK=3 WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2":                                                     "rank 3 of 4 can't be 0 of 2 on its host",
		"OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=3 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=3": "rank 2 of 3 can't be 0 of 3 on its host",
	} {
		got, err := rankFrom(variables(env))
		require.ErrorContains(t, err, want)
		require.Zero(t, got)
	}
}

func TestInnerLaunchersWinOverOuterOnes(t *testing.T) {
	inside := map[string]string{} // from the outermost to the innermost
	for _, l := range []struct{ source, env string }{
		{"none", sbatch}, {"Kubernetes", indexedJob}, {"Slurm", srun}, {"MPICH", mpich}, {"Open MPI", openMPI}, {"torchrun", torchrun},
	} {
		maps.Copy(inside, variables(l.env))
		got, err := rankFrom(inside)
		require.NoError(t, err)
		require.Equal(t, l.source, got.Source)
	}
}

func TestWrongVariablesAreNamedWithTheirBound(t *testing.T) {
	for _, c := range []struct{ env, change, want string }{
		{torchrun, "RANK=8", `torchrun: RANK is "8"; want a number from 0 to 7`},
		{torchrun, "RANK=-1", `torchrun: RANK is "-1"; want a number from 0 to 7`},
		{torchrun, "RANK=one", `RANK is "one"; want a number from 0 to 7`},
		{torchrun, "RANK=99999999999999999999", `RANK is "99999999999999999999"; want`},
		{torchrun, "WORLD_SIZE=1048577", `WORLD_SIZE is "1048577"; want a number from 1 to 1048576`},
		{torchrun, "WORLD_SIZE=0", `WORLD_SIZE is "0"; want a number from 1 to 1048576`},
		{torchrun, "WORLD_SIZE=", "WORLD_SIZE is not set; want a number from 1 to 1048576"},
		{torchrun, "LOCAL_WORLD_SIZE=9", `LOCAL_WORLD_SIZE is "9"; want a number from 1 to 8`},
		{torchrun, "LOCAL_RANK=4", `LOCAL_RANK is "4"; want a number from 0 to 3`},
		{openMPI, "OMPI_COMM_WORLD_RANK=6", `Open MPI: OMPI_COMM_WORLD_RANK is "6"; want a number from 0 to 5`},
		{mpich, "PMI_SIZE=", "MPICH: PMI_SIZE is not set"},
		{srun, "SLURM_PROCID=", "Slurm: SLURM_PROCID is not set; want a number from 0 to 10"},
		{srun, "SLURM_NODEID=", "Slurm: SLURM_NODEID is not set"},
		{srun, "SLURM_NODEID=3", `SLURM_STEP_TASKS_PER_NODE is "4(x2),3"; want a number from 1 to 11 for node 3`},
		{srun, "SLURM_STEP_TASKS_PER_NODE=12(x3)", `SLURM_STEP_TASKS_PER_NODE is "12(x3)"; want a number from 1 to 11 for node 2`},
		{srun, "SLURM_STEP_TASKS_PER_NODE=4(x2,3", `SLURM_STEP_TASKS_PER_NODE is "4(x2,3"`},
		{srun, "SLURM_NODEID=11", `SLURM_NODEID is "11"; want a number from 0 to 10`},
		{srun, "SLURM_STEP_TASKS_PER_NODE=4(x2),12", `SLURM_STEP_TASKS_PER_NODE is "4(x2),12"; want a number from 1 to 11 for node 2`},
		{srun, "SLURM_STEP_TASKS_PER_NODE=4(x2),0", `SLURM_STEP_TASKS_PER_NODE is "4(x2),0"`},
		{srun, "SLURM_STEP_TASKS_PER_NODE=4(x2),three", `SLURM_STEP_TASKS_PER_NODE is "4(x2),three"`},
		{srun, "SLURM_STEP_TASKS_PER_NODE=four,4,3", `SLURM_STEP_TASKS_PER_NODE is "four,4,3"`},
		{srun, "SLURM_STEP_TASKS_PER_NODE=0(x2),3", `SLURM_STEP_TASKS_PER_NODE is "0(x2),3"`},
		{srun, "SLURM_STEP_TASKS_PER_NODE=4(x2),3,four", `SLURM_STEP_TASKS_PER_NODE is "4(x2),3,four"`}, // other nodes refuse it too
		{srun, "SLURM_STEP_TASKS_PER_NODE=4(x2),3,4(x", `SLURM_STEP_TASKS_PER_NODE is "4(x2),3,4(x"`},
		{srun, "SLURM_STEP_TASKS_PER_NODE=4(x0),4(x2),3", `SLURM_STEP_TASKS_PER_NODE is "4(x0),4(x2),3"`},
		{srun, "SLURM_STEP_TASKS_PER_NODE=4(x-1),4(x2),3", `SLURM_STEP_TASKS_PER_NODE is "4(x-1),4(x2),3"`},
		{srun, "SLURM_STEP_TASKS_PER_NODE=4(x),3", `SLURM_STEP_TASKS_PER_NODE is "4(x),3"`},
		{indexedJob, "WORLD_SIZE=2", `Kubernetes: JOB_COMPLETION_INDEX is "2"; want a number from 0 to 1`},
		{indexedJob, "WORLD_SIZE=", "Kubernetes: WORLD_SIZE is not set"},
		{torchrun, "RANK=", `WORLD_SIZE is "8", but no rank is set: want RANK or`},
		{indexedJob, "JOB_COMPLETION_INDEX=", `WORLD_SIZE is "3", but no rank is set: want RANK or, in an Indexed Job, JOB_COMPLETION_INDEX`},
		{openMPI, "OMPI_COMM_WORLD_RANK=", `OMPI_COMM_WORLD_SIZE is "6", but no rank is set: want OMPI_COMM_WORLD_RANK`},
		{mpich, "PMI_RANK=", `, but no rank is set: want PMI_RANK`},
	} {
		vars := variables(c.env)
		maps.Copy(vars, variables(c.change))
		got, err := rankFrom(vars)
		require.ErrorContains(t, err, c.want, c.change)
		require.Zero(t, got, c.change)
	}
}

// Slurm 22.05 showed these: sbatch copies the submitter's environment, and the
// batch script overwrites only part of it.
func TestABatchJobThatInheritedAStepIsRefused(t *testing.T) {
	step := variables("SLURM_JOB_ID=9 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_NTASKS=4 SLURM_TASKS_PER_NODE=2(x2) SLURM_GTIDS=0,1 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_TASKS_PER_NODE=2(x2)")
	got, err := rankFrom(step)
	require.NoError(t, err, "a task of the step itself")
	require.Equal(t, 4, got.World)
	for name, c := range map[string]struct{ change, want string }{
		"submitted with -n 1": {
			"SLURM_NTASKS=1 SLURM_TASKS_PER_NODE=1 SLURM_GTIDS=0",
			"SLURM_STEP_NUM_TASKS is 4, but SLURM_NTASKS is 1",
		},
		"submitted without -n, which leaves the step's SLURM_NTASKS": {
			"SLURM_TASKS_PER_NODE=1 SLURM_GTIDS=0",
			"SLURM_STEP_TASKS_PER_NODE is 2(x2), but SLURM_TASKS_PER_NODE is 1",
		},
		"submitted with the step's own layout": {
			"SLURM_GTIDS=0",
			"SLURM_STEP_TASKS_PER_NODE gives this node 2 tasks, but SLURM_GTIDS lists 1",
		},
	} {
		vars := maps.Clone(step)
		maps.Copy(vars, variables(c.change))
		_, err := rankFrom(vars)
		require.ErrorContains(t, err, c.want, name)
		require.ErrorContains(t, err, "unset the SLURM_STEP_ variables", name)
	}
}

func TestWhatIsSaidOfARankIsShortHoweverLongTheVariables(t *testing.T) {
	vars := variables("SLURM_STEP_NUM_TASKS=20001 SLURM_PROCID=1 SLURM_NODEID=0 SLURM_LOCALID=1")
	vars["SLURM_STEP_TASKS_PER_NODE"] = "2" + strings.Repeat(",1", 19_999)
	got, err := rankFrom(vars)
	require.NoError(t, err)
	require.Contains(t, got.Vars, "SLURM_STEP_TASKS_PER_NODE=2,1,1")
	require.Less(t, len(got.Vars), 2000)
	for change, want := range map[string]string{
		"SLURM_PROCID=0": "rank 0 of 20001 can't be 1 of 2 on its host",
		"SLURM_TASKS_PER_NODE=" + strings.Repeat("1,", 19_999) + "2": "SLURM_STEP_TASKS_PER_NODE is 2,1,1",
	} {
		changed := maps.Clone(vars)
		maps.Copy(changed, variables(change))
		_, err := rankFrom(changed)
		require.ErrorContains(t, err, want)
		require.Less(t, len(err.Error()), 2000)
	}
}

// Whatever the environment says, the rank is one of its world or there is an error.
func FuzzRank(f *testing.F) {
	for _, env := range []string{
		torchrun, openMPI, mpich, srun, srunPMI2, sbatch, indexedJob, torchrun + " " + srun,
		"RANK=-1 WORLD_SIZE=2", "RANK=9223372036854775808 WORLD_SIZE=9223372036854775807", "RANK=0x1 WORLD_SIZE=+2", "RANK=1 WORLD_SIZE=1",
		"RANK=0 WORLD_SIZE=2147483648", "RANK=0 WORLD_SIZE=4 LOCAL_RANK=3 LOCAL_WORLD_SIZE=9",
		"SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=4 SLURM_NODEID=0 SLURM_LOCALID=0 SLURM_STEP_TASKS_PER_NODE=1(x99999999999)",
		"RANK=" + strings.Repeat("9", 10000) + " WORLD_SIZE=2",
	} {
		f.Add(env)
	}
	f.Fuzz(func(t *testing.T, env string) {
		r, err := rankFrom(variables(env))
		if err != nil {
			require.Less(t, len(err.Error()), 2000)
			return
		}
		require.GreaterOrEqual(t, r.Rank, 0)
		require.Less(t, r.Rank, r.World)
		require.GreaterOrEqual(t, r.LocalRank, 0)
		require.Less(t, r.LocalRank, r.LocalWorld)
		require.LessOrEqual(t, r.LocalRank, r.Rank)
		require.LessOrEqual(t, r.LocalWorld-r.LocalRank, r.World-r.Rank)
	})
}

func FuzzTasksOnNode(f *testing.F) {
	f.Add("4(x2),3", 2)
	f.Add("1", 0)
	f.Add("2(x", 0)
	f.Add(",(x1)", 1)
	f.Add("1(x9223372036854775807),2", 5)
	f.Fuzz(func(t *testing.T, list string, node int) {
		tasks, ok := tasksOnNode(list, node)
		if ok && node >= 0 {
			require.GreaterOrEqual(t, tasks, 1)
			require.Contains(t, list, fmt.Sprint(tasks))
		}
	})
}
