package host

import (
	"os"

	"golang.org/x/sys/unix"
)

// affinity lists the CPUs that the process's main thread may run on: a thread
// of Go's may have been locked and moved by whoever owns it.
func affinity() ([]int, error) {
	set := unix.NewCPUSet(1 << 13) // the most CPUs that Linux can be built for
	if err := unix.SchedGetaffinityDynamic(os.Getpid(), set); err != nil {
		return nil, os.NewSyscallError("sched_getaffinity", err)
	}
	var ids []int
	for id := range 1 << 13 {
		if set.IsSet(id) {
			ids = append(ids, id)
		}
	}
	return ids, nil
}
