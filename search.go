package nwt

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/nwt-go/nwt/internal/stat"
)

// A Strategy decides which worker counts Tune measures, and for how long.
// Greedy and Exhaustive are the two there are.
type Strategy interface {
	fmt.Stringer

	// next answers what to measure after all that was seen; false: nothing more.
	next(sp space, seen []series) (request, bool)
}

// A space is what a search may do and what it looks for.
type space struct {
	cpus       int                    // counts 0 … cpus−1 at first
	max        int                    // highest count; −1: cpus−1, and beyond while that wins and CPUs idle
	alpha      alpha                  // what the choice ignores
	iterations int                    // per count; what alpha is accumulated over
	fixed      bool                   // the user set iterations: neither more nor fewer for a count in the race
	budget     time.Duration          // measured time in all; 0: no bound
	allowed    func(workers int) bool // false: would need too much memory; nil: all may be tried
}

// An alpha is a difference in accumulated time, as a duration and as a share
// of the fastest; the smaller of the two counts.
type alpha struct {
	total time.Duration // math.MaxInt64: only the share counts
	share float64       // +Inf: only the duration counts
}

var defaultAlpha = alpha{total: 500 * time.Millisecond, share: 0.10}

// of is alpha per iteration, where the fastest count takes mean per iteration.
func (a alpha) of(mean float64, iterations int) float64 {
	return min(float64(a.total)/float64(iterations), a.share*mean)
}

// A series is all that was measured at one worker count, in order.
type series struct {
	workers int
	blocks  []block
}

// A block is one visit to a worker count, its warm-up left out.
type block struct {
	round      int           // as requested
	iterations int           // measured; fewer than requested where the limit passed
	mean       time.Duration // per iteration
	cpu        float64       // share of the machine's CPUs in use, 0 … 1
}

// A request is one visit to make.
type request struct {
	workers    int
	iterations int
	round      int           // goes into the block
	limit      time.Duration // end at the first iteration past it: the count can't win; 0: none
}

// A choice is what a search comes to.
type choice struct {
	workers    int           // fewest within alpha of the fastest; −1 where nothing allowed was measured
	fastest    int           // the time-best count
	alpha      time.Duration // accumulated over the space's iterations
	confidence float64       // how often a re-run would choose the same, 0 … 1; 0 where nothing was measured twice
	estimates  []estimate    // one per count measured, ascending
}

// An estimate is what a series says of its count: free of the drift that all
// counts of a round share, and hardly moved by a few outlying blocks.
type estimate struct {
	workers   int
	mean      time.Duration // per iteration
	low, high time.Duration // its 95 % interval; both mean where nothing was measured twice
}

// choose finds the fewest workers within alpha of the fastest.
func choose(sp space, seen []series) choice {
	e := weigh(sp, seen)
	if len(e.counts) == 0 {
		return choice{workers: -1, fastest: -1}
	}
	c := choice{estimates: make([]estimate, len(e.counts))}
	for i, w := range e.counts {
		mean, margin := e.mean[i], 1.0
		if e.df[i] > 0 {
			margin = math.Exp(e.se[i] * stat.StudentT(0.95, e.df[i]))
		}
		c.estimates[i] = estimate{w, time.Duration(mean), time.Duration(mean / margin), time.Duration(mean * margin)}
	}
	chosen, fastest := e.pick(e.mean)
	c.workers, c.fastest = e.counts[chosen], e.counts[fastest]
	c.alpha = time.Duration(sp.alpha.of(e.mean[fastest], sp.iterations) * float64(sp.iterations))
	if e.df[chosen] > 0 {
		c.confidence = e.vote(1000)[chosen]
	}
	return c
}

// The evidence is what all series together say of the counts that may be
// chosen, ascending.
type evidence struct {
	sp     space
	counts []int
	visits []int
	done   []int     // iterations measured
	low    []float64 // the fastest visit, nanoseconds per iteration
	mean   []float64 // nanoseconds per iteration
	se     []float64 // standard error of the mean's logarithm
	df     []float64 // degrees of freedom behind se; 0: unknown
}

// weigh takes apart what belongs to a count and what all counts of a round
// share. Times multiply, so it does so with their logarithms.
func weigh(sp space, seen []series) evidence {
	e := evidence{sp: sp}
	var obs []stat.Obs
	rounds := 0
	for _, s := range slices.SortedFunc(slices.Values(seen), byWorkers) {
		if len(s.blocks) == 0 || !sp.allows(s.workers) {
			continue
		}
		done := 0
		for _, b := range s.blocks {
			obs = append(obs, stat.Obs{
				Row: len(e.counts), Col: b.round,
				Value: math.Log(float64(max(b.mean, 1))), Weight: float64(max(b.iterations, 1)),
			})
			done += b.iterations
			rounds = max(rounds, b.round+1)
		}
		e.counts, e.visits = append(e.counts, s.workers), append(e.visits, len(s.blocks))
		e.done, e.low = append(e.done, done), append(e.low, quickest(s.blocks))
	}
	for _, row := range stat.TwoWay(obs, len(e.counts), rounds) {
		e.mean = append(e.mean, math.Exp(row.Effect))
		e.se = append(e.se, row.SE)
		e.df = append(e.df, row.DF)
	}
	return e
}

func byWorkers(a, b series) int { return cmp.Compare(a.workers, b.workers) }

// pick applies the rule to one set of times: the fewest workers that aren't
// slower than the fastest by more than alpha, as far as the measuring tells.
// The fastest is so beyond a standard error, or luck would choose among equals.
func (e evidence) pick(mean []float64) (chosen, fastest int) {
	for i, m := range mean {
		if m*(1+e.se[i]) < mean[fastest]*(1+e.se[fastest]) {
			fastest = i
		}
	}
	best := mean[fastest]
	within := best + e.sp.alpha.of(best, e.sp.iterations)
	for i, m := range mean {
		if m <= within*(1+doubt*math.Hypot(e.se[i], e.se[fastest])) {
			return i, fastest
		}
	}
	return fastest, fastest
}

// vote draws what re-runs would measure, and answers in which share of them
// each count would be chosen. What was measured misses the truth by its error,
// and a re-run misses it again: hence √2.
func (e evidence) vote(draws int) []float64 {
	votes := make([]float64, len(e.counts))
	rng := rand.New(rand.NewPCG(1, 2))
	mean := make([]float64, len(e.counts))
	for range draws {
		for i, m := range e.mean {
			mean[i] = m * math.Exp(math.Sqrt2*e.se[i]*rng.NormFloat64())
		}
		c, _ := e.pick(mean)
		votes[c]++
	}
	for i := range votes {
		votes[i] /= float64(draws)
	}
	return votes
}

// What the searches do with their figures.
const (
	doubt      = 1                     // standard errors in whose favour a count with fewer workers is judged
	sure       = 0.98                  // confidence at which measuring ends
	persevere  = 10                    // times the usual iterations that an undecided count may get …
	patience   = 10                    // … while all counts together got so many times them,
	share      = 0.2                   // or took this share of what measuring every count would
	looks      = 2                     // short first visits to each rung of the ladder
	sweeps     = 4                     // rounds of an exhaustive search
	lastRound  = 48                    // whatever is still undecided then stays so
	idle       = 0.7                   // share of CPUs in use below which more workers than CPUs may help
	mostEver   = 1024                  // where a growing space ends
	hopeless   = 2                     // times the fastest's time at which a visit ends early
	minMeasure = 50 * time.Millisecond // per count: shorter than this is all noise …
	maxMeasure = 5 * time.Second       // … and longer than this is patience
)

func (sp space) allows(workers int) bool {
	return sp.allowed == nil || sp.allowed(workers)
}

// Greedy looks at 0, 1, 2, 4, 8 … workers first, bisects to the fewest within
// alpha of the fastest, and spends its measuring on the counts still in the
// race, round by round, until the choice is sure. Counts closer together than
// a quarter to an eighth of themselves are not told apart.
func Greedy() Strategy { return greedy{} }

type greedy struct{}

func (greedy) String() string { return "greedy" }

func (greedy) next(sp space, seen []series) (request, bool) {
	s := newSearch(sp, seen)
	if s.left <= 0 {
		return request{}, false
	}
	for look := range looks {
		ahead := s.missing(look)
		if len(ahead) > 0 {
			return s.visit(ahead[0], 20, max(look, s.round), len(ahead)), true
		}
	}
	e := weigh(sp, seen)
	if w, found := e.between(); found {
		return s.visit(w, 4, s.round, 1), true
	}
	race := e.undecided()
	if len(race) == 0 {
		return request{}, false
	}
	round := s.round
	left := slices.DeleteFunc(slices.Clone(race), func(w int) bool { return s.visited(w, round) })
	if len(left) == 0 {
		left, round = race, round+1
	}
	if round%2 == 1 { // up and down in turn: a steady drift cancels
		slices.Reverse(left)
	}
	return s.visit(left[0], 4, round, 1), round < lastRound
}

// Exhaustive measures every count in ascending order, as the paper does, in a
// few interleaved rounds.
func Exhaustive() Strategy { return exhaustive{} }

type exhaustive struct{}

func (exhaustive) String() string { return "exhaustive" }

func (exhaustive) next(sp space, seen []series) (request, bool) {
	s := newSearch(sp, seen)
	rounds := min(sweeps, sp.iterations)
	top := s.ceiling()
	for round := range rounds {
		iterations := sp.iterations*(round+1)/rounds - sp.iterations*round/rounds
		for w := range top + 1 {
			if sp.allows(w) && len(s.seen[w]) <= round {
				return request{workers: w, iterations: iterations, round: round, limit: s.left}, s.left > 0
			}
		}
	}
	return request{}, false
}

// A search is the state that strategies share, rebuilt from what was seen.
type search struct {
	sp    space
	seen  map[int][]block
	round int
	best  float64       // nanoseconds per iteration of the fastest
	left  time.Duration // of the budget
}

func newSearch(sp space, seen []series) search {
	s := search{sp: sp, seen: make(map[int][]block, len(seen)), best: math.Inf(1), left: math.MaxInt64}
	if sp.budget > 0 {
		s.left = sp.budget
	}
	for _, one := range seen {
		s.seen[one.workers] = one.blocks
		for _, b := range one.blocks {
			s.round = max(s.round, b.round)
			s.left -= time.Duration(b.iterations) * b.mean
		}
		s.best = min(s.best, quickest(one.blocks))
	}
	return s
}

// quickest is a first figure for a count, as what disturbs a visit can only
// slow it; it decides where to look, not what to choose.
func quickest(blocks []block) float64 {
	low := math.Inf(1)
	for _, b := range blocks {
		low = min(low, float64(max(b.mean, 1)))
	}
	return low
}

func (s search) visited(workers, round int) bool {
	return slices.ContainsFunc(s.seen[workers], func(b block) bool { return b.round == round })
}

// visit asks for one part of a count's iterations, within a share of what is
// left of the budget.
func (s search) visit(workers, parts, round, sharers int) request {
	done := 0
	for _, b := range s.seen[workers] {
		done += b.iterations
	}
	want := s.sp.enough(s.best)
	r := request{workers: workers, round: round, iterations: max(1, (want+parts-1)/parts), limit: s.left / time.Duration(sharers)}
	if s.sp.fixed {
		r.iterations = max(1, min(r.iterations, want-done))
	}
	if !math.IsInf(s.best, 1) {
		r.limit = min(r.limit, time.Duration(float64(r.iterations)*s.best*hopeless*(1+min(s.sp.alpha.share, 1))))
	}
	return r
}

// enough is how many iterations a count needs where one takes mean.
func (sp space) enough(mean float64) int {
	if sp.fixed || math.IsInf(mean, 1) {
		return sp.iterations
	}
	fewest := min(float64(minMeasure)/mean, 10*float64(sp.iterations))
	most := max(float64(maxMeasure)/mean, float64(sp.iterations)/5)
	return int(min(max(float64(sp.iterations), fewest), most))
}

// ceiling is the highest count of the space. Where it may grow, it doubles
// while the highest count beats all rungs below it by more than alpha and
// leaves CPUs idle: then workers wait for something else than a CPU.
func (s search) ceiling() int {
	if s.sp.max >= 0 {
		return s.sp.max
	}
	top := max(s.sp.cpus-1, 0)
	for top < mostEver && s.wins(top) {
		top = min(max(2*top, s.sp.cpus), mostEver)
	}
	return top
}

func (s search) wins(top int) bool {
	blocks := s.seen[top]
	if len(blocks) == 0 {
		return false
	}
	cpu := 0.0
	for _, b := range blocks {
		cpu += b.cpu / float64(len(blocks))
	}
	if cpu >= idle {
		return false
	}
	mean := quickest(blocks)
	for w, below := range s.seen {
		// One worker can't beat none by working side by side; two can.
		if top > 1 && 2*w <= top+1 && len(below) > 0 && quickest(below) <= mean+s.sp.alpha.of(mean, s.sp.iterations) {
			return false
		}
	}
	return true
}

// missing are the rungs of the ladder 0, 1, 2, 4, 8 … ceiling with no more
// than so many looks at them, ascending.
func (s search) missing(looks int) []int {
	var out []int
	top := s.ceiling()
	rung := func(w int) {
		if s.sp.allows(w) && len(s.seen[w]) <= looks {
			out = append(out, w)
		}
	}
	rung(0)
	for w := 1; w < top; w *= 2 {
		rung(w)
	}
	if top > 0 {
		rung(top)
	}
	return out
}

// step is how far apart counts near w are that the search tells apart.
func step(w int) int { return 1 << max(0, bits.Len(uint(w))-3) }

// middle is the count halfway between two that are more than a step apart.
func middle(low, high int) (w int, found bool) {
	w = (low + high) / 2
	by := step(w)
	w = (w + by/2) / by * by
	return w, w-low >= (by+1)/2 && high-w >= (by+1)/2
}

// between finds the next count of the bisection: towards the fewest workers
// within alpha, and around the fastest, whose time sets what alpha is added to.
func (e evidence) between() (w int, found bool) {
	chosen, fastest := e.pick(e.mean)
	if w, found = e.gap(chosen-1, 1); found {
		return w, true
	}
	for _, i := range []int{chosen, fastest - 1, fastest} {
		if w, found = e.gap(i, 1.5); found {
			return w, true
		}
	}
	return 0, false
}

// gap is the middle between the i-th count and the next, if that is more than
// so many times as high.
func (e evidence) gap(i int, times float64) (w int, found bool) {
	if i < 0 || i+1 >= len(e.counts) {
		return 0, false
	}
	low, high := e.counts[i], e.counts[i+1]
	w, found = middle(low, high)
	return w, found && float64(high) > times*float64(low) && e.sp.allows(w)
}

// undecided are the counts to measure on, ascending: those that a re-run might
// choose, and those that may be the fastest, until they have their iterations,
// and more of them while the choice isn't sure. In the end every count that
// isn't hopeless gets a last look: its first ones may have had bad luck.
func (e evidence) undecided() []int {
	chosen, fastest := e.pick(e.mean)
	best := e.mean[fastest]
	alpha := e.sp.alpha.of(best, e.sp.iterations)
	want := e.sp.enough(best)
	votes := e.vote(200)
	patient := e.spent() < max(share*e.sweep(), patience*best)*float64(want)
	most := want
	if patient && votes[chosen] < sure && !e.sp.fixed {
		most *= persevere
	}
	var race, last []int
	for i, w := range e.counts {
		mightWin := e.low[i] < best-alpha/2 || i < chosen && e.low[i] < best+alpha || e.mean[i]*(1-2*e.se[i]) < best-alpha/2
		switch {
		case i == chosen || i == fastest || patient && votes[i] > 1-sure:
			if e.done[i] < most {
				race = append(race, w)
			}
		case patient && mightWin:
			if e.done[i] < want {
				race = append(race, w)
			}
		case patient && e.mean[i] < hopeless*best && e.visits[i] <= looks:
			last = append(last, w)
		}
	}
	if len(race) == 0 {
		return last
	}
	return race
}

func (e evidence) spent() float64 {
	sum := 0.0
	for i, m := range e.mean {
		sum += float64(e.done[i]) * m
	}
	return sum
}

// sweep is about how long one iteration at every count would take.
func (e evidence) sweep() float64 {
	sum, next := 0.0, 0
	for i, w := range e.counts {
		sum += float64(w+1-next) * e.mean[i]
		next = w + 1
	}
	return sum
}
