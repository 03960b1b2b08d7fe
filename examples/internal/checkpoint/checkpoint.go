// Package checkpoint saves and restores what training needs to continue. Copy it into your program.
package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Save replaces the file of a checkpoint. It writes a new file, and renames it once it is on the disk: at
// every moment, the old checkpoint or the new one is there, whole.
func Save(path string, checkpoint any) (err error) {
	data, err := json.Marshal(checkpoint)
	if err != nil {
		return err
	}
	dir := filepath.Dir(path)
	file, err := os.CreateTemp(dir, filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name()) // fails once it is renamed
	_, err = file.Write(data)
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	if err := os.Rename(file.Name(), path); err != nil {
		return err
	}
	folder, err := os.Open(dir) // the new name must be on the disk, too
	if err != nil {
		return err
	}
	_ = folder.Sync() // not every file system can do it
	return folder.Close()
}

// Restore reads a checkpoint, and reports whether there is one.
func Restore(path string, checkpoint any) (found bool, err error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err == nil {
		err = json.Unmarshal(data, checkpoint)
	}
	if err != nil {
		return false, fmt.Errorf("checkpoint %s: %w", path, err)
	}
	return true, nil
}
