package nwt_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

// launchDir, set, makes TestRankProgram a process of a launched program, which
// leaves what it did in that folder.
const launchDir = "NWT_TEST_LAUNCH_DIR"

// A rankReport is what a rank of the launched program did.
type rankReport struct {
	Rank    nwt.Rank
	Workers int     // that it tuned, or took over
	Cached  bool    // took over
	Batches [][]int // indices
}

const launchedSamples = 1003

// TestRankProgram is the program that mpirun starts: it tunes once for the host,
// and loads an epoch.
func TestRankProgram(t *testing.T) {
	dir := os.Getenv(launchDir)
	if dir == "" {
		t.Skip("it is the program that TestRanksUnderMPIRunShareAnEpochAndOneTuning starts")
	}
	ds := augmented(launchedSamples)
	opts := []nwt.Option{
		nwt.WithLauncher(), nwt.WithShuffle(1), nwt.WithBatchSize(16),
		nwt.WithResultCache(filepath.Join(dir, "tuning.json")), nwt.WithMaxWorkers(2), nwt.WithIterations(5),
	}
	tuned, err := nwt.Tune(t.Context(), ds, opts...)
	require.NoError(t, err)
	r, err := nwt.RankFromEnv(nil)
	require.NoError(t, err)
	report := rankReport{Rank: r, Workers: tuned.Workers, Cached: tuned.Cached}
	l, err := nwt.NewLoader(ds, append(opts, nwt.WithWorkers(tuned.Workers))...)
	require.NoError(t, err)
	defer l.Close()
	for b, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
		report.Batches = append(report.Batches, slices.Clone(b.Indices()))
	}
	data, err := json.Marshal(report)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("rank-%d.json", r.Rank)), data, 0o644))
}

func TestRanksUnderMPIRunShareAnEpochAndOneTuning(t *testing.T) {
	if testing.Short() {
		t.Skip("starts four processes")
	}
	version, err := exec.CommandContext(t.Context(), "mpirun", "--version").Output()
	if err != nil {
		t.Skipf("no mpirun: %v", err)
	}
	const world = 4
	args, launcher := []string{"-n", fmt.Sprint(world)}, "MPICH"
	if strings.Contains(string(version), "Open MPI") || strings.Contains(string(version), "OpenRTE") {
		args, launcher = append(args, "--oversubscribe", "--allow-run-as-root"), "Open MPI"
	}
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "mpirun", append(args, os.Args[0], "-test.run=^TestRankProgram$")...)
	cmd.Env = append(os.Environ(), launchDir+"="+dir)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)

	var reports []rankReport
	for rank := range world {
		data, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("rank-%d.json", rank)))
		require.NoError(t, err)
		var r rankReport
		require.NoError(t, json.Unmarshal(data, &r))
		require.Equal(t, launcher, r.Rank.Source)
		require.Equal(t, []int{rank, world, rank, world}, []int{r.Rank.Rank, r.Rank.World, r.Rank.LocalRank, r.Rank.LocalWorld})
		reports = append(reports, r)
	}

	var seen []int
	tunings := 0
	for _, r := range reports {
		require.Len(t, r.Batches, len(reports[0].Batches), "a rank with fewer batches would leave the others waiting")
		for i, indices := range r.Batches[:len(r.Batches)-1] {
			require.Len(t, indices, 16, "batch %d", i)
		}
		seen = append(seen, slices.Concat(r.Batches...)...)
		require.Equal(t, reports[0].Workers, r.Workers)
		if !r.Cached {
			tunings++
		}
	}
	slices.Sort(seen)
	require.Equal(t, launchedSamples, len(seen), "disjoint")
	require.Equal(t, launchedSamples, len(slices.Compact(seen)), "and complete")
	require.Equal(t, 1, tunings, "one rank tunes, the others take its answer")
}
