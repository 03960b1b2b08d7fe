package nwt

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/nwt-go/nwt/internal/human"
	"github.com/nwt-go/nwt/internal/search"
)

const (
	enoughFor = 1.1     // a step upwards aims at this many times the workers that would just hide loading
	besideGap = 1.5     // two counts must be apart by this factor to look between them
	fullCPU   = 1 / 1.5 // above this share of CPUs in use, a step upwards is half as many workers more: fewer hardly fill the rest
	leap      = 16      // times as many workers that a step upwards may try
	inlineFor = 1.1     // loading by the consumer is tried if it seems to take less than this many times as long as the best

	leadLooks  = 2    // at the choice, the fastest, and the next count below the choice …
	leadUnsure = 5    // … while the choice isn't sure
	mostLooks  = 4    // at any other count that may be the best
	nearBy     = 1.25 // the count below the choice takes less than this many times as long as the best
)

// next is the count to measure after a look, given what the search makes of all looks. It
// reports false if no count is worth one.
func (a *auto) next(c search.Choice, r *run) (workers int, found bool) {
	if workers, found = a.above(c); found {
		return workers, true
	}
	if workers, found = a.beside(c); found {
		return workers, true
	}
	if workers, found = a.below(c, r); found {
		return workers, true
	}
	return a.doubtful(c)
}

// above finds a higher count to measure, as long as training waits, CPUs are idle,
// and the last step upwards was worth it. It leaps to the count at which training
// wouldn't wait if workers didn't hinder each other.
func (a *auto) above(c search.Choice) (workers int, found bool) {
	a.tooLarge = nil
	top := c.Estimates[len(c.Estimates)-1]
	at := a.counts.at(top.Workers)
	body, mean := float64(at.Step), float64(top.Mean)
	alpha := a.sp.Alpha.Of(mean, a.sp.Iterations)
	if min(mean-body, mean*(1-at.CPU)) <= alpha || top.Workers >= a.sp.Max {
		return 0, false
	}
	for _, e := range c.Estimates { // one worker can't beat none by working side by side; two can
		if top.Workers > 1 && 2*e.Workers <= top.Workers+1 && float64(e.Mean) <= mean+alpha {
			return 0, false
		}
	}
	fillsCPUs := 1 / max(min(at.CPU, fullCPU), 1.0/leap)
	hidesLoading := enoughFor * mean / max(body, mean/leap)
	workers = min(int(math.Ceil(float64(max(top.Workers, 1))*min(leap, fillsCPUs, hidesLoading))), a.sp.Max)
	for workers > top.Workers {
		if a.tooLarge = a.exceeds(workers); a.tooLarge == nil {
			return workers, true
		}
		workers = (workers + top.Workers) / 2
	}
	return 0, false
}

// beside finds a count between the fastest and the next higher one that was
// measured: a step upwards may have leapt over the best.
func (a *auto) beside(c search.Choice) (workers int, found bool) {
	i := slices.IndexFunc(c.Estimates, func(e search.Estimate) bool { return e.Workers == c.Fastest })
	if i+1 >= len(c.Estimates) {
		return 0, false
	}
	body, mean := float64(a.counts.at(c.Fastest).Step), float64(c.Estimates[i].Mean)
	low, high := c.Fastest, c.Estimates[i+1].Workers
	if mean-body <= a.sp.Alpha.Of(mean, a.sp.Iterations) || float64(high) < besideGap*float64(max(low, 1)) {
		return 0, false
	}
	return search.Middle(low, high)
}

// exceeds says why the batches of the given number of workers don't fit into memory; nil if
// they do.
func (a *auto) exceeds(workers int) *RuledOut {
	why := a.limit.allows(workers, a.counts.peaks())
	more := a.l.depthOf(workers) - a.l.depth()
	if needs := a.counts.at(a.workers).needs() + uint64(max(more, 0))*uint64(a.l.slotBytes); why == "" && needs > a.limit.bytes {
		why = fmt.Sprintf("%s would take about %s: over the limit of %s", countWorkers(workers), human.Bytes(needs), a.limit)
	}
	if why == "" {
		return nil
	}
	return &RuledOut{workers, why}
}

// below finds a lower count to measure: half of the choice while fewer are as
// good, and then halfway to one that isn't.
func (a *auto) below(c search.Choice, r *run) (workers int, found bool) {
	i := slices.IndexFunc(c.Estimates, func(e search.Estimate) bool { return e.Workers == c.Workers })
	switch {
	case i > 0:
		return search.Middle(c.Estimates[i-1].Workers, c.Workers)
	case c.Workers > 1:
		return c.Workers / 2, true
	case c.Workers == 1:
		return 0, r.sequence == nil && a.l.opts.mayInline() && a.worthwhileInline(c)
	}
	return 0, false
}

// worthwhileInline tells whether loading by the consumer may be as good as one
// worker. For that a batch must load in next to no time.
func (a *auto) worthwhileInline(c search.Choice) bool {
	batch := float64(a.l.pace.perBatch())
	best := float64(c.Estimates[slices.IndexFunc(c.Estimates, func(e search.Estimate) bool { return e.Workers == c.Fastest })].Mean)
	return batch+float64(a.counts.at(1).Step) < inlineFor*(best+a.sp.Alpha.Of(best, a.sp.Iterations))
}

// doubtful finds a count to measure once more: one that leads and has had few looks, or any other
// that may be the best by what was seen of it. A single look may have fallen into a bad moment.
// The choice, the fastest and the next count below the choice lead.
func (a *auto) doubtful(c search.Choice) (workers int, found bool) {
	best := a.best()
	looks := func(e search.Estimate) int { return len(a.counts.at(e.Workers).blocks) }
	leads := func(i int) bool {
		e := c.Estimates[i]
		near := i+1 < len(c.Estimates) && c.Estimates[i+1].Workers == c.Workers && float64(e.Mean) < nearBy*best
		return e.Workers == c.Workers || e.Workers == c.Fastest || near
	}
	most := leadLooks
	if c.Confidence < search.SureAt {
		most = leadUnsure
	}

	fewest := most
	for i, e := range c.Estimates {
		if n := looks(e); leads(i) && n < fewest {
			workers, fewest, found = e.Workers, n, true
		}
	}
	if found {
		return workers, true
	}

	worth := best - a.sp.Alpha.Of(best, a.sp.Iterations)
	promise := time.Duration(math.MaxInt64)
	for i, e := range c.Estimates {
		if !leads(i) && looks(e) < min(most, mostLooks) && float64(e.Low) < worth && e.Mean < promise {
			workers, promise, found = e.Workers, e.Mean, true
		}
	}
	return workers, found
}
