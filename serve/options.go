package serve

import (
	"context"
	"crypto/tls"
	"time"

	"github.com/nwt-go/nwt"
)

// An Option says how a server serves, or how a client asks.
type Option func(*options)

type options struct {
	loader  []nwt.Option
	token   string
	tls     *tls.Config
	tuned   context.Context
	slots   int
	patient time.Duration
	name    string
	shared  string
}

func optionsOf(opts []Option) *options {
	o := &options{slots: 16, patient: time.Minute}
	for _, opt := range opts {
		opt(o)
	}
	return o
}

// WithLoader gives a server the options of nwt.NewLoader: batch size, order, workers, retries.
// Options of tickets win over WithRank. Only a server takes it.
func WithLoader(opts ...nwt.Option) Option {
	return func(o *options) { o.loader = append(o.loader, opts...) }
}

// WithTuned has New tune the server's worker count with nwt.Tune. Only a server takes it.
func WithTuned(ctx context.Context) Option { return func(o *options) { o.tuned = ctx } }

// WithToken sets what clients must know. Without TLS it is sent as it is.
func WithToken(token string) Option { return func(o *options) { o.token = token } }

// WithTLS encrypts: with the server's certificates, or the client's roots. By default nothing is
// encrypted.
func WithTLS(c *tls.Config) Option { return func(o *options) { o.tls = c } }

// WithSlots sets how many batches a server loads and sends at a time, 16 by default: that bounds
// its memory. Further requests wait. Only a server takes it.
func WithSlots(n int) Option { return func(o *options) { o.slots = max(1, n) } }

// WithPatience sets how long a client asks again while no server answers, a minute by default.
// Then the error may pass, as nwt.WithRetry understands it. Only a client takes it.
func WithPatience(d time.Duration) Option { return func(o *options) { o.patient = d } }

// WithName names the server in errors; by default it is the host's name and process number.
func WithName(name string) Option { return func(o *options) { o.name = name } }

// WithShared answers clients of this host through shared memory as well, at the path of a Unix
// socket, or @NAME for one without a file. The threads of this process get SCHED_BATCH, so that a
// request doesn't stop the client that makes it. Only a server takes it, and only on Linux.
func WithShared(path string) Option { return func(o *options) { o.shared = path } }
