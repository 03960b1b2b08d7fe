package nwt

import (
	"context"
	"log/slog"

	"github.com/nwt-go/nwt/internal/permute"
	"github.com/nwt-go/nwt/internal/usercall"
)

// locals holds the values that Scratch keeps for a worker, and the context of its call. Only the worker's
// goroutine changes it, except for the field late.
type locals struct {
	ctx     context.Context // of the call of Load or LoadBatch under way
	list    []local
	bounded bounded // nil unless WithTimeout bounds the worker's calls
	late    []local // guarded by crew.mu; values that a call had not finished making when it was given up
}

// handOn passes the values that were left for l to the locals of the worker that takes over. The caller
// holds crew.mu, as for leaveTo and takeIn.
func (l *locals) handOn(next *locals) { next.late, l.late = l.late, nil }

// leaveTo leaves to another worker the values that a call made too late, after it was given up.
func (l *locals) leaveTo(heir *locals) {
	if heir.late == nil {
		heir.late, l.list = l.list, nil
	}
}

// takeIn adds the values that were left for l to its own.
func (l *locals) takeIn() { l.list, l.late = append(l.list, l.late...), nil }

// close closes all values, the latest first.
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
	value any // a pointer to the value
	close func() error
}

func (l *local) end(log *slog.Logger) {
	usercall.Call(l.close, func(_ []byte, err error) { log.Warn("nwt: what Scratch kept could not be closed", "error", err) })
}

// bounded is a worker whose calls are bounded by WithTimeout.
type bounded interface {
	inherit() // takes over what a call that was given up has left
	pause()   // says that a create begins, whose time doesn't count for the call
	resume()  // says that the create has ended
}

// inner returns the scope of a part of a dataset whose scope is outer; the scope of the loader's own
// dataset is 0.
func inner(scope uint64, part int) uint64 {
	return permute.Mix64(scope + uint64(part+1)*permute.Golden)
}
