package main

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// giveWay has no thread of this process take the CPU from the client whose message wakes it.
func giveWay() {
	threads, _ := os.ReadDir("/proc/self/task") // those to come are as the thread that starts them
	for _, thread := range threads {
		id, _ := strconv.Atoi(thread.Name())
		if attr, err := unix.SchedGetAttr(id, 0); err == nil && attr.Policy == unix.SCHED_NORMAL {
			attr.Policy = unix.SCHED_BATCH
			_ = unix.SchedSetAttr(id, attr, 0) // then the client waits longer
		}
	}
}
