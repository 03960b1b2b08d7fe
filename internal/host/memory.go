package host

import (
	"fmt"
	"os"
	"sync"

	"github.com/shirou/gopsutil/v3/mem"
	"github.com/shirou/gopsutil/v3/process"
)

// MemoryFacts is a snapshot of the memory of the machine and of this process,
// in bytes. A figure that can't be had is 0.
type MemoryFacts struct {
	Total     uint64 // of the machine
	Used      uint64 // by everything on the machine, without buffers and page cache
	Available uint64 // what the machine can give without swapping, its page cache included
	RSS       uint64 // resident set of this process
	Note      string // what couldn't be had and why; empty where all is known
}

// Memory reads the machine's memory and this process's share of it. Limits of
// a container don't show in it: see Limit and Available.
func Memory() MemoryFacts {
	var f MemoryFacts
	var system, own string
	if v, err := mem.VirtualMemory(); err != nil {
		system = fmt.Sprintf("system memory unknown: %v", err)
	} else {
		f.Total, f.Used, f.Available = v.Total, v.Used, v.Available
	}
	rss, err := residentSet()
	if err != nil {
		own = fmt.Sprintf("resident set unknown: %v", err)
	}
	f.RSS, f.Note = rss, joinNotes(system, own)
	return f
}

// Available is how much more memory this process may take: what the machine
// has available or what its control groups leave, whichever is less. 0 with a
// note where neither is known.
func Available() (bytes uint64, note string) {
	m, l := Memory(), Limit()
	return available(m, l), joinNotes(m.Note, l.Note)
}

func available(m MemoryFacts, l MemoryLimit) uint64 {
	switch {
	case l.Bytes == 0:
		return m.Available
	case m.Total == 0:
		return l.Left()
	}
	return min(m.Available, l.Left())
}

var self = sync.OnceValues(func() (*process.Process, error) {
	return process.NewProcess(int32(os.Getpid()))
})

func residentSet() (uint64, error) {
	p, err := self()
	if err != nil {
		return 0, err
	}
	info, err := p.MemoryInfo()
	if err != nil {
		return 0, err
	}
	return info.RSS, nil
}
