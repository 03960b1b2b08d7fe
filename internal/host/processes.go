package host

import (
	"fmt"
	"sync"
	"time"

	"github.com/shirou/gopsutil/v3/process"
)

// Processes are other processes that work for this one, such as those that load its samples.
type Processes struct {
	IDs func() []int // those that there are now

	mu     sync.Mutex
	memory uint64    // guarded by mu, like …
	looked time.Time // … when it was read
}

// Memory returns what the processes have in memory, without file pages; the figure may be as old as age. What
// several of them share counts once (it is their Pss); a system without Pss tells their resident sets. Looking
// takes up to 10 ms for each process.
func (p *Processes) Memory(age time.Duration) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.looked) > age {
		p.memory, p.looked = 0, time.Now()
		for _, id := range p.IDs() {
			p.memory += here.memoryOf(id)
		}
	}
	return p.memory
}

func (m machine) memoryOf(id int) uint64 {
	data, err := m.read(fmt.Sprintf("proc/%d/smaps_rollup", id))
	if all, ok := parseStatus(data, "Pss"); err == nil && ok {
		files, _ := parseStatus(data, "Pss_File")
		return all - min(files, all)
	}
	if other, err := process.NewProcess(int32(id)); err == nil {
		if info, err := other.MemoryInfo(); err == nil {
			return info.RSS
		}
	}
	return 0
}

// Beside returns a meter that counts what the processes use as this process's own. What a process used after the
// last call of Used isn't counted if it has ended.
func (p *Processes) Beside(m Meter) Meter {
	return &besideMeter{Meter: m, others: p, began: time.Now(), seen: p.used()}
}

type besideMeter struct {
	Meter
	others *Processes
	began  time.Time
	seen   map[int]time.Duration // what each process had used at the last call
	theirs time.Duration
}

func (m *besideMeter) Used() Use {
	u, now := m.Meter.Used(), m.others.used()
	m.theirs += waited(m.seen, now)
	m.seen = now
	if m.theirs > 0 {
		cpus := float64(m.theirs) / float64(time.Since(m.began))
		u.Own += cpus
		u.Others = max(0, u.Others-cpus/float64(allowed().usable))
	}
	return u
}

// used returns the CPU time that each process has used so far.
func (p *Processes) used() map[int]time.Duration {
	used := map[int]time.Duration{}
	for _, id := range p.IDs() {
		if other, err := process.NewProcess(int32(id)); err == nil {
			if times, err := other.Times(); err == nil {
				used[id] = time.Duration((times.User + times.System) * float64(time.Second))
			}
		}
	}
	return used
}
