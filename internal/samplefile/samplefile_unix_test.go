//go:build unix

package samplefile

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNobodyWaitsForAFIFO(t *testing.T) {
	for _, name := range []string{"", ".lock", ".partial"} {
		path := filepath.Join(t.TempDir(), "samples")
		require.NoError(t, syscall.Mkfifo(path+name, 0o644))
		_, err := Open(t.Context(), path, spec("v1", 9), quiet, filled(9, 0, nil))
		require.ErrorContains(t, err, "samples"+name+" is not a regular file: p")
	}
}

func TestAFileAndItsLockHavePermissionsByTheUmask(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o027))
	path := filepath.Join(t.TempDir(), "samples")
	opened(t, path, 9, quiet)
	for _, name := range []string{"", ".lock"} {
		info, err := os.Stat(path + name)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o640), info.Mode().Perm(), name)
	}
}
