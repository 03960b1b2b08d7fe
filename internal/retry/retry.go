// Package retry knows which errors may pass, and repeats what failed with one.
package retry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"slices"
	"time"

	"github.com/nwt-go/nwt/internal/callctx"
)

// MayPass reports whether what failed with err may succeed if it is repeated. known is false if
// nothing in err says so or the opposite: only who knows the source can tell then.
//
// What the error itself says counts first, from the outside in. That the standard library's
// errors aren't Temporary means nothing: most of them don't know.
func MayPass(err error) (may, known bool) {
	var says interface{ Temporary() bool }
	for e := err; errors.As(e, &says); e = errors.Unwrap(says.(error)) {
		if says.Temporary() {
			return true, true
		}
		if _, std := says.(interface{ Timeout() bool }); !std {
			return false, true
		}
	}
	is := func(target error) bool { return errors.Is(err, target) }
	if slices.ContainsFunc([]error{context.Canceled, fs.ErrNotExist, fs.ErrPermission, fs.ErrInvalid}, is) {
		return false, true
	}
	var answer interface{ HTTPStatusCode() int } // of AWS
	if errors.As(err, &answer) && answer.HTTPStatusCode() >= 400 {
		status := answer.HTTPStatusCode()
		return status >= 500 || status == 408 || status == 429, true
	}
	if slices.ContainsFunc(faults, is) || is(io.ErrUnexpectedEOF) {
		return true, true
	}
	var request *url.Error // a server that hangs up instead of answering
	cut := errors.As(err, &request) && is(io.EOF)
	return cut, cut
}

// As makes an error that says whether it may pass. Of nil it makes nil.
func As(err error, temporary bool) error {
	if err == nil {
		return nil
	}
	return judged{err, temporary}
}

type judged struct {
	error
	temporary bool
}

func (j judged) Unwrap() error   { return j.error }
func (j judged) Temporary() bool { return j.temporary }

// A Policy says how often to repeat what failed, and how long to wait before the first
// repetition; the wait doubles each time.
type Policy struct {
	Times int
	Wait  time.Duration
	Asked bool // by the user, who wants to know why something isn't repeated
}

type policyKey struct{}

// With is ctx for what repeats a part of a call by itself, as p says: see Of.
func With(ctx context.Context, p Policy) context.Context {
	return context.WithValue(ctx, policyKey{}, p)
}

// Of returns the Policy of a context; of another one, to repeat nothing. What repeats by it returns the
// error that is left as one that stays, or its callers would repeat it again.
func Of(ctx context.Context) Policy {
	p, _ := ctx.Value(policyKey{}).(Policy)
	return p
}

// Do repeats f, which has failed with err, as long as its error may pass. The error that is left
// says how often f was tried. While Do waits or repeats, callctx.NoAnswer knows the last error.
func (p Policy) Do(ctx context.Context, err error, f func() error) error {
	if err == nil {
		return nil
	}
	defer callctx.Failed(ctx, nil)
	for attempt := 1; err != nil; attempt++ {
		if err = p.Again(ctx, attempt, err); err != nil {
			return err
		}
		err = f()
	}
	return nil
}

// Again waits before what has failed with err, at the attempt-th try, is to be repeated. If it
// isn't to be, Again returns the error that is left.
func (p Policy) Again(ctx context.Context, attempt int, err error) error {
	may, known := MayPass(err)
	if may && attempt <= p.Times {
		callctx.Failed(ctx, tried(err, attempt))
		if rest(ctx, p.Wait<<min(attempt-1, 20)) { // doubled more often it would overflow
			return nil
		}
	}
	switch {
	case attempt > 1:
		return tried(err, attempt)
	case p.Asked && !may && !known:
		return fmt.Errorf("%w (not repeated: if it may pass, wrap it in nwt.Retryable)", err)
	}
	return err
}

func tried(err error, attempt int) error { return fmt.Errorf("%w (attempt %d)", err, attempt) }

// rest waits, and reports false if the context ends first.
func rest(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}
