package files_test

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt/internal/files"
)

func link(t *testing.T, to, path string) {
	t.Helper()
	err := os.Symlink(to, path)
	if _, there := os.Readlink(path); err != nil || there != nil {
		t.Skip("no symbolic links here:", err)
	}
}

func TestLinksAreFollowedToWhereAFileIsOrWouldBe(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "disk", "deep"), 0o755))
	link(t, filepath.Join("disk", "deep"), filepath.Join(dir, "far"))
	link(t, filepath.Join("..", "new"), filepath.Join(dir, "disk", "deep", "a"))
	link(t, filepath.Join("far", "a"), filepath.Join(dir, "b"))
	for path, want := range map[string]string{
		filepath.Join(dir, "none"): filepath.Join(dir, "none"),
		filepath.Join(dir, "b"):    filepath.Join(dir, "disk", "new"),
	} {
		got, err := files.Resolve(path)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	link(t, "round", filepath.Join(dir, "round"))
	_, err = files.Resolve(filepath.Join(dir, "round"))
	require.ErrorContains(t, err, "too many links")

	t.Chdir(dir)
	got, err := files.Resolve("b")
	require.NoError(t, err)
	require.Equal(t, filepath.Join(dir, "disk", "new"), got)
}

func TestOneHoldsALockAndTheOthersWaitUntilTheirContextEnds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := files.Lock(t.Context(), path)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	_, err = files.Lock(ctx, path)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	unlock()
	unlock, err = files.Lock(t.Context(), path)
	require.NoError(t, err)
	unlock()
	require.FileExists(t, path)
}

func TestALockIsNeverTakenOfWhatIsNoFile(t *testing.T) {
	_, err := files.Lock(t.Context(), t.TempDir())
	require.ErrorContains(t, err, "is a folder")
	_, err = files.Lock(t.Context(), filepath.Join(t.TempDir(), "none", "lock"))
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func TestWhatIsSetAsideReplacesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	for i, want := range []string{"file.old", "file.old1", "file.old2"} {
		require.NoError(t, os.WriteFile(path, fmt.Append(nil, i), 0o644))
		kept, err := files.SetAside(path, ".old")
		require.NoError(t, err)
		require.Equal(t, want, filepath.Base(kept))
	}
	for i, name := range []string{"file.old", "file.old1", "file.old2"} {
		data, err := os.ReadFile(filepath.Join(filepath.Dir(path), name))
		require.NoError(t, err)
		require.Equal(t, fmt.Append(nil, i), data)
	}
	require.NoFileExists(t, path)
	_, err := files.SetAside(path, ".old")
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func TestAFileThatIsOpenIsReplacedAndRemoved(t *testing.T) {
	dir := t.TempDir()
	path, next := filepath.Join(dir, "file"), filepath.Join(dir, "next")
	require.NoError(t, os.WriteFile(path, []byte("old"), 0o644))
	require.NoError(t, os.WriteFile(next, []byte("new"), 0o644))
	for _, want := range []string{"old", "new"} {
		f, err := files.Open(path)
		require.NoError(t, err)
		if want == "old" {
			require.NoError(t, files.Replace(t.Context(), next, path))
		} else {
			require.NoError(t, files.Remove(t.Context(), path))
		}
		data := make([]byte, 3)
		_, err = f.ReadAt(data, 0)
		require.NoError(t, err)
		require.Equal(t, want, string(data), "who has it open reads on")
		require.NoError(t, f.Close())
	}
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}
