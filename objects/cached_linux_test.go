package objects_test

import (
	"bytes"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"gocloud.dev/blob/memblob"
)

// The limit on the size of a file makes writes fail in their middle, as a full disk does.
func TestACacheOnAFullDiskReadsFromTheStore(t *testing.T) {
	if os.Getenv("NWT_TEST_FULL") == "" {
		p := exec.Command(os.Args[0], "-test.run=^TestACacheOnAFullDiskReadsFromTheStore$")
		p.Env = append(os.Environ(), "NWT_TEST_FULL=1")
		out, err := p.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Equal(t, 1, bytes.Count(out, []byte("WARN")), "%s", out)
		return
	}
	const most = 1_000_001
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: most, Max: most}))
	mem := memblob.OpenBucket(nil)
	defer mem.Close()
	want := noise(1, 20<<20)
	put(t, mem, "a", want)
	c := cache(t, mem, t.TempDir(), plenty)
	for range 3 {
		require.True(t, bytes.Equal(want, readAll(t, c, "a")))
		require.Equal(t, want[999_000:1_100_000], read(t, c, "a", 999_000, 101_000))
		require.Equal(t, want[9<<20:10<<20], read(t, c, "a", 9<<20, 1<<20))
	}
}
