package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

// The gate's step that installs launchers sets it.
var launchers = flag.Bool("launchers", false, "run the ranks under mpirun, torchrun and Slurm, as far as they are installed")

// asProgram, set, makes the test's executable the program itself.
const asProgram = "NWT_RANKS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	flag.Parse()
	os.Exit(m.Run())
}

const samples = 40_000

// aStep is how long a step computes in attempts that are stopped: with 8 ranks an epoch
// takes half a minute, which is more than a busy machine needs to deliver a signal.
const aStep = 100 * time.Millisecond

// A trial is a folder in which the ranks of several attempts leave their logs.
type trial struct {
	dir        string
	rendezvous string
}

func newTrial(t *testing.T) trial {
	t.Helper()
	return trial{t.TempDir(), fmt.Sprint("127.0.0.1:", freePort(t))}
}

// freePort is below those that the system gives to clients: a launcher's own would
// take it before a rank listens.
func freePort(t *testing.T) int {
	t.Helper()
	for {
		port := 20_000 + rand.IntN(10_000)
		listener, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", port))
		if err == nil {
			require.NoError(t, listener.Close())
			return port
		}
	}
}

// program returns the command line of a rank.
func (tr trial) program(compute time.Duration) []string {
	return []string{
		os.Args[0], "-samples", strconv.Itoa(samples), "-batch", "16", "-epochs", "1", "-compute", compute.String(),
		"-state", filepath.Join(tr.dir, "state.json"), "-log", tr.dir,
		"-tuning", filepath.Join(tr.dir, "tuning.json"), "-rendezvous", tr.rendezvous,
	}
}

// An attempt is what one rank did from its start to its end.
type attempt struct {
	started
	steps []trained
}

// attempts are those of a rank, in order.
func (tr trial) attempts(t *testing.T, rank int) (all []attempt) {
	t.Helper()
	f, err := os.Open(filepath.Join(tr.dir, fmt.Sprintf("rank-%d.jsonl", rank)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	require.NoError(t, err)
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var begun struct{ Rank *nwt.Rank }
		if json.Unmarshal(lines.Bytes(), &begun) != nil {
			break // is being written
		}
		if begun.Rank != nil {
			all = append(all, attempt{})
			require.NoError(t, json.Unmarshal(lines.Bytes(), &all[len(all)-1].started))
			continue
		}
		var step trained
		require.NoError(t, json.Unmarshal(lines.Bytes(), &step))
		last := &all[len(all)-1]
		last.steps = append(last.steps, step)
	}
	return all
}

// saved returns what the state file says.
func (tr trial) saved(t *testing.T) nwt.State {
	t.Helper()
	at, err := read(filepath.Join(tr.dir, "state.json"))
	require.NoError(t, err)
	return at.State
}

// underway waits until attempt number n has trained some steps.
func (tr trial) underway(t *testing.T, n int) {
	t.Helper()
	require.Eventually(t, func() bool {
		all := tr.attempts(t, 0)
		return len(all) > n && len(all[n].steps) >= 5
	}, 3*time.Minute, 10*time.Millisecond)
}

// whole checks the attempts, which had so many ranks: each begins where the one
// before it ended, and together they trained on every sample once.
func (tr trial) whole(t *testing.T, source string, worlds ...int) {
	t.Helper()
	seen := make([]int, samples)
	var at nwt.State
	for n, world := range worlds {
		var end nwt.State
		for rank := range world {
			all := tr.attempts(t, rank)
			require.Greater(t, len(all), n, "rank %d", rank)
			a := all[n]
			require.Equal(t, source, a.Rank.Source)
			require.Equal(t, []int{rank, world}, []int{a.Rank.Rank, a.Rank.World})
			require.Equal(t, at, a.From, "attempt %d of rank %d begins after the one before", n, rank)
			require.NotEmpty(t, a.steps)
			if rank == 0 {
				end = a.steps[len(a.steps)-1].State
			}
			require.Equal(t, end, a.steps[len(a.steps)-1].State, "attempt %d of rank %d ends with the step of the others", n, rank)
			for _, step := range a.steps {
				for _, index := range step.Indices {
					seen[index]++
				}
			}
		}
		at = end
	}
	for index, times := range seen {
		if times != 1 {
			t.Fatalf("sample %d was trained on %d times", index, times)
		}
	}
	require.Equal(t, nwt.State{Epoch: 1}, tr.saved(t))
}

// tunedOnce checks that one of these ranks tuned in its attempt number n, and the
// others took its answer.
func (tr trial) tunedOnce(t *testing.T, n int, ranks ...int) {
	t.Helper()
	tunings, workers := 0, map[int]bool{}
	for _, rank := range ranks {
		a := tr.attempts(t, rank)[n]
		if !a.Result.Cached {
			tunings++
		}
		workers[a.Workers] = true
	}
	require.Equal(t, 1, tunings)
	require.Len(t, workers, 1)
}

// A launched program is one process, of the launcher, or one for each rank.
type launched []*exec.Cmd

func (l launched) start(t *testing.T) launched {
	t.Helper()
	for _, cmd := range l {
		cmd.Env = append(cmd.Environ(), asProgram+"=1")
		cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
		require.NoError(t, cmd.Start())
		t.Cleanup(func() {
			if cmd.ProcessState == nil {
				_ = cmd.Process.Kill()
				_ = cmd.Wait()
			}
		})
	}
	return l
}

func (l launched) signal(t *testing.T, s os.Signal) {
	t.Helper()
	for _, cmd := range l {
		require.NoError(t, cmd.Process.Signal(s))
	}
}

// statuses are the exit statuses, each once.
func (l launched) statuses() (all []int) {
	for _, cmd := range l {
		_ = cmd.Wait()
		all = append(all, cmd.ProcessState.ExitCode())
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// processes starts a process for each rank, with variables of a launcher.
func processes(variables func(rank, world int) []string) func(t *testing.T, world int, program []string) launched {
	return func(t *testing.T, world int, program []string) (l launched) {
		for rank := range world {
			cmd := exec.CommandContext(t.Context(), program[0], program[1:]...)
			cmd.Env = append(cmd.Environ(), variables(rank, world)...)
			l = append(l, cmd)
		}
		return l
	}
}

var byHand = processes(func(rank, world int) []string {
	return []string{
		fmt.Sprint("RANK=", rank), fmt.Sprint("WORLD_SIZE=", world),
		fmt.Sprint("LOCAL_RANK=", rank), fmt.Sprint("LOCAL_WORLD_SIZE=", world),
	}
})

// asPods sets what an Indexed Job sets in its pods, and its manifest.
var asPods = processes(func(rank, world int) []string {
	return []string{fmt.Sprint("JOB_COMPLETION_INDEX=", rank), fmt.Sprint("WORLD_SIZE=", world)}
})

func TestOneProcessTrainsAlone(t *testing.T) {
	tr := newTrial(t)
	l := launched{exec.CommandContext(t.Context(), os.Args[0], tr.program(0)[1:]...)}.start(t)
	require.Equal(t, []int{0}, l.statuses())
	tr.whole(t, "none", 1)
}

func TestADamagedStateIsNamed(t *testing.T) {
	tr := newTrial(t)
	name := filepath.Join(tr.dir, "state.json")
	for content, want := range map[string]string{
		"{":                `unexpected end of JSON input`,
		`{"Weights": [1]}`: "has 1 weights; the model has 8",
	} {
		require.NoError(t, os.WriteFile(name, []byte(content), 0o644))
		err := run(t.Context(), tr.program(0)[1:], t.Output())
		require.ErrorContains(t, err, name)
		require.ErrorContains(t, err, want)
	}
}
