package wds

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAFileInMemoryIsReadAtOnceAndUpToItsEnd(t *testing.T) {
	dir := t.TempDir()
	data := bytes.Repeat([]byte("0123456789abcdef"), 50_000)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a"), data, 0o600))
	s, err := openSource(t.Context(), os.DirFS(dir), "a", &sync.Pool{})
	require.NoError(t, err)
	head := make([]byte, 10)
	if s.memory.read(head) == 0 {
		t.Skip("this file system can't tell what is in memory")
	}
	rest, err := io.ReadAll(s)
	require.NoError(t, err)
	require.True(t, bytes.Equal(data, append(head, rest...)))
	require.Zero(t, s.memory.read(head), "nothing is left")
	require.NoError(t, s.Close())
	require.Zero(t, s.memory.read(head), "it is closed")
}

func TestAFileInMemoryIsNotReadOnceTheContextHasEnded(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a"), make([]byte, 2*bufferSize), 0o600))
	ctx, cancel := context.WithCancel(t.Context())
	s, err := openSource(ctx, os.DirFS(dir), "a", &sync.Pool{})
	require.NoError(t, err)
	defer s.Close()
	_, err = io.CopyN(io.Discard, s, 10)
	require.NoError(t, err)
	cancel()
	_, err = io.Copy(io.Discard, s)
	require.ErrorIs(t, err, context.Canceled)
}
