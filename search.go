package nwt

import (
	"fmt"
	"math"
	"time"
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
	c := choice{workers: -1, fastest: -1}
	best := math.Inf(1)
	for _, s := range seen {
		m := float64(s.blocks[0].mean)
		if m < best {
			best, c.fastest = m, s.workers
		}
	}
	a := sp.alpha.of(best, sp.iterations)
	c.alpha = time.Duration(a * float64(sp.iterations))
	for _, s := range seen {
		if c.workers < 0 && float64(s.blocks[0].mean) <= best+a {
			c.workers = s.workers
		}
	}
	return c
}
