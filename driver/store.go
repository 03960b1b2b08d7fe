package driver

import (
	"context"
	"time"

	"github.com/nwt-go/nwt/internal/callctx"
	"github.com/nwt-go/nwt/internal/retry"
)

// TimeoutOf returns how long a call of Load, or of a ShardReader, may take, as nwt.WithTimeout set it. 0
// means no bound. Pass the context of the call. A store that bounds the time of each request needs TimeoutOf:
// the bound must be only a part of the call's time.
func TimeoutOf(ctx context.Context) time.Duration { return callctx.Timeout(ctx) }

// Temporary reports whether an error is temporary, as nwt.WithRetry judges it. If err doesn't show whether it
// is temporary, Temporary returns false, false. Then only code that knows err's origin can decide. For nil,
// Temporary returns false, true. A store that wraps its errors needs Temporary. A server needs it to tell the
// client whether an error is temporary.
func Temporary(err error) (temporary, known bool) {
	if err == nil {
		return false, true
	}
	return retry.MayPass(err)
}
