package depth

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestQuickSamplesAreClaimedManyAtOnceAndSlowOnesOneByOne(t *testing.T) {
	p := Pace{Batch: 64}
	p.Share(4)
	require.Equal(t, 4, p.Claim(), "a quarter of a worker's part, while nothing is known")
	p.Share(0)
	require.Equal(t, 64, p.Claim(), "nobody shares it")
	p.Took(64*time.Nanosecond, 64)
	require.Equal(t, 64, p.Claim(), "at most a batch")
	require.Equal(t, 64*time.Nanosecond, p.PerBatch())
	require.False(t, p.Computes())
	for range 200 {
		p.Took(64*time.Microsecond, 64)
	}
	require.InDelta(t, 20, p.Claim(), 1, "for 20 µs")
	require.True(t, p.Computes())
	for range 200 {
		p.Took(time.Second, 10)
	}
	require.Equal(t, 1, p.Claim())
	require.False(t, p.Computes())
}

func TestClaimsThatCostLessThanTimingAreTimedSeldom(t *testing.T) {
	p := Pace{Batch: 64}
	untimed, timed := 0, 0
	require.True(t, p.Timed(&untimed, 1), "nothing is known")
	p.Took(100*time.Nanosecond, 10)
	for range 10 * timeOneIn {
		if p.Timed(&untimed, 10) {
			timed++
		}
	}
	require.Equal(t, 10, timed)
	require.True(t, p.Timed(&untimed, 200), "they take 2 µs")
}
