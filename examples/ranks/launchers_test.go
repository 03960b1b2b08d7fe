//go:build unix

package main

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// mpirun finds the mpirun of an MPI: Debian has several side by side.
func mpirun(name, says string) string {
	for _, program := range []string{"mpirun." + name, "mpirun"} {
		out, err := exec.Command(program, "--version").Output()
		if err == nil && strings.Contains(string(out), says) {
			return program
		}
	}
	return "mpirun." + name
}

// torchrunArgs are arguments that Debian's PyTorch 1.13 takes too: it knows only
// underscores, and fails under Python 3.11 if it redirects nothing to a log.
func torchrunArgs(args, logs string) string {
	return "--redirects 1 --tee 1 --log_dir " + logs + " " + regexp.MustCompile(`--[a-z-]+`).ReplaceAllStringFunc(args, func(flag string) string {
		return "--" + strings.ReplaceAll(flag[2:], "-", "_")
	})
}

// ofMPICH are the exit statuses of MPICH's mpirun after ranks that exit with 85: it loses
// them now and then (pmodels/mpich#7057).
var ofMPICH = []int{stopped, 0}

func TestRanksStopTogetherAndFewerGoOnWhereTheyWere(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, source string
		launch       func(t *testing.T, world int, program []string) launched
		program      string
		args         func(dir string, world int) []string
		signal       os.Signal
		status       []int // one of them, after the signal
	}{
		{name: "processes", source: "torchrun", launch: byHand, signal: syscall.SIGTERM, status: []int{stopped}},
		{name: "pods", source: "Kubernetes", launch: asPods, signal: syscall.SIGTERM, status: []int{stopped}},
		{
			name: "Open MPI", source: "Open MPI", program: mpirun("openmpi", "Open MPI"),
			args: func(_ string, world int) []string {
				return []string{"--bind-to", "none", "--oversubscribe", "--allow-run-as-root", "-n", strconv.Itoa(world)}
			},
			signal: syscall.SIGUSR1, status: []int{stopped},
		},
		{
			name: "MPICH", source: "MPICH", program: mpirun("mpich", "HYDRA"),
			args:   func(_ string, world int) []string { return []string{"-n", strconv.Itoa(world)} },
			signal: syscall.SIGTERM, status: ofMPICH,
		},
		{
			name: "torchrun", source: "torchrun", program: "torchrun",
			args: func(dir string, world int) []string {
				return strings.Fields(torchrunArgs("--standalone --nproc-per-node "+strconv.Itoa(world)+" --no-python", dir))
			},
			signal: syscall.SIGTERM, status: []int{1}, // torchrun's own
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tr := newTrial(t)
			launch := tt.launch
			if tt.program != "" {
				if !*launchers {
					t.Skip("needs -launchers")
				}
				path, err := exec.LookPath(tt.program)
				if err != nil {
					t.Skip(err)
				}
				launch = func(t *testing.T, world int, program []string) launched {
					return launched{exec.CommandContext(t.Context(), path, append(tt.args(tr.dir, world), program...)...)}
				}
			}
			worlds := []int{4, 3, 2}
			for n, world := range worlds {
				if n == len(worlds)-1 {
					require.Equal(t, []int{0}, launch(t, world, tr.program(0)).start(t).statuses())
					break
				}
				l := launch(t, world, tr.program(aStep)).start(t)
				tr.underway(t, n)
				l.signal(t, tt.signal)
				require.Subset(t, tt.status, l.statuses())
			}
			tr.whole(t, tt.source, worlds...)
			tr.tunedOnce(t, 0, 0, 1, 2, 3)
		})
	}
}

func TestARankThatDiesEndsTheOthers(t *testing.T) {
	t.Parallel()
	tr := newTrial(t)
	l := byHand(t, 3, tr.program(aStep)).start(t)
	tr.underway(t, 0)
	require.NoError(t, l[1].Process.Kill())
	require.Equal(t, []int{-1, 1}, l.statuses(), "killed; an error")
	left, err := filepath.Glob(filepath.Join(tr.dir, "state.json.*"))
	require.NoError(t, err)
	require.Empty(t, left)
}

// srun then sends SIGTERM to the others, and exits with the greatest of the statuses.
func TestARankThatDiesWhileTheOthersStopIsAFailureToAll(t *testing.T) {
	t.Parallel()
	tr := newTrial(t)
	l := byHand(t, 3, tr.program(aStep)).start(t)
	tr.underway(t, 0)
	require.NoError(t, l[1].Process.Signal(syscall.SIGSTOP))
	require.NoError(t, l[0].Process.Signal(syscall.SIGTERM))
	require.NoError(t, l[2].Process.Signal(syscall.SIGTERM))
	require.NoError(t, l[1].Process.Kill())
	require.Equal(t, []int{-1, 1}, l.statuses(), "killed; an error, not to be started again")
}

func TestARankThatStopsIsNotEndedByAnotherSignal(t *testing.T) {
	t.Parallel()
	tr := newTrial(t)
	l := byHand(t, 3, tr.program(aStep)).start(t)
	tr.underway(t, 0)
	require.NoError(t, l[1].Process.Signal(syscall.SIGSTOP))
	for range 3 {
		require.NoError(t, l[0].Process.Signal(syscall.SIGTERM))
		require.NoError(t, l[2].Process.Signal(syscall.SIGTERM))
		time.Sleep(time.Millisecond)
	}
	require.NoError(t, l[1].Process.Signal(syscall.SIGCONT))
	require.Equal(t, []int{stopped}, l.statuses())
}

func TestARankThatIsToldToStopBeforeTheOthersHaveComeWaitsForThem(t *testing.T) {
	t.Parallel()
	tr := newTrial(t)
	l := byHand(t, 2, tr.program(0))
	l[:1].start(t)
	require.Eventually(t, func() bool {
		conn, err := net.Dial("tcp", tr.rendezvous)
		return err == nil && conn.Close() == nil
	}, time.Minute, time.Millisecond)
	require.NoError(t, l[0].Process.Signal(syscall.SIGTERM))
	l[1:].start(t)
	require.Equal(t, []int{stopped}, l.statuses())
	require.Equal(t, 32, tr.saved(t).Samples, "one step")
}
