package nwt

import (
	"io"
	"log/slog"
)

// Scratch is what Load needs at hand and can't share with other goroutines: a
// decoder, an FFT plan, a connection, an open file. The first call in a worker
// makes it with create; later ones return the same. So a loader has at most one
// for each worker, and Load takes it without a lock:
//
//	decoder, err := nwt.Scratch(dst, newDecoder)
//
// It is kept by its type T. Datasets side by side in a [Concat] or a [Zip], and the
// dataset and the function of a [Map], each have their own; code that shares a
// dataset should use types of its own, not *os.File. An error of create is returned
// and nothing is kept.
//
// If it is an [io.Closer], it is closed when the worker ends: by
// [Loader.SetWorkers], or at the latest by [Loader.Close]. It is closed and made
// anew after a panic in Load. A worker whose call was given up (see [WithTimeout])
// keeps it until that call returns; its replacement gets a new one. [LoadSample]
// closes it before it returns.
//
// It is for the goroutine in which Load or LoadBatch was called, and no other.
func Scratch[T any](s *Sample, create func() (T, error)) (T, error) {
	list := s.locals.list
	for i := range list {
		if kept, ok := list[i].value.(*T); ok && list[i].scope == s.scope {
			return *kept, nil
		}
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

// locals is what Scratch keeps for a worker, in whose goroutine alone it is used.
type locals struct {
	list []local
}

type local struct {
	scope uint64
	value any // a pointer to it
	close func() error
}

// abandonScratch is for after a panic, wherever that was.
func (s *Sample) abandonScratch() {
	s.scope = 0
	s.locals.close(s.log)
}

// close closes all, the latest first.
func (l *locals) close(log *slog.Logger) {
	defer func() {
		if len(l.list) > 0 {
			l.close(log) // one called runtime.Goexit
		}
	}()
	for n := len(l.list) - 1; n >= 0; n-- {
		last := l.list[n]
		l.list[n] = local{}
		l.list = l.list[:n] // before it can panic
		last.end(log)
	}
}

func (l *local) end(log *slog.Logger) {
	finished := false
	warn := func(err error) { log.Warn("nwt: what Scratch kept could not be closed", "error", err) }
	defer func() {
		if !finished {
			_, err := recovered(recover())
			warn(err)
		}
	}()
	err := l.close()
	finished = true
	if err != nil {
		warn(err)
	}
}

// inner is the scope of a part of what has a scope itself.
func inner(scope uint64, part int) uint64 {
	return mix64(scope + uint64(part+1)*golden)
}
