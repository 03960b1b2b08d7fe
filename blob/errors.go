package blob

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"

	"gocloud.dev/gcerrors"

	"github.com/nwt-go/nwt"
)

// An Error says that a sample couldn't be loaded, because its object couldn't be
// read or because it couldn't be decoded.
type Error struct {
	Key    string
	Offset int64 // of the sample in its object
	Length int64 // −1: all of the object
	Err    error

	temporary bool
}

func (e *Error) Error() string {
	if e.Length < 0 {
		return fmt.Sprintf("object %.1024q: %v", e.Key, e.Err)
	}
	return fmt.Sprintf("object %.1024q, %d bytes at %d: %v", e.Key, e.Length, e.Offset, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// Temporary tells whether another attempt may succeed; nwt.WithRetry makes it. It
// may after a server's error, a timeout, a cut connection, and whatever isn't known
// to be permanent. A missing object, a refusal, an impossible range and data that
// can't be decoded are permanent.
func (e *Error) Temporary() bool { return e.temporary }

// temporary tells whether a read that failed with err may succeed later.
func temporary(err error) bool {
	switch gcerrors.Code(err) {
	case gcerrors.NotFound, gcerrors.PermissionDenied, gcerrors.InvalidArgument, gcerrors.FailedPrecondition,
		gcerrors.AlreadyExists, gcerrors.Unimplemented, gcerrors.Canceled:
		return false
	}
	var local *fs.PathError       // of a folder: its disk won't change its mind
	var bound *http.MaxBytesError // of a client that bounds answers
	if errors.As(err, &local) || errors.As(err, &bound) {
		return false
	}
	for _, permanent := range []error{context.Canceled, errShort, errLong, errPanic, errEndless, errChanged} {
		if errors.Is(err, permanent) {
			return false
		}
	}
	// The errors of the AWS SDK tell the status of the response.
	var response interface{ HTTPStatusCode() int }
	if errors.As(err, &response) {
		switch status := response.HTTPStatusCode(); status {
		case http.StatusRequestTimeout, http.StatusTooManyRequests:
			return true
		default:
			return status < 400 || status >= 500
		}
	}
	return true
}

// argument says that a function of this package can't use an argument.
func argument(function string, value any, format string, args ...any) error {
	return &nwt.OptionError{Option: "blob." + function, Value: value, Reason: fmt.Sprintf(format, args...)}
}
