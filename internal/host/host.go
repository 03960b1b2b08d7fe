// Package host reports facts about the machine and this process: memory in use and its peak over an
// interval, the memory that the control groups of a container leave, which CPUs the process may use, and
// how busy these CPUs were over an interval.
//
// Nothing here fails: a fact that isn't available is replaced by the next best one, and a note says
// which fact is missing and why.
package host

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// machine reads the files that describe a machine, below root: those of the real machine, or a tree of
// recorded files. Without a root there are no files.
type machine struct{ root string }

var here = thisMachine()

// thisMachine has such files only on Linux: on other systems /proc has another format.
func thisMachine() machine {
	if runtime.GOOS == "linux" || runtime.GOOS == "android" {
		return machine{root: "/"}
	}
	return machine{}
}

func (m machine) path(name string) string { return filepath.Join(m.root, name) }

func (m machine) read(name string) ([]byte, error) {
	if m.root == "" {
		return nil, errNoFiles
	}
	return os.ReadFile(m.path(name))
}

var errNoFiles = errors.New("this system has no /proc of Linux's")

func joinNotes(notes ...string) string {
	var given []string
	for _, n := range notes {
		if n != "" {
			given = append(given, n)
		}
	}
	return strings.Join(given, "; ")
}
