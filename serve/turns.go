package serve

import (
	"context"

	"google.golang.org/grpc/status"
)

// A queue is what a client waits in for a place in loading. Of a client one request at a time waits, and of a
// host one client: a client that asks for much isn't before others. Who takes nothing while others wait is hung
// up on.
type queue struct{ own, host chan struct{} }

func newQueue() queue { return queue{make(chan struct{}, 1), make(chan struct{}, 1)} }

// enter waits for a place, which leave gives back. The error is a status.
func (s *Server) enter(ctx context.Context, q queue) (leave func(), err error) {
	for _, place := range []chan struct{}{q.own, q.host, s.loading} {
		if place == s.loading {
			s.waiting.Add(1)
			defer s.waiting.Add(-1)
		}
		select {
		case place <- struct{}{}:
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
		if place != s.loading {
			defer func() { <-place }()
		}
	}
	return func() { <-s.loading }, nil
}
