// Package callctx keeps, in the context of a call, the time that the call may take, and its latest error.
package callctx

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

type boundedKey struct{}

// A bounded holds what is known of the calls of a context that end after a time.
type bounded struct {
	timeout time.Duration
	failed  atomic.Pointer[error] // the latest error within the call under way
}

func of(ctx context.Context) *bounded {
	b, _ := ctx.Value(boundedKey{}).(*bounded)
	return b
}

// WithTimeout returns ctx for calls, one at a time, that nwt.WithTimeout gives up after d.
func WithTimeout(ctx context.Context, d time.Duration) context.Context {
	return context.WithValue(ctx, boundedKey{}, &bounded{timeout: d})
}

// Timeout returns that d, or 0 if none is known.
func Timeout(ctx context.Context) time.Duration {
	if b := of(ctx); b != nil {
		return b.timeout
	}
	return 0
}

// Failed records the latest error within the call under way, before the call tries again; nil means that
// there is none.
func Failed(ctx context.Context, err error) {
	if b := of(ctx); b != nil {
		b.failed.Store(&err)
	}
}

// NoAnswer returns the error of a call that is given up, together with its latest error.
func NoAnswer(ctx context.Context) error {
	b := of(ctx)
	err := fmt.Errorf("no answer within WithTimeout(%v): %w", b.timeout, context.DeadlineExceeded)
	if last := b.failed.Load(); last != nil && *last != nil {
		err = fmt.Errorf("%w; the last error: %w", err, *last)
	}
	return err
}
