// Package tune measures worker counts during one run: while something iterates over batches, a Tuner
// changes the worker count and measures windows of the run. The package doesn't know about loaders.
//
//	warming ──► measuring ──► warming … ──► over
//	  │            └ a window               └ or watching, see runs.go
//	  └ until the new workers have begun
package tune

import (
	"math"
	"slices"
	"time"

	"github.com/nwt-go/nwt/internal/search"
	"github.com/nwt-go/nwt/internal/stat"
)

// Figures say what a run has done so far.
type Figures struct {
	Loaded    float64       // in batches: a batch of which half is loaded counts as half
	Missing   float64       // batches that are open ahead and aren't loaded
	Delivered int           // in batches
	Asked     int           // batches that the program has asked for
	Wait      time.Duration // time that it has waited for them, including the current wait …
	Transfer  time.Duration // … and the part of it that was spent on copies to the device
	Copied    int           // in batches …
	Copying   time.Duration // … and how long their copies took, hidden or not
	Dry       bool          // workers find nothing more to begin, because the run is about to end
}

// A Run is a loader as a Tuner sees it.
type Target interface {
	Figures() Figures
	SetWorkers(n int) bool // false: the tuner may no longer set the count
	// Cold returns how many samples new workers must still load, and whether one of them is preparing
	// itself or loads its first sample.
	Cold() (samples int, beginning bool)
	InHand() float64                    // batches that the workers are loading at a time
	Begin()                             // called when a window begins
	End(w Window) (cpu, queued float64) // called when it has ended; returns the shares of the CPUs that were in use, and waited for, during the window
	// Settle is called when there is nothing more to measure, and again when a loader that has settled
	// has been measured further. If it returns false, tuning is over; otherwise the loader continues with
	// the choice, and is watched.
	Settle(seen []search.Series, again bool) (c Choice, goesOn bool)
	Doubt(why string) // called when the choice is in doubt: tuning begins again
}

// A Window holds what was measured between two moments of a run.
type Window struct {
	Workers   int
	Delivered int // in batches
	Bodies    int // of the loop

	// These are per batch, as in the long run; Mean is the sum of the others.
	Mean, Wait, Transfer, Body time.Duration

	Parts  []stat.Part // Wait + Transfer of a few batches each
	Weight float64     // how many batches Mean represents
}

// A Tuner measures what Next asks for. It belongs to the goroutine that iterates.
type Tuner struct {
	Run   Target
	Next  func(seen []search.Series) (search.Request, bool)
	Least time.Duration // shortest time of a window

	ends    time.Time // when tuning ends; zero: there is no limit
	phase   phase
	skip    int // batches that Observe needn't look at
	seen    []search.Series
	req     search.Request
	workers int     // as set last
	resync  bool    // a run has begun: the next figures are compared with the next look
	short   short   // whether runs are measured whole
	watched watched // used while watching

	// These are values at the beginning of the phase, or of its part in this run.
	since  time.Time
	base   Figures
	latest look
	atTick float64 // Loaded at the last Tick

	// These are used while warming.
	ahead  float64 // batches that were loaded ahead when the count changed
	hand   float64 // batches that leaving workers were loading at that time
	cold   int     // samples that new workers must load …
	atCold float64 // … and Loaded when that last changed

	// These are used while measuring.
	sum    span // over earlier runs
	parts  []stat.Part
	cut    span // where the next part begins
	bodies bodies
}

type phase int

const (
	starting phase = iota
	warming
	measuring
	watching
	over
)

// A look holds the Figures at a time.
type look struct {
	at time.Time
	Figures
}

// A span says how much was done between two looks.
type span struct {
	took time.Duration
	Figures
}

func (s span) plus(t span, times float64) span {
	n, d := int(times), time.Duration(times)
	return span{s.took + d*t.took, Figures{
		Missing: s.Missing, Loaded: s.Loaded + times*t.Loaded, Delivered: s.Delivered + n*t.Delivered, Asked: s.Asked + n*t.Asked,
		Wait: s.Wait + d*t.Wait, Transfer: s.Transfer + d*t.Transfer, Copied: s.Copied + n*t.Copied, Copying: s.Copying + d*t.Copying,
	}}
}

// body returns how long the body of the loop took, per batch.
func (s span) body() time.Duration { return max(0, s.took-s.Wait) / time.Duration(max(s.Asked, 1)) }

// perBatch returns how long a batch takes in the long run, and how many batches this figure represents. A
// batch takes as long as loading it, copying it, or the body of the loop, whichever is longest: batches
// that were loaded before hide slow loading only for a while.
func (s span) perBatch() (mean time.Duration, weight float64) {
	mean, weight = s.body(), float64(s.Asked)
	if s.Copied > 0 {
		mean = max(mean, s.Copying/time.Duration(s.Copied))
	}
	// If everything that is open is loaded, except the batch that was opened last, there is no place for
	// more. Then fewer batches loaded than delivered doesn't mean slow loading.
	switch loaded := max(s.Loaded, float64(s.Delivered)-max(0, s.Missing)); {
	case s.full() || s.unclear():
	case loaded > 0:
		if loading := time.Duration(float64(s.took) / loaded); loading > mean {
			return loading, loaded
		}
	case s.Wait > 0:
		return mean, 0 // training waits for a batch that isn't loaded yet
	}
	return mean, weight
}

// perBatch returns how long a batch takes at the tuner's count. Without workers, nothing overlaps.
func (t *Tuner) perBatch(s span) (mean time.Duration, weight float64) {
	switch {
	case t.workers != 0:
		return s.perBatch()
	case s.Loaded <= 0:
		return s.body(), 0
	}
	return s.body() + time.Duration(float64(s.Wait)/s.Loaded), s.Loaded
}

// full reports whether training hardly waited, and will hardly wait if nothing changes.
func (s span) full() bool {
	return s.Delivered > 0 && s.Wait < s.took/hardly && s.Missing < 1.01
}

// unclear reports whether training hardly waited, but perhaps only because a batch was loaded before. If
// more than a tenth of a window was loaded before, it is clear: what was loaded in it gives the answer.
func (s span) unclear() bool {
	less := float64(s.Delivered) - s.Loaded
	return s.Wait < s.took/hardly && s.Missing >= 1.01 && 0.3 < less && less < min(1.5, float64(s.Delivered)/10)
}

const (
	patience    = 1. / 10 // share of search.DefaultTime that new workers are waited for
	longLook    = 1. / 60 // share of search.DefaultTime after which a few waves are enough
	manyWaves   = 4       // each worker has loaded this many claims, so a burst isn't decisive
	fewWaves    = 2       // … or this many, if they take three times a long look
	hardly      = 200     // training hardly waits if it waits for less than this part of the time
	unclearMost = 4       // if it isn't clear whether training waits, a window ends after this many times the batches wanted
	mostParts   = 12      // of a window
)

// Start begins tuning. It ends after limit; if limit is 0, there is no limit.
func (t *Tuner) Start(limit time.Duration) {
	if t.seen, t.workers = nil, -1; limit > 0 {
		t.ends = time.Now().Add(limit)
	}
}

// Left returns how much time is left. Run and Next may call it.
func (t *Tuner) Left(now time.Time) time.Duration {
	if t.ends.IsZero() {
		return math.MaxInt64
	}
	return max(0, t.ends.Sub(now))
}

// LeaveOut makes the window begin again, and gives tuning back the time of something that won't happen
// again.
func (t *Tuner) LeaveOut(took time.Duration) {
	t.resync = true
	if t.phase == measuring {
		t.sum, t.cut, t.parts = span{}, span{}, t.parts[:0]
	}
	if !t.ends.IsZero() {
		t.ends = t.ends.Add(took)
	}
}

// Seen returns everything that was measured.
func (t *Tuner) Seen() []search.Series { return t.seen }

// Round returns the round of the current window.
func (t *Tuner) Round() int { return t.req.Round }

// Settled reports whether nothing is being measured.
func (t *Tuner) Settled() bool { return t.phase >= watching }

// Skips reports whether the delivery of a batch needn't be observed.
func (t *Tuner) Skips() bool {
	t.skip--
	return t.skip > 0
}

// Observe is called when a batch was delivered. It returns true once tuning is over.
func (t *Tuner) Observe() (done bool) {
	t.skip = 1
	if t.short.whole {
		t.observeWhole()
	} else {
		t.look(time.Now(), true)
	}
	return t.phase == over
}

// Tick looks at the run while the program waits for a batch: a batch may take minutes, and its samples
// show the speed earlier. It returns true once tuning is over.
func (t *Tuner) Tick() (done bool) {
	now := time.Now()
	// Without workers, the time of a batch is known only when it comes.
	if t.short.whole || t.resync || t.phase >= watching || t.workers == 0 && (t.Left(now) > 0 || len(t.seen) == 0) {
		return t.phase == over
	}
	// Looks are taken right after samples have come, because the time between two samples shows nothing.
	loaded := t.Run.Figures().Loaded
	if loaded != t.atTick || t.Left(now) == 0 {
		t.look(now, false)
	}
	t.atTick = loaded
	return t.phase == over
}

// look reads how far the run has come.
func (t *Tuner) look(now time.Time, delivered bool) {
	f := t.Run.Figures()
	if !t.resync && !f.Dry {
		t.short.useful++
	}
	switch {
	case t.resync:
		t.resync = f.Dry
		t.since, t.base = now, f
		t.ahead = f.Loaded - float64(f.Delivered)
		t.bodies.began(now, f)
		if t.phase == starting {
			t.advance()
		}
	case f.Dry:
		t.pause()
	case t.phase == warming:
		if t.warm(now, f) {
			t.begin()
		}
	case t.phase == measuring:
		if before := t.bodies.look; delivered && t.bodies.pause(now, f) > 0 { // the pause isn't measured
			t.sum = t.done(before.at, before.Figures)
			t.since, t.base = now, f
		} else {
			t.measure(now, f)
		}
	case t.phase == watching:
		t.watch(now, f)
	}
	t.latest = look{now, f}
}

// done returns what was done in the phase.
func (t *Tuner) done(now time.Time, f Figures) span {
	s := t.sum.plus(span{now.Sub(t.since), f}, 1).plus(span{0, t.base}, -1)
	s.Missing = f.Missing
	return s
}

// pause keeps, until the next run, what was measured up to the latest look: since then workers may have
// found nothing more to begin, or the program may have paused.
func (t *Tuner) pause() {
	if !t.latest.at.Before(t.since) {
		t.sum = t.done(t.latest.at, t.latest.Figures)
	}
	t.resync = true
}

// advance moves to the count that is measured next.
func (t *Tuner) advance() {
	req, more := t.Next(t.seen)
	if !more {
		t.settle()
		return
	}
	if t.req = req; req.Workers == t.workers {
		t.begin()
	} else {
		t.change(req.Workers)
	}
}

// change sets the worker count.
func (t *Tuner) change(workers int) {
	now, f := time.Now(), t.Run.Figures() // Next may have taken a while
	t.hand = 0
	if workers < t.workers {
		t.hand = t.Run.InHand()
	}
	if !t.Run.SetWorkers(workers) {
		t.phase = over
		return
	}
	t.phase, t.workers = warming, workers
	t.since, t.base, t.sum = now, f, span{}
	t.ahead = f.Loaded - float64(f.Delivered)
	t.cold, t.atCold = 0, f.Loaded
}

// warm reports whether a window may begin: the new workers have loaded some samples, but those that
// find nothing to load aren't waited for. Without workers, it waits until the batches that are ready have
// been delivered: nothing is loaded before.
func (t *Tuner) warm(now time.Time, f Figures) bool {
	done := t.done(now, f)
	if done.took >= time.Duration(patience*float64(search.DefaultTime)) || t.Left(now) == 0 {
		return true
	}
	cold, beginning := t.Run.Cold()
	if cold != t.cold || beginning {
		t.cold, t.atCold = cold, f.Loaded
	}
	hand := t.Run.InHand()
	through := float64(done.Delivered) >= t.ahead // the batches that were ready have been delivered
	switch {
	case through && done.Delivered > 0 && done.took >= search.WarmTime && done.Wait < done.took/hardly:
		return true // training doesn't wait for them
	case beginning:
		return false
	case cold > 0 && f.Loaded-t.atCold < 4*(hand+search.WarmBatches):
		return false
	case t.workers == 0 && !through:
		return false
	}
	return done.took >= search.WarmTime && done.Loaded >= t.hand && max(done.Loaded, float64(done.Delivered)) >= min(search.WarmBatches, hand)
}

// begin begins a window.
func (t *Tuner) begin() {
	t.phase = measuring
	t.sum, t.cut, t.parts = span{}, span{}, t.parts[:0]
	t.Run.Begin()
	t.since, t.base = time.Now(), t.Run.Figures() // beginning has taken a while
	t.bodies.began(t.since, t.base)
}

// measure continues a window.
func (t *Tuner) measure(now time.Time, f Figures) {
	all := t.done(now, f)
	t.part(all)
	_, weight := t.perBatch(all)
	over := t.Left(now) == 0 && len(t.seen) > 0
	if weight > 0 && (over || t.enough(all, now)) {
		t.end(all)
		t.advance()
	} else if over {
		t.advance() // the window shows nothing
	}
}

// part ends a part of the window if it is long enough.
func (t *Tuner) part(all span) {
	part := all.plus(t.cut, -1)
	mean, weight := t.perBatch(part)
	if weight >= max(1, float64(t.req.Iterations)/mostParts, t.Run.InHand()) && part.took >= t.Least/mostParts {
		t.parts = append(t.parts, stat.Part{Mean: float64(mean - part.body()), Weight: weight})
		t.cut = all
	}
}

// enough reports whether the window may end.
func (t *Tuner) enough(all span, now time.Time) bool {
	mean, weight := t.perBatch(all)
	waves := math.Inf(1) // waves of loading, if loading is the bottleneck
	if mean > all.body() {
		waves = all.Loaded / t.Run.InHand()
	}
	look := time.Duration(longLook * float64(search.DefaultTime))
	wanted, limit := float64(t.req.Iterations), float64(t.req.Limit)
	if least := manyWaves * t.Run.InHand(); least > wanted && waves < math.Inf(1) {
		wanted, limit = least, limit*least/wanted
	}
	switch {
	case weight <= 0 || all.unclear() && weight < unclearMost*wanted:
		return false
	case t.Left(now) == 0: // the first window
		return waves >= 1 && all.Delivered > 0
	case weight >= wanted:
		return all.took >= t.Least
	case limit > 0 && float64(all.took) >= limit && waves >= fewWaves:
		return true
	case all.took >= 3*look && waves >= fewWaves:
		return true
	}
	return all.took >= look && waves >= manyWaves && weight >= fewWaves
}

// end makes a block from the window.
func (t *Tuner) end(all span) {
	w := Window{Workers: t.workers, Delivered: all.Delivered, Bodies: all.Asked, Body: all.body(), Parts: t.parts}
	w.Mean, w.Weight = t.perBatch(all)
	if all.Delivered > 0 {
		w.Transfer = min(all.Transfer/time.Duration(all.Delivered), w.Mean-w.Body)
	}
	w.Wait = w.Mean - w.Body - w.Transfer
	b := w.block(t.req.Round)
	b.CPU, b.Queued = t.Run.End(w)
	t.add(b)
}

func (t *Tuner) add(b search.Block) {
	i := slices.IndexFunc(t.seen, func(s search.Series) bool { return s.Workers == t.workers })
	if i < 0 {
		i = len(t.seen)
		t.seen = append(t.seen, search.Series{Workers: t.workers})
	}
	t.seen[i].Blocks = append(t.seen[i].Blocks, b)
}

// block returns the window in the form that the search uses.
func (w Window) block(round int) search.Block {
	b := search.Block{Round: round, Iterations: max(1, int(math.Round(w.Weight))), Mean: w.Mean, Wait: w.Wait + w.Transfer, Bodies: w.Bodies}
	if len(w.Parts) > 1 {
		b.Parts = slices.Clone(w.Parts)
	}
	return b
}
