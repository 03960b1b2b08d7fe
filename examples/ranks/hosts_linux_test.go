package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Hosts are node1 and node2: namespaces of this machine with names, addresses and
// a cable of their own. An ssh that isn't one leads from one to the other.
type hosts struct {
	dir   string
	nodes map[string]*exec.Cmd // a process that keeps the namespaces
}

const ssh = `#!/bin/sh
while [ "${1#-}" != "$1" ]; do
	case $1 in -[bcDEeFIiJLlmOopQRSWw]) shift ;; esac
	shift
done
host=$1
shift
exec nsenter --target "$(cat %[1]s/$host)" --net --uts --mount env PATH="%[1]s:$PATH" sh -c "$*"
`

func startHosts(t *testing.T) hosts {
	t.Helper()
	dir, err := os.MkdirTemp("", "hosts")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	h := hosts{dir, map[string]*exec.Cmd{}}
	write := func(name, content string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o755))
	}
	write("ssh", fmt.Sprintf(ssh, dir))
	write("hosts", "127.0.0.1 localhost\n10.77.0.1 node1\n10.77.0.2 node2\n")
	for _, node := range []string{"node1", "node2"} {
		cmd := exec.Command("unshare", "--net", "--uts", "--mount", "sh", "-c",
			"hostname "+node+" && mount --bind "+filepath.Join(dir, "hosts")+" /etc/hosts && ip link set lo up && echo ready && exec sleep 600")
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		if err := cmd.Start(); err != nil {
			t.Skip("two hosts need namespaces: ", err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		if !bufio.NewScanner(out).Scan() {
			t.Skip("two hosts need namespaces, hence root and iproute2")
		}
		h.nodes[node] = cmd
		write(node, fmt.Sprint(cmd.Process.Pid))
	}
	link := fmt.Sprintf("ip link add eth0 netns %d type veth peer name eth0 netns %d", h.nodes["node1"].Process.Pid, h.nodes["node2"].Process.Pid)
	if out, err := exec.Command("sh", "-c", link).CombinedOutput(); err != nil {
		t.Skipf("two hosts need a cable: %s: %s", link, out)
	}
	for n, node := range []string{"node1", "node2"} {
		up := fmt.Sprintf("ip addr add 10.77.0.%d/24 dev eth0 && ip link set eth0 up", n+1)
		out, err := h.on(node, up).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	return h
}

// on returns a command line of a host's shell, which is replaced by the command.
func (h hosts) on(node, line string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(h.dir, "ssh"), node, line)
	cmd.Env = append(os.Environ(), "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1")
	return cmd
}

func TestRanksOverTwoHosts(t *testing.T) {
	if !*launchers {
		t.Skip("needs -launchers")
	}
	commands := regexp.MustCompile(`(?m)^(mpirun|torchrun) .*node1[^#\n]*`).FindAllString(page(t, "--host node1")+page(t, "torchrun"), -1)
	require.Len(t, commands, 3)
	for i, tt := range []struct {
		source, program string
		nodes           []string // on which the command is given
		signal          os.Signal
		status          []int // one of them
	}{
		{"Open MPI", mpirun("openmpi", "Open MPI"), []string{"node1"}, syscall.SIGUSR1, []int{stopped}},
		{"MPICH", mpirun("mpich", "HYDRA"), []string{"node1"}, syscall.SIGTERM, ofMPICH},
		{"torchrun", "torchrun", []string{"node1", "node2"}, syscall.SIGTERM, []int{1}},
	} {
		t.Run(tt.source, func(t *testing.T) {
			if _, err := exec.LookPath(tt.program); err != nil {
				t.Skip(err)
			}
			h := startHosts(t)
			tr := newTrial(t)
			tr.rendezvous = "node1:29400"
			_, args, _ := strings.Cut(commands[i], " ")
			if tt.source == "torchrun" {
				args = torchrunArgs(args, tr.dir)
			}
			launch := func(compute time.Duration) (l launched) {
				tr.inFolder(t, compute)
				for _, node := range tt.nodes {
					l = append(l, h.on(node, "cd "+tr.dir+" && exec "+tt.program+" "+args))
				}
				return l.start(t)
			}
			l := launch(aStep)
			tr.underway(t, 0)
			l.signal(t, tt.signal)
			require.Subset(t, tt.status, l.statuses())
			require.Equal(t, []int{0}, launch(0).statuses())
			tr.whole(t, tt.source, 8, 8)
			require.Equal(t, []int{1, 4}, []int{tr.attempts(t, 5)[0].Rank.LocalRank, tr.attempts(t, 5)[0].Rank.LocalWorld})
		})
	}
}
