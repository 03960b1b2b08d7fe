package search

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt/internal/stat"
)

// takes has the visit's iterations take so many milliseconds each, the last of them
// for ever, until there are enough, and returns how many there were.
func takes(v *Visit, ms ...time.Duration) (n int) {
	for ; v.More() && n < 100; n++ {
		v.Add(ms[min(n, len(ms)-1)] * time.Millisecond)
	}
	return n
}

func TestAVisitEndsWithItsIterationsOrItsLimit(t *testing.T) {
	for _, tt := range []struct {
		name  string
		visit Visit
		want  int
	}{
		{"all", Visit{Wanted: 5}, 5},
		{"none", Visit{}, 0},
		{"the first past the limit is the last", Visit{Wanted: 5, Limit: 25 * time.Millisecond}, 3},
		{"the limit is reached", Visit{Wanted: 5, Limit: 30 * time.Millisecond}, 3},
		{"one is measured, whatever the limit", Visit{Wanted: 5, Limit: 1}, 1},
		{"the least, whatever the limit", Visit{Wanted: 5, Least: 4, Limit: 1}, 4},
		{"the limit is later than the least", Visit{Wanted: 5, Least: 2, Limit: 25 * time.Millisecond}, 3},
		{"no more than wanted", Visit{Wanted: 5, Least: 9, Limit: 1}, 5},
	} {
		require.Equal(t, tt.want, takes(&tt.visit, 10), tt.name)
		require.Equal(t, tt.want, tt.visit.Kept(), tt.name)
	}
}

// "If its first half is slower than its second by 10 % and two standard errors, the
// first half is left out and the visit goes on, four times at most."
func TestAVisitLeavesOutItsBeginningWhileItBecomesFaster(t *testing.T) {
	for _, tt := range []struct {
		name   string
		wanted int
		took   []time.Duration
		want   int // iterations, those that were left out included
	}{
		{"twice as slow at first", 4, []time.Duration{20, 20, 10}, 6},
		{"an odd number: the middle one stays", 5, []time.Duration{20, 20, 10}, 7},
		{"by 11 %", 4, []time.Duration{111, 111, 100}, 6},
		{"by 9 %", 4, []time.Duration{109, 109, 100}, 4},
		{"slower, not faster", 4, []time.Duration{10, 10, 20}, 4},
		{"one iteration shows no trend", 3, []time.Duration{100, 10}, 3},
		// Two values that are 2d apart have a standard error of d.
		{"10 ms by 2.5 errors of 4 ms", 4, []time.Duration{24, 16, 10}, 6},
		{"10 ms by 1.7 errors of 6 ms", 4, []time.Duration{26, 14, 10}, 4},
		{"10 ms by 1.7 errors, the second half's", 4, []time.Duration{30, 30, 26, 14}, 4},
		// √(8² + 0 + 8²) ms, over √2 for the deviation and over √3 for the error.
		{"10 ms by 2.2 errors of 4.6 ms", 6, []time.Duration{28, 20, 12, 10}, 9},
		{"10 ms by 1.9 errors of 5.2 ms", 6, []time.Duration{29, 20, 11, 10}, 6},
		{"the halves, not the first third", 6, []time.Duration{13, 13, 8, 10, 10, 12}, 6},
		{"four times at most", 4, []time.Duration{1 << 13, 1 << 12, 1 << 11, 1 << 10, 1 << 9, 1 << 8, 1 << 7, 1 << 6, 1 << 5, 1 << 4, 1 << 3, 1 << 2, 1 << 1, 1}, 12},
	} {
		v := Visit{Wanted: tt.wanted}
		require.Equal(t, tt.want, takes(&v, tt.took...), tt.name)
		require.Equal(t, tt.wanted, v.Kept(), tt.name)
		require.Equal(t, tt.name == "four times at most", v.Trend, "%s: still becoming faster", tt.name)
	}
}

func TestWhatWasLeftOutCountsForTheLimitAlone(t *testing.T) {
	v := Visit{Wanted: 4, Limit: 65 * time.Millisecond}
	require.Equal(t, 5, takes(&v, 20, 20, 10), "70 ms")
	require.Equal(t, 3, v.Kept())
	require.Equal(t, 10*time.Millisecond, v.Level())
	for _, part := range v.Parts() {
		require.Equal(t, 10e6, part.Mean)
	}
}

func TestAVisitMadeAgainKeepsOnlyWhatWasAskedFor(t *testing.T) {
	asked := Visit{Wanted: 4, Least: 3, Limit: time.Second, Part: time.Millisecond}
	v := asked
	takes(&v, 80, 80, 40, 40, 20, 20, 10, 10, 5, 5, 2, 2, 1)
	require.True(t, v.Trend)
	v.Again()
	require.Equal(t, asked, v)
}

func TestAShareOfWhatWasWaitedIsTakenOffEachIteration(t *testing.T) {
	v := Visit{Wanted: 5}
	waits := []time.Duration{0, 2 * time.Millisecond, 0, 92 * time.Millisecond, 0}
	for _, wait := range waits {
		v.Add(8*time.Millisecond + wait)
	}
	v.Shorten(waits, 0.5)
	require.Equal(t, []float64{8e6, 9e6, 8e6, 54e6, 8e6}, v.took)
	require.Equal(t, 33*time.Millisecond/4, v.Level())
	v.Shorten(waits, 0.5)
	require.Equal(t, []stat.Part{{Mean: 8e6, Weight: 4}, {Mean: 8e6, Weight: 1}}, v.Parts(), "all of it")
}

func TestALevelNeedsThreeIterations(t *testing.T) {
	v := Visit{Wanted: 3}
	takes(&v, 10, 250, 14)
	require.Equal(t, 12*time.Millisecond, v.Level())
}

func TestALevelOfWavesLacksTheSlowestWaveNotEachWavesWait(t *testing.T) {
	for _, tt := range []struct {
		name string
		took []time.Duration
		want time.Duration
	}{
		{"all alike", []time.Duration{20, 0, 0, 0, 20, 0, 0, 0, 20, 0, 0, 0, 20, 0, 0, 0}, 5 * time.Millisecond},
		{"begun within a wave", []time.Duration{0, 0, 20, 0, 0, 0, 20, 0, 0, 0, 20, 0, 0, 0, 20, 0}, 5 * time.Millisecond},
		{"a stall in one", []time.Duration{20, 0, 0, 0, 900, 0, 0, 0, 20, 0, 0, 0, 20, 0, 0, 0}, 5 * time.Millisecond},
		{"three waves", []time.Duration{20, 0, 0, 0, 32, 0, 0, 0, 20, 0, 0, 0}, 5 * time.Millisecond},
		{"fewer, since the limit passed", []time.Duration{900, 0, 0, 0, 20, 0, 0, 0, 20, 0, 0}, 0},
		{"one, which stalled", []time.Duration{900, 0, 0, 0}, 0},
	} {
		v := Visit{Wanted: len(tt.took), Least: 4}
		takes(&v, tt.took...)
		require.Equal(t, len(tt.took), v.Kept(), tt.name)
		require.Equal(t, tt.want, v.Level(), tt.name)
	}
}

// One in twenty, at least one; of waves likewise. None shares an iteration with another.
func TestALevelOfManyIterationsLacksOneInTwenty(t *testing.T) {
	usual := func(n int, wave ...time.Duration) []time.Duration { return slices.Repeat(wave, n) }
	for _, tt := range []struct {
		name  string
		least int
		took  []time.Duration
		want  time.Duration // total without those that are left out, milliseconds
		of    int           // iterations
	}{
		{"one of 39", 0, slices.Concat(usual(37, 10), usual(2, 90)), 37*10 + 90, 38},
		{"two of 40", 0, slices.Concat(usual(38, 10), usual(2, 90)), 38 * 10, 38},
		{"two of 59", 0, slices.Concat(usual(1, 90), usual(56, 10), usual(1, 80), usual(1, 70)), 56*10 + 70, 57},
		{"three of 60", 0, slices.Concat(usual(1, 90), usual(57, 10), usual(1, 80), usual(1, 70)), 57 * 10, 57},
		{"one of 39 waves", 4, slices.Concat(usual(37, 20, 0, 0, 0), usual(2, 90, 0, 0, 0)), 37*20 + 90, 38 * 4},
		{"two of 40 waves", 4, slices.Concat(usual(38, 20, 0, 0, 0), usual(2, 90, 0, 0, 0)), 38 * 20, 38 * 4},
		// 90 9 9 9 and 80 5 5 5; 9 9 9 80 is slower than the latter, but shares some with both.
		{"two waves that stalled one after the other", 4, slices.Concat(usual(4, 5), []time.Duration{90, 9, 9, 9, 80}, usual(151, 5)), 152 * 5, 152},
		{"of six slow iterations at the end, a wave", 4, slices.Concat(usual(154, 5), usual(6, 90)), 150*5 + 2*90, 152},
		{"no iteration took any time", 4, usual(400, 0), 0, 380},
	} {
		v := Visit{Wanted: len(tt.took), Least: tt.least}
		for _, d := range tt.took {
			v.Add(d * time.Millisecond)
		}
		require.Equal(t, len(tt.took), v.Kept(), tt.name)
		require.Equal(t, tt.want*time.Millisecond/time.Duration(tt.of), v.Level(), tt.name)
	}
}

// What looks for the slowest again and again would take minutes.
func TestTheLevelOfAMillionIterationsIsFoundSoon(t *testing.T) {
	v := Visit{Wanted: 1_000_000}
	for i := range v.Wanted {
		v.Add(time.Duration(1000 + i*1009%v.Wanted%21)) // 1000 to 1020 ns
	}
	require.InDelta(t, 1009.5, float64(v.Level()), 1, "0 to 19")
}

func TestPartsOfAVisitThatChangesHaveTheirOwnMeans(t *testing.T) {
	v := Visit{Wanted: 10}
	takes(&v, slices.Concat(slices.Repeat([]time.Duration{10}, 5), []time.Duration{30})...)
	require.Equal(t, 2, len(v.Parts()))
	require.Equal(t, []float64{10e6, 30e6}, []float64{v.Parts()[0].Mean, v.Parts()[1].Mean})
}
