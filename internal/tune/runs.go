// This file handles what follows a search: a loader that has settled, and runs that begin, pause, or are
// too short to be measured.

package tune

import (
	"slices"
	"time"

	"github.com/nwt-go/nwt/internal/search"
)

// A Choice is what a Run has settled on.
type Choice struct {
	Workers int
	Waits   float64 // share of the time that training waits at this count
	Ignored float64 // share of the time that alpha ignores
	Body    time.Duration
}

// watched holds what is measured of a loader that has settled. Each window shows whether training waits
// as before. From time to time everything measured since is added to the earlier measurements: it shows
// what windows are too short for.
type watched struct {
	Choice
	odd      int  // successive windows in which training waited more, or less, than before
	patience int  // how many of them are needed to tune again
	since    span // windows that haven't been weighed yet
	weighAt  int  // how many batches they must have
}

const (
	windowBatches = 64                     // batches per window, or more, if they take less than …
	windowTime    = 200 * time.Millisecond // … this time in all
	oddWindows    = 3
	oddMost       = 48 // largest patience, after tuning again and again has changed nothing
	weighFirst    = 256
	otherBody     = 0.10 // a window isn't weighed if its bodies differ by more than this share of its time
	waitMore      = 0.04 // by how much the share of waiting must have grown …
	waitLess      = 0.10 // … or fallen
)

// settle ends measuring.
func (t *Tuner) settle() {
	c, goesOn := t.Run.Settle(t.seen, false)
	if !goesOn {
		t.phase = over
		return
	}
	w := &t.watched
	if patience := w.patience; c.Workers == w.Workers && patience > 0 {
		w.patience = min(2*patience, oddMost)
	} else {
		w.patience = oddWindows
	}
	w.Choice, w.odd, w.since, w.weighAt = c, 0, span{}, max(w.weighAt, weighFirst)
	if c.Workers != t.workers {
		if t.change(c.Workers); t.phase == over {
			return
		}
	}
	t.phase, t.resync = watching, true // the next look begins a window
	t.sum = span{}
}

// watch reads the figures of some batches of a settled loader.
func (t *Tuner) watch(now time.Time, f Figures) {
	if cold, beginning := t.Run.Cold(); (cold > 0 || beginning) && now.Sub(t.since) < windowTime {
		return
	}
	all := t.done(now, f)
	if all.Delivered < windowBatches || all.took < windowTime {
		t.skip = max(1, min(windowBatches-all.Delivered, windowBatches))
		return
	}
	t.judge(all)
	if t.phase == watching {
		t.since, t.base, t.sum = now, f, span{}
	}
}

// judge reads a window of a settled loader.
func (t *Tuner) judge(all span) {
	w := &t.watched
	waits := float64(all.Wait) / float64(max(all.took, 1))
	if waits > w.Waits+max(waitMore, 2*min(w.Ignored, waitLess)) || waits < w.Waits-waitLess {
		w.odd++
	} else {
		w.odd = 0
	}
	if w.odd >= w.patience {
		t.Run.Doubt("training waits for data more or less than it did")
		t.restart()
		return
	}
	if differs := all.body() - w.Body; float64(differs.Abs())*float64(all.Asked) > otherBody*float64(all.took) {
		return // a pause, or another step than before
	}
	if w.since = w.since.plus(all, 1); w.since.Delivered < w.weighAt {
		return
	}
	w.weighAt *= 2
	mean, weight := t.perBatch(w.since)
	t.add(search.Block{Round: -1, Iterations: max(1, int(weight)), Mean: mean, Wait: mean - w.since.body(), Bodies: w.since.Asked})
	w.since = span{}
	if c, _ := t.Run.Settle(t.seen, true); c.Workers != w.Workers {
		t.Run.Doubt("another worker count may be faster")
		i := slices.IndexFunc(t.seen, func(s search.Series) bool { return s.Workers == t.workers })
		blocks := t.seen[i].Blocks
		t.restart()
		t.seen = []search.Series{{Workers: t.workers, Blocks: blocks[len(blocks)-1:]}}
	}
}

// restart begins tuning again.
func (t *Tuner) restart() {
	t.seen, t.phase, t.resync, t.sum = nil, starting, true, span{}
}

// short reports whether runs are so short that nearly all of a run is its beginning and its end.
// Then runs are measured whole, and the count changes between them.
type short struct {
	whole   bool
	useful  int // looks at this run that were useful
	poor    int // successive runs that had hardly any
	longest int // batches in the longest run that was poor
}

const (
	poorRuns    = 3 // this many in a row, after which runs are measured whole
	noLonger    = 4 // times longest: a run of that length isn't short
	usefulLooks = 8 // a run with this many isn't poor: the rest of it may have been ready after a pause
)

// Resume is called when a run has begun, before its first batch is delivered.
func (t *Tuner) Resume() {
	t.short.useful = 0
	t.skip = 0
	t.resync = true
	if t.short.whole {
		if t.phase == starting {
			t.advance()
		}
		t.since, t.base = time.Now(), t.Run.Figures()
		t.bodies.began(t.since, t.base)
	}
}

// Pause is called when a run has ended normally; batches is how many it had.
func (t *Tuner) Pause(batches int) {
	now, f, s := time.Now(), t.Run.Figures(), &t.short
	if !s.whole {
		if !t.resync {
			t.pause()
		}
		if t.phase >= watching {
			return
		}
		if 2*s.useful >= batches || s.useful >= usefulLooks {
			s.poor = 0
			return
		}
		if s.poor++; s.poor >= poorRuns {
			s.whole, s.longest = true, max(s.longest, batches)
			t.restart() // parts of runs can't be compared with whole runs
		}
		s.longest = max(s.longest, batches)
		return
	}
	t.since = t.since.Add(t.bodies.pause(now, f))
	f.Loaded = t.base.Loaded + float64(f.Delivered-t.base.Delivered)
	t.sum = t.done(now, f)
	switch t.phase {
	case warming: // workers began in this run
		t.begin()
	case measuring:
		if _, weight := t.perBatch(t.sum); weight >= float64(t.req.Iterations) && t.sum.took >= t.Least || t.req.Limit > 0 && t.sum.took > t.req.Limit {
			t.end(t.sum)
			t.advance()
		}
	case watching:
		if t.sum.Delivered >= windowBatches {
			all := t.sum
			t.sum = span{}
			t.judge(all)
		}
	}
}

// observeWhole leaves pauses out, and ends measuring whole runs if this one is too long for that.
func (t *Tuner) observeWhole() {
	f := t.Run.Figures()
	t.since = t.since.Add(t.bodies.pause(time.Now(), f))
	if f.Delivered-t.base.Delivered > noLonger*t.short.longest {
		t.short = short{}
		t.restart()
	}
}

// bodies distinguish a pause of the program, for a checkpoint, for example, from an ordinary step.
type bodies struct {
	usual time.Duration
	often float64 // the share of recent bodies that were far longer
	look          // the latest look at a delivery
}

const (
	pauseTimes = 4   // a body that takes this many times as long as usual is a pause …
	ordinary   = 0.2 // … unless this share of bodies takes that long …
	lately     = 16  // … among about this many of the last ones
)

func (b *bodies) began(now time.Time, f Figures) { b.look = look{now, f} }

// pause returns by how much the last body was longer than usual, or 0 if it was no pause.
func (b *bodies) pause(now time.Time, f Figures) (longer time.Duration) {
	last := span{now.Sub(b.at), f}.plus(span{0, b.Figures}, -1)
	b.began(now, f)
	if last.Asked != 1 {
		return 0
	}
	body := last.body()
	b.often -= b.often / lately
	switch {
	case b.usual == 0:
		b.usual = body
	case body < b.usual: // a slow first step is soon forgotten
		b.usual -= (b.usual - body) / 2
	default:
		if body > pauseTimes*b.usual && body > time.Millisecond {
			if b.often += 1. / lately; b.often < ordinary {
				longer = body - b.usual
			}
		}
		b.usual += (min(body, pauseTimes*b.usual) - b.usual) / 8
	}
	return longer
}
