package nwt

import (
	"fmt"
	"math"
	"slices"
	"sync/atomic"

	"github.com/nwt-go/nwt/internal/host"
	"github.com/nwt-go/nwt/internal/human"
)

// WithMemoryLimit sets how many bytes the process may need at the count that [Tune] chooses: see
// Trial.Memory. All memory of the process counts, that of other loaders included. [Tune] returns an error
// if no count needs that little; a loader with [WithAutoWorkers] then keeps as few workers as load at
// all, and logs a warning. By default the process may grow by 80 % of the memory that the container or the machine
// has left, divided by the number of ranks on the host.
func WithMemoryLimit(bytes uint64) Option {
	return func(o *options) error {
		o.maxMemory = bytes
		if bytes == 0 {
			return optionError("WithMemoryLimit", bytes, "must be at least 1 byte")
		}
		return nil
	}
}

// memoryShare is the share of the remaining memory that tuning may take if no limit is set.
const memoryShare = 0.8

// memoryLimit is the memory that a trial must not need: see Trial.needs.
type memoryLimit struct {
	bytes uint64 // math.MaxUint64 if it isn't known, so that there is no limit
	from  string // where the limit comes from, for messages
}

// limitFrom lets the processes that share the host grow, together, by 80 % of the memory that the
// container or the machine has left. Each gets an equal part.
func limitFrom(rss uint64, left host.Room, processes int) memoryLimit {
	if left.Of == "" {
		return memoryLimit{bytes: math.MaxUint64, from: "none: " + left.Note}
	}
	l := memoryLimit{
		bytes: rss + uint64(memoryShare*float64(left.Bytes)/float64(processes)),
		from:  fmt.Sprintf("80 %% of the %s that %s has left", human.Bytes(left.Bytes), left.Of),
	}
	if processes > 1 {
		l.from += fmt.Sprintf(", for each of %d processes", processes)
	}
	return l
}

// memoryPeak is the memory that a worker count was measured to need.
type memoryPeak struct {
	workers int
	bytes   uint64
}

// allows predicts the memory that a worker count needs, and returns why that count must not be tried, or "" if
// it may be tried.
//
// The prediction follows the line through the two nearest measured counts: both below, or one below and
// one above. Memory is constant as long as the number of slots is, and then grows with the workers; one
// line through all counts would underestimate that. The prediction is never less than the memory that
// fewer workers took.
func (l memoryLimit) allows(workers int, measured []memoryPeak) (why string) {
	peaks := slices.SortedFunc(slices.Values(measured), func(a, b memoryPeak) int { return a.workers - b.workers })
	at, found := slices.BinarySearchFunc(peaks, workers, func(p memoryPeak, w int) int { return p.workers - w })
	if found {
		if peaks[at].bytes > l.bytes {
			took, limit := l.beside(peaks[at].bytes)
			return fmt.Sprintf("%s took %s: over the limit of %s", countWorkers(workers), took, limit)
		}
		return ""
	}
	if at == 0 {
		return "" // nothing was measured at a lower count
	}
	below := peaks[at-1]
	predicted := float64(below.bytes)
	if at < len(peaks) {
		predicted = max(predicted, extrapolate(below, peaks[at], workers))
	} else if at > 1 {
		predicted = max(predicted, extrapolate(peaks[at-2], below, workers))
	}
	if predicted > float64(l.bytes) {
		needs, limit := l.beside(uint64(predicted))
		return fmt.Sprintf("%s would take about %s (%d took %s): over the limit of %s",
			countWorkers(workers), needs, below.workers, human.Bytes(below.bytes), limit)
	}
	return ""
}

// extrapolate returns the value at a worker count on the line through two peaks.
func extrapolate(a, b memoryPeak, workers int) float64 {
	growth := (float64(b.bytes) - float64(a.bytes)) / float64(b.workers-a.workers)
	return float64(a.bytes) + growth*float64(workers-a.workers)
}

// beside returns what a count needs, and the limit with its origin.
func (l memoryLimit) beside(needs uint64) (string, string) {
	one, limit := human.Apart(needs, l.bytes)
	return one, fmt.Sprintf("%s (%s)", limit, l.from)
}

// memoryLimit returns the peak that no worker count may exceed. It must be called before the first trial.
func (s *source) memoryLimit() memoryLimit {
	if s.opts.maxMemory > 0 {
		return memoryLimit{bytes: s.opts.maxMemory, from: "set by WithMemoryLimit"}
	}
	return limitFrom(host.Memory().RSS, s.opts.machine.Available(), s.opts.ranks())
}

// neededNow returns how much memory the process needs now, as needs counts it.
func neededNow() uint64 {
	if memory, known := host.OwnMemory(); known {
		return memory
	}
	return host.Memory().RSS
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

// A mixedMemory tracks the memory that records take in a loader's shuffle windows.
type mixedMemory struct {
	bytes atomic.Int64
	room  func() float64 // how much they may take before a warning, looked up once
}
