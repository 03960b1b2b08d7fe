//go:build !linux

package serve

import (
	"context"
	"errors"
)

func (s *Server) share(context.Context, string) (wait func(), err error) {
	return nil, errors.New("serve: WithShared needs Linux")
}
