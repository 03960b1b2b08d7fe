package nwt

import (
	"context"
	"log/slog"

	"github.com/nwt-go/nwt/internal/permute"
	"github.com/nwt-go/nwt/internal/usercall"
)

// locals is what Scratch keeps for a worker, and the context of its call. Only the
// worker's goroutine changes it, except for late.
type locals struct {
	ctx     context.Context // of the call of Load or LoadBatch under way
	list    []local
	bounded bounded // nil unless WithTimeout bounds the worker's calls
	late    []local // guarded by crew.mu; what a call has left that was given up while it made that
}

// handOn passes on what was left to l to the locals of the worker that takes over. The caller holds
// crew.mu, as for leaveTo and takeIn.
func (l *locals) handOn(next *locals) { next.late, l.late = l.late, nil }

// leaveTo leaves to another worker what a call made after it was given up.
func (l *locals) leaveTo(heir *locals) {
	if heir.late == nil {
		heir.late, l.list = l.list, nil
	}
}

// takeIn makes what was left to l its own.
func (l *locals) takeIn() { l.list, l.late = append(l.list, l.late...), nil }

// close closes all, the latest first.
func (l *locals) close(log *slog.Logger) {
	for n := len(l.list) - 1; n >= 0; n-- {
		last := l.list[n]
		l.list[n] = local{}
		l.list = l.list[:n]
		last.end(log)
	}
}

type local struct {
	scope uint64
	value any // a pointer to it
	close func() error
}

func (l *local) end(log *slog.Logger) {
	usercall.Call(l.close, func(_ []byte, err error) { log.Warn("nwt: what Scratch kept could not be closed", "error", err) })
}

// bounded is a worker whose calls WithTimeout bounds.
type bounded interface {
	inherit() // takes over what a call that was given up has left
	pause()   // a create begins, whose time isn't the call's
	resume()  // it has ended
}

// inner returns the scope of a part of a dataset that has the scope outer; 0 is the loader's own
// dataset's.
func inner(scope uint64, part int) uint64 {
	return permute.Mix64(scope + uint64(part+1)*permute.Golden)
}
