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

func TestTheEnvironmentTellsTheRankOrWhatIsWrongWithIt(t *testing.T) {
	text, err := os.ReadFile("testdata/environments.json")
	require.NoError(t, err)
	var cases []struct {
		Name, Env, Error string
		Rank
	}
	require.NoError(t, json.Unmarshal(text, &cases))
	require.NotEmpty(t, cases)
	for _, c := range cases {
		got, err := rankFrom(variables(c.Env))
		if c.Error != "" {
			require.ErrorContains(t, err, c.Error, c.Name)
		} else {
			require.NoError(t, err, c.Name)
		}
		require.Equal(t, c.Rank, got, c.Name)
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
