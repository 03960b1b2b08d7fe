package host

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Peak measures the largest resident set of this process over an interval.
//
// Linux keeps a high-water mark that can be reset, so nothing between Start and
// Stop escapes it; it is as exact as the kernel's own count of pages (some tens of
// pages per CPU). On other systems, or if the mark can't be reset, a goroutine looks
// every 10 ms, or less often if a look takes long.
//
// Resetting the mark is visible elsewhere: VmHWM and the maximum resident set of
// getrusage then count from Start. Intervals may overlap within the process.
type Peak struct {
	marks *marks

	// Guarded by marks.mu.
	bytes   uint64 // the highest before the mark was last reset for another interval
	stopped bool
	exact   bool
	note    string

	// Only if the mark couldn't be reset.
	lifeAtStart uint64 // peak of the process's whole life until Start
	sampler     *sampler
}

// StartPeak begins an interval. The caller must call its Stop.
func StartPeak() *Peak { return ownMarks.start() }

// Stop ends the interval and returns its peak in bytes, and whether that is
// exact or sampled: then Note says why. Once it returns, no goroutine of the
// interval is left. Calling it again returns the same.
func (p *Peak) Stop() (bytes uint64, exact bool) { return p.marks.stop(p) }

// Note says why the peak isn't exact; it is empty if the peak is exact. Call it after
// Stop.
func (p *Peak) Note() string {
	p.marks.mu.Lock()
	defer p.marks.mu.Unlock()
	return p.note
}

// marks shares the one high-water mark of the process between overlapping
// intervals: before a reset for one, the others get the mark so far.
type marks struct {
	machine machine
	rss     func() (bytes uint64, note string)
	life    func() uint64 // peak of the process's whole life; 0: unknown
	every   time.Duration // between samples

	mu   sync.Mutex
	open map[*Peak]struct{} // the intervals that rely on the mark
}

var ownMarks = &marks{machine: here, rss: residentSet, life: lifePeak, every: 10 * time.Millisecond}

func (ms *marks) start() *Peak {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	p := &Peak{marks: ms}
	if err := ms.reset(); err != nil {
		p.lifeAtStart = ms.life()
		p.sampler = startSampler(ms.rss, ms.every)
		p.note = fmt.Sprintf("peak memory is sampled every %v: %v", p.sampler.every, err)
		return p
	}
	if ms.open == nil {
		ms.open = make(map[*Peak]struct{})
	}
	ms.open[p] = struct{}{}
	return p
}

func (ms *marks) stop(p *Peak) (bytes uint64, exact bool) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	if p.stopped {
		return p.bytes, p.exact
	}
	p.stopped = true
	if p.sampler == nil {
		delete(ms.open, p)
		high, err := ms.machine.highWater()
		p.bytes, p.exact = max(p.bytes, high), err == nil
		if err != nil {
			p.note = fmt.Sprintf("peak memory unknown: %v", err)
		}
		return p.bytes, p.exact
	}
	highest, note := p.sampler.stop()
	if life := ms.life(); p.lifeAtStart != 0 && life > p.lifeAtStart {
		// The peak of the process's whole life fell into this interval.
		p.bytes, p.exact, p.note = life, true, ""
		return p.bytes, p.exact
	}
	p.bytes, p.note = highest, joinNotes(p.note, note)
	return p.bytes, p.exact
}

// reset resets the mark, after it has given the mark so far to the open intervals.
// The caller must hold mu.
func (ms *marks) reset() error {
	high, err := ms.machine.highWater()
	if err != nil {
		return err
	}
	for p := range ms.open {
		p.bytes = max(p.bytes, high)
	}
	f, err := os.OpenFile(ms.machine.path("proc/self/clear_refs"), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString("5") // reset the peak resident set: proc_pid_clear_refs(5)
	return errors.Join(err, f.Close())
}

func (m machine) highWater() (uint64, error) {
	data, err := m.read("proc/self/status")
	if err != nil {
		return 0, err
	}
	bytes, ok := parseStatus(data, "VmHWM")
	if !ok {
		return 0, errors.New("/proc/self/status has no VmHWM")
	}
	return bytes, nil
}

// parseStatus finds a size such as "VmHWM:	  1732 kB" and returns it in bytes.
func parseStatus(data []byte, key string) (bytes uint64, ok bool) {
	for line := range strings.Lines(string(data)) {
		value, found := strings.CutPrefix(line, key+":")
		if !found {
			continue
		}
		kB, found := strings.CutSuffix(strings.TrimSpace(value), " kB")
		if !found {
			return 0, false
		}
		n, err := strconv.ParseUint(kB, 10, 64-10)
		return n << 10, err == nil
	}
	return 0, false
}

// sampler keeps the highest of what it sees, at its start and end too.
type sampler struct {
	read  func() (bytes uint64, note string)
	every time.Duration
	quit  chan struct{}
	done  chan struct{}

	// Of the goroutine until done is closed.
	highest uint64
	note    string // of the last look
}

// startSampler looks at every interval. If a look is so slow (on some systems it
// takes a process) that it would disturb the measuring, it looks less often.
func startSampler(read func() (bytes uint64, note string), every time.Duration) *sampler {
	s := &sampler{read: read, quit: make(chan struct{}), done: make(chan struct{})}
	began := time.Now()
	s.look()
	s.every = max(every, 100*time.Since(began)).Round(every)
	go func() {
		defer close(s.done)
		tick := time.NewTicker(s.every)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				s.look()
			case <-s.quit:
				return
			}
		}
	}()
	return s
}

func (s *sampler) look() {
	bytes, note := s.read()
	s.highest, s.note = max(s.highest, bytes), note
}

func (s *sampler) stop() (highest uint64, note string) {
	close(s.quit)
	<-s.done
	s.look()
	return s.highest, s.note
}
