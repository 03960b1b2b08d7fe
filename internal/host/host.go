// Package host reports facts about the machine and this process: memory in
// use and its peak over an interval, what the control groups of a container
// leave, the CPUs that count, and how busy they were over an interval.
//
// Nothing here fails: a fact that can't be had is replaced by the next best
// one, and a note says which and why.
package host

import (
	"os"
	"path/filepath"
	"strings"
)

// machine reads the files of the one below root: the real one, or a tree of
// recorded files.
type machine struct{ root string }

var here = machine{root: "/"}

func (m machine) path(name string) string { return filepath.Join(m.root, name) }

func (m machine) read(name string) ([]byte, error) { return os.ReadFile(m.path(name)) }

func joinNotes(notes ...string) string {
	var given []string
	for _, n := range notes {
		if n != "" {
			given = append(given, n)
		}
	}
	return strings.Join(given, "; ")
}
