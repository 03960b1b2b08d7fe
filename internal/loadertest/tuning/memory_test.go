//go:build !race

package tuning_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/host"
	"github.com/nwt-go/nwt/internal/loadertest/kit"
	"github.com/nwt-go/nwt/internal/osmemory"
)

// decoders load with a decoder of 20 MB for each worker.
func decoders(load time.Duration) nwt.Dataset {
	return nwt.NewDataset(1_000_000, kit.Scalar, func(ctx context.Context, _ int, s *nwt.Sample) error {
		_, err := nwt.Scratch(s, func() ([]byte, error) {
			memory := make([]byte, 20<<20)
			for i := range memory {
				memory[i] = 1
			}
			return memory, nil
		})
		return errorOr(err, kit.Heed(ctx, load))
	})
}

// What workers that left have allocated is in the heap until it is collected. Charged to fewer workers, it
// made memory look as if it didn't grow with workers.
func TestWhatWorkersThatLeftHaveAllocatedIsNotChargedToFewer(t *testing.T) {
	for name, tunes := range map[string]func(t *testing.T, opts ...nwt.Option) *nwt.Result{
		"Tune": func(t *testing.T, opts ...nwt.Option) *nwt.Result {
			return tune(t, decoders(time.Millisecond), append(opts, stepOf(time.Millisecond))...)
		},
		"while training": func(t *testing.T, opts ...nwt.Option) *nwt.Result {
			l := kit.NewLoader(t, decoders(time.Millisecond), append(opts, nwt.WithAutoWorkers(), nwt.WithWorkers(2), kit.Silent)...)
			kit.Train(t, l, 5000, func() { time.Sleep(time.Millisecond) })
			require.NotNil(t, l.Result())
			return l.Result()
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				debug.FreeOSMemory() // as tuning does
				before, known := host.OwnMemory()
				if !known {
					t.Skip("the system doesn't tell the memory that is the process's own")
				}
				r := tunes(t, kit.NewVirtualMachine(2).Option(), nwt.WithMemoryLimit(int64(before)+200<<20))
				require.Equal(t, 8, r.Workers, "%v", r)
				for _, trial := range r.Trials {
					require.InDelta(t, 20*max(1, trial.Workers), (trial.Memory-int64(before))>>20, 25, "MiB of %d workers: %v", trial.Workers, r)
				}
				require.NotEmpty(t, r.RuledOut)
				require.Contains(t, r.RuledOut[len(r.RuledOut)-1].Reason, "16 workers would take about", "%v", r)
			})
		})
	}
}

// The system counts the pages of a mapped file as left, so they may not be counted as the process's too.
func TestAMappedFileDoesNotRaiseTheLimitOfMemory(t *testing.T) {
	if _, known := host.OwnMemory(); !known {
		t.Skip("the system doesn't tell the memory that is the process's own")
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "mapped"))
	require.NoError(t, err)
	defer file.Close()
	require.NoError(t, file.Truncate(400<<20))
	mapped, err := osmemory.MapFile(file, 400<<20)
	require.NoError(t, err)
	defer func() { require.NoError(t, osmemory.UnmapFile(mapped)) }()
	sum := 0
	for i := 0; i < len(mapped); i += 4096 {
		sum += int(mapped[i])
	}
	require.Zero(t, sum)
	synctest.Test(t, func(t *testing.T) {
		m := kit.NewVirtualMachine(2)
		m.Left = 250 << 20 // of which 200 MiB may be used
		debug.FreeOSMemory()
		r := tune(t, decoders(time.Millisecond), m.Option(), stepOf(time.Millisecond))
		require.LessOrEqual(t, r.Workers, 12, "%v", r)
		require.NotEmpty(t, r.RuledOut, "%v", r)
	})
}

const limited = "NWT_TEST_LIMITED"

// A container of 300 MiB: a process that takes more is killed.
func TestTuningIsNotKilledByItsContainer(t *testing.T) {
	if how := os.Getenv(limited); how != "" {
		opts := []nwt.Option{nwt.WithWorkers(2)}
		if how == "Tune" {
			r, err := nwt.Tune(t.Context(), decoders(time.Millisecond), opts...)
			require.NoError(t, err)
			fmt.Println(r)
			return
		}
		l := kit.NewLoader(t, decoders(time.Millisecond), append(opts, nwt.WithAutoWorkers())...)
		kit.Train(t, l, 1000, func() {})
		fmt.Println(l.Result())
		return
	}
	if !*calibrate {
		t.Skip("measured with -calibrate")
	}
	for _, how := range []string{"Tune", "while training"} {
		t.Run(how, func(t *testing.T) {
			group := container(t, 300<<20)
			self, err := os.Executable()
			require.NoError(t, err)
			c := exec.CommandContext(t.Context(), "/bin/sh", "-c", `echo $$ > "$0/cgroup.procs" && exec "$@"`, group, self, "-test.run", "^TestTuningIsNotKilledByItsContainer$", "-test.v")
			c.Env = append(os.Environ(), limited+"="+how)
			out, err := c.CombinedOutput()
			require.NoError(t, err, "%s", out)
			t.Logf("%s", out)
		})
	}
}

// container makes a control group below the test's own whose processes may have so much memory. It skips the
// test where that isn't possible.
func container(t *testing.T, bytes int) (group string) {
	lines, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Skip("no control groups: ", err)
	}
	for line := range strings.Lines(string(lines)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		for mount, limit := range map[string]string{"memory": "memory.limit_in_bytes", "": "memory.max"} {
			group = filepath.Join("/sys/fs/cgroup", mount, f[2], fmt.Sprint("nwt-test-", os.Getpid()))
			if f[1] != mount || os.Mkdir(group, 0o755) != nil {
				continue
			}
			t.Cleanup(func() { require.NoError(t, os.Remove(group)) })
			if os.WriteFile(filepath.Join(group, limit), []byte(strconv.Itoa(bytes)), 0o644) == nil {
				return group
			}
		}
	}
	t.Skip("no control group of memory can be made here")
	return ""
}
