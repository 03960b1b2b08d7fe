package nwt_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/nwt-go/nwt"
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
	var log journal
	l := newLoader(t, augmented(70), nwt.WithBatchSize(7), nwt.WithWorkers(0), nwt.WithPinned(true), log.option())
	collect(t, l, 0)
	require.Greater(t, locked(t), before)
	require.NoError(t, l.Close())
	require.Equal(t, before, locked(t))
	require.Empty(t, log.String())
}

func TestWhatMustNotBeLockedIsSaidOnce(t *testing.T) {
	noDriver(t)
	memlock(t, 0)
	before := locked(t)
	var log journal
	l := newLoader(t, augmented(70), nwt.WithBatchSize(7), nwt.WithWorkers(2), nwt.WithPinned(true), log.option())
	collect(t, l, 0)
	require.Equal(t, before, locked(t))
	require.Equal(t, 1, strings.Count(log.String(), "\n"), &log)
	require.Contains(t, log.String(), "batches of 256 bytes lie in ordinary memory, since page-locked memory was refused")
	require.Contains(t, log.String(), fmt.Sprintf("RLIMIT_MEMLOCK (ulimit -l): %d bytes", 0))
}

// refuseFlock has the kernel answer ENOSYS to flock, as Lustre does if it is mounted without it.
func refuseFlock(t *testing.T) {
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}, // the number of the call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: unix.SYS_FLOCK},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		t.Skip("no filters of system calls here:", err)
	}
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&program))); errno != 0 {
		t.Skip("no filters of system calls here:", errno)
	}
	f, err := os.Open(t.TempDir())
	require.NoError(t, err)
	require.ErrorIs(t, unix.Flock(int(f.Fd()), unix.LOCK_EX), unix.ENOSYS)
	require.NoError(t, f.Close())
}

// The children are this test in processes of their own.
func TestPrecomputeWorksWhereThereIsNoFlock(t *testing.T) {
	const variable = "NWT_TEST_WITHOUT_FLOCK"
	if path := os.Getenv(variable); path != "" {
		refuseFlock(t)
		source, loads := counted(2000)
		p := precompute(t, source, path)
		fmt.Println("it has loaded", slices.Max(counts(loads)))
		requireSamples(t, p)
		return
	}
	self, err := os.Executable()
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "samples")
	var out strings.Builder
	var mu sync.Mutex
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			child := exec.Command(self, "-test.v", "-test.run", "^"+t.Name()+"$")
			child.Env = append(os.Environ(), variable+"="+path)
			said, err := child.CombinedOutput()
			mu.Lock()
			defer mu.Unlock()
			if out.Write(said); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if strings.Contains(out.String(), "--- SKIP") {
		t.Skip(out.String())
	}
	require.Equal(t, 1, strings.Count(out.String(), "it has loaded 1"), out.String())
	require.Equal(t, 2, strings.Count(out.String(), "it has loaded 0"), out.String())
	require.NoFileExists(t, path+".lock.held")
}

// The child is this test in a process of its own: as under ulimit -v, it has few addresses left.
func TestChecksDoNotEndAProgramThatHasFewAddresses(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector needs many addresses")
	}
	const variable = "NWT_TEST_HAS_FEW_ADDRESSES"
	if os.Getenv(variable) == "" {
		self, err := os.Executable()
		require.NoError(t, err)
		child := exec.Command(self, "-test.run", "^"+t.Name()+"$")
		child.Env = append(os.Environ(), variable+"=1")
		out, err := child.CombinedOutput()
		require.NoError(t, err, string(out))
		return
	}
	statm, err := os.ReadFile("/proc/self/statm")
	require.NoError(t, err)
	pages, err := strconv.Atoi(strings.Fields(string(statm))[0])
	require.NoError(t, err)
	limit := uint64(pages*os.Getpagesize()) + 600<<20
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_AS, &unix.Rlimit{Cur: limit, Max: limit}))
	ds := nwt.NewDataset(2000, []nwt.Field{{Name: "bytes", Type: nwt.Uint8, Shape: []int{1 << 20}}}, func(context.Context, int, *nwt.Sample) error { return nil })
	l := newLoader(t, nwt.Overwrites(ds), nwt.WithChecks(), nwt.WithBatchSize(32), nwt.WithWorkers(1), nwt.WithPrefetch(2))
	var garbage [][]byte
	for b, err := range l.Epoch(t.Context(), 0) {
		require.NoError(t, err)
		if garbage = append(garbage, make([]byte, 8<<20)); b.Index()%10 == 0 { // the program's own
			garbage = nil
		}
	}
}

// As docker pause, scontrol suspend and a laptop's lid do. The process that is paused is this
// test once more.
func TestCallsOfAPausedProcessAreNotGivenUp(t *testing.T) {
	const child = "NWT_TEST_PAUSED"
	slowly := func() {
		for range 20 {
			time.Sleep(20 * time.Millisecond)
		}
	}
	samples := func() nwt.Dataset {
		return numbered(40, func(context.Context, int, *nwt.Sample) error { slowly(); return nil })
	}
	shards := func() nwt.Dataset {
		return nwt.Streamed(&breaking{shelves: newShelves(10, 10, 10, 10), onNext: func(int, int) error { slowly(); return nil }})
	}
	datasets := map[string]func() nwt.Dataset{"samples": samples, "shards": shards}
	if ds := datasets[os.Getenv(child)]; ds != nil {
		l := newLoader(t, ds(), nwt.WithBatchSize(4), nwt.WithWorkers(4), nwt.WithTimeout(2*time.Second), nwt.WithErrorBudget(40), quietLog)
		n := 0
		for b, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
			if n == 0 {
				fmt.Println("it loads")
			}
			n += b.Len()
		}
		fmt.Println("loaded", n)
		return
	}
	if testing.Short() {
		t.Skip("it takes some seconds")
	}
	for what := range datasets {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(os.Args[0], "-test.run=^TestCallsOfAPausedProcessAreNotGivenUp$")
			cmd.Env = append(os.Environ(), child+"="+what)
			out, err := cmd.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			lines := bufio.NewReader(out)
			first, err := lines.ReadString('\n')
			require.NoError(t, err)
			require.Equal(t, "it loads\n", first)
			require.NoError(t, cmd.Process.Signal(syscall.SIGSTOP))
			time.Sleep(5 * time.Second)
			require.NoError(t, cmd.Process.Signal(syscall.SIGCONT))
			rest, err := io.ReadAll(lines)
			require.NoError(t, err)
			require.NoError(t, cmd.Wait())
			require.True(t, strings.HasPrefix(string(rest), "loaded 40\n"), string(rest))
		})
	}
}
