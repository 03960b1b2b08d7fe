//go:build unix

package pydata_test

import (
	"flag"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

var histories = flag.Int("histories", 1, "random histories")

// Children and templates are killed and stopped while samples hang, fail for a while, or are bad.
func TestEachSampleComesOnceWhateverBecomesOfTheProcesses(t *testing.T) {
	for h := range *histories {
		rng := rand.New(rand.NewPCG(uint64(h), 1))
		dir := t.TempDir()
		c := config(t, `
class Birds:
    def __len__(self): return 400
    def __getitem__(self, i):
        time.sleep(0.001)
        if i % 97 == 5: raise ValueError("bad")
        if i % 31 == 7 and not os.path.exists("`+dir+`/%d" % i):
            open("`+dir+`/%d" % i, "w").close()
            if i % 2: raise ConnectionError("gone for a while")
            time.sleep(1e6)
        return i
made = {"dataset": Birds()}
`)
		c.Timeout = 2 * time.Second
		require.NoError(t, os.WriteFile(filepath.Join(dir, "seen"), nil, 0o600))
		d := open(t, c)
		l, err := nwt.NewLoader(d, nwt.WithBatchSize(1+rng.IntN(40)), nwt.WithShuffle(uint64(h)), nwt.WithWorkers(1+rng.IntN(4)), nwt.WithErrorBudget(400), nwt.WithRetry(20, time.Millisecond))
		require.NoError(t, err)
		over := make(chan struct{})
		var killer sync.WaitGroup
		killer.Go(func() {
			for {
				select {
				case <-over:
					return
				case <-time.After(time.Duration(20+rng.IntN(300)) * time.Millisecond):
				}
				if all := d.Processes(); len(all) > 1 {
					_ = syscall.Kill(all[rng.IntN(len(all))], []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP, syscall.SIGCONT}[rng.IntN(3)])
					if rng.IntN(2) == 0 {
						for _, pid := range d.Processes() {
							_ = syscall.Kill(pid, syscall.SIGCONT)
						}
					}
				}
			}
		})
		for epoch := range 2 {
			seen, bad := map[int64]int{}, map[int]bool{}
			before := len(l.BadSamples())
			for b, err := range l.Epoch(t.Context(), epoch) {
				require.NoError(t, err)
				for _, v := range nwt.Values[int64](b, 0) {
					seen[v]++
				}
			}
			for _, one := range l.BadSamples()[before:] {
				require.False(t, bad[one.Index])
				bad[one.Index] = true
			}
			for i := range 400 {
				require.True(t, (seen[int64(i)] == 1) != bad[i], "history %d: sample %d came %d times, bad: %v", h, i, seen[int64(i)], bad[i])
				if i%97 == 5 {
					require.True(t, bad[i])
				}
			}
		}
		close(over)
		killer.Wait()
		require.NoError(t, l.Close())
	}
}
