package nwt

import (
	"errors"
	"time"

	"github.com/nwt-go/nwt/internal/retry"
)

var defaultRetry = retry.Policy{Times: 3, Wait: 10 * time.Millisecond}

// WithRetry sets how many times a sample is loaded again, 0 … 100, if its error is temporary. The default
// is 3 times. wait is the time before the first repetition, 10 ms by default; it doubles each time.
// [WithTimeout] bounds all loads and waits of a sample together. After a temporary error of Open, Next or
// Skip the shard is opened again, and read on from where it failed; here WithTimeout bounds each call by
// itself, and no wait. The last error says how many attempts there were.
//
// An error is temporary if it has a method Temporary() bool that returns true, as the errors of
// [Retryable] do, or if it is a timeout. If an error has no such method, these errors are temporary:
// connections that were reset, refused or broken off, networks and hosts that can't be reached,
// [io.ErrUnexpectedEOF], ESTALE and EIO of a network file system, and an HTTP status of 408, 429 or 5xx
// that a method HTTPStatusCode() int returns. Other errors aren't retried, except by package blob, which
// knows that it reads a store. To prevent retries, return an error whose Temporary() is false.
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

// Temporary reports whether an error is temporary, as [WithRetry] judges it. known is false if nothing in
// err says so; then only code that knows where err comes from can decide. For nil it returns false, true.
func Temporary(err error) (temporary, known bool) {
	if err == nil {
		return false, true
	}
	return retry.MayPass(err)
}

// Retryable marks an error as temporary: see [WithRetry]. It returns nil for nil.
func Retryable(err error) error { return retry.As(err, true) }
