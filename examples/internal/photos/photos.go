// Package photos finds images with which to try programs.
package photos

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Bundled returns the folder of the images that come with Go, which Go's tests use. Some of them are
// corrupt on purpose.
func Bundled(ctx context.Context) (string, error) {
	root, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	dir := filepath.Join(strings.TrimSpace(string(root)), "src", "image")
	if _, missing := os.Stat(filepath.Join(dir, "testdata")); err != nil || missing != nil {
		return "", errors.New("the images that come with Go, below image in its sources, aren't here: pass a folder of images with -dir")
	}
	return dir, nil
}
