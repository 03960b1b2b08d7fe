package search

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt/internal/stat"
)

// looked has a visit of ten iterations in each of so many rounds, all with a mean of
// so many milliseconds and with all CPUs busy.
func looked(workers int, mean float64, rounds int) Series {
	s := Series{Workers: workers}
	for round := range rounds {
		s.Blocks = append(s.Blocks, Block{Round: round, Iterations: 10, Mean: time.Duration(mean * 1e6), CPU: 1})
	}
	return s
}

// idle is looked while a tenth of the CPUs was busy.
func idle(workers int, mean float64, rounds int) Series {
	s := looked(workers, mean, rounds)
	for i := range s.Blocks {
		s.Blocks[i].CPU = 0.1
	}
	return s
}

// "It begins with the count that training would have without tuning. It halves that
// count …, then doubles it up to the ceiling. Each count gets two short looks."
func TestTheLadder(t *testing.T) {
	for _, tt := range []struct {
		start, top int
		want       []int
	}{
		{15, 15, []int{15, 8, 4, 2, 1, 0}},
		{4, 4, []int{4, 2, 1, 0}},
		{3, 20, []int{3, 2, 1, 0, 4, 8, 16, 20}},
		{4, 16, []int{4, 2, 1, 0, 8, 16}},
		{0, 5, []int{0, 1, 2, 4, 5}},
		{1, 2, []int{1, 0, 2}},
		{20, 5, []int{5, 4, 2, 1, 0}},
		{2, 0, []int{0}},
	} {
		sp := Space{CPUs: 4, Start: tt.start, Max: tt.top, Alpha: DefaultAlpha, Iterations: 100}
		_, requests := drive(Greedy{}, sp, func(q Request) Block {
			b := steady(flat)(q)
			b.CPU = 0.9
			return b
		})
		require.Equal(t, slices.Concat(tt.want, tt.want), counts(requests)[:2*len(tt.want)], "from %d to %d", tt.start, tt.top)
		for i, q := range requests[:2*len(tt.want)] {
			require.Equal(t, i/len(tt.want), q.Round)
			require.Equal(t, 5, q.Iterations)
		}
		sp.Iterations = 1
		_, requests = drive(Greedy{}, sp, func(q Request) Block { return Block{Round: q.Round, Iterations: 1, Mean: time.Second, CPU: 0.9} })
		require.Equal(t, slices.Concat(tt.want, tt.want), counts(requests)[:2*len(tt.want)], "two looks, though one has all iterations")

		sp.Time, sp.Left = 840*time.Second, 840*time.Second
		q, more := Greedy{}.Next(sp, nil)
		require.True(t, more)
		require.Equal(t, sp.Left/time.Duration(len(tt.want)), q.Limit, "as much time for each rung")
	}
}

// Up to as many workers as CPUs all rungs are tried, and beyond that as long as CPUs are idle.
func TestTheLadderEndsWhereAllCPUsAreInUse(t *testing.T) {
	for _, tt := range []struct {
		from int // workers that use all of four CPUs
		want []int
	}{
		{1, []int{2, 1, 0, 4}},
		{4, []int{2, 1, 0, 4}},
		{5, []int{2, 1, 0, 4, 8}},
		{9, []int{2, 1, 0, 4, 8, 16}},
		{1000, []int{2, 1, 0, 4, 8, 16, 32, 50}},
	} {
		sp := Space{CPUs: 4, Start: 2, Max: 50, Alpha: DefaultAlpha, Iterations: 100}
		_, requests := drive(Greedy{}, sp, func(q Request) Block {
			b := steady(flat)(q)
			if b.CPU = 0.9; q.Workers >= tt.from {
				b.CPU = 0.91
			}
			return b
		})
		require.Equal(t, slices.Concat(tt.want, tt.want), counts(requests)[:2*len(tt.want)], "%d workers", tt.from)
	}
}

// "… until fewer workers take more than three times as long as the fastest."
func TestWhereHalvingEnds(t *testing.T) {
	for _, tt := range []struct {
		name  string
		took  map[int]float64 // milliseconds; 1 at the others
		first []int
		then  []int // of the first, those that get a second look
	}{
		{"more than three times as long", map[int]float64{8: 2, 4: 3.1, 2: 6}, []int{15, 8, 4}, []int{15, 8, 4}},
		{"three times as long", map[int]float64{8: 2, 4: 3, 2: 6}, []int{15, 8, 4, 2}, []int{15, 8, 4}},
		{"no workers are tried if one is no good", map[int]float64{8: 2, 4: 2, 2: 2, 1: 3.5, 0: 3.5}, []int{15, 8, 4, 2, 1, 0}, []int{15, 8, 4, 2, 1, 0}},
		{"one worker isn't tried if two are no good", map[int]float64{8: 2, 4: 2, 2: 3.5}, []int{15, 8, 4, 2}, []int{15, 8, 4, 2}},
		{"the count of training itself is no good", map[int]float64{15: 10}, []int{15, 8, 4, 2, 1, 0}, []int{8, 4, 2, 1, 0}},
		{"more workers than the fastest, and far slower", map[int]float64{15: 40, 8: 10}, []int{15, 8, 4, 2, 1, 0}, []int{4, 2, 1, 0}},
		{"four times as slow: a second look", map[int]float64{0: 4}, []int{15, 8, 4, 2, 1, 0}, []int{15, 8, 4, 2, 1, 0}},
		{"slower: none", map[int]float64{0: 4.1}, []int{15, 8, 4, 2, 1, 0}, []int{15, 8, 4, 2, 1}},
	} {
		_, requests := drive(Greedy{}, sixteen(), func(q Request) Block {
			return Block{Round: q.Round, Iterations: q.Iterations, Mean: time.Duration(max(tt.took[q.Workers], 1) * 1e6), CPU: 1}
		})
		want := slices.Concat(tt.first, tt.then)
		require.Equal(t, want, counts(requests)[:len(want)], tt.name)
	}
	sp := sixteen()
	sp.Allowed = func(w int) bool { return w != 8 }
	_, requests := drive(Greedy{}, sp, steady(flat))
	require.Equal(t, []int{15, 4, 2, 1, 0}, counts(requests)[:5], "what memory forbids is left out")
}

// "Workers wait for something other than a CPU if the highest count beats every count up to
// half of it by more than alpha while less than 91 % of the process's CPUs are in use in
// its quickest visit. Then the ceiling doubles."
func TestWhenTheCeilingDoubles(t *testing.T) {
	rest := func(took map[int]float64, top int, cpu float64) (seen []Series) {
		for w := range top + 1 {
			s := looked(w, took[w], 1)
			if took[w] == 0 {
				s = looked(w, 2, 1)
			}
			s.Blocks[0].CPU = cpu
			seen = append(seen, s)
		}
		return seen
	}
	for _, tt := range []struct {
		name string
		cpus int
		took map[int]float64 // milliseconds; 2 at the others
		cpu  float64
		want bool
	}{
		{"beats all", 3, map[int]float64{2: 1}, 0.1, true},
		{"less than 91 %", 3, map[int]float64{2: 1}, 0.90, true},
		{"91 %", 3, map[int]float64{2: 1}, 0.91, false},
		{"by a tenth", 3, map[int]float64{1: 1.1, 2: 1}, 0.1, false},
		{"by more than a tenth", 3, map[int]float64{1: 1.11, 2: 1}, 0.1, true},
		{"no better than 4 of 8", 9, map[int]float64{4: 1, 8: 1}, 0.1, false},
		{"no better than 5 of 8", 9, map[int]float64{5: 1, 8: 1}, 0.1, true},
		{"no better than 4 of 7", 8, map[int]float64{4: 1, 7: 1}, 0.1, false},
		{"no better than 5 of 7", 8, map[int]float64{5: 1, 7: 1}, 0.1, true},
		{"one worker beside none", 2, nil, 0.1, true},
		{"no workers on one CPU", 1, nil, 0.1, true},
		{"no workers on one busy CPU", 1, nil, 0.95, false},
		{"two workers beside one", 3, nil, 0.1, false},
		{"up to 1024", 600, map[int]float64{599: 1}, 0.1, true},
		{"no further", 1025, map[int]float64{1024: 1}, 0.1, false},
	} {
		sp := Space{CPUs: tt.cpus, Max: -1, Alpha: Alpha{Total: math.MaxInt64, Share: 0.1}, Iterations: 1}
		seen := rest(tt.took, tt.cpus-1, tt.cpu)
		q, more := Exhaustive{}.Next(sp, seen)
		require.Equal(t, tt.want, more, tt.name)
		if more {
			require.Equal(t, tt.cpus, q.Workers, tt.name)
		}
		top := newSearch(sp, seen).ceiling(tt.cpus - 1)
		require.Equal(t, map[bool]int{false: tt.cpus - 1, true: min(max(2*(tt.cpus-1), tt.cpus), 1024)}[tt.want], top, tt.name)

		sp.Max = tt.cpus - 1
		_, more = Exhaustive{}.Next(sp, seen)
		require.False(t, more, "%s: the user set a bound", tt.name)
	}
	_, more := Exhaustive{}.Next(Space{CPUs: 3, Iterations: 1}, []Series{looked(0, 1, 1)})
	require.False(t, more, "a bound of no workers")
}

// "The highest two get four before the search goes no higher."
func TestTheHighestCountsGetFourLooks(t *testing.T) {
	grown := Space{CPUs: 2, Start: 2, Max: -1, Alpha: DefaultAlpha, Iterations: 100}
	busy := func(q Request) Block {
		return Block{Round: q.Round, Iterations: q.Iterations, Mean: halving(min(q.Workers, 4)), CPU: 0.1}
	}
	looks := []int{2, 1, 0, 4, 8, 2, 1, 0, 4, 8}
	_, requests := drive(Greedy{}, grown, busy)
	require.Equal(t, append(looks, 8, 4, 8, 4), counts(requests)[:14])
	require.Equal(t, 3, requests[14].Workers, "between 2 and 4")
	for i, round := range []int{2, 2, 3, 3} {
		require.Equal(t, round, requests[10+i].Round)
		require.Equal(t, 5, requests[10+i].Iterations, "short ones")
	}

	fixed := grown
	fixed.Fixed = true
	_, requests = drive(Greedy{}, fixed, busy)
	require.Equal(t, append(looks, 3), counts(requests)[:11], "the user set iterations")

	bound := grown
	bound.Max = 8
	_, requests = drive(Greedy{}, bound, busy)
	require.Equal(t, append(looks, 3), counts(requests)[:11], "the user set the highest")

	none := grown
	none.CPUs, none.Start = 8, 8
	_, requests = drive(Greedy{}, none, busy)
	require.Equal(t, []int{8, 4, 2, 1, 0, 8, 4, 2, 1, 0, 3}, counts(requests)[:11], "it goes no higher than the CPUs")

	few := grown
	few.Allowed = func(w int) bool { return w < 8 }
	q, _ := Greedy{}.Next(few, []Series{idle(0, 40, 2), idle(1, 40, 2), idle(2, 20, 2), idle(4, 10, 2), idle(8, 10, 2)})
	require.Equal(t, []int{4, 2}, []int{q.Workers, q.Round}, "8 need too much memory, it turned out")

	q, _ = Greedy{}.Next(grown, []Series{idle(0, 40, 2), idle(1, 40, 2), idle(2, 20, 2), idle(4, 10, 4), idle(5, 10, 1), idle(8, 10, 4)})
	require.Equal(t, []int{3, 10}, []int{q.Workers, q.Iterations}, "5 aren't the rung below 8")

	all := []Series{idle(0, 1024, 1)}
	for w := 1; w <= MaxWorkers; w *= 2 {
		all = append(all, idle(w, 1024/float64(w), 2))
	}
	q, _ = Greedy{}.Next(grown, all)
	require.Equal(t, 768, q.Workers, "no search goes higher than 1024")
}

// sure has a fastest count and two that it beats, all of them measured often enough.
var sure = []Series{looked(0, 1.9, 12), looked(1, 1.9, 12), looked(2, 1, 12)}

// At each of its stages, with an hour for all of it and a millisecond left.
func TestWhatGreedyAsksForNext(t *testing.T) {
	two := Space{CPUs: 2, Start: 2, Max: 2, Alpha: DefaultAlpha, Iterations: 100}
	grown := two
	grown.Max = -1
	large := sixteen()
	large.Start, large.Max = 16, 16
	small := []Series{looked(0, 1.9, 2), looked(1, 1.9, 2), looked(2, 1, 2)}
	beside := func(round int, more ...int) []Series {
		seen := slices.Clone(small)
		for _, w := range more {
			seen[w].Blocks = append(slices.Clone(seen[w].Blocks), Block{Round: round, Iterations: 10, Mean: seen[w].Blocks[0].Mean, CPU: 1})
		}
		return seen
	}
	const ms = time.Millisecond
	for _, tt := range []struct {
		name string
		sp   Space
		seen []Series
		want Request // the zero one: nothing
	}{
		{"a look at the next of two rungs", two, []Series{looked(2, 1, 1)}, Request{1, 5, 0, ms / 2}},
		{"a third look at the highest", grown, []Series{idle(0, 40, 2), idle(1, 40, 2), idle(2, 20, 2), idle(4, 10, 2), idle(8, 10, 2)}, Request{8, 5, 2, ms}},
		{"a gap", large, []Series{looked(16, 1, 2), looked(8, 1.9, 2), looked(4, 3.2, 2)}, Request{12, 10, 1, ms}},
		{"a round, upwards", two, small, Request{1, 10, 2, ms}},
		{"the rest of the round", two, beside(2, 1), Request{2, 10, 2, ms}},
		{"the next round, downwards", two, beside(2, 1, 2), Request{2, 10, 3, ms}},
		{"the rest of it", two, beside(3, 2), Request{1, 10, 3, ms}},
		{"a count within a step", large, []Series{looked(16, 1.2, 12), looked(14, 1, 12), looked(12, 1.5, 12), looked(8, 1.9, 12), looked(4, 3.2, 12)}, Request{15, 10, 11, ms}},
		{"nothing", two, sure, Request{}},
	} {
		tt.sp.Time, tt.sp.Left = time.Hour, ms
		q, more := Greedy{}.Next(tt.sp, tt.seen)
		require.Equal(t, tt.want != Request{}, more, tt.name)
		if more {
			require.Equal(t, tt.want, q, tt.name)
		}
		tt.sp.Left = 0
		_, more = Greedy{}.Next(tt.sp, tt.seen)
		require.False(t, more, "%s, but no time is left", tt.name)
	}
}

func TestWhatIsUndecidedAfter48RoundsStaysSo(t *testing.T) {
	sp := Space{CPUs: 1, Start: 1, Max: 1, Alpha: DefaultAlpha, Iterations: 100}
	after := func(rounds int) (Request, bool) {
		seen := []Series{looked(0, 1.5, rounds), looked(1, 1, rounds)}
		for _, s := range seen {
			for i := range s.Blocks {
				s.Blocks[i].Iterations = 1
			}
		}
		return Greedy{}.Next(sp, seen)
	}
	q, more := after(47)
	require.True(t, more)
	require.Equal(t, 47, q.Round)
	_, more = after(48)
	require.False(t, more)
	sp.Fixed = true
	q, more = after(48)
	require.True(t, more, "the user set iterations")
	require.Equal(t, 48, q.Round)
}

// stalled has visits in four rounds, to so many iterations each. The first few met a stall.
func stalled(workers, round, iterations int, usual float64, stalls int) Series {
	s := Series{Workers: workers}
	for i := range 4 {
		b := Block{Round: round + i, Iterations: iterations, Level: time.Duration(usual * 1e6), CPU: 1}
		sum := 0.0
		for k := range 5 {
			part := stat.Part{Mean: usual * 1e6 * (1 + 0.01*float64((5*i+k)*7%5-2)), Weight: float64(iterations) / 5}
			if k == i && i < stalls {
				part.Mean += 2e6
			}
			b.Parts = append(b.Parts, part)
			sum += part.Mean / 5
		}
		b.Mean = time.Duration(sum)
		s.Blocks = append(s.Blocks, b)
	}
	return s
}

// Two workers are chosen, but one worker would be better if it alone had no stalls. Both
// are visited in each round.
func TestAPairThatTellsWhereStallsSetInIsVisited(t *testing.T) {
	const fixed = true
	for _, tt := range []struct {
		name  string
		fixed bool
		round int    // the first of four
		done  [2]int // iterations per visit of one worker and of two
		more  int    // iterations of a fifth visit to one worker
		left  time.Duration
		want  Request // without its limit; the zero one: nothing
	}{
		{"one worker gets half of the other's iterations", false, 0, [2]int{10, 30}, 0, time.Hour, Request{Workers: 1, Iterations: 60, Round: 4}},
		{"downwards in the next round, half of one worker's", false, 1, [2]int{15, 10}, 0, time.Hour, Request{Workers: 2, Iterations: 30, Round: 5}},
		{"a count's iterations at most", false, 0, [2]int{10, 60}, 0, time.Hour, Request{Workers: 1, Iterations: 100, Round: 4}},
		{"a tenth of them at least", false, 1, [2]int{4, 10}, 0, time.Hour, Request{Workers: 2, Iterations: 10, Round: 5}},
		{"the other one in the same round", false, 0, [2]int{10, 30}, 40, time.Hour, Request{Workers: 2, Iterations: 40, Round: 4}},
		{"no longer than time is left", false, 0, [2]int{10, 30}, 0, time.Millisecond, Request{Workers: 1, Iterations: 60, Round: 4}},
		{"the last round", false, 43, [2]int{10, 30}, 0, time.Hour, Request{Workers: 2, Iterations: 20, Round: 47}},
		{"it was before", false, 44, [2]int{10, 30}, 0, time.Hour, Request{}},
		{"the user's iterations: a tenth of them", fixed, 0, [2]int{10, 20}, 0, time.Hour, Request{Workers: 1, Iterations: 10, Round: 4}},
		{"what is left of them", fixed, 0, [2]int{24, 20}, 0, time.Hour, Request{Workers: 1, Iterations: 4, Round: 4}},
		{"two workers have had them", fixed, 1, [2]int{20, 25}, 0, time.Hour, Request{Workers: 1, Iterations: 10, Round: 5}},
		{"whatever the round", fixed, 47, [2]int{20, 25}, 0, time.Hour, Request{Workers: 1, Iterations: 10, Round: 51}},
	} {
		sp := Space{CPUs: 2, Start: 2, Max: 2, Alpha: DefaultAlpha, Iterations: 100, Fixed: tt.fixed, Time: time.Hour, Left: tt.left}
		seen := []Series{looked(0, 9, 2), stalled(1, tt.round, tt.done[0], 1.15, 0), stalled(2, tt.round, tt.done[1], 1, 3)}
		if tt.more > 0 {
			seen[1].Blocks = append(seen[1].Blocks, Block{Round: tt.round + 4, Iterations: tt.more, Mean: 1150e3, CPU: 1})
		}
		q, more := Greedy{}.Next(sp, seen)
		require.Equal(t, tt.want != Request{}, more, tt.name)
		if more {
			// With the stalls two workers take 1.3 ms. A visit ends at twice that.
			require.InEpsilon(t, min(float64(tt.left), float64(q.Iterations)*2.6e6), float64(q.Limit), 1e-4, tt.name)
			q.Limit = 0
			require.Equal(t, tt.want, q, tt.name)
		}
	}
}

// A count needs no more iterations than fit into a fifteenth of the time: 100 ms.
func TestAVisitThatMayMeetStallsLeavesTimeForOthers(t *testing.T) {
	sp := Space{CPUs: 2, Start: 2, Max: 2, Alpha: DefaultAlpha, Iterations: 100, Time: 1500 * time.Millisecond, Left: time.Second}
	q, more := Greedy{}.Next(sp, []Series{looked(0, 9, 2), stalled(1, 0, 10, 1.15, 0), stalled(2, 0, 40, 1, 3)})
	require.True(t, more)
	require.Equal(t, []int{1, 76}, []int{q.Workers, q.Iterations}, "1.3 ms each with stalls, 1 ms without")
}

// "One batch is measured in any case, at the count that training would have."
func TestOneCountIsMeasuredWhateverTheTime(t *testing.T) {
	for _, s := range []Strategy{Greedy{}, Exhaustive{}} {
		sp := sixteen()
		sp.Start, sp.Time = 5, 1
		q, more := s.Next(sp, nil)
		require.True(t, more)
		require.Equal(t, 5, q.Workers)
		require.Equal(t, time.Duration(1), q.Limit)
		for _, w := range []int{0, 5} {
			_, more = s.Next(sp, []Series{looked(w, 1, 1)})
			require.False(t, more, "one is enough then")
		}
	}
}

func TestExhaustiveMeasuresTrainingsOwnCountFirstIfTimeIsShort(t *testing.T) {
	sp := Space{CPUs: 6, Start: 3, Max: -1, Alpha: DefaultAlpha, Iterations: 102, Time: time.Hour, Left: time.Hour}
	all := func(sp Space) []int {
		_, requests := drive(Exhaustive{}, sp, func(q Request) Block {
			require.Equal(t, []int{25, 26, 25, 26}[q.Round], q.Iterations, "102 in all")
			return steady(flat)(q)
		})
		return counts(requests)
	}
	upwards := []int{0, 1, 2, 3, 4, 5}
	require.Equal(t, slices.Concat([]int{3, 0, 1, 2, 4, 5}, upwards, upwards, upwards), all(sp))
	sp.Time = 0
	require.Equal(t, slices.Concat(upwards, upwards, upwards, upwards), all(sp))
	sp.Time, sp.Start = time.Hour, 9
	require.Equal(t, []int{5, 0, 1, 2, 3, 4}, all(sp)[:6], "the highest, if there are no more")
	sp.Allowed = func(w int) bool { return w < 5 }
	require.Equal(t, []int{0, 1, 2, 3, 4, 0}, all(sp)[:6], "it needs too much memory")
}

func TestHowManyIterationsACountGets(t *testing.T) {
	for _, tt := range []struct {
		name string
		sp   Space
		mean time.Duration // 0: not known
		want int
	}{
		{"as many as asked for", Space{Iterations: 100}, time.Millisecond, 100},
		{"before anything is known", Space{Iterations: 100}, 0, 100},
		{"30 ms", Space{Iterations: 100}, 100 * time.Microsecond, 300},
		{"no more than 100 times as many", Space{Iterations: 3}, 10, 300},
		{"four visits of a clock that steps", Space{Iterations: 100, MinVisit: 30 * time.Millisecond}, time.Millisecond, 120},
		{"no more than 5 s", Space{Iterations: 100}, 100 * time.Millisecond, 50},
		{"no fewer than a fifth", Space{Iterations: 100}, time.Second, 20},
		{"but one", Space{Iterations: 4}, time.Minute, 1},
		{"a fifteenth of the time", Space{Iterations: 100, Time: 30 * time.Second}, 100 * time.Millisecond, 20},
		{"but four", Space{Iterations: 100, Time: 3 * time.Second}, time.Second, 4},
		{"as many as the user set", Space{Iterations: 100, Fixed: true}, time.Second, 100},
	} {
		mean := float64(tt.mean)
		if tt.mean == 0 {
			mean = math.Inf(1)
		}
		require.Equal(t, tt.want, tt.sp.enough(mean), tt.name)
	}
}

// "A visit is a tenth of a count's iterations, and at least five, or a quarter of them if
// that is fewer"; a look is a twentieth.
func TestHowLongAVisitIs(t *testing.T) {
	for _, tt := range []struct {
		name string
		sp   Space
		seen []Series
		look int
		turn int
	}{
		{"of 100", Space{Iterations: 100}, []Series{looked(8, 10, 1)}, 5, 10},
		{"of 101", Space{Iterations: 101}, []Series{looked(8, 10, 1)}, 6, 11},
		{"of 50", Space{Iterations: 50}, []Series{looked(8, 10, 1)}, 3, 5},
		{"of 20", Space{Iterations: 20}, []Series{looked(8, 10, 1)}, 1, 5},
		{"of 13", Space{Iterations: 13}, []Series{looked(8, 10, 1)}, 1, 4},
		{"of 12", Space{Iterations: 12}, []Series{looked(8, 10, 1)}, 1, 3},
		{"of 5", Space{Iterations: 5}, []Series{looked(8, 10, 1)}, 1, 2},
		{"of 1", Space{Iterations: 1}, []Series{looked(8, 30, 1)}, 1, 1},
		{"before anything is known", Space{Iterations: 100}, nil, 5, 10},
		{"of 300, 5 ms at least", Space{Iterations: 100}, []Series{looked(8, 0.1, 1)}, 50, 50},
		{"of 320, 8 ms because the clock steps", Space{Iterations: 100, MinVisit: 8 * time.Millisecond}, []Series{looked(8, 0.1, 1)}, 80, 80},
		{"of 100, however short they are", Space{Iterations: 1}, []Series{looked(8, 0.001, 1)}, 100, 100},
		{"the user set 100", Space{Iterations: 100, Fixed: true}, []Series{looked(8, 0.1, 1)}, 5, 10},
		{"3 are left of the user's", Space{Iterations: 23, Fixed: true}, []Series{looked(4, 1, 2)}, 2, 3},
	} {
		s := newSearch(tt.sp, tt.seen)
		require.Equal(t, tt.look, s.visit(4, glances, 0, 1).Iterations, tt.name)
		require.Equal(t, tt.turn, s.visit(4, turns, 0, 1).Iterations, tt.name)
	}
}

// "A visit ends as soon as it has taken twice as long as the fastest count would need with
// alpha."
func TestWhenAVisitEndsEarly(t *testing.T) {
	sp := sixteen()
	q, _ := Greedy{}.Next(sp, []Series{looked(15, 10, 1)})
	require.Equal(t, Request{Workers: 8, Iterations: 5, Limit: 110 * time.Millisecond}, q, "5 · (10 ms + 1 ms) · 2")
	q, _ = Greedy{}.Next(sp, nil)
	require.Equal(t, time.Duration(math.MaxInt64)/6, q.Limit, "nothing is known yet")
}

// "Counts closer together than a step (1 up to 3 workers, 2 up to 7, 4 up to 15, 8 up to 31
// …) are not told apart."
func TestTheMiddleIsAStepAway(t *testing.T) {
	for _, tt := range [][3]int{ // −1: there is none
		{0, 1, -1}, {0, 2, 1}, {1, 3, 2}, {2, 4, 3}, {3, 4, -1}, {4, 6, -1}, {4, 7, 6}, {4, 8, 6}, {6, 8, -1}, {5, 8, 6},
		{8, 11, -1}, {8, 12, -1}, {8, 15, 12}, {8, 16, 12}, {9, 14, 12}, {10, 14, 12}, {12, 16, -1}, {13, 16, -1},
		{16, 24, -1}, {18, 24, -1}, {16, 27, -1}, {16, 28, 24}, {20, 28, 24}, {21, 28, -1}, {16, 32, 24}, {32, 64, 48}, {64, 96, -1}, {64, 128, 96},
	} {
		w, found := Middle(tt[0], tt[1])
		require.Equal(t, tt[2] >= 0, found, tt)
		if found {
			require.Equal(t, tt[2], w, tt)
		}
	}
}

func TestTheUsualNumberOfVisits(t *testing.T) {
	for _, tt := range []struct{ cpus, most, counts, rungs int }{
		{16, 15, 16, 6}, // 15 8 4 2 1 0
		{16, 3, 4, 4},   // 3 2 1 0
		{16, 0, 1, 2},
	} {
		sp := Space{CPUs: tt.cpus, Max: tt.most}
		require.Equal(t, 4*tt.counts, Exhaustive{}.Usual(sp), "each count in four rounds")
		require.Equal(t, 2*tt.rungs+30, Greedy{}.Usual(sp), "two looks at each rung, ten visits to three counts")
	}
	sp := Space{CPUs: 15, Max: -1}
	require.Equal(t, 2*6+30, Greedy{}.Usual(sp), "up to the CPUs, as far as is known")
}

func TestAlphaLiesBetweenItsShares(t *testing.T) {
	for mean, want := range map[time.Duration]time.Duration{
		10 * time.Millisecond:  time.Millisecond,      // a tenth
		100 * time.Millisecond: 5 * time.Millisecond,  // 0.5 s over 100 iterations
		time.Second:            20 * time.Millisecond, // 2 %
	} {
		require.InDelta(t, float64(want), DefaultAlpha.Of(float64(mean), 100), 1, mean)
	}
}

// "A search takes 0.6 s at least": what disturbs may last as long as a shorter one.
func TestASearchIsNotOverInAMoment(t *testing.T) {
	for _, tt := range []struct {
		name string
		sp   func(*Space)
		low  time.Duration
		high time.Duration
	}{
		{"cheap batches", func(*Space) {}, 600 * time.Millisecond, 700 * time.Millisecond},
		{"the user set iterations", func(sp *Space) { sp.Fixed = true }, 0, 300 * time.Millisecond},
		{"one count is allowed", func(sp *Space) { sp.Allowed = func(w int) bool { return w == 2 } }, 0, 300 * time.Millisecond},
		{"there is less time", func(sp *Space) { sp.Time = 100 * time.Millisecond }, 0, 150 * time.Millisecond},
	} {
		sp := Space{CPUs: 2, Start: 2, Max: 2, Alpha: DefaultAlpha, Iterations: 100}
		tt.sp(&sp)
		spent := time.Duration(0)
		_, requests := driveIn(Greedy{}, sp, func(q Request) Block {
			b := steady(func(int) time.Duration { return 50 * time.Microsecond })(q)
			spent += time.Duration(b.Iterations)*b.Mean + WarmTime
			return b
		}, func() time.Duration { return spent })
		require.GreaterOrEqual(t, spent, tt.low, tt.name)
		require.LessOrEqual(t, spent, tt.high, tt.name)
		require.Less(t, requests[len(requests)-1].Round, lastRound, tt.name)
	}
}
