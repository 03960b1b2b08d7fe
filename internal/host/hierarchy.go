package host

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// hierarchy lists the directories of the control groups that this process is in, from its own to the
// topmost that is visible. It is empty if the process is in none.
type hierarchy struct {
	levels []string
	v2     bool
}

// groups finds the groups of a controller. On hybrid systems a controller is
// in version 1 or in version 2, never in both.
func (m machine) groups(controller string) (hierarchy, error) {
	data, err := m.read("proc/self/cgroup")
	if err != nil {
		return hierarchy{}, err
	}
	group, v2, err := parseCgroup(data, controller)
	if err != nil || group == "" {
		return hierarchy{}, err
	}
	data, err = m.read("proc/self/mountinfo")
	if err != nil {
		return hierarchy{}, err
	}
	mounts, err := parseMountinfo(data, controller, v2)
	if err != nil {
		return hierarchy{}, err
	}
	if len(mounts) == 0 {
		return hierarchy{}, fmt.Errorf("control groups of %s are not mounted", controller)
	}
	return hierarchy{levels: mountedLevels(mounts, group), v2: v2}, nil
}

// mountedLevels walks from the group up to the mount point under which it is visible. A group that is
// visible under none of the mounts (a container inside a container) is assumed to be at the mount point
// of the first.
func mountedLevels(mounts []mount, group string) []string {
	top, below := mounts[0].point, ""
	for _, mnt := range mounts {
		rel, ok := cutPathPrefix(group, mnt.root)
		if ok && rel != "/.." && !strings.HasPrefix(rel, "/../") {
			top, below = mnt.point, rel
			break
		}
	}
	var levels []string
	for dir := path.Join("/", below); dir != "/"; dir = path.Dir(dir) {
		levels = append(levels, path.Join(top, dir))
	}
	return append(levels, top)
}

// cutPathPrefix cuts only whole elements: "/a" is no prefix of "/ab".
func cutPathPrefix(p, prefix string) (rel string, ok bool) {
	if prefix == "/" {
		return p, true
	}
	rel, ok = strings.CutPrefix(p, prefix)
	return rel, ok && (rel == "" || rel[0] == '/')
}

// parseCgroup finds the group of a controller in /proc/self/cgroup, whose lines have the form
// "id:controllers:path" (cgroups(7)). The line with id 0 is version 2, which holds every controller that
// version 1 doesn't.
func parseCgroup(data []byte, controller string) (group string, v2 bool, err error) {
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSuffix(line, "\n")
		id, rest, ok := strings.Cut(line, ":")
		names, at, ok2 := strings.Cut(rest, ":")
		if !ok || !ok2 || !strings.HasPrefix(at, "/") {
			return "", false, fmt.Errorf("/proc/self/cgroup: no id:controllers:path in %.80q", line)
		}
		if id == "0" {
			group, v2 = at, true
		} else if slices.Contains(strings.Split(names, ","), controller) {
			return at, false, nil
		}
	}
	return group, v2, nil
}

// unescape undoes what the kernel escapes in /proc/self/mountinfo.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// mount says that the part of a file system below root is visible at point.
type mount struct{ root, point string }

// parseMountinfo finds the mounts of control groups in /proc/self/mountinfo
// (proc_pid_mountinfo(5)):
//
//	36 35 98:0 /root /point rw,noatime master:1 - type source super,options
func parseMountinfo(data []byte, controller string, v2 bool) ([]mount, error) {
	var mounts []mount
	for line := range strings.Lines(string(data)) {
		before, after, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " - ")
		place, system := strings.Split(before, " "), strings.Split(after, " ")
		if !ok || len(place) < 6 {
			return nil, fmt.Errorf("/proc/self/mountinfo: too few fields in %.80q", line)
		}
		switch {
		case v2 && system[0] == "cgroup2":
		case !v2 && system[0] == "cgroup" && len(system) == 3 &&
			slices.Contains(strings.Split(system[2], ","), controller):
		default:
			continue
		}
		mounts = append(mounts, mount{root: unescape.Replace(place[3]), point: unescape.Replace(place[4])})
	}
	return mounts, nil
}
