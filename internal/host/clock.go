package host

import (
	"runtime"
	"sync"
	"time"
)

// ClockStep is the smallest difference that the clock shows, if the clock is coarse, and otherwise 0.
var ClockStep = sync.OnceValue(func() time.Duration {
	if runtime.GOOS != "windows" {
		return 0
	}
	return stepOf(time.Now)
})

// stepOf returns the smallest of several steps of a clock, because a thread that the system suspends for
// a moment sees some steps as one.
func stepOf(now func() time.Time) time.Duration {
	var least time.Duration
	for range 3 {
		began := now()
		for range 100_000_000 {
			if d := now().Sub(began); d > 0 {
				if least == 0 || d < least {
					least = d
				}
				break
			}
		}
	}
	return least
}
