package main

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A cluster is Slurm with two nodes, n1 and n2, on this machine and 127.0.0.1.
type cluster struct{ dir string }

const slurmConf = `ClusterName=ranks
SlurmctldHost=%[1]s(127.0.0.1)
SlurmctldPort=%[2]d
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
AuthType=auth/munge
AuthInfo=socket=%[3]s/munge.sock,cred_expire=5
SlurmUser=%[4]s
SlurmdUser=%[4]s
StateSaveLocation=%[3]s/state
SlurmdSpoolDir=%[3]s/%%n
SlurmctldPidFile=%[3]s/slurmctld.pid
SlurmdPidFile=%[3]s/%%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
TaskProlog=%[3]s/prolog
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,sched_min_interval=0
KillWait=2
MpiDefault=none
GresTypes=gpu
NodeName=n1 NodeHostname=%[1]s NodeAddr=127.0.0.1 Port=%[5]d CPUs=%[7]d Gres=gpu:%[7]d
NodeName=n2 NodeHostname=%[1]s NodeAddr=127.0.0.1 Port=%[6]d CPUs=%[7]d Gres=gpu:%[7]d
PartitionName=all Nodes=n1,n2 Default=YES MaxTime=10
`

// A node's own disk: the TMPDIR of its tasks.
const prolog = `#!/bin/sh
mkdir -p %[1]s/tmp-$SLURMD_NODENAME
echo export TMPDIR=%[1]s/tmp-$SLURMD_NODENAME
`

// startCluster returns when the nodes take jobs.
func startCluster(t *testing.T) cluster {
	t.Helper()
	for _, program := range []string{"munged", "slurmctld", "slurmd", "sbatch"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(err)
		}
	}
	cpus := runtime.NumCPU()
	if cpus < 2 {
		t.Skip("two ranks per node need two CPUs")
	}
	runtime.LockOSThread() // the daemons end with the thread that started them

	dir, err := os.MkdirTemp("", "slurm") // short: paths of sockets are
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	host, err := os.Hostname()
	require.NoError(t, err)
	host, _, _ = strings.Cut(host, ".")
	me, err := user.Current()
	require.NoError(t, err)
	for _, sub := range []string{"state", "n1", "n2"} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, sub), 0o700))
	}
	key := make([]byte, 128)
	_, _ = rand.Read(key)
	ports := []int{freePort(t), freePort(t), freePort(t)}
	write := func(name, content string, mode os.FileMode) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), mode))
	}
	gpus := make([]string, cpus)
	for i := range gpus {
		gpus[i] = filepath.Join(dir, fmt.Sprint("gpu", i))
		write(filepath.Base(gpus[i]), "", 0o600)
	}
	write("key", string(key), 0o600)
	write("slurm.conf", fmt.Sprintf(slurmConf, host, ports[0], dir, me.Username, ports[1], ports[2], cpus), 0o644)
	write("gres.conf", "Name=gpu File="+strings.Join(gpus, ",")+"\n", 0o644)
	write("prolog", fmt.Sprintf(prolog, dir), 0o755)
	return cluster{dir}.begin(t)
}

func (c cluster) begin(t *testing.T) cluster {
	t.Helper()
	in := func(name string) string { return filepath.Join(c.dir, name) }
	c.daemon(t, "munged", "--foreground", "--force", "--key-file="+in("key"), "--socket="+in("munge.sock"),
		"--pid-file="+in("munged.pid"), "--log-file="+in("munged.log"), "--seed-file="+in("munge.seed"))
	require.Eventually(t, func() bool {
		_, err := os.Stat(in("munge.sock"))
		return err == nil
	}, time.Minute, 10*time.Millisecond)
	c.daemon(t, "slurmctld", "-D")
	c.daemon(t, "slurmd", "-D", "-N", "n1")
	c.daemon(t, "slurmd", "-D", "-N", "n2")
	require.Eventually(t, func() bool {
		out, err := c.command("sinfo", "--noheader", "--format=%D%t").Output()
		return err == nil && strings.TrimSpace(string(out)) == "2idle"
	}, 3*time.Minute, 100*time.Millisecond, "two idle nodes")
	t.Cleanup(func() {
		_ = c.command("scancel", "--user="+os.Getenv("USER"), "--full").Run()
		_ = c.command("scancel", "--partition=all", "--full").Run()
	})
	return c
}

// command is one of Slurm's, for this cluster; it has half a minute.
func (c cluster) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command("timeout", append([]string{"30", name}, args...)...)
	cmd.Env = append(os.Environ(), "SLURM_CONF="+filepath.Join(c.dir, "slurm.conf"))
	return cmd
}

func (c cluster) daemon(t *testing.T, name string, args ...string) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), "SLURM_CONF="+filepath.Join(c.dir, "slurm.conf"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		kill := time.AfterFunc(10*time.Second, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		kill.Stop()
		if t.Failed() {
			t.Logf("%s:\n%s", cmd, log.Bytes())
		}
	})
}

// run returns the output of one of Slurm's commands, which must succeed.
func (c cluster) run(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := c.command(name, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s: %s", cmd, out)
	return strings.TrimSpace(string(out))
}

// state returns that of a job: RUNNING, PENDING, COMPLETED …
func (c cluster) state(t *testing.T, job string) string {
	t.Helper()
	for field := range strings.FieldsSeq(c.run(t, "", "scontrol", "show", "job", job)) {
		if state, ok := strings.CutPrefix(field, "JobState="); ok {
			return state
		}
	}
	t.Fatalf("job %s has no state", job)
	return ""
}

func (c cluster) becomes(t *testing.T, job, state string) {
	t.Helper()
	require.Eventually(t, func() bool { return c.state(t, job) == state }, 3*time.Minute, 100*time.Millisecond, state)
}

// page returns the first block of docs/across-machines.md that holds the text.
func page(t *testing.T, text string) string {
	t.Helper()
	data, err := os.ReadFile("../../docs/across-machines.md")
	require.NoError(t, err)
	for block := range strings.SplitSeq(string(data), "```") {
		if language, code, ok := strings.Cut(block, "\n"); ok && language == "sh" && strings.Contains(code, text) {
			return code
		}
	}
	t.Fatalf("the page has no block with %q", text)
	return ""
}

// inFolder makes the trial's folder what the page's script finds: itself as
// train.sbatch, and a program ./ranks.
func (tr trial) inFolder(t *testing.T, compute time.Duration) {
	t.Helper()
	args := tr.program(compute)
	for i, arg := range args {
		if arg == "-tuning" {
			args = append(args[:i], args[i+2:]...) // as the page has it: on the node's own disk
			break
		}
	}
	script := fmt.Sprintf("#!/bin/sh\nexec env %s=1 %s \"$@\" %s\n", asProgram, args[0], strings.Join(args[1:], " "))
	require.NoError(t, os.WriteFile(filepath.Join(tr.dir, "ranks"), []byte(script), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(tr.dir, "train.sbatch"), []byte(page(t, "#SBATCH")), 0o644))
}

// submit runs the page's script with so many ranks, at most two per node.
func (c cluster) submit(t *testing.T, tr trial, ranks int) (job string) {
	t.Helper()
	return c.run(t, tr.dir, "sbatch", "--parsable", "--nodes=2", fmt.Sprintf("--ntasks=%d", ranks), "--ntasks-per-node=2",
		"--cpus-per-task=1", "--time=5", "train.sbatch")
}

func TestRanksUnderSlurm(t *testing.T) {
	if !*launchers {
		t.Skip("needs -launchers")
	}
	c := startCluster(t)
	t.Run("the page's script stops, is requeued, and goes on with fewer ranks", func(t *testing.T) {
		tr := newTrial(t)
		tr.inFolder(t, aStep)
		job := c.submit(t, tr, 4)
		tr.underway(t, 0)
		c.run(t, "", "scancel", "--signal=TERM", job)
		tr.underway(t, 1) // requeued
		c.run(t, "", "scancel", "--signal=TERM", job)
		c.becomes(t, job, "PENDING")
		c.run(t, "", "scancel", job)

		job = c.submit(t, tr, 3)
		tr.underway(t, 2)
		c.run(t, "", "scancel", "--signal=TERM", job)
		c.becomes(t, job, "PENDING")
		c.run(t, "", "scancel", job)

		tr.inFolder(t, 0)
		job = c.submit(t, tr, 2)
		c.becomes(t, job, "COMPLETED")
		tr.whole(t, "Slurm", 4, 4, 3, 2)
		tr.tunedOnce(t, 0, 0, 1)
		tr.tunedOnce(t, 0, 2, 3)
		for rank := range 4 {
			require.Equal(t, []int{rank % 2, 2}, []int{tr.attempts(t, rank)[0].Rank.LocalRank, tr.attempts(t, rank)[0].Rank.LocalWorld})
		}
	})
	t.Run("a rank that dies ends the job, and it isn't requeued", func(t *testing.T) {
		tr := newTrial(t)
		tr.inFolder(t, aStep)
		job := c.submit(t, tr, 2)
		tr.underway(t, 0)
		c.run(t, "", "scancel", "--signal=KILL", job+".0")
		c.becomes(t, job, "FAILED")
	})
	t.Run("a rank that fails ends the job, and it isn't requeued", func(t *testing.T) {
		tr := newTrial(t)
		tr.rendezvous = "192.0.2.1:29400" // no address of this host
		tr.inFolder(t, 0)
		c.becomes(t, c.submit(t, tr, 3), "FAILED")
	})
	t.Run("pmi2 is Slurm", func(t *testing.T) {
		tr := newTrial(t)
		tr.inFolder(t, 0)
		c.run(t, tr.dir, "srun", "--mpi=pmi2", "--nodes=2", "--ntasks=4", "./ranks")
		tr.whole(t, "Slurm", 4)
		require.Equal(t, 2, tr.attempts(t, 3)[0].Rank.LocalWorld)
	})
	t.Run("a job submitted from a step that it inherits is refused", func(t *testing.T) {
		tr := newTrial(t)
		tr.inFolder(t, 0)
		for _, script := range []string{"--ntasks=1", "--nodes=1"} { // with and without SLURM_NTASKS of its own
			job := c.run(t, tr.dir, "srun", "--ntasks=3", "sh", "-c", `[ "$SLURM_PROCID" != 1 ] ||
				sbatch --parsable `+script+` --output=refused --wrap=./ranks`)
			c.becomes(t, job, "FAILED")
			out, err := os.ReadFile(filepath.Join(tr.dir, "refused"))
			require.NoError(t, err)
			require.Contains(t, string(out), "unset the SLURM_STEP_ variables")
		}
		require.NoError(t, os.WriteFile(filepath.Join(tr.dir, "train.sbatch"), []byte("#!/bin/sh\nexec ./ranks\n"), 0o644))
		out := c.run(t, tr.dir, "srun", "--ntasks=3", "bash", "-c", `[ "$SLURM_PROCID" != 1 ] || { `+page(t, "unset")+`}`)
		c.becomes(t, strings.TrimPrefix(out, "Submitted batch job "), "COMPLETED")
		tr.whole(t, "none", 1)
	})
}
