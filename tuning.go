package nwt

import (
	"cmp"
	"maps"
	"math"
	"runtime/debug"
	"slices"
	"time"

	"github.com/nwt-go/nwt/internal/durations"
	"github.com/nwt-go/nwt/internal/host"
	"github.com/nwt-go/nwt/internal/memlimit"
	"github.com/nwt-go/nwt/internal/report"
	"github.com/nwt-go/nwt/internal/search"
	"github.com/nwt-go/nwt/internal/tune"
)

// A tuning is a tuner's view of a loader, and what was measured of it. It belongs to the goroutine that
// iterates.
type tuning struct {
	tuner  tune.Tuner
	l      *engine
	sp     search.Space
	limit  memlimit.Limit
	inline bool   // 0 workers may be tried
	stop   func() // ends Tune's loading; nil while training
	exact  bool   // peaks of memory are measured, not just sampled
	fewer  bool   // workers have left, and what they have allocated may still be in the heap

	// What was found out.
	trials  trials
	last    *trial         // the one that was measured last
	refused map[int]string // worker counts that may not be chosen, and why
	first   time.Duration  // until the very first batch
	again   bool           // samples have been loaded a second time
	noted   string         // why peaks aren't exact

	// What a run shows, in addition to the loader's counters.
	asked, delivered int
	before           int   // batches delivered before this run
	open             int   // open batches beyond the one in use
	waits            int64 // engine.now when the current wait began; 0: there is none
	dry              bool  // no batch is left to open or to load

	// The part of a run that is being measured.
	trial *trial // nil between windows
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
)

// newTuning returns the tuning of a loader, which is attached later.
func (s *setup) newTuning(sp search.Space, limit memlimit.Limit) *tuning {
	t := &tuning{sp: sp, limit: limit, refused: make(map[int]string), inline: s.opts.mayInline()}
	if s.streams() && sp.Max != 0 { // a goroutine reads a stream in any case
		t.inline = false
	}
	if !t.inline {
		t.sp.Start = max(sp.Start, 1)
	}
	t.sp.Allowed = t.allowed
	return t
}

func (t *tuning) attach(l *engine) {
	t.l, l.tuning = l, t
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
}

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
	if t.tuner.Observe() && t.stop != nil {
		t.stop()
	}
}

// allowed reports whether a worker count may be tried and chosen, as far as is known.
func (t *tuning) allowed(workers int) bool {
	l := t.l
	why := t.limit.Allows(workers, t.trials.peaks())
	if more := l.depthOf(workers) - l.depth(); why == "" && more > 0 && t.trials.at(workers) == nil && t.last != nil {
		why = t.limit.Over(workers, t.last.told.needs()+uint64(more)*uint64(l.setup.slotBytes))
	}
	if workers == 0 && !t.inline {
		if why = report.NotInline; l.setup.streams() && l.setup.opts.mayInline() {
			why = report.NotInlineStream
		}
	}
	delete(t.refused, workers)
	if why != "" {
		t.refused[workers] = why
	}
	return why == ""
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
	if t.waits = since; !t.tuner.Settled() {
		t.wake.Reset(wakeEvery)
	}
}

// look is called now and then while training waits, which may take minutes.
func (t *tuning) look() {
	if t.tuner.Tick() && t.stop != nil {
		t.stop()
	}
	if !t.tuner.Settled() {
		t.wake.Reset(wakeEvery)
	}
}

// Figures implements tune.Run.
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

// SetWorkers implements tune.Run.
func (t *tuning) SetWorkers(n int) bool {
	t.l.extra.policy.Forget()
	t.fewer = t.fewer || n < t.l.Workers()
	return t.l.resize(n, false)
}

// Cold implements tune.Run.
func (t *tuning) Cold() (samples int, beginning bool) { return t.l.pool.cold() }

// InHand implements tune.Run.
func (t *tuning) InHand() float64 {
	l := t.l
	per := float64(l.epochOrder.Load().perBatch)
	return float64(max(1, l.Workers())) * min(float64(l.claimSize()), per) / per
}

// Begin implements tune.Run.
func (t *tuning) Begin() {
	t.release()
	if t.fewer { // else it would be charged to this count, and memory would seem not to grow with workers
		debug.FreeOSMemory()
		t.fewer = false
	}
	if t.exact {
		t.peak = host.StartPeak()
	}
	if t.trial = t.trials.at(t.l.Workers()); t.trial == nil {
		t.trial = &trial{told: Trial{Workers: t.l.Workers(), PeakExact: t.exact, OtherCPU: -1}}
	}
	t.cpu, t.began, t.read = t.l.setup.opts.machine.StartCPU(), time.Now(), t.l.counters.reading.Shown()
}

// release ends the measurements of a window that was never ended.
func (t *tuning) release() {
	if t.peak != nil {
		t.peak.Stop()
		t.peak = nil
	}
}

// End implements tune.Run.
func (t *tuning) End(w tune.Window) (cpu, queued float64) {
	tr, l := t.trial, t.l
	t.trial = nil
	use, took := t.cpu.Used(), time.Since(t.began)
	cpu, queued = tr.used(use, took, l.setup.opts, float64(l.counters.reading.Shown()-t.read)/float64(max(1, took)))
	rss, exact := host.Memory().RSS, false
	if t.peak != nil {
		if rss, exact = t.peak.Stop(); !exact {
			t.noted = t.peak.Note()
		}
		t.peak = nil
	}
	tr.told.PeakRSS, tr.told.PeakExact = max(tr.told.PeakRSS, int64(rss)), tr.told.PeakExact && exact
	if memory, known := host.OwnMemory(); known {
		tr.told.Memory = max(tr.told.Memory, int64(memory))
	}
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
	return cpu, queued
}

// Settle implements tune.Run: Tune ends here.
func (t *tuning) Settle([]search.Series, bool) (c tune.Choice, goesOn bool) { return c, false }

// Doubt implements tune.Run.
func (t *tuning) Doubt(string) {}

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
		Strategy: strategy, Step: o.step != nil || strategy == report.Live, Device: o.device.String(), BatchSize: o.batchSize, BatchBytes: int64(t.l.setup.layout.Size) * int64(t.l.setup.places),
		BatchSamples: float64(t.l.counters.samples.Load()) / float64(max(1, t.l.counters.batches.Load())), Hardware: hardware(o.machine.CPUs()),
	}
	for _, w := range slices.Sorted(maps.Keys(t.refused)) {
		r.RuledOut = append(r.RuledOut, RuledOut{w, t.refused[w]})
	}
	for _, e := range c.Estimates {
		if c.Most > 0 && e.Workers > c.Most {
			r.RuledOut = append(r.RuledOut, RuledOut{e.Workers, report.TakesCPUs})
		}
		one := t.trials.at(e.Workers).told
		one.Step = e.Body
		one.Mean, one.Low, one.High = max(e.Mean, e.Body), e.Low, max(e.High, e.Body)
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
	cpus := o.machine.CPUs()
	about := report.Circumstances{
		CPUs: cpus, Mine: cpus.Mine(o.ranks(), o.cpus()), Limit: t.limit, Most: o.most, Timeout: o.timeout > 0,
		Others: others, Unseen: unseen, Late: t.sp.Time > 0 && t.sp.Left == 0,
		Again: t.again, Drift: report.Drift(t.tuner.Seen()), Peaks: t.noted,
	}
	if t.l.setup.streams() {
		about.Shards, about.AtOnce = t.l.setup.shardsOfRank(), o.shardsAtOnce()
	}
	said := r.report()
	said.Explain(c, t.sp.Start)
	said.Warn(about)
	said.Advise(about)
	r.Reason, r.fallback, r.Warnings, r.Advice = said.Reason, said.Fallback, said.Warnings, said.Advice
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
	t.told.CPU, t.told.CollectorCPU, t.told.queued, t.told.Reading = t.cpu/t.measured, t.gc/t.measured, t.queue/t.measured, t.reading/t.measured
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
	*tuning
	since   time.Time     // since when it has measured
	settled time.Duration // how long it took to settle
	earlier int           // windows of earlier searches
}

// mostLooks is the number of windows after which a loader settles on the choice, sure or not.
const mostLooks = 48

func newAuto(l *engine) {
	o := l.setup.opts
	t := l.setup.newTuning(o.space(l.Workers(), true), l.setup.memoryLimit())
	start := t.sp.Start
	if o.maxMemory == 0 { // the memory that the program's own count needs is in use already
		t.sp.Allowed = func(workers int) bool { return workers == start || t.allowed(workers) }
	}
	t.attach(l)
	a := &auto{tuning: t}
	t.tuner.Run = a
	t.tuner.Next = a.next
	t.tuner.Start(0)
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
		if a.l.setup.once.First("WithMemoryLimit") {
			a.l.setup.opts.log.Warn("nwt: no worker count fits into memory: the loader keeps the fewest workers", "workers", fewest, "why", over)
		}
	}
	choice := search.Choose(sp, seen)
	chosen, fastest := a.trials.at(choice.Workers), a.trials.at(choice.Fastest)
	if chosen == nil || fastest == nil {
		return c, false // the program has called SetWorkers while these were measured
	}
	best := float64(max(fastest.told.Mean, 1))
	c = tune.Choice{
		Workers: choice.Workers, Body: chosen.told.Step,
		Waits: float64(chosen.told.Wait+chosen.told.Transfer) / float64(max(chosen.told.Mean, 1)), Ignored: a.sp.Alpha.Of(best, a.sp.Iterations) / best,
	}
	if again && c.Workers != a.l.Workers() {
		return c, true // it will be looked at again later
	}
	r := a.result(choice, report.Live, chosen.told.OtherCPU, "")
	if !again {
		a.settled = time.Since(a.since)
		a.l.setup.opts.log.Info("nwt: worker count settled while training", "workers", r.Workers, "reason", r.Reason)
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
	a.l.setup.opts.log.Info("nwt: tuning the worker count again", "workers", a.l.Workers(), "why", why)
}
