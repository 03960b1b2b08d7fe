package nwt

import (
	"math"

	"github.com/nwt-go/nwt/internal/host"
	"github.com/nwt-go/nwt/internal/memlimit"
)

// WithMemoryLimit sets how many bytes the process may need, together with the processes that load for it. All
// loaders of the process count. [Tune] chooses no worker count that needs more: see Trial.Memory. If all
// counts need more, Tune returns an error. A loader with [WithAutoWorkers] then logs a warning, and keeps the
// lowest count above 0 that it tried. By default, the process may grow by 80 % of the memory that the
// container or the machine has left, divided by the number of ranks on the host.
func WithMemoryLimit(bytes int64) Option {
	return option("WithMemoryLimit", inTune|inAuto,
		errorIf(bytes < 1, "WithMemoryLimit", bytes, "must be at least 1 byte"),
		func(o *options) { o.maxMemory = bytes }, bytes)
}

// memoryLimit returns how much memory no worker count may need: see Trial.Memory. It must be called before the
// first trial. Files that the process has mapped aren't in it: the system counts their pages as left.
func (s *setup) memoryLimit() memlimit.Limit {
	if s.opts.maxMemory > 0 {
		return memlimit.Limit{Bytes: uint64(s.opts.maxMemory), From: "set by WithMemoryLimit"}
	}
	return memlimit.Of(s.neededNow(), s.opts.machine.Available(), s.opts.ranks())
}

// neededNow returns how much memory the process needs now, as Trial.Memory counts it.
func (s *setup) neededNow() uint64 {
	memory, known := host.OwnMemory()
	if !known {
		memory = host.Memory().RSS
	}
	return memory + s.helpers.Memory(0)
}

// extraShare is the share of the remaining memory that may be used for what a loader could do without.
const extraShare = 1.0 / 8

// shareOfMemory returns extraShare of the memory that is left for this rank, in bytes, or +Inf if that
// isn't known.
func (o *options) shareOfMemory() float64 {
	room := o.machine.Available()
	if room.Of == "" {
		return math.Inf(1)
	}
	return extraShare * float64(room.Bytes) / float64(o.ranks())
}
