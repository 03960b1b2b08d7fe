package tune

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt/internal/search"
)

// settles makes a loader that settles at once on two workers, with which a batch takes 20 ms and training waits for
// three quarters of it, and watches it as if it took waits.
func settles(wait time.Duration) *loader {
	l := made()
	l.asks(0)
	l.settled, l.patience = Normal{Mean: wait + 5*ms, Wait: wait, Body: 5 * ms, Ignored: 0.02}, 3
	l.stop = 3000
	return l
}

func TestALoaderThatHasSettledGoesOnAsLongAsTrainingWaitsAsItDid(t *testing.T) {
	l := settles(15 * ms)
	l.train(t, 0)
	require.Empty(t, l.doubts)
	require.Equal(t, []set{{2, 1}}, l.sets)
	require.Less(t, l.looks, l.stop/10, "it is hardly looked at")
}

func TestALoaderIsTunedAgainIfTrainingWaitsMoreOrLess(t *testing.T) {
	for name, load := range map[string]time.Duration{"more": 20 * ms, "less": time.Millisecond, "about as much": 5200 * time.Microsecond} {
		l := settles(15 * ms)
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
		require.Greater(t, l.doubts[0], 1000+windowBatches, "not for a moment")
		require.Less(t, l.doubts[0], 1000+5*windowBatches, name)
	}
}

// Without a step training always waits. What it waits for may become slow, however far that is from the windows of
// before.
func TestALoaderIsTunedAgainSoonAfterLoadingHasBecomeHalfOrTwiceAsFast(t *testing.T) {
	for _, load := range []time.Duration{2500 * time.Microsecond, 10 * ms, 200 * ms} { // a batch takes four times as long
		l := settles(20 * ms)
		l.body, l.settled = steady(0), Normal{Mean: 20 * ms, Wait: 20 * ms, Ignored: 0.02}
		began, changed, doubted := time.Time{}, time.Duration(0), time.Duration(0)
		l.load = func(int) time.Duration {
			if l.delivered >= 200 {
				return load
			}
			return 5 * ms
		}
		l.after = func(batch int) {
			if batch == 1 {
				began = time.Now()
			}
			if batch == 200 {
				changed = time.Since(began)
			}
			if doubted == 0 && len(l.doubts) > 0 {
				doubted = time.Since(began)
			}
		}
		l.stop = 1000
		l.train(t, 0)
		require.Positive(t, doubted, "%v", load)
		require.Less(t, doubted-changed, 15*time.Second, "%v", load)
	}
}

func TestPatienceIsHowManyWindowsInARowMustBeOdd(t *testing.T) {
	for _, patience := range []int{3, 12, 48} {
		l := settles(0)
		l.patience, l.stop = patience, 5000
		l.train(t, 0)
		require.InDelta(t, patience*windowBatches, l.doubts[0], float64(patience*lookEvery))
	}
}

// Windows may have been too short to show rare stalls.
func TestWhatALoaderShowsLaterIsWeighed(t *testing.T) {
	l := settles(15 * ms)
	l.train(t, 0)
	require.GreaterOrEqual(t, len(l.weighed), 2)
	for i, b := range l.weighed[:2] {
		require.Equal(t, -1, b.Round)
		require.InEpsilon(t, 20*ms, b.Mean, 0.02)
		require.GreaterOrEqual(t, b.Iterations, 250<<i)
		require.InEpsilon(t, 15*ms, b.Wait, 0.02, "the rest is taken for the body of the loop")
	}
}

func TestWindowsWithOtherStepsAreNotWeighed(t *testing.T) {
	l := settles(0)
	l.settled.Mean, l.settled.Body = 40*ms, 40*ms // hides loading
	l.body = func(batch int) time.Duration { return 40*ms + 700*ms*time.Duration((batch%50)/49) }
	l.train(t, 0)
	require.Empty(t, l.weighed)
	require.Empty(t, l.doubts)
}

// Another goroutine may close the loader while the loop has its turn, or before it has had one.
func TestALoopIsStoppedWhereverItIs(t *testing.T) {
	for looks := range 20 {
		l := made()
		l.asking = func([]search.Series) (search.Request, bool) { return search.Request{Workers: 2, Iterations: 1}, true }
		l.Start(0)
		var all sync.WaitGroup
		all.Go(func() {
			for range looks {
				l.Look(true)
			}
		})
		all.Go(l.Stop)
		all.Wait()
		l.Stop()
		require.True(t, l.Over())
		l.Look(true)
		l.end()
		l.group.Wait()
	}
}
