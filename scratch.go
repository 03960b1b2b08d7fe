package nwt

import "io"

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
