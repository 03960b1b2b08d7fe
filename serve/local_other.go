//go:build !linux

package serve

import "context"

func makePrivate(uintptr) {}

func (s *Server) share(context.Context, string) (wait func(), err error) {
	return nil, optionError("WithShared", s.opts.shared, "needs Linux")
}
