//go:build !linux

package host

import "time"

// queued returns nil: how long threads wait for a CPU isn't known.
func queued() map[int]time.Duration { return nil }
