package devices_test

import (
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/loadertest/kit"
)

// locked returns how many bytes of this process are locked into memory.
func locked(t *testing.T) int {
	status, err := os.ReadFile("/proc/self/status")
	require.NoError(t, err)
	kB := regexp.MustCompile(`VmLck:\s+(\d+) kB`).FindSubmatch(status)
	require.NotNil(t, kB)
	n, err := strconv.Atoi(string(kB[1]))
	require.NoError(t, err)
	return n << 10
}

// memlock sets how much memory this thread may lock, without a privilege that
// would lift the limit. The thread ends with the test.
func memlock(t *testing.T, bytes uint64) {
	t.Helper()
	runtime.LockOSThread()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	require.NoError(t, unix.Capget(&header, &caps[0]))
	caps[0].Effective &^= 1 << unix.CAP_IPC_LOCK
	require.NoError(t, unix.Capset(&header, &caps[0]))
	var before unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_MEMLOCK, &before))
	if before.Max < bytes {
		t.Skipf("RLIMIT_MEMLOCK can't be raised to %d bytes: its hard limit is %d", bytes, before.Max)
	}
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: bytes, Max: before.Max}))
	t.Cleanup(func() { require.NoError(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &before)) })
}

func TestTheHostsMemoryIsGivenBack(t *testing.T) {
	if runtime.GOARCH == "s390x" {
		t.Skip("tested under qemu, where madvise doesn't report whether a page is mapped")
	}
	mem, err := nwt.Host().AllocHost(1 << 20)
	require.NoError(t, err)
	require.NoError(t, unix.Madvise(mem, unix.MADV_NORMAL))
	require.NoError(t, nwt.Host().FreeHost(mem))
	require.Error(t, unix.Madvise(mem, unix.MADV_NORMAL))
}

func TestWithoutADriverTheSystemLocksPages(t *testing.T) {
	noDriver(t)
	memlock(t, 1<<20)
	before := locked(t)
	var log kit.Journal
	l := kit.NewLoader(t, kit.Augmented(70), nwt.WithBatchSize(7), nwt.WithWorkers(0), nwt.WithPinned(), log.Option())
	kit.Collect(t, l, 0)
	require.Greater(t, locked(t), before)
	require.NoError(t, l.Close())
	require.Equal(t, before, locked(t))
	require.Empty(t, log.String())
}

func TestWhatMustNotBeLockedIsSaidOnce(t *testing.T) {
	noDriver(t)
	memlock(t, 0)
	before := locked(t)
	var log kit.Journal
	l := kit.NewLoader(t, kit.Augmented(70), nwt.WithBatchSize(7), nwt.WithWorkers(2), nwt.WithPinned(), log.Option())
	kit.Collect(t, l, 0)
	require.Equal(t, before, locked(t))
	require.Equal(t, 1, strings.Count(log.String(), "\n"), &log)
	require.Contains(t, log.String(), "batches of 256 bytes lie in ordinary memory, since page-locked memory was refused")
	require.Contains(t, log.String(), fmt.Sprintf("RLIMIT_MEMLOCK (ulimit -l): %d bytes", 0))
}
