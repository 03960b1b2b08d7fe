package nwt

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// setenv sets variables for a test: "NAME=value NAME=value …".
func setenv(t *testing.T, assignments string) {
	for assignment := range strings.FieldsSeq(assignments) {
		name, value, _ := strings.Cut(assignment, "=")
		t.Setenv(name, value)
	}
}

func TestTheRankIsLoggedOnceAProcess(t *testing.T) {
	var out strings.Builder
	opts := []Option{WithRankFromEnv(), WithLogger(slog.New(slog.NewTextHandler(&out, nil)))}
	lines := func() int {
		_, err := newOptions(opts)
		require.NoError(t, err)
		return strings.Count(out.String(), "launcher: torchrun")
	}
	setenv(t, "RANK=5 WORLD_SIZE=7")
	require.Equal(t, 1, lines())
	require.Equal(t, 1, lines(), "Tune, NewLoader and each trial read the options anew")
	setenv(t, "RANK=6")
	require.Equal(t, 2, lines(), "another rank is news")
	_, err := newOptions([]Option{WithRankFromEnv(), WithLogger(nil)})
	require.ErrorContains(t, err, "WithLogger")
}

func TestRankFromEnvReadsTheEnvironmentOfTheProcess(t *testing.T) {
	setenv(t, "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4")
	got, err := RankFromEnv(nil)
	require.NoError(t, err)
	require.Equal(t, "rank 5 of 8, 1 of 4 on this host, launcher: torchrun (WORLD_SIZE=8 RANK=5 LOCAL_WORLD_SIZE=4 LOCAL_RANK=1)", got.String())
	none, err := RankFromEnv(func(string) (string, bool) { return "", false })
	require.NoError(t, err)
	require.Equal(t, "rank 0 of 1, 0 of 1 on this host, launcher: none", none.String())
}
