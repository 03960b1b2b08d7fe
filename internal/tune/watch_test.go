package tune

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt/internal/search"
)

// settles makes a loader that settles at once on two workers, with which training waits three
// quarters of the time, and thinks that it waits this share of it.
func settles(waits float64) *loader {
	l := made()
	l.asks(0)
	l.settle = func([]search.Series, bool) (Choice, bool) {
		return Choice{Workers: 2, Waits: waits, Ignored: 0.02, Body: 5 * ms}, true
	}
	l.stop = 3000
	return l
}

func TestALoaderThatHasSettledGoesOnAsLongAsTrainingWaitsAsItDid(t *testing.T) {
	l := settles(0.75)
	l.train(t, 0)
	require.Empty(t, l.doubts)
	require.Equal(t, []set{{2, 1}}, l.sets)
	require.True(t, l.Settled())
	require.Less(t, l.looks, l.stop/20, "it is hardly looked at")
}

func TestALoaderIsTunedAgainIfTrainingWaitsMoreOrLess(t *testing.T) {
	for name, load := range map[string]time.Duration{"more": 20 * ms, "less": time.Millisecond, "about as much": 5200 * time.Microsecond} {
		l := settles(0.75)
		l.load = func(int) time.Duration {
			if l.delivered >= 1000 {
				return load
			}
			return 5 * ms
		}
		l.train(t, 0)
		if name == "about as much" {
			require.Empty(t, l.doubts)
			continue
		}
		require.NotEmpty(t, l.doubts, name)
		require.Greater(t, l.doubts[0], 1000+2*windowBatches, "not for a moment")
		require.Less(t, l.doubts[0], 1000+5*windowBatches, name)
	}
}

func TestALoaderThatChoosesTheSameAgainAndAgainIsDoubtedLessAndLess(t *testing.T) {
	l := settles(0)
	l.stop = 15000
	l.train(t, 0)
	require.GreaterOrEqual(t, len(l.doubts), 6)
	before := 0
	for i, windows := range []int{3, 6, 12, 24, 48, 48} {
		require.InDelta(t, windows*windowBatches, l.doubts[i]-before, 8, "%v", l.doubts)
		before = l.doubts[i]
	}
}

// Windows may have been too short to show rare stalls.
func TestWhatALoaderShowsLaterIsWeighed(t *testing.T) {
	l := settles(0.75)
	var later []search.Block
	l.settle = func(seen []search.Series, again bool) (Choice, bool) {
		c := Choice{Workers: 2, Waits: 0.75, Ignored: 0.02, Body: 5 * ms}
		if again {
			blocks := seen[len(seen)-1].Blocks
			later = append(later, blocks[len(blocks)-1])
		}
		if len(later) >= 2 {
			c.Workers, c.Waits = 8, 0
		}
		return c, true
	}
	l.stop = 2000
	l.train(t, 0)
	require.Len(t, l.doubts, 1, "another count was chosen")
	require.Equal(t, set{8, l.sets[1].delivered}, l.sets[1])
	require.GreaterOrEqual(t, len(later), 2)
	for i, b := range later[:2] {
		require.Equal(t, -1, b.Round)
		require.InEpsilon(t, 20*ms, b.Mean, 0.02)
		require.GreaterOrEqual(t, b.Iterations, weighFirst<<i)
		require.InEpsilon(t, 15*ms, b.Wait, 0.02, "the rest is taken for the body of the loop")
	}
}

func TestWindowsWithOtherStepsAreNotWeighed(t *testing.T) {
	l := settles(0.75)
	l.body = func(batch int) time.Duration { return 5*ms + 700*ms*time.Duration((batch%50)/49) }
	settle := l.settle
	l.settle = func(seen []search.Series, again bool) (Choice, bool) {
		require.False(t, again)
		return settle(seen, again)
	}
	l.train(t, 0)
}

func TestShortRunsOfALoaderThatHasSettledAreWatchedToo(t *testing.T) {
	l := settles(0.75)
	l.epoch, l.gap = 10, time.Second
	l.load = func(int) time.Duration {
		if l.delivered >= 1000 {
			return 20 * ms
		}
		return 5 * ms
	}
	l.train(t, 0)
	require.NotEmpty(t, l.doubts)
	require.Greater(t, l.doubts[0], 1000)
}
