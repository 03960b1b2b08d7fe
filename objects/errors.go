package objects

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"

	"gocloud.dev/gcerrors"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/driver"
)

// An Error says that a sample couldn't be loaded, because reading its object or decoding the sample failed.
type Error struct {
	Key    string
	Offset int64 // of the sample in its object
	Length int64 // −1: the whole object
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

// Temporary reports whether another attempt may succeed. The loader then makes further attempts: see
// nwt.WithRetry, which lists temporary errors. An unknown error of a store is temporary too. A missing
// object, denied access, an impossible range and data that can't be decoded are permanent.
func (e *Error) Temporary() bool { return e.temporary }

// temporary reports whether a read that failed with err may succeed later.
func temporary(err error) bool {
	switch gcerrors.Code(err) {
	case gcerrors.NotFound, gcerrors.PermissionDenied, gcerrors.InvalidArgument, gcerrors.FailedPrecondition,
		gcerrors.AlreadyExists, gcerrors.Unimplemented, gcerrors.Canceled:
		return false
	}
	may, known := driver.Temporary(err)
	var local *fs.PathError       // of a folder
	var bound *http.MaxBytesError // of a client that bounds answers
	return may || !known && !errors.As(err, &local) && !errors.As(err, &bound)
}

// A permanent error doesn't go away, however often the store is asked.
type permanent string

func (p permanent) Error() string { return string(p) }
func (permanent) Temporary() bool { return false }

// argument returns an error that says why a function of this package can't use an argument.
func argument(function string, value any, format string, args ...any) error {
	return &nwt.ArgumentError{Name: "objects." + function, Value: value, Reason: fmt.Sprintf(format, args...)}
}
