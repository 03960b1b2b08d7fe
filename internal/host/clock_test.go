package host

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTheStepOfAClockIsSeenThoughTheThreadIsSuspendedNowAndThen(t *testing.T) {
	const step, looks = 500 * time.Microsecond, 7 // looks in a step
	n, began := 0, time.Now()
	coarse := func() time.Time {
		if n++; n == 3 || n == 40 {
			n += 15 * looks
		}
		return began.Add(time.Duration(n/looks) * step)
	}
	require.Equal(t, step, stepOf(coarse))
}
