// Package search decides which worker counts to measure and which to choose,
// from figures alone: it knows no loader and no clock.
//
//	Strategy.Next ──► a Request ──► the caller measures a Block ──► Strategy.Next …
//	                                                            └──► Choose
package search

import (
	"fmt"
	"time"

	"github.com/nwt-go/nwt/internal/stat"
)

// A Strategy decides which worker counts to measure, and for how long.
type Strategy interface {
	fmt.Stringer
	// Next is what to measure next, given all that was measured; false: nothing more.
	Next(sp Space, seen []Series) (Request, bool)
}

// A Space is what a search may do and what it looks for.
type Space struct {
	CPUs       int                    // that workers may use at a time
	Start      int                    // the count that training would have without tuning: measured first
	Max        int                    // highest count; −1: the strategy's own, and more while more workers win and CPUs are idle
	Alpha      Alpha                  // what the choice ignores
	Iterations int                    // per count; what alpha is accumulated over
	Fixed      bool                   // the user set iterations: a count in the race gets neither more nor fewer
	Time       time.Duration          // for all of the search; 0: no bound
	Left       time.Duration          // of Time
	Least      time.Duration          // that a search goes on: what disturbs may last as long as a shorter one
	MinWindow  time.Duration          // shorter windows say nothing, because the clock steps
	Allowed    func(workers int) bool // false: may not be tried, say because it would need too much memory; nil: all may
}

// An Alpha is a difference in accumulated time: a duration, but no less than
// one share of the fastest and no more than another.
type Alpha struct {
	Total time.Duration // math.MaxInt64: only the shares count
	Least float64
	Share float64       // +Inf: no bound above
	Each  time.Duration // per iteration: no less than this either
}

// Unnoticed is the least default alpha per iteration: no training step notices less.
const Unnoticed = 5 * time.Microsecond

// DefaultAlpha is the paper's half second, bounded by two shares: alone it could be
// longer than all iterations together, or too short to matter.
var DefaultAlpha = Alpha{Total: 500 * time.Millisecond, Least: 0.01, Share: 0.05, Each: Unnoticed}

// Of is alpha per iteration if the fastest count takes mean per iteration.
func (a Alpha) Of(mean float64, iterations int) float64 {
	return max(min(float64(a.Total)/float64(iterations), a.Share*mean), a.Least*mean, float64(a.Each))
}

// A Series is all that was measured at one worker count, in order.
type Series struct {
	Workers int
	Blocks  []Block
}

// A Block is one window at a worker count.
type Block struct {
	Round      int           // as requested; −1: nothing was measured beside it, and it counts as it is
	Iterations int           // measured; fewer than requested if the limit passed
	Mean       time.Duration // per iteration
	Wait       time.Duration // of it, what faster loading could save at most; the rest is the loop's own
	Bodies     int           // of the loop that the rest is the mean of; 0: none ended, so it isn't known
	Parts      []stat.Part   // Wait of a few iterations each, in order; nil: the block is one part
	CPU        float64       // share of the CPUs that this process used, 0 … 1; 0: not known
	Queued     float64       // share of them that its threads waited for beside these
}

// A Request is one window to measure.
type Request struct {
	Workers    int
	Iterations int
	Round      int           // goes into the block
	Limit      time.Duration // end with the first iteration past it: the count can't win, or its time is over
}

func (sp Space) allows(workers int) bool {
	return sp.Allowed == nil || sp.Allowed(workers)
}

// DefaultTime is the longest that a search takes by default, LeastTime the shortest of Tune's.
const (
	DefaultTime = time.Minute
	LeastTime   = 600 * time.Millisecond
)

// After a change of the count, a window leaves out the first batches: until all workers are at
// work, their slots have memory, and the kernel has found a CPU for each thread.
const (
	WarmBatches = 2
	WarmTime    = 10 * time.Millisecond
)

// WarmSamples is how many samples a worker loads before it counts as warm: it
// may have connections to make, files to open and caches to fill.
const WarmSamples = 12

// The constants by which the searches decide.
const (
	firstLooks  = 2    // looks at each rung of the ladder, before anything is decided
	glances     = 20   // a look has this part of a count's iterations
	turns       = 10   // a later window has this part of them: the shorter windows are, the more of what disturbs hits all counts of a round alike …
	fewestOf    = 5    // … but at least this many iterations, or a quarter of them all if that is fewer: before each window, workers settle
	lastRound   = 48   // rounds after which what is undecided stays so, unless the user set iterations
	sweepRounds = 4    // of an exhaustive search
	hopeless    = 2    // times the fastest's time: a window ends early there, and a count that takes as long is left out, unless another run might choose it
	tooFew      = 3    // if a count takes this many times the time of the fastest of more workers, no fewer are tried
	doubtful    = 2    // standard errors by which bodies of the loop must differ to be told apart
	busyCPU     = 0.91 // if a count wants this share of the CPUs, more workers gain a tenth at most
	fullCPU     = 0.95 // … and a twentieth here, unless they take CPUs from other processes,
	queuedCPU   = 0.05 // which are there if its threads wait for this share of the CPUs
	MaxWorkers  = 1024 // the ceiling grows no further

	// A count is measured for at least minMeasure, but for at most 100 times the usual
	// iterations: a shorter time is all noise. If the usual iterations take longer than
	// maxMeasure, fewer will do: a fifth of them at least. If even that takes longer than the
	// partOfTime-th part of the time for the search, still fewer will do: leastParts at least.
	minMeasure = 30 * time.Millisecond
	maxMeasure = 5 * time.Second
	partOfTime = 24
	leastParts = 4
	minWindow  = 10 * time.Millisecond // of each window: a thread may wait some milliseconds for a CPU
	burst      = 4                     // a window that is so many times as quick as the fastest count's median one has used up what was loaded before
)
