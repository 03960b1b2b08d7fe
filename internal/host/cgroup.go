package host

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path"
	"runtime"
	"strconv"
	"strings"
)

// MemoryLimit is the memory limit that control groups put on this process. If groups
// are nested, it is the limit of the group with the least memory left. That need not
// be the smallest limit, since a parent is shared with others.
type MemoryLimit struct {
	Bytes uint64 // 0: no limit
	Used  uint64 // used by all in that group, without the page cache that the kernel would give back
	Note  string // why the limit isn't known, or not exactly
}

// Left returns the memory that the group may still take, or 0 if there is no limit.
func (l MemoryLimit) Left() uint64 { return l.Bytes - min(l.Used, l.Bytes) }

// Limit reads the control groups, version 1 or 2, that this process is in.
// Only Linux has them.
func Limit() MemoryLimit {
	if runtime.GOOS != "linux" {
		return MemoryLimit{}
	}
	return here.memoryLimit()
}

func (m machine) memoryLimit() MemoryLimit {
	groups, err := m.groups("memory")
	if err != nil {
		return MemoryLimit{Note: fmt.Sprintf("container's memory limit unknown: %v", err)}
	}
	files := memoryFiles1
	if groups.v2 {
		files = memoryFiles2
	}
	var tightest MemoryLimit
	var notes []string
	for _, dir := range groups.levels {
		l := m.levelLimit(dir, files)
		notes = append(notes, l.Note)
		if l.Bytes != 0 && (tightest.Bytes == 0 || l.Left() < tightest.Left()) {
			tightest = l
		}
	}
	tightest.Note = joinNotes(notes...)
	return tightest
}

type memoryFiles struct {
	limits []string
	usage  string
	cache  []string // keys of memory.stat: memory that the kernel takes back before it kills a process
}

// memory.high counts as a limit, because above it the kernel throttles a process until it hardly runs.
// Both lists of file pages count as given back, as they do in MemAvailable: a data loader fills them with
// whatever it has read, and would otherwise always seem to be at its limit.
var (
	memoryFiles1 = memoryFiles{
		limits: []string{"memory.limit_in_bytes"},
		usage:  "memory.usage_in_bytes",
		cache:  []string{"total_inactive_file", "total_active_file"},
	}
	memoryFiles2 = memoryFiles{
		limits: []string{"memory.max", "memory.high"},
		usage:  "memory.current",
		cache:  []string{"inactive_file", "active_file", "slab_reclaimable"},
	}
)

func (m machine) levelLimit(dir string, files memoryFiles) MemoryLimit {
	var l MemoryLimit
	for _, name := range files.limits {
		file := path.Join(dir, name)
		data, err := m.read(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue // a root group, or one without this controller
		}
		var bytes uint64
		if err == nil {
			bytes, err = parseBytes(data)
		}
		if err != nil {
			l.Note = joinNotes(l.Note, fmt.Sprintf("%s: %v", file, err))
			continue
		}
		if bytes != 0 && (l.Bytes == 0 || bytes < l.Bytes) {
			l.Bytes = bytes
		}
	}
	if l.Bytes == 0 {
		return l
	}
	file := path.Join(dir, files.usage)
	data, err := m.read(file)
	if err == nil {
		l.Used, err = parseBytes(data)
	}
	if err != nil {
		l.Note = joinNotes(l.Note, fmt.Sprintf("use of the container's memory unknown: %s: %v", file, err))
		return l
	}
	stat, err := m.read(path.Join(dir, "memory.stat"))
	if err != nil {
		l.Note = joinNotes(l.Note, fmt.Sprintf("page cache counted as used memory: %v", err))
	}
	for _, key := range files.cache {
		l.Used -= min(l.Used, statValue(stat, key))
	}
	return l
}

// quota returns the CPU time that control groups allow, in CPUs: the smallest quota of nested groups, or
// 0 if there is none.
func (m machine) quota() (cpus float64, note string) {
	groups, err := m.groups("cpu")
	if err != nil {
		return 0, fmt.Sprintf("container's CPU quota unknown: %v", err)
	}
	var notes []string
	for _, dir := range groups.levels {
		var q float64
		var err error
		if groups.v2 {
			q, err = m.quota2(dir)
		} else {
			q, err = m.quota1(dir)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			notes = append(notes, fmt.Sprintf("CPU quota in %s: %v", dir, err))
		}
		if q > 0 && (cpus == 0 || q < cpus) {
			cpus = q
		}
	}
	return cpus, joinNotes(notes...)
}

func (m machine) quota1(dir string) (float64, error) {
	quota, err := m.read(path.Join(dir, "cpu.cfs_quota_us"))
	if err != nil {
		return 0, err
	}
	period, err := m.read(path.Join(dir, "cpu.cfs_period_us"))
	if err != nil {
		return 0, err
	}
	return parseQuota(string(quota), string(period))
}

func (m machine) quota2(dir string) (float64, error) {
	data, err := m.read(path.Join(dir, "cpu.max"))
	if err != nil {
		return 0, err
	}
	quota, period, ok := strings.Cut(strings.TrimSpace(string(data)), " ")
	if !ok {
		period = "100000" // the kernel's default
	}
	return parseQuota(quota, period)
}

// parseQuota divides a quota by its period. "max" and negative quotas mean no limit, for which it returns
// 0.
func parseQuota(quota, period string) (float64, error) {
	quota, period = strings.TrimSpace(quota), strings.TrimSpace(period)
	if quota == "max" {
		return 0, nil
	}
	q, err := strconv.ParseInt(quota, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("quota %.40q is not a number of microseconds", quota)
	}
	p, err := strconv.ParseInt(period, 10, 64)
	if err != nil || p <= 0 {
		return 0, fmt.Errorf("period %.40q is not a positive number of microseconds", period)
	}
	return max(float64(q)/float64(p), 0), nil
}

// parseBytes reads a size in bytes. It returns 0 for no limit, which version 2 writes as "max" and
// version 1 as the largest multiple of a page.
func parseBytes(data []byte) (uint64, error) {
	s := strings.TrimSpace(string(data))
	if s == "max" {
		return 0, nil
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%.40q is not a size in bytes", s)
	}
	if n >= math.MaxInt64/2 {
		return 0, nil
	}
	return n, nil
}

// statValue returns the value in a "key value" line, or 0 if there is no such line.
func statValue(data []byte, key string) uint64 {
	for line := range strings.Lines(string(data)) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), " "); ok && k == key {
			n, _ := strconv.ParseUint(v, 10, 64)
			return n
		}
	}
	return 0
}
