package host

import (
	"errors"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestTwoThreadsOnOneCPUMissAnother(t *testing.T) {
	if allowed().usable < 2 || runtime.GOMAXPROCS(0) < 2 {
		t.Skip("takes two CPUs")
	}
	var (
		on             unix.CPUSet
		pinned, joined sync.WaitGroup
		measured       = make(chan struct{})
	)
	on.Set(allowed().ids[0])
	pinned.Add(2)
	for range 2 {
		joined.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			var before unix.CPUSet
			got := unix.SchedGetaffinity(0, &before)
			set := unix.SchedSetaffinity(0, &on)
			pinned.Done()
			for open := true; open; {
				select {
				case <-measured:
					open = false
				default:
				}
			}
			assert.NoError(t, errors.Join(got, set, unix.SchedSetaffinity(0, &before))) // it may be the main thread, which stays
		})
	}
	pinned.Wait()
	meter := StartMissed()
	before, _ := waitedTime(threads())
	time.Sleep(300 * time.Millisecond)
	after, _ := waitedTime(threads())
	// A thread's wait counts once it runs again. On a busy machine that may be a while.
	var use Use
	for began := time.Now(); after > before && use.Missed <= 0.2 && time.Since(began) < time.Minute; {
		time.Sleep(10 * time.Millisecond)
		use = meter.Used()
	}
	close(measured)
	joined.Wait()
	if after == before {
		t.Skip("this kernel doesn't say how long threads wait")
	}
	require.Greater(t, use.Missed, 0.2)
}

// Each thread has a file of its own, and there may be thousands. A container may not let
// the test start as many, so the bound is lowered: a Go program has two threads at least.
func TestOfManyThreadsItIsNotAskedHowLongTheyWait(t *testing.T) {
	before := StartMissed()
	require.True(t, before.missed)
	defer func(bound int) { maxWaiting = bound }(maxWaiting)
	maxWaiting = 1
	require.False(t, StartMissed().missed)
	require.Zero(t, before.Used().Missed)
}
