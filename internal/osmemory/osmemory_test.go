package osmemory_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt/internal/osmemory"
)

func TestMappedMemoryIsZeroAndCanBeWritten(t *testing.T) {
	mem, err := osmemory.Map(10_000)
	require.NoError(t, err)
	require.Len(t, mem, 10_000)
	for i, b := range mem {
		require.Zero(t, b)
		mem[i] = byte(i)
	}
	require.EqualValues(t, 0x0f, mem[9999]&0x0f)
	require.NoError(t, osmemory.Unmap(mem))
}

func TestAMappingOfNothingIsAnError(t *testing.T) {
	for _, size := range []int{0, -1} {
		_, err := osmemory.Map(size)
		require.Error(t, err, size)
	}
}

func TestAMappedFileIsWhatWasWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(path, []byte("samples"), 0o600))
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	mem, err := osmemory.MapFile(f, 7)
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip("this system can't map files")
	}
	require.NoError(t, err)
	require.Equal(t, "samples", string(mem))
	require.NoError(t, osmemory.UnmapFile(mem))
}
