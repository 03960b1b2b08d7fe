// Package callctx tells this project's packages the context of the call that they run in, if
// all they have is its sample, and how long that call may take.
package callctx

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

// Of returns the context of the call of Load or LoadBatch that a *nwt.Sample is loaded by.
// Package nwt sets it.
var Of func(sample any) context.Context

type boundedKey struct{}

// A bounded is what is known of the calls of a context that end after a time.
type bounded struct {
	timeout time.Duration
	failed  atomic.Pointer[error] // what the call under way has failed with so far
}

func of(ctx context.Context) *bounded {
	b, _ := ctx.Value(boundedKey{}).(*bounded)
	return b
}

// WithTimeout is ctx for calls, one at a time, that nwt.WithTimeout gives up after d.
func WithTimeout(ctx context.Context, d time.Duration) context.Context {
	return context.WithValue(ctx, boundedKey{}, &bounded{timeout: d})
}

// Timeout returns that d; 0: none is known.
func Timeout(ctx context.Context) time.Duration {
	if b := of(ctx); b != nil {
		return b.timeout
	}
	return 0
}

// Failed says what the call under way has failed with, before it goes on trying; nil: nothing.
func Failed(ctx context.Context, err error) {
	if b := of(ctx); b != nil {
		b.failed.Store(&err)
	}
}

// NoAnswer returns the error of a call that is given up, with what it failed with before.
func NoAnswer(ctx context.Context) error {
	b := of(ctx)
	err := fmt.Errorf("no answer within WithTimeout(%v): %w", b.timeout, context.DeadlineExceeded)
	if last := b.failed.Load(); last != nil && *last != nil {
		err = fmt.Errorf("%w; the last error: %w", err, *last)
	}
	return err
}
