package tune

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt/internal/search"
)

// right requires that windows tell what a batch takes in the long run.
func (l *loader) right(t *testing.T, by float64, about string) {
	t.Helper()
	require.NotEmpty(t, l.windows, about)
	for i, w := range l.windows {
		require.InEpsilon(t, float64(l.truth(w.Workers)), float64(w.Block.Mean), by, "%s, window %d: %+v", about, i, w)
		require.LessOrEqual(t, w.Transfer, w.Block.Wait, about)
	}
}

// each has loaders measured whose pace is set by loading, by the body of the loop or by copies, with
// few or many batches ahead.
func each(t *testing.T, by float64, workers ...int) {
	us := time.Microsecond
	for _, body := range []time.Duration{0, 200 * us, 4 * ms, 30 * ms, 300 * ms} {
		for _, load := range []time.Duration{20 * us, 700 * us, 40 * ms} { // a sample
			for _, extra := range []int{0, 32} {
				for _, per := range []int{1, 8, 64} {
					l := made()
					l.per, l.extra, l.load, l.body = per, extra, steady(load), steady(body)
					if body == 4*ms {
						l.copy = 6 * ms
					}
					l.asks(20, workers...)
					l.train(t, time.Minute)
					about := fmt.Sprintf("body %v, loading %v · %d, %d more ahead, copying %v", body, load, per, extra, l.copy)
					require.Len(t, l.windows, len(workers), about)
					l.right(t, by, about)
				}
			}
		}
	}
}

// What was loaded ahead must not make loading look faster, nor a full ring make it look slower.
func TestAWindowTellsWhatABatchTakesInTheLongRun(t *testing.T) { each(t, 0.1, 1, 2, 3, 8, 8) }

// Samples in the hands of workers that go are more than the others load.
func TestFewerWorkersDoNotLookAsFastAsThoseThatGo(t *testing.T) { each(t, 0.25, 16, 8, 2, 1) }

func TestWithoutWorkersABatchTakesLoadingAndBody(t *testing.T) { each(t, 0.15, 2, 0) }

func TestNewWorkersAreWaitedForUntilTheyAreWarm(t *testing.T) {
	for name, begin := range map[string]time.Duration{"at once": 0, "half a second each": time.Second / 2} {
		l := made()
		l.cold, l.begin = search.WarmSamples, begin
		l.asks(20, 1, 2, 8)
		l.train(t, time.Minute)
		l.right(t, 0.1, name)
	}
}

func TestWorkersThatFindNothingToLoadAreNotWaitedFor(t *testing.T) {
	l := made()
	l.cold, l.body = 1e6, steady(400*ms)
	l.asks(5, 4, 16)
	l.train(t, 0)
	require.Len(t, l.windows, 2)
	require.LessOrEqual(t, l.begun[1]-l.sets[1].delivered, 4)
	l.right(t, 0.02, "the body is all")
}

func TestAWorkerThatDoesNotBeginIsWaitedForSomeSecondsOnly(t *testing.T) {
	l := made()
	l.asking = func([]search.Series) (search.Request, bool) {
		l.begin = 10 * time.Minute * time.Duration(len(l.windows))
		return search.Request{Workers: 4 + 4*len(l.windows), Iterations: 20}, len(l.windows) < 2
	}
	require.Less(t, l.train(t, time.Minute), 10*time.Second)
	require.InEpsilon(t, l.truth(4), l.windows[1].Block.Mean, 0.1, "the others load")
}

func TestTuningEndsWithItsTimeAlthoughNothingIsLoaded(t *testing.T) {
	l := made()
	l.asking = func(seen []search.Series) (search.Request, bool) {
		l.begin = 10 * time.Minute
		return search.Request{Workers: 2 * len(l.windows), Iterations: 20}, l.Left() > 0 || len(seen) == 0
	}
	require.Less(t, l.train(t, time.Minute), 70*time.Second)
	require.Len(t, l.seen, 1, "nothing is known of 2 workers")
}

func TestAPauseIsLeftOut(t *testing.T) {
	l := made()
	l.body = func(batch int) time.Duration {
		return 5*ms + map[int]time.Duration{40: 3 * time.Second, 90: 3 * time.Second}[batch]
	}
	l.asks(100, 4)
	l.train(t, time.Minute)
	l.right(t, 0.1, "a checkpoint")

	l = made()
	l.body = func(batch int) time.Duration { return 5*ms + 60*ms*time.Duration((batch%4)/3) }
	l.asks(100, 4)
	l.train(t, time.Minute)
	require.InEpsilon(t, 20*ms, l.windows[0].Block.Mean-l.windows[0].Block.Wait, 0.2, "what comes again and again is ordinary")
}

// A framework compiles in the first step.
func TestWhatIsLeftOutTakesNoTimeOfTuning(t *testing.T) {
	l := made()
	l.body = func(batch int) time.Duration {
		return 5*ms + map[int]time.Duration{1: 20 * time.Second, 30: 20 * time.Second}[batch]
	}
	l.after = func(batch int) {
		if took := l.body(batch); took > time.Second {
			l.LeaveOut(took)
		}
	}
	l.asks(50, 2, 4, 8)
	l.train(t, 10*time.Second)
	require.Len(t, l.windows, 3)
	l.right(t, 0.1, "compiling")
}

func TestAWindowGoesOnInTheNextRun(t *testing.T) {
	for _, epoch := range []int{12, 33, 150} {
		for _, body := range []time.Duration{0, 5 * ms, 30 * ms} {
			l := made()
			l.epoch, l.gap, l.body = epoch, 10*time.Second, steady(body)
			l.asks(100, 1, 4, 8)
			l.train(t, 0)
			require.Len(t, l.windows, 3)
			l.right(t, 0.1, fmt.Sprintf("runs of %d batches, body %v", epoch, body))
		}
	}
}

// A batch may take minutes: finished samples tell earlier.
func TestSlowBatchesAreToldByTheirSamples(t *testing.T) {
	for _, tt := range [][2]time.Duration{{80, 120}, {20, 120}, {10, 30}, {1, 5}} {
		batch, limit := tt[0]*time.Second, tt[1]*time.Second
		l := made()
		l.per, l.load = 64, steady(batch/64)
		c, took := l.greedy(t, search.Space{CPUs: 2, Start: 2, Max: 8, Time: limit})
		require.GreaterOrEqual(t, c.Workers, 6, "%v, %v: %+v", batch, took, l.windows)
		require.LessOrEqual(t, took, limit)
	}
}

func TestAStepThatHidesLoadingIsTunedInFewSteps(t *testing.T) {
	for _, load := range []time.Duration{0, ms / 5} {
		l := made()
		l.load, l.body = steady(load), steady(300*ms)
		l.greedy(t, search.Space{CPUs: 2, Start: 2, Max: -1, Time: time.Minute})
		require.LessOrEqual(t, l.delivered, 50, "loading takes 8 · %v", load)
	}
}

// Rough: runs end, workers begin slowly, and the program pauses once.
func TestTuningFindsACountThatIsHardlySlowerThanTheBest(t *testing.T) {
	for _, body := range []time.Duration{50 * time.Microsecond, 10 * ms, 100 * ms} {
		for _, load := range []time.Duration{ms, 40 * ms} { // a batch
			for _, per := range []int{1, 16} {
				for _, rough := range []bool{false, true} {
					l := made()
					l.per, l.body = per, steady(body)
					l.load = func(workers int) time.Duration { // four CPUs
						return load / time.Duration(per) * time.Duration(max(4, workers)) / 4
					}
					if rough {
						l.epoch, l.cold, l.begin = 70, search.WarmSamples, 200*ms
						l.body = func(batch int) time.Duration { return body + map[int]time.Duration{300: time.Second}[batch] }
					}
					c, took := l.greedy(t, search.Space{CPUs: 4, Start: 4, Max: -1, Time: time.Minute})
					require.LessOrEqual(t, float64(l.truth(c.Workers)), 1.08*float64(l.truth(4)),
						"body %v, loading %v / %d, rough %v, in %v: %+v", body, load, per, rough, took, c)
				}
			}
		}
	}
}

func TestTuningEndsWithItsTime(t *testing.T) {
	for _, limit := range []time.Duration{1, 100 * ms, 3 * time.Second} {
		l := made()
		n := 0
		l.asking = func(seen []search.Series) (search.Request, bool) {
			n++
			return search.Request{Workers: 1 + n%8, Iterations: 100, Round: n}, l.Left() > 0 || len(seen) == 0
		}
		require.Less(t, l.train(t, limit), limit+200*ms)
		require.NotEmpty(t, l.windows, "one count is measured in any case")
	}
}

func TestTuningIsOverIfTheProgramSetsTheCount(t *testing.T) {
	l := made()
	l.asking = func([]search.Series) (search.Request, bool) {
		return search.Request{Workers: 1 + len(l.windows)%4, Iterations: 10, Round: len(l.windows)}, true
	}
	l.after = func(batch int) { l.taken = l.taken || batch == 100 }
	l.train(t, 0)
	require.Less(t, l.delivered, 130, "no further")
}
