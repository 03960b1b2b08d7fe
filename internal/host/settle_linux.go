package host

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// settle has the kernel add what running threads have used since its last tick,
// up to 4 ms ago or 10. Reading a thread's own clock does so; reading the
// process's, or getrusage, doesn't.
func settle() {
	threads, _ := os.ReadDir("/proc/self/task")
	for _, thread := range threads {
		if tid, err := strconv.Atoi(thread.Name()); err == nil {
			var now unix.Timespec
			_ = unix.ClockGettime(threadClock(tid), &now)
		}
	}
}

// threadClock is the clock of a thread's CPU time, as pthread_getcpuclockid
// makes it.
func threadClock(tid int) int32 { return int32(^tid<<3 | 6) }
