// Package loadctx tells this project's packages the context of the call that they run in, if
// all they have is its sample, and how long that call may take.
package loadctx

import (
	"context"
	"fmt"
	"time"
)

// Of returns the context of the call of Load or LoadBatch that a *nwt.Sample is loaded by.
// Package nwt sets it.
var Of func(sample any) context.Context

type timeoutKey struct{}

// WithTimeout is ctx for calls that nwt.WithTimeout gives up after d.
func WithTimeout(ctx context.Context, d time.Duration) context.Context {
	return context.WithValue(ctx, timeoutKey{}, d)
}

// Timeout is that d; 0: none is known.
func Timeout(ctx context.Context) time.Duration {
	d, _ := ctx.Value(timeoutKey{}).(time.Duration)
	return d
}

// NoAnswer is the error of a call that is given up after d.
func NoAnswer(d time.Duration) error {
	return fmt.Errorf("no answer within WithTimeout(%v): %w", d, context.DeadlineExceeded)
}
