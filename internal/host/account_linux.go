package host

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// accountNow makes the kernel add what running threads have used since its last tick,
// which was up to 4 or 10 ms ago. Reading a thread's own clock does so; reading the
// process's, or getrusage, doesn't.
func accountNow(threads []int) {
	for _, tid := range threads {
		var now unix.Timespec
		_ = unix.ClockGettime(threadClock(tid), &now) // it may have ended
	}
}

// threadClock is the clock of a thread's CPU time, as pthread_getcpuclockid makes it.
func threadClock(tid int) int32 { return int32(^tid<<3 | 6) }

// threads are those of this process.
func threads() (tids []int) {
	entries, _ := os.ReadDir("/proc/self/task")
	for _, entry := range entries {
		if tid, err := strconv.Atoi(entry.Name()); err == nil {
			tids = append(tids, tid)
		}
	}
	return tids
}

// maxWaiting is how many threads are asked how long they have waited. That takes up to
// 0.1 ms per thread, before and after each visit. Tests change it.
var maxWaiting = 512

// waitedTime is how long threads have been ready to run without running; 0 if the kernel
// doesn't say. It is the second figure of schedstat:
// https://docs.kernel.org/scheduler/sched-stats.html
// It is false if there are too many threads.
func waitedTime(threads []int) (sum time.Duration, ok bool) {
	if len(threads) > maxWaiting {
		return 0, false
	}
	for _, tid := range threads {
		b, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/schedstat", tid))
		if err != nil {
			continue // it may have ended
		}
		if f := strings.Fields(string(b)); len(f) == 3 {
			ns, _ := strconv.ParseInt(f[1], 10, 64)
			sum += time.Duration(ns)
		}
	}
	return sum, true
}
