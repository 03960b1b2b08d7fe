package host

import (
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
