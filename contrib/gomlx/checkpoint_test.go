package gomlx_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gomlx/gomlx/ml/model"
	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/contrib/gomlx"
)

func TestAModelAndItsStateAreLoadedTogether(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "runs [1]") // no pattern
	var at nwt.State
	found, err := gomlx.LoadCheckpoint(model.NewStore(), dir, &at)
	require.NoError(t, err)
	require.False(t, found)
	for step := 1; step <= 12; step++ {
		store := model.NewStore()
		store.SetParam("step", step)
		require.NoError(t, gomlx.SaveCheckpoint(store, dir, nwt.State{Epoch: 3, Samples: 64 * step, Order: 1<<64 - 1}))

		again := model.NewStore()
		found, err := gomlx.LoadCheckpoint(again, dir, &at)
		require.NoError(t, err)
		require.True(t, found)
		require.Equal(t, nwt.State{Epoch: 3, Samples: 64 * step, Order: 1<<64 - 1}, at)
		value, there := again.GetParam("step")
		require.True(t, there)
		require.EqualValues(t, step, value)
	}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1, "the older ones are removed")
}

func TestACheckpointThatWasNotFinishedIsNotLoaded(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, gomlx.SaveCheckpoint(model.NewStore(), dir, nwt.State{Samples: 64}))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "unfinished"), 0o755)) // killed while it wrote the second
	var at nwt.State
	found, err := gomlx.LoadCheckpoint(model.NewStore(), dir, &at)
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, 64, at.Samples)
	require.NoError(t, gomlx.SaveCheckpoint(model.NewStore(), dir, nwt.State{Samples: 128}), "the next one is written over it")
	_, err = gomlx.LoadCheckpoint(model.NewStore(), dir, &at)
	require.NoError(t, err)
	require.Equal(t, 128, at.Samples)
}

func TestACheckpointThatCannotBeWrittenOrReadIsAnError(t *testing.T) {
	dir := t.TempDir()
	require.ErrorContains(t, gomlx.SaveCheckpoint(model.NewStore(), dir, func() {}), "gomlx: SaveCheckpoint: progress must be what JSON can hold: ")
	require.NoError(t, gomlx.SaveCheckpoint(model.NewStore(), dir, nwt.State{}))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "checkpoint-000000001", "nwt.json"), []byte("{"), 0o600))
	_, err := gomlx.LoadCheckpoint(model.NewStore(), dir, new(nwt.State))
	require.ErrorContains(t, err, "checkpoint-000000001")
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err = gomlx.LoadCheckpoint(model.NewStore(), file, new(nwt.State))
	require.ErrorContains(t, err, "gomlx: the checkpoints: ")
}
