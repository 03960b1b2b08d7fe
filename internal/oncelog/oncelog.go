// Package oncelog remembers what was logged, so that nothing is logged twice.
package oncelog

import "sync"

const most = 10_000 // things remembered; what comes after them counts as logged

// A Log remembers what was logged: for a loader, for a process, for a dataset. It isn't a sync.Once, with
// which a second caller would wait for the log's handler. The zero value is ready to use.
type Log struct {
	mu     sync.Mutex
	logged map[any]bool // guarded by mu
}

// First records a thing, and reports whether it is new.
func (l *Log) First(thing any) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.logged == nil {
		l.logged = make(map[any]bool)
	}
	if l.logged[thing] || len(l.logged) == most {
		return false
	}
	l.logged[thing] = true
	return true
}
