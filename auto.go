package nwt

import (
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nwt-go/nwt/internal/human"
	"github.com/nwt-go/nwt/internal/search"
)

// auto tunes a loader while it feeds training. It measures between deliveries,
// the loop body's time included, and changes the worker count there.
//
//	measuring ──► settled ──► measuring …
//	    │            └ window after window: does training wait as measured?
//	    └ look after look: what does a batch take at a count (auto_look.go),
//	      and which count is next (auto_next.go)?
//
// A look is a visit to a count. While measuring, it observes each batch; once it has settled,
// each window of batches.
//
// Everything except the result belongs to the goroutine that iterates; a run hands
// it to the next run under Loader.mu.
type auto struct {
	l       *Loader
	sp      search.Space
	limit   memoryLimit
	least   time.Duration // of a look
	result  atomic.Pointer[Result]
	workers int // as set last
	settled bool

	// What was observed last.
	left     int  // batches until the next observation
	fresh    bool // a run has begun since
	last     time.Time
	lastWait time.Duration // counters.wait
	lastDone int           // places loaded ahead

	// While measuring.
	began    time.Time
	counts   counts
	skip     int   // batches to leave out, as they were begun at another count
	probe    probe // the look under way
	bodies   loopBodies
	warming  warmingUp
	tooLarge *RuledOut // what would have been measured next if memory allowed it

	// While settled.
	watch     watching
	every     int   // batches from one observation to the next
	since     probe // what was seen since it settled, or since that was last weighed
	unweighed int   // batches that since must have before it is weighed

	short shortRuns
}

// In a short run nearly all batches are the first or among the last. If run after run is
// short, runs are measured whole, and the worker count changes between them.
type shortRuns struct {
	poor     int // runs in a row in which few batches could be measured one by one
	longest  int // batches of the longest run that is measured whole
	previous int // batches of the run before
	useful   int // batches of this run that could be measured one by one

	// A run that is measured whole.
	whole   bool // this run is one
	began   time.Time
	wait    time.Duration // counters.wait when it began
	opening time.Duration // until its first batch
	wasCold bool          // workers were cold in it

	window interval // runs since the loader settled that aren't a window yet
}

// A watching is what a settled loader sees of its wait share.
type watching struct {
	expected   float64       // wait share of the choice as measured
	ignored    float64       // share of the time that alpha ignores
	time, wait time.Duration // of the window
	odd        int           // windows in a row that were off
	patience   int           // … after which it is tuned again
}

const (
	enoughLooks = 32               // in all, after which the loader settles on the choice
	poorRuns    = 3                // poor runs in a row, after which short runs are measured whole
	mostWhole   = 2 * probeBatches // a run of at most this many batches is poor if more than a quarter of them aren't useful; a longer one only if more than three quarters aren't: if runs are measured whole, a bad look lasts for a run

	windowBatches  = 64                     // of a window; more if they take less than …
	windowTime     = 200 * time.Millisecond // … this in all
	oddWindows     = 3                      // in a row
	oddWindowsMost = 48                     // at most, after tuning again and again changed nothing
	firstWeighed   = 4 * windowBatches      // batches of a settled loader after which they are weighed; twice as many each time
	otherBody      = 0.10                   // a window isn't weighed if its loop bodies differ by more than this share of its time
	waitMore       = 0.04                   // by which the wait share must have grown …
	waitLess       = 0.10                   // … or shrunk, to tune again
)

// live is the Strategy of what a loader found while training.
const live = "live"

// autoAlpha is the default alpha of tuning while training. It is small because
// workers that exist cost little, while time that training waits is lost.
var autoAlpha = search.Alpha{Total: math.MaxInt64, Share: 0.02}

func newAuto(l *Loader) *auto {
	o := l.opts
	a := &auto{l: l, limit: l.memoryLimit(), workers: l.Workers()}
	a.sp = search.Space{CPUs: o.cpus(), Max: maxWorkers, Alpha: o.alpha, Iterations: 100}
	if o.alpha == search.DefaultAlpha {
		a.sp.Alpha = autoAlpha
	}
	if o.iterations > 0 {
		a.sp.Iterations = o.iterations
	}
	if o.most >= 0 {
		a.sp.Max = o.most
	}
	a.least = max(probeTime, probeSteps*o.machine.ClockStep())
	l.deep.held.Store(true) // see startCold
	return a
}

// begin is called when a run has begun.
func (a *auto) begin(r *run) {
	a.left, a.fresh = 1, true
	s := &a.short
	batches := r.course.len()
	if batches == endless && s.previous > 0 {
		batches = s.previous
	}
	s.useful = 0
	if s.whole = s.poor >= poorRuns && batches <= s.longest; s.whole {
		s.began, s.wait = time.Now(), a.waited()
		a.last, a.lastWait, a.lastDone = s.began, s.wait, 0
	}
}

// ended is called when a run has ended without an error.
func (a *auto) ended(r *run) {
	a.short.previous = r.taken
	switch {
	case !a.short.whole && !a.settled:
		a.judge(r)
	case a.short.whole && !a.fresh && !a.l.byHand.Load():
		a.takeWhole(r)
	}
}

// judge notes whether a run was poor.
func (a *auto) judge(r *run) {
	s := &a.short
	poor := 4*s.useful < r.taken || 4*s.useful < 3*r.taken && r.taken <= mostWhole
	if !poor {
		s.poor = 0
		return
	}
	if s.poor++; s.poor >= poorRuns {
		if s.longest == 0 { // what was seen of parts of runs isn't compared with whole ones
			a.restart()
		}
		s.longest = max(s.longest, r.taken)
	}
}

// takeWhole takes in the end of a run that is measured whole. While measuring, its batches have
// been taken in already, except for the time until the first and after the last.
func (a *auto) takeWhole(r *run) {
	s := &a.short
	now, wait := time.Now(), a.waited()
	if !a.settled {
		i := interval{batches: 1, took: now.Sub(a.last) + s.opening, waited: wait - a.lastWait + s.opening}
		if a.warmsUp(i) || s.wasCold {
			a.probe, s.wasCold = probe{}, false
			return
		}
		a.measure(r, i)
		return
	}
	i := interval{batches: r.taken, took: now.Sub(s.began), waited: wait - s.wait}
	if a.warmsUp(i) {
		return
	}
	s.window = s.window.plus(i)
	if s.window.batches < windowBatches {
		return
	}
	i, s.window = s.window, interval{}
	if a.watch.waitChanged(i.took, i.waited) {
		a.again()
		return
	}
	a.weigh(i)
}

// delivered is called at each batch, before the loop body has it.
func (a *auto) delivered(r *run) {
	if a.left--; a.left <= 0 {
		a.observe(r)
	}
}

// waited is how long training has waited in all.
func (a *auto) waited() time.Duration { return time.Duration(a.l.counters.wait.Load()) }

// observe takes in what has passed since the last observation: a batch while measuring, a window
// of batches once the loader has settled.
func (a *auto) observe(r *run) {
	if a.l.byHand.Load() {
		a.left = math.MaxInt // SetWorkers was called, so the count stays
		a.l.deep.held.Store(false)
		return
	}
	now, wait := time.Now(), a.waited()
	i := interval{batches: 1, took: now.Sub(a.last), waited: wait - a.lastWait}
	fresh := a.fresh
	a.last, a.lastWait, a.fresh, a.left = now, wait, false, 1
	if a.short.whole {
		a.observeWhole(r, i, fresh)
		return
	}
	open, done, last := r.openAhead()
	i.gained, i.missing = done-a.lastDone, open*a.l.opts.batchSize-done
	a.lastDone = done
	if a.settled {
		a.observeSettled(r, i, fresh, last)
	} else {
		a.observeMeasuring(r, i, fresh, last)
	}
}

// observeMeasuring is observe while measuring. fresh tells that the batch is the first of a run,
// last that none is loaded behind it.
func (a *auto) observeMeasuring(r *run, i interval, fresh, last bool) {
	switch {
	case fresh:
		a.skip = 1 // the first batch starts workers up
		a.start(a.last)
	case last:
		a.skip = max(0, a.skip-1)
	case a.warmsUp(i):
		a.short.useful++
	case a.skip > 0:
		a.short.useful++
		a.skip--
	default:
		a.short.useful++
		a.measure(r, i)
	}
}

// observeSettled is observe once the loader has settled.
func (a *auto) observeSettled(r *run, i interval, fresh, last bool) {
	if a.warming.isCold() { // the first window begins once they are warm
		if !last {
			a.warmsUp(i)
		}
		a.fresh = true
		return
	}
	i.batches = a.every
	a.every = min(windowBatches, max(1, r.course.len()-r.taken)) // the last batch of a run ends a window too
	a.left = a.every
	switch {
	case fresh:
	case a.watch.waitChanged(i.took, i.waited):
		a.again()
	case !last:
		a.weigh(i)
	}
}

// observeWhole is observe in a run that is measured whole.
func (a *auto) observeWhole(r *run, i interval, fresh bool) {
	s := &a.short
	switch {
	case r.taken > s.longest && r.course.len() == endless: // it isn't short after all
		s.whole, s.poor, a.fresh, a.probe, a.since = false, 0, true, probe{}, probe{}
	case a.settled:
		a.left = max(1, s.longest+1-r.taken) // it is taken in when it has ended
	case fresh:
		s.opening = i.took
		a.start(s.began)
	default:
		s.wasCold = a.warmsUp(i) || s.wasCold
		a.add(i)
	}
}

// start begins measuring, unless it has begun already.
func (a *auto) start(now time.Time) {
	if a.began.IsZero() {
		a.began = now
		a.startCold()
	}
}

// measure adds a batch to the look. If the look then has enough, measure goes on to the next
// worker count.
func (a *auto) measure(r *run, i interval) {
	a.add(i)
	if a.enough() {
		a.conclude()
		a.proceed(r)
	}
}

// proceed changes to the next count to measure, or to the choice.
func (a *auto) proceed(r *run) {
	c := a.choose()
	next, more := a.next(c, r)
	if !more || a.counts.looks() >= enoughLooks {
		next = c.Workers
		a.settleOn(c)
	}
	if next != a.workers && a.l.tuneTo(next) {
		a.workers = next
		if a.startCold(); a.warming.isCold() {
			a.left = 1
		}
		a.skip, _, _ = r.openAhead()
		a.skip = min(a.skip, a.l.leastDepth()+1) // what else is loaded ahead shows in gained
	}
}

// settleOn ends measuring.
func (a *auto) settleOn(c search.Choice) {
	before := a.result.Load()
	r := a.report(c)
	a.result.Store(r)
	chosen := a.counts.at(c.Workers).sum
	best := float64(max(r.trial(r.Fastest).Mean, 1))
	w := watching{expected: float64(chosen.wait) / float64(max(chosen.all, 1)), ignored: a.sp.Alpha.Of(best, a.sp.Iterations) / best, patience: oddWindows}
	if before != nil && before.Workers == r.Workers {
		w.patience = min(2*a.watch.patience, oddWindowsMost)
	}
	a.watch, a.settled, a.left = w, true, windowBatches
	a.fresh = true // the next observation begins a window
	a.short.window = interval{}
	a.since, a.every, a.unweighed = probe{}, windowBatches, max(a.unweighed, firstWeighed)
	a.l.opts.log.Info("nwt: worker count settled while training", "workers", r.Workers, "reason", r.Reason)
}

// again starts measuring anew, from the present count.
func (a *auto) again() {
	a.l.opts.log.Info("nwt: training waits for data more or less than it did: tuning again",
		"workers", a.workers, "wait share then", a.watch.expected)
	a.restart()
}

func (a *auto) restart() {
	a.settled, a.counts, a.began = false, nil, a.last
	a.left, a.skip, a.probe = 1, 1, probe{}
	a.bodies.usual, a.warming.paid, a.warming.before = 0, 0, 0
}

// waitChanged takes in another interval, and tells whether the wait share has been
// off for long enough to tune again.
func (w *watching) waitChanged(took, waited time.Duration) bool {
	w.time, w.wait = w.time+took, w.wait+waited
	if w.time < windowTime {
		return false
	}
	share := float64(w.wait) / float64(w.time)
	w.time, w.wait = 0, 0
	if share > w.expected+max(waitMore, 2*min(w.ignored, waitLess)) || share < w.expected-waitLess {
		w.odd++
	} else {
		w.odd = 0
	}
	return w.odd >= w.patience
}

// weigh takes in a window of a settled loader. After a number of batches, twice as many each
// time, it adds all of them to what was measured: they show what looks are too short for.
func (a *auto) weigh(i interval) {
	c, p := a.counts.at(a.workers), &a.since
	if differs := i.body() - time.Duration(i.batches)*c.Step; differs.Abs() > time.Duration(otherBody*float64(i.took)) {
		return // a pause, or a step that isn't what it was
	}
	p.takes(i)
	if p.iterations >= a.unweighed {
		a.unweighed *= 2
		c.add(p.seen(a.l.opts.batchSize), c.CPU)
		*p = probe{}
		a.reconsider(c)
	}
}

// reconsider is called when the last look at c, the count of the settled loader, was a long one.
// If another count then seems faster, the loader tunes again. If the result was wrong about c,
// it is corrected.
func (a *auto) reconsider(c *count) {
	choice, shown := a.choose(), a.result.Load()
	mean := c.blocks[len(c.blocks)-1].Mean
	was := shown.trial(a.workers)
	switch {
	case a.seemsSlower(choice, mean):
		a.l.opts.log.Info("nwt: another worker count may be faster: tuning again", "workers", a.workers)
		a.restart()
		c.blocks, c.seen = c.blocks[len(c.blocks)-1:], c.seen[len(c.seen)-1:]
		c.takes(c.Step)
		a.counts = counts{c} // what was seen of other counts was too little, or is out of date
	case choice.Workers == a.workers && (mean < was.Low || mean > was.High):
		corrected := a.report(choice)
		corrected.Elapsed = shown.Elapsed
		a.result.Store(corrected)
	}
}

// seemsSlower tells whether the settled loader's count seems to be slower than another by more
// than alpha: than the fastest, by all that was seen; or than what the result shows of any
// other, by the mean of the last look alone. (The search may have taken a long look that
// contradicts the short ones for a stall.)
func (a *auto) seemsSlower(choice search.Choice, mean time.Duration) bool {
	exceeds := func(time, other float64) bool { return time > other+a.sp.Alpha.Of(other, a.sp.Iterations) }
	of := func(workers int) float64 {
		i := slices.IndexFunc(choice.Estimates, func(e search.Estimate) bool { return e.Workers == workers })
		return float64(choice.Estimates[i].Mean)
	}
	return exceeds(of(a.workers), of(choice.Fastest)) || slices.ContainsFunc(a.result.Load().Trials, func(t Trial) bool {
		return t.Workers != a.workers && exceeds(float64(mean), float64(t.High))
	})
}

// report is the choice with the figures behind it.
func (a *auto) report(c search.Choice) *Result {
	o := a.l.opts
	r := &Result{
		Workers: c.Workers, Fastest: c.Fastest, Alpha: c.Alpha, Iterations: a.sp.Iterations, Confidence: c.Confidence, Slower: c.Slower,
		Strategy: live, Device: o.device.String(), BatchSize: o.batchSize, BatchBytes: a.l.layout.bytes * o.batchSize,
		Step: true, Hardware: hardware(o.machine.CPUs()), Floor: a.counts.at(c.Workers).Step, Elapsed: time.Since(a.began),
	}
	for _, e := range c.Estimates {
		c := a.counts.at(e.Workers)
		t := c.trial(e, a.sp.Iterations)
		t.Low, t.High = widened(t, 2*c.bodyError)
		r.Trials = append(r.Trials, t)
	}
	if a.tooLarge != nil {
		r.RuledOut = []RuledOut{*a.tooLarge}
	}
	r.Reason = r.reason(c)
	if r.Confidence < unsure {
		r.Warnings = append(r.Warnings, fmt.Sprintf("the choice is not sure: another run would make it in %s of cases", human.Share(r.Confidence)))
	}
	r.Advice = a.l.advice(r, a.limit, 0, false)
	return r
}

// widened is the trial's interval if its step may be longer or shorter by margin, in
// nanoseconds. The search doesn't know of this error: what the bodies of all counts share decides nothing
// between them.
func widened(t Trial, margin float64) (low, high time.Duration) {
	margin *= float64(t.Step) / float64(max(t.Mean, 1))
	low = t.Mean - time.Duration(math.Hypot(float64(t.Mean-t.Low), margin))
	return max(0, low), t.Mean + time.Duration(math.Hypot(float64(t.High-t.Mean), margin))
}

// Result says how the loader's worker count was found. With [NewTunedLoader] it is
// what [Tune] found. With WithAutoWorkers it is what the loader settled on last; the
// step of its trials is the loop body. It is nil if nothing has been found yet.
func (l *Loader) Result() *Result {
	if l.auto != nil {
		if r := l.auto.result.Load(); r != nil {
			return r
		}
	}
	return l.tuned
}
