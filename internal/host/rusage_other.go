//go:build !unix

package host

import "time"

// cpuTime returns the CPU time that this process has used so far.
func cpuTime() (time.Duration, error) {
	p, err := self()
	if err != nil {
		return 0, err
	}
	t, err := p.Times()
	if err != nil {
		return 0, err
	}
	return time.Duration((t.User + t.System) * float64(time.Second)), nil
}

// lifePeak returns the largest resident set of this process in its whole life, or 0 if the system doesn't
// record it.
func lifePeak() uint64 { return 0 }
