package host

import (
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestMemoryThatIsGivenBackAtOnceStillCounts(t *testing.T) {
	const size = 128 << 20
	debug.FreeOSMemory() // so that nothing else is given back meanwhile
	peak := StartPeak()
	before := Memory().RSS
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	require.NoError(t, err)
	for i := 0; i < size; i += 4096 {
		mem[i] = 1
	}
	require.NoError(t, unix.Munmap(mem))

	bytes, exact := peak.Stop()
	if !exact {
		t.Skip(peak.err)
	}
	require.Greater(t, bytes, before+size*9/10)
	require.Less(t, Memory().RSS, before+size/2)

	again := StartPeak()
	bytes, _ = again.Stop()
	require.Less(t, bytes, before+size/2, "the next interval starts anew")
}
