// Package launch reads the rank of a process from the environment that its launcher has set.
package launch

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Rank is the place of a process among those that train together; see nwt.Rank for its fields.
type Rank struct {
	Rank, World           int
	LocalRank, LocalWorld int
	Source                string
	Vars                  string
}

// MaxWorld is the largest number of ranks.
const MaxWorld = 1 << 20

// Find returns the rank of the process pid, whose environment lookup reads. If variables of several
// launchers are set, the first one in launchers counts. If it doesn't say where on its host the process is, an
// outer one of the same rank and world does. If none are set, Find returns rank 0 of 1.
func Find(lookup func(key string) (string, bool), pid int) (Rank, error) {
	for i, l := range launchers {
		r, err := (&environment{lookup: lookup, pid: pid}).rank(l)
		if err != nil {
			return Rank{}, fmt.Errorf("rank and world from %s: %w", l.source, err)
		}
		if r.World == 0 {
			continue
		}
		for _, outer := range launchers[i+1:] {
			o, err := (&environment{lookup: lookup, pid: pid}).rank(outer)
			manyHosts := outer.rank != outer.localRank // Lightning's variables don't tell whether there is one
			if err == nil && manyHosts && o.Rank == r.Rank && o.World == r.World && o.LocalWorld > 0 && r.LocalWorld == 0 {
				r.LocalRank, r.LocalWorld, r.Vars = o.LocalRank, o.LocalWorld, r.Vars+" "+o.Vars
			}
		}
		r.LocalWorld = max(1, r.LocalWorld)
		return r, nil
	}
	env := &environment{lookup: lookup, pid: pid}
	for _, l := range launchers {
		if world, ok := env.value(l.world); ok && world != "1" {
			want := l.rank
			if l.world == "WORLD_SIZE" {
				want = "RANK or, in an Indexed Job, JOB_COMPLETION_INDEX"
			}
			return Rank{}, fmt.Errorf("%s is %.60q, but no rank is set: want %s", l.world, world, want)
		}
	}
	return Rank{World: 1, LocalWorld: 1, Source: "none"}, nil
}

// launcher names the variables that a launcher sets; "" means that it has no such variable.
type launcher struct {
	source      string
	started     string                  // if set, this process was started by this launcher …
	unless      func(*environment) bool // … unless this function says otherwise
	rank, world string
	localRank   string
	localWorld  string // holds a number or, if node is given, a list with one number for each node
	node        string
	check       func(*environment, Rank) error // checks what else must hold
}

// launchers lists the launchers from the innermost to the outermost: torchrun is
// started by mpirun or srun, mpirun within a Slurm allocation, and all of them in
// pods. Each inherits the variables of those around it.
var launchers = []launcher{
	{
		source: "torchrun", started: "RANK", rank: "RANK", world: "WORLD_SIZE",
		localRank: "LOCAL_RANK", localWorld: "LOCAL_WORLD_SIZE",
	},
	{
		source: "Open MPI", started: "OMPI_COMM_WORLD_RANK", unless: (*environment).taskOfSlurm, rank: "OMPI_COMM_WORLD_RANK", world: "OMPI_COMM_WORLD_SIZE",
		localRank: "OMPI_COMM_WORLD_LOCAL_RANK", localWorld: "OMPI_COMM_WORLD_LOCAL_SIZE",
	},
	{
		source: "MPICH", started: "PMI_RANK", unless: (*environment).pmiOfSlurm, rank: "PMI_RANK", world: "PMI_SIZE",
		localRank: "MPI_LOCALRANKID", localWorld: "MPI_LOCALNRANKS",
	},
	{
		source: "Slurm", started: "SLURM_STEP_NUM_TASKS", rank: "SLURM_PROCID", world: "SLURM_STEP_NUM_TASKS",
		localRank: "SLURM_LOCALID", localWorld: "SLURM_STEP_TASKS_PER_NODE", node: "SLURM_NODEID",
		check: (*environment).ownStep,
	},
	{
		source: "Kubernetes", started: "JOB_COMPLETION_INDEX", rank: "JOB_COMPLETION_INDEX", world: "WORLD_SIZE",
	},
	{
		source: "Lightning", started: "LOCAL_RANK", unless: (*environment).notOfLightning, rank: "LOCAL_RANK", world: "WORLD_SIZE",
		localRank: "LOCAL_RANK", localWorld: "WORLD_SIZE",
	},
}

type environment struct {
	lookup func(key string) (string, bool)
	pid    int
	used   []string // entries have the form NAME=value
}

func (e *environment) value(name string) (string, bool) {
	value, ok := e.lookup(name)
	return value, ok && value != ""
}

// rank returns the rank that l has set. World is 0 if l hasn't started this process, and LocalWorld is 0 if l
// doesn't say where on its host the process is.
func (e *environment) rank(l launcher) (r Rank, err error) {
	if _, ok := e.value(l.started); !ok || l.unless != nil && l.unless(e) {
		return r, nil
	}
	r.Source = l.source
	if r.World, err = e.number(l.world, 1, MaxWorld); err != nil {
		return r, err
	}
	if r.Rank, err = e.number(l.rank, 0, r.World-1); err != nil {
		return r, err
	}
	_, hasRank := e.value(l.localRank)
	_, hasWorld := e.value(l.localWorld)
	if hasRank && hasWorld {
		if r.LocalWorld, err = e.localWorld(l, r.World); err != nil {
			return r, err
		}
		if r.LocalRank, err = e.number(l.localRank, 0, r.LocalWorld-1); err != nil {
			return r, err
		}
		if r.LocalRank > r.Rank || r.LocalWorld-r.LocalRank > r.World-r.Rank {
			return r, fmt.Errorf("rank %d of %d can't be %d of %d on its host: %s", r.Rank, r.World, r.LocalRank, r.LocalWorld, strings.Join(e.used, " "))
		}
	}
	r.Vars = strings.Join(e.used, " ")
	if l.check != nil {
		err = l.check(e, r)
	}
	return r, err
}

// taskOfSlurm reports whether srun itself started this process: then the variables of mpirun come from
// outside srun.
func (e *environment) taskOfSlurm() bool {
	pid, _ := e.value("SLURM_TASK_PID")
	_, step := e.value("SLURM_STEP_NUM_TASKS")
	return step && pid == strconv.Itoa(e.pid)
}

// notOfLightning reports whether Lightning hasn't started this process, or has started it on another node
// than the first: Lightning sets no rank but the local one.
func (e *environment) notOfLightning() bool {
	_, world := e.value("WORLD_SIZE")
	_, torchruns := e.value("LOCAL_WORLD_SIZE")
	node, several := e.value("NODE_RANK")
	return !world || torchruns || several && node != "0"
}

// pmiOfSlurm reports whether srun --mpi=pmi2 has set PMI_RANK. MPICH's own launcher sets PMI_RANK too,
// together with the local rank; its ranks may differ from those of the Slurm step that it runs in.
func (e *environment) pmiOfSlurm() bool {
	if e.taskOfSlurm() {
		return true
	}
	if _, ok := e.value("MPI_LOCALRANKID"); ok {
		return false
	}
	same := func(a, b string) bool {
		x, _ := e.value(a)
		y, _ := e.value(b)
		return x == y
	}
	return same("PMI_RANK", "SLURM_PROCID") && same("PMI_SIZE", "SLURM_STEP_NUM_TASKS")
}

// ownStep returns an error if the variables come from a step of another job. If sbatch is called inside a
// step, it copies the step's variables. Slurm then overwrites the variables of the batch script, so the
// two kinds differ. srun sets both alike. srun --preserve-env is an exception, which can't be told from
// such a batch job.
func (e *environment) ownStep(r Rank) error {
	const inherited = "the job was submitted from inside another job's step and has inherited its variables (or srun ran with --preserve-env): unset the SLURM_STEP_ variables before sbatch"
	for _, pair := range [][2]string{
		{"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"},
		{"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"},
	} {
		step, _ := e.value(pair[0])
		if job, ok := e.value(pair[1]); ok && job != step {
			return fmt.Errorf("%s is %.200s, but %s is %.200s: %s", pair[0], step, pair[1], job, inherited)
		}
	}
	// SLURM_GTIDS lists the ranks on this node; for a batch script it lists rank 0 alone.
	ids, ok := e.value("SLURM_GTIDS")
	if n := strings.Count(ids, ",") + 1; ok && r.LocalWorld > 0 && n != r.LocalWorld {
		return fmt.Errorf("SLURM_STEP_TASKS_PER_NODE gives this node %d tasks, but SLURM_GTIDS lists %d: %s", r.LocalWorld, n, inherited)
	}
	return nil
}

func (e *environment) localWorld(l launcher, world int) (int, error) {
	if l.node == "" {
		return e.number(l.localWorld, 1, world)
	}
	node, err := e.number(l.node, 0, world-1)
	if err != nil {
		return 0, err
	}
	list, _ := e.value(l.localWorld)
	tasks, ok := tasksOnNode(list, node)
	if !ok || tasks > world {
		return 0, fmt.Errorf(`%s is %.200q; want a number from 1 to %d for node %d, as in "4(x2),3"`, l.localWorld, list, world, node)
	}
	e.use(l.localWorld, list)
	return tasks, nil
}

// number reads a variable that must be set to a number from low to high.
func (e *environment) number(name string, low, high int) (int, error) {
	value, ok := e.value(name)
	if !ok {
		return 0, fmt.Errorf("%s is not set; want a number from %d to %d", name, low, high)
	}
	n, err := strconv.Atoi(value)
	if err != nil || n < low || n > high {
		return 0, fmt.Errorf("%s is %.60q; want a number from %d to %d", name, value, low, high)
	}
	e.use(name, value)
	return n, nil
}

// use records what was read, or its beginning: the list of a large cluster is long.
func (e *environment) use(name, value string) {
	if text := fmt.Sprintf("%s=%.200s", name, value); !slices.Contains(e.used, text) {
		e.used = append(e.used, text)
	}
}

// tasksOnNode reads Slurm's short form of a list with a number for each node: "4(x2),3" is 4, 4 and 3. It
// returns false if the list is malformed, even after the node, or if it ends before the node.
func tasksOnNode(list string, node int) (tasks int, ok bool) {
	for group := range strings.SplitSeq(list, ",") {
		count, repeat, repeated := strings.Cut(group, "(x")
		nodes := 1
		if repeated {
			var err error
			if nodes, err = strconv.Atoi(strings.TrimSuffix(repeat, ")")); err != nil || nodes < 1 || !strings.HasSuffix(repeat, ")") {
				return 0, false
			}
		}
		n, err := strconv.Atoi(count)
		if err != nil || n < 1 {
			return 0, false
		}
		if !ok && node < nodes {
			tasks, ok = n, true
		}
		if !ok {
			node -= nodes
		}
	}
	return tasks, ok
}
