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

	left, _ := Available()
	require.Positive(t, left)
	require.LessOrEqual(t, left, m.Total)
}

func TestAvailableIsTheLessOfMachineAndContainer(t *testing.T) {
	machine := MemoryFacts{Total: 64, Available: 40}
	for _, tt := range []struct {
		machine MemoryFacts
		limit   MemoryLimit
		want    uint64
	}{
		{machine, MemoryLimit{}, 40},
		{machine, MemoryLimit{Bytes: 16, Used: 4}, 12},
		{machine, MemoryLimit{Bytes: 60, Used: 4}, 40},
		{machine, MemoryLimit{Bytes: 16, Used: 17}, 0},
		{MemoryFacts{}, MemoryLimit{Bytes: 16, Used: 4}, 12},
		{MemoryFacts{}, MemoryLimit{}, 0},
	} {
		require.Equal(t, tt.want, available(tt.machine, tt.limit), "%+v, %+v", tt.machine, tt.limit)
	}
}
