// Package tune measures windows of one run at changing worker counts. Something iterates over batches: training, or
// a loop of Tune's own. Beside it goes a function that reads as a loop, which changes the worker count and measures
// windows of the run. The two take turns: the function goes on whenever the run is looked at, when a batch is
// delivered and now and then while one is waited for. The package doesn't know about loaders, and doesn't choose:
// what to measure and what to choose is the business of package search.
package tune

import (
	"math"
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

// A Target is a loader as a Tuner sees it.
type Target interface {
	Figures() Figures
	SetWorkers(n int) bool // false: the tuner may no longer set the count
	// Cold returns how many samples new workers must still load, and whether one of them is preparing
	// itself or loads its first sample.
	Cold() (samples int, beginning bool)
	InHand() float64 // batches that the workers are loading at a time
}

// A Tuner lets a loop measure a run. Its fields belong to whoever has the turn: the goroutine that iterates,
// or the loop while that goroutine waits in Look.
type Tuner struct {
	Target    Target
	Loop      func()        // what goes on whenever the run is looked at; it calls Resize, Measure and Watch
	MinWindow time.Duration // shortest time of a window

	turns    *turns
	ends     time.Time // when tuning ends; zero: there is no limit
	skip     int       // batches that needn't be looked at
	workers  int       // as set last; −1: not yet
	measured bool      // there is a window that shows something
	watching bool      // the loader has settled

	resync bool    // what was done since the latest look doesn't count
	from   moment  // of the latest delivery that was looked at
	kept   span    // what was done up to from …
	sum    span    // … and up to now, without pauses and the ends of runs
	atTick float64 // Loaded at the latest look while the program waited
	bodies bodies
}

// A moment of a run: what had been done by then.
type moment struct {
	at time.Time
	Figures
}

// A span says how much was done between two moments.
type span struct {
	took time.Duration
	Figures
}

// plus adds t or, if sign is −1, takes it away. What is missing stays.
func (s span) plus(t span, sign float64) span {
	n, d := int(sign), time.Duration(sign)
	return span{s.took + d*t.took, Figures{
		Missing: s.Missing, Loaded: s.Loaded + sign*t.Loaded, Delivered: s.Delivered + n*t.Delivered, Asked: s.Asked + n*t.Asked,
		Wait: s.Wait + d*t.Wait, Transfer: s.Transfer + d*t.Transfer, Copied: s.Copied + n*t.Copied, Copying: s.Copying + d*t.Copying,
	}}
}

// since returns what was done since an earlier moment.
func (m moment) since(then moment) span {
	return span{m.at.Sub(then.at), m.Figures}.plus(span{0, then.Figures}, -1)
}

// body returns how long the body of the loop took, per batch.
func (s span) body() time.Duration { return max(0, s.took-s.Wait) / time.Duration(max(s.Asked, 1)) }

// Start sets how long tuning may take from now on; if limit is 0, there is no limit. The loop begins when the first
// batch is delivered.
func (t *Tuner) Start(limit time.Duration) {
	if t.workers, t.turns = -1, newTurns(); limit > 0 {
		t.ends = time.Now().Add(limit)
	}
}

// Stop ends the loop at its next look, and waits until it has ended. Any goroutine may call it.
func (t *Tuner) Stop() { t.turns.stop() }

// Left returns how much time is left.
func (t *Tuner) Left() time.Duration {
	if t.ends.IsZero() {
		return math.MaxInt64
	}
	return max(0, time.Until(t.ends))
}

// LeaveOut gives tuning back the time of something that won't happen again. What was done since the latest
// look doesn't count.
func (t *Tuner) LeaveOut(took time.Duration) {
	t.resync = true
	if !t.ends.IsZero() {
		t.ends = t.ends.Add(took)
	}
}

// Over reports whether the loop has ended.
func (t *Tuner) Over() bool { return t.turns.over() }

// Measures reports whether something is being measured.
func (t *Tuner) Measures() bool { return !t.watching && !t.Over() }

// Resume is called when a run has begun, before its first batch is delivered.
func (t *Tuner) Resume() { t.skip, t.resync = 0, true }

// Skip counts a delivery, and reports whether it needn't be looked at.
func (t *Tuner) Skip() bool {
	t.skip--
	return t.skip > 0
}

// Look lets the loop go on. It is called when a batch was delivered, and now and then while the program waits
// for one: that may take minutes, and its samples show the speed earlier.
func (t *Tuner) Look(delivered bool) {
	if !delivered {
		if t.watching { // the next delivery is looked at
			t.skip = 0
		}
		// Without workers, the time of a batch is known only when it comes.
		if t.resync || t.watching || t.workers == 0 && (t.Left() > 0 || !t.measured) {
			return
		}
		// Looks are taken right after samples have come, because the time between two samples shows nothing.
		loaded := t.Target.Figures().Loaded
		if came := loaded != t.atTick; !came && t.Left() > 0 {
			return
		}
		t.atTick = loaded
	}
	t.skip = 1
	t.turns.give(delivered, func() {
		if t.await() {
			t.Loop()
		}
	})
}

// await waits for the next look, and counts what was done since the latest one. It returns false if the loop
// must end.
func (t *Tuner) await() bool {
	delivered, ok := t.turns.take()
	if !ok {
		return false
	}
	now := moment{time.Now(), t.Target.Figures()}
	done := t.kept.plus(now.since(t.from), 1)
	switch {
	case t.resync, now.Dry: // workers may have found nothing more to begin since the latest look
		t.resync = now.Dry
		t.bodies.last = now
		t.from, t.kept = now, t.sum
	case delivered:
		if !t.bodies.ended(now) {
			t.sum = done
		}
		t.from, t.kept = now, t.sum
	default:
		t.sum = done
	}
	t.sum.Missing = now.Missing
	return true
}

// bodies tell a pause of the program, for a checkpoint, for example, from an ordinary step.
type bodies struct {
	usual time.Duration
	often float64 // the share of recent bodies that were far longer
	last  moment  // of the latest delivery that was looked at
}

const (
	pauseTimes = 4   // a body that takes this many times as long as usual is a pause …
	ordinary   = 0.2 // … unless this share of bodies takes that long …
	lately     = 16  // … among about this many of the last ones
)

// ended notes a body of the loop, and returns whether it was a pause.
func (b *bodies) ended(now moment) (pause bool) {
	one := now.since(b.last)
	b.last = now
	if one.Asked != 1 {
		return false
	}
	body := one.body()
	b.often -= b.often / lately
	switch {
	case b.usual == 0:
		b.usual = body
	case body < b.usual: // a slow first step is soon forgotten
		b.usual -= (b.usual - body) / 2
	case body <= pauseTimes*b.usual || body <= time.Millisecond:
		b.usual += (body - b.usual) / 8
	default:
		b.often += 1. / lately
		if pause = b.often < ordinary; pause {
			body = pauseTimes * b.usual
		}
		b.usual = body
	}
	return pause
}

// Resize sets the worker count, and waits until new workers are warm. It returns false if the loop must end.
func (t *Tuner) Resize(workers int) bool {
	if workers == t.workers {
		return true
	}
	hand := 0. // batches that leaving workers are loading
	if workers < t.workers {
		hand = t.Target.InHand()
	}
	began := t.begins()
	if !t.Target.SetWorkers(workers) {
		return false
	}
	t.workers = workers
	ahead := t.from.Loaded - float64(t.from.Delivered) // batches that were loaded ahead
	for cold, atCold := 0, began.Loaded; t.await(); {
		now, beginning := t.Target.Cold()
		if now != cold || beginning {
			cold, atCold = now, t.sum.Loaded
		}
		if t.warm(t.sum.plus(began, -1), ahead, hand, beginning, cold > 0 && t.sum.Loaded-atCold < 4*(t.Target.InHand()+search.WarmBatches)) {
			return true
		}
	}
	return false
}

// warm reports whether a window may begin: the new workers have loaded some samples, but those that
// find nothing to load aren't waited for. Without workers, it waits until the batches that are ready have
// been delivered: nothing is loaded before.
func (t *Tuner) warm(done span, ahead, hand float64, beginning, cold bool) bool {
	through := float64(done.Delivered) >= ahead // the batches that were ready have been delivered
	switch {
	case done.took >= warmMost, t.Left() == 0:
		return true
	case through && done.Delivered > 0 && done.took >= search.WarmTime && done.Wait < done.took/hardly:
		return true // training doesn't wait for them
	case beginning, cold, t.workers == 0 && !through:
		return false
	}
	return done.took >= search.WarmTime && done.Loaded >= hand && max(done.Loaded, float64(done.Delivered)) >= min(search.WarmBatches, t.Target.InHand())
}

// begins returns what was done up to now, and leaves out what the loop itself took since the latest look.
func (t *Tuner) begins() span {
	if !t.resync {
		t.from, t.kept = moment{time.Now(), t.Target.Figures()}, t.sum
		t.bodies.last = t.from
	}
	return t.sum
}

// Measure measures a window at the count that was set. It returns false if the loop must end.
func (t *Tuner) Measure(req search.Request) (w Window, ok bool) {
	began, cut := t.begins(), span{} // cut: where the next part begins
	var parts []stat.Part
	for t.await() {
		all := t.sum.plus(began, -1)
		part := all.plus(cut, -1)
		mean, weight := t.perBatch(part)
		if weight >= max(1, float64(req.Iterations)/mostParts, t.Target.InHand()) && part.took >= t.MinWindow/mostParts {
			parts = append(parts, stat.Part{Mean: float64(mean - part.body()), Weight: weight})
			cut = all
		}
		over := t.Left() == 0 && t.measured
		_, weight = t.perBatch(all)
		switch {
		case weight > 0 && (over || t.enough(all, req)):
			return t.window(req.Round, all, parts), true
		case over:
			return Window{}, true
		}
	}
	return Window{}, false
}

// enough reports whether the window may end.
func (t *Tuner) enough(all span, req search.Request) bool {
	mean, weight := t.perBatch(all)
	waves := math.Inf(1) // waves of loading, if loading is the bottleneck
	if mean > all.body() {
		waves = all.Loaded / t.Target.InHand()
	}
	wanted, limit := float64(req.Iterations), float64(req.Limit)
	if several := manyWaves * t.Target.InHand(); several > wanted && waves < math.Inf(1) {
		wanted, limit = several, limit*several/wanted
	}
	switch {
	case all.unclear() && weight < unclearMost*wanted:
		return false
	case t.Left() == 0: // the first window
		return waves >= 1 && all.Delivered > 0
	case weight >= wanted:
		return all.took >= t.MinWindow
	case limit > 0 && float64(all.took) >= limit && waves >= fewWaves, all.took >= 3*ample && waves >= fewWaves:
		return true
	}
	return all.took >= ample && waves >= manyWaves && weight >= fewWaves
}

const (
	warmMost    = search.DefaultTime / 10 // new workers are waited for no longer
	ample       = search.DefaultTime / 60 // a window of this time may end after a few waves
	manyWaves   = 4                       // each worker has loaded this many claims, so a burst isn't decisive
	fewWaves    = 2                       // … or this many, in three times an ample window
	hardly      = 200                     // training hardly waits if it waits for less than this part of the time
	unclearMost = 4                       // if it isn't clear whether training waits, a window ends after this many times the batches wanted
	mostParts   = 12                      // of a window
)

// perBatch returns how long a batch takes in the long run, and how many batches this figure represents. A
// batch takes as long as loading it, copying it, or the body of the loop, whichever is longest: batches
// that were loaded before hide slow loading only for a while. Without workers, nothing overlaps.
func (t *Tuner) perBatch(s span) (mean time.Duration, weight float64) {
	mean, weight = s.body(), float64(s.Asked)
	if t.workers == 0 {
		if s.Loaded <= 0 {
			return mean, 0
		}
		return mean + time.Duration(float64(s.Wait)/s.Loaded), s.Loaded
	}
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

// A Window holds what was measured between two moments of a run.
type Window struct {
	Workers  int
	Block    search.Block  // as in the long run; what other programs do isn't known here
	Transfer time.Duration // the part of Block.Wait that copies to the device took
	Weight   float64       // how many batches Block stands for; 0: the window shows nothing
}

// window returns the figures of a window.
func (t *Tuner) window(round int, all span, parts []stat.Part) Window {
	t.measured = true
	mean, weight := t.perBatch(all)
	w := Window{Workers: t.workers, Weight: weight, Block: search.Block{
		Round: round, Iterations: max(1, int(math.Round(weight))), Mean: mean, Wait: mean - all.body(), Bodies: all.Asked,
	}}
	if all.Delivered > 0 {
		w.Transfer = min(all.Transfer/time.Duration(all.Delivered), w.Block.Wait)
	}
	if len(parts) > 1 {
		w.Block.Parts = parts
	}
	return w
}
