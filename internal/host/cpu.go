package host

import (
	"fmt"
	"math"
	"runtime"
	"sync"

	"github.com/shirou/gopsutil/v3/cpu"
)

// CPUFacts says which CPUs there are and how many of them this process may use.
type CPUFacts struct {
	Model      string  // such as "Intel(R) Xeon(R) …"; the architecture if the CPU has no name
	Logical    int     // of the machine, hyper-threads included
	Physical   int     // cores of the machine; Logical if that isn't known
	Affinity   int     // logical CPUs that this process may run on
	Quota      float64 // CPU time that a control group allows, in CPUs; 0: no quota
	GOMAXPROCS int
	Note       string // what isn't known, and why
}

// Usable returns how many CPUs this process may keep busy: its affinity, or its
// quota rounded up, whichever is less.
func (f CPUFacts) Usable() int {
	if f.Quota <= 0 {
		return f.Affinity
	}
	return min(f.Affinity, int(math.Ceil(f.Quota)))
}

// Share returns the CPUs in use as a share, 0 … 1, of the CPUs that Mine returns.
func (f CPUFacts) Share(used float64, processes, cpus int) float64 {
	return clamp(used / f.Mine(processes, cpus))
}

// OthersShare converts others, a share of the CPUs that are Usable (see Use.Others), into a share of the
// CPUs that Mine returns. As long as the remaining usable CPUs are enough for the others, it returns 0.
func (f CPUFacts) OthersShare(others float64, processes, cpus int) float64 {
	mine, usable := f.Mine(processes, cpus), float64(max(f.Usable(), 1))
	return clamp((others*usable - max(0, usable-mine)) / mine)
}

// Mine returns this process's part of the CPUs: the least of cpus, its part of a quota that several
// processes share, and the number that it is bound to.
func (f CPUFacts) Mine(processes, cpus int) float64 {
	mine := min(float64(max(cpus, 1)), float64(max(f.Affinity, 1)))
	if f.Quota > 0 {
		mine = min(mine, f.Quota/float64(max(processes, 1)))
	}
	return mine
}

// CPUs returns the CPU facts. The machine's facts are read once; affinity, quota and GOMAXPROCS can
// change and are read each time.
func CPUs() CPUFacts {
	f := silicon()
	ids, err := affinity()
	f.Affinity = len(ids)
	if err != nil {
		f.Affinity = runtime.NumCPU()
		f.Note = joinNotes(f.Note, fmt.Sprintf("CPU affinity unknown: %v", err))
	}
	if runtime.GOOS == "linux" {
		quota, note := here.quota()
		f.Quota, f.Note = quota, joinNotes(f.Note, note)
	}
	f.GOMAXPROCS = runtime.GOMAXPROCS(0)
	return f
}

// silicon is the part of the facts that doesn't change.
var silicon = sync.OnceValue(func() CPUFacts {
	f := CPUFacts{Model: runtime.GOARCH}
	var err error
	if f.Logical, err = cpu.Counts(true); err != nil || f.Logical <= 0 {
		f.Logical = runtime.NumCPU()
		f.Note = joinNotes(f.Note, fmt.Sprintf("number of logical CPUs unknown, %d assumed", f.Logical))
	}
	if f.Physical, err = cpu.Counts(false); err != nil || f.Physical <= 0 {
		f.Physical = f.Logical
		f.Note = joinNotes(f.Note, "hyper-threads can't be told from cores")
	}
	if infos, err := cpu.Info(); err == nil && len(infos) > 0 && infos[0].ModelName != "" {
		f.Model = infos[0].ModelName
	}
	return f
})
