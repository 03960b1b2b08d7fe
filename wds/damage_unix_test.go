//go:build unix

package wds_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/wds"
)

func TestAFIFOOrADirectoryInAShardsPlaceIsNamedAtOnce(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, unix.Mkfifo(filepath.Join(dir, "fifo.tar"), 0o600))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "dir.tar"), 0o700))
	require.NoError(t, os.Symlink("/dev/zero", filepath.Join(dir, "zero.tar")))
	for name, want := range map[string]string{
		"fifo.tar": "fifo.tar: not a regular file: p", "dir.tar": "dir.tar: not a regular file: d", "zero.tar": "zero.tar: not a regular file: D",
	} {
		s, err := wds.New(os.DirFS(dir), []string{name}, fields, load)
		require.NoError(t, err)
		_, _, err = epoch(t, nwt.Streamed(s))
		require.ErrorContains(t, err, want)
	}
}
