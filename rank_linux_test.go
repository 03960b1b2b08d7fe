package nwt

import (
	"os"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestARankThatIsBoundHasItsShareOfItsParentsCPUs(t *testing.T) {
	var all, one unix.CPUSet
	require.NoError(t, unix.SchedGetaffinity(os.Getpid(), &all))
	cpus := all.Count()
	if cpus < 2 {
		t.Skip("with one CPU nothing can be bound to fewer")
	}
	t.Cleanup(runtime.SetDefaultGOMAXPROCS)
	runtime.GOMAXPROCS(4 * cpus)
	setenv(t, "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2")
	workers := func() int {
		o, err := newOptions([]Option{WithRankFromEnv()})
		require.NoError(t, err)
		return o.workers
	}
	require.Equal(t, 2*cpus, workers(), "half of GOMAXPROCS")

	for cpu := 0; one.Count() == 0; cpu++ {
		if all.IsSet(cpu) {
			one.Set(cpu)
		}
	}
	require.NoError(t, unix.SchedSetaffinity(os.Getpid(), &one))
	t.Cleanup(func() { require.NoError(t, unix.SchedSetaffinity(os.Getpid(), &all)) })
	require.Equal(t, cpus/2, workers(), "half of the parent's")
	runtime.GOMAXPROCS(1)
	require.Equal(t, 1, workers(), "no more than its own")
}
