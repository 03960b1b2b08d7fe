package serve

import "time"

// Loading returns how many batches are being loaded or sent.
func (s *Server) Loading() int { return len(s.loading) }

// WithName names a server in errors.
func WithName(name string) ServerOption {
	return serverOption(func(o *options) error { o.name = name; return nil })
}

// WithGrace sets how long a server whose context has ended may take to finish what it has begun.
func WithGrace(d time.Duration) ServerOption {
	return serverOption(func(o *options) error { o.grace = d; return nil })
}
