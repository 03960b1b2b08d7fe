package search

import (
	"cmp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt/internal/stat"
)

// A known is what is known of a count. What isn't said of it: it has had all its
// iterations in three visits, which were alike.
type known struct {
	workers      int
	mean         float64 // milliseconds
	se           float64
	done, visits int
	low, usual   float64 // milliseconds
	lent         float64
}

func evidenceOf(sp Space, counts ...known) evidence {
	e := evidence{sp: sp, df: 1}
	for _, k := range counts {
		e.counts, e.mean, e.low, e.se = append(e.counts, k.workers), append(e.mean, k.mean*1e6), append(e.low, cmp.Or(k.low, k.mean)*1e6), append(e.se, k.se)
		e.done, e.visits = append(e.done, cmp.Or(k.done, 100)), append(e.visits, cmp.Or(k.visits, 3))
		e.fine = append(e.fine, sp.fine(k.workers))
		e.usual, e.lent = append(e.usual, cmp.Or(k.usual, k.mean)*1e6), append(e.lent, k.lent)
	}
	return e
}

// At 1 ms per iteration, alpha is a tenth of that, and a count needs 100 iterations.
func sixtyFour() Space {
	return Space{CPUs: 64, Start: 63, Max: 63, Alpha: DefaultAlpha, Iterations: 100}
}

func TestTheRace(t *testing.T) {
	const (
		fixed = true
		late  = 1e12  // nanoseconds spent
		soon  = 800e6 // of 420 ms of patience
	)
	for _, tt := range []struct {
		name  string
		fixed bool
		spent float64
		known []known
		want  []int
	}{
		// With the user's iterations, only those that need more are measured.
		{"the choice, the fastest and the choice's neighbour", fixed, 0, []known{{workers: 4, mean: 1.5, done: 99}, {workers: 8, mean: 1.05, done: 99}, {workers: 16, mean: 1, done: 99}, {workers: 32, mean: 1.2, done: 9}}, []int{4, 8, 16}},
		{"until they have their iterations", fixed, 0, []known{{workers: 4, mean: 1.5, done: 99}, {workers: 8, mean: 1.05}, {workers: 16, mean: 1, done: 99}, {workers: 32, mean: 1.2, done: 9}}, []int{4, 16}},
		{"all have them", fixed, 0, []known{{workers: 4, mean: 1.5}, {workers: 8, mean: 1.05}, {workers: 16, mean: 1}}, nil},
		{"neighbours on both sides, none further away", fixed, 0, []known{{workers: 2, mean: 1.9, done: 9}, {workers: 4, mean: 1.9, done: 9}, {workers: 8, mean: 1}, {workers: 16, mean: 1.9, done: 9}, {workers: 32, mean: 1.9, done: 9}}, []int{4, 16}},
		{"neighbours that are hopeless", fixed, 0, []known{{workers: 4, mean: 2.1, done: 9}, {workers: 8, mean: 1, done: 9}, {workers: 16, mean: 2.1, done: 9}}, []int{8}},
		{"whatever time was spent", fixed, late, []known{{workers: 4, mean: 1.5, done: 9}, {workers: 8, mean: 1, done: 9}, {workers: 16, mean: 1.5, done: 9}}, []int{4, 8, 16}},
		{"one visit beat the fastest by half of alpha", fixed, 0, []known{{workers: 8, mean: 1}, {workers: 16, mean: 1.5}, {workers: 32, mean: 1.2, low: 0.94, done: 9}}, []int{32}},
		{"none did", fixed, 0, []known{{workers: 8, mean: 1}, {workers: 16, mean: 1.5}, {workers: 32, mean: 1.2, low: 0.96, done: 9}}, nil},
		{"one did, but it has its iterations", fixed, 0, []known{{workers: 8, mean: 1}, {workers: 16, mean: 1.5}, {workers: 32, mean: 1.2, low: 0.94}}, nil},
		{"one did, but too much time was spent", false, late, []known{{workers: 8, mean: 1}, {workers: 16, mean: 1.5}, {workers: 32, mean: 1.2, low: 0.94, done: 9}}, nil},
		{"a visit with fewer workers was within alpha", fixed, 0, []known{{workers: 2, mean: 1.3, low: 1.09, done: 9}, {workers: 4, mean: 1.2}, {workers: 8, mean: 1}}, []int{2}},
		{"none was", fixed, 0, []known{{workers: 2, mean: 1.3, low: 1.11, done: 9}, {workers: 4, mean: 1.2}, {workers: 8, mean: 1}}, nil},
		{"a visit with more workers was", fixed, 0, []known{{workers: 2, mean: 1.3}, {workers: 4, mean: 1.2}, {workers: 8, mean: 1}, {workers: 16, mean: 1.2, low: 1.05}, {workers: 32, mean: 1.3, low: 1.05, done: 9}}, nil},
		{"0.94 by two standard errors", fixed, 0, []known{{workers: 8, mean: 1}, {workers: 16, mean: 1.5}, {workers: 32, mean: 10, se: 0.453, done: 9}}, []int{32}},
		{"0.96", fixed, 0, []known{{workers: 8, mean: 1}, {workers: 16, mean: 1.5}, {workers: 32, mean: 10, se: 0.452, done: 9}}, nil},

		// 4.2 times the time of the fastest: 420 ms.
		{"the patience of 4.2 counts", false, 419e6, []known{{workers: 1, mean: 1.5, done: 9}, {workers: 2, mean: 1}}, []int{1, 2}},
		{"it is over", false, 421e6, []known{{workers: 1, mean: 1.5, done: 9}, {workers: 2, mean: 1}}, nil},
		// 0 to 4 take 150 ms each, 5 to 8 take 105, the rest 100, and four warm-ups of 10 ms
		// each: 5·190 + 4·145 + 55·140 = 9230 ms; 8 % of that are 738 ms.
		{"the patience of 8 % of the sweep", false, 738e6, []known{{workers: 4, mean: 1.5, done: 9}, {workers: 8, mean: 1.05}, {workers: 16, mean: 1}, {workers: 63, mean: 1}}, []int{4, 8, 16}},
		{"it is over too", false, 739e6, []known{{workers: 4, mean: 1.5, done: 9}, {workers: 8, mean: 1.05}, {workers: 16, mean: 1}, {workers: 63, mean: 1}}, nil},

		// 4 workers are a hundredth away from alpha's limit.
		{"not sure: twice the iterations for the choice", false, soon, []known{{workers: 4, mean: 1.12, se: 0.03}, {workers: 8, mean: 1, se: 0.03, done: 199}, {workers: 16, mean: 3}}, []int{4, 8}},
		{"not if all took twice as long as patience already", false, 841e6, []known{{workers: 4, mean: 1.12, se: 0.03}, {workers: 8, mean: 1, se: 0.03, done: 199}, {workers: 16, mean: 3}}, nil},
		{"but no more", false, soon, []known{{workers: 4, mean: 1.12, se: 0.03}, {workers: 8, mean: 1, se: 0.03, done: 200}, {workers: 16, mean: 3}}, nil},
		{"twice for the fastest, if it isn't the choice", false, soon, []known{{workers: 4, mean: 1.09, se: 0.03, done: 200}, {workers: 8, mean: 1, se: 0.03, done: 199}}, []int{4, 8}},
		{"sure: no more than its iterations", false, 0, []known{{workers: 4, mean: 1.5, done: 150}, {workers: 8, mean: 1, done: 150}, {workers: 16, mean: 3}}, nil},
		{"sure and late", false, late, []known{{workers: 4, mean: 1.5, done: 150}, {workers: 8, mean: 1, done: 150}, {workers: 16, mean: 3}}, nil},
		{"not sure: ten times as many again for all that may be chosen", false, 0, []known{{workers: 4, mean: 1.12, se: 0.03, done: 1999}, {workers: 8, mean: 1, se: 0.03, done: 2000}, {workers: 16, mean: 3}, {workers: 32, mean: 1.9, done: 150}}, []int{4, 8}},
		{"then there is an end", false, 0, []known{{workers: 4, mean: 1.12, se: 0.03, done: 2000}, {workers: 8, mean: 1, se: 0.03, done: 2000}, {workers: 16, mean: 3}}, nil},
		{"only while there is patience", false, soon, []known{{workers: 4, mean: 1.12, se: 0.03, done: 9}, {workers: 8, mean: 1, se: 0.03, done: 200}, {workers: 16, mean: 3}}, nil},
		{"not sure, but the user set iterations", fixed, 0, []known{{workers: 4, mean: 1.12, se: 0.03}, {workers: 8, mean: 1, se: 0.03}, {workers: 16, mean: 3}}, nil},

		// 40 workers lie within a step, and one run in four would choose them.
		{"late, but a count within a step had three looks", false, late, []known{{workers: 24, mean: 1.5}, {workers: 32, mean: 1.125}, {workers: 40, mean: 1.06, se: 0.03, visits: 3, done: 9}, {workers: 48, mean: 0.95, done: 200}, {workers: 63, mean: 2}}, []int{40, 48}},
		{"late, and it had four", false, late, []known{{workers: 24, mean: 1.5}, {workers: 32, mean: 1.125}, {workers: 40, mean: 1.06, se: 0.03, visits: 4, done: 9}, {workers: 48, mean: 0.95, done: 200}, {workers: 63, mean: 2}}, nil},

		{"three counts in a round", false, 0, []known{{workers: 4, mean: 1.5}, {workers: 8, mean: 1, done: 9}, {workers: 16, mean: 1.5}, {workers: 32, mean: 1.5}}, []int{4, 8, 16}},
		{"two if it is late", false, late, []known{{workers: 4, mean: 1.5}, {workers: 8, mean: 1, done: 9}, {workers: 16, mean: 1.5}, {workers: 32, mean: 1.5}}, []int{4, 8}},
	} {
		sp := sixtyFour()
		sp.Fixed = tt.fixed
		e := evidenceOf(sp, tt.known...)
		e.spent = tt.spent
		require.Equal(t, tt.want, e.undecided(), tt.name)
	}
}

// 8 workers are chosen at 1.5 ms. Patience is 420 ms or more.
func TestWhichCountsTellWhereStallsSetIn(t *testing.T) {
	nobody := func(int) bool { return false }
	from := func(row int, chance float64, means ...float64) stat.Change {
		for i := range means {
			means[i] *= 1e6
		}
		return stat.Change{Row: row, Means: means, Chance: chance}
	}
	for _, tt := range []struct {
		name    string
		sp      func(*Space)
		spent   float64 // times of patience
		done    int     // iterations of 4 workers
		changes []stat.Change
		want    []int // two counts, and microseconds per iteration
	}{
		{"4 workers may be better: 0.2 · 0.15 is expected to be lost", nil, 1, 9, []stat.Change{from(1, 0.2, 1, 1.15)}, []int{4, 8, 1150}},
		{"0.15 · 0.15", nil, 1, 9, []stat.Change{from(1, 0.15, 1, 1.15)}, nil},
		{"which is too little at any time", nil, 0.1, 9, []stat.Change{from(1, 0.15, 1, 1.15)}, nil},
		{"after 1.9 times the patience, 0.05 is still enough", nil, 1.9, 9, []stat.Change{from(1, 0.333, 1, 1.15)}, []int{4, 8, 1150}},
		{"after 2.1 times it isn't", nil, 2.1, 9, []stat.Change{from(1, 0.333, 1, 1.15)}, nil},
		{"the choice may be slower by half with a chance of 0.006", nil, 1, 9, []stat.Change{from(1, 0.006, 0.8, 1.2)}, []int{4, 8, 1200}},
		{"of 0.004", nil, 1, 9, []stat.Change{from(1, 0.004, 0.8, 1.2)}, nil},
		{"after 1.9 times the patience, a chance of 0.01 is still enough", nil, 1.9, 9, []stat.Change{from(1, 0.01, 0.8, 1.2)}, []int{4, 8, 1200}},
		{"after 2.1 times it isn't", nil, 2.1, 9, []stat.Change{from(1, 0.01, 0.8, 1.2)}, nil},
		{"after twice the patience no chance of it is", nil, 2, 9, []stat.Change{from(1, 0.02, 0.8, 1.2)}, nil},
		{"slower by 0.19 isn't grave", nil, 1, 9, []stat.Change{from(1, 0.1, 1, 1.19)}, nil},
		{"the choice has had ten times its iterations, 4 workers hardly any", nil, 1, 9, []stat.Change{from(1, 0.1, 0.8, 1.2)}, []int{4, 8, 1200}},
		{"4 workers have had ten times 101, the choice lacks some", func(sp *Space) { sp.Iterations = 101 }, 1, 1010, []stat.Change{from(1, 0.1, 0.8, 1.2)}, []int{4, 8, 1200}},
		{"both have had as many", nil, 1, 1000, []stat.Change{from(1, 0.009, 0.8, 1.2)}, nil},
		{"the user set iterations: whatever time was spent", func(sp *Space) { sp.Fixed = true }, 9, 99, []stat.Change{from(1, 0.1, 0.8, 1.2)}, []int{4, 8, 1200}},
		{"4 workers have had them", func(sp *Space) { sp.Fixed = true }, 1, 100, []stat.Change{from(1, 0.009, 0.8, 1.2)}, nil},
		{"4 workers have had them, the choice lacks some", func(sp *Space) { sp.Fixed, sp.Iterations = true, 1001 }, 1, 1001, []stat.Change{from(1, 0.009, 0.8, 1.2)}, nil},
		{"the choice would be the same", nil, 1, 9, []stat.Change{from(1, 0.9, 2, 0.8, 1.2)}, nil},
		{"more depends on the second", nil, 1, 9, []stat.Change{from(1, 0.1, 0.8, 1.2), from(2, 0.1, 0.6, 1.3, 1.3)}, []int{4, 8, 1300}},
		{"of the choice and more workers, the rarer stalls", nil, 1, 9, []stat.Change{from(1, 0.3, 4, 2, 1)}, []int{8, 32, 2000}},
		{"4 workers are as they were", nil, 1, 9, []stat.Change{{Row: 2, From: 1, Means: []float64{3e6, 1e6}, Chance: 0.3}}, []int{8, 32, 3000}},
		// Without stalls 8 workers take 1 ms and 32 take 0.25; so 24 take a third.
		{"a count between, by half of the chance: 0.035 · 0.5 · 2", nil, 1, 9, []stat.Change{from(2, 0.035, 4, 1, 1.2)}, []int{8, 24, 1000}},
		{"which may not be tried", func(sp *Space) { sp.Allowed = nobody }, 1, 9, []stat.Change{from(2, 0.1, 4, 1, 1.2)}, nil},
		{"whose chance would be 0.0045", nil, 1, 9, []stat.Change{from(2, 0.009, 4, 1, 1.2)}, nil},
	} {
		sp := sixtyFour()
		if tt.sp != nil {
			tt.sp(&sp)
		}
		e := evidenceOf(sp, known{workers: 4, mean: 3, usual: 1, done: tt.done}, known{workers: 8, mean: 1.5, usual: 1, done: 1000}, known{workers: 32, mean: 2, usual: 0.25})
		e.elsewhere = [][]stat.Change{tt.changes}
		e.spent = tt.spent * e.patience(100)
		low, high, mean, found := e.contested()
		require.Equal(t, tt.want != nil, found, tt.name)
		if found {
			require.Equal(t, tt.want, []int{low, high, int(mean / 1e3)}, tt.name)
		}
	}
}

// "Counts whose own error is large are measured in the same way."
func TestACountIsContestedIfItsErrorHidesAGain(t *testing.T) {
	const late = 4 // times of patience
	for _, tt := range []struct {
		name  string
		fixed bool
		spent float64 // times of patience
		other known
		want  bool
	}{
		{"a fifth slower, give or take two fifths", false, 1, known{workers: 4, mean: 1.2, se: 0.4, done: 9}, true},
		{"as surely as the choice", false, 1, known{workers: 4, mean: 1.2, se: 0.04, done: 9}, false},
		{"it has had its iterations", false, 1, known{workers: 4, mean: 1.2, se: 0.4, done: 100}, false},
		{"it lacks one", false, 1, known{workers: 4, mean: 1.2, se: 0.4, done: 99}, true},
		{"far slower", false, 1, known{workers: 4, mean: 3, se: 0.4, done: 9}, false},
		{"faster, but within alpha", false, 1, known{workers: 32, mean: 0.95, se: 0.03, done: 9}, false},
		{"more workers", false, 1, known{workers: 32, mean: 1.2, se: 0.4, done: 9}, true},
		{"less is expected of it than the time spent asks for", false, late, known{workers: 4, mean: 1.2, se: 0.4, done: 9}, false},
		{"the user set iterations", true, 1, known{workers: 4, mean: 1.2, se: 0.4, done: 9}, false},
	} {
		sp := sixtyFour()
		sp.Fixed = tt.fixed
		counts := []known{{workers: 8, mean: 1, done: 1000}, tt.other}
		slices.SortFunc(counts, func(a, b known) int { return cmp.Compare(a.workers, b.workers) })
		e := evidenceOf(sp, counts...)
		e.spent = tt.spent * e.patience(100)
		low, high, mean, found := e.contested()
		require.Equal(t, tt.want, found, tt.name)
		if found {
			require.Equal(t, []int{min(8, tt.other.workers), max(8, tt.other.workers), 1e6}, []int{low, high, int(mean)}, tt.name)
		}
	}
}

// The caller counts as one worker.
func TestWhatACountBetweenTakesIfTimesFallEvenly(t *testing.T) {
	e := evidenceOf(sixtyFour(), known{workers: 0, mean: 9, usual: 1}, known{workers: 8, mean: 9, usual: 0.125}, known{workers: 32, mean: 9, usual: 0.125})
	require.InDelta(t, 0.25, e.fallen(1, 4), 1e-9)
	require.InDelta(t, 1, e.fallen(2, 24), 1e-9)
}

// Whether stalls set in elsewhere is asked of two counts at a time.
func TestARaceIsUndecidedByNoiseAlone(t *testing.T) {
	e := evidenceOf(sixtyFour(), known{workers: 4, mean: 1.9}, known{workers: 8, mean: 1, done: 150}, known{workers: 16, mean: 1.9}, known{workers: 32, mean: 1.9})
	for range 2 {
		require.Empty(t, e.undecided())
		require.Equal(t, []int{4, 8, 16}, e.tooSoon())
		e.elsewhere = [][]stat.Change{{{Row: 3, Means: []float64{2e6, 2e6, 2e6, 0.5e6}, Chance: 0.5}}}
	}
}

// "A search takes 0.6 s at least … Until then the rounds go on."
func TestRoundsGoOnWithThreeCountsUntilTheLeastTimeIsSpent(t *testing.T) {
	e := evidenceOf(sixtyFour(), known{workers: 4, mean: 1.5}, known{workers: 8, mean: 1}, known{workers: 16, mean: 1.5}, known{workers: 32, mean: 1.5})
	e.spent = 599e6
	require.Equal(t, []int{4, 8, 16}, e.tooSoon())
	e.spent = 600e6
	require.Empty(t, e.tooSoon())
}

// "Each round includes the choice and the fastest, and three counts if it can."
func TestTheCompanyInARound(t *testing.T) {
	none := map[int]float64{}
	for _, tt := range []struct {
		name            string
		race            []int
		company         int
		chosen, fastest int // of 4, 8, 12, 16, 32, 64
		slow            map[int]float64
		want            []int
	}{
		{"the choice and the fastest", []int{4}, 1, 8, 32, none, []int{4, 8, 32}},
		{"the count below the choice", []int{8}, 2, 8, 8, none, []int{4, 8}},
		{"and above", []int{8}, 3, 8, 8, none, []int{4, 8, 12}},
		{"or above alone", []int{8}, 2, 8, 8, map[int]float64{4: 9}, []int{8, 12}},
		{"with the fastest there are enough", []int{12}, 2, 12, 64, none, []int{12, 64}},
		{"below the choice before above it", []int{12}, 3, 12, 64, none, []int{8, 12, 64}},
		{"beside the choice before beside the fastest", []int{8}, 3, 8, 64, map[int]float64{4: 9}, []int{8, 12, 64}},
		{"below the fastest", []int{8}, 3, 8, 32, map[int]float64{4: 9, 12: 9}, []int{8, 16, 32}},
		{"above the fastest", []int{8}, 3, 8, 32, map[int]float64{4: 9, 12: 9, 16: 9}, []int{8, 32, 64}},
		{"the lowest has none below", []int{4}, 3, 4, 4, none, []int{4, 8}},
		{"the highest has none above", []int{64}, 3, 64, 64, none, []int{32, 64}},
		{"the lowest is company too", []int{8}, 3, 8, 8, map[int]float64{12: 9}, []int{4, 8}},
		{"nobody twice", []int{4, 8, 12}, 3, 8, 8, none, []int{4, 8, 12}},
		{"if all are hopeless, the least so", []int{8}, 3, 8, 8, map[int]float64{4: 5, 12: 4, 16: 3, 32: 4, 64: 5}, []int{8, 16}},
		{"be it the lowest", []int{8}, 3, 8, 8, map[int]float64{4: 3, 12: 4, 16: 5, 32: 5, 64: 5}, []int{4, 8}},
		{"or not", []int{4}, 3, 4, 4, map[int]float64{8: 4, 12: 3, 16: 5, 32: 5, 64: 5}, []int{4, 12}},
	} {
		var counts []known
		index := map[int]int{}
		for i, w := range []int{4, 8, 12, 16, 32, 64} {
			index[w] = i
			counts = append(counts, known{workers: w, mean: max(1, tt.slow[w])})
		}
		e := evidenceOf(sixtyFour(), counts...)
		require.Equal(t, tt.want, e.together(tt.race, tt.company, index[tt.chosen], index[tt.fastest], nil), tt.name)
	}
	e := evidenceOf(sixtyFour(), known{workers: 4, mean: 1.5}, known{workers: 8, mean: 1}, known{workers: 16, mean: 1.5}, known{workers: 32, mean: 1.5}, known{workers: 64, mean: 1.5})
	require.Equal(t, []int{8, 32}, e.together([]int{8}, 2, 1, 1, []float64{0, 0.9, 0.02, 0.05, 0.03}), "what another run may choose before a neighbour")
	require.Equal(t, []int{8, 32, 64}, e.together([]int{8}, 3, 1, 1, []float64{0, 0.9, 0.02, 0.05, 0.03}), "most likely first")
	require.Equal(t, []int{4, 8, 32}, e.together([]int{8}, 3, 1, 1, []float64{0, 0.9, 0, 0.1, 0}), "then neighbours")

	alone := evidenceOf(sixtyFour(), known{workers: 8, mean: 1})
	require.Equal(t, []int{8}, alone.together([]int{8}, 3, 0, 0, nil))
}

func TestASweepMeasuresEveryCountFourTimesWithItsWarmUp(t *testing.T) {
	// 0 and 1: 100 · 2 ms + 4 · 10 ms; 2 and 3: 100 · 1 ms + 4 · 10 ms; 4: 100 · 10 ms + 4 · 2 · 10 ms
	e := evidenceOf(sixtyFour(), known{workers: 1, mean: 2}, known{workers: 3, mean: 1}, known{workers: 4, mean: 10})
	require.InDelta(t, 2*240e6+2*140e6+1080e6, e.sweep(100), 1)
}

// "It bisects to the fewest workers within alpha. It also looks into any gap in which times
// would fall by more than half of alpha if they went on falling as they do below the gap."
func TestWhichGapsAreLookedInto(t *testing.T) {
	for _, tt := range []struct {
		name  string
		known []known
		want  int // −1: none
	}{
		{"below the choice", []known{{workers: 4, mean: 2}, {workers: 8, mean: 1}}, 6},
		{"below the choice, narrow as it is", []known{{workers: 16, mean: 2}, {workers: 20, mean: 1.5}, {workers: 28, mean: 1}}, 24},
		{"not above the choice, wide as it is", []known{{workers: 8, mean: 1}, {workers: 16, mean: 1.2}}, -1},
		{"nor below the fastest", []known{{workers: 4, mean: 1.05}, {workers: 6, mean: 1.05}, {workers: 16, mean: 1}}, -1},
		{"nothing that is closer than a step", []known{{workers: 14, mean: 1.2}, {workers: 16, mean: 1}}, -1},

		// From 18 to 20 workers, times fall by 1.04: with the power ln 1.04 / ln (20/18) = 0.372
		// of the count, hence by (20/24)^0.372 = 0.934 to 24. With 1.02 it is 0.966.
		{"above the fastest, if times promise to fall by more than half of alpha", []known{{workers: 18, mean: 1.04}, {workers: 20, mean: 1}, {workers: 28, mean: 1.3}}, 24},
		{"they don't", []known{{workers: 18, mean: 1.02}, {workers: 20, mean: 1}, {workers: 28, mean: 1.3}}, -1},
		// 1.01 · (20/24)^0.724 = 0.885; 1.06 · (20/24)^0.265 = 1.010
		{"below the fastest, if times promise that", []known{{workers: 18, mean: 1.09}, {workers: 20, mean: 1.01}, {workers: 28, mean: 1}}, 24},
		{"they don't there", []known{{workers: 18, mean: 1.09}, {workers: 20, mean: 1.06}, {workers: 28, mean: 1}}, -1},
		// 1.13 · 20/24 = 0.942, and 1.16 · 20/24 = 0.967
		{"far from the fastest, if times promise that", []known{{workers: 10, mean: 2.26}, {workers: 20, mean: 1.13}, {workers: 28, mean: 1.5}, {workers: 64, mean: 1}}, 24},
		{"they don't here", []known{{workers: 10, mean: 2.32}, {workers: 20, mean: 1.16}, {workers: 28, mean: 1.5}, {workers: 64, mean: 1}}, -1},
		{"the lowest count promises nothing", []known{{workers: 20, mean: 1}, {workers: 28, mean: 1.3}}, -1},
		{"nor does a caller that loads alone", []known{{workers: 0, mean: 30}, {workers: 16, mean: 1}, {workers: 24, mean: 1.3}}, 8},
		{"what memory forbids isn't looked at", []known{{workers: 32, mean: 2}, {workers: 64, mean: 1}}, -1},
	} {
		sp := sixtyFour()
		sp.Allowed = func(w int) bool { return w != 48 }
		w, found := evidenceOf(sp, tt.known...).between()
		require.Equal(t, tt.want >= 0, found, tt.name)
		if found {
			require.Equal(t, tt.want, w, tt.name)
		}
	}
}

// "A count within a step counts there only where the times drawn promise it, too."
func TestAnotherRunLooksWithinAStepOnlyIfThatIsPromisedThereToo(t *testing.T) {
	knee := []known{{workers: 24, mean: 1.5}, {workers: 32, mean: 1.125}, {workers: 40, mean: 0.9}, {workers: 48, mean: 1.1}, {workers: 63, mean: 2}}
	e := evidenceOf(sixtyFour(), knee...)
	require.Equal(t, []bool{false, false, true, false, false}, e.fine)
	for _, tt := range []struct {
		name  string
		times []float64 // at 24, 32, 40, 48 and 63 workers
		want  int
	}{
		{"as here", []float64{1.5, 1.125, 0.9, 1.1, 2}, 40},
		// 1.125 · 32/40 = 0.9 is no gain beside 48 workers, which are the fastest
		{"the count above is as fast", []float64{1.5, 1.125, 0.9, 0.91, 2}, 48},
		// times don't fall from 24 to 32
		{"nothing promises it", []float64{1.125, 1.125, 0.9, 1.1, 2}, 24},
	} {
		require.Equal(t, tt.want, e.counts[e.another(tt.times)], tt.name)
	}
	require.InDelta(t, 1, e.vote(redraws, 1, 0)[2], 1e-9)
	unsure := evidenceOf(sixtyFour(), known{workers: 24, mean: 1.5}, known{workers: 32, mean: 1.125, se: 0.02}, known{workers: 40, mean: 0.8}, known{workers: 48, mean: 0.95, se: 0.02}, known{workers: 63, mean: 2})
	require.InDelta(t, 0.5, unsure.vote(answers, 1, 0)[2], 0.1, "surely the fastest, but half of the runs don't look at it")

	twice := []known{{workers: 32, mean: 2}, {workers: 48, mean: 1.3}, {workers: 56, mean: 1.1}, {workers: 60, mean: 0.95}, {workers: 64, mean: 1.2}}
	e = evidenceOf(Space{CPUs: 64, Start: 64, Max: 64, Alpha: DefaultAlpha, Iterations: 100}, twice...)
	require.Equal(t, []bool{false, false, true, true, false}, e.fine)
	require.Equal(t, 60, e.counts[e.another(e.mean)], "56 workers, once looked at, promise 60")

	sp := Space{CPUs: 20, Start: 13, Max: 100}
	for w, fine := range map[int]bool{0: false, 1: false, 3: false, 7: true, 10: true, 11: true, 12: false, 13: false, 20: false, 40: false, 80: false, 60: true, 96: false, 100: false} {
		require.Equal(t, fine, sp.fine(w), w)
	}
}

// "If the times beside the fastest count, or beside the choice, promise that a count within a
// step is faster than the fastest by half of alpha, and the errors are at most two fifths of
// alpha, it looks there too."
func TestWhenTheSearchLooksWithinAStep(t *testing.T) {
	for _, tt := range []struct {
		name  string
		known []known
		want  int // −1: nowhere
	}{
		// (14/15)^(ln 1.14 / ln (14/12)) = 0.943, and with 1.09 0.962
		{"above the fastest", []known{{workers: 12, mean: 1.14}, {workers: 14, mean: 1, se: 0.01}, {workers: 16, mean: 1.2}}, 15},
		{"times fall too little", []known{{workers: 12, mean: 1.09}, {workers: 14, mean: 1}, {workers: 16, mean: 1.2}}, -1},
		// 1.02 · (14/15)^(ln (1.6/1.02) / ln (14/12)) = 0.834
		{"below the fastest", []known{{workers: 12, mean: 1.6}, {workers: 14, mean: 1.02}, {workers: 16, mean: 1}}, 15},
		// An error of two fifths of alpha is 0.04 here.
		{"the fastest's error is large", []known{{workers: 12, mean: 1.6}, {workers: 14, mean: 1.02}, {workers: 16, mean: 0.9, se: 0.05}}, -1},
		{"its neighbour's is", []known{{workers: 12, mean: 1.6}, {workers: 14, mean: 1.02, se: 0.05}, {workers: 16, mean: 1}}, -1},
		{"its neighbour's is, but the promise is on the other side", []known{{workers: 10, mean: 1.7}, {workers: 12, mean: 1.5, se: 0.05}, {workers: 14, mean: 1}, {workers: 16, mean: 1.2}}, 15},
		// 1.06 · 14/15 = 0.989, which isn't faster than 63 workers by half of alpha; 1.01 · 14/15 = 0.943 is.
		{"beside the choice, if that promises more than the fastest has", []known{{workers: 12, mean: 1.01 * 14 / 12}, {workers: 14, mean: 1.01}, {workers: 16, mean: 1.4}, {workers: 63, mean: 1}}, 15},
		{"it doesn't", []known{{workers: 12, mean: 1.06 * 14 / 12}, {workers: 14, mean: 1.06}, {workers: 16, mean: 1.4}, {workers: 63, mean: 1}}, -1},
		// 1.12 · (14/15)^(ln (1.7/1.12) / ln (14/12)) = 0.929
		{"below the choice", []known{{workers: 12, mean: 1.7}, {workers: 14, mean: 1.12}, {workers: 16, mean: 1.09}, {workers: 32, mean: 1.3}, {workers: 63, mean: 1}}, 15},
		{"the lowest count promises nothing", []known{{workers: 14, mean: 1}, {workers: 16, mean: 1.2}}, -1},
		{"a step is one worker there", []known{{workers: 1, mean: 2}, {workers: 2, mean: 1}, {workers: 4, mean: 1.2}}, -1},
		{"between neighbours there is nothing", []known{{workers: 14, mean: 2}, {workers: 15, mean: 1}, {workers: 16, mean: 1.2}}, -1},
		{"what memory forbids isn't looked at", []known{{workers: 24, mean: 1.5}, {workers: 28, mean: 1}, {workers: 32, mean: 1.2}}, -1},
	} {
		sp := sixtyFour()
		sp.Allowed = func(w int) bool { return w != 30 }
		e := evidenceOf(sp, tt.known...)
		w, found := e.finer(e.mean)
		require.Equal(t, tt.want >= 0, found, tt.name)
		if found {
			require.Equal(t, tt.want, w, tt.name)
		}
	}
}
