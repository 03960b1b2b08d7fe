// Package retry knows which errors are temporary, and repeats calls that failed with a temporary error.
package retry

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/nwt-go/nwt/internal/callctx"
)

// MayPass reports whether a call that failed with err may succeed if it is repeated. known is false if
// nothing in err says whether it may; then only code that knows the source can decide.
//
// The error's own method decides first, from the outermost error inwards. If an error of the standard
// library isn't Temporary, that means nothing, because most of them can't know.
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
	var answer interface{ HTTPStatusCode() int } // an error of AWS's library
	if errors.As(err, &answer) && answer.HTTPStatusCode() >= 400 {
		status := answer.HTTPStatusCode()
		var reason interface{ ErrorCode() string }
		named := errors.As(err, &reason) && slices.Contains(passing, reason.ErrorCode())
		return named || status >= 500 || status == 408 || status == 429, true
	}
	var state interface{ SQLState() string } // an error of PostgreSQL, as pgx and lib/pq return it
	if errors.As(err, &state) {
		return slices.ContainsFunc(passingStates, func(class string) bool { return strings.HasPrefix(state.SQLState(), class) }), true
	}
	if slices.ContainsFunc(faults, is) || is(io.ErrUnexpectedEOF) || is(driver.ErrBadConn) {
		return true, true
	}
	var request *url.Error // for a server that hangs up instead of answering
	cut := errors.As(err, &request) && is(io.EOF)
	return cut, cut
}

// passing are codes with which S3, and stores like it, refuse a request with a status of 400 or 403 that
// another request won't get: its credentials expired and are renewed meanwhile, or its clock or its
// connection was slow. BadRequest is what the AWS client makes of a 400 without a code, the answer to HEAD.
var passing = []string{
	"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired",
	"RequestTimeout", "RequestTimeoutException", "RequestTimeTooSkewed", "RequestInTheFuture",
	"Throttling", "ThrottlingException", "RequestLimitExceeded", "SlowDown", "OperationAborted", "BadRequest",
}

// passingStates are the classes of SQL states that another attempt may not meet: the connection broke, the
// transaction lost against another, the server lacks memory or connections, or it is restarted. (57014 is a
// query that was canceled: it is not among them.)
var passingStates = []string{"08", "40", "53", "57P"}

// As returns an error that says whether it is temporary. For nil it returns nil.
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

// A Policy says how often to repeat a failed call, and how long to wait before the first repetition; the
// wait doubles each time.
type Policy struct {
	Times int
	Wait  time.Duration
	Asked bool // the user set it, and wants to know why something isn't repeated
}

// Default is the Policy of a loader without WithRetry, and of code that calls a source without a loader.
var Default = Policy{Times: 3, Wait: 10 * time.Millisecond}

type policyKey struct{}

// With returns ctx with a Policy, for code that repeats a part of a call by itself: see Of.
func With(ctx context.Context, p Policy) context.Context {
	return context.WithValue(ctx, policyKey{}, p)
}

// Of returns the Policy of a context. Without one, it returns the Policy that repeats nothing. Code that
// uses it must mark its final error as not temporary; otherwise its callers would repeat the call again.
func Of(ctx context.Context) Policy {
	p, _ := ctx.Value(policyKey{}).(Policy)
	return p
}

// Do repeats f, which has failed with err, as long as its error is temporary. The final error says how
// often f was tried. While Do waits or repeats, callctx.NoAnswer knows the last error.
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

// Again waits before a repetition of what has failed with err at attempt number attempt. If it must not
// be repeated, Again returns the final error.
func (p Policy) Again(ctx context.Context, attempt int, err error) error {
	may, known := MayPass(err)
	if may && attempt <= p.Times {
		callctx.Failed(ctx, tried(err, attempt))
		if rest(ctx, p.Wait<<min(attempt-1, 20)) { // the bound keeps the shift from overflowing
			return nil
		}
	}
	switch {
	case attempt > 1:
		return tried(err, attempt)
	case p.Asked && !may && !known:
		return fmt.Errorf("%w (not repeated: if it is temporary, wrap it in nwt.Retryable)", err)
	}
	return err
}

func tried(err error, attempt int) error { return fmt.Errorf("%w (attempt %d)", err, attempt) }

// rest waits, and returns false if the context ends first.
func rest(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}
