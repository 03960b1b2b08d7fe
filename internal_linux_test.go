package nwt

import (
	"bytes"
	"context"
	"log/slog"
	"math"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/nwt-go/nwt/internal/cache"
)

func TestSamplesForWhichThereIsNoMemoryAreLoadedAnewAndThatIsLogged(t *testing.T) {
	if math.MaxInt == math.MaxInt32 {
		t.Skip("all of the address space is less than memory")
	}
	const n = 9
	loads := 0
	ds := Cached(NewDataset(n, []Field{{Name: "i", Type: Int64}}, func(_ context.Context, i int, dst *Sample) error {
		loads++
		Values[int64](dst, 0)[0] = int64(i)
		return nil
	}), math.MaxInt64)
	ds.kept = cache.New(n, 1<<50, math.MaxInt64) // nobody has as much memory
	var log bytes.Buffer
	l, err := NewLoader(ds, WithWorkers(0), WithBatchSize(n), WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	require.NoError(t, err)
	for epoch := range 2 {
		for b, err := range l.Epoch(t.Context(), epoch) {
			require.NoError(t, err)
			for i, value := range Values[int64](b, 0) {
				require.EqualValues(t, i, value)
			}
		}
	}
	require.Equal(t, 2*n, loads)
	require.Equal(t, 1, strings.Count(log.String(), "there is no memory for more cached samples; the others are loaded anew"))
	require.Contains(t, log.String(), "cannot allocate memory")
	require.EqualValues(t, 8*n, l.Stats().DatasetBytes)
	require.NoError(t, l.Close())
	require.NoError(t, ds.Close())
}

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
