package search

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
	"time"

	"github.com/nwt-go/nwt/internal/stat"
)

// Greedy measures training's own count first. Then it goes up through the powers of two while training
// waits, and down through them until the count is hopelessly low. It then bisects to the fewest workers
// within alpha of the fastest. Then it measures the counts still in the race, round by round, until the
// choice is sure or each of them has its iterations. It tries counts that are closer together than a step
// only where they promise to be faster, see stepAt and finer.
func Greedy(sp Space, seen []Series) (Request, bool) {
	seen = even(seen)
	s := stateOf(sp, seen)
	if s.left <= 0 {
		return Request{}, false
	}
	for times := range ladderTimes {
		if w, left := s.rung(times); left > 0 {
			return s.window(w, ladderPart, max(times, s.round), left), true
		}
	}
	e := weigh(sp, seen)
	if len(e.counts) == 0 {
		return Request{}, false
	}
	if w, found := s.above(e); found {
		return s.window(w, windowPart, s.round, 1), true
	}
	if w, found := e.between(); found {
		return s.window(w, windowPart, s.round, 1), true
	}
	race := e.undecided()
	if len(race) == 0 {
		if w, found := e.finer(); found {
			return s.window(w, windowPart, s.round, 1), true
		}
		return Request{}, false
	}
	r := s.inRound(race)
	return r, sp.Fixed || r.Round < lastRound
}

const (
	ladderTimes = 2  // windows on each rung of the ladder before anything is decided
	ladderPart  = 20 // such a window takes this part of a count's iterations
	windowPart  = 10 // a later one takes this part of them: the shorter windows are, the more a disturbance affects all counts of a round alike …
	fewestOf    = 5  // … but at least this many iterations, or a quarter of all if that is fewer, because workers settle before each window
	lastRound   = 48 // rounds after which undecided counts stay undecided, unless the user set iterations
	hopeless    = 2  // times the fastest's time: a window ends early there, and a count that takes that long is left out, unless another run might choose it
	tooFew      = 3  // if a count takes this many times the time of the fastest count with more workers, no lower count is tried
	burst       = 4  // a window that is this many times as fast as the fastest count's median window has used batches that were loaded before
)

// A state holds what strategies know at a request, rebuilt from the measurements.
type state struct {
	sp    Space
	seen  map[int][]Block
	users users
	round int
	best  float64       // nanoseconds per iteration of the fastest count, in its fastest window …
	pace  float64       // … and in its median window, because cached data may have made a single window fast
	left  time.Duration // what is left of the search's time
}

func stateOf(sp Space, seen []Series) state {
	s := state{sp: sp, seen: make(map[int][]Block, len(seen)), users: usersOf(seen), best: math.Inf(1), pace: math.Inf(1), left: math.MaxInt64}
	if sp.Time > 0 {
		s.left = sp.Left
		if len(seen) == 0 {
			s.left = max(1, s.left) // one count is measured in any case
		}
	}
	for _, one := range seen {
		s.seen[one.Workers] = one.Blocks
		var means []float64
		for _, b := range one.Blocks {
			s.round = max(s.round, b.Round)
			means = append(means, float64(max(b.Mean, 1)))
		}
		if s.best = min(s.best, lowest(one.Blocks)); len(means) > 0 {
			s.pace = min(s.pace, stat.Median(means))
		}
	}
	s.best = max(s.best, s.pace/burst)
	return s
}

// lowest returns a first figure for a count: its fastest window, since disturbances can only slow a
// window down. The figure decides what to measure, not what to choose.
func lowest(blocks []Block) float64 {
	best := math.Inf(1)
	for _, b := range blocks {
		best = min(best, float64(max(b.Mean, 1)))
	}
	return best
}

// rung returns the next rung of the ladder that was measured at most so many times, and how many rungs are left
// to measure, as far as is known. The rungs are training's own count; then the powers of two above it and the
// ceiling, while training waits; then the powers of two below it, down to 0, until the count is far too low.
func (s state) rung(times int) (workers, left int) {
	top := s.ceiling(2 * s.sp.CPUs) // whatever a short window shows about how busy the CPUs are
	add := func(w int) {
		full := s.sp.Fixed && s.done(w) >= s.sp.Iterations
		if times > 0 && s.quickest(w) > hopeless*hopeless*s.best {
			return
		}
		if s.sp.admits(w) && len(s.seen[w]) <= times && !full {
			if left == 0 {
				workers = w
			}
			left++
		}
	}
	start := min(s.sp.Start, top)
	add(start)
	for w := start; w < top && !s.enoughAt(w); {
		if w = min(2*powerBelow(w+1), top); w == 0 {
			w = 1
		}
		add(w)
	}
	for w := start; w > 0; {
		if s.sp.admits(w) && s.quickest(w) > tooFew*s.fastestAbove(w) {
			break // lower counts are far too low as well, or that isn't known yet
		}
		w = powerBelow(w)
		add(w)
	}
	return workers, left
}

func (s state) quickest(workers int) float64 { return lowest(s.seen[workers]) }

// ceiling returns the highest count of the space. If the space may grow, ceiling starts at first. It
// doubles while the highest count beats every count up to half of it by more than alpha and CPUs aren't
// the limit.
func (s state) ceiling(first int) int {
	if s.sp.Max >= 0 {
		return s.sp.Max
	}
	top := first
	for top < MaxWorkers && s.wins(top, s.quickest) {
		top = min(max(2*top, s.sp.CPUs), MaxWorkers)
	}
	return top
}

// enoughAt reports whether training waits so little at w workers, or at fewer, that more workers can't
// gain more than alpha. It returns true for a count that wasn't measured: nothing above that is a rung yet.
func (s state) enoughAt(w int) bool {
	for fewer, blocks := range s.seen {
		wait, mean := 0.0, 0.0
		for _, b := range blocks {
			wait, mean = wait+float64(b.Wait), mean+float64(b.Mean)
		}
		if n := float64(len(blocks)); fewer <= w && n > 0 && wait/n < s.sp.Ignores(mean/n)/2 {
			return true
		}
	}
	return len(s.seen[w]) == 0
}

// fastestAbove returns the time of the fastest count with more workers than w. If a count below w is far
// faster, that is no reason not to go lower.
func (s state) fastestAbove(w int) float64 {
	best := math.Inf(1)
	for more, blocks := range s.seen {
		if more > w {
			best = min(best, lowest(blocks))
		}
	}
	return best
}

// powerBelow returns the highest power of two below w, or 0.
func powerBelow(w int) int {
	if w <= 1 {
		return 0
	}
	return 1 << (bits.Len(uint(w-1)) - 1)
}

// window asks for a part of a count's iterations, within a share of the time left.
func (s state) window(workers, parts, round, sharers int) Request {
	want := s.sp.wanted(s.best)
	r := Request{Workers: workers, Round: round, Iterations: (want + parts - 1) / parts, Limit: max(1, s.left/time.Duration(sharers))}
	if parts == windowPart {
		r.Iterations = max(r.Iterations, min((want+3)/4, fewestOf))
	}
	if s.sp.Fixed {
		r.Iterations = max(1, min(r.Iterations, want-s.done(workers)))
	} else if fewest := float64(max(minRequest, s.sp.MinWindow)) / s.best; fewest > float64(r.Iterations) {
		r.Iterations = int(min(fewest, float64(want)))
	}
	if !math.IsInf(s.pace, 1) {
		r.Limit = min(r.Limit, time.Duration(min(float64(r.Iterations)*(s.pace+s.sp.Ignores(s.pace))*hopeless, math.MaxInt64/2)))
	}
	return r
}

// A count is measured for at least minMeasure, but for at most 100 times the usual iterations,
// because a shorter time is all noise. If the usual iterations take longer than maxMeasure, fewer are
// enough, but at least a fifth of them. If even that takes longer than the partOfTime-th part of the
// search's time, still fewer are enough, but at least fewestEver.
const (
	minMeasure = 30 * time.Millisecond
	maxMeasure = 5 * time.Second
	partOfTime = 24
	fewestEver = 4
	minRequest = 10 * time.Millisecond // a request is for as many iterations as the fastest count makes in this time, or for more
)

// wanted returns how many iterations a count needs if an iteration takes mean.
func (sp Space) wanted(mean float64) int {
	if sp.Fixed || math.IsInf(mean, 1) {
		return sp.Iterations
	}
	fewest := min(float64(max(minMeasure, 4*sp.MinWindow))/mean, 100*float64(sp.Iterations))
	most := max(float64(maxMeasure)/mean, float64(sp.Iterations)/5)
	if sp.Time > 0 {
		most = max(min(most, float64(sp.Time)/partOfTime/mean), fewestEver)
	}
	return max(1, int(min(max(float64(sp.Iterations), fewest), most)))
}

func (s state) done(workers int) int {
	sum := 0
	for _, b := range s.seen[workers] {
		sum += b.Iterations
	}
	return sum
}

// above returns twice the highest count measured, or half as many again if twice as many may not be measured,
// if the space may grow and all measurements say that it should. The first windows may have been unlucky.
func (s state) above(e evidence) (w int, found bool) {
	top := e.counts[len(e.counts)-1]
	if s.sp.Max >= 0 || top < s.sp.CPUs || top == MaxWorkers || !s.wins(top, e.of) {
		return 0, false
	}
	if w = min(2*top, MaxWorkers); !s.sp.admits(w) {
		w = top + top/2
	}
	return w, w > top && s.sp.admits(w)
}

// wins reports whether the highest count beats all counts up to half of it by more than alpha, and CPUs
// aren't the limit: it doesn't want all of them for loading.
func (s state) wins(top int, of func(workers int) float64) bool {
	mean := of(top)
	cpu, queued, _ := usage(s.seen[top])
	switch {
	case len(s.seen[top]) == 0,
		cpu+queued >= busyCPU && s.users.limit(mean),
		!s.sp.Step && top >= max(Sparing, 4*s.sp.CPUs) && mean < float64(ShortBatch):
		return false
	}
	for w := range s.seen {
		// One worker can't beat none by loading side by side; two can.
		if top > 1 && 2*w <= top+1 && of(w) <= mean+s.sp.Ignores(mean) {
			return false
		}
	}
	return true
}

const (
	busyCPU   = 0.91 // if a count wants this share of the CPUs, more workers gain at most a tenth
	fullCPU   = 0.95 // … and at this share at most a twentieth, unless they take CPUs from other processes,
	queuedCPU = 0.05 // which exist if its threads wait for this share of the CPUs
	apart     = 1.5  // times as long as the fastest's, an iteration of the slowest count tells what batches use of the CPUs from what others use
)

// usage returns the shares of the CPUs that a count used, and that its threads waited for in addition, and
// the time of an iteration, over the windows in which these are known.
func usage(blocks []Block) (cpu, queued, mean float64) {
	spent, iterations := 0.0, 0.0
	for _, b := range blocks {
		if b.CPU > 0 {
			n := float64(max(b.Iterations, 1))
			took := n * float64(max(b.Mean, 1))
			cpu, queued, spent, iterations = cpu+b.CPU*took, queued+b.Queued*took, spent+took, iterations+n
		}
	}
	return cpu / max(spent, 1), queued / max(spent, 1), spent / max(iterations, 1)
}

// users says who uses the CPUs: others is the share that the process uses whether or not batches are loaded,
// and batch is the CPU time of one batch, in nanoseconds of all CPUs together.
type users struct{ others, batch float64 }

// usersOf fits, by least squares, what counts of different speed show: a share of others + batch/mean. If
// they don't differ enough, all of it is the batches'.
func usersOf(seen []Series) (u users) {
	var rates, shares []float64
	for _, s := range seen {
		if cpu, _, mean := usage(s.Blocks); mean > 0 {
			rates, shares = append(rates, 1/mean), append(shares, cpu)
		}
	}
	if len(rates) < 2 || slices.Max(rates) < apart*slices.Min(rates) {
		return users{batch: math.Inf(1)}
	}
	n, r, s, rr, rs := float64(len(rates)), 0.0, 0.0, 0.0, 0.0
	for i, rate := range rates {
		r, s, rr, rs = r+rate, s+shares[i], rr+rate*rate, rs+rate*shares[i]
	}
	u.batch = max(0, (n*rs-r*s)/(n*rr-r*r))
	u.others = (s - u.batch*r) / n
	return u
}

// limit reports whether CPUs can be the limit of loading at mean per iteration: most of the CPU time is the
// batches'. If it isn't, other goroutines of the process compute, and CPUs may be busy without limiting it.
func (u users) limit(mean float64) bool { return u.batch >= u.others*mean }

// takes reports whether more workers would be faster only because they take CPUs from other processes.
func (u users) takes(blocks []Block, mean float64, shared bool) bool {
	cpu, queued, _ := usage(blocks)
	return cpu+queued >= fullCPU && (queued >= queuedCPU || shared) && u.limit(mean)
}

// of returns the time of w workers, or +Inf if it isn't known.
func (e evidence) of(w int) float64 {
	if i := slices.Index(e.counts, w); i >= 0 {
		return e.mean[i]
	}
	return math.Inf(1)
}

// between finds the next count of the bisection: towards the fewest workers within alpha, or towards
// places where a faster count may be.
func (e evidence) between() (w int, found bool) {
	chosen, fastest := e.choose(e.mean)
	if w, found = e.gap(chosen - 1); found {
		return w, true
	}
	for i := range e.counts {
		if w, found = e.gap(i); found && e.promises(i, w, fastest) {
			return w, true
		}
	}
	return 0, false
}

// gap returns the middle between the i-th count and the next one.
func (e evidence) gap(i int) (w int, found bool) {
	if i < 0 || i+1 >= e.able {
		return 0, false
	}
	w, found = middle(e.counts[i], e.counts[i+1])
	return w, found && e.sp.admits(w)
}

// middle returns the count halfway between two counts that are more than a step apart.
func middle(low, high int) (w int, found bool) {
	w = (low + high) / 2
	by := stepAt(w)
	w = (w + by/2) / by * by
	return w, w-low >= (by+1)/2 && high-w >= (by+1)/2
}

// stepAt returns how far apart two counts near w must be for the search to tell them apart. This leaves
// the counts 1, 2, 3, 4, 6, 8, 12, 16, 24 …. From 2 on, each is a third to a half more than the one
// before. Counts between them differ by less than can be measured, and each run would choose another one.
func stepAt(w int) int { return 1 << max(0, bits.Len(uint(w))-2) }

// promises reports whether w workers, more than the i-th count, would be faster than the fastest by more
// than half of alpha if times continued to fall as they do up to the i-th.
func (e evidence) promises(i, w, fastest int) bool {
	if i == 0 {
		return false
	}
	falling := math.Log(e.mean[i-1]/e.mean[i]) / math.Log(float64(e.counts[i])/float64(e.counts[i-1]))
	best := e.mean[fastest]
	return e.mean[i]*math.Pow(float64(e.counts[i])/float64(w), falling) < best-0.5*e.sp.Ignores(best)
}

// undecided returns the counts to measure further, in ascending order: the choice, the fastest, and the
// counts that another run might choose or find faster. It returns them until they have their iterations,
// and longer while the choice isn't sure. Another rule was tried and refused: to end once no count may gain
// more than alpha over training's own. Flat curves end no sooner, since errors are larger than alpha there, and
// for other curves the choice is worse.
func (e evidence) undecided() []int {
	chosen, fastest := e.choose(e.mean)
	best := e.mean[fastest]
	want := e.sp.wanted(best)
	votes := e.vote(redraws, wary)
	most := want
	if votes[chosen] < sureAt && !e.sp.Fixed {
		most *= effort
	}
	var race []int
	for i, w := range e.counts {
		needs := 0
		switch {
		case i == chosen, i == fastest, votes[i] > 1-sureAt:
			needs = most
		case (i == chosen-1 || i == chosen+1) && e.mean[i] < hopeless*best:
			needs = want / 4
		}
		if e.done[i] < needs {
			race = append(race, w)
		}
	}
	if e.sp.Fixed || len(e.counts) < 2 {
		return race
	}
	if len(race) == 0 && e.spent < float64(e.sp.MinTime) {
		race = []int{e.counts[chosen]}
	}
	if len(race) == 1 { // drift can only be seen in what counts share
		others := slices.DeleteFunc(slices.Clone(e.counts), func(w int) bool { return w == race[0] })
		race = append(race, slices.MinFunc(others, func(a, b int) int { return cmp.Compare(e.of(a), e.of(b)) }))
	}
	slices.Sort(race)
	return race
}

const (
	certain = 0.12 // a standard error is small below this share of alpha
	sureAt  = 0.95 // share of the votes at which measuring ends
	wary    = 2    // multiplies the variances in votes on whether to go on, so that measuring doesn't end at a lucky moment
	effort  = 2    // a count gets this many times its iterations while the choice isn't sure
)

// inRound returns the next window of a race. Each of its rounds measures all counts of the race.
func (s state) inRound(race []int) Request {
	round := s.round
	left := slices.DeleteFunc(slices.Clone(race), func(w int) bool { return s.measured(w, round) })
	if len(left) == 0 {
		left, round = race, round+1
	}
	if round%2 == 1 { // alternating directions cancel a steady drift
		slices.Reverse(left)
	}
	return s.window(left[0], windowPart, round, 1)
}

func (s state) measured(workers, round int) bool {
	return slices.ContainsFunc(s.seen[workers], func(b Block) bool { return b.Round == round })
}

// finer finds a count that is less than a step away from the fastest or from the choice, and that
// promises to be faster than the fastest by half of alpha, if the errors are small compared with alpha.
func (e evidence) finer() (w int, found bool) {
	chosen, fastest := e.choose(e.mean)
	best := e.mean[fastest]
	sure := func(i int) bool { return e.se[i]*best < certain*e.sp.Ignores(best) }
	for _, i := range []int{fastest - 1, fastest, chosen - 1, chosen} {
		if i < 0 || i+1 == len(e.counts) || !sure(i) || !sure(fastest) {
			continue
		}
		high := e.counts[i+1]
		w = (e.counts[i] + high + 1) / 2
		if stepAt(w) > 1 && w < high && e.sp.admits(w) && e.promises(i, w, fastest) {
			return w, true
		}
	}
	return 0, false
}

// Exhaustive measures every count in ascending order, 0 … CPUs−1 as in the paper, in a few interleaved
// rounds. With a time limit it first measures training's own count.
func Exhaustive(sp Space, seen []Series) (Request, bool) {
	s := stateOf(sp, seen)
	rounds := min(sweepRounds, sp.Iterations)
	top := s.ceiling(max(s.sp.CPUs-1, 0))
	for round := range rounds {
		iterations := sp.Iterations*(round+1)/rounds - sp.Iterations*round/rounds
		if w := min(sp.Start, top); round == 0 && sp.Time > 0 && sp.admits(w) && len(s.seen[w]) == 0 {
			return Request{Workers: w, Iterations: iterations, Limit: max(1, s.left)}, s.left > 0
		}
		for w := range top + 1 {
			if sp.admits(w) && len(s.seen[w]) <= round {
				return Request{Workers: w, Iterations: iterations, Round: round, Limit: max(1, s.left)}, s.left > 0
			}
		}
	}
	return Request{}, false
}

const sweepRounds = 4 // of an exhaustive search
