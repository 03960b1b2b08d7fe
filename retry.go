package nwt

import (
	"errors"
	"time"

	"github.com/nwt-go/nwt/internal/retry"
)

// WithRetry sets how often a sample is loaded again, 0 … 100, if its error may pass. The default
// is 3 times, first after 10 ms; the wait doubles each time. [WithTimeout] counts loads and waits
// together. After such an error of Open, Next or Skip a shard is opened again, and read on where
// it failed; there WithTimeout counts each call by itself, and no wait. The last error says how
// many attempts there were.
//
// An error may pass if it says so by a method Temporary() bool, as those of [Retryable] do, and
// timeouts. Otherwise these may pass: connections that were reset, refused or broken off,
// networks and hosts that can't be reached, [io.ErrUnexpectedEOF], ESTALE and EIO of a network
// file system, and an HTTP status of 408, 429 or 5xx that a method HTTPStatusCode() int tells.
// Other errors aren't repeated, except by package blob, which knows that it reads a store. To
// stop repetitions, return an error whose Temporary() is false.
func WithRetry(times int, wait time.Duration) Option {
	return func(o *options) error {
		o.retry = retry.Policy{Times: times, Wait: wait, Asked: true}
		err := between("WithRetry", times, 0, 100)
		if wait < 0 {
			err = errors.Join(err, optionError("WithRetry", wait, "the wait must be at least 0"))
		}
		return err
	}
}

// Retryable marks an error as one that may pass: see [WithRetry]. It returns nil for nil.
func Retryable(err error) error { return retry.As(err, true) }
