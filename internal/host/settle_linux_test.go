package host

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestCPUTimeDoesNotWaitForTheKernelsTicks(t *testing.T) {
	var stop atomic.Bool
	var busy sync.WaitGroup
	busy.Go(func() {
		for !stop.Load() {
		}
	})
	defer busy.Wait()
	defer stop.Store(true)

	var behind []time.Duration // the threads' own clocks
	for i := range 50 {
		time.Sleep(time.Duration(2000+37*i) * time.Microsecond)
		process, err := cpuTime()
		require.NoError(t, err)
		behind = append(behind, threadsTime(t)-process)
	}
	slices.Sort(behind)
	// They differ by what threads used that have ended; and sometimes by a pause
	// between the two readings.
	require.Less(t, behind[40]-behind[10], time.Millisecond)
}

func threadsTime(t *testing.T) (sum time.Duration) {
	tids := threads()
	require.NotEmpty(t, tids)
	for _, tid := range tids {
		var used unix.Timespec
		if unix.ClockGettime(threadClock(tid), &used) == nil { // it hasn't ended
			sum += time.Duration(used.Nano())
		}
	}
	return sum
}
