package nwt

import (
	"context"
	"io"
	"log/slog"

	"github.com/nwt-go/nwt/internal/guard"
	"github.com/nwt-go/nwt/internal/loadctx"
	"github.com/nwt-go/nwt/internal/permute"
)

// Scratch returns a value that Load needs at hand and can't share with other goroutines:
// a decoder, an FFT plan, a connection. The first call in a worker makes the value with
// create; later calls return the same value:
//
//	decoder, err := nwt.Scratch(dst, newDecoder)
//
// A worker has one value per type T and dataset; each part of a [Concat], a [Zip] or a
// [Map] has its own. If create fails, nothing is kept. create may take ten times
// [WithTimeout]. Only the goroutine in which Load or LoadBatch was called may use the
// value.
//
// If the value is an [io.Closer], it is closed when the worker ends: by
// [Loader.SetWorkers], or at the latest by [Loader.Close]. After a panic in Load it is
// closed and made anew. A call that was given up keeps its value until it returns.
func Scratch[T any](s *Sample, create func() (T, error)) (T, error) {
	if v := find[T](s); v != nil {
		return *v, nil
	}
	if w := s.locals.bounded; w != nil {
		w.inherit()
		if v := find[T](s); v != nil {
			return *v, nil
		}
		defer w.resume(w.pause())
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

// find is what is kept for s; nil: nothing.
func find[T any](s *Sample) *T {
	for i := range s.locals.list {
		if kept, ok := s.locals.list[i].value.(*T); ok && s.locals.list[i].scope == s.scope {
			return kept
		}
	}
	return nil
}

// locals is what Scratch keeps for a worker, and the context of its call. Only the
// worker's goroutine changes it, except for late.
type locals struct {
	ctx     context.Context // of the call of Load or LoadBatch under way
	list    []local
	bounded *worker // the worker, if WithTimeout bounds its calls
	late    []local // guarded by Loader.mu; what a call has left that was given up while it made that
}

func init() {
	loadctx.Of = func(sample any) context.Context { return sample.(*Sample).locals.ctx }
}

type local struct {
	scope uint64
	value any // a pointer to it
	close func() error
}

// close closes all, the latest first.
func (l *locals) close(log *slog.Logger) {
	for n := len(l.list) - 1; n >= 0; n-- {
		last := l.list[n]
		l.list[n] = local{}
		l.list = l.list[:n]
		last.end(log)
	}
}

func (l *local) end(log *slog.Logger) {
	guard.Call(l.close, func(_ []byte, err error) { log.Warn("nwt: what Scratch kept could not be closed", "error", err) })
}

// inner is the scope of a part of a dataset that has the scope outer; 0 is the loader's own
// dataset's.
func inner(scope uint64, part int) uint64 {
	return permute.Mix64(scope + uint64(part+1)*permute.Golden)
}
