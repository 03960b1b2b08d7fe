package host

import (
	"os"

	"golang.org/x/sys/unix"
)

// affinity lists the CPUs that the process's main thread may run on. Other threads don't count, because
// the program may have locked and moved them.
func affinity() ([]int, error) { return affinityOf(os.Getpid()) }

// Bound reports whether this process may run on fewer CPUs than its parent may, because its starter has
// chosen CPUs for it. It also returns how many CPUs the parent may run on.
func Bound() (parents int, bound bool) {
	own, err := affinity()
	theirs, parentErr := affinityOf(os.Getppid())
	return len(theirs), err == nil && parentErr == nil && len(own) < len(theirs)
}

func affinityOf(pid int) ([]int, error) {
	set := unix.NewCPUSet(1 << 13) // the most CPUs for which Linux can be built
	if err := unix.SchedGetaffinityDynamic(pid, set); err != nil {
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
