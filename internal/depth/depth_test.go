package depth_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt/internal/depth"
)

const batch = 1000 // bytes, which cost 2000 ns

func policy(extra int) *depth.Policy {
	var p depth.Policy
	p.Reset(extra, batch)
	return &p
}

func TestABatchIsPaidForInLostTime(t *testing.T) {
	p, now := policy(0), int64(1)
	p.Reckon(now)
	after := func(all, lost int64) time.Duration {
		now += all - lost
		if lost > 0 {
			_, first := p.Idle(now)
			require.True(t, first)
		}
		now += lost
		left := p.Reckon(now)
		require.False(t, p.IsIdle())
		return left
	}
	require.EqualValues(t, 1200, after(800, 800))
	require.EqualValues(t, 1250, after(400, 0), "an eighth of all time is free")
	require.EqualValues(t, 1200, after(500, 100))
	require.EqualValues(t, 2000, after(1e9, 0), "what is free isn't saved up")
	require.EqualValues(t, 0, after(1e9, 1e9), "nor is what was lost")
	p.Pay()
	require.EqualValues(t, 1000, after(1000, 1000))
}

func TestWorkersThatAreIdleAlreadyLoseNoMoreTime(t *testing.T) {
	p := policy(0)
	p.Reckon(1)
	left, first := p.Idle(1)
	require.EqualValues(t, 2000, left)
	require.True(t, first)
	_, first = p.Idle(600)
	require.False(t, first)
	p.NotIdle(600) // another's
	require.True(t, p.IsIdle())
	require.EqualValues(t, 1000, p.Reckon(1001))
	p.Idle(2000)
	p.NotIdle(2000)
	require.False(t, p.IsIdle())
	p.Idle(3000)
	p.Busy()
	require.False(t, p.IsIdle())
}

func TestTrainingWaitsOnceItHasWaitedForAnEighthOfTheLastBatches(t *testing.T) {
	p := policy(0)
	for n := range 10_000 {
		p.Asked(n%10 == 9)
		require.False(t, n > 100 && n%10 == 8 && p.Waits(), n)
	}
	for n := range 10_000 {
		p.Asked(n%6 == 5)
		require.False(t, n > 100 && n%6 == 5 && !p.Waits(), n)
	}
	for range 100 {
		p.Asked(false)
	}
	require.False(t, p.Waits())
}

func TestHalfOfTheExtraBatchesAreGivenBackOnceTheyWereReadyForLong(t *testing.T) {
	for _, tt := range []struct{ extra, open, after, surplus int }{
		{9, 12, 320, 5},
		{1, 4, 320, 1},
		{200, 203, 406, 100}, // twice as many as are open
	} {
		p := policy(tt.extra)
		for range 2 {
			for range tt.after - 1 {
				require.Zero(t, p.Surplus(true, tt.open))
			}
			require.Zero(t, p.Surplus(false, tt.open), "they weren't at last")
		}
		for range tt.after - 1 {
			require.Zero(t, p.Surplus(true, tt.open))
		}
		require.Equal(t, tt.surplus, p.Surplus(true, tt.open))
		for range tt.after/2 - 1 {
			require.Zero(t, p.Surplus(true, tt.open))
		}
		require.Equal(t, tt.surplus, p.Surplus(true, tt.open), "half as many batches later")
	}
	p := policy(0)
	for range 1000 {
		require.Zero(t, p.Surplus(true, 3))
	}
	p.SetExtra(4)
	require.Zero(t, p.Surplus(true, 7), "without extra batches, ready ones say nothing of them")
}

func TestAResetForgetsWhatWasShown(t *testing.T) {
	p := policy(9)
	p.Idle(1)
	p.Reckon(1000)
	p.Idle(2000)
	for range 319 {
		p.Asked(true)
		p.Surplus(true, 12)
	}
	p.Reset(3, batch)
	require.Equal(t, 3, p.Extra())
	require.False(t, p.IsIdle())
	require.False(t, p.Waits())
	require.Zero(t, p.Surplus(true, 6))
	left, _ := p.Idle(3000)
	require.EqualValues(t, 2000, left)
}
