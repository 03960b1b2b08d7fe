package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

const killAt = "GOMLX_TEXT_KILL_AT"

// A killer kills its own program before it writes a line that begins with prefix.
type killer struct{ prefix string }

func (k killer) Write(line []byte) (int, error) {
	if strings.HasPrefix(string(line), k.prefix) {
		self, err := os.FindProcess(os.Getpid())
		if err == nil {
			err = self.Kill()
		}
		if err != nil {
			panic(err)
		}
		select {}
	}
	return os.Stdout.Write(line)
}

func TestMain(m *testing.M) {
	if at := os.Getenv(killAt); at != "" {
		if err := run(context.Background(), os.Args[1:], killer{at}); err != nil {
			panic(err)
		}
		return
	}
	os.Exit(m.Run())
}

var small = []string{"-reviews", "1000", "-every", "5"}

// after returns the lines that tell what came out of training: how often each review was trained
// on, and the accuracy.
func after(out string) []string {
	return regexp.MustCompile(`(?m)^.*(?: times|after training: .*)$`).FindAllString(out, -1)
}

func TestAKilledRunGoesOnAndEndsAsIfItHadNotBeenKilled(t *testing.T) {
	var whole strings.Builder
	require.NoError(t, run(t.Context(), append(small, "-dir", t.TempDir()), &whole))
	want := after(whole.String())
	require.Len(t, want, 4)
	require.Equal(t, "food: each review was trained on at least 3 times and at most 3 times", want[2])
	for _, accuracy := range regexp.MustCompile(`after training: ([\d.]+)`).FindAllStringSubmatch(whole.String(), -1) {
		percent, err := strconv.ParseFloat(accuracy[1], 64)
		require.NoError(t, err)
		require.Greater(t, percent, 75.0)
	}

	dir := t.TempDir()
	// At these lines, what was trained since the last one isn't saved yet.
	for _, at := range []string{"films: epoch 0, 160", "films: epoch 0, 480", "films: epoch 2, 352", "food: epoch 1, 96"} {
		program := exec.CommandContext(t.Context(), os.Args[0], append(small, "-dir", dir)...)
		program.Env = append(os.Environ(), killAt+"="+at)
		said, err := program.CombinedOutput()
		require.Error(t, err, "%s", said)
		require.NotContains(t, string(said), "panic")
	}
	torn := filepath.Join(dir, "food", "checkpoint-n9999999-initial.json") // as a kill while it saves leaves it
	require.NoError(t, os.WriteFile(torn, []byte(`{"Params":`), 0o600))
	var rest strings.Builder
	require.NoError(t, run(t.Context(), append(small, "-dir", dir), &rest))
	require.Contains(t, rest.String(), "food: goes on after")
	require.Equal(t, want, after(rest.String()))

	err := run(t.Context(), []string{"-reviews", "900", "-dir", dir}, &rest)
	require.ErrorContains(t, err, "films has a checkpoint of 1000 reviews, not of 900")
}

func TestALineThatCanNotBeUsedIsNamed(t *testing.T) {
	for name, want := range map[string]string{`{"text":`: "unexpected end", `{"text": "good", "label": 7}`: "label 7", `{"text": "good"}`: "missing or null", `{"text": "good", "label": null}`: "missing or null"} {
		file := filepath.Join(t.TempDir(), "train.jsonl")
		require.NoError(t, os.WriteFile(file, []byte(`{"text": "so good", "label": 1}`+"\n"+name+"\n"), 0o600))
		reviews, _, err := openReviews(file)
		require.NoError(t, err)
		sample, err := nwt.LoadSample(t.Context(), reviews, 0)
		require.NoError(t, err)
		require.EqualValues(t, 1, label.Of(sample)[0])
		_, err = nwt.LoadSample(t.Context(), reviews, 1)
		require.ErrorContains(t, err, "train.jsonl:2")
		require.ErrorContains(t, err, want)
	}
}

func TestTooFewReviewsAreAnError(t *testing.T) {
	require.ErrorContains(t, run(t.Context(), []string{"-reviews", "1"}, &strings.Builder{}), "-reviews 1")
}
