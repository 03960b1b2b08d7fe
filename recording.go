package nwt

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/nwt-go/nwt/internal/guard"
	"github.com/nwt-go/nwt/internal/search"
)

// A measurement is some iterations over a loader's batches.
type measurement struct {
	warmup     int           // batches before
	warmupTime time.Duration // and more of them until this much time has passed
	visit      search.Visit  // how many are measured
	deadline   time.Time     // loading ends at it, and no step begins after it; zero: none
	steps      *preparation  // of the training step; nil: there is neither a step nor a deadline
	must       bool          // one batch is waited for, whatever the deadline
	repeats    int           // how often measuring may begin anew because threads missed CPUs
	pauses     pauses        // of the training step, as visits before have left it

	// cold is how many more batches the workers need at least to become warm. It is asked
	// once for each batch of the warm-up, with that batch's number; nil: no worker is cold.
	cold func(batches int) int

	// newcomers is how many workers haven't loaded anything yet, and whether one is about to;
	// nil: no worker is cold. A visit waits for them, however long WithWorkerInit takes.
	newcomers func() (n int, begins bool)
	fewest    int // the fewest newcomers so far

	calls  *calls // times the loader's calls; nil: they aren't timed
	served served // what it tells

	instant bool // loading takes no time: the floor's

	// opening is like cold, but for a stream that must still read what it begins with; nil:
	// there is nothing to read. A visit waits for it as long as training would.
	opening func() int
	opened  time.Duration // how long the warm-up took until that was read and all newcomers had loaded something
	begun   time.Duration // how long until all newcomers had loaded something

	tooHigh float64 // how many times too high the mean may be, because what workers had only begun doesn't count; 0: hardly

	iterations []iteration
	sum        iteration
	first      time.Duration // until the first batch
	before     int           // batches of the warm-up
	reached    State
	use        usage
	copies     copies // while it was measured
}

// An account is what a measurement has seen beside its iterations. It counts places, so that
// what was loaded before isn't taken for what was loaded meanwhile.
type account struct {
	warmed []iteration // the warm-up, if one batch must be measured

	ahead    []int // places loaded ahead when measuring began, and after each half of the wanted iterations; without free
	free     int   // places that were loaded while nothing was measured
	gained   int   // how many more places were loaded ahead when measuring ended than when the iterations that count began
	inAll    int   // all places loaded, except those of the delivered batches and those loaded while a step was prepared: see loaded
	openedAt int   // all places loaded until measurement.opened was over

	spent      time.Duration // in all, without preparations
	idle       time.Duration // of it, until WithWorkerInit first succeeded, if it ran
	waited     time.Duration // of it, for batches that came
	unfinished time.Duration // of it, for a batch that hadn't come at the deadline
	came       int           // batches
	delivered  int           // batches that no step was prepared with
}

// loaded is how many places were loaded in all.
func (a *account) loaded(batchSize int) int { return a.inAll + a.delivered*batchSize }

// errOver ends loading when the time for tuning is over.
var errOver = errors.New("nwt: the time for tuning is over")

// A recording is a measurement under way.
type recording struct {
	account
	m     *measurement
	l     *Loader
	step  func(context.Context, *Batch) error // nil: none
	alarm *time.Timer                         // ends loading at the deadline

	start, prev time.Time // when all began, and this iteration; without preparations
	n           int       // minus the batches of the warm-up still to come; above 0 once iterations are measured
	any         bool      // a batch has come that no step was prepared with
	half        int       // of the iterations that are wanted
	meter       *meter    // since measuring began; nil before
	base        copies    // there were then
}

// run measures l's batches from a state on, epoch after epoch.
func (m *measurement) run(ctx context.Context, l *Loader, step func(context.Context, *Batch) error, from State) (err error) {
	m.iterations = make([]iteration, 0, m.visit.Wanted)
	m.pauses.begin()
	now := time.Now()
	r := &recording{m: m, l: l, step: step, start: now, prev: now, n: -m.warmup, half: max(1, m.visit.Wanted/2)}
	loading, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	r.alarm = time.AfterFunc(time.Hour, func() { giveUp(errOver) })
	defer r.alarm.Stop()
	r.arm()
	l.iterate(loading, from.Epoch, math.MaxInt32, from.Samples, func(b *Batch, failed error) (more bool) {
		got := time.Now()
		switch {
		case failed == nil:
			more, err = r.take(ctx, b, got)
		case context.Cause(loading) == errOver && errors.Is(failed, context.Canceled):
			r.cutOff(got)
		default:
			err = failed
		}
		return more
	})
	if r.meter != nil {
		m.copies = l.copies().minus(r.base)
	}
	if err != nil {
		return err
	}
	if !r.any && context.Cause(loading) != errOver {
		return errors.New("nwt: the dataset yields no batch")
	}
	m.conclude(l, r.account)
	return nil
}

// over tells whether the deadline has passed.
func (r *recording) over(now time.Time) bool {
	latest := r.latest()
	return !latest.IsZero() && !now.Before(latest)
}

// latest is when the recording ends at the latest; zero: there is no bound.
func (r *recording) latest() time.Time {
	if r.m.deadline.IsZero() {
		return r.m.deadline
	}
	return r.m.deadline.Add(r.m.steps.took)
}

// arm sets the alarm to the deadline, which a step may have moved. It sets none while one batch
// is waited for whatever the deadline.
func (r *recording) arm() {
	latest := r.latest()
	if r.alarm.Stop(); !latest.IsZero() && (r.any || !r.m.must) {
		r.alarm.Reset(time.Until(latest))
	}
}

// take takes in a batch that came, and tells whether another one is needed.
func (r *recording) take(ctx context.Context, b *Batch, got time.Time) (more bool, err error) {
	m, l := r.m, r.l
	r.came++
	r.waited += got.Sub(r.prev)
	if m.first == 0 {
		m.first = got.Sub(r.start)
		if ready := b.run.ready.Load(); ready != nil {
			r.idle = max(0, ready.Sub(r.start))
		}
	}
	if m.reached = b.State(); m.reached.Samples < 0 { // without order there is no state, but about here
		m.reached.Samples = b.reached
	}
	end := got
	if r.step != nil {
		prepared, err := r.train(ctx, b, got)
		if prepared || err != nil {
			return err == nil, err
		}
		end = time.Now()
	}
	copying := overlap(b.copyBegan, b.copyEnded, r.prev, got)
	seen := iteration{end.Sub(r.prev), got.Sub(r.prev) - copying, copying, end.Sub(got), b.opened}
	r.any = true
	r.delivered++
	leftOut := false
	if r.n++; r.n > 0 {
		leftOut = r.add(seen)
	} else if r.warm(seen, end); r.n == 0 {
		r.begin()
		end = time.Now()
	}
	r.prev = end
	more = (r.n < 1 || m.visit.More()) && !r.over(end)
	if leftOut && more { // what was used meanwhile doesn't count either
		loaded := l.loadedAhead()
		r.startMeter()
		r.free += l.loadedAhead() - loaded
		m.calls.begin()
		r.prev = time.Now()
	}
	if !more && r.meter != nil {
		l.deep.held.Store(true) // from now on training takes no batch, so that workers stand idle says nothing
		more = r.ends(end)
	}
	if more && (r.step != nil || m.must) {
		r.arm()
	}
	if !more {
		r.inAll += l.loadedAhead()
		r.spent = end.Sub(r.start)
		m.served = m.calls.end(ctx, end, r.latest())
	}
	return more, nil
}

// train runs the training step on a batch that came. If this prepares the step, see
// preparation, neither the step nor the batch counts.
func (r *recording) train(ctx context.Context, b *Batch, got time.Time) (prepared bool, err error) {
	r.alarm.Stop() // the step may move the deadline
	prepared = r.m.steps.first(b)
	ahead := 0
	if prepared {
		ahead = r.l.loadedAhead()
	}
	if err = runStep(ctx, r.step, b); err != nil {
		if ctx.Err() != nil {
			err = contextError(ctx) // rather than what the step made of it
		}
		return prepared, err
	}
	if prepared {
		end := time.Now()
		r.m.steps.took += end.Sub(got)
		r.start, r.prev = r.start.Add(end.Sub(got)), end
		r.inAll += r.l.opts.batchSize - (r.l.loadedAhead() - ahead)
		r.arm()
	}
	return prepared, nil
}

// warm takes in a batch of the warm-up.
func (r *recording) warm(seen iteration, end time.Time) {
	m, l := r.m, r.l
	if m.must {
		r.warmed = append(r.warmed, seen)
	}
	m.before++
	l.deepenForCalls()
	opened := m.opened
	m.pauses.add(seen.step)
	if r.n = m.warming(r.n, m.before, end.Sub(r.start)); m.opened != opened {
		m.pauses.begin()
		r.openedAt = r.inAll + r.delivered*l.opts.batchSize + l.loadedAhead()
	}
	l.deep.held.Store(m.fewest > 0 && r.n < 0)
}

// begin begins measuring.
func (r *recording) begin() {
	r.startMeter()
	r.ahead, r.free = append(r.ahead[:0], r.l.loadedAhead()), 0
	r.m.pauses.begin()
	r.m.calls.begin()
}

func (r *recording) startMeter() {
	cpu := r.l.opts.machine.StartCPU
	if r.m.repeats > 0 {
		cpu = r.l.opts.machine.StartMissed
	}
	r.meter, r.base = r.l.startMeter(cpu()), r.l.copies()
}

// add adds an iteration. It tells whether earlier iterations are left out from now on.
func (r *recording) add(seen iteration) (leftOut bool) {
	m := r.m
	m.iterations = append(m.iterations, seen)
	kept := m.visit.Kept()
	m.visit.Add(seen.all)
	m.pauses.add(seen.step)
	m.visit.Pause = m.pauses.longer()
	leftOut = m.visit.Kept() < kept
	if len(m.iterations)%r.half == 0 {
		r.ahead = append(r.ahead, r.l.loadedAhead()-r.free) // halves are left out
	}
	return leftOut
}

// gain is how many more places are loaded ahead than when the iterations that count began.
func (r *recording) gain() int {
	return r.l.loadedAhead() - r.free - r.ahead[(len(r.m.iterations)-r.m.visit.Kept())/r.half]
}

// ends takes in what was used. If threads missed CPUs and there is time to measure anew, it
// begins again.
func (r *recording) ends(end time.Time) (again bool) {
	m := r.m
	r.gained = r.gain() // first: telling what was used takes a while
	m.use = r.meter.usage()
	again = m.repeats > 0 && m.use.missedCPUs() && !r.over(end.Add(2*end.Sub(r.meter.began)))
	if again {
		m.repeats--
		m.iterations = m.iterations[:0]
		m.visit.Again()
		r.begin()
		r.l.deep.held.Store(false)
		r.prev = time.Now()
	}
	return again
}

// cutOff ends a measurement that waits for a batch at the deadline.
func (r *recording) cutOff(now time.Time) {
	l := r.l
	r.unfinished, r.spent = now.Sub(r.prev), now.Sub(r.start)
	if r.meter != nil {
		r.gained = r.gain()
		r.m.use = r.meter.usage()
	}
	r.inAll += l.loadedAhead()
	if l.Workers() == 0 && l.loadedAhead() == 0 && r.unfinished <= (r.waited-r.idle)/time.Duration(max(1, r.came)) {
		// Nothing else was loaded meanwhile, and what was doesn't count: nor does its
		// time, unless it is longer than that of the others.
		r.unfinished, r.spent = 0, r.spent-r.unfinished
	}
}

// conclude works out what the iterations took. Training may have seen them too fast, or too slow:
// see correction.
func (m *measurement) conclude(l *Loader, acc account) {
	m.iterations = m.iterations[len(m.iterations)-min(len(m.iterations), m.visit.Kept()):]
	few := len(m.iterations) < max(1, m.visit.Least) // less than a wave, since time was over: a burst, or the pause between two
	switch {
	case few && m.must:
		m.iterations = append(acc.warmed, m.iterations...)
	case few:
		m.iterations = m.iterations[:0]
	}
	for _, one := range m.iterations {
		m.sum = m.sum.plus(one)
	}
	more := time.Duration(0)
	switch {
	case few && m.must:
		more = m.partOfWave(l, acc)
	case !few:
		more = m.correction(l, acc)
	}
	if more < 0 && !few {
		waits := make([]time.Duration, len(m.iterations))
		for i, one := range m.iterations {
			waits[i] = one.wait
		}
		m.visit.Shorten(waits, float64(-more)/float64(m.sum.wait))
	}
	m.sum.all, m.sum.wait = m.sum.all+more, m.sum.wait+more
	if m.must && m.visit.More() { // time was over
		counted := len(m.iterations)*l.opts.batchSize + acc.gained
		if few {
			counted = acc.loaded(l.opts.batchSize)
		}
		begun := min(l.Workers()*l.claimSize(), m.visit.Least*l.opts.batchSize)
		m.tooHigh = 1 + float64(begun)/float64(max(counted, 1))
		if m.sum.step > 0 {
			m.tooHigh = min(m.tooHigh, float64(m.sum.all)/float64(m.sum.step))
		}
	}
}

// correction is how much longer the iterations would have been in a long run; if it is negative,
// how much shorter. Waits are all that it corrects:
//
//   - If training used up what had been loaded before, it has waited too little.
//   - If more was loaded than it used, it has waited too long: in a long run the loader would have
//     been so far ahead. It wouldn't if the depth is fixed, or has come to its bound. And where
//     workers finish batches in waves, one wave more at the end says nothing.
//   - If hardly anything was loaded meanwhile, all that was loaded since the workers began tells.
//   - No batch is there before its copy is, and copies come one after the other.
func (m *measurement) correction(l *Loader, acc account) time.Duration {
	gained := acc.gained
	if m.visit.Least > 1 && gained > 0 {
		gained = max(0, gained-m.visit.Least*l.opts.batchSize)
	}
	more := hidden(m.sum.all, m.sum.wait, acc.unfinished, len(m.iterations), gained, l.opts.batchSize)
	if m.instant || !l.mayDeepen() {
		more = max(more, 0)
	}
	used, inAll := len(m.iterations)*l.opts.batchSize, acc.loaded(l.opts.batchSize)
	switch {
	case m.instant || used+acc.gained >= max(l.opts.batchSize, used/2): // enough was loaded meanwhile
	case inAll-acc.openedAt >= l.opts.batchSize:
		more = max(more, m.atPace(acc.spent-m.opened, inAll-acc.openedAt, l)-m.sum.all)
	default:
		more = max(more, m.atPace(acc.spent-acc.idle, inAll, l)-m.sum.all)
	}
	if n := m.copies.batches; n > 0 {
		more = max(more, m.copies.took/time.Duration(n)*time.Duration(len(m.iterations))-m.sum.all)
	}
	return more
}

// partOfWave is the correction if the only visit was over before a wave was: from its beginning
// on, all that was loaded counts.
func (m *measurement) partOfWave(l *Loader, acc account) time.Duration {
	alone := time.Duration(0) // steps during which nothing is loaded
	if l.Workers() == 0 {
		alone = m.sum.step
	}
	return max(m.atPace(acc.spent-acc.idle-alone, acc.loaded(l.opts.batchSize), l)+alone-m.sum.all, -m.sum.wait)
}

// atPace is what the iterations take if so many places are loaded in the time that was spent.
func (m *measurement) atPace(spent time.Duration, places int, l *Loader) time.Duration {
	return time.Duration(float64(spent) / max(float64(places)/float64(l.opts.batchSize), leastLoaded) * float64(len(m.iterations)))
}

// warming returns n anew: minus the batches that the warm-up must still take. batches is how
// many it has taken, and took how long.
func (m *measurement) warming(n, batches int, took time.Duration) int {
	cold, patience := 0, m.visit.Limit
	if m.cold != nil {
		cold = m.cold(batches)
	}
	if m.newcomers != nil {
		if now, begins := m.newcomers(); begins || now < m.fewest {
			m.fewest, m.opened, m.begun = min(now, m.fewest), took, took
		}
	}
	if m.opening != nil {
		if more := m.opening(); more > 0 {
			m.opened = took
			return min(n, -more, -cold)
		}
	}
	took -= m.opened + m.pauses.longer()
	if cold > 0 {
		patience = max(patience, patience*warmupPatient)
	}
	switch {
	case m.visit.Limit > 0 && took > patience:
		return 0 // no time for more
	case cold > 0:
		return min(n, -cold)
	case n == 0 && took < m.warmupTime:
		return -1
	case took >= warmupEnough:
		return 0
	}
	return n
}

// hidden is the first two parts of a correction. The iterations took all, and training waited for
// wait of that. At their end, gained more places were loaded ahead than at their beginning, or
// fewer if it is negative. So that many batches take as long as it takes to load as many, but not
// less than what wasn't waiting: the step and the copy. If measuring ended while training waited for
// a batch, unfinished is for how long: loading set the pace then, and what was loaded of later
// batches counts too.
func hidden(all, wait, unfinished time.Duration, iterations, gained, batchSize int) time.Duration {
	loaded := float64(iterations) + float64(gained)/float64(batchSize)
	if loaded <= 0.5 {
		return 0
	}
	return max(time.Duration(float64(all+unfinished)*float64(iterations)/loaded)-all, -wait)
}

// pauses tell a step that pauses, for a checkpoint say, from the other steps of a warm-up or of a
// visit: it is the longest, by far. A pause doesn't count for how long the warm-up or the visit has
// taken. If pauses ended them, the next visit, or what is measured of this one, would begin right
// after a pause. With pauses that come regularly, visits would keep time with them: one count would
// be measured only between two pauses, and another would meet one in each visit.
type pauses struct {
	steps         int
	first, second time.Duration // the longest of them
	before        time.Duration // the second of those before
	known         bool          // there were some before
}

// begin begins anew.
func (p *pauses) begin() {
	if p.steps > 1 {
		p.before, p.known = p.second, true
	}
	p.steps, p.first, p.second = 0, 0, 0
}

func (p *pauses) add(step time.Duration) {
	p.steps++
	p.first, p.second = max(p.first, step), max(p.second, min(p.first, step))
}

// longer is by how much the longest step took longer than any other.
func (p *pauses) longer() time.Duration {
	switch {
	case p.steps > 1:
		return p.first - p.second
	case p.known:
		return max(0, p.first-p.before)
	}
	return 0
}

// overlap is how long two spans of time have in common.
func overlap(begin1, end1, begin2, end2 time.Time) time.Duration {
	begin, end := later(begin1, begin2), end1
	if end.After(end2) {
		end = end2
	}
	return max(0, end.Sub(begin))
}

// runStep runs the user's step; its panic becomes an error.
func runStep(ctx context.Context, step func(context.Context, *Batch) error, b *Batch) (err error) {
	guard.Call(func() error { return step(ctx, b) }, func(stack []byte, cause error) {
		err = fmt.Errorf("nwt: WithStep, batch %d of epoch %d: %w", b.Index(), b.Epoch(), cause)
		if stack != nil {
			err = fmt.Errorf("%w\n%s", err, stack)
		}
	})
	return err
}
