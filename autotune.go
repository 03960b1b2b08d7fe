package nwt

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/nwt-go/nwt/internal/report"
	"github.com/nwt-go/nwt/internal/search"
	"github.com/nwt-go/nwt/internal/tune"
)

// auto tunes a loader while it feeds training: it measures the training loop that takes the batches.
type auto struct {
	*tuning
	since   time.Time     // since when it has measured
	settled time.Duration // how long it took to settle
	earlier int           // windows of earlier searches
}

// mostLooks is the number of windows after which a loader settles on the choice, sure or not.
const mostLooks = 48

func newAuto(l *engine) {
	o := l.opts
	t := l.newTuning(o.space(l.Workers(), true), l.memoryLimit())
	start := t.sp.Start
	if o.maxMemory == 0 { // the memory that the program's own count needs is in use already
		t.sp.Allowed = func(workers int) bool { return workers == start || t.allowed(workers) }
	}
	t.attach(l)
	a := &auto{tuning: t}
	t.Run = a
	t.Next = a.next
	t.Start(0)
}

func (a *auto) next(seen []search.Series) (search.Request, bool) {
	if len(seen) == 0 {
		a.since, a.trials, a.earlier = time.Now(), nil, 0
	}
	if a.trials.windows()-a.earlier >= mostLooks {
		return search.Request{}, false
	}
	if len(seen) > 0 && !a.descend() {
		return search.Request{}, false
	}
	a.sp.Left = math.MaxInt64
	return search.Greedy{}.Next(a.sp, seen)
}

// Settle implements tune.Run.
func (a *auto) Settle(seen []search.Series, again bool) (c tune.Choice, goesOn bool) {
	if len(seen) == 0 {
		return c, false // memory allows no other count
	}
	sp, over := a.sp, ""
	if !slices.ContainsFunc(seen, func(s search.Series) bool { return sp.Allowed(s.Workers) }) {
		fewest := slices.MinFunc(seen, func(a, b search.Series) int { return cmp.Compare(uint(a.Workers-1), uint(b.Workers-1)) }).Workers // 0 is last
		sp.Allowed = func(workers int) bool { return workers == fewest }
		over = a.refused[fewest]
		delete(a.refused, fewest)
		if a.l.once.First("WithMemoryLimit") {
			a.l.opts.log.Warn("nwt: no worker count fits into memory: the loader keeps the fewest workers", "workers", fewest, "why", over)
		}
	}
	choice := search.Choose(sp, seen)
	chosen, fastest := a.trials.at(choice.Workers), a.trials.at(choice.Fastest)
	if chosen == nil || fastest == nil {
		return c, false // the program has called SetWorkers while these were measured
	}
	best := float64(max(fastest.Mean, 1))
	c = tune.Choice{
		Workers: choice.Workers, Body: chosen.Step,
		Waits: float64(chosen.Wait+chosen.Transfer) / float64(max(chosen.Mean, 1)), Ignored: a.sp.Alpha.Of(best, a.sp.Iterations) / best,
	}
	if again && c.Workers != a.l.Workers() {
		return c, true // it will be looked at again later
	}
	r := a.result(choice, report.Live, chosen.OtherCPU, "")
	if !again {
		a.settled = time.Since(a.since)
		a.l.opts.log.Info("nwt: worker count settled while training", "workers", r.Workers, "reason", r.Reason)
	}
	r.Elapsed = a.settled
	if over != "" {
		r.Warnings = append(r.Warnings, "no worker count fits into memory: "+over)
	}
	a.l.found.Store(r)
	return c, true
}

// Doubt implements tune.Run.
func (a *auto) Doubt(why string) {
	a.since, a.earlier = time.Now(), a.trials.windows()
	a.l.opts.log.Info("nwt: tuning the worker count again", "workers", a.l.Workers(), "why", why)
}
