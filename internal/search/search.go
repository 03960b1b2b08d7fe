// Package search decides which worker counts to measure and which to choose. It works only on figures:
// it knows neither loaders nor clocks.
//
//	a Strategy ──► a Request ──► the caller measures a Block ──► the Strategy …
//	                                                         └──► Choose
package search

import (
	"time"

	"github.com/nwt-go/nwt/internal/stat"
)

// A Strategy returns what to measure next, given everything that was measured; false means nothing more.
type Strategy func(sp Space, seen []Series) (Request, bool)

// A Space says which counts a search may measure, and within which limits.
type Space struct {
	CPUs       int                    // how many CPUs workers may use at a time
	Shared     bool                   // other ranks have CPUs too, which may be idle as long as one rank tunes
	Start      int                    // training's own count: the one that it would have without tuning; it is measured first
	Step       bool                   // a step follows each batch; without workers, it waits for all loading. Without a step, sources are spared: see Sparing
	Max        int                    // highest count; −1: the strategy's own limit, and more as long as more workers win and CPUs are idle
	Alpha      Alpha                  // the difference that the choice ignores
	Iterations int                    // per count; alpha is accumulated over these
	Fixed      bool                   // the user set Iterations: a count in the race gets neither more nor fewer
	Time       time.Duration          // for the whole search; 0: no limit
	Left       time.Duration          // what is left of Time
	MinTime    time.Duration          // the shortest time of a search: a disturbance may last as long as a shorter one
	MinWindow  time.Duration          // shorter windows are meaningless: the clock moves in steps, and a thread may wait some milliseconds for a CPU
	Admit      func(workers int) bool // called for each count that the search would measure or choose; false: it may not, because of its memory, for example; nil: all may
}

// An Alpha is a difference in accumulated time: a duration, but no less than one share of the fastest
// count's time and no more than another share.
type Alpha struct {
	Total    time.Duration // math.MaxInt64: only the shares count
	MinShare float64
	MaxShare float64       // +Inf: no upper limit
	Each     time.Duration // per iteration: alpha isn't less than this either
}

// Unnoticed is the smallest default alpha per iteration: a smaller difference affects no training step.
const Unnoticed = 5 * time.Microsecond

// DefaultAlpha is the paper's half second, limited by two shares, because alone it could be longer than
// all iterations together, or too short to matter. The upper share is small because a surplus worker
// costs a goroutine, while time that training waits is lost.
var DefaultAlpha = Alpha{Total: 500 * time.Millisecond, MinShare: 0.01, MaxShare: 0.02, Each: Unnoticed}

// Of returns alpha per iteration if the fastest count takes mean per iteration.
func (a Alpha) Of(mean float64, iterations int) float64 {
	return max(min(float64(a.Total)/float64(iterations), a.MaxShare*mean), a.MinShare*mean, float64(a.Each))
}

// A Series holds everything that was measured at one worker count, in order.
type Series struct {
	Workers int
	Blocks  []Block
	First   int // how many of Blocks began before any sample was loaded a second time
}

// A Block holds the figures of one window at a worker count.
type Block struct {
	Round      int           // as requested; −1: nothing was measured beside it, and it counts without correction
	Iterations int           // iterations measured; fewer than requested if the limit passed
	Mean       time.Duration // time of an iteration
	Wait       time.Duration // the part of it that faster loading could save at most; the rest is the loop's own
	Bodies     int           // how many loop bodies the rest is the mean of; 0: no body ended, so the rest isn't known
	Parts      []stat.Part   // Wait of a few iterations each, in order; nil: the block is one part
	CPU        float64       // share of the CPUs that this process used, over 1 if it also used those of other ranks; 0: not known
	Queued     float64       // share of the CPUs that its threads waited for in addition
}

// A Request asks for one window.
type Request struct {
	Workers    int
	Iterations int
	Round      int           // copied to the block
	Limit      time.Duration // the window ends with the first iteration past it: the count can't win, or its time is over
}

func (sp Space) admits(workers int) bool { return sp.Admit == nil || sp.Admit(workers) }

// Ignores returns alpha per iteration if the fastest count takes mean per iteration.
func (sp Space) Ignores(mean float64) float64 { return sp.Alpha.Of(mean, sp.Iterations) }

// DefaultTime is the default limit of a search's time; MinTime is the shortest time that Tune searches.
const (
	DefaultTime = time.Minute
	MinTime     = 600 * time.Millisecond
)

// After the count has changed, a window leaves out the first batches, until all workers are at work,
// their slots have memory, and the kernel has found a CPU for each thread.
const (
	WarmBatches = 2
	WarmTime    = 10 * time.Millisecond
)

// WarmSamples is how many samples a worker loads before it counts as warm: it may first have to make
// connections, open files and fill caches.
const WarmSamples = 12

// A space without a step doesn't grow beyond Sparing workers, or four for each CPU, once a batch takes less than
// ShortBatch: few steps are shorter, and each worker may keep a connection of its own.
const (
	Sparing    = 64
	ShortBatch = 10 * time.Millisecond
)

// MaxWorkers is the highest count that a space grows to.
const MaxWorkers = 1024
