package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/examples/internal/checkpoint"
)

func TestAKilledTrainingGoesOnWithModelStateAndLogTogether(t *testing.T) {
	var schema nwt.Schema
	value := nwt.AddField[float32](&schema, "value")
	ds := nwt.NewDataset(50, schema.Fields(), func(_ context.Context, i int, dst *nwt.Sample) error {
		value.Set(dst, float32(i))
		return nil
	})
	trainedIn := func(kills ...int) (files [2]string) {
		dir := t.TempDir()
		for _, steps := range append(kills, -1) {
			require.NoError(t, trainFrom(t.Context(), dir, ds, value, 3, steps))
		}
		for i, name := range []string{"checkpoint.json", "log.jsonl"} {
			text, err := os.ReadFile(filepath.Join(dir, name))
			require.NoError(t, err)
			files[i] = string(text)
		}
		left, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Len(t, left, 2, "nothing else is left")
		return files
	}
	whole := trainedIn()
	for kill := 1; kill < 14; kill++ {
		require.Equal(t, whole, trainedIn(kill, 2), "killed after %d steps", kill)
	}
}

func TestACheckpointThatCannotBeWrittenLeavesTheOldOne(t *testing.T) {
	path := filepath.Join(t.TempDir(), "checkpoint.json")
	require.NoError(t, checkpoint.Save(path, trained{Weight: 3}))
	require.Error(t, checkpoint.Save(path, trained{Weight: math.NaN()}))
	var at trained
	found, err := checkpoint.Restore(path, &at)
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, 3.0, at.Weight)
	require.NoError(t, os.WriteFile(path, []byte(`{"Weight":`), 0o600))
	_, err = checkpoint.Restore(path, &at)
	require.ErrorContains(t, err, "checkpoint "+path)
	found, err = checkpoint.Restore(path+".none", &at)
	require.NoError(t, err)
	require.False(t, found)
}

func TestReplayGoesOnFromItsCheckpoint(t *testing.T) {
	run := func(stops ...int) (all []int, last *replay) {
		path := filepath.Join(t.TempDir(), "replay.json")
		for _, stop := range stops {
			var err error
			last, err = replayed(t.Context(), path, stop, func(indices []int) { all = append(all, indices...) })
			require.NoError(t, err)
		}
		return all, last
	}
	whole, last := run(25)
	require.Len(t, whole, 25*drawnAhead*replayBatch)
	got, again := run(1, 7, 16, 25)
	require.Equal(t, whole, got)
	require.Equal(t, last.Value, again.Value)
	require.Equal(t, last.Transitions, again.Transitions)
	require.Greater(t, last.Value[1], last.Value[0]+0.3)
	require.Less(t, slices.Max(whole[:drawnAhead*replayBatch]), 30, "only what is stored is drawn")
}

func TestNoNegativeAnswersItsQuestionAndMinedOnesAreHard(t *testing.T) {
	p := madePairing(60)
	l, err := nwt.NewLoader(p, nwt.WithBatchSize(7), nwt.WithShuffle(1))
	require.NoError(t, err)
	defer l.Close()
	for epoch := range 3 {
		for b, err := range l.Epoch(t.Context(), epoch) {
			require.NoError(t, err)
			for k, i := range b.Indices() {
				ids := passageIDs.Of(b)[k*(1+negativesPer) : (k+1)*(1+negativesPer)]
				require.True(t, p.answers(i, int(ids[0])))
				for n, id := range ids[1:] {
					require.False(t, p.answers(i, int(id)))
					require.NotContains(t, ids[:n+1], id)
					if epoch > 0 && n < 2 {
						require.Contains(t, p.hard[i], int(id))
					}
				}
			}
		}
		p.mine(overlap)
	}
	for _, by := range [][]int{nil, {0, 1}} {
		_, err = nwt.LoadSample(t.Context(), &pairing{questions: []answered{{question: make([]int32, questionLen), by: by}}, passages: p.passages[:4], hard: [][]int{nil}}, 0)
		require.ErrorContains(t, err, "answer")
	}
	start := nwt.State{Epoch: 4}
	opts := []nwt.Option{nwt.WithShuffle(1)}
	whole, _ := rest(t, p, opts, start, 1, 7, 0, -1)
	_, state := rest(t, p, opts, start, 2, 3, 2, 3)
	tail, _ := rest(t, p, opts, state, 3, 2, 1, -1)
	for position, sample := range tail {
		require.Equal(t, whole[position], sample)
	}
	p.mine(func(_, passage []int32) float64 { return -float64(passage[0]) })
	for _, err := range l.Resume(t.Context(), state) {
		require.ErrorContains(t, err, "another fingerprint of the dataset", "other negatives were mined")
	}
}

func TestPackedTextsAreCountedOnceUntilAFileChanges(t *testing.T) {
	dir := t.TempDir()
	files, err := writeTexts(dir, 3)
	require.NoError(t, err)
	kept := filepath.Join(dir, "totals.json")
	counts, err := totals(t.Context(), kept, files)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(kept, fmt.Appendf(nil, `{%q: {"Bytes": 1}}`, files[0]), 0o600))
	again, err := totals(t.Context(), kept, files)
	require.NoError(t, err)
	require.Equal(t, counts, again, "what doesn't belong to the file is counted anew")

	info, err := os.Stat(files[1])
	require.NoError(t, err)
	text, err := os.ReadFile(files[1])
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(files[1], slices.Repeat([]byte("z"), len(text)), 0o600))
	require.NoError(t, os.Chtimes(files[1], info.ModTime(), info.ModTime()))
	again, err = totals(t.Context(), kept, files)
	require.NoError(t, err)
	require.Equal(t, counts, again, "what is kept isn't counted")
	require.NoError(t, os.Chtimes(files[1], info.ModTime(), info.ModTime().Add(time.Second)))
	again, err = totals(t.Context(), kept, files)
	require.NoError(t, err)
	require.Equal(t, []int{counts[0], 2, counts[2]}, again)
}

func TestPackedTextsHaveNoRoomButAtTheEndAndGoOnWithOtherRanks(t *testing.T) {
	dir := t.TempDir()
	files, err := writeTexts(dir, 4)
	require.NoError(t, err)
	s, err := packedTexts(t.Context(), dir, files)
	require.NoError(t, err)
	// rows returns the rows from a state on, by their position, as all ranks together load them.
	rows := func(state nwt.State, world, batch, steps int) (rows map[int]string, reached nwt.State) {
		rows = map[int]string{}
		for rank := range world {
			l, err := nwt.NewLoader(nwt.Streamed(s), nwt.WithShuffle(42), nwt.WithRank(rank, world), nwt.WithBatchSize(batch))
			require.NoError(t, err)
			left := steps
			for b, err := range l.Resume(t.Context(), state) {
				require.NoError(t, err)
				for place, position := range b.Indices() {
					rows[position] = string(content(b, 0, place)) + string(content(b, 1, place))
				}
				reached = b.State()
				if left--; left == 0 {
					break
				}
			}
			require.NoError(t, l.Close())
		}
		return rows, reached
	}
	whole, end := rows(nwt.State{Epoch: 1}, 1, 4, -1)
	require.Len(t, whole, end.Samples)
	head, state := rows(nwt.State{Epoch: 1}, 2, 3, 3)
	tail, _ := rows(state, 3, 2, -1)
	for position, row := range whole {
		if position >= state.Samples {
			head[position] = tail[position]
		}
		require.Equal(t, row, head[position], "position %d", position)
	}
}
