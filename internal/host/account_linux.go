package host

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// accountNow makes the kernel add what running threads have used since its last tick,
// which was up to 4 or 10 ms ago. Reading a thread's own clock does so; reading the
// process's, or getrusage, doesn't.
func accountNow() {
	for _, clock := range threadClocks() {
		var now unix.Timespec
		_ = unix.ClockGettime(clock, &now) // it may have ended
	}
}

// threadClocks are the clocks of the threads' CPU time, as pthread_getcpuclockid
// makes them.
func threadClocks() (clocks []int32) {
	threads, _ := os.ReadDir("/proc/self/task")
	for _, thread := range threads {
		if tid, err := strconv.Atoi(thread.Name()); err == nil {
			clocks = append(clocks, int32(^tid<<3|6))
		}
	}
	return clocks
}
