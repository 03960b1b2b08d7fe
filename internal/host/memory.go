package host

import (
	"fmt"
	"os"
	"runtime/metrics"
	"sync"

	"github.com/shirou/gopsutil/v3/mem"
	"github.com/shirou/gopsutil/v3/process"
)

// MemoryFacts is a snapshot of the memory of the machine and of this process, in bytes. A figure that
// isn't available is 0.
type MemoryFacts struct {
	Total     uint64 // of the machine
	Used      uint64 // by everything on the machine, without buffers and page cache
	Available uint64 // what the machine can give without swapping, its page cache included
	RSS       uint64 // resident set of this process, or the memory that Go's runtime holds
	Note      string // what isn't known, and why; empty if everything is known
}

// Memory reads the machine's memory and this process's share of it. It doesn't show
// the limits of a container: see Limit and Available.
func Memory() MemoryFacts {
	var f MemoryFacts
	var system, own string
	switch v, err := mem.VirtualMemory(); {
	case err != nil:
		system = fmt.Sprintf("system memory unknown: %v", err)
	case v.Total == 0:
		system = "system memory unknown: the system tells no total"
	default:
		f.Total, f.Used, f.Available = v.Total, v.Used, v.Available
	}
	f.RSS, own = residentSet()
	f.Note = joinNotes(system, own)
	return f
}

// Room is how much more memory this process may take.
type Room struct {
	Bytes uint64
	Of    string // what the limit is: "the machine" or "the container"; empty: unknown
	Note  string
}

// Available returns the memory that the machine has left, or the memory that the control groups of the
// container leave, whichever is less.
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

// residentSet returns the resident set or, if it isn't known, the memory that the Go runtime holds.
func residentSet() (bytes uint64, note string) {
	bytes, err := here.resident()
	if err == nil {
		return bytes, ""
	}
	goes := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(goes)
	return goes[0].Value.Uint64() - goes[1].Value.Uint64(),
		fmt.Sprintf("resident set unknown, only the memory of the Go runtime counted: %v", err)
}

// resident identifies the process as self in /proc: the entry under this process's number is another
// process if /proc belongs to another namespace of processes, or if HOST_PROC names the host's.
func (m machine) resident() (bytes uint64, err error) {
	if m.root == "" {
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
	return m.status("VmRSS")
}

// OwnMemory returns the part of this process's memory that is its own and in use: anonymous pages,
// without those that the Go runtime keeps for later. It returns false if the system doesn't report it.
func OwnMemory() (bytes uint64, ok bool) { return here.ownMemory() }

func (m machine) ownMemory() (bytes uint64, ok bool) {
	anonymous, err := m.status("RssAnon")
	if err != nil {
		return 0, false
	}
	idle := []metrics.Sample{{Name: "/memory/classes/heap/free:bytes"}}
	metrics.Read(idle)
	return anonymous - min(anonymous, idle[0].Value.Uint64()), true
}
