package host

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Peak measures the largest resident set of this process over an interval.
//
// Linux keeps a high-water mark that can be reset, so it misses nothing between Start and Stop. It is as
// exact as the kernel's own count of pages (some tens of pages per CPU). If there is no mark, or it can't
// be reset, the peak is that of the process's whole life if it falls into the interval; otherwise it is
// the resident set at the end.
//
// Resetting the mark has effects elsewhere: VmHWM and the maximum resident set of getrusage then count
// from Start, and so does an interval that began before.
type Peak struct {
	machine machine
	life    func() uint64 // peak of the process's whole life; 0: unknown
	before  uint64        // value of life at Start
	err     error         // why the mark isn't known
}

// StartPeak begins an interval.
func StartPeak() *Peak { return here.startPeak(lifePeak) }

func (m machine) startPeak(life func() uint64) *Peak {
	return &Peak{machine: m, life: life, before: life(), err: m.resetMark()}
}

// Stop ends the interval and returns its peak in bytes, and whether that is exact.
func (p *Peak) Stop() (bytes uint64, exact bool) {
	if p.err == nil {
		if bytes, p.err = p.machine.highWater(); p.err == nil {
			return bytes, true
		}
	}
	if life := p.life(); p.before != 0 && life > p.before {
		return life, true
	}
	bytes, _ = residentSet()
	return bytes, false
}

func (m machine) resetMark() error {
	if _, err := m.highWater(); err != nil {
		return err
	}
	f, err := os.OpenFile(m.path("proc/self/clear_refs"), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString("5") // resets the peak resident set: proc_pid_clear_refs(5)
	return errors.Join(err, f.Close())
}

func (m machine) highWater() (uint64, error) { return m.status("VmHWM") }

// status returns a size of this process.
func (m machine) status(key string) (bytes uint64, err error) {
	data, err := m.read("proc/self/status")
	if err != nil {
		return 0, err
	}
	bytes, ok := parseStatus(data, key)
	if !ok {
		return 0, fmt.Errorf("/proc/self/status has no %s", key)
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
