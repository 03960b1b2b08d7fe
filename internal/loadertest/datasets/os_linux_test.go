package datasets_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

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
		fmt.Println("it has loaded", counts(loads)[1:3])
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
	require.Equal(t, 1, strings.Count(out.String(), "it has loaded [1 1]"), out.String())
	require.Equal(t, 2, strings.Count(out.String(), "it has loaded [0 0]"), out.String())
	require.NoFileExists(t, path+".lock.held")
}
