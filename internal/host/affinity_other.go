//go:build !linux

package host

import "runtime"

// affinity lists as many CPUs as Go counts: if the system knows affinity, Go has
// asked it.
func affinity() ([]int, error) {
	ids := make([]int, runtime.NumCPU())
	for i := range ids {
		ids[i] = i
	}
	return ids, nil
}

// Bound is unknown here.
func Bound() (parents int, bound bool) { return 0, false }
