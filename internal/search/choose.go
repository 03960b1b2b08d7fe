package search

import (
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"time"
)

const (
	doubt     = 0.5 // a count may be within alpha if it is so after allowing this many standard errors in its favour, of which one counts as at most alpha
	surely    = 1   // it surely is within if it is so after allowing this many against it: then no count with more workers is preferred
	mostDoubt = 0.25
	unhidden  = 0.005 // share of a step that loading may take without workers, though a worker would hide it
	ofItself  = 1.6   // a count's own error, as a multiple of the error of a difference between counts: it includes what all counts share
	mostSure  = 0.99  // the highest confidence that is reported

	// If time ended the search, another count replaces training's own only if the probability that it is
	// worse by more than alpha and worseBy is at most mayBeWorse.
	worseBy    = 0.02
	mayBeWorse = 0.05
)

// A Choice is the outcome of a search.
type Choice struct {
	Workers    int           // the fewest within alpha of the fastest; −1 if no allowed count was measured
	Fastest    int           // of the counts up to Most whose times are known, the one with the shortest time
	Alpha      time.Duration // accumulated over the space's iterations
	Confidence float64       // share of runs that would choose the same, 0 … 1; 0: nothing was measured twice
	Most       int           // counts above this were measured, but only take CPUs from other processes; 0: there are none
	Kept       bool          // Workers is training's own count, because time ended before another was surely better
	Estimates  []Estimate    // one per count measured, ascending
}

// An Estimate is what a series shows of its count: total time over iterations, without the drift that all
// counts of a round share.
type Estimate struct {
	Workers   int
	Mean      time.Duration // time of an iteration
	Body      time.Duration // the part of it that is the loop's own, without waiting
	Low, High time.Duration // its 95 % interval; both equal Mean if the count wasn't measured twice
}

// Known reports whether a count was measured often enough for its time to be compared: twice, and to within
// half of it.
func Known(mean, low, high time.Duration) bool { return low < high && high-low <= mean }

// Choose finds the fewest workers within alpha of the fastest.
func Choose(sp Space, seen []Series) Choice {
	seen = even(seen)
	e := weigh(sp, seen)
	if len(e.counts) == 0 {
		return Choice{Workers: -1, Fastest: -1}
	}
	c := Choice{Estimates: make([]Estimate, len(e.counts))}
	for i, w := range e.counts {
		body := seen[slices.IndexFunc(seen, func(s Series) bool { return s.Workers == w })].body()
		mean, margin := min(e.mean[i], math.MaxInt64/2), 0.0
		if e.twice && e.windows[i] > 1 {
			margin = max(2*ofItself*e.se[i], 1/mean)
		}
		c.Estimates[i] = Estimate{w, time.Duration(mean), body, time.Duration(mean * max(0, 1-margin)), time.Duration(min(mean*(1+margin), math.MaxInt64/2))}
	}
	chosen, fastest := e.choose(e.mean)
	if sp.Time > 0 && sp.Left <= 0 {
		own := e.orTheStart(chosen)
		c.Kept = own != chosen
		chosen = own
	}
	// The choice allows for errors; what is reported as the fastest is the shortest time in the table.
	for i, one := range c.Estimates[:e.able] {
		known, than := Known(one.Mean, one.Low, one.High), c.Estimates[fastest]
		if known && (one.Mean < than.Mean || !Known(than.Mean, than.Low, than.High)) {
			fastest = i
		}
	}
	c.Workers, c.Fastest = e.counts[chosen], e.counts[fastest]
	if e.able < len(e.counts) {
		c.Most = e.counts[e.able-1]
	}
	c.Alpha = math.MaxInt64
	if alpha := sp.Alpha.Of(e.mean[fastest], sp.Iterations) * float64(sp.Iterations); alpha < math.MaxInt64 {
		c.Alpha = time.Duration(alpha)
	}
	if e.twice {
		done := float64(e.done[chosen]) // rare events may not have occurred in these iterations
		c.Confidence = min(max(e.vote(answers, 1)[chosen], 1./answers), done/(done+1), mostSure)
	}
	return c
}

// choose applies the rule to one set of times: the fewest workers that aren't slower than the fastest by
// more than alpha. If the measurements don't tell which of several counts that is, it chooses the one
// that training would have without tuning or, if that isn't among them, the roundest, because other runs
// then choose the same: rounding is what makes a result replicable (Impagliazzo, Lei, Pitassi & Sorrell,
// "Reproducibility in learning", STOC 2022). The chosen count has at most twice as many workers as the
// lowest of them.
//
// The fastest is the count with the smallest sum of mean and standard error, so that a count that was
// hardly measured doesn't become the fastest by luck. 0 workers aren't chosen if a worker would hide
// loading behind the step.
func (e evidence) choose(mean []float64) (chosen, fastest int) {
	for i, m := range mean[:e.able] {
		if m*(1+e.se[i]) < mean[fastest]*(1+e.se[fastest]) {
			fastest = i
		}
	}
	first := e.fewest(mean, fastest)
	chosen, most := -1, 0
	for i := first; i < e.able; i++ {
		w := e.counts[i]
		may, sure := e.within(mean, i, fastest)
		if chosen >= 0 && w > most {
			break
		}
		if may && chosen < 0 {
			most = max(2*w, 1)
		}
		if may && (chosen < 0 || e.sp.roundness(w) > e.sp.roundness(e.counts[chosen])) {
			chosen = i
		}
		if sure {
			break
		}
	}
	if start := slices.Index(e.counts[:e.able], e.sp.Start); start >= first && e.blurred(mean, chosen, start, fastest) {
		chosen = start
	}
	return chosen, fastest
}

// fewest returns the index of the lowest count that may be chosen. 0 workers may be, if even one worker
// is slower by more than alpha, or if loading takes next to nothing of a step.
func (e evidence) fewest(mean []float64, fastest int) int {
	if e.counts[0] > 0 || e.sp.Step && mean[0]-e.body <= unhidden*e.body {
		return 0
	}
	for i := 1; i < e.able; i++ {
		if may, _ := e.within(mean, i, fastest); may {
			return 1
		}
	}
	return 0
}

// blurred reports whether training's own count may be as good as the i-th. If the i-th has fewer workers,
// it is so only if the errors are larger than alpha. If one has more than twice as many workers as the
// other, it is so only if all counts may be as good as the fastest.
func (e evidence) blurred(mean []float64, i, start, fastest int) bool {
	best, than := mean[fastest], i
	if i > start {
		than = fastest
	}
	alpha := e.sp.Alpha.Of(best, e.sp.Iterations)
	error := func(a, b int) float64 { return best * math.Hypot(e.se[a], e.se[b]) }
	asGood := func(a, b int) bool { return mean[a]-mean[b] < alpha+2*error(a, b) }
	if e.df == 0 || i <= start && error(than, start) <= alpha || !asGood(start, than) {
		return false
	}
	for a := range mean[:e.able] {
		if !asGood(a, fastest) {
			few, many := min(e.counts[i], e.counts[start]), max(e.counts[i], e.counts[start])
			return many <= 2*few
		}
	}
	return true
}

// within reports whether the i-th count may be within alpha of the fastest, and whether it surely is, as
// far as the measurements show.
func (e evidence) within(mean []float64, i, fastest int) (may, sure bool) {
	best := mean[fastest]
	alpha := e.sp.Alpha.Of(best, e.sp.Iterations)
	se := best * math.Hypot(e.se[i], e.se[fastest])
	may = mean[i] <= best+alpha+doubt*min(se, alpha)
	return may, mean[i] <= best+alpha-surely*min(se, mostDoubt*alpha) || may && e.df == 0
}

// roundness returns how often a count can be halved. The count that training would have without tuning is
// the roundest; 0 workers is the least round, since a surplus worker costs nothing.
func (sp Space) roundness(workers int) int {
	switch workers {
	case sp.Start:
		return bits.UintSize
	case 0:
		return -1
	}
	return bits.TrailingZeros(uint(workers))
}

// orTheStart returns the choice, unless it may be worse than training's own count. In that case measuring
// has ended too early, and orTheStart returns training's own count.
func (e evidence) orTheStart(chosen int) int {
	start := slices.Index(e.counts[:e.able], e.sp.Start)
	if start < 0 || start == chosen {
		return chosen
	}
	if chosen < start && e.windows[chosen] < 2 && e.mean[start] < hopeless*e.mean[chosen] {
		return start // a single window isn't reason enough to choose fewer workers, unless training's own count is bad
	}
	worse := 0
	e.draw(1, redraws, func(mean []float64) {
		best := mean[start]
		if mean[chosen] > best+e.sp.Alpha.Of(best, e.sp.Iterations)+worseBy*best {
			worse++
		}
	})
	if float64(worse) > mayBeWorse*redraws {
		return start
	}
	return chosen
}

const (
	redraws = 200  // simulated runs to find which counts are in the race
	answers = 2000 // simulated runs to find how sure the choice is
)

// vote simulates what other runs would measure, and returns the share of them in which each count would
// be chosen. A measurement differs from the truth by its error, and a measurement of another run differs
// by its own. Both variances are multiplied by times.
func (e evidence) vote(draws int, times float64) []float64 {
	votes := make([]float64, len(e.counts))
	e.draw(2*times, draws, func(mean []float64) {
		chosen, _ := e.choose(mean)
		votes[chosen] += 1 / float64(draws)
	})
	return votes
}

// draw draws times around the measured ones, with the variance of their errors multiplied by times.
// Errors are shares, so it draws logarithms: a time that was hardly measured may be half or twice as
// long, but never next to nothing.
func (e evidence) draw(times float64, draws int, each func(mean []float64)) {
	rng := rand.New(rand.NewPCG(1, 2))
	mean := make([]float64, len(e.counts))
	for range draws {
		for i, m := range e.mean {
			mean[i] = m * math.Exp(math.Sqrt(times)*e.se[i]*rng.NormFloat64())
		}
		each(mean)
	}
}
