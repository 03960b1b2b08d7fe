//go:build unix

package resultfile

import (
	"encoding/json"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPermissionsFollowTheUmaskAndThenStay(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o027))
	c, _ := testFile(t)
	c.Store(t.Context(), testKey(1000), json.RawMessage("1"))
	mode := func() os.FileMode {
		info, err := os.Stat(c.Path)
		require.NoError(t, err)
		return info.Mode().Perm()
	}
	require.Equal(t, os.FileMode(0o640), mode())
	require.NoError(t, os.Chmod(c.Path, 0o664))
	c.Store(t.Context(), testKey(1000), json.RawMessage("2"))
	require.Equal(t, os.FileMode(0o664), mode())
}

func TestAPipeIsNeitherReadNorLocked(t *testing.T) {
	for _, name := range []string{"", ".lock", ".tune"} {
		c, warnings := testFile(t)
		require.NoError(t, os.MkdirAll(filepath.Dir(c.Path), 0o755))
		require.NoError(t, syscall.Mkfifo(c.Path+name, 0o644))
		c.Store(t.Context(), testKey(1000), json.RawMessage("1"))
		c.Lookup(testKey(1000))
		called := false
		require.NoError(t, c.WhileTuning(t.Context(), func() error { called = true; return nil }))
		require.True(t, called)
		require.Contains(t, warnings.String(), "not a regular file")
	}
}
