// Package search decides which worker counts to measure and which to choose,
// from figures alone: it knows no loader and no clock.
//
//	Strategy.Next ──► a Request ──► the caller measures a Block ──► Strategy.Next …
//	                                                            └──► Choose
package search

import (
	"fmt"
	"math"
	"math/bits"
	"slices"
	"time"
)

// A Strategy decides which worker counts to measure, and for how long.
type Strategy interface {
	fmt.Stringer
	// Next is what to measure after all that was seen; false: nothing more.
	Next(sp Space, seen []Series) (Request, bool)
	// Usual is about how many visits it makes.
	Usual(sp Space) int
}

// A space is what a search may do and what it looks for.
type Space struct {
	CPUs       int                    // that workers may use at a time
	Max        int                    // highest count; −1: the strategy's, and beyond while that wins and CPUs idle
	Alpha      Alpha                  // what the choice ignores
	Iterations int                    // per count; what alpha is accumulated over
	Fixed      bool                   // the user set iterations: neither more nor fewer for a count in the race
	Budget     time.Duration          // measured time in all; 0: no bound
	Allowed    func(workers int) bool // false: would need too much memory; nil: all may be tried
}

// An alpha is a difference in accumulated time, as a duration and as a share
// of the fastest; the smaller of the two counts.
type Alpha struct {
	Total time.Duration // math.MaxInt64: only the share counts
	Share float64       // +Inf: only the duration counts
}

var DefaultAlpha = Alpha{Total: 500 * time.Millisecond, Share: 0.10}

// of is alpha per iteration, where the fastest count takes mean per iteration.
func (a Alpha) Of(mean float64, iterations int) float64 {
	return min(float64(a.Total)/float64(iterations), a.Share*mean)
}

// A series is all that was measured at one worker count, in order.
type Series struct {
	Workers int
	Blocks  []Block
}

// A block is one visit to a worker count, its warm-up left out.
type Block struct {
	Round      int           // as requested
	Iterations int           // measured; fewer than requested where the limit passed
	Mean       time.Duration // per iteration
	CPU        float64       // share of the CPUs that this process used, 0 … 1; others must not keep workers from being tried
}

// A request is one visit to make.
type Request struct {
	Workers    int
	Iterations int
	Round      int           // goes into the block
	Limit      time.Duration // end with the first iteration past it: the count can't win, or the budget is spent
}

func (sp Space) allows(workers int) bool {
	return sp.Allowed == nil || sp.Allowed(workers)
}

// Greedy looks at 0, 1, 2, 4, 8 … workers first, up to one for each CPU, bisects
// to the fewest within alpha of the fastest, and spends its measuring on the
// counts still in the race, round by round, until the choice is sure. Counts
// closer together than a quarter to an eighth of themselves are not told apart.
type Greedy struct{}

func (Greedy) String() string { return "greedy" }

func (Greedy) Next(sp Space, seen []Series) (Request, bool) {
	s := newSearch(sp, seen)
	if s.left <= 0 {
		return Request{}, false
	}
	for look := range firstLooks {
		ahead := s.missing(look)
		if len(ahead) > 0 {
			return s.visit(ahead[0], 20, max(look, s.round), len(ahead)), true
		}
	}
	e := weigh(sp, seen)
	if len(e.counts) == 0 {
		return Request{}, false
	}
	if w, found := e.between(); found {
		return s.visit(w, 4, s.round, 1), true
	}
	race := e.undecided()
	if len(race) == 0 {
		return Request{}, false
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

// Exhaustive measures every count in ascending order, 0 … CPUs−1 as the paper
// does, in a few interleaved rounds.
type Exhaustive struct{}

func (Exhaustive) String() string { return "exhaustive" }

func (Exhaustive) Next(sp Space, seen []Series) (Request, bool) {
	s := newSearch(sp, seen)
	rounds := min(sweepRounds, sp.Iterations)
	top := s.ceiling(max(s.sp.CPUs-1, 0))
	for round := range rounds {
		iterations := sp.Iterations*(round+1)/rounds - sp.Iterations*round/rounds
		for w := range top + 1 {
			if sp.allows(w) && len(s.seen[w]) <= round {
				return Request{Workers: w, Iterations: iterations, Round: round, Limit: s.left}, s.left > 0
			}
		}
	}
	return Request{}, false
}

// What the searches do with their figures.
const (
	firstLooks  = 2    // short visits to each rung of the ladder, before anything is decided
	lastRound   = 48   // whatever is still undecided then stays so
	sweepRounds = 4    // of an exhaustive search
	hopeless    = 2    // times the fastest's time at which a visit ends early
	IdleCPU     = 0.7  // share of CPUs in use below which workers wait for something else
	MaxWorkers  = 1024 // where a growing space ends

	// A count's iterations take so long at least, where that is no more than a
	// hundred times as many: shorter is all noise. Where they take longer than the
	// second, a fifth of them may do.
	minMeasure = 30 * time.Millisecond
	maxMeasure = 5 * time.Second
	minVisit   = 5 * time.Millisecond // likewise each visit: a thread that waits for its CPU takes some of them
)

// A search is the state that strategies share, rebuilt from what was seen.
type search struct {
	sp    Space
	seen  map[int][]Block
	round int
	best  float64       // nanoseconds per iteration of the fastest
	left  time.Duration // of the budget
}

func newSearch(sp Space, seen []Series) search {
	s := search{sp: sp, seen: make(map[int][]Block, len(seen)), best: math.Inf(1), left: math.MaxInt64}
	if sp.Budget > 0 {
		s.left = sp.Budget
	}
	for _, one := range seen {
		s.seen[one.Workers] = one.Blocks
		for _, b := range one.Blocks {
			s.round = max(s.round, b.Round)
			s.left -= time.Duration(b.Iterations) * b.Mean
		}
		s.best = min(s.best, Quickest(one.Blocks))
	}
	return s
}

// quickest is a first figure for a count, as what disturbs a visit can only
// slow it; it decides where to look, not what to choose.
func Quickest(blocks []Block) float64 {
	low := math.Inf(1)
	for _, b := range blocks {
		low = min(low, float64(max(b.Mean, 1)))
	}
	return low
}

func (s search) visited(workers, round int) bool {
	return slices.ContainsFunc(s.seen[workers], func(b Block) bool { return b.Round == round })
}

func (s search) done(workers int) int {
	sum := 0
	for _, b := range s.seen[workers] {
		sum += b.Iterations
	}
	return sum
}

// visit asks for one part of a count's iterations, within a share of what is
// left of the budget.
func (s search) visit(workers, parts, round, sharers int) Request {
	want := s.sp.enough(s.best)
	r := Request{Workers: workers, Round: round, Iterations: max(1, (want+parts-1)/parts), Limit: max(1, s.left/time.Duration(sharers))}
	if s.sp.Fixed {
		r.Iterations = max(1, min(r.Iterations, want-s.done(workers)))
	} else if fewest := float64(minVisit) / s.best; fewest > float64(r.Iterations) {
		r.Iterations = int(min(fewest, float64(want)))
	}
	if !math.IsInf(s.best, 1) {
		r.Limit = min(r.Limit, time.Duration(float64(r.Iterations)*(s.best+s.sp.Alpha.Of(s.best, s.sp.Iterations))*hopeless))
	}
	return r
}

// enough is how many iterations a count needs where one takes mean.
func (sp Space) enough(mean float64) int {
	if sp.Fixed || math.IsInf(mean, 1) {
		return sp.Iterations
	}
	fewest := min(float64(minMeasure)/mean, 100*float64(sp.Iterations))
	most := max(float64(maxMeasure)/mean, float64(sp.Iterations)/5)
	return int(min(max(float64(sp.Iterations), fewest), most))
}

// ceiling is the highest count of the space. Where it may grow, it does from first
// on, and doubles while the highest count beats all rungs below it by more than
// alpha and leaves CPUs idle: then workers wait for something else than a CPU.
func (s search) ceiling(first int) int {
	if s.sp.Max >= 0 {
		return s.sp.Max
	}
	top := first
	for top < MaxWorkers && s.wins(top) {
		top = min(max(2*top, s.sp.CPUs), MaxWorkers)
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
		cpu += b.CPU / float64(len(blocks))
	}
	if cpu >= IdleCPU {
		return false
	}
	mean := Quickest(blocks)
	for w, below := range s.seen {
		// One worker can't beat none by working side by side; two can.
		if top > 1 && 2*w <= top+1 && len(below) > 0 && Quickest(below) <= mean+s.sp.Alpha.Of(mean, s.sp.Iterations) {
			return false
		}
	}
	return true
}

// missing are the rungs of the ladder 0, 1, 2, 4, 8 … ceiling with no more
// than so many looks at them, ascending.
func (s search) missing(looks int) []int {
	var out []int
	// As many as CPUs whatever a short look says of how busy these are.
	top := s.ceiling(s.sp.CPUs)
	rung := func(w int) {
		full := looks > 0 && s.sp.Fixed && s.done(w) >= s.sp.Iterations
		if s.sp.allows(w) && len(s.seen[w]) <= looks && !full {
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

// stepAt is how far apart counts near w are that the search tells apart.
func stepAt(w int) int { return 1 << max(0, bits.Len(uint(w))-3) }

// middle is the count halfway between two that are more than a step apart.
func Middle(low, high int) (w int, found bool) {
	w = (low + high) / 2
	by := stepAt(w)
	w = (w + by/2) / by * by
	return w, w-low >= (by+1)/2 && high-w >= (by+1)/2
}

// Usual is one visit per count and round.
func (Exhaustive) Usual(sp Space) int { return (sp.highest() + 1) * sweepRounds }

// Usual is the looks at the ladder, and two visits to each rung after them.
func (Greedy) Usual(sp Space) int {
	ladder := bits.Len(uint(sp.highest())) + 2
	return ladder*firstLooks + 2*ladder
}

// highest is the highest count, as far as it is known beforehand.
func (sp Space) highest() int {
	if sp.Max < 0 {
		return sp.CPUs
	}
	return sp.Max
}
