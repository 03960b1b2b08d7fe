package host

import (
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const gib = 1 << 30

// The trees under testdata are what a process sees in each place.
func TestTheTightestControlGroupSetsTheMemoryLimit(t *testing.T) {
	for _, tt := range []struct {
		tree  string
		limit MemoryLimit
	}{
		{"v1-docker", MemoryLimit{Bytes: 2 * gib, Used: gib / 2}},
		{"v1-unlimited", MemoryLimit{}},
		{"v2-nested", MemoryLimit{Bytes: 8 * gib, Used: 7*gib + gib/4}},
		{"v2-namespace", MemoryLimit{Bytes: 3 * gib, Used: gib}},
		{"v2-outside", MemoryLimit{Bytes: 4 * gib, Used: gib}},
		{"v2-host", MemoryLimit{}},
		{"hybrid", MemoryLimit{Bytes: 3 * gib, Used: gib}},
	} {
		t.Run(tt.tree, func(t *testing.T) {
			m := machine{root: filepath.Join("testdata", tt.tree)}
			require.Equal(t, tt.limit, m.memoryLimit())
		})
	}
}

func TestTheTightestControlGroupSetsTheQuota(t *testing.T) {
	for tree, want := range map[string]float64{
		"v1-docker":    1.5,
		"v1-unlimited": 0,
		"v2-nested":    3.5,
		"v2-namespace": 0.5,
		"v2-outside":   2,
		"v2-host":      0,
		"hybrid":       2.5,
	} {
		t.Run(tree, func(t *testing.T) {
			cpus, note := machine{root: filepath.Join("testdata", tree)}.quota()
			require.Equal(t, want, cpus)
			require.Empty(t, note)
		})
	}
}

func TestWhatCannotBeReadIsNotedAndTheRestStillCounts(t *testing.T) {
	damaged := machine{root: filepath.Join("testdata", "damaged")}
	limit := damaged.memoryLimit()
	require.Equal(t, uint64(gib), limit.Bytes)
	require.Equal(t, uint64(gib/4), limit.Used)
	require.Contains(t, limit.Note, `/sys/fs/cgroup/a/b/memory.max: "lots" is not a size in bytes`)
	require.Contains(t, limit.Note, "page cache counted as used memory")

	cpus, note := damaged.quota()
	require.Zero(t, cpus)
	require.Contains(t, note, `period "0" is not a positive number of microseconds`)

	for tree, want := range map[string]string{
		"malformed": `no id:controllers:path in "nonsense"`,
		"unmounted": "control groups of memory are not mounted",
		"nowhere":   "container's memory limit unknown: open ",
	} {
		limit := machine{root: filepath.Join("testdata", tree)}.memoryLimit()
		require.Zero(t, limit.Bytes)
		require.Contains(t, limit.Note, want)
	}
}

func TestANoteIsShortHoweverLongTheLineThatCannotBeRead(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	_, _, err := parseCgroup([]byte(long), "memory")
	require.Less(t, len(err.Error()), 300)
	_, err = parseMountinfo([]byte(long), "memory", true)
	require.Less(t, len(err.Error()), 300)
	_, err = parseBytes([]byte(long))
	require.Less(t, len(err.Error()), 300)
	for _, quota := range [][2]string{{long, "1"}, {"1", long}} {
		_, err = parseQuota(quota[0], quota[1])
		require.Less(t, len(err.Error()), 300)
	}
}

func TestAMountShowsAGroupOnlyBelowItsRoot(t *testing.T) {
	for _, tt := range []struct {
		group  string
		mounts []mount
		levels []string
	}{
		{"/", []mount{{"/", "/cg"}}, []string{"/cg"}},
		{"/a/b", []mount{{"/", "/cg"}}, []string{"/cg/a/b", "/cg/a", "/cg"}},
		{"/a/b", []mount{{"/a", "/cg"}}, []string{"/cg/b", "/cg"}},
		{"/ab", []mount{{"/a", "/x"}, {"/", "/cg"}}, []string{"/cg/ab", "/cg"}},
		{"/b", []mount{{"/a", "/cg"}}, []string{"/cg"}},
		{"/../b", []mount{{"/", "/cg"}}, []string{"/cg"}},
		{"/..b", []mount{{"/", "/cg"}}, []string{"/cg/..b", "/cg"}},
	} {
		require.Equal(t, tt.levels, mountedLevels(tt.mounts, tt.group), "%s under %v", tt.group, tt.mounts)
	}
}

func FuzzCgroup(f *testing.F) {
	f.Add("4:cpu,memory:/a\n0::/b\n", "memory")
	f.Add("0::/", "cpu")
	f.Fuzz(func(t *testing.T, data, controller string) {
		group, _, err := parseCgroup([]byte(data), controller)
		if err != nil {
			require.Empty(t, group)
			return
		}
		for _, dir := range mountedLevels([]mount{{"/", "/cg"}}, group) {
			require.True(t, dir == "/cg" || strings.HasPrefix(dir, "/cg/"), dir)
		}
	})
}

func FuzzMountinfo(f *testing.F) {
	f.Add(`42 30 0:30 / /old\040groups rw - cgroup cgroup rw,memory`)
	f.Add("44 30 0:32 /a /sys/fs/cgroup rw shared:1 master:2 - cgroup2 cgroup2 rw\n")
	f.Fuzz(func(t *testing.T, data string) {
		for _, v2 := range []bool{false, true} {
			mounts, err := parseMountinfo([]byte(data), "memory", v2)
			if err != nil || len(mounts) == 0 {
				continue
			}
			require.NotEmpty(t, mountedLevels(mounts, "/a/b"))
		}
	})
}

func FuzzGroupFiles(f *testing.F) {
	f.Add("max", "100000")
	f.Add("-1\n", "100000\n")
	f.Add("150000", "0")
	f.Fuzz(func(t *testing.T, a, b string) {
		cpus, err := parseQuota(a, b)
		require.False(t, math.IsNaN(cpus) || math.IsInf(cpus, 0) || cpus < 0, "%v, %v", cpus, err)
		bytes, _ := parseBytes([]byte(a))
		require.Less(t, bytes, uint64(math.MaxInt64))
		statValue([]byte(a+" "+b), a)
	})
}
