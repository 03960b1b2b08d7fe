package durations

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAQuantileIsWithinTenPercent(t *testing.T) {
	var h Histogram
	require.Zero(t, h.Quantile(0.5), "of nothing")
	for _, d := range []time.Duration{-5, 0, 1, 15, 16, 999, time.Microsecond, 17 * time.Millisecond, 3 * time.Hour} {
		h = Histogram{}
		h.Add(d, 3)
		require.InEpsilon(t, max(d, 0)+1, h.Quantile(0.5)+1, 0.1, d)
	}
	h = Histogram{}
	h.Add(time.Millisecond, 98)
	h.Add(time.Second, 2)
	require.InEpsilon(t, time.Millisecond, h.Quantile(0.98), 0.1)
	require.InEpsilon(t, time.Second, h.Quantile(0.99), 0.1)
}

func TestAStopwatchShowsWhatIsUnderWayToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s Stopwatch
		require.Zero(t, s.Shown())
		for n := range time.Duration(3) {
			time.Sleep(time.Hour)
			s.Start()
			time.Sleep(time.Second)
			require.Equal(t, (n+1)*time.Second, s.Shown())
			s.Stop()
		}
		time.Sleep(time.Hour)
		require.Equal(t, 3*time.Second, s.Shown())
	})
}
