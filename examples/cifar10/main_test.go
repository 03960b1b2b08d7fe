package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"

	"github.com/nwt-go/nwt/examples/internal/cifar"
)

func noise(t *testing.T, n int) (dir string) {
	t.Helper()
	dir = t.TempDir()
	require.NoError(t, cifar.WriteSynthetic(filepath.Join(dir, "data_batch_1.bin"), n, 1))
	return dir
}

func TestTheSweepMeasuresEveryWorkerCount(t *testing.T) {
	table := filepath.Join(t.TempDir(), "result.json")
	var stdout, stderr strings.Builder
	err := run(t.Context(), []string{"-dir", noise(t, 100), "-strategy", "exhaustive", "-max-workers", "3",
		"-iterations", "6", "-batch", "10", "-alpha", "1ms", "-json", table}, &stdout, &stderr)
	require.NoError(t, err)
	require.Contains(t, stdout.String(), ": 100 images\n")
	require.Contains(t, stdout.String(), "exhaustive search")
	require.Contains(t, stdout.String(), "memory")
	require.Contains(t, stdout.String(), "An epoch")
	require.NotContains(t, stdout.String(), "NOT CIFAR-10")
	require.Contains(t, stderr.String(), "measuring")
	require.NotContains(t, stderr.String(), "\r")

	data, err := os.ReadFile(table)
	require.NoError(t, err)
	var kept nwt.Result
	require.NoError(t, json.Unmarshal(data, &kept))
	require.Len(t, kept.Trials, 4)
	for workers, trial := range kept.Trials {
		require.Equal(t, workers, trial.Workers)
	}
}

func TestWithoutAFolderNoiseIsLoadedAndSaidToBe(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	t.Setenv("TMP", temp)
	var stdout strings.Builder
	require.NoError(t, run(t.Context(), []string{"-iterations", "2", "-max-workers", "1"}, &stdout, &strings.Builder{}))
	require.True(t, strings.HasPrefix(stdout.String(), "NOT CIFAR-10"))
	left, err := os.ReadDir(temp)
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestWhatCannotRunSaysWhy(t *testing.T) {
	empty, short := t.TempDir(), t.TempDir()
	file := filepath.Join(short, "data_batch_1.bin")
	require.NoError(t, os.WriteFile(file, make([]byte, 3074), 0o644))
	for _, c := range []struct {
		name string
		args []string
		want []string
	}{
		{"a missing folder", []string{"-dir", filepath.Join(empty, "none")}, []string{filepath.Join(empty, "none")}},
		{"an empty folder", []string{"-dir", empty}, []string{empty, "data_batch_*.bin"}},
		{"a damaged file", []string{"-dir", short}, []string{file, "3074 bytes", "3073"}},
		{"bad numbers, all at once", []string{"-dir", noise(t, 1), "-batch", "0", "-iterations", "-1", "-alpha", "-1s"},
			[]string{"WithBatchSize", "WithIterations", "WithAlpha"}},
		{"an unknown strategy", []string{"-strategy", "lucky"}, []string{"lucky", "greedy or exhaustive"}},
		{"an argument", []string{"data"}, []string{`"data"`, "-dir"}},
		{"a table that can't be written", []string{"-dir", noise(t, 10), "-iterations", "1", "-max-workers", "0", "-json", empty}, []string{empty}},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := run(t.Context(), c.args, &strings.Builder{}, &strings.Builder{})
			for _, want := range c.want {
				require.ErrorContains(t, err, want)
			}
		})
	}
}

func TestAnInterruptEndsTheRun(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, run(ctx, []string{"-dir", noise(t, 10)}, &strings.Builder{}, &strings.Builder{}), context.Canceled)
}
