package host

import (
	"cmp"
	"errors"
	"fmt"
	"runtime/metrics"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/shirou/gopsutil/v3/cpu"

	"github.com/nwt-go/nwt/internal/human"
)

// CPUMeter measures how busy the CPUs are over an interval.
type CPUMeter struct {
	start, end reading
}

// reading holds the values of the clocks at one moment.
type reading struct {
	at      time.Time
	own     time.Duration // CPU time of this process
	ownErr  error
	busy    time.Duration // of everything, this process included, on the CPUs that this process may run on
	busyErr error

	queued    map[int]time.Duration // time that each thread has waited for a CPU
	collector float64               // CPU seconds of the garbage collector
}

// StartCPU begins an interval.
func StartCPU() *CPUMeter {
	return &CPUMeter{start: readClocks()}
}

// A Use says what a process used of the CPUs in an interval.
type Use struct {
	Own         float64 // CPUs that it kept busy
	Collector   float64 // CPUs of these that its garbage collector kept busy
	Waiting     float64 // CPUs that its threads waited for in addition; 0 if not known
	Others      float64 // share, 0 … 1, of the CPUs it may use (CPUFacts.Usable) that everything else took from it
	OthersKnown bool
}

// Used ends the interval, and returns what the process used in it. CPUs that a quota keeps this process
// from using anyway don't count as taken by others. The share of the others comes from the kernel's clock
// ticks: it is known only for intervals of 100 ms or more.
func (m *CPUMeter) Used() (u Use) {
	m.end = readClocks()
	wall := m.end.at.Sub(m.start.at)
	if wall <= 0 {
		return u
	}
	cpus := allowed()
	share, others := shares(m.start, m.end, cpus)
	u.Own, u.Others = share*float64(cpus.usable), others
	u.OthersKnown = wall >= shortest && m.start.busyErr == nil && m.end.busyErr == nil && m.start.ownErr == nil && m.end.ownErr == nil
	u.Waiting = float64(waited(m.start.queued, m.end.queued)) / float64(wall)
	u.Collector = min(u.Own, max(0, (m.end.collector-m.start.collector)/wall.Seconds()))
	return u
}

// waited returns how long the threads that exist at the end have waited. A thread without an entry at the
// start began in between. A thread that has waited less than at the start is another thread with the same
// number.
func waited(start, end map[int]time.Duration) (sum time.Duration) {
	for thread, total := range end {
		if before := start[thread]; before <= total {
			total -= before
		}
		sum += total
	}
	return sum
}

// Note says which share isn't known and why. Call it after Used.
func (m *CPUMeter) Note() string {
	var own, others string
	if err := cmp.Or(m.start.ownErr, m.end.ownErr); err != nil {
		own = fmt.Sprintf("CPU time of this process unknown: %v", err)
	}
	if err := cmp.Or(m.start.busyErr, m.end.busyErr); err != nil {
		others = fmt.Sprintf("CPU time of other processes unknown: %v", err)
	} else if d := m.end.at.Sub(m.start.at); d < shortest {
		others = fmt.Sprintf("CPU time of other processes unknown: %v is too short to tell it", human.Duration(d))
	}
	return joinNotes(own, others)
}

// shortest is the shortest interval in which ticks of 10 ms are meaningful.
const shortest = 100 * time.Millisecond

func shares(start, end reading, cpus cpuSet) (own, others float64) {
	wall := end.at.Sub(start.at)
	if wall <= 0 || start.ownErr != nil || end.ownErr != nil {
		return 0, 0
	}
	used := float64(end.own-start.own) / float64(wall) // in CPUs
	own = clamp(used / float64(cpus.usable))
	if wall < shortest || start.busyErr != nil || end.busyErr != nil {
		return own, 0
	}
	elsewhere := float64(end.busy-start.busy)/float64(wall) - used
	spare := float64(len(cpus.ids) - cpus.usable)
	return own, min(clamp((elsewhere-spare)/float64(cpus.usable)), 1-own)
}

func clamp(share float64) float64 { return min(max(share, 0), 1) }

// cpuSet is the CPUs of this process.
type cpuSet struct {
	ids    []int // CPUs that it may run on, ascending
	usable int   // how many of them it may use at a time
}

// allowed is read once: reading the control groups for each interval would cost more than the rest of the
// meter.
var allowed = sync.OnceValue(func() cpuSet {
	f := CPUs()
	ids, err := affinity()
	if err != nil {
		ids = make([]int, f.Affinity)
		for i := range ids {
			ids[i] = i
		}
	}
	return cpuSet{ids: ids, usable: max(f.Usable(), 1)}
})

func readClocks() reading {
	var r reading
	ids := allowed().ids
	r.at = time.Now()
	r.own, r.ownErr = cpuTime()
	r.busy, r.busyErr = busyTime(ids)
	r.queued = queued()
	r.collector = collectorTime()
	return r
}

// collectorTime returns the CPU time that the garbage collector has used up to its last
// cycle, in seconds.
func collectorTime() float64 {
	s := []metrics.Sample{{Name: "/cpu/classes/gc/total:cpu-seconds"}, {Name: "/cpu/classes/gc/mark/idle:cpu-seconds"}}
	metrics.Read(s)
	if s[0].Value.Kind() != metrics.KindFloat64 || s[1].Value.Kind() != metrics.KindFloat64 {
		return 0
	}
	return s[0].Value.Float64() - s[1].Value.Float64() // its work on idle CPUs takes nothing from others
}

// busyTime returns how much time everything has used of the given CPUs so far.
func busyTime(ids []int) (time.Duration, error) {
	times, err := cpu.Times(true)
	if err != nil {
		return 0, err
	}
	if len(times) == 0 {
		return 0, errors.New("the system lists no CPU times")
	}
	return sumBusy(times, ids), nil
}

// sumBusy adds the time that was neither idle nor waiting for I/O. If no more CPUs are listed than this
// process may use, a container's view of /proc may have renumbered them; then all of them count.
func sumBusy(times []cpu.TimesStat, ids []int) time.Duration {
	all := len(times) <= len(ids)
	var seconds float64
	for _, t := range times {
		id, err := strconv.Atoi(strings.TrimPrefix(t.CPU, "cpu"))
		if _, mine := slices.BinarySearch(ids, id); all || (mine && err == nil) {
			seconds += t.User + t.Nice + t.System + t.Irq + t.Softirq + t.Steal
		}
	}
	return time.Duration(seconds * float64(time.Second))
}
