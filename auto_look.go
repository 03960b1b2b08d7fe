package nwt

import (
	"math"
	"slices"
	"time"

	"github.com/nwt-go/nwt/internal/host"
	"github.com/nwt-go/nwt/internal/search"
	"github.com/nwt-go/nwt/internal/stat"
)

// An interval is what passed between two observations.
type interval struct {
	batches      int
	took, waited time.Duration
	gained       int // how many more places are loaded ahead at its end than at its beginning
	missing      int // places of open batches that aren't loaded at its end
}

// body is how long the loop bodies took.
func (i interval) body() time.Duration { return i.took - i.waited }

// plus is i and then j, if nothing is loaded ahead at the ends.
func (i interval) plus(j interval) interval {
	return interval{batches: i.batches + j.batches, took: i.took + j.took, waited: i.waited + j.waited}
}

// A probe is the look that is under way.
type probe struct {
	iterations int
	wait, body time.Duration
	bodies     int     // loop bodies; those of an interval count as one
	squares    float64 // sum of their squares, each divided by its number of batches
	gained     int     // how many more places are loaded ahead now than at its beginning
	missing    int     // places of open batches that aren't loaded now
	use        *meter
}

// loopBodies is what is known of the loop body.
type loopBodies struct {
	usual  time.Duration // that one ordinarily takes; 0: not known
	pauses float64       // running share of those that were pauses; pauses in a row count once
	paused bool          // the last one was a pause
	uneven bool          // pauses are so frequent that they are ordinary
}

// A warmingUp is how far workers that began cold have come.
type warmingUp struct {
	warm    warmth
	cold    func(batches int) int // see Loader.cold; nil: the workers are warm
	batches int                   // since they began cold
	fewest  int                   // the fewest newcomers since then, see Loader.newcomers
	paid    float64               // what warming up has cost at all counts, in batches at the best count
	before  float64               // paid when they began cold: waiting for newcomers isn't charged
}

func (w *warmingUp) isCold() bool { return w.cold != nil }

const (
	probeBatches = 16                   // of a look; more if they take less than …
	probeTime    = 5 * time.Millisecond // … this in all
	probeSteps   = 20                   // … or than this many steps of a coarse clock
	probeMost    = 256                  // batches of a look, unless the clock is coarse
	farTooFew    = 2                    // a count is far too low if a batch takes more than this many times as long as the loop body …
	climbWaves   = 2                    // … over at least this many waves
	costly       = 3                    // a look ends once it has lost as much time as this many batches take at the best count
	leastLoaded  = 0.5                  // a look counts as having loaded at least this many batches
	coldCosts    = 16                   // warm-up ends once it has cost as much time as this many batches take at the best count
	pause        = 4                    // a loop body counts for at most this many times its ordinary duration: loading isn't charged for a checkpoint
	rarely       = 0.05                 // if more than this share of the loop bodies are pauses, pauses are ordinary
	pauseMemory  = 1. / 128             // weight of the latest loop body in loopBodies.pauses
)

// startCold prepares warmsUp if workers begin cold. Depth doesn't grow while they begin.
func (a *auto) startCold() {
	w := &a.warming
	w.cold, w.batches, w.fewest, w.before = nil, 0, math.MaxInt, w.paid
	if w.warm.starts(a.l, a.workers) {
		w.cold = a.l.cold(1)
	}
	a.l.deep.held.Store(w.isCold())
}

// warmsUp tells whether workers are cold: then a batch says nothing about the count. It adds
// to paid what the batch has cost. The time of WithWorkerInit and of a worker's first sample
// isn't charged.
func (a *auto) warmsUp(i interval) bool {
	w := &a.warming
	if !w.isCold() {
		return false
	}
	if best, usual := a.best(), a.bodies.usual; usual > 0 && !math.IsInf(best, 1) {
		w.paid += float64(i.waited+min(i.body(), pause*usual))/best - 1
	}
	if now, begins := a.l.newcomers(); begins || now < w.fewest {
		w.fewest, w.paid = min(now, w.fewest), w.before
	}
	w.batches++
	more := w.cold(w.batches)
	a.skip = max(a.skip-1, more)
	if w.paid > coldCosts {
		w.cold, a.skip = nil, 0
	} else if more == 0 {
		w.cold = nil
	}
	a.l.deep.held.Store(w.isCold() && w.fewest > 0)
	return true
}

// add adds a batch to the look.
func (a *auto) add(i interval) {
	p := &a.probe
	if p.use == nil {
		p.use = a.l.startMeter(a.l.opts.machine.StartCPU()) // only now, at the end of the first batch: starting a meter takes a while
		a.last = time.Now()
	}
	b, body := &a.bodies, i.body()
	paused := a.pauses(body)
	switch {
	case b.usual == 0:
		b.usual = body
	case body < b.usual: // a slow first step is soon forgotten
		b.usual -= (b.usual - body) / 2
	case paused:
		i.took, i.gained = i.waited+pause*b.usual, min(i.gained, 0) // what was loaded in the rest of the body says nothing
		b.usual += (i.body() - b.usual) / 8
	default:
		b.usual += (min(body, pause*b.usual) - b.usual) / 8
	}
	p.takes(i)
}

// pauses tells whether a loop body is a pause, such as a checkpoint. If pauses are frequent,
// they are ordinary and count in full: a step may wait for the device now and then. Pauses in a
// row count once: if all bodies become longer, none is a pause, but it takes a few of them
// until that shows.
func (a *auto) pauses(body time.Duration) bool {
	b := &a.bodies
	is, counts := b.usual > 0 && body > pause*b.usual, 0.0
	if is && !b.paused {
		counts = 1
	}
	b.paused = is
	if b.pauses += (counts - b.pauses) * pauseMemory; b.pauses > rarely && !b.uneven {
		b.uneven, a.counts = true, nil // what was seen so far left pauses out
	}
	return is && !b.uneven
}

// takes adds an interval to the probe.
func (p *probe) takes(i interval) {
	body := i.body()
	p.iterations += i.batches
	p.wait, p.body = p.wait+i.waited, p.body+body
	p.gained, p.missing = p.gained+i.gained, i.missing
	p.bodies++
	p.squares += float64(body) * float64(body) / float64(i.batches)
}

// enough tells whether the look is long enough, or has cost too much.
func (a *auto) enough() bool {
	p := &a.probe
	wave := a.l.inHand(a.workers)
	loaded := int(p.loaded(a.l.opts.batchSize))
	mean, n := p.outcome(a.l.opts.batchSize)
	switch body := p.body / time.Duration(p.iterations); {
	case a.climbing() && mean > farTooFew*body && min(p.iterations, loaded) >= climbWaves*wave && p.wait+p.body > a.least:
		return true // the count is far too low, and that is all that matters here
	case p.iterations >= wave && a.lost() > costly*a.best():
		return true
	case loaded < wave || max(p.iterations, loaded) < max(probeBatches, fewestWaves*wave):
		return false
	}
	return time.Duration(n)*mean >= a.least || a.least == probeTime && p.iterations >= probeMost
}

// lost is how much longer the look has taken than its batches take at the best count, in
// nanoseconds.
func (a *auto) lost() float64 {
	p := &a.probe
	lost := float64(p.wait+p.body) - float64(p.iterations)*a.best()
	if a.bodies.uneven { // else looks would end at pauses, and contain too many of them
		lost = min(lost, float64(p.wait))
	}
	return lost
}

// climbing tells whether the look is at the highest count so far.
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
// DerSimonian & Laird, 1986).
func (c counts) evenBodies() {
	body, batches := c.meanBodies()
	variance := c.bodyVariance(body)
	for _, one := range c {
		one.bodyError = 0
	}
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

// meanBodies is the mean loop body of each count, in nanoseconds, and of how many batches.
func (c counts) meanBodies() (body, batches []float64) {
	body, batches = make([]float64, len(c)), make([]float64, len(c))
	for i, one := range c {
		for _, s := range one.seen {
			batches[i] += float64(s.iterations)
			body[i] += float64(s.iterations) * float64(s.body)
		}
		body[i] /= batches[i]
	}
	return body, batches
}

// bodyVariance is the variance of one loop body by chance: how bodies vary within a stretch, or
// how a count's stretches vary about its mean body, whichever is more.
func (c counts) bodyVariance(body []float64) float64 {
	var within, bodies, between, stretches float64
	for i, one := range c {
		for _, s := range one.seen {
			within, bodies = within+s.spread, bodies+float64(s.bodies-1)
			between += float64(s.iterations) * math.Pow(float64(s.body)-body[i], 2)
		}
		stretches += float64(len(one.seen) - 1)
	}
	return max(within/max(bodies, 1), between/max(stretches, 1))
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
