//go:build !linux

package host

import "time"

// waitedTime is false: other systems don't say how long threads wait for a CPU.
func waitedTime() (sum time.Duration, ok bool) { return 0, false }
