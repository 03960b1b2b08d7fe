package nwt

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nwt-go/nwt/internal/durations"
	"github.com/nwt-go/nwt/internal/host"
	"github.com/nwt-go/nwt/internal/memlimit"
	"github.com/nwt-go/nwt/internal/report"
	"github.com/nwt-go/nwt/internal/search"
	"github.com/nwt-go/nwt/internal/tune"
)

// A tuning is a tuner's view of a loader, and what was measured of it. It belongs to whoever has the turn: the
// goroutine that iterates, or the tuner's loop.
type tuning struct {
	tuner   tune.Tuner
	l       *engine
	sp      search.Space
	limit   memlimit.Limit
	inline  bool   // 0 workers may be tried
	untuned int    // workers without tuning
	looked  func() // called after each look, by the goroutine that iterates; nil while training
	exact   bool   // peaks of memory are measured, not just sampled
	fewer   bool   // workers have left, and what they have allocated may still be in the heap

	// What was found out.
	seen    []search.Series
	req     search.Request // what is measured
	trials  trials
	last    *trial                  // the one that was measured last
	refused map[int]report.RuledOut // worker counts that may not be chosen, and why
	first   time.Duration           // until the very first batch
	again   bool                    // samples have been loaded a second time
	pass    []search.Series         // what seen was when the last window that began before that had ended

	// What a run shows, in addition to the loader's counters.
	asked, delivered int
	before           int   // batches delivered before this run
	open             int   // open batches beyond the one in use
	waits            int64 // engine.now when the current wait began; 0: there is none
	dry              bool  // no batch is left to open or to load

	// The part of a run that is being measured.
	trial *trial // nil between windows
	fresh bool   // it began before samples were loaded a second time
	cpu   host.Meter
	began time.Time
	read  time.Duration // how long the stream had been read at its beginning
	peak  *host.Peak

	wake *time.Timer // interrupts waiting for a batch, so that the loop looks in between

	at    int64     // engine.now of the last delivery
	start time.Time // of the run
}

const (
	leastWindow = 5 * time.Millisecond // because a thread may wait some milliseconds for a CPU
	probeSteps  = 20                   // a window takes at least this many steps of a coarse clock
	wakeEvery   = 10 * time.Millisecond
	wakeSettled = time.Second // once the loader has settled
)

// space returns what a search may measure, from a count on. step says whether a step follows each batch.
func (o *options) space(start int, step bool) search.Space {
	return search.Space{
		CPUs: o.usable(), Shared: o.ranks() > 1, Start: start, Step: step, Max: o.most, Alpha: o.alpha,
		Iterations: cmp.Or(o.iterations, 100), MinWindow: probeSteps * o.machine.ClockStep(),
	}
}

// usable returns how many CPUs workers may keep busy; cpus is how many Go would use.
func (o *options) usable() int {
	return int(math.Ceil(o.machine.CPUs().Mine(o.ranks(), o.cpus())))
}

// newTuning returns the tuning of a loader, which is attached later.
func (s *setup) newTuning(sp search.Space, limit memlimit.Limit) *tuning {
	t := &tuning{sp: sp, limit: limit, refused: make(map[int]report.RuledOut), inline: s.opts.mayInline()}
	if s.streams() && sp.Max != 0 { // a goroutine reads a stream in any case
		t.inline = false
	}
	if !t.inline {
		t.sp.Start = max(sp.Start, 1)
	}
	t.untuned = t.sp.Start
	t.sp.Allowed = t.allowed
	return t
}

func (t *tuning) attach(l *engine) {
	t.l, l.tuning = l, t
	t.tuner.Target = t
	t.tuner.Least = max(leastWindow, probeSteps*l.setup.opts.machine.ClockStep())
	t.wake = time.AfterFunc(time.Hour, l.ring.Interrupt)
	t.wake.Stop()
}

// resume is called when a run has begun.
func (t *tuning) resume() {
	t.before, t.asked = t.delivered, t.delivered+1
	t.open, t.waits, t.dry = 0, 0, false
	t.l.counters.loaded.Store(int64(t.before) * wholeBatch) // what was left of the last run is gone
	t.at, t.start = 0, time.Now()
	t.tuner.Resume()
	t.wake.Reset(wakeSettled)
}

// ended is called when a run has ended by itself.
func (t *tuning) ended() {
	l := t.l
	if n := t.delivered - t.before; n < leastRun && t.looked == nil && t.tuner.Measures() && l.setup.once.First("WithAutoWorkers") {
		l.setup.opts.log.Info("nwt: so short a run may not be enough to tune while training: Epochs makes one run of many epochs, and Tune measures before training", "batches", n, "at least", leastRun)
	}
}

// leastRun is how many batches a run must have: those of a shorter one are nearly all at its beginning or its end.
const leastRun = 5

// took is called when a run delivers a batch, which is its taken-th. show shows which batches are ahead.
func (t *tuning) took(taken int, show func()) {
	t.delivered = t.before + taken
	t.asked = t.delivered
	if t.delivered-t.before == 1 {
		t.first = time.Since(t.start)
	}
	if t.tuner.Skips() {
		return
	}
	now := t.l.now()
	if t.trial != nil && t.at != 0 {
		t.trial.took.Add(time.Duration(now-t.at), 1)
	}
	t.at = now
	show()
	t.look(true)
}

// allowed reports whether a worker count may be tried and chosen, as far as is known.
func (t *tuning) allowed(workers int) bool {
	l := t.l
	why := t.limit.Allows(workers, t.trials.peaks())
	if more := l.depthOf(workers) - l.depth(); why == "" && more > 0 && t.trials.at(workers) == nil && t.last != nil {
		why = t.limit.Over(workers, t.last.told.needs()+uint64(more)*uint64(l.setup.slotBytes))
	}
	delete(t.refused, workers)
	switch {
	case workers == 0 && !t.inline && l.setup.streams() && l.setup.opts.mayInline():
		t.refused[0] = report.Out(0, report.ForStream)
	case workers == 0 && !t.inline:
		t.refused[0] = report.Out(0, report.ForTimeout)
	case why != "":
		t.refused[workers] = report.RuledOut{Workers: workers, Code: report.ForMemory, Reason: why}
	default:
		return true
	}
	return false
}

// fits reports whether a count that may be chosen has been measured.
func (t *tuning) fits() bool {
	return slices.ContainsFunc(t.trials, func(one *trial) bool { return t.sp.Allowed(one.told.Workers) })
}

// descend lets the search begin at fewer workers if nothing that was measured fits. It reports whether
// there is anything left to measure.
func (t *tuning) descend() bool {
	if t.fits() {
		return true
	}
	last := t.last.told.Workers
	t.sp.Start = last / 2
	return last > 0
}

// awaits is called when training begins to wait for a batch.
func (t *tuning) awaits(since int64) {
	if t.waits = since; t.tuner.Measures() {
		t.wake.Reset(wakeEvery)
	}
}

// look lets the tuner's loop go on. It is called when a batch is delivered, and now and then while training waits,
// which may take minutes.
func (t *tuning) look(delivered bool) {
	t.tuner.Look(delivered)
	if t.looked != nil {
		t.looked()
	}
	switch {
	case delivered || t.tuner.Over():
	case t.tuner.Measures():
		t.wake.Reset(wakeEvery)
	default:
		t.wake.Reset(wakeSettled)
	}
}

// measure measures what next asks for, until it asks for nothing more. It returns false if it must end before:
// the program has set the count, or closed the loader.
func (t *tuning) measure(next func() (search.Request, bool)) bool {
	for req, more := next(); more; req, more = next() {
		t.req = req
		if !t.tuner.Resize(req.Workers) {
			return false
		}
		t.beginWindow()
		w, ok := t.tuner.Measure(req)
		if !ok {
			return false
		}
		if w.Weight > 0 {
			t.endWindow(w)
		}
	}
	return true
}

// saw adds what was measured of a count.
func (t *tuning) saw(workers int, b search.Block) {
	i := slices.IndexFunc(t.seen, func(s search.Series) bool { return s.Workers == workers })
	if i < 0 {
		i, t.seen = len(t.seen), append(t.seen, search.Series{Workers: workers})
	}
	t.seen[i].Blocks = append(t.seen[i].Blocks, b)
}

// Figures implements tune.Target.
func (t *tuning) Figures() tune.Figures {
	c := &t.l.counters
	f := tune.Figures{
		// loaded counts in parts of wholeBatch, so that it can show half a batch.
		Loaded: float64(c.loaded.Load()) / wholeBatch, Delivered: t.delivered, Asked: t.asked,
		Wait: time.Duration(c.wait.Load()), Transfer: time.Duration(c.transfer.Load()), Dry: t.dry,
	}
	f.Missing = float64(t.open) - (f.Loaded - float64(f.Delivered))
	if t.waits != 0 {
		f.Wait += time.Duration(t.l.now() - t.waits)
	}
	copied := t.l.stage.Figures()
	f.Copied, f.Copying = copied.Copies, copied.Took
	return f
}

// SetWorkers implements tune.Target.
func (t *tuning) SetWorkers(n int) bool {
	t.l.extra.policy.Forget()
	t.fewer = t.fewer || n < t.l.Workers()
	return t.l.resize(n, false)
}

// Cold implements tune.Target.
func (t *tuning) Cold() (samples int, beginning bool) { return t.l.pool.cold() }

// InHand implements tune.Target.
func (t *tuning) InHand() float64 {
	l := t.l
	per := float64(l.epochOrder.Load().perBatch)
	return float64(max(1, l.Workers())) * min(float64(l.claimSize()), per) / per
}

// beginWindow begins to measure what package tune doesn't: memory and CPUs.
func (t *tuning) beginWindow() {
	t.release()
	if t.fewer { // else it would be charged to this count, and memory would seem not to grow with workers
		debug.FreeOSMemory()
		t.fewer = false
	}
	if t.exact {
		t.peak = host.StartPeak()
	}
	if t.trial = t.trials.at(t.req.Workers); t.trial == nil {
		t.trial = &trial{told: Trial{Workers: t.req.Workers, PeakExact: t.exact, OtherCPU: -1}}
	}
	t.fresh = t.exact && !t.again
	t.cpu, t.began, t.read = t.l.setup.helpers.Beside(t.l.setup.opts.machine.StartCPU()), time.Now(), t.l.counters.reading.Shown()
}

// release ends the measurements of a window that was never ended.
func (t *tuning) release() {
	if t.peak != nil {
		t.peak.Stop()
		t.peak = nil
	}
}

// endWindow adds what was measured in a window.
func (t *tuning) endWindow(w tune.Window) {
	tr, l, b := t.trial, t.l, w.Block(t.req.Round)
	t.trial = nil
	use, took := t.cpu.Used(), time.Since(t.began)
	b.CPU, b.Queued = tr.used(use, took, l.setup.opts, float64(l.counters.reading.Shown()-t.read)/float64(max(1, took)))
	rss, exact := host.Memory().RSS, false
	if t.peak != nil {
		rss, exact = t.peak.Stop()
		t.peak = nil
	}
	if tr.n == 0 { // reading it again in each window would take too long
		tr.helpers = l.setup.helpers.Memory(0)
	}
	if memory, known := host.OwnMemory(); known {
		tr.told.Memory = max(tr.told.Memory, int64(memory+tr.helpers))
	} else {
		rss += tr.helpers
	}
	tr.told.PeakRSS, tr.told.PeakExact = max(tr.told.PeakRSS, int64(rss)), tr.told.PeakExact && exact
	tr.told.SystemUsed, tr.told.Prefetch = int64(host.Memory().Used), max(tr.told.Prefetch, l.depth()-1)
	tr.add(w)
	if f := l.stage.Figures(); f.Copies > 0 {
		tr.told.Copy, tr.told.Bandwidth = f.Took/time.Duration(f.Copies), float64(f.Bytes)/max(f.Took, 1).Seconds()
	}
	if t.trials.at(tr.told.Workers) == nil {
		if len(t.trials) == 0 {
			tr.told.FirstBatch = t.first
		}
		t.trials = append(t.trials, tr)
	}
	t.last = tr
	if t.saw(w.Workers, b); t.fresh {
		t.pass = slices.Clone(t.seen)
	}
}

// quickest returns the shortest time per batch so far.
func (t *tuning) quickest() time.Duration {
	best := time.Duration(math.MaxInt64 / 1024)
	for _, one := range t.trials {
		best = min(best, one.told.Mean)
	}
	return best
}

// result returns the choice with the figures behind it, and what is to be said of it. others is the share
// of the CPUs that other processes used; if that isn't known, unseen says why.
func (t *tuning) result(c search.Choice, strategy string, others float64, unseen string) *Result {
	o := t.l.setup.opts
	r := &Result{
		Workers: c.Workers, Fastest: c.Fastest, Alpha: c.Alpha, Iterations: t.sp.Iterations, Repeatability: c.Confidence,
		Strategy: strategy, Step: o.step != nil || strategy == report.Live, Device: o.device.String(), BatchSize: o.batchSize, BatchBytes: int64(t.l.setup.layout.Size) * int64(o.batchSize),
		BatchSamples: float64(t.l.counters.samples.Load()) / float64(max(1, t.l.counters.batches.Load())), Hardware: hardware(o.machine.CPUs()),
	}
	for _, w := range slices.Sorted(maps.Keys(t.refused)) {
		r.RuledOut = append(r.RuledOut, RuledOut(t.refused[w]))
	}
	for _, e := range c.Estimates {
		if c.Most > 0 && e.Workers > c.Most {
			r.RuledOut = append(r.RuledOut, RuledOut(report.Out(e.Workers, report.TakesCPUs)))
		}
		one := t.trials.at(e.Workers).told
		one.Step = e.Body
		one.Mean, one.Low, one.High = e.Mean, e.Low, e.High
		one.Transfer = min(one.Transfer, one.Mean-one.Step)
		one.Wait = one.Mean - one.Step - one.Transfer
		one.Total = one.Mean * time.Duration(t.sp.Iterations)
		if one.OtherCPU < 0 && unseen == "" && others >= 0 && strategy != report.Live {
			one.OtherCPU = min(others, 1-one.CPU)
		}
		r.Trials = append(r.Trials, one)
	}
	slices.SortFunc(r.RuledOut, func(a, b RuledOut) int { return cmp.Compare(a.Workers, b.Workers) })
	for _, one := range r.Trials { // a step that only hands its batch on takes no time until the next one is there
		if float64(one.Wait+one.Transfer) <= report.LittleWait*float64(one.Mean) && (r.Floor == 0 || one.Step < r.Floor) {
			r.Floor = one.Step
		}
	}
	if r.Floor > r.trial(r.Workers).Mean { // more workers make the step longer than it takes at the choice
		r.Floor = 0
	}
	cpus, chosen := o.machine.CPUs(), t.trials.at(c.Workers)
	about := report.Circumstances{
		CPUs: cpus, Mine: cpus.Mine(o.ranks(), o.cpus()), Limit: t.limit, Most: o.most, Timeout: o.timeout > 0,
		Others: others, Queued: chosen.queue / max(chosen.measured, 1), Unseen: unseen, Late: t.sp.Time > 0 && t.sp.Left == 0,
		First: report.FirstPass(t.pass, t.seen), Drift: report.Drift(t.seen),
	}
	if t.l.setup.streams() {
		about.Shards, about.AtOnce = t.l.setup.shardsOfRank(), o.shardsAtOnce()
	}
	said := r.report()
	said.Explain(c, t.untuned)
	said.Warn(about)
	said.Advise(about)
	r.Reason, r.Warnings, r.Advice = said.Reason, said.Warnings, said.Advice
	return r
}

func hardware(c host.CPUFacts) Hardware {
	return Hardware{
		CPU: c.Model, Logical: c.Logical, Physical: c.Physical, Affinity: c.Affinity, Quota: c.Quota,
		GOMAXPROCS: c.GOMAXPROCS, Memory: int64(host.Memory().Total),
	}
}

// A trial holds what was measured at one worker count.
type trial struct {
	told    Trial
	n       int     // number of windows
	batches float64 // number of batches that they cover
	mean, wait, transfer, step,
	cpu, gc, queue, reading float64 // weighted sums
	other, otherTime, measured float64
	helpers                    uint64              // memory of the processes that load for the dataset
	took                       durations.Histogram // of the iterations
}

// add adds a window.
func (t *trial) add(w tune.Window) {
	t.n++
	t.batches += w.Weight
	t.mean += w.Weight * float64(w.Mean)
	t.wait += w.Weight * float64(w.Wait)
	t.transfer += w.Weight * float64(w.Transfer)
	t.step += w.Weight * float64(w.Body)
	per := func(sum float64) time.Duration { return time.Duration(math.Round(sum / t.batches)) }
	t.told.Iterations, t.told.Mean, t.told.Wait, t.told.Transfer, t.told.Step = max(1, int(math.Round(t.batches))), per(t.mean), per(t.wait), per(t.transfer), per(t.step)
	t.told.Median, t.told.P99 = t.took.Quantile(0.5), t.took.Quantile(0.99)
}

// used adds what a window used of the machine, and returns the shares of the CPUs that it used and
// waited for.
func (t *trial) used(u host.Use, took time.Duration, o *options, reading float64) (own, queued float64) {
	cpus, weight := o.machine.CPUs(), float64(max(took, 1))
	share := func(used float64) float64 { return cpus.Share(used, o.ranks(), o.cpus()) }
	own, queued = u.Own/cpus.Mine(o.ranks(), o.cpus()), share(u.Waiting)
	t.measured += weight
	t.cpu, t.gc, t.queue, t.reading = t.cpu+min(1, own)*weight, t.gc+share(u.Collector)*weight, t.queue+queued*weight, t.reading+min(1, reading)*weight
	t.told.CPU, t.told.CollectorCPU, t.told.Reading = t.cpu/t.measured, t.gc/t.measured, t.reading/t.measured
	if u.OthersKnown {
		t.other, t.otherTime = t.other+cpus.OthersShare(u.Others, o.ranks(), o.cpus())*weight, t.otherTime+weight
		t.told.OtherCPU = min(t.other/t.otherTime, 1-t.told.CPU)
	}
	return own, queued
}

// trials holds the trials of all worker counts that were measured, in the order of their first windows.
type trials []*trial

// at returns what is known of a worker count, or nil if it wasn't measured.
func (t trials) at(workers int) *trial {
	i := slices.IndexFunc(t, func(one *trial) bool { return one.told.Workers == workers })
	if i < 0 {
		return nil
	}
	return t[i]
}

// windows returns how many windows there were.
func (t trials) windows() (n int) {
	for _, one := range t {
		n += one.n
	}
	return n
}

// peaks returns how much memory the counts need.
func (t trials) peaks() []memlimit.Peak {
	out := make([]memlimit.Peak, len(t))
	for i, one := range t {
		out[i] = memlimit.Peak{Workers: one.told.Workers, Bytes: one.told.needs()}
	}
	return out
}

// auto tunes a loader while it feeds training: it measures the training loop that takes the batches.
type auto struct {
	tuning   *tuning
	since    time.Time     // since when it has measured
	settled  time.Duration // how long it took to settle
	earlier  int           // windows of earlier searches
	patience int           // successive windows in which training waits more, or less, that let it search again
	latest   []ending      // of searches that ended differently, each soon after the one before
}

// An ending is what a search has ended with.
type ending struct {
	workers int
	choice  tune.Choice
	result  *Result
	at      time.Time
}

const (
	mostLooks  = 48              // the number of windows after which a loader settles on the choice, sure or not
	oddWindows = 3               // the first patience …
	oddMost    = 48              // … and the largest, after searching again and again has changed nothing
	weighFirst = 256             // batches after which what they show is weighed, at first
	flaps      = 3               // so many searches that end differently …
	flapsIn    = 2 * time.Minute // … each so soon after the one before, show that the source's speed changes
)

func newAuto(l *engine) {
	o := l.setup.opts
	t := l.setup.newTuning(o.space(l.Workers(), true), l.setup.memoryLimit())
	start := t.sp.Start
	if o.maxMemory == 0 { // the memory that the program's own count needs is in use already
		t.sp.Allowed = func(workers int) bool { return workers == start || t.allowed(workers) }
	}
	t.attach(l)
	t.tuner.Loop = (&auto{tuning: t}).run
	t.tuner.Start(0)
}

// run searches, settles, and watches the loader until it has to search again.
func (a *auto) run() {
	t := a.tuning
	for weighAt := weighFirst; ; {
		a.since, a.earlier = time.Now(), t.trials.windows()
		if !t.measure(a.next) {
			return
		}
		e, ok := a.settle(false)
		if !ok {
			return
		}
		e, flapping := a.steady(e)
		if !t.tuner.Resize(e.workers) {
			return
		}
		for why := ""; why == ""; {
			at := weighAt
			if flapping {
				at = math.MaxInt
			}
			b, odd, ok := t.tuner.Watch(e.choice, a.patience, at)
			switch {
			case !ok:
				return
			case odd:
				why, t.seen, t.trials = "training waits for data more or less than it did", nil, nil
			default:
				t.saw(e.workers, b)
				later, ok := a.settle(true)
				if !ok {
					return
				}
				if weighAt, e.choice = 2*weighAt, later.choice; later.workers != e.workers {
					why, t.seen = "another worker count may be faster", []search.Series{{Workers: e.workers, Blocks: []search.Block{b}}}
				}
			}
			if why != "" {
				t.l.setup.opts.log.Info("nwt: tuning the worker count again", "workers", e.workers, "why", why)
			}
		}
	}
}

// steady returns what the loader stays with: what the search has ended with or, if searches soon after each other
// end differently, the ending with the most workers.
func (a *auto) steady(e ending) (_ ending, flapping bool) {
	if last := len(a.latest) - 1; last >= 0 && a.latest[last].workers == e.workers {
		a.patience, a.latest = min(2*a.patience, oddMost), []ending{e}
		return e, false
	} else if last >= 0 && e.at.Sub(a.latest[last].at) > flapsIn {
		a.latest = nil
	}
	if a.latest = append(a.latest, e); len(a.latest) < flaps {
		a.patience = oddWindows
		return e, false
	}
	var counts []string
	for _, one := range a.latest {
		counts = append(counts, strconv.Itoa(one.workers))
	}
	e = slices.MaxFunc(a.latest, func(a, b ending) int { return cmp.Compare(a.workers, b.workers) })
	a.patience, a.latest = oddMost, a.latest[1:]
	r := *e.result
	r.Warnings = append(slices.Clip(r.Warnings), fmt.Sprintf("%d searches in a row ended differently (%s workers), because the speed of the source or of the step changes: the loader stays with the most workers, and the figures are those of that search", flaps, strings.Join(counts, ", ")))
	a.tuning.l.found.Store(&r)
	return e, true
}

func (a *auto) next() (search.Request, bool) {
	t := a.tuning
	if t.trials.windows()-a.earlier >= mostLooks || len(t.seen) > 0 && !t.descend() {
		return search.Request{}, false
	}
	t.sp.Left = math.MaxInt64
	return search.Greedy{}.Next(t.sp, t.seen)
}

// settle chooses, when there is nothing more to measure, and again when a loader that has settled has been measured
// further. The result is published unless the choice has changed meanwhile.
func (a *auto) settle(again bool) (e ending, ok bool) {
	t, l := a.tuning, a.tuning.l
	if len(t.seen) == 0 {
		return e, false // memory allows no other count
	}
	sp, over := t.sp, ""
	if !slices.ContainsFunc(t.seen, func(s search.Series) bool { return sp.Allowed(s.Workers) }) {
		fewest := slices.MinFunc(t.seen, func(a, b search.Series) int { return cmp.Compare(uint(a.Workers-1), uint(b.Workers-1)) }).Workers // 0 is last
		sp.Allowed = func(workers int) bool { return workers == fewest }
		over = t.refused[fewest].Reason
		delete(t.refused, fewest)
		if l.setup.once.First("WithMemoryLimit") {
			l.setup.opts.log.Warn("nwt: no worker count fits into memory: the loader keeps the fewest workers", "workers", fewest, "why", over)
		}
	}
	choice := search.Choose(sp, t.seen)
	chosen, fastest := t.trials.at(choice.Workers).told, float64(max(t.trials.at(choice.Fastest).told.Mean, 1))
	e = ending{workers: choice.Workers, at: time.Now(), choice: tune.Choice{
		Mean: chosen.Mean, Wait: chosen.Wait + chosen.Transfer, Body: chosen.Step, Ignored: t.sp.Alpha.Of(fastest, t.sp.Iterations) / fastest,
	}}
	if again && e.workers != l.found.Load().Workers {
		return e, true
	}
	e.result = t.result(choice, report.Live, chosen.OtherCPU, "")
	if !again {
		a.settled = time.Since(a.since)
		l.setup.opts.log.Info("nwt: worker count settled while training", "workers", e.workers, "reason", e.result.Reason)
	}
	e.result.Elapsed = a.settled
	if over != "" {
		e.result.Warnings = append(e.result.Warnings, "no worker count fits into memory: "+over)
	}
	l.found.Store(e.result)
	return e, true
}
