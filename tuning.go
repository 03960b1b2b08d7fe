package nwt

import (
	"cmp"
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

// A tuning is a tuner's view of a loader, and what was measured of it. It belongs to whoever has the turn: the
// goroutine that iterates, or the tuner's loop.
type tuning struct {
	tuner   tune.Tuner
	l       *engine
	sp      search.Space
	limit   memlimit.Limit
	live    bool // what is measured is training, not a loop of Tune's
	inline  bool // 0 workers may be tried
	untuned int  // workers without tuning
	held    bool // the memory that these need is in use already, so they are never refused

	// What was found out.
	seen    []search.Series
	req     search.Request // what is measured
	trials  trials
	last    *trial                  // the one that was measured last
	refused map[int]report.RuledOut // worker counts that the search may not choose, and why
	reloads bool                    // samples are loaded a second time
	fewer   bool                    // workers have left, and what they have allocated may still be in the heap

	// What a run shows, in addition to the loader's counters.
	asked, delivered int
	previous         int   // batches delivered by earlier runs
	open             int   // open batches beyond the one in use
	waits            int64 // engine.now when the current wait began; 0: there is none
	dry              bool  // no batch is left to open or to load
	start            time.Time
	firstBatch       time.Duration // from the start of the run
	at               int64         // engine.now of the last delivery

	// The window that is being measured.
	trial *trial // nil between windows
	first bool   // it began before any sample was loaded a second time
	cpu   host.Meter
	began time.Time
	read  time.Duration // how long the stream had been read at its beginning
	peak  *host.Peak    // nil while training: memory is sampled there

	wake *time.Timer // interrupts waiting for a batch, so that the loop looks in between
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
	t.sp.Admit = t.admit
	return t
}

func (t *tuning) attach(l *engine) {
	t.l, l.tuning = l, t
	t.tuner.Target = t
	t.tuner.MinWindow = t.sp.MinWindow
	t.wake = time.AfterFunc(time.Hour, l.ring.Interrupt)
	t.wake.Stop()
}

// measure measures what next asks for, until it asks for nothing more: the choice is sure, all rounds are measured,
// or the time is over. before is called before each request, and may end a search earlier: after soonOver, or mostWindows
// while training. measure returns false if the program has set the count, or closed the loader.
func (t *tuning) measure(next search.Strategy, before func(*tuning) (over bool)) bool {
	for len(t.seen) == 0 || t.descend() {
		t.sp.Left = t.tuner.Left()
		if over := before(t); over {
			break
		}
		req, more := next(t.sp, t.seen)
		if !more {
			break
		}
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

// descend lets the search begin at fewer workers if nothing that was measured fits. It reports whether
// there is anything left to measure.
func (t *tuning) descend() bool {
	if t.fits() {
		return true
	}
	last := t.last.told.Workers
	t.sp.Start = last / 2
	t.inline = t.inline || t.sp.Start == 0 && !t.live // no other count is left
	return last > 0
}

// fits reports whether a count that may be chosen has been measured.
func (t *tuning) fits() bool {
	return slices.ContainsFunc(t.seen, func(s search.Series) bool {
		_, refused := t.refusal(s.Workers)
		return !refused
	})
}

// admit lets the search try and choose a worker count, or notes why it may not.
func (t *tuning) admit(workers int) bool {
	out, refused := t.refusal(workers)
	if refused {
		t.refused[workers] = out
	} else {
		delete(t.refused, workers)
	}
	return !refused
}

// refusal reports whether a worker count must not be tried or chosen, as far as is known, and why.
func (t *tuning) refusal(workers int) (out report.RuledOut, refused bool) {
	l := t.l
	switch {
	case t.held && workers == t.untuned:
		return out, false
	case workers == 0 && !t.inline && l.setup.streams() && l.setup.opts.mayInline():
		return report.Out(0, report.ForStream), true
	case workers == 0 && !t.inline:
		return report.Out(0, report.ForTimeout), true
	}
	why := t.limit.Predict(workers, t.trials.peaks())
	if more := l.depthOf(workers) - l.depth(); why == "" && more > 0 && t.trials.at(workers) == nil && t.last != nil {
		why = t.limit.Over(workers, report.Trial(t.last.told).Needs()+uint64(more)*uint64(l.setup.slotBytes))
	}
	return report.RuledOut{Workers: workers, Code: report.ForMemory, Reason: why}, why != ""
}

// beginWindow begins to measure what package tune doesn't: memory and CPUs.
func (t *tuning) beginWindow() {
	t.release()
	if t.fewer { // else it would be charged to this count, and memory would seem not to grow with workers
		debug.FreeOSMemory()
		t.fewer = false
	}
	if !t.live {
		t.peak = host.StartPeak()
	}
	if t.trial = t.trials.at(t.req.Workers); t.trial == nil {
		t.trial = &trial{told: Trial{Workers: t.req.Workers, PeakExact: !t.live, OtherCPU: -1}}
	}
	t.first = !t.live && !t.reloads
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
	tr, l, b := t.trial, t.l, w.Block
	t.trial = nil
	use, took := t.cpu.Used(), time.Since(t.began)
	b.CPU, b.Queued = tr.use(use, took, l.setup.opts, float64(l.counters.reading.Shown()-t.read)/float64(max(1, took)))
	rss, exact := host.Memory().RSS, false
	if t.peak != nil {
		rss, exact = t.peak.Stop()
		t.peak = nil
	}
	if tr.windows == 0 { // reading it again in each window would take too long
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
			tr.told.FirstBatch = t.firstBatch
		}
		t.trials = append(t.trials, tr)
	}
	t.last = tr
	if s := t.saw(w.Workers, b); t.first {
		s.First++
	}
}

// saw adds what was measured of a count, and returns all that was measured of it.
func (t *tuning) saw(workers int, b search.Block) *search.Series {
	i := slices.IndexFunc(t.seen, func(s search.Series) bool { return s.Workers == workers })
	if i < 0 {
		i, t.seen = len(t.seen), append(t.seen, search.Series{Workers: workers})
	}
	t.seen[i].Blocks = append(t.seen[i].Blocks, b)
	return &t.seen[i]
}

// A trial holds what was measured at one worker count.
type trial struct {
	told                                    Trial
	windows                                 int                 // that were measured
	mean, wait, transfer, step              average             // over the batches
	cpu, collector, queued, others, reading average             // over the time
	helpers                                 uint64              // memory of the processes that load for the dataset
	took                                    durations.Histogram // of the iterations
}

// add adds a window.
func (t *trial) add(w tune.Window) {
	t.windows++
	b := w.Block
	per := func(a *average, one time.Duration) time.Duration {
		return time.Duration(math.Round(a.add(float64(one), w.Weight)))
	}
	t.told.Mean, t.told.Wait, t.told.Transfer, t.told.Step = per(&t.mean, b.Mean), per(&t.wait, b.Wait-w.Transfer), per(&t.transfer, w.Transfer), per(&t.step, b.Mean-b.Wait)
	t.told.Iterations = max(1, int(math.Round(t.mean.weight)))
	t.told.Median, t.told.P99 = t.took.Quantile(0.5), t.took.Quantile(0.99)
}

// use adds what a window used of the machine, and returns the shares of the CPUs that it used and
// waited for.
func (t *trial) use(u host.Use, took time.Duration, o *options, reading float64) (own, queued float64) {
	cpus, weight := o.machine.CPUs(), float64(max(took, 1))
	share := func(used float64) float64 { return cpus.Share(used, o.ranks(), o.cpus()) }
	own, queued = u.Own/cpus.Mine(o.ranks(), o.cpus()), share(u.Waiting)
	t.queued.add(queued, weight)
	t.told.CPU = t.cpu.add(min(1, own), weight)
	t.told.CollectorCPU = t.collector.add(share(u.Collector), weight)
	t.told.Reading = t.reading.add(min(1, reading), weight)
	if u.OthersKnown {
		t.told.OtherCPU = min(t.others.add(cpus.OthersShare(u.Others, o.ranks(), o.cpus()), weight), 1-t.told.CPU)
	}
	return own, queued
}

// An average is a weighted mean.
type average struct{ sum, weight float64 }

// add adds a value, and returns the mean so far.
func (a *average) add(value, weight float64) float64 {
	a.sum, a.weight = a.sum+value*weight, a.weight+weight
	return a.sum / a.weight
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
		n += one.windows
	}
	return n
}

// peaks returns how much memory the counts need.
func (t trials) peaks() []memlimit.Peak {
	out := make([]memlimit.Peak, len(t))
	for i, one := range t {
		out[i] = memlimit.Peak{Workers: one.told.Workers, Bytes: report.Trial(one.told).Needs()}
	}
	return out
}

// quickest returns the shortest time per batch so far.
func (t trials) quickest() time.Duration {
	best := time.Duration(math.MaxInt64 / 1024)
	for _, one := range t {
		best = min(best, one.told.Mean)
	}
	return best
}

// resume is called when a run has begun.
func (t *tuning) resume() {
	t.previous, t.asked = t.delivered, t.delivered+1
	t.open, t.waits, t.dry = 0, 0, false
	t.l.counters.loaded.Store(int64(t.previous) * wholeBatch) // what was left of the last run is gone
	t.at, t.start = 0, time.Now()
	t.tuner.Resume()
	t.wake.Reset(wakeSettled)
}

// took is called when a run delivers a batch, which is its taken-th. show shows which batches are ahead.
func (t *tuning) took(taken int, show func()) {
	t.delivered = t.previous + taken
	t.asked = t.delivered
	if t.delivered-t.previous == 1 {
		t.firstBatch = time.Since(t.start)
	}
	if t.tuner.Skip() {
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
	switch {
	case delivered || t.tuner.Over():
	case t.tuner.Measures():
		t.wake.Reset(wakeEvery)
	default:
		t.wake.Reset(wakeSettled)
	}
}

const (
	wakeEvery   = 10 * time.Millisecond
	wakeSettled = time.Second // once the loader has settled
)

// ended is called when a run has ended by itself.
func (t *tuning) ended() {
	l := t.l
	if n := t.delivered - t.previous; n < shortRun && t.live && t.tuner.Measures() && l.setup.once.First("WithAutoWorkers") {
		l.setup.opts.log.Info("nwt: so short a run may not be enough to tune while training: Epochs makes one run of many epochs, and Tune measures before training", "batches", n, "at least", shortRun)
	}
}

// shortRun is how many batches a run must have: those of a shorter one are nearly all at its beginning or its end.
const shortRun = 5

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
func (t *tuning) Cold() (samples int, beginning bool) { return t.l.cold() }

// InHand implements tune.Target.
func (t *tuning) InHand() float64 {
	l := t.l
	per := float64(l.epochOrder.Load().perBatch)
	return float64(max(1, l.Workers())) * min(float64(l.claimSize()), per) / per
}

// auto tunes a loader while it feeds training: it measures the training loop that takes the batches.
type auto struct {
	tuning  *tuning
	since   time.Time     // since when it has measured
	settled time.Duration // how long it took to settle
}

const (
	mostWindows = 48              // the number of windows after which a loader settles on the choice, sure or not
	oddWindows  = 3               // successive windows in which training waits more, or less, that let it search again …
	oddMost     = 48              // … and the most of them: they double …
	soon        = 3 * time.Minute // … with each search that follows the one before within this time; oddMost windows take less
	weighFirst  = 256             // batches after which what they show is weighed, at first
)

func newAuto(l *engine) {
	o := l.setup.opts
	t := l.setup.newTuning(o.space(l.Workers(), true), l.setup.memoryLimit())
	t.live, t.held = true, o.maxMemory == 0
	t.attach(l)
	t.tuner.Loop = (&auto{tuning: t}).run
	t.tuner.Start(0)
}

// run searches, settles, and watches the loader until it has to search again.
func (a *auto) run() {
	t := a.tuning
	for weighAt, patience := weighFirst, oddWindows; ; {
		a.since = time.Now()
		earlier := t.trials.windows()
		if !t.measure(search.Greedy, func(t *tuning) (over bool) { return t.trials.windows()-earlier >= mostWindows }) {
			return
		}
		workers, normal, ok := a.settle(false)
		if !ok || !t.tuner.Resize(workers) {
			return
		}
		settled := time.Now()
		for why := ""; why == ""; {
			b, odd, ok := t.tuner.Watch(normal, patience, weighAt)
			switch {
			case !ok:
				return
			case odd:
				why, t.seen, t.trials = "training waits for data more or less than it did", nil, nil
			default:
				t.saw(workers, b)
				var better int
				if better, normal, ok = a.settle(true); !ok {
					return
				}
				if weighAt *= 2; better != workers {
					why, t.seen = "another worker count may be faster", []search.Series{{Workers: workers, Blocks: []search.Block{b}}}
				}
			}
			if why != "" {
				t.l.setup.opts.log.Info("nwt: tuning the worker count again", "workers", workers, "why", why)
			}
		}
		if patience = min(2*patience, oddMost); time.Since(settled) > soon {
			patience = oddWindows
		}
	}
}

// settle chooses, when there is nothing more to measure, and again when a loader that has settled has been measured
// further. The result is published unless the choice has changed meanwhile.
func (a *auto) settle(again bool) (workers int, normal tune.Normal, ok bool) {
	t, l := a.tuning, a.tuning.l
	if len(t.seen) == 0 {
		return 0, normal, false // memory allows no other count
	}
	sp, over := t.sp, ""
	if !t.fits() {
		fewest := slices.MinFunc(t.seen, func(a, b search.Series) int { return cmp.Compare(uint(a.Workers-1), uint(b.Workers-1)) }).Workers // 0 is last
		sp.Admit = func(workers int) bool { return workers == fewest || t.admit(workers) }
		out, _ := t.refusal(fewest)
		over = out.Reason
		delete(t.refused, fewest)
		if l.setup.once.First("WithMemoryLimit") {
			l.setup.opts.log.Warn("nwt: no worker count fits into memory: the loader keeps the fewest workers", "workers", fewest, "why", over)
		}
	}
	c := search.Choose(sp, t.seen)
	chosen, fastest := t.trials.at(c.Workers).told, float64(max(t.trials.at(c.Fastest).told.Mean, 1))
	normal = tune.Normal{Mean: chosen.Mean, Wait: chosen.Wait + chosen.Transfer, Body: chosen.Step, Ignored: t.sp.Ignores(fastest) / fastest}
	if again && c.Workers != l.found.Load().Workers {
		return c.Workers, normal, true
	}
	r := t.result(c, chosen.OtherCPU, "")
	if !again {
		a.settled = time.Since(a.since)
		l.setup.opts.log.Info("nwt: worker count settled while training", "workers", r.Workers, "reason", r.Reason)
	}
	r.Elapsed = a.settled
	if over != "" {
		r.Warnings = append(r.Warnings, "no worker count fits into memory: "+over)
	}
	l.found.Store(r)
	return r.Workers, normal, true
}
