package tune

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nwt-go/nwt/internal/search"
)

const ms = time.Millisecond

// A loader is made up: its workers load samples in order, and its program takes batches.
type loader struct {
	Tuner

	per         int                             // samples of a batch
	load        func(workers int) time.Duration // of a sample, a tenth more or less, with so many workers
	body        func(batch int) time.Duration   // of the program's loop
	after       func(batch int)                 // called after the body
	copy        time.Duration                   // of a batch, to the device
	extra       int                             // batches that are open ahead beyond those that workers need
	epoch       int                             // batches of a run; 0: it doesn't end
	gap         time.Duration                   // between two runs
	begin       time.Duration                   // of a worker, before its first sample
	cold        int                             // samples of a new worker that take five times as long
	start, stop int                             // workers before tuning sets their number; batches until the program ends
	taken       bool                            // the count is no longer the tuner's
	asking      func(seen []search.Series) (search.Request, bool)
	settled     Normal // watched after the search, on two workers
	patience    int    // 0: the loader isn't watched

	rng   *rand.Rand
	group sync.WaitGroup
	mu    sync.Mutex
	cond  *sync.Cond
	ended bool
	woken bool // the program is to look

	workers, run, next, loaded int // next and loaded count samples
	delivered, asked, open     int
	last                       int         // batch of the run; 0: none
	left                       map[int]int // samples of a batch that are still to load
	ready                      map[int]bool
	copied                     int // batches
	copying, wait              time.Duration
	since                      time.Time // of the wait under way
	dry                        bool
	crew                       []*worker

	sets    []set // calls of SetWorkers
	begun   []int // batches delivered when a window began …
	doubts  []int // … and when the choice was doubted
	weighed []search.Block
	windows []Window
	seen    []search.Series
	looks   int // calls of Look
}

type set struct{ workers, delivered int }

type worker struct {
	cold             int
	beginning, began bool // preparing itself or loading its first sample; it has loaded one
}

// made returns a loader that trains for 5 ms and loads a batch in 40 ms with one worker.
func made() *loader {
	l := &loader{per: 8, stop: 1e6, left: map[int]int{}, ready: map[int]bool{}, load: steady(5 * ms), body: steady(5 * ms)}
	l.cond, l.rng, l.after = sync.NewCond(&l.mu), rand.New(rand.NewPCG(1, 1)), func(int) {}
	l.Target, l.Loop, l.MinWindow = l, l.search, 5*ms
	return l
}

// search measures what next asks for, and then watches.
func (l *loader) search() {
	for req, more := l.asking(l.seen); more; req, more = l.asking(l.seen) {
		if !l.Resize(req.Workers) {
			return
		}
		l.begun = append(l.begun, l.delivered)
		w, ok := l.Measure(req)
		if !ok {
			return
		}
		if w.Weight > 0 {
			l.windows = append(l.windows, w)
			i := slices.IndexFunc(l.seen, func(s search.Series) bool { return s.Workers == w.Workers })
			if i < 0 {
				i, l.seen = len(l.seen), append(l.seen, search.Series{Workers: w.Workers})
			}
			w.Block.CPU = 0.1
			l.seen[i].Blocks = append(l.seen[i].Blocks, w.Block)
		}
	}
	for weighAt := 256; l.patience > 0 && l.Resize(2); {
		b, odd, ok := l.Watch(l.settled, l.patience, weighAt)
		switch {
		case !ok:
			return
		case odd:
			l.doubts = append(l.doubts, l.delivered)
		default:
			l.weighed, weighAt = append(l.weighed, b), 2*weighAt
		}
	}
}

func steady(d time.Duration) func(int) time.Duration { return func(int) time.Duration { return d } }

// depth returns how many batches are open beside the one in use.
func (l *loader) depth() int {
	if l.workers == 0 {
		return 0
	}
	return l.extra + max(2, (l.workers+l.per-1)/l.per+1)
}

// truth returns what a batch takes in the long run.
func (l *loader) truth(workers int) time.Duration {
	body := l.body(1 << 30)
	if workers == 0 {
		return body + l.load(0)*time.Duration(l.per) + l.copy // nothing overlaps
	}
	return max(body, l.load(workers)*time.Duration(l.per)/time.Duration(workers), l.copy)
}

// asks has the tuner measure these counts in turn, so many iterations each.
func (l *loader) asks(iterations int, workers ...int) {
	n := 0
	l.asking = func([]search.Series) (search.Request, bool) {
		if n == len(workers) {
			return search.Request{}, false
		}
		n++
		return search.Request{Workers: workers[n-1], Iterations: iterations, Round: n - 1}, true
	}
}

// greedy searches, for so long at most, and returns the choice.
func (l *loader) greedy(t *testing.T, sp search.Space) (c search.Choice, took time.Duration) {
	sp.Alpha, sp.Iterations, sp.MinTime = search.DefaultAlpha, 100, search.MinTime
	l.start = sp.Start
	l.asking = func(seen []search.Series) (search.Request, bool) {
		sp.Left = l.Left()
		return search.Greedy(sp, seen)
	}
	took = l.train(t, sp.Time)
	return search.Choose(sp, l.seen), took
}

// train runs the program in virtual time until tuning is over or it ends, and returns how long
// that took.
func (l *loader) train(t *testing.T, limit time.Duration) (took time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if l.start > 0 {
			l.SetWorkers(l.start)
		}
		l.Start(limit)
		l.group.Go(l.copies)
		l.group.Go(l.ticks)
		for !l.runOnce() {
			time.Sleep(l.gap)
		}
		took = time.Since(began)
		l.Stop()
		l.end()
		l.group.Wait()
	})
	return took
}

func (l *loader) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	l.cond.Broadcast()
}

func (l *loader) runOnce() (over bool) {
	l.mu.Lock()
	l.run++
	l.last, l.dry = 0, false
	if l.epoch > 0 {
		l.last = l.delivered + l.epoch
	}
	l.next, l.loaded, l.copied, l.asked = l.delivered*l.per, l.delivered*l.per, l.delivered, l.delivered+1
	l.mu.Unlock()
	l.Resume()
	l.cond.Broadcast()
	for l.last == 0 || l.delivered < l.last {
		ended := l.deliver()
		if !l.Skip() {
			l.looks++
			l.Look(true)
			over = l.Over()
		}
		if over || ended || l.delivered == l.stop {
			return true
		}
		time.Sleep(l.body(l.delivered))
		l.after(l.delivered)
		l.mu.Lock()
		l.asked++
		l.mu.Unlock()
	}
	return false
}

// deliver waits for the next batch. Without workers, it loads it.
func (l *loader) deliver() (ended bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.since = time.Now()
	for l.copied <= l.delivered && !l.ended {
		switch {
		case l.workers == 0 && l.next < (l.delivered+1)*l.per:
			l.one(l.load(0))
		case l.woken:
			l.woken = false
			l.mu.Unlock()
			l.Look(false)
			l.mu.Lock()
			l.ended = l.ended || l.Over()
		default:
			l.cond.Wait()
		}
	}
	l.wait, l.since = l.wait+time.Since(l.since), time.Time{}
	l.delivered++
	l.asked, l.open = l.delivered, l.depth()
	if l.last > 0 {
		l.open = min(l.open, l.last-l.delivered)
		l.dry = l.delivered+l.open == l.last
	}
	l.cond.Broadcast()
	return l.ended
}

// one loads the next sample. The caller holds mu.
func (l *loader) one(takes time.Duration) {
	b := l.next / l.per
	if l.next%l.per == 0 {
		l.left[b] = l.per
	}
	l.next++
	jitter := l.rng.Float64()
	l.mu.Unlock()
	time.Sleep(time.Duration(float64(takes) * (0.9 + 0.2*jitter)))
	l.mu.Lock()
	l.loaded++
	if l.left[b]--; l.left[b] == 0 {
		l.ready[b] = true
		l.cond.Broadcast()
	}
}

func (l *loader) work(seat int, w *worker) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w.beginning = false
	for !l.ended {
		if end := (l.delivered + 1 + l.depth()) * l.per; seat >= l.workers || l.next >= end || l.last > 0 && l.next >= l.last*l.per || l.run == 0 {
			l.cond.Wait()
			continue
		}
		takes := l.load(l.workers)
		if w.cold > 0 {
			takes *= 5
		}
		w.beginning = !w.began
		l.one(takes)
		w.beginning, w.began, w.cold = false, true, max(0, w.cold-1)
	}
}

// copies takes batches to the device, one by one.
func (l *loader) copies() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for !l.ended {
		if !l.ready[l.copied] {
			l.cond.Wait()
			continue
		}
		l.mu.Unlock()
		time.Sleep(l.copy)
		l.mu.Lock()
		l.copied, l.copying = l.copied+1, l.copying+l.copy
		l.cond.Broadcast()
	}
}

// ticks wakes the program while it waits, so that it looks.
func (l *loader) ticks() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for !l.ended {
		l.mu.Unlock()
		if time.Sleep(10 * ms); l.patience > 0 {
			time.Sleep(time.Second) // once it has settled
		}
		l.mu.Lock()
		l.woken = true
		l.cond.Broadcast()
	}
}

func (l *loader) Figures() Figures {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := Figures{Loaded: float64(l.loaded) / float64(l.per), Delivered: l.delivered, Asked: l.asked, Wait: l.wait, Dry: l.dry}
	f.Missing = float64(l.open) - (f.Loaded - float64(f.Delivered))
	if !l.since.IsZero() {
		f.Wait += time.Since(l.since)
	}
	if l.copy > 0 {
		f.Copied, f.Copying = l.copied, l.copying
	}
	return f
}

func (l *loader) SetWorkers(n int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.taken {
		return false
	}
	l.sets, l.workers = append(l.sets, set{n, l.delivered}), n
	for seat := len(l.crew); seat < n; seat++ {
		w, begin := &worker{cold: l.cold, beginning: l.begin > 0}, l.begin
		l.crew = append(l.crew, w)
		l.group.Go(func() { time.Sleep(begin); l.work(seat, w) })
	}
	l.cond.Broadcast()
	return true
}

func (l *loader) Cold() (samples int, beginning bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range l.crew[:l.workers] {
		if beginning = beginning || w.beginning; w.began { // else it finds nothing to load
			samples += w.cold
		}
	}
	return samples, beginning
}

func (l *loader) InHand() float64 { return float64(max(1, l.workers)) / float64(l.per) }
