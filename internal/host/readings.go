package host

import (
	"runtime"
	"time"
)

// Readings are the measurements from which loaders and tuners decide. [Real] reads this machine. A test
// in virtual time makes up its own, because real CPU time divided by virtual time would be meaningless.
type Readings interface {
	Procs() int // how many CPUs Go uses at a time
	CPUs() CPUFacts
	StartCPU() Meter
	Available() Room
	ClockStep() time.Duration
}

// A Meter measures how busy the CPUs are over an interval: see [CPUMeter.Used] and
// [CPUMeter.Note].
type Meter interface {
	Used() Use
	Note() string
}

// Real reads this machine.
var Real Readings = readings{}

type readings struct{}

func (readings) Procs() int               { return runtime.GOMAXPROCS(0) }
func (readings) CPUs() CPUFacts           { return CPUs() }
func (readings) StartCPU() Meter          { return StartCPU() }
func (readings) Available() Room          { return Available() }
func (readings) ClockStep() time.Duration { return ClockStep() }
