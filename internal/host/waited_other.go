//go:build !linux

package host

import "time"

// waitedTime is 0: other systems don't say how long threads wait for a CPU.
func waitedTime() time.Duration { return 0 }
