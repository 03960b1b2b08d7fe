package host

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// accountNow makes the kernel add the CPU time that running threads have used since its last tick, which
// was up to 4 or 10 ms ago. Reading a thread's own clock does so; reading the process's clock, or
// getrusage, doesn't.
func accountNow() {
	for _, tid := range threads() {
		var now unix.Timespec
		_ = unix.ClockGettime(threadClock(tid), &now) // the thread may have ended
	}
}

// threadClock returns the clock of a thread's CPU time, as pthread_getcpuclockid makes it.
func threadClock(tid int) int32 { return int32(^tid<<3 | 6) }

// threads returns the threads of this process.
func threads() (tids []int) {
	entries, _ := os.ReadDir("/proc/self/task")
	for _, entry := range entries {
		if tid, err := strconv.Atoi(entry.Name()); err == nil {
			tids = append(tids, tid)
		}
	}
	return tids
}
