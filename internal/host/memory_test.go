package host

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestThisProcessAndItsMachineHaveMemory(t *testing.T) {
	m := Memory()
	require.Empty(t, m.Note)
	require.Positive(t, m.RSS)
	require.Greater(t, m.Total, m.RSS)
	require.LessOrEqual(t, m.Available, m.Total)

	room := Available()
	require.Positive(t, room.Bytes)
	require.LessOrEqual(t, room.Bytes, m.Total)
}

// HOST_PROC is what makes gopsutil look elsewhere. A /proc of another namespace of
// processes is alike: other processes have the numbers.
func TestTheResidentSetIsThisProcesssWhateverHasItsNumberInAnotherProc(t *testing.T) {
	other := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(other, fmt.Sprint(os.Getpid())), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(other, fmt.Sprint(os.Getpid()), "statm"), []byte("9 1 1 1 0 1 0\n"), 0o600))
	before, note := residentSet()
	require.Empty(t, note)
	t.Setenv("HOST_PROC", other)
	bytes, note := residentSet()
	require.Empty(t, note)
	require.Greater(t, bytes, before/2)
}

func TestAResidentSetThatCannotBeIsNotTakenForOne(t *testing.T) {
	m := machine{root: t.TempDir()}
	_, err := m.resident()
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.NoError(t, os.MkdirAll(m.path("proc/self"), 0o755))
	for status, want := range map[string]uint64{"": 0, "VmRSS:\t-5 kB\n": 0, "VmRSS:\t50\n": 0, "VmRSS:\t50 kB\n": 50 << 10} {
		require.NoError(t, os.WriteFile(m.path("proc/self/status"), []byte(status), 0o600))
		bytes, err := m.resident()
		if want == 0 {
			require.ErrorContains(t, err, "/proc/self/status has no VmRSS", status)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, want, bytes)
	}
}

func TestAvailableIsTheLessOfMachineAndContainer(t *testing.T) {
	machine := MemoryFacts{Total: 64, Available: 40}
	for _, tt := range []struct {
		machine MemoryFacts
		limit   MemoryLimit
		bytes   uint64
		of      string
	}{
		{machine, MemoryLimit{}, 40, "the machine"},
		{machine, MemoryLimit{Bytes: 16, Used: 4}, 12, "the container"},
		{machine, MemoryLimit{Bytes: 60, Used: 4}, 40, "the machine"},
		{machine, MemoryLimit{Bytes: 16, Used: 17}, 0, "the container"},
		{MemoryFacts{}, MemoryLimit{Bytes: 16, Used: 4}, 12, "the container"},
		{MemoryFacts{}, MemoryLimit{}, 0, ""},
	} {
		room := available(tt.machine, tt.limit)
		require.Equal(t, Room{Bytes: tt.bytes, Of: tt.of}, room, "%+v, %+v", tt.machine, tt.limit)
	}
}
