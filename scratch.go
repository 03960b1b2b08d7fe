package nwt

import (
	"context"
	"io"
	"log/slog"

	"github.com/nwt-go/nwt/internal/permute"
	"github.com/nwt-go/nwt/internal/usercall"
)

// Scratch returns a value that Load needs and that goroutines can't share, such as a decoder. The first
// call in a worker makes the value by create; later calls return the same value. There is one per type T
// and dataset. If create fails, no value is kept; create may take ten times [WithTimeout]. A value that
// is an [io.Closer] is closed when the worker ends, and after a panic in Load.
func Scratch[T any](s *Sample, create func() (T, error)) (T, error) {
	if v := find[T](s); v != nil {
		return *v, nil
	}
	if h := s.locals.clock; h != nil {
		h.pause()
		defer h.resume()
	}
	v, err := create()
	if err != nil {
		return v, err
	}
	kept := &v
	s.locals.list = append(s.locals.list, local{s.scope, kept, func() error {
		if c, ok := any(*kept).(io.Closer); ok {
			return c.Close()
		}
		return nil
	}})
	return v, nil
}

// find returns the value that is kept for s, or nil if there is none.
func find[T any](s *Sample) *T {
	for i := range s.locals.list {
		if kept, ok := s.locals.list[i].value.(*T); ok && s.locals.list[i].scope == s.scope {
			return kept
		}
	}
	return nil
}

// locals holds the values that Scratch keeps for a worker, and the context of its call. It belongs to the
// worker's goroutine.
type locals struct {
	ctx   context.Context // of the call of Load or LoadMany under way
	list  []local
	clock interface { // pauses while a value is made; nil unless WithTimeout bounds calls
		pause()
		resume()
	}
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
