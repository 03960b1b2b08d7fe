package batches_test

import (
	"context"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/loadertest/kit"
)

// The child is this test in a process of its own: as under ulimit -v, it has few addresses left.
func TestChecksDoNotEndAProgramThatHasFewAddresses(t *testing.T) {
	if kit.RaceDetector {
		t.Skip("the race detector needs many addresses")
	}
	const variable = "NWT_TEST_HAS_FEW_ADDRESSES"
	if os.Getenv(variable) == "" {
		self, err := os.Executable()
		require.NoError(t, err)
		child := exec.Command(self, "-test.run", "^"+t.Name()+"$")
		child.Env = append(os.Environ(), variable+"=1")
		out, err := child.CombinedOutput()
		require.NoError(t, err, string(out))
		return
	}
	statm, err := os.ReadFile("/proc/self/statm")
	require.NoError(t, err)
	pages, err := strconv.Atoi(strings.Fields(string(statm))[0])
	require.NoError(t, err)
	limit := uint64(pages*os.Getpagesize()) + 600<<20
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_AS, &unix.Rlimit{Cur: limit, Max: limit}))
	ds := nwt.NewDataset(2000, []nwt.Field{{Name: "bytes", Type: nwt.Uint8, Shape: []int{1 << 20}}}, func(context.Context, int, *nwt.Sample) error { return nil })
	l := kit.NewLoader(t, nwt.WritesAll(ds), nwt.WithChecks(), nwt.WithBatchSize(32), nwt.WithWorkers(1), nwt.WithPrefetch(2))
	var garbage [][]byte
	for b, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
		if garbage = append(garbage, make([]byte, 8<<20)); b.Number()%10 == 0 { // the program's own
			garbage = nil
		}
	}
}
