package kit

import (
	"cmp"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/host"
	"github.com/nwt-go/nwt/internal/testhook"
)

// ResidentMemory returns what this process has in memory, counted by pages if the system does
// that: what it says otherwise lags behind by some pages for each CPU.
func ResidentMemory() uint64 {
	text, _ := os.ReadFile("/proc/self/smaps_rollup")
	for line := range strings.Lines(string(text)) {
		var kB uint64
		if _, err := fmt.Sscanf(line, "Rss: %d kB", &kB); err == nil {
			return kB << 10
		}
	}
	return host.Memory().RSS
}

// A VirtualMachine is what is read of a machine in a bubble of testing/synctest. Its
// CPUs are busy for as long as Compute is told.
type VirtualMachine struct {
	cpus chan struct{} // a place for each that computes
	used atomic.Int64  // CPU time
	Step time.Duration // of the clock, as it is told

	Neighbours      int          // busy loops of other processes, which get as much CPU time as each that computes; then GOMAXPROCS is no bound
	running, queued atomic.Int64 // that compute beside them, and how long they waited for a CPU

	Queued        float64       // CPUs that threads wait for, beside what Neighbours make them
	Collector     float64       // CPUs that the garbage collector uses
	Others        float64       // share of the machine's CPUs that other processes use
	OthersUnknown bool          // what other processes use can't be told
	Tells         time.Duration // in shorter intervals it can't either
	Left          uint64        // bytes of memory; 0: 1 TiB

}

// NewVirtualMachine makes a machine of so many CPUs. It belongs to the bubble.
func NewVirtualMachine(cpus int) *VirtualMachine {
	return &VirtualMachine{cpus: make(chan struct{}, cpus)}
}

// Option makes a loader or a tuner read m.
func (m *VirtualMachine) Option() nwt.Option { return testhook.Machine(m).(nwt.Option) }

// Compute keeps a CPU busy for d, as soon as one is free.
func (m *VirtualMachine) Compute(d time.Duration) {
	m.used.Add(int64(d))
	if m.Neighbours > 0 {
		all := m.running.Add(1) + int64(m.Neighbours)
		took := max(d, d*time.Duration(all)/time.Duration(cap(m.cpus)))
		time.Sleep(took)
		m.running.Add(-1)
		m.queued.Add(int64(took - d))
		return
	}
	m.cpus <- struct{}{}
	time.Sleep(d)
	<-m.cpus
}

func (m *VirtualMachine) Procs() int { return cap(m.cpus) }
func (m *VirtualMachine) CPUs() host.CPUFacts {
	n := cap(m.cpus)
	return host.CPUFacts{Model: "virtual", Logical: n, Physical: n, Affinity: n, GOMAXPROCS: n}
}
func (m *VirtualMachine) Available() host.Room {
	return host.Room{Bytes: cmp.Or(m.Left, 1<<40), Of: "the machine"}
}
func (m *VirtualMachine) ClockStep() time.Duration { return m.Step }
func (m *VirtualMachine) StartCPU() host.Meter {
	return virtualMeter{m, time.Now(), m.used.Load(), m.queued.Load()}
}

type virtualMeter struct {
	m            *VirtualMachine
	began        time.Time
	used, queued int64
}

func (v virtualMeter) Used() host.Use {
	took := time.Since(v.began)
	if took <= 0 {
		return host.Use{}
	}
	return host.Use{
		Own:       float64(v.m.used.Load()-v.used)/float64(took) + v.m.Collector,
		Waiting:   float64(v.m.queued.Load()-v.queued)/float64(took) + v.m.Queued,
		Collector: v.m.Collector, Others: v.m.Others, OthersKnown: !v.m.OthersUnknown && took >= v.m.Tells,
	}
}

func (v virtualMeter) Note() string {
	if v.m.OthersUnknown {
		return "CPU time of other processes unknown: it isn't made up"
	}
	return ""
}

// WithReadAhead bounds the memory of the records that a stream reads ahead.
func WithReadAhead(bytes int64) nwt.Option { return testhook.ReadAhead(bytes).(nwt.Option) }
