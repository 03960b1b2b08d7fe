package main

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTrainingLearns(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, writeImages(dir, 300))
	var stdout, stderr strings.Builder
	require.NoError(t, run(t.Context(), []string{"-dir", dir, "-batch", "20", "-epochs", "4", "-budget", "200ms"}, &stdout, &stderr))
	out := stdout.String()
	require.NotContains(t, out, "NOT CIFAR-10")
	require.Contains(t, out, "memory", "the tuner's table")
	require.Contains(t, out, "if training never waited", "measured with the training step")
	require.Contains(t, out, "1200 images in")
	require.Contains(t, out, "waiting for them")

	var losses []float64
	for _, m := range regexp.MustCompile(`epoch \d: loss ([\d.]+)`).FindAllStringSubmatch(out, -1) {
		loss, err := strconv.ParseFloat(m[1], 64)
		require.NoError(t, err)
		losses = append(losses, loss)
	}
	require.Len(t, losses, 4)
	require.Less(t, losses[3], losses[0]/2)
}

func TestWithoutAFolderTheImagesAreSaidToBeSynthetic(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	t.Setenv("TMP", temp)
	var stdout strings.Builder
	require.NoError(t, run(t.Context(), []string{"-images", "20", "-batch", "10", "-epochs", "1", "-budget", "10ms"}, &stdout, &strings.Builder{}))
	require.True(t, strings.HasPrefix(stdout.String(), "NOT CIFAR-10"))
	left, err := os.ReadDir(temp)
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestWhatCannotRunSaysWhy(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "none")
	for _, c := range []struct {
		name string
		args []string
		want string
	}{
		{"a missing folder", []string{"-dir", missing}, missing},
		{"no images", []string{"-images", "0"}, "-images 0"},
		{"no epochs", []string{"-epochs", "0"}, "-epochs 0"},
		{"a batch of more than all images", []string{"-images", "5"}, "WithDropLast"},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.ErrorContains(t, run(t.Context(), c.args, &strings.Builder{}, &strings.Builder{}), c.want)
		})
	}
}

func TestTheBackendIsTheOneThatTheEnvironmentNames(t *testing.T) {
	t.Setenv("GOMLX_BACKEND", "go")
	var stdout strings.Builder
	args := []string{"-images", "20", "-batch", "10", "-epochs", "1", "-budget", "10ms"}
	require.NoError(t, run(t.Context(), args, &stdout, &strings.Builder{}))
	require.Regexp(t, `GoMLX's backend: .*Go`, stdout.String())
	for config, want := range map[string]string{
		"abacus":          `GOMLX_BACKEND: can't find backend "abacus"`,
		"xla:/no/such.so": "such.so",
	} {
		t.Setenv("GOMLX_BACKEND", config)
		require.ErrorContains(t, run(t.Context(), args, &strings.Builder{}, &strings.Builder{}), want)
	}
}

func TestAnInterruptEndsTheRun(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, run(ctx, []string{"-images", "40"}, &strings.Builder{}, &strings.Builder{}), context.Canceled)
}
