//go:build !linux

package host

import "runtime"

// affinity lists as many CPUs as Go counts: if the system has affinities, Go respects them.
func affinity() ([]int, error) {
	ids := make([]int, runtime.NumCPU())
	for i := range ids {
		ids[i] = i
	}
	return ids, nil
}

// Bound returns false: the answer isn't known here.
func Bound() (parents int, bound bool) { return 0, false }
