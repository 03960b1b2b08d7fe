package nwt

import (
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nwt-go/nwt/internal/host"
	"github.com/nwt-go/nwt/internal/human"
	"github.com/nwt-go/nwt/internal/search"
	"github.com/nwt-go/nwt/internal/stat"
)

// auto tunes a loader while it feeds training. It measures between deliveries,
// the loop body's time included, and changes the worker count there.
//
//	measuring ──► settled ──► measuring …
//	    └ count after count      └ watching the share of time spent waiting
//
// Everything except the result belongs to the goroutine that iterates; a run hands
// it to the next run under Loader.mu.
type auto struct {
	l       *Loader
	sp      search.Space
	limit   memoryLimit
	least   time.Duration // of a probe
	result  atomic.Pointer[Result]
	left    int // batches until the next look
	stretch int // batches from one look to the next while it is settled
	workers int // as set last
	settled bool

	// At the last look.
	fresh    bool // a run has begun since
	last     time.Time
	lastWait time.Duration
	lastDone int // places loaded ahead

	// In a short run nearly all batches are the first or among the last. If run after run
	// is short, runs are measured whole, and the worker count changes between them.
	short    bool
	poor     int           // runs in a row in which few batches could be measured one by one
	longest  int           // batches of the longest run that is measured whole
	useful   int           // batches of the run that could be measured one by one
	previous int           // batches of the last run
	opening  time.Duration // until the first batch
	wasCold  bool          // workers were cold in this run
	runBegan time.Time
	runWait  time.Duration // counters.wait at that time
	whole    probe         // runs since it settled that aren't a window yet

	// While measuring.
	began  time.Time
	skip   int // batches to leave out, as they were begun at another count
	counts counts
	probe  probe
	body   time.Duration // that a loop body ordinarily takes
	long   float64       // running share of the loop bodies that were pauses; pauses in a row count once
	paused bool          // the last loop body was a pause
	uneven bool          // pauses are so frequent that they are ordinary
	warm   warmth
	cold   func(batches int) int // see Loader.cold; nil: the workers are warm
	warmed int                   // batches since they began cold
	paid   float64               // what warming up has cost, in batches at the best count
	fewest int                   // the fewest newcomers since workers began cold, see Loader.newcomers
	before float64               // paid when workers began cold: waiting for newcomers isn't charged

	tooLarge  *RuledOut // what would have been measured next if memory allowed it
	watch     watching
	since     probe // what was seen since it settled, or since that was last weighed
	unweighed int   // batches that since must have before it is weighed
}

// A probe is the block that is being measured.
type probe struct {
	iterations int
	wait, body time.Duration
	bodies     int     // loop bodies; those of a stretch of batches count as one
	squares    float64 // sum of their squares, each divided by its number of batches
	gained     int     // how many more places are loaded ahead now than at its beginning
	missing    int     // places of open batches that aren't loaded now
	use        *meter
}

// A watching is what a settled loader sees of its wait share.
type watching struct {
	expected   float64       // wait share of the choice as measured
	time, wait time.Duration // of the window
	odd        int           // windows in a row that were off
	patience   int           // … after which it is tuned again
}

const (
	probeBatches = 16                   // of a probe; more if they take less than …
	probeTime    = 5 * time.Millisecond // … this in all
	probeSteps   = 20                   // … or than this many steps of a coarse clock
	probeMost    = 256                  // batches of a probe, unless the clock is coarse
	costly       = 3                    // a probe ends once it has lost as much time as this many batches take at the best count
	leastLoaded  = 0.5                  // a probe counts as having loaded at least this many batches
	besideGap    = 1.5                  // two counts must be apart by this factor to look between them
	fullCPU      = 1 / 1.5              // above this share of CPUs in use, a step upwards is half as many workers more: fewer hardly fill the rest
	enoughLooks  = 32                   // in all, after which the loader settles on the choice
	coldCosts    = 16                   // warm-up ends once it has cost as much time as this many batches take at the best count
	mostLooks    = 4                    // at a count that may be the best, though it is neither the choice nor the fastest
	leap         = 16                   // times as many workers that a step upwards may try
	poorRuns     = 3                    // poor runs in a row, after which short runs are measured whole
	mostWhole    = 2 * probeBatches     // a run of at most this many batches is poor if more than a quarter of them aren't useful; a longer one only if more than three quarters aren't: if runs are measured whole, a bad look lasts for a run
	pause        = 4                    // a loop body counts for at most this many times its ordinary duration: loading isn't charged for a checkpoint
	rarely       = 0.05                 // if more than this share of the loop bodies are pauses, pauses are ordinary
	longMemory   = 1. / 128             // weight of the latest loop body in long

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
	batches := r.course.len()
	if batches == endless && a.previous > 0 {
		batches = a.previous
	}
	a.useful = 0
	if a.short = a.poor >= poorRuns && batches <= a.longest; a.short {
		a.runBegan, a.runWait = time.Now(), time.Duration(a.l.counters.wait.Load())
		a.last, a.lastWait, a.lastDone = a.runBegan, a.runWait, 0
	}
}

// ended is called when a run has ended without an error.
func (a *auto) ended(r *run) {
	a.previous = r.taken
	switch {
	case a.settled || a.short:
	case 4*a.useful < r.taken, 4*a.useful < 3*r.taken && r.taken <= mostWhole:
		if a.poor++; a.poor >= poorRuns {
			if a.longest == 0 { // what was seen of parts of runs isn't compared with whole ones
				a.restart()
			}
			a.longest = max(a.longest, r.taken)
		}
	default:
		a.poor = 0
	}
	if !a.short || a.fresh || a.l.byHand.Load() {
		return
	}
	now, wait := time.Now(), time.Duration(a.l.counters.wait.Load())
	switch {
	case !a.settled:
		took, waited := now.Sub(a.last)+a.opening, wait-a.lastWait+a.opening
		if a.warmsUp(took, waited) || a.wasCold {
			a.probe, a.wasCold = probe{}, false
			return
		}
		a.probe.missing = 0
		a.add(took, waited, 0)
		if a.enough() {
			a.conclude()
			a.proceed(r)
		}
	case a.warmsUp(now.Sub(a.runBegan), wait-a.runWait):
	default:
		w := &a.whole
		w.iterations, w.wait, w.body = w.iterations+r.taken, w.wait+wait-a.runWait, w.body+now.Sub(a.runBegan)-(wait-a.runWait)
		if w.iterations < windowBatches {
			return
		}
		n, took, waited := w.iterations, w.wait+w.body, w.wait
		if *w = (probe{}); a.watch.waitChanged(took, waited, a.sp.Alpha) {
			a.again()
			return
		}
		a.since.missing = 0
		a.weigh(n, took, waited, 0)
	}
}

// lookInShort is look in a short run.
func (a *auto) lookInShort(r *run, took, waited time.Duration, fresh bool) {
	switch {
	case r.taken > a.longest && r.course.len() == endless: // it isn't short after all
		a.short, a.poor, a.fresh, a.probe, a.since = false, 0, true, probe{}, probe{}
	case a.settled:
		a.left = max(1, a.longest+1-r.taken) // it is looked at when it has ended
	case fresh:
		a.opening = took
		a.start(a.runBegan)
	default:
		a.wasCold = a.warmsUp(took, waited) || a.wasCold
		a.add(took, waited, 0)
	}
}

// start begins measuring, unless it has begun already.
func (a *auto) start(now time.Time) {
	if a.began.IsZero() {
		a.began = now
		a.startCold()
	}
}

// startCold prepares warmsUp if workers begin cold. Depth doesn't grow while they begin.
func (a *auto) startCold() {
	a.cold, a.warmed, a.fewest, a.before = nil, 0, math.MaxInt, a.paid
	if a.warm.starts(a.l, a.workers) {
		a.cold = a.l.cold(1)
	}
	a.l.deep.held.Store(a.cold != nil)
}

// warmsUp tells whether workers are cold: then a batch says nothing about the count. It adds
// to paid what the batch has cost. The time of WithWorkerInit and of a worker's first sample
// isn't charged.
func (a *auto) warmsUp(took, waited time.Duration) bool {
	if a.cold == nil {
		return false
	}
	if best := a.best(); a.body > 0 && !math.IsInf(best, 1) {
		a.paid += float64(waited+min(took-waited, pause*a.body))/best - 1
	}
	if now, begins := a.l.newcomers(); begins || now < a.fewest {
		a.fewest, a.paid = min(now, a.fewest), a.before
	}
	a.warmed++
	more := a.cold(a.warmed)
	switch a.skip = max(a.skip-1, more); {
	case a.paid > coldCosts:
		a.cold, a.skip = nil, 0
	case more == 0:
		a.cold = nil
	}
	a.l.deep.held.Store(a.cold != nil && a.fewest > 0)
	return true
}

// delivered is called at each batch, before the loop body has it.
func (a *auto) delivered(r *run) {
	if a.left--; a.left <= 0 {
		a.look(r)
	}
}

func (a *auto) look(r *run) {
	if a.l.byHand.Load() {
		a.left = math.MaxInt // SetWorkers was called, so the count stays
		a.l.deep.held.Store(false)
		return
	}
	now, wait := time.Now(), time.Duration(a.l.counters.wait.Load())
	took, waited, fresh := now.Sub(a.last), wait-a.lastWait, a.fresh
	a.last, a.lastWait, a.fresh, a.left = now, wait, false, 1
	if a.short {
		a.lookInShort(r, took, waited, fresh)
		return
	}
	open, done, last := r.openAhead()
	gained := done - a.lastDone
	a.lastDone = done
	missing := open*a.l.opts.batchSize - done
	if a.settled && a.cold != nil { // the first window begins once they are warm
		if !last {
			a.warmsUp(took, waited)
		}
		a.fresh = true
		return
	}
	if a.settled {
		batches := a.stretch
		a.stretch = min(windowBatches, max(1, r.course.len()-r.taken)) // the last batch of a run ends a window too
		a.left = a.stretch
		switch {
		case fresh:
		case a.watch.waitChanged(took, waited, a.sp.Alpha):
			a.again()
		case !last:
			a.since.missing = missing
			a.weigh(batches, took, waited, gained)
		}
		return
	}
	switch {
	case fresh:
		a.skip = 1 // the first batch starts workers up
		a.start(now)
	case last:
		// The last batches of a run: none is loaded behind them.
		a.skip = max(0, a.skip-1)
	case a.warmsUp(took, waited):
		a.useful++
	case a.skip > 0:
		a.useful++
		a.skip--
	default:
		a.useful++
		a.probe.missing = missing
		a.measure(r, took, waited, gained)
	}
}

// measure adds an iteration to the probe. If the probe then has enough, measure goes
// on to the next worker count.
func (a *auto) measure(r *run, took, waited time.Duration, gained int) {
	a.add(took, waited, gained)
	if a.enough() {
		a.conclude()
		a.proceed(r)
	}
}

// add adds an iteration to the probe.
func (a *auto) add(took, waited time.Duration, gained int) {
	p := &a.probe
	if p.use == nil {
		p.use = a.l.startMeter(a.l.opts.machine.StartCPU()) // only now, at the end of the first iteration: starting a meter takes a while
		a.last = time.Now()
	}
	body := took - waited
	paused := a.pauses(body)
	switch {
	case a.body == 0:
		a.body = body
	case body < a.body: // a slow first step is soon forgotten
		a.body -= (a.body - body) / 2
	case paused:
		body, gained = pause*a.body, min(gained, 0) // what was loaded in the rest of the body says nothing
		a.body += (body - a.body) / 8
	default:
		a.body += (min(body, pause*a.body) - a.body) / 8
	}
	p.takes(1, waited, body, gained)
}

// pauses tells whether a loop body is a pause, such as a checkpoint. If pauses are frequent,
// they are ordinary and count in full: a step may wait for the device now and then. Pauses in a
// row count once: if all bodies become longer, none is a pause, but a.body needs a few of them
// to follow.
func (a *auto) pauses(body time.Duration) bool {
	is, counts := a.body > 0 && body > pause*a.body, 0.0
	if is && !a.paused {
		counts = 1
	}
	a.paused = is
	if a.long += (counts - a.long) * longMemory; a.long > rarely && !a.uneven {
		a.uneven, a.counts = true, nil // what was seen so far left pauses out
	}
	return is && !a.uneven
}

// takes adds batches to the probe.
func (p *probe) takes(batches int, waited, body time.Duration, gained int) {
	p.iterations += batches
	p.wait, p.body, p.gained = p.wait+waited, p.body+body, p.gained+gained
	p.bodies++
	p.squares += float64(body) * float64(body) / float64(batches)
}

// enough tells whether the probe is long enough, or has cost too much.
func (a *auto) enough() bool {
	p := &a.probe
	all := p.wait + p.body
	wave := a.l.inHand(a.workers)
	loaded := int(p.loaded(a.l.opts.batchSize))
	mean, n := p.outcome(a.l.opts.batchSize)
	if a.climbing() {
		// The count is far too low, and that is all that matters here.
		if min(p.iterations, loaded) >= 2*wave && mean > 2*p.body/time.Duration(p.iterations) && all > a.least {
			return true
		}
	}
	best := a.best()
	lost := float64(all) - float64(p.iterations)*best
	if a.uneven { // else looks would end at pauses, and contain too many of them
		lost = min(lost, float64(p.wait))
	}
	if p.iterations >= wave && lost > costly*best {
		return true
	}
	if loaded < wave || max(p.iterations, loaded) < max(probeBatches, fewestWaves*wave) {
		return false
	}
	return time.Duration(n)*mean >= a.least || a.least == probeTime && p.iterations >= probeMost
}

// climbing tells whether the probe is at the highest count so far.
func (a *auto) climbing() bool {
	return !slices.ContainsFunc(a.counts, func(c *count) bool { return c.Workers >= a.workers })
}

// best is the quickest iteration of any count so far, in nanoseconds.
func (a *auto) best() float64 {
	best := math.Inf(1)
	for _, c := range a.counts {
		best = min(best, search.Quickest(c.blocks))
	}
	return best
}

// outcome is what a batch takes as far as the probe tells, and how many batches tell
// it. In the long run a batch takes as long as its loading or its loop body, whichever
// is longer. So what counts is how much was loaded meanwhile, not how much was used:
// what had been loaded before hides slow loading, and while training waits for one
// slow sample, others may be loaded behind it.
func (p *probe) outcome(batchSize int) (mean time.Duration, batches int) {
	body := p.body / time.Duration(p.iterations)
	loaded := p.loaded(batchSize)
	if loading := float64(p.wait+p.body) / max(loaded, leastLoaded); loading > float64(body) {
		return time.Duration(loading), max(1, int(math.Ceil(loaded)))
	}
	return body, p.iterations
}

// loaded is how many batches' places were loaded during the probe. If depth has shrunk, the
// places given up with it are neither loaded nor missing: their loss isn't slow loading.
func (p *probe) loaded(batchSize int) float64 {
	return float64(p.iterations) + float64(max(p.gained, -p.missing))/float64(batchSize)
}

// weigh takes in a stretch of batches of a settled loader. After a number of batches, twice as
// many each time, it adds all of them to what was measured: they show what looks are too short
// for. If another count then seems faster, the loader tunes again.
func (a *auto) weigh(batches int, took, waited time.Duration, gained int) {
	c, p := a.counts.at(a.workers), &a.since
	body := took - waited
	if other := body - time.Duration(batches)*c.Step; other.Abs() > time.Duration(otherBody*float64(took)) {
		return // a pause, or a step that isn't what it was
	}
	p.takes(batches, waited, body, gained)
	if p.iterations < a.unweighed {
		return
	}
	a.unweighed *= 2
	c.add(p.seen(a.l.opts.batchSize), c.CPU)
	*p = probe{}

	choice, shown := a.choose(), a.result.Load()
	mean := c.blocks[len(c.blocks)-1].Mean
	of := func(workers int) float64 {
		i := slices.IndexFunc(choice.Estimates, func(e search.Estimate) bool { return e.Workers == workers })
		return float64(choice.Estimates[i].Mean)
	}
	slower := of(a.workers) > of(choice.Fastest)+a.sp.Alpha.Of(of(choice.Fastest), a.sp.Iterations)
	for _, t := range shown.Trials { // Choose may have taken a long stretch that contradicts the looks for a stall
		slower = slower || t.Workers != a.workers && float64(mean) > float64(t.High)+a.sp.Alpha.Of(float64(t.High), a.sp.Iterations)
	}
	was := shown.trial(a.workers)
	switch {
	case slower:
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

// A stretch is what batches of a self-tuning loader took.
type stretch struct {
	mean       time.Duration // per batch, see probe.outcome
	batches    int           // behind mean
	loading    time.Duration // per batch that was loaded; 0: training hardly waited
	body       time.Duration // mean of the loop bodies
	iterations int           // behind body
	bodies     int           // behind body, if those of a stretch of batches count as one
	spread     float64       // sum of the squares by which they differ from body, weighted by batches
}

// seen makes a stretch of the probe.
func (p *probe) seen(batchSize int) stretch {
	s := stretch{body: p.body / time.Duration(p.iterations), iterations: p.iterations, bodies: p.bodies}
	if s.mean, s.batches = p.outcome(batchSize); s.mean > s.body {
		s.loading = s.mean
	}
	s.spread = max(0, p.squares-float64(p.body)*float64(p.body)/float64(p.iterations))
	return s
}

// add adds a stretch to what is known of the count.
func (c *count) add(s stretch, cpu float64) {
	c.seen = append(c.seen, s)
	c.blocks = append(c.blocks, search.Block{Round: -1, Iterations: s.batches, Mean: s.mean, CPU: cpu})
	c.takes(s.body)
}

// takes works out what the count takes with loop bodies of the given duration. If training
// hardly waited in a stretch, a batch takes as long as the body, whatever bodies the stretch
// met. If it waited, a batch takes as long as loading, but waits no longer than was seen.
func (c *count) takes(body time.Duration) {
	c.sum, c.Iterations = iteration{}, 0
	for i, s := range c.seen {
		mean := body
		if s.loading > 0 {
			mean = min(max(s.loading, body), body+s.loading-s.body)
		}
		c.blocks[i].Mean = mean
		c.Iterations += s.batches
		times := time.Duration(s.batches)
		c.sum = c.sum.plus(iteration{all: times * mean, wait: times * (mean - body), step: times * body})
	}
	c.average()
}

// choose chooses by what was seen so far.
func (a *auto) choose() search.Choice {
	a.counts.evenBodies()
	return search.Choose(a.sp, a.counts.series())
}

// evenBodies removes chance differences between the counts' loop bodies. Steps vary, but not
// because of the workers, unless both want the same CPUs. So all counts get the bodies' common
// mean. A count keeps only what differs by more than chance explains (by two standard errors;
// DerSimonian & Laird, 1986). Chance is how bodies vary within a stretch, or how a count's
// stretches vary, whichever is more.
func (c counts) evenBodies() {
	body, batches := make([]float64, len(c)), make([]float64, len(c))
	var within, bodies, between, stretches float64
	for i, one := range c {
		one.bodyError = 0
		for _, s := range one.seen {
			batches[i] += float64(s.iterations)
			body[i] += float64(s.iterations) * float64(s.body)
			within, bodies = within+s.spread, bodies+float64(s.bodies-1)
		}
		body[i] /= batches[i]
		for _, s := range one.seen {
			between += float64(s.iterations) * math.Pow(float64(s.body)-body[i], 2)
		}
		stretches += float64(len(one.seen) - 1)
	}
	variance := max(within/max(bodies, 1), between/max(stretches, 1)) // of one body
	if variance == 0 {
		return
	}
	precision, all := make([]float64, len(c)), 0.0
	for i, n := range batches {
		precision[i] = n / variance
	}
	_, differ := stat.CommonMean(body, precision, 2*math.Sqrt(2*float64(len(c)-1)))
	for i, n := range batches {
		precision[i] = 1 / (differ + variance/n)
		all += precision[i]
	}
	common, _ := stat.CommonMean(body, precision, 0)
	for i, b := range body {
		own := differ * precision[i] // share that is the count's own
		c[i].takes(time.Duration(common + own*(b-common)))
		c[i].bodyError = math.Sqrt(own*variance/batches[i] + (1-own)*(1-own)/all)
	}
}

// conclude makes a block of the probe.
func (a *auto) conclude() {
	p := &a.probe
	c := a.counts.at(a.workers)
	if c == nil {
		c = newCount(a.workers)
		c.PeakExact = false // memory is only sampled, when a probe ends
		a.counts = append(a.counts, c)
	}
	o := a.l.opts
	own := c.use(p.use.usage(), p.wait+p.body, o, o.machine.CPUs())
	c.PeakRSS, c.Prefetch = max(c.PeakRSS, host.Memory().RSS), max(c.Prefetch, a.l.depth()-1)
	c.add(p.seen(o.batchSize), own)
	a.probe = probe{}
}

// proceed changes to the next count to measure, or to the choice.
func (a *auto) proceed(r *run) {
	c := a.choose()
	next, more := a.above(c)
	if !more {
		next, more = a.beside(c)
	}
	if !more {
		next, more = a.below(c, r)
	}
	if !more {
		next, more = a.doubtful(c)
	}
	more = more && a.counts.looks() < enoughLooks
	if !more {
		next = c.Workers
		a.settleOn(c)
	}
	if next != a.workers && a.l.tuneTo(next) {
		a.workers = next
		if a.startCold(); a.cold != nil {
			a.left = 1
		}
		a.skip, _, _ = r.openAhead()
		a.skip = min(a.skip, a.l.leastDepth()+1) // what else is loaded ahead shows in gained
	}
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
	for _, e := range c.Estimates {
		if top.Workers > 1 && 2*e.Workers <= top.Workers+1 && float64(e.Mean) <= mean+alpha {
			return 0, false
		}
	}
	times := min(leap, 1/max(min(at.CPU, fullCPU), 1.0/leap), 1.1*mean/max(body, mean/leap))
	workers = min(int(math.Ceil(float64(max(top.Workers, 1))*times)), a.sp.Max)
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
	return batch+float64(a.counts.at(1).Step) < 1.1*(best+a.sp.Alpha.Of(best, a.sp.Iterations))
}

// doubtful finds a count to measure once more. The choice, the fastest and the next count
// below the choice get two looks each, and up to five while the choice isn't sure. Any other
// count is measured again if it may be the best by what was seen of it: a single look may have
// fallen into a bad moment.
func (a *auto) doubtful(c search.Choice) (workers int, found bool) {
	fewest := 2
	if c.Confidence < search.SureAt {
		fewest = 5
	}
	sure := fewest
	best := a.best()
	worth := best - a.sp.Alpha.Of(best, a.sp.Iterations)
	promise := time.Duration(math.MaxInt64)
	for i, e := range c.Estimates {
		near := i+1 < len(c.Estimates) && c.Estimates[i+1].Workers == c.Workers && float64(e.Mean) < 1.25*best
		seen := len(a.counts.at(e.Workers).blocks)
		switch {
		case e.Workers == c.Workers || e.Workers == c.Fastest || near:
			if seen < fewest {
				workers, fewest, found, promise = e.Workers, seen, true, 0
			}
		case promise > 0 && seen < mostLooks && seen < sure && float64(e.Low) < worth && e.Mean < promise:
			workers, found, promise = e.Workers, true, e.Mean
		}
	}
	return workers, found
}

// settleOn ends measuring.
func (a *auto) settleOn(c search.Choice) {
	before := a.result.Load()
	r := a.report(c)
	a.result.Store(r)
	chosen := a.counts.at(c.Workers).sum
	w := watching{expected: float64(chosen.wait) / float64(max(chosen.all, 1)), patience: oddWindows}
	if before != nil && before.Workers == r.Workers {
		w.patience = min(2*a.watch.patience, oddWindowsMost)
	}
	a.watch, a.settled, a.left = w, true, windowBatches
	a.fresh = true // the next look begins a window
	a.whole = probe{}
	a.since, a.stretch, a.unweighed = probe{}, windowBatches, max(a.unweighed, firstWeighed)
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
	a.left, a.skip, a.body, a.paid, a.before, a.probe = 1, 1, 0, 0, 0, probe{}
}

// waitChanged takes in another stretch of batches, and tells whether the wait share has been
// off for long enough to tune again.
func (w *watching) waitChanged(took, waited time.Duration, ignored search.Alpha) bool {
	w.time, w.wait = w.time+took, w.wait+waited
	if w.time < windowTime {
		return false
	}
	share := float64(w.wait) / float64(w.time)
	w.time, w.wait = 0, 0
	if share > w.expected+max(waitMore, 2*min(ignored.Share, waitLess)) || share < w.expected-waitLess {
		w.odd++
	} else {
		w.odd = 0
	}
	return w.odd >= w.patience
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
	r.Advice = a.l.advice(r, a.limit, widening{}, 0, false)
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
