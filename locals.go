package nwt

import (
	"context"
	"log/slog"

	"github.com/nwt-go/nwt/internal/permute"
	"github.com/nwt-go/nwt/internal/usercall"
)

// locals holds the values that Scratch keeps for a worker, and the context of its call. It belongs to the
// worker's goroutine.
type locals struct {
	ctx   context.Context // of the call of Load or LoadBatch under way
	list  []local
	clock *hand // pauses while a value is made; nil unless WithTimeout bounds calls
}

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

// inner returns the scope of a part of a dataset whose scope is outer; the scope of the loader's own
// dataset is 0.
func inner(scope uint64, part int) uint64 {
	return permute.Mix64(scope + uint64(part+1)*permute.Golden)
}
