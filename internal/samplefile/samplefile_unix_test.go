//go:build unix

package samplefile

import (
	"os"
	"os/signal"
	"path/filepath"
	"strings"
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

func TestWhatAFullDiskHasTakenIsKeptAndNoMoreIsClaimed(t *testing.T) {
	var limit, was syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_FSIZE, &was))
	signal.Ignore(syscall.SIGXFSZ)
	defer signal.Reset(syscall.SIGXFSZ)
	const n = 50_000 // some flushes
	path := filepath.Join(t.TempDir(), "samples")
	s := spec("v1", n)
	limit = was
	limit.Cur = 3 << 20
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit))
	_, err := Open(t.Context(), path, s, quiet, filled(n, 0, nil))
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &was))
	require.ErrorIs(t, err, syscall.EFBIG)
	require.Equal(t, 1, strings.Count(err.Error(), "too large"), err.Error())
	var wrote []int
	f, openErr := Open(t.Context(), path, s, quiet, rest(&wrote))
	require.NoError(t, openErr)
	require.Zero(t, requireRight(t, f))
	require.NoError(t, f.Close())
	require.Less(t, len(wrote), n)
}
