//go:build unix

package objects_test

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gocloud.dev/blob/fileblob"
)

// Ranks of a host read objects of their own at the same time.
func TestProcessesThatShareACacheStayWithinOneBound(t *testing.T) {
	const ranks, each, size, bound = 12, 40, 400_000, 12 * 8 << 20
	store, dir, rank := os.Getenv("NWT_TEST_STORE"), os.Getenv("NWT_TEST_CACHE"), 0
	if store != "" { // a child
		_, err := fmt.Sscan(os.Getenv("NWT_TEST_RANK"), &rank)
		require.NoError(t, err)
		bucket, err := fileblob.OpenBucket(store, nil)
		require.NoError(t, err)
		defer bucket.Close()
		c := cache(t, bucket, dir, bound)
		for i := range each {
			i += rank * each
			require.True(t, bytes.Equal(noise(i, size), readAll(t, c, fmt.Sprint(i))), i)
		}
		return
	}
	store = t.TempDir()
	for i := range ranks * each {
		require.NoError(t, os.WriteFile(filepath.Join(store, fmt.Sprint(i)), noise(i, size), 0o600))
	}
	for _, locks := range []bool{true, false} {
		t.Run(fmt.Sprint("locks: ", locks), func(t *testing.T) {
			dir := t.TempDir()
			if !locks {
				require.NoError(t, os.Mkdir(filepath.Join(dir, "lock"), 0o700))
			}
			taken := func() (n int64) {
				for _, path := range cacheFiles(t, dir) {
					if info, err := os.Stat(path); err == nil {
						n += info.Sys().(*syscall.Stat_t).Blocks * 512
					}
				}
				return n
			}
			var children []*exec.Cmd
			for rank := range ranks {
				p := exec.Command(os.Args[0], "-test.run=^TestProcessesThatShareACacheStayWithinOneBound$")
				p.Env = append(os.Environ(), "NWT_TEST_STORE="+store, "NWT_TEST_CACHE="+dir, fmt.Sprint("NWT_TEST_RANK=", rank))
				require.NoError(t, p.Start())
				children = append(children, p)
			}
			done := make(chan error)
			go func() {
				var failed error
				for _, p := range children {
					if err := p.Wait(); err != nil {
						failed = err
					}
				}
				done <- failed
			}()
			var most int64
			for over := false; !over; {
				select {
				case err := <-done:
					require.NoError(t, err)
					over = true
				case <-time.After(20 * time.Millisecond):
				}
				for _, p := range children {
					_ = p.Process.Signal(syscall.SIGSTOP)
				}
				time.Sleep(5 * time.Millisecond) // until they have stopped
				most = max(most, taken())
				for _, p := range children {
					_ = p.Process.Signal(syscall.SIGCONT)
				}
			}
			t.Logf("at most %d of %d", most, bound)
			require.LessOrEqual(t, most, int64(bound))
			require.Greater(t, taken(), int64(bound/2))
		})
	}
}

func TestTwoVersionsOfOneSecondAreNotMixed(t *testing.T) {
	var now atomic.Pointer[[]byte]
	var changes atomic.Int32
	put := func(data []byte) { now.Store(&data); changes.Add(1) }
	modified := time.Now()
	s := answering(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", fmt.Sprintf("%q", fmt.Sprint("version ", changes.Load())))
		http.ServeContent(w, r, "a", modified, bytes.NewReader(*now.Load()))
	})
	first, second, third := noise(1, 100_000), noise(2, 100_000), noise(3, 100_000)
	dir := t.TempDir()
	put(first)
	c := cache(t, s.bucket(t, 1), dir, plenty)
	_, err := c.Attributes(t.Context(), "a")
	require.NoError(t, err)
	put(second)
	require.Equal(t, second, readAll(t, c, "a"), "nothing of the first was kept")

	put(first)
	c = cache(t, s.bucket(t, 1), dir, plenty)
	require.Equal(t, first[:10], read(t, c, "a", 0, 10))
	put(third)
	_, err = c.ReadAll(t.Context(), "a")
	require.ErrorContains(t, err, "the object was replaced while it was read")
	require.Equal(t, third, readAll(t, c, "a"))
	c = cache(t, s.bucket(t, 1), dir, plenty)
	require.Equal(t, third, readAll(t, c, "a"))
}
