package nwt

import (
	"bytes"
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt/internal/search"
)

const ms = time.Millisecond

// autoLoader has eight samples in a batch and, if the options don't say otherwise, two
// workers out of at most 64.
func autoLoader(t *testing.T, opts ...Option) *auto {
	t.Helper()
	ds := NewDataset(1_000_000, []Field{{Name: "x", Type: Float32}}, func(context.Context, int, *Sample) error { return nil })
	l, err := NewLoader(ds, append([]Option{WithBatchSize(8), WithAutoWorkers(), WithWorkers(2), WithMaxWorkers(64), NewVirtualMachine(4).Option(), WithLogger(slog.New(slog.DiscardHandler))}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l.auto
}

// A look is what was seen of a count, a number of times over.
type look struct {
	workers    int
	mean, body time.Duration
	cpu        float64
	times      int
	low        time.Duration // of its interval; 0: its mean
}

// saw has the loader have seen so much. It returns what the search makes of it, with the
// fewest workers of the fastest as the choice.
func (a *auto) saw(looks ...look) search.Choice {
	c := search.Choice{Confidence: 1}
	a.counts = nil
	for _, k := range looks {
		one := newCount(k.workers)
		one.measured, one.cpu = 1, k.cpu
		for range max(1, k.times) {
			s := stretch{mean: k.mean, batches: 16, body: k.body, iterations: 16, bodies: 16}
			if k.mean > k.body {
				s.loading = k.mean
			}
			one.add(s, k.cpu)
		}
		a.counts = append(a.counts, one)
		e := search.Estimate{Workers: k.workers, Mean: k.mean, Low: k.mean, High: k.mean}
		if k.low > 0 {
			e.Low = k.low
		}
		c.Estimates = append(c.Estimates, e)
		if at := a.counts.at(c.Fastest); at == nil || k.mean < at.Mean {
			c.Workers, c.Fastest = k.workers, k.workers
		}
	}
	return c
}

// "It goes up while training waits, CPUs are idle, and the last step up was worth it. The
// wait, and the share of the CPUs that is idle, must each be more than alpha: no more is
// left to gain. It goes to the count that would be enough if workers didn't hinder each
// other, but to no more than 16 times as many. If more than two thirds of the CPUs are in
// use, half as many workers more are tried to fill the rest."
func TestALoaderGoesUpAsFarAsItWouldHaveTo(t *testing.T) {
	for _, tt := range []struct {
		name  string
		looks []look
		want  int // 0: not up
	}{
		{"a fifth of the time is the body, and a tenth more is wanted", []look{{workers: 2, mean: 10 * ms, body: 2 * ms}}, 11},
		{"half of the CPUs are used", []look{{workers: 2, mean: 10 * ms, body: 2 * ms, cpu: 0.5}}, 4},
		{"there is no body", []look{{workers: 2, mean: 10 * ms}}, 32},
		{"from none", []look{{workers: 0, mean: 10 * ms, body: 5 * ms}}, 3},
		{"no more than are allowed", []look{{workers: 60, mean: 10 * ms}}, 64},
		{"these are allowed", []look{{workers: 64, mean: 10 * ms}}, 0},
		{"the wait is alpha", []look{{workers: 2, mean: 100 * ms, body: 98 * ms}}, 0},
		{"the wait is more than alpha", []look{{workers: 2, mean: 100 * ms, body: 97 * ms}}, 3},
		{"less than alpha of the CPUs is idle", []look{{workers: 8, mean: 10 * ms, body: 2 * ms, cpu: 0.981}}, 0},
		{"more is", []look{{workers: 8, mean: 10 * ms, body: 2 * ms, cpu: 0.979}}, 12},
		{"a fifth of them is", []look{{workers: 8, mean: 10 * ms, body: 2 * ms, cpu: 0.8}}, 12},
		{"two fifths of them are", []look{{workers: 8, mean: 10 * ms, body: 2 * ms, cpu: 0.6}}, 14},
		{"the wait is less than that", []look{{workers: 8, mean: 10 * ms, body: 9 * ms, cpu: 0.8}}, 10},
		{"the last step was worth nothing", []look{{workers: 2, mean: 10 * ms}, {workers: 4, mean: 10 * ms}}, 0},
		{"the last step was worth it", []look{{workers: 2, mean: 12 * ms}, {workers: 4, mean: 10 * ms}}, 64},
		{"the last step was small", []look{{workers: 3, mean: 10 * ms}, {workers: 4, mean: 10 * ms}}, 64},
		{"the last step was half of it", []look{{workers: 2, mean: 10 * ms}, {workers: 3, mean: 10 * ms}}, 0},
		{"one worker does as none", []look{{workers: 0, mean: 10 * ms}, {workers: 1, mean: 10 * ms}}, 16},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := autoLoader(t)
			c := a.saw(tt.looks...)
			a.workers = c.Workers
			workers, found := a.above(c)
			require.Equal(t, tt.want > 0, found)
			if found {
				require.Equal(t, tt.want, workers)
			}
		})
	}
}

// Halfway back, until the batches of so many workers fit into what memory is left.
func TestALoaderGoesUpNoFurtherThanItsMemoryAllows(t *testing.T) {
	above := func(limit uint64, memory ...uint64) (workers int, found bool) {
		a := autoLoader(t)
		c := a.saw([]look{{workers: 2, mean: 10 * ms}, {workers: 4, mean: 5 * ms}}[:len(memory)]...)
		for i, bytes := range memory {
			a.counts[i].Memory = bytes
		}
		a.workers, a.l.slotBytes, a.limit.bytes = c.Workers, 100, limit
		return a.above(c)
	}
	for _, tt := range []struct {
		limit uint64
		want  int
	}{{1300, 32}, {1299, 17}, {1199, 9}, {999, 0}} { // 32 workers need three more batches, 17 two, 9 one
		workers, found := above(tt.limit, 1000)
		require.Equal(t, tt.want > 0, found, tt)
		if found {
			require.Equal(t, tt.want, workers, tt)
		}
	}
	workers, found := above(2100, 1000, 1100) // 50 bytes for each worker
	require.True(t, found)
	require.Equal(t, 19, workers, "64, 34, 19")
}

// "If that step went past the best count, it looks in between."
func TestALoaderLooksBetweenTheFastestAndTheNextCount(t *testing.T) {
	for _, tt := range []struct {
		name  string
		looks []look
		want  int // 0: nowhere
	}{
		{"the fastest is the highest", []look{{workers: 2, mean: 10 * ms}, {workers: 4, mean: 5 * ms}}, 0},
		{"a step past it", []look{{workers: 2, mean: 10 * ms}, {workers: 4, mean: 5 * ms}, {workers: 16, mean: 8 * ms}}, 12},
		{"training doesn't wait", []look{{workers: 4, mean: 5 * ms, body: 5 * ms}, {workers: 16, mean: 8 * ms, body: 5 * ms}}, 0},
		{"they are near each other", []look{{workers: 8, mean: 5 * ms}, {workers: 10, mean: 8 * ms}}, 0},
		{"a little less near", []look{{workers: 8, mean: 5 * ms}, {workers: 11, mean: 8 * ms}}, 0},
		{"half as many more", []look{{workers: 8, mean: 5 * ms}, {workers: 12, mean: 8 * ms}}, 0},
		{"more than that", []look{{workers: 8, mean: 5 * ms}, {workers: 14, mean: 8 * ms}}, 12},
		{"from none", []look{{workers: 0, mean: 5 * ms}, {workers: 2, mean: 8 * ms}}, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := autoLoader(t)
			workers, found := a.beside(a.saw(tt.looks...))
			require.Equal(t, tt.want > 0, found)
			if found {
				require.Equal(t, tt.want, workers)
			}
		})
	}
}

// "It goes down by halves from the best count as long as fewer workers do as well, then
// to the middle of the gap." And to none only if a batch loads in next to no time.
func TestALoaderGoesDownByHalvesAndThenToTheMiddle(t *testing.T) {
	stream := &run{sequence: &sequence{}}
	for _, tt := range []struct {
		name  string
		looks []look
		load  time.Duration // of a sample
		r     *run
		want  int // −1: not down
	}{
		{"by half", []look{{workers: 8, mean: 5 * ms}, {workers: 16, mean: 5 * ms}}, ms, &run{}, 4},
		{"to the middle", []look{{workers: 4, mean: 9 * ms}, {workers: 8, mean: 5 * ms}}, ms, &run{}, 6},
		{"there is no middle", []look{{workers: 7, mean: 9 * ms}, {workers: 8, mean: 5 * ms}}, ms, &run{}, -1},
		{"one is the fewest that load beside training", []look{{workers: 1, mean: 5 * ms, body: 5 * ms}}, ms, &run{}, -1},
		{"a batch loads in next to no time", []look{{workers: 1, mean: 5 * ms, body: 5 * ms}}, time.Microsecond, &run{}, 0},
		{"so it does with more workers", []look{{workers: 1, mean: 5 * ms, body: 5 * ms}, {workers: 2, mean: 5 * ms, body: 50 * ms}}, time.Microsecond, &run{}, 0},
		{"a stream's worker loads while it is read", []look{{workers: 1, mean: 5 * ms, body: 5 * ms}}, time.Microsecond, stream, -1},
		{"a batch takes a tenth of the body and more", []look{{workers: 1, mean: 5 * ms, body: 5 * ms}}, 80 * time.Microsecond, &run{}, -1},
		{"two are faster", []look{{workers: 1, mean: 5 * ms, body: 5 * ms}, {workers: 2, mean: 4 * ms, body: 4 * ms}}, time.Microsecond, &run{}, -1},
		{"none was seen", []look{{workers: 0, mean: 5 * ms}}, time.Microsecond, &run{}, -1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := autoLoader(t)
			c := a.saw(tt.looks...)
			if tt.looks[0].workers == 1 {
				c.Workers = 1
			}
			a.l.pace.perSample.Store(int64(tt.load))
			workers, found := a.below(c, tt.r)
			require.Equal(t, tt.want >= 0, found)
			if found {
				require.Equal(t, tt.want, workers)
			}
		})
	}
}

// "The choice, the fastest and the next lower count get a second look, and up to five
// looks while the choice isn't sure. Any other count gets up to four looks as long as it
// may still be the best, the most promising first, so that one bad look doesn't rule it
// out."
func TestALoaderLooksAgainWhereItIsInDoubt(t *testing.T) {
	seen := func(workers int, mean time.Duration, times int) look {
		return look{workers: workers, mean: mean, times: times}
	}
	for _, tt := range []struct {
		name       string
		looks      []look
		chosen     int
		confidence float64
		want       int // −1: nowhere
	}{
		{"the choice", []look{seen(4, 10*ms, 1), seen(8, 9900*time.Microsecond, 2)}, 4, 1, 4},
		{"the fastest", []look{seen(4, 10*ms, 2), seen(8, 9900*time.Microsecond, 1)}, 4, 1, 8},
		{"the next lower", []look{seen(2, 12*ms, 1), seen(4, 10*ms, 2)}, 4, 1, 2},
		{"the next lower is far slower", []look{seen(2, 13*ms, 1), seen(4, 10*ms, 2)}, 4, 1, -1},
		{"a lower one that isn't the next", []look{seen(1, 12*ms, 1), seen(2, 12*ms, 2), seen(4, 10*ms, 2)}, 4, 1, -1},
		{"what was seen least", []look{seen(2, 12*ms, 3), seen(4, 10*ms, 2), seen(8, 9900*time.Microsecond, 4)}, 4, 0.5, 4},
		{"all were seen twice", []look{seen(2, 12*ms, 2), seen(4, 10*ms, 2), seen(8, 9900*time.Microsecond, 2)}, 4, 1, -1},
		{"the choice isn't sure", []look{seen(4, 10*ms, 4), seen(8, 9900*time.Microsecond, 5)}, 4, 0.96, 4},
		{"it is sure", []look{seen(4, 10*ms, 4), seen(8, 9900*time.Microsecond, 5)}, 4, 0.97, -1},
		{"five are enough", []look{seen(4, 10*ms, 5), seen(8, 9900*time.Microsecond, 5)}, 4, 0.5, -1},
		{"another may be the best", []look{seen(4, 10*ms, 5), {workers: 16, mean: 15 * ms, low: 9 * ms, times: 3}}, 4, 0.5, 16},
		{"it was seen four times", []look{seen(4, 10*ms, 5), {workers: 16, mean: 15 * ms, low: 9 * ms, times: 4}}, 4, 0.5, -1},
		{"it was seen as often as a choice that is sure", []look{seen(4, 10*ms, 2), {workers: 16, mean: 15 * ms, low: 9 * ms, times: 2}}, 4, 1, -1},
		{"it can't be better by alpha", []look{seen(4, 10*ms, 5), {workers: 16, mean: 15 * ms, low: 9900 * time.Microsecond, times: 1}}, 4, 0.5, -1},
		{"nor by just alpha", []look{seen(4, 10*ms, 5), {workers: 16, mean: 15 * ms, low: 9800 * time.Microsecond, times: 1}}, 4, 0.5, -1},
		{"the most promising", []look{seen(4, 10*ms, 5), {workers: 16, mean: 15 * ms, low: 9 * ms}, {workers: 32, mean: 14 * ms, low: 9 * ms}, {workers: 64, mean: 16 * ms, low: 9 * ms}}, 4, 0.5, 32},
		{"the choice comes first", []look{{workers: 1, mean: 15 * ms, low: 9 * ms}, seen(4, 10*ms, 1), {workers: 16, mean: 15 * ms, low: 9 * ms}}, 4, 0.5, 4},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := autoLoader(t)
			c := a.saw(tt.looks...)
			c.Workers, c.Confidence = tt.chosen, tt.confidence
			workers, found := a.doubtful(c)
			require.Equal(t, tt.want >= 0, found)
			if found {
				require.Equal(t, tt.want, workers)
			}
		})
	}
}

// A probe has 16 batches and takes 5 ms, or 20 steps of a coarse clock. "A look ends when
// it has lost as much time as three batches take at the best count." At the highest count
// so far it ends once training waits for half of the time.
func TestALookIsLongEnoughToTell(t *testing.T) {
	for _, tt := range []struct {
		name    string
		step    time.Duration // of the clock
		looks   []look
		workers int
		probe   probe
		want    bool
	}{
		{"too few batches", 0, []look{{workers: 4, mean: ms}}, 2, probe{iterations: 15, body: 15 * ms}, false},
		{"enough batches", 0, []look{{workers: 4, mean: ms}}, 2, probe{iterations: 16, body: 16 * ms}, true},
		{"too little time", 0, []look{{workers: 4, mean: ms}}, 2, probe{iterations: 17, body: 17 * 290 * time.Microsecond}, false},
		{"so many that the time doesn't matter", 0, []look{{workers: 4, mean: ms}}, 2, probe{iterations: 256, body: 256 * time.Microsecond}, true},
		{"not quite so many", 0, []look{{workers: 4, mean: ms}}, 2, probe{iterations: 255, body: 255 * time.Microsecond}, false},
		{"the clock is coarse", ms, []look{{workers: 4, mean: ms}}, 2, probe{iterations: 1000, body: 19 * ms}, false},
		{"and has made 20 steps", ms, []look{{workers: 4, mean: ms}}, 2, probe{iterations: 1000, body: 20 * ms}, true},
		{"three batches' time is lost", 0, []look{{workers: 4, mean: 4 * ms}}, 2, probe{iterations: 4, wait: 14 * ms, body: 14 * ms}, false},
		{"more is", 0, []look{{workers: 4, mean: 4 * ms}}, 2, probe{iterations: 4, wait: 14 * ms, body: 14*ms + 1}, true},
		{"even in a single batch", 0, []look{{workers: 4, mean: 4 * ms}}, 2, probe{iterations: 1, wait: 17 * ms}, true},
		{"the workers' batches aren't all there", 0, []look{{workers: 40, mean: 4 * ms}}, 24, probe{iterations: 2, wait: 50 * ms}, false},
		{"now they are", 0, []look{{workers: 40, mean: 4 * ms}}, 24, probe{iterations: 3, wait: 50 * ms}, true},
		{"at the highest count training waits", 0, nil, 2, probe{iterations: 2, wait: 5 * ms, body: ms}, true},
		{"half of the time isn't enough", 0, nil, 2, probe{iterations: 2, wait: 3 * ms, body: 3 * ms}, false},
		{"5 ms neither", 0, nil, 2, probe{iterations: 2, wait: 4 * ms, body: ms}, false},
		{"nor a single batch", 0, nil, 2, probe{iterations: 1, wait: 50 * ms}, false},
		{"nor if less was loaded", 0, nil, 2, probe{iterations: 2, wait: 50 * ms, gained: -8, missing: 8}, false},
		{"and there is a higher count", 0, []look{{workers: 2, mean: time.Second}}, 2, probe{iterations: 2, wait: 5 * ms, body: ms}, false},
		{"what counts is what was loaded", 0, []look{{workers: 4, mean: ms}}, 2, probe{iterations: 8, body: 9 * ms, gained: 64}, true},
		{"not quite a wave was loaded", 0, []look{{workers: 40, mean: 10 * ms}}, 24, probe{iterations: 17, body: 17 * 10 * ms, gained: -113, missing: 200}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := NewVirtualMachine(4)
			m.Step = tt.step
			a := autoLoader(t, m.Option())
			a.saw(tt.looks...)
			a.workers, a.probe = tt.workers, tt.probe
			require.Equal(t, tt.want, a.enough())
		})
	}
}

// "Loading isn't charged for a checkpoint or a validation in the loop body: a body counts
// for at most four times its usual duration."
func TestABodyThatPausesCountsForFourTimesItsUsualTime(t *testing.T) {
	a := autoLoader(t)
	a.saw(look{workers: 4, mean: time.Second})
	for _, tt := range []struct{ took, waited, body, usual time.Duration }{
		{11 * ms, 3 * ms, 8 * ms, 8 * ms},       // the first
		{18 * ms, 2 * ms, 16 * ms, 9 * ms},      // an eighth of the difference
		{5 * ms, 0, 5 * ms, 7 * ms},             // half of it: a slow first one is soon forgotten
		{28 * ms, 0, 28 * ms, 9625000},          // four times as long, but no more
		{1000 * ms, 0, 4 * 9625000, 13234375},   // a pause
		{13234375 + ms, ms, 13234375, 13234375}, // the usual
	} {
		before := a.probe.body
		a.measure(nil, interval{batches: 1, took: tt.took, waited: tt.waited, gained: 8})
		require.Equal(t, tt.usual, a.bodies.usual, tt)
		require.Equal(t, tt.body, a.probe.body-before, tt)
	}
	require.Equal(t, probe{iterations: 6, wait: 6 * ms, body: a.probe.body, bodies: 6, squares: a.probe.squares, gained: 5 * 8, use: a.probe.use}, a.probe, "what was loaded in the pause says nothing")
	a.conclude()
	require.Equal(t, probe{}, a.probe)
	require.Equal(t, []any{6, 2}, []any{a.counts.at(2).Iterations, a.counts.at(2).Prefetch})
}

// Up first, then between the fastest and the next, then down, then where it is in doubt;
// "after 32 looks it settles on the best count so far."
func TestALoaderGoesOnFromLookToLook(t *testing.T) {
	for _, tt := range []struct {
		name    string
		looks   []look
		want    int
		settled bool
	}{
		{"up", []look{{workers: 2, mean: 10 * ms, cpu: 0.1}}, 20, false},
		{"between", []look{{workers: 2, mean: 10 * ms, cpu: 1}, {workers: 4, mean: 5 * ms, cpu: 1}, {workers: 16, mean: 9 * ms, cpu: 1}}, 12, false},
		{"down", []look{{workers: 4, mean: 10 * ms, cpu: 1}, {workers: 8, mean: 5 * ms, cpu: 1}}, 6, false},
		{"again", []look{{workers: 7, mean: 5500 * time.Microsecond, cpu: 1, times: 5}, {workers: 8, mean: 5 * ms, cpu: 1}}, 8, false},
		{"nowhere", []look{{workers: 7, mean: 5500 * time.Microsecond, cpu: 1, times: 5}, {workers: 8, mean: 5 * ms, cpu: 1, times: 5}}, 8, true},
		{"31 looks", []look{{workers: 4, mean: 10 * ms, cpu: 1, times: 16}, {workers: 8, mean: 5 * ms, cpu: 1, times: 15}}, 6, false},
		{"32 looks", []look{{workers: 4, mean: 10 * ms, cpu: 1, times: 16}, {workers: 8, mean: 5 * ms, cpu: 1, times: 16}}, 8, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := autoLoader(t)
			a.saw(tt.looks...)
			a.workers = tt.looks[len(tt.looks)-1].workers
			a.began = time.Now()
			a.proceed(&run{l: a.l})
			require.Equal(t, []any{tt.want, tt.settled}, []any{a.workers, a.settled})
		})
	}
}

// "After three windows in a row with 4 points more or 10 points less, it measures anew",
// of 200 ms at least.
func TestASettledLoaderCountsWindowsThatAreOff(t *testing.T) {
	second := func(w *watching, waited time.Duration) bool {
		return w.waitChanged(time.Second, waited)
	}
	for _, tt := range []struct {
		name   string
		waited []time.Duration // of seconds
		want   bool
	}{
		{"two", []time.Duration{600 * ms, 600 * ms}, false},
		{"three", []time.Duration{600 * ms, 600 * ms, 600 * ms}, true},
		{"not in a row", []time.Duration{600 * ms, 600 * ms, 500 * ms, 600 * ms, 600 * ms}, false},
		{"more and less", []time.Duration{600 * ms, 300 * ms, 600 * ms}, true},
		{"nearly 4 points more", []time.Duration{539 * ms, 539 * ms, 539 * ms}, false},
		{"4 points more", []time.Duration{541 * ms, 541 * ms, 541 * ms}, true},
		{"nearly 10 points less", []time.Duration{401 * ms, 401 * ms, 401 * ms}, false},
		{"10 points less", []time.Duration{399 * ms, 399 * ms, 399 * ms}, true},
	} {
		w := &watching{expected: 0.5, ignored: 0.02, patience: oddWindows}
		for i, waited := range tt.waited {
			require.Equal(t, tt.want && i == len(tt.waited)-1, second(w, waited), "%s: window %d", tt.name, i)
		}
	}
	w := &watching{expected: 0.5, ignored: 0.02, patience: 1}
	require.False(t, w.waitChanged(199*ms, 199*ms))
	require.True(t, w.waitChanged(ms, ms), "a window of 200 ms")
	require.False(t, w.waitChanged(ms, ms), "the next has begun")

	w = &watching{expected: 0.25, ignored: 1. / 16, patience: 1}
	require.False(t, w.waitChanged(time.Second, 375*ms), "alpha, twice")
	require.True(t, w.waitChanged(time.Second, 376*ms))
	w.ignored = 0.5
	require.False(t, w.waitChanged(time.Second, 449*ms), "20 points at most")
	require.True(t, w.waitChanged(time.Second, 451*ms))
}

// "So a settled loader adds its windows to what it knows of its count, after 256 batches,
// 512 more, and so on." What the choice's interval doesn't hold is corrected; if another
// count seems faster by more than alpha, the loader tunes again. "A window with a pause in
// the loop body is left out."
func TestASettledLoaderAddsItsWindowsToWhatItKnows(t *testing.T) {
	settled := func(opts ...Option) (*auto, *bytes.Buffer) {
		var log bytes.Buffer
		a := autoLoader(t, append(opts, WithLogger(slog.New(slog.NewTextHandler(&log, nil))))...)
		a.saw(look{workers: 2, mean: 10 * ms, body: 4 * ms, times: 3}, look{workers: 4, mean: 9900 * time.Microsecond, body: 4 * ms, times: 3})
		a.workers = 2
		a.began = time.Now()
		a.settleOn(search.Choose(a.sp, a.counts.series()))
		require.Equal(t, 2, a.result.Load().Workers)
		return a, &log
	}
	window := func(a *auto, batch, body time.Duration) {
		a.weigh(interval{batches: 64, took: 64 * batch, waited: 64 * (batch - body)})
	}
	blocks := func(a *auto) int { return len(a.counts.at(2).blocks) }

	a, log := settled()
	for i := range 64 {
		window(a, 10*ms, 4*ms)
		want := 3
		for weighed, n := 0, 256; weighed+n <= 64*(i+1); weighed, n = weighed+n, 2*n {
			want++
		}
		require.Equal(t, want, blocks(a), "after %d batches", 64*(i+1))
	}
	require.NotContains(t, log.String(), "tuning again")
	require.Equal(t, 10*ms, a.result.Load().trial(2).Mean)

	a, log = settled()
	for range 8 {
		window(a, 10*ms, 8*ms) // a loop body that isn't what it was
		window(a, 10*ms, 0)
	}
	require.Equal(t, 3, blocks(a), "left out")

	shown := a.result.Load()
	for range 4 {
		window(a, 9800*time.Microsecond, 4*ms)
	}
	require.Equal(t, 4, blocks(a))
	corrected := a.result.Load()
	require.NotSame(t, shown, corrected)
	require.Less(t, corrected.trial(2).Mean, 10*ms)
	require.Equal(t, shown.Elapsed, corrected.Elapsed)
	require.NotContains(t, log.String(), "tuning again")
	require.True(t, a.settled)

	a, log = settled()
	a.skip, a.bodies.usual = 0, ms
	for range 4 {
		window(a, 12*ms, 4*ms)
	}
	require.Contains(t, log.String(), "another worker count may be faster: tuning again")
	require.False(t, a.settled)
	require.Len(t, a.counts, 1)
	c := a.counts.at(2)
	require.Equal(t, []search.Block{{Round: -1, Iterations: 256, Mean: 12 * ms}}, c.blocks, "the windows are its first look")
	require.Equal(t, []any{256, 12 * ms, 4 * ms, 8 * ms}, []any{c.Iterations, c.Mean, c.Step, c.Wait})
	require.Equal(t, []any{1, 1, time.Duration(0)}, []any{a.left, a.skip, a.bodies.usual})
}

func TestAResultThatIsNotSureWarns(t *testing.T) {
	a := autoLoader(t)
	c := a.saw(look{workers: 2, mean: 10 * ms, body: 4 * ms})
	c.Confidence = 0.895
	require.Contains(t, a.report(c).Warnings, "the choice is not sure: another run would make it in 90 % of cases")
	c.Confidence = 0.9
	require.Empty(t, a.report(c).Warnings)
}

func TestWhatALoaderMayTryFollowsItsOptions(t *testing.T) {
	m := NewVirtualMachine(4)
	a := autoLoader(t, m.Option())
	require.Equal(t, []any{64, 100, autoAlpha, 5 * ms}, []any{a.sp.Max, a.sp.Iterations, a.sp.Alpha, a.least})
	m.Step = ms
	a = autoLoader(t, m.Option(), WithMaxWorkers(0), WithIterations(1), WithRelativeAlpha(0.125))
	require.Equal(t, []any{0, 1, 0.125, 20 * ms}, []any{a.sp.Max, a.sp.Iterations, a.sp.Alpha.Share, a.least})
}
