// Package memlimit predicts how much memory a worker count needs, and refuses counts that need more than
// a limit.
package memlimit

import (
	"fmt"
	"math"
	"slices"

	"github.com/nwt-go/nwt/internal/host"
	"github.com/nwt-go/nwt/internal/human"
)

// share is the share of the remaining memory that tuning may take if no limit is set.
const share = 0.8

// A Limit is the memory that a worker count must not need.
type Limit struct {
	Bytes uint64 // math.MaxUint64 if it isn't known, so that there is no limit
	From  string // where the limit comes from, for messages
}

// Of lets the processes that share the host grow, together, by 80 % of the memory that the
// container or the machine has left. Each gets an equal part. This one needs so much now.
func Of(now uint64, left host.Room, processes int) Limit {
	if left.Of == "" {
		return Limit{Bytes: math.MaxUint64, From: "none: " + left.Note}
	}
	l := Limit{
		Bytes: now + uint64(share*float64(left.Bytes)/float64(processes)),
		From:  fmt.Sprintf("80 %% of the %s that %s has left", human.Bytes(left.Bytes), left.Of),
	}
	if processes > 1 {
		l.From += fmt.Sprintf(", for each of %d processes", processes)
	}
	return l
}

// A Peak is the memory that a worker count was measured to need, at the end of its windows.
type Peak struct {
	Workers int
	Bytes   uint64
}

// Predict predicts the memory that a worker count needs, and returns why that count must not be tried, or "" if
// it may be tried.
//
// The prediction follows the line through the two nearest measured counts: both below, or one below and
// one above. Memory is constant as long as the number of slots is, and then grows with the workers; one
// line through all counts would underestimate that. The prediction is never less than the memory that
// fewer workers took.
func (l Limit) Predict(workers int, measured []Peak) (why string) {
	peaks := slices.SortedFunc(slices.Values(measured), func(a, b Peak) int { return a.Workers - b.Workers })
	at, found := slices.BinarySearchFunc(peaks, workers, func(p Peak, w int) int { return p.Workers - w })
	if found {
		if peaks[at].Bytes > l.Bytes {
			took, limit := l.beside(peaks[at].Bytes)
			return fmt.Sprintf("%s took %s: over the limit of %s", human.Workers(workers), took, limit)
		}
		return ""
	}
	if at == 0 {
		return "" // nothing was measured at a lower count
	}
	below := peaks[at-1]
	predicted := float64(below.Bytes)
	if at < len(peaks) {
		predicted = max(predicted, extrapolate(below, peaks[at], workers))
	} else if at > 1 {
		predicted = max(predicted, extrapolate(peaks[at-2], below, workers))
	}
	if predicted > float64(l.Bytes) {
		needs, limit := l.beside(uint64(predicted))
		return fmt.Sprintf("%s would take about %s (%d took %s): over the limit of %s",
			human.Workers(workers), needs, below.Workers, human.Bytes(below.Bytes), limit)
	}
	return ""
}

// extrapolate returns the value at a worker count on the line through two peaks.
func extrapolate(a, b Peak, workers int) float64 {
	growth := (float64(b.Bytes) - float64(a.Bytes)) / float64(b.Workers-a.Workers)
	return float64(a.Bytes) + growth*float64(workers-a.Workers)
}

// Over returns why a count that needs so many bytes must not be tried, or "" if it may be.
func (l Limit) Over(workers int, needs uint64) (why string) {
	if needs <= l.Bytes {
		return ""
	}
	about, limit := l.beside(needs)
	return fmt.Sprintf("%s would take about %s: over the limit of %s", human.Workers(workers), about, limit)
}

// beside returns what a count needs, and the limit with its origin.
func (l Limit) beside(needs uint64) (string, string) {
	one, limit := human.Apart(needs, l.Bytes)
	return one, fmt.Sprintf("%s (%s)", limit, l.From)
}
