package gomlx

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/gomlx/gomlx/ml/model"
	"github.com/gomlx/gomlx/ml/model/checkpoint"
)

const (
	checkpointName = "checkpoint-%09d"
	unfinishedName = "unfinished"
	progressName   = "nwt.json"
)

// SaveCheckpoint writes the model and the progress of its training to a new folder in dir, and then
// removes the previous checkpoint. The progress is an [nwt.State], a struct that holds one, or anything
// else that encoding/json can write. The folder gets its name only when the model and the progress are
// complete, so they belong together even if the program is killed. Only one process may write to dir at
// a time.
func SaveCheckpoint(store *model.Store, dir string, progress any) error {
	text, err := json.Marshal(progress)
	if err != nil {
		return fmt.Errorf("gomlx: SaveCheckpoint: progress must be what JSON can hold: %w", err)
	}
	older, last, err := checkpoints(dir)
	if err != nil {
		return err
	}
	unfinished := filepath.Join(dir, unfinishedName)
	if err := os.RemoveAll(unfinished); err != nil {
		return fmt.Errorf("gomlx: SaveCheckpoint: removing a checkpoint that was left unfinished: %w", err)
	}
	handler, err := checkpoint.Build(store).Dir(unfinished).Done()
	if err == nil {
		err = handler.Save()
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(unfinished, progressName), text, 0o644)
	}
	if err == nil {
		err = os.Rename(unfinished, filepath.Join(dir, fmt.Sprintf(checkpointName, last+1)))
	}
	for i := 0; i < len(older) && err == nil; i++ {
		err = os.RemoveAll(older[i])
	}
	if err != nil {
		return fmt.Errorf("gomlx: SaveCheckpoint: %s: %w", dir, err)
	}
	return nil
}

// LoadCheckpoint reads what [SaveCheckpoint] last wrote to dir. It puts the model into store, and the
// progress into the variable that progress points to. It reports whether there was a checkpoint; if
// there was none, store and progress stay unchanged.
func LoadCheckpoint(store *model.Store, dir string, progress any) (found bool, err error) {
	all, _, err := checkpoints(dir)
	if err != nil || len(all) == 0 {
		return false, err
	}
	last := all[len(all)-1]
	text, err := os.ReadFile(filepath.Join(last, progressName))
	if err == nil {
		err = json.Unmarshal(text, progress)
	}
	if err == nil {
		_, err = checkpoint.Load(store).Dir(last).Immediate().Done()
	}
	if err != nil {
		return false, fmt.Errorf("gomlx: LoadCheckpoint: %s: %w", last, err)
	}
	return true, nil
}

// checkpoints returns the complete checkpoints in dir, in the order in which they were written, and the
// number of the last one.
func checkpoints(dir string) (paths []string, last int, err error) {
	entries, err := os.ReadDir(dir) // sorted by name
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, 0, nil
	case err != nil:
		return nil, 0, fmt.Errorf("gomlx: the checkpoints: %w", err)
	}
	for _, e := range entries {
		n := 0
		if _, scanned := fmt.Sscanf(e.Name(), checkpointName, &n); scanned == nil && e.IsDir() {
			paths, last = append(paths, filepath.Join(dir, e.Name())), n
		}
	}
	return paths, last, nil
}
