//go:build unix

package nwt_test

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

func TestPrecomputeWaitsForNoFIFO(t *testing.T) {
	for _, name := range []string{"", ".lock", ".partial"} {
		path := filepath.Join(t.TempDir(), "samples")
		require.NoError(t, syscall.Mkfifo(path+name, 0o644))
		_, err := nwt.Precompute(t.Context(), filled(9, 0), path, "v1")
		require.ErrorContains(t, err, "samples"+name+" is not a regular file: p")
	}
}

func TestAPrecomputedFileAndItsLockHavePermissionsByTheUmask(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o027))
	path := filepath.Join(t.TempDir(), "samples")
	precompute(t, filled(9, 0), path)
	for _, name := range []string{"", ".lock"} {
		info, err := os.Stat(path + name)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o640), info.Mode().Perm(), name)
	}
}

func TestWaitingForThePrecomputedFileEndsWithTheContext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "samples")
	begun, release := make(chan struct{}), make(chan struct{})
	slow := nwt.NewDataset(1, filled(1, 0).Fields(), func(context.Context, int, *nwt.Sample) error {
		close(begun)
		<-release
		return nil
	})
	written := make(chan error)
	go func() {
		p, err := nwt.Precompute(context.Background(), slow, path, "v1")
		if err == nil {
			err = p.Close()
		}
		written <- err
	}()
	<-begun
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	_, err := nwt.Precompute(ctx, slow, path, "v1")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	close(release)
	require.NoError(t, <-written)
}

// Somebody removes the lock while it is held, so that two write at once.
func TestAWriterWhoseLockWasRemovedPutsNobodysHalfFileInPlace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "samples")
	begun, go2, wrote := make(chan struct{}), make(chan struct{}), make(chan error)
	second := numbered(20, func(_ context.Context, i int, _ *nwt.Sample) error {
		if i == 10 {
			close(begun)
			<-go2
		}
		return nil
	})
	first := numbered(20, func(_ context.Context, i int, _ *nwt.Sample) error {
		if i == 10 {
			if err := os.Remove(path + ".lock"); err != nil {
				return err
			}
			go func() {
				p, err := nwt.Precompute(t.Context(), second, path, "1", nwt.WithWorkers(1))
				if err == nil {
					err = p.Close()
				}
				wrote <- err
			}()
			<-begun
		}
		return nil
	})
	_, err := nwt.Precompute(t.Context(), first, path, "1", nwt.WithWorkers(1))
	require.ErrorContains(t, err, "samples.partial was removed or replaced while it was written: was")
	require.NoFileExists(t, path)
	close(go2)
	require.NoError(t, <-wrote)
	p, err := nwt.Precompute(t.Context(), numbered(20, func(context.Context, int, *nwt.Sample) error { return errTorn }), path, "1")
	require.NoError(t, err, "the file of the other is whole")
	require.NoError(t, p.Close())
}
