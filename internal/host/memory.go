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

// Room is how much more memory this process may take.
type Room struct {
	Bytes uint64
	Of    string // whose it is: "the machine" or "the container"; empty: unknown
	Note  string
}

// Available is what the machine has available or what the control groups of
// the container leave, whichever is less.
func Available() Room { return available(Memory(), Limit()) }

func available(m MemoryFacts, l MemoryLimit) Room {
	r := Room{Note: joinNotes(m.Note, l.Note)}
	if m.Total != 0 {
		r.Bytes, r.Of = m.Available, "the machine"
	}
	if l.Bytes != 0 && (r.Of == "" || l.Left() < r.Bytes) {
		r.Bytes, r.Of = l.Left(), "the container"
	}
	return r
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
