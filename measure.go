package nwt

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/nwt-go/nwt/internal/host"
	"github.com/nwt-go/nwt/internal/search"
)

// A count is all that was measured at a worker count.
type count struct {
	Trial
	blocks              []search.Block
	visits              []visited     // what the blocks were made of, in a tuner
	charged             time.Duration // for stragglers, in sum
	seen                []stretch     // what the blocks were made of, in a loader that tunes itself
	bodyError           float64       // nanoseconds; the standard error of the loop body in such a loader
	iterations          []iteration
	sum                 iteration
	copies              copies        // while it was measured
	cpu, gc, reading    float64       // shares weighted by time
	other               float64       // a share weighted by time too
	otherTime, measured time.Duration // for which other is known; and for which the shares above are
	warming             bool          // it was still becoming faster when its last visit ended
	started             bool          // a visit started workers
	extra               int           // batches more than the fewest that might be open when its last visit ended
	tooHigh             float64       // how many times too high the only visit may be; 0: hardly
}

func newCount(workers int) *count {
	return &count{Trial: Trial{Workers: workers, PeakExact: true, OtherCPU: -1}}
}

// trial is the count's Trial, with its interval and total.
func (c *count) trial(e search.Estimate, iterations int) Trial {
	t := c.Trial
	t.Low, t.High = e.Around(t.Mean)
	t.Total = t.Mean * time.Duration(iterations)
	return t
}

// counts are the worker counts that were measured, in the order of their first visit.
type counts []*count

// at is what is known of a worker count; nil if it wasn't measured.
func (c counts) at(workers int) *count {
	i := slices.IndexFunc(c, func(c *count) bool { return c.Workers == workers })
	if i < 0 {
		return nil
	}
	return c[i]
}

// series are the counts as the search sees them.
func (c counts) series() []search.Series {
	out := make([]search.Series, len(c))
	for i, one := range c {
		out[i] = search.Series{Workers: one.Workers, Blocks: one.blocks}
	}
	return out
}

// peaks are how much memory the counts need.
func (c counts) peaks() []memoryPeak {
	out := make([]memoryPeak, len(c))
	for i, one := range c {
		out[i] = memoryPeak{one.Workers, one.needs()}
	}
	return out
}

// looks is how many visits there were to all counts.
func (c counts) looks() (n int) {
	for _, one := range c {
		n += len(one.blocks)
	}
	return n
}

// An iteration is what one batch cost the consumer.
type iteration struct {
	all, wait, transfer, step time.Duration
	places                    int // of the batch, bad samples included
}

func (i iteration) plus(j iteration) iteration {
	return iteration{i.all + j.all, i.wait + j.wait, i.transfer + j.transfer, i.step + j.step, i.places + j.places}
}

// If a count has workers that begin cold (see warmth), a visit waits until each worker has
// loaded some samples. It measures at least a number of waves: in fewer it would see a
// burst, or the pause between two bursts.
const (
	warmupEnough  = 200 * time.Millisecond // a warm-up that has taken this long needs no more batches
	warmupPatient = 4                      // times a visit's limit that a warm-up with cold workers may take
	warmupMost    = 16                     // times the batches in which workers would be warm if all loaded alike, that a warm-up may have
	fewestWaves   = 4
)

// wave is how many batches the workers have in hand at once, if a batch has perBatch samples.
// If samples take equally long, the workers finish these batches at about the same time.
func wave(workers, perBatch int) int {
	return max(1, (workers+perBatch-1)/perBatch)
}

// inHand is wave for workers of l. Each worker of a BatchDataset may have a whole batch in
// hand, in one call. Until it is known how long a call takes, each is taken to have one.
func (l *Loader) inHand(workers int) int {
	perBatch := int(l.perBatch.Load())
	wave := wave(workers, perBatch)
	if l.loadBatch == nil {
		return wave
	}
	size := perBatch
	if l.opts.prefetch > 0 || l.pace.perBatch() > 0 {
		size = min(size, l.claimSize())
	}
	return max(wave, (workers*size+perBatch-1)/perBatch)
}

// deepenForCalls opens a batch for each worker at once, if each loads a whole batch in a call
// and depth follows need. Need would open these batches one after the other, and visits are too
// short to wait for that.
func (l *Loader) deepenForCalls() {
	if l.loadBatch == nil || !l.deepens() || l.pace.perBatch() < wholeBatches {
		return
	}
	l.mu.Lock()
	r := l.run
	l.mu.Unlock()
	r.turn.Lock()
	defer r.turn.Unlock()
	if extra := min(l.Workers()+2-l.leastDepth(), l.deep.bound()); extra > l.deep.Extra() {
		l.setExtra(extra)
	}
}

// visit measures one worker count for a while. It reports false if time ran out
// before there was anything to measure.
func (t *tuner) visit(ctx context.Context, req search.Request) (c *count, ok bool, err error) {
	if t.live == nil {
		t.visits = newStreamVisits(ctx, t.source)
		t.live = t.loader(req.Workers)
		t.live.visits = t.visits
		t.calls = timeCalls(t.live)
	}
	l := t.live
	if err := l.SetWorkers(req.Workers); err != nil {
		return nil, false, err
	}
	c = t.counts.at(req.Workers)
	known := c != nil
	if !known {
		c = newCount(req.Workers)
	}
	l.resetDepth(c.extra)
	if req.Round != t.round || !t.placed {
		if t.visits != nil {
			if t.placed {
				t.next.Epoch++
			}
			t.visits.turn(spread(req.Round))
		}
		t.round, t.placed = req.Round, true
		t.next = t.place(req.Round)
	}
	b, err := t.measure(ctx, c, l, req)
	if err != nil || b.Iterations == 0 {
		return c, false, err
	}
	if !known {
		t.counts = append(t.counts, c)
	}
	return c, true, nil
}

// callsOf is the timing of a loader's calls; nil: they aren't timed.
func (t *tuner) callsOf(l *Loader) *calls {
	if t.calls == nil || t.calls.l != l {
		return nil
	}
	return t.calls
}

// place is where the visits of a round begin. Rounds are spread over the epoch, so the front
// of the dataset alone doesn't decide. Within a round each visit goes
// on where the one before ended: it sees similar samples, and none that another
// count has brought into the page cache.
func (t *tuner) place(round int) State {
	steps := t.order.steps(0)
	if t.order.n == endless || steps < 2 {
		return State{Epoch: t.next.Epoch}
	}
	step := int(spread(round) * float64(steps))
	if t.order.batches > 0 {
		at, err := t.order.start(t.next.Epoch, step*t.opts.world)
		if err != nil {
			at = 0 // the loader meets it too, and tells
		}
		return State{Epoch: t.next.Epoch, Samples: at}
	}
	return State{Epoch: t.next.Epoch, Samples: step * t.opts.batchSize * t.opts.world}
}

// spread is where a round begins, 0 … 1. However many rounds there are, their places lie evenly.
func spread(round int) float64 {
	const golden = 0.6180339887498949
	_, place := math.Modf(float64(round) * golden)
	return place
}

// plan is what a visit with a loader is to measure, and whether it starts workers.
func (t *tuner) plan(l *Loader, req search.Request) (m *measurement, started bool) {
	wave := l.inHand(req.Workers)
	m = &measurement{
		warmup: max(search.WarmBatches, wave), warmupTime: search.WarmTime, deadline: t.deadline, steps: &t.steps, pauses: t.pauses, must: len(t.counts) == 0,
		calls:   t.callsOf(l),
		visit:   search.Visit{Wanted: req.Iterations, Least: wave, Limit: req.Limit, Part: probeSteps / 4 * t.opts.machine.ClockStep()},
		repeats: min(mostRepeats, int(t.repeats)),
	}
	t.repeats += repeatsPerVisit - float64(m.repeats)
	if started = t.warm.starts(l, req.Workers); started {
		m.cold, m.newcomers, m.fewest = l.cold(wave), l.newcomers, math.MaxInt
	}
	if more := fewestWaves * wave; wave > 1 && more > req.Iterations {
		m.visit.Limit = time.Duration(min(float64(req.Limit)*float64(more)/float64(req.Iterations), math.MaxInt64/2))
		m.visit.Wanted = more
	}
	if t.visits != nil {
		t.visits.begin(t.next.Epoch, t.ends())
		m.opening = t.visits.opening(l, wave)
	}
	return m, started
}

// measure adds what a visit with a loader measures to what is known of its count.
func (t *tuner) measure(ctx context.Context, c *count, l *Loader, req search.Request) (search.Block, error) {
	peak := host.StartPeak()
	defer peak.Stop() // even if the step panics or ends the goroutine
	m, started := t.plan(l, req)
	l.deep.held.Store(started)
	err := m.run(ctx, l, t.opts.step, t.next)
	t.repeats += float64(m.repeats) // those that weren't needed
	t.pauses = m.pauses
	if t.visits != nil {
		t.visits.end(t.next.Epoch, m.reached)
		m.reached.Samples, m.reached.World = 0, 0
	}
	t.next = m.reached
	rss, exact := peak.Stop()
	if err != nil || len(m.iterations) == 0 {
		return search.Block{}, err
	}

	c.iterations = append(c.iterations, m.iterations...)
	c.sum, c.Iterations = c.sum.plus(m.sum), len(c.iterations)
	c.copies = c.copies.plus(m.copies)
	cpu := c.use(m.use, m.sum.all, t.opts, t.cpus)
	first := m.first
	if started && l.opts.init != nil { // those that were there already have loaded batches meanwhile
		first = max(first, m.begun)
	}
	if c.FirstBatch == 0 || started && !c.started || started == c.started && first < c.FirstBatch {
		c.FirstBatch = first
	}
	c.started = c.started || started
	c.PeakRSS, c.PeakExact = max(c.PeakRSS, rss), c.PeakExact && exact
	if !exact {
		t.sampled = peak.Note()
	}
	c.Prefetch = max(c.Prefetch, l.depth()-1)
	if !l.opts.unordered { // without order no batch is held up, and workers that all have something to claim are too fast at first
		c.extra = l.deep.Extra()
	}
	c.SystemUsed = host.Memory().Used
	c.warming, c.tooHigh = m.visit.Trend, m.tooHigh
	b := search.Block{Round: req.Round, Iterations: len(m.iterations), Mean: m.sum.all / time.Duration(len(m.iterations)), Level: m.visit.Level(), Parts: m.visit.Parts(), CPU: cpu}
	c.visits, c.blocks = append(c.visits, visited{b, m.served}), append(c.blocks, b)
	c.chargeStragglers()
	c.average()
	return b, nil
}

// A usage is what a host.Meter has told of an interval.
type usage struct {
	host.Use
	reading float64 // share of the time in which a stream was read
}

// A meter measures what a loader uses from its beginning on.
type meter struct {
	host.Meter
	l     *Loader
	began time.Time
	read  time.Duration // how long the stream had been read when it began
}

func (l *Loader) startMeter(cpu host.Meter) *meter {
	return &meter{cpu, l, time.Now(), l.counters.reading.shown()}
}

func (m *meter) usage() (u usage) {
	u.Use = m.Used()
	u.reading = min(1, float64(m.l.counters.reading.shown()-m.read)/float64(max(1, time.Since(m.began))))
	return u
}

// missedCPUs tells whether threads waited for CPUs for so long that the interval says
// little about the worker count.
func (u usage) missedCPUs() bool { return u.Missed > missedTooMany*max(1, u.Own) }

// A visit in which threads missed CPUs, because something else used them or the kernel
// had put two threads on one, is measured anew at once, at most mostRepeats times. The last
// try counts whatever it shows: a count that makes its threads wait by itself doesn't look
// better for it. All visits together repeat at most firstRepeats times, and
// repeatsPerVisit times more for each visit.
const (
	missedTooMany   = 0.1 // share of those in use, and of one CPU
	mostRepeats     = 2
	firstRepeats    = 4
	repeatsPerVisit = 0.5
)

// use adds what a visit used of the machine to what is known of the count. The visit took the
// given time. use returns the share of the CPUs that this process used.
func (c *count) use(u usage, took time.Duration, o *options, cpus host.CPUFacts) (own float64) {
	weight := max(took, 1)
	share := func(used float64) float64 { return cpus.Share(used, o.ranks(), o.cpus()) }
	own = share(u.Own)
	c.measured += weight
	c.cpu, c.gc = c.cpu+own*float64(weight), c.gc+share(u.Collector)*float64(weight)
	c.reading += u.reading * float64(weight)
	if u.OthersKnown {
		others := cpus.OthersShare(u.Others, o.ranks(), o.cpus())
		c.other, c.otherTime = c.other+others*float64(weight), c.otherTime+weight
	}
	if memory, known := host.OwnMemory(); known {
		c.Memory = max(c.Memory, memory)
	}
	return own
}

// average computes a trial's means from its sums.
func (c *count) average() {
	n := time.Duration(c.Iterations)
	c.Mean, c.Wait, c.Transfer, c.Step = c.sum.all/n, c.sum.wait/n, c.sum.transfer/n, c.sum.step/n
	c.CPU, c.CollectorCPU, c.Reading = c.cpu/float64(c.measured), c.gc/float64(c.measured), c.reading/float64(c.measured)
	if c.otherTime > 0 {
		c.OtherCPU = c.other / float64(c.otherTime)
	}
	if c.copies.batches > 0 {
		c.Copy = c.copies.took / time.Duration(c.copies.batches)
		c.Bandwidth = float64(c.copies.bytes) / max(c.copies.took, 1).Seconds()
	}
	if len(c.iterations) == 0 {
		return
	}
	took := make([]time.Duration, len(c.iterations))
	for i, one := range c.iterations {
		took[i] = one.all
	}
	slices.Sort(took)
	c.Median = took[len(took)/2]
	c.P99 = took[len(took)*99/100]
}

// A warmth says which of a loader's workers have been given the time to become warm.
type warmth struct {
	most   int // workers that there have been
	fewest int // workers since then; those beyond have left
}

// starts tells whether some of the given number of workers begin cold. From then on it takes
// them all for warm. What workers have prepared by WithWorkerInit or Scratch is gone once they
// leave.
func (w *warmth) starts(l *Loader, workers int) bool {
	cold := workers > w.most || workers > w.fewest && l.partsWithWarmth()
	if cold {
		w.most, w.fewest = max(w.most, workers), workers
	}
	w.fewest = min(w.fewest, workers)
	return cold
}

// cold makes a measurement's cold. The warm-up takes whole waves, and includes the batches
// that are open when the last worker has become warm. Workers that find nothing to load aren't
// waited for. One is recognized by the batches that come: while a worker that isn't warm has a
// place to load, this place holds up its batch, so at most the open batches come. (During
// WithWorkerInit, and with WithUnordered, more do come; so batches that come while a worker
// begins don't count.)
func (l *Loader) cold(wave int) func(batches int) int {
	most := warmupMost * (l.Workers()*search.WarmSamples/int(l.perBatch.Load()) + 1)
	left, since, begun := math.MaxInt, 0, 0
	return func(batches int) int {
		since++
		if now := l.coldSamples(); now < left {
			left, since = now, 0
		}
		if _, begins := l.newcomers(); begins {
			begun++
			return l.open(batches, wave)
		}
		if left == 0 || since > l.depth() || batches-begun >= most {
			return 0
		}
		return l.open(batches, wave)
	}
}

// open is how many batches are open, and as many more as make whole waves of the warm-up.
func (l *Loader) open(batches, wave int) int {
	open := l.depth()
	return open + (wave-(batches+open)%wave)%wave
}

// The floor is measured over floorIterations, or for floorTime if that ends first. It isn't
// measured if filling the slots before that takes more than twice floorTime.
const (
	floorIterations = 50
	floorTime       = time.Second
)

// floor measures iterations whose batches are already loaded: its dataset fills the
// slots once and then leaves them as they are. It is 0, not known, if filling the
// slots would take too long, if the dataset is a stream, which can't be left unread, or if
// WithStep or WithFinish fails: they get batches that were finished before, or that hold what
// bad samples left.
func (t *tuner) floor(ctx context.Context, r *Result) (time.Duration, error) {
	if t.order.n == endless {
		return 0, nil
	}
	l := t.loader(r.Workers)
	defer l.Close()
	chosen := r.trial(r.Workers)
	if fill := time.Duration(l.depth()+1) * chosen.Mean; fill > 2*floorTime || fill+4*chosen.Step > t.left() {
		return 0, nil
	}
	l.deep.bound = func() int { return 0 } // what is loaded already needs no depth
	loadOnce(l, t.next)
	filled := l.depth() + 1
	m := measurement{
		warmup: 1, cold: func(batches int) int { return filled - batches }, instant: true, deadline: t.deadline, steps: &t.steps, pauses: t.pauses,
		visit: search.Visit{Wanted: floorIterations, Limit: floorTime},
	}
	step, refused := t.opts.step, false
	if step != nil {
		step = func(ctx context.Context, b *Batch) error {
			err := t.opts.step(ctx, b)
			refused = refused || err != nil
			return err
		}
	}
	err := m.run(ctx, l, step, t.next)
	if ctx.Err() == nil && (refused || errors.As(err, new(finishError))) {
		return 0, nil
	}
	if i := slices.IndexFunc(r.Trials, func(t Trial) bool { return t.Workers == r.Workers }); m.first > 0 {
		r.Trials[i].FirstBatch = m.first // all workers were new
	}
	if err != nil || len(m.iterations) == 0 || m.before < filled {
		return 0, err
	}
	return min(m.sum.all/time.Duration(len(m.iterations)), chosen.Mean), nil
}

// loadOnce makes l load only the samples that fill its slots for the first time: those of the
// first batches from a state on. From then on l loads nothing.
func loadOnce(l *Loader, from State) {
	load, together := l.loadSample, l.loadBatch
	epoch, position := l.position(from, l.depth())
	first := func(dst *Sample) bool { return dst.epoch < epoch || dst.epoch == epoch && dst.from < position }
	leave := func(dst *Sample) {
		for f := range dst.columns {
			c := &dst.columns[f]
			for d := range c.free {
				dst.setLen(f, c, d, dst.longest(c, d))
			}
		}
	}
	l.loadSample = func(ctx context.Context, index int, dst *Sample) error {
		if first(dst) {
			return load(ctx, index, dst)
		}
		leave(dst)
		return nil
	}
	if together == nil {
		return
	}
	l.loadBatch = func(ctx context.Context, indices []int, dst []*Sample) error {
		if first(dst[0]) { // all are of one batch
			return together(ctx, indices, dst)
		}
		for _, one := range dst {
			leave(one)
		}
		return nil
	}
}

// position is the epoch and the position at which the n-th batch after a state begins.
func (l *Loader) position(from State, n int) (epoch, position int) {
	base := from.Samples
	if l.order.batches > 0 {
		base, _ = l.order.batchAt(from.Epoch, base) // the loader meets errors of a BatchSampler too, and tells
	}
	c := newCourse(&l.order, from.Epoch, math.MaxInt32, base)
	epoch, base, k, _ := c.at(n)
	if l.order.batches > 0 {
		position, _, _, _ = c.partOf(epoch, base, k)
	} else {
		position, _, _ = c.part(base, k)
	}
	return epoch, position
}
