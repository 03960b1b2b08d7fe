package serve

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/nwt-go/nwt"
)

// A ServerOption says how a server serves.
type ServerOption interface{ ofServer(*options) error }

// A ClientOption says how a client asks for batches.
type ClientOption interface{ ofClient(*options) error }

// An Option is for servers and for clients.
type Option interface {
	ServerOption
	ClientOption
}

type options struct {
	token string
	tls   *tls.Config

	// Of servers.
	loader       []nwt.Option
	tune         bool
	slots        int
	grace        time.Duration
	name, shared string
	about        json.RawMessage
	more         map[string]func() []byte

	// Of clients.
	patience time.Duration
}

type (
	serverOption func(*options) error
	clientOption func(*options) error
	option       func(*options) error
)

func (f serverOption) ofServer(o *options) error { return f(o) }
func (f clientOption) ofClient(o *options) error { return f(o) }
func (f option) ofServer(o *options) error       { return f(o) }
func (f option) ofClient(o *options) error       { return f(o) }

func optionError(option string, value any, format string, args ...any) error {
	return &nwt.ArgumentError{Name: "serve." + option, Value: value, Reason: fmt.Sprintf(format, args...)}
}

// WithLoader sets options of the server's loader: those of nwt.NewLoader, such as the batch size, the order
// or the number of workers. The rank and world of a request take precedence over WithRank.
func WithLoader(opts ...nwt.Option) ServerOption {
	return serverOption(func(o *options) error { o.loader = append(o.loader, opts...); return nil })
}

// WithTuning makes New find the worker count with nwt.Tune.
func WithTuning() ServerOption {
	return serverOption(func(o *options) error { o.tune = true; return nil })
}

// WithSlots sets how many batches a server loads and sends at a time: 1 … 4096, 16 by default. This bounds
// the server's memory. Further requests wait. Hosts take turns, and so do the connections of a host.
// Clients that use shared memory may together hold n more batches. Beyond these, batches are sent as bytes,
// one at a time to each client.
func WithSlots(n int) ServerOption {
	return serverOption(func(o *options) error {
		if o.slots = n; n < 1 || n > 4096 {
			return optionError("WithSlots", n, "must be 1 … 4096")
		}
		return nil
	})
}

// WithShared also answers clients of this host through shared memory. Clients connect to the Unix socket at
// path; only the server's user and root may connect. WithShared needs Linux.
func WithShared(path string) ServerOption {
	return serverOption(func(o *options) error {
		if o.shared = path; runtime.GOOS != "linux" {
			return optionError("WithShared", path, "needs Linux")
		}
		if path == "" || path[0] == '@' || len(path) > 107 || strings.ContainsRune(path, 0) {
			return optionError("WithShared", path, "the path of a socket must have 1 … 107 bytes, and not begin with @; it has %d", len(path))
		}
		return nil
	})
}

// WithMore adds a text of up to 2 GB, such as the names of all files. A client that is connected by WithShared
// or Own may ask for the text by its name. The function text is called for each request. Experimental: for
// nwt-serve; may change.
func WithMore(name string, text func() []byte) ServerOption {
	return serverOption(func(o *options) error {
		if o.more == nil {
			o.more = make(map[string]func() []byte)
		}
		o.more[name] = text
		return nil
	})
}

// WithAbout adds facts, such as the names of classes, to the description of the dataset that each client gets.
// JSON must be able to hold them. Experimental: for nwt-serve; may change.
func WithAbout(about map[string]any) ServerOption {
	return serverOption(func(o *options) (err error) {
		if o.about, err = json.Marshal(about); err != nil {
			return optionError("WithAbout", nil, "must be what JSON can hold: %v", err)
		}
		return nil
	})
}

// WithPatience sets how long a client waits for a batch, from all servers together. The default is a
// minute; d must be at least a millisecond. Time in which the client itself is suspended doesn't count. If
// no batch comes in time, the request fails with a temporary error. nwt.WithRetry decides whether the
// request is repeated or the epoch ends.
func WithPatience(d time.Duration) ClientOption {
	return clientOption(func(o *options) error {
		if o.patience = d; d < time.Millisecond {
			return optionError("WithPatience", d, "must be at least 1ms")
		}
		return nil
	})
}

// WithToken sets a token that clients must know. It has 1 … 1024 printable ASCII characters, and no space
// at either end. Flight sends the token unencrypted, so use [WithTLS] where others can listen.
func WithToken(token string) Option {
	return option(func(o *options) error {
		unprintable := func(r rune) bool { return r < ' ' || r > '~' } // in a header of HTTP
		if o.token = token; token == "" || strings.ContainsFunc(token, unprintable) || len(token) > 1024 || strings.TrimSpace(token) != token {
			return optionError("WithToken", nil, "the token must be 1 … 1024 printable characters of ASCII without a space at either end; it has %d bytes", len(token))
		}
		return nil
	})
}

// WithTLS encrypts connections. By default nothing is encrypted. A server's configuration has its
// certificates. A client's configuration has the root certificates that it trusts. Without root
// certificates, the client trusts those of the system.
func WithTLS(c *tls.Config) Option {
	return option(func(o *options) error {
		if o.tls = c; c == nil {
			return optionError("WithTLS", nil, "the configuration is nil: leave the option out to encrypt nothing")
		}
		return nil
	})
}
