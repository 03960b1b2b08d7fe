package nwt

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nwt-go/nwt/internal/host"
	"github.com/nwt-go/nwt/internal/search"
)

// A Result is what [Tune] found, with every figure behind it. As JSON its names
// are these in snake case, and durations are whole nanoseconds.
type Result struct {
	Workers    int           `json:"workers"`    // the choice: fewest workers within Alpha of the fastest
	Fastest    int           `json:"fastest"`    // the time-best count
	Trials     []Trial       `json:"trials"`     // one per worker count measured, ascending
	Alpha      time.Duration `json:"alpha_ns"`   // the difference that the choice ignores, over Iterations iterations
	Iterations int           `json:"iterations"` // that alpha and Trial.Total are accumulated over
	Confidence float64       `json:"confidence"` // how often a re-run would choose the same, 0 … 1; 0 where that isn't known

	// Unpinned is the choice with batches in ordinary memory, where
	// WithPinnedComparison asked for it; else nil.
	Unpinned *Trial `json:"unpinned,omitempty"`

	// Floor is an iteration's time with batches that are already loaded: what
	// perfect loading would give.
	Floor time.Duration `json:"floor_ns"`

	// RuledOut are worker counts that the search would have tried or chosen but
	// for the memory they take, ascending.
	RuledOut []RuledOut `json:"ruled_out,omitempty"`

	Strategy   string `json:"strategy"` // "greedy", "exhaustive", or "live" where a loader tuned itself
	Device     string `json:"device"`
	BatchSize  int    `json:"batch_size"`
	BatchBytes int    `json:"batch_bytes"`
	Step       bool   `json:"step"`   // iterations include a training step: WithStep was given
	Cached     bool   `json:"cached"` // taken from the file of WithResultCache

	Hardware Hardware      `json:"hardware"`
	Reason   string        `json:"reason"`             // of the choice, a sentence
	Warnings []string      `json:"warnings,omitempty"` // what makes the answer less trustworthy
	Advice   []string      `json:"advice,omitempty"`   // what to change, from what was measured
	Elapsed  time.Duration `json:"elapsed_ns"`         // that tuning took
}

// RuledOut is a worker count that may not be chosen.
type RuledOut struct {
	Workers int    `json:"workers"`
	Reason  string `json:"reason"`
}

// Hardware is what the process had to run on.
type Hardware struct {
	CPU        string  `json:"cpu"`      // model
	Logical    int     `json:"logical"`  // CPUs of the machine, hyper-threads included
	Physical   int     `json:"physical"` // cores of the machine
	Affinity   int     `json:"affinity"` // logical CPUs that the process may run on
	Quota      float64 `json:"quota"`    // CPUs' worth of time that the container may use; 0: no quota
	GOMAXPROCS int     `json:"gomaxprocs"`
	Memory     uint64  `json:"memory"` // bytes, of the machine
}

// A Trial is what was measured at one worker count.
type Trial struct {
	Workers    int           `json:"workers"`
	Iterations int           `json:"iterations"` // measured; warm-up is left out
	Mean       time.Duration `json:"mean_ns"`    // per iteration: wait + transfer (+ step, where one is given)
	Low        time.Duration `json:"low_ns"`     // with High the 95 % interval of Mean, drift that all counts share left out
	High       time.Duration `json:"high_ns"`
	Median     time.Duration `json:"median_ns"` // per iteration
	P99        time.Duration `json:"p99_ns"`    // per iteration
	Total      time.Duration `json:"total_ns"`  // of Result.Iterations iterations

	Wait     time.Duration `json:"wait_ns"`     // mean time blocked for a batch
	Transfer time.Duration `json:"transfer_ns"` // mean time of the copy to the device that nothing hid
	Step     time.Duration `json:"step_ns"`     // mean time of the training step

	Copy      time.Duration `json:"copy_ns,omitempty"`   // to the device, hidden or not; mean
	Bandwidth float64       `json:"bandwidth,omitempty"` // of the copies, bytes per second

	FirstBatch time.Duration `json:"first_batch_ns"` // from the start of the workers; the quickest seen
	PeakRSS    uint64        `json:"peak_rss"`       // bytes, of the process
	PeakExact  bool          `json:"peak_exact"`     // told by the kernel rather than sampled
	SystemUsed uint64        `json:"system_used"`    // bytes in use on the machine when the trial ended
	CPU        float64       `json:"cpu"`            // share of the machine's CPUs in use by this process, 0 … 1
	OtherCPU   float64       `json:"other_cpu"`      // and by everything else
}

// Progress is where tuning stands.
type Progress struct {
	Phase   string        // "measuring", "floor" or "done"
	Workers int           // the count that is being measured
	Done    float64       // share, 0 … 1; it never falls
	Elapsed time.Duration // since Tune was called
	Left    time.Duration // estimate
	Trial   *Trial        // what is known of a count that was just measured, else nil
}

// Tune measures, on this machine and with this dataset, how long a batch takes
// to reach the device at each worker count, and picks the fewest workers that
// are as good as the fastest. It takes the options that training will use, and
// measures the loader that training will use; what it loads is thrown away.
//
// The errors are those of [NewLoader], of loading, of the step and of ctx.
func Tune(ctx context.Context, ds Dataset, opts ...Option) (*Result, error) {
	src, err := newSource(ds, opts)
	if err != nil {
		return nil, err
	}
	return src.tune(ctx)
}

func (s *source) tune(ctx context.Context) (*Result, error) {
	if s.order.n != endless && s.order.steps(0) == 0 {
		return nil, optionError("WithDropLast", s.opts.batchSize, "leaves no batch of %d samples for each of %d ranks: an epoch has %d",
			s.opts.batchSize, s.opts.world, s.order.n)
	}
	tuned := *s
	tuned.said = &said{during: whileTuning}
	defer tuned.said.sum(s.opts.log)
	t := &tuner{source: &tuned, began: time.Now(), cpus: host.CPUs(), limit: s.memoryLimit(), refused: make(map[int]string)}
	return t.remembered(ctx)
}

// memoryLimit is the peak that no worker count may pass.
func (s *source) memoryLimit() memoryLimit {
	if s.opts.maxMemory > 0 {
		return memoryLimit{bytes: s.opts.maxMemory, from: "set by WithMemoryLimit"}
	}
	return defaultMemoryLimit(s.opts.ranks())
}

func thisMachine(c host.CPUFacts) Hardware {
	return Hardware{
		CPU: c.Model, Logical: c.Logical, Physical: c.Physical, Affinity: c.Affinity, Quota: c.Quota,
		GOMAXPROCS: c.GOMAXPROCS, Memory: host.Memory().Total,
	}
}

// A tuner measures for a search.
type tuner struct {
	*source
	began   time.Time
	cpus    host.CPUFacts
	limit   memoryLimit
	refused map[int]string // worker counts that memory rules out, and why
	counts  []*count       // what was measured, in the order in which counts were first visited
	next    State          // where the next visit begins, so that none profits from what another has read
	steps   preparation    // of the training step
	sampled string         // why peaks aren't exact
	done    float64        // share, as last shown
}

// A count is all that was measured at a worker count.
type count struct {
	Trial
	blocks                    []search.Block
	took                      []time.Duration // per iteration
	wait, transfer, step, all time.Duration   // sums
	copies                    copies          // while it was measured
	cpu, other                float64         // weighted by time
}

func (t *tuner) tune(ctx context.Context) (*Result, error) {
	o := t.opts
	sp := search.Space{CPUs: o.cpus(), Max: o.most, Alpha: o.alpha, Iterations: 100, Budget: o.budget, Allowed: t.allowed}
	if o.iterations > 0 {
		sp.Iterations, sp.Fixed = o.iterations, true
	}
	busy := host.StartCPU()
	outOfTime := false
	for {
		req, more := o.strategy.search().Next(sp, t.series())
		if outOfTime = o.budget > 0 && len(t.counts) > 0 && t.spent() >= o.budget; outOfTime || !more {
			break
		}
		t.show(sp, "measuring", req.Workers, nil)
		c, err := t.visit(ctx, req)
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(t.counts, func(c *count) bool { return t.allowed(c.Workers) }) {
			return nil, fmt.Errorf("nwt: no worker count fits into memory: %s", t.refused[t.counts[0].Workers])
		}
		t.show(sp, "measuring", req.Workers, &c.Trial)
	}
	_, others := busy.Stop()
	r := t.result(sp)
	t.show(sp, "floor", r.Workers, nil)
	var err error
	if r.Floor, err = t.floor(ctx, r.Workers); err != nil {
		return nil, err
	}
	if r.Unpinned, err = t.unpinned(ctx, r); err != nil {
		return nil, err
	}
	r.Elapsed = time.Since(t.began)
	r.Warnings = t.warnings(r, others, outOfTime)
	r.Advice = t.advice(r, t.cpus.Usable(), t.limit)
	t.show(sp, "done", r.Workers, nil)
	return r, nil
}

// wave is how many batches workers have in hand at once, and so finish at about
// the same time where their samples take equally long.
func (s *source) wave(workers int) int {
	return max(1, (workers+s.opts.batchSize-1)/s.opts.batchSize)
}

// A visit leaves out the first batches, until all workers are at work, their
// slots have memory and the kernel has found a CPU for each thread. It measures
// so many waves at least: in fewer it would see a burst, or the pause between two.
const (
	warmupBatches = 2
	warmupTime    = 10 * time.Millisecond
	fewestWaves   = 4
)

// visit measures one worker count for a while.
func (t *tuner) visit(ctx context.Context, req search.Request) (*count, error) {
	c := t.at(req.Workers)
	if c == nil {
		c = &count{Trial: Trial{Workers: req.Workers, PeakExact: true}}
		t.counts = append(t.counts, c)
	}
	b, err := t.measure(ctx, c, t.loader(req.Workers), req)
	if err != nil {
		return nil, err
	}
	c.blocks = append(c.blocks, b)
	return c, nil
}

// at is what is known of a worker count; nil if it wasn't visited.
func (t *tuner) at(workers int) *count {
	i := slices.IndexFunc(t.counts, func(c *count) bool { return c.Workers == workers })
	if i < 0 {
		return nil
	}
	return t.counts[i]
}

// series are the counts as the search sees them.
func (t *tuner) series() []search.Series {
	out := make([]search.Series, len(t.counts))
	for i, c := range t.counts {
		out[i] = search.Series{Workers: c.Workers, Blocks: c.blocks}
	}
	return out
}

// measure adds what a visit with a loader measures to what is known of its count.
func (t *tuner) measure(ctx context.Context, c *count, l *Loader, req search.Request) (search.Block, error) {
	debug.FreeOSMemory() // what the last visit left isn't this one's
	peak := host.StartPeak()
	wave := t.wave(req.Workers)
	m := measurement{warmup: max(warmupBatches, wave), warmupTime: warmupTime, wave: wave, iterations: req.Iterations, limit: req.Limit, took: c.took, steps: &t.steps}
	if more := fewestWaves * wave; wave > 1 && more > m.iterations {
		m.limit = time.Duration(min(float64(req.Limit)*float64(more)/float64(m.iterations), math.MaxInt64/2))
		m.iterations = more
	}
	if t.opts.budget > 0 {
		m.limit = min(m.limit, max(1, t.opts.budget-t.spent()))
	}
	err := m.run(ctx, l, t.opts.step, t.next)
	if t.next = m.reached; t.order.n == endless {
		t.next = State{Epoch: m.reached.Epoch + 1} // to go on within would read from the start
	}
	_ = l.Close() // never fails
	rss, exact := peak.Stop()
	if err != nil {
		return search.Block{}, err
	}

	n := len(m.took) - len(c.took)
	c.took, c.Iterations = m.took, len(m.took)
	c.wait, c.transfer, c.step = c.wait+m.wait, c.transfer+m.transfer, c.step+m.step
	c.copies = c.copies.plus(m.copies)
	c.cpu, c.other = c.cpu+m.cpu*float64(m.all), c.other+m.other*float64(m.all)
	c.all += m.all
	if c.FirstBatch == 0 || m.first < c.FirstBatch {
		c.FirstBatch = m.first
	}
	c.PeakRSS, c.PeakExact = max(c.PeakRSS, rss), c.PeakExact && exact
	if !exact {
		t.sampled = peak.Note()
	}
	c.SystemUsed = host.Memory().Used
	c.average()
	return search.Block{Round: req.Round, Iterations: n, Mean: m.all / time.Duration(n), CPU: m.cpu}, nil
}

// unpinned measures the choice with batches in ordinary memory, for as long as
// it was measured with page-locked memory.
func (t *tuner) unpinned(ctx context.Context, r *Result) (*Trial, error) {
	o := *t.opts
	if !o.compare || onHost(o.device) || o.pinned != nil && !*o.pinned {
		return nil, nil
	}
	o.pinned = new(false)
	src := *t.source
	src.opts, src.slotMem = &o, newSlotMemory(&o)
	c := &count{Trial: Trial{Workers: r.Workers, PeakExact: true}}
	if _, err := t.measure(ctx, c, src.loader(r.Workers), search.Request{Workers: r.Workers, Iterations: r.trial(r.Workers).Iterations}); err != nil {
		return nil, err
	}
	c.Total = c.Mean * time.Duration(r.Iterations)
	return &c.Trial, nil
}

// allowed tells whether a worker count fits into memory, as far as is known.
func (t *tuner) allowed(workers int) bool {
	peaks := make([]memoryPeak, len(t.counts))
	for i, c := range t.counts {
		peaks[i] = memoryPeak{c.Workers, c.PeakRSS}
	}
	why := t.limit.allows(workers, peaks)
	delete(t.refused, workers)
	if why != "" {
		t.refused[workers] = why
	}
	return why == ""
}

// average computes a trial's means from its sums.
func (c *count) average() {
	n := time.Duration(len(c.took))
	c.Mean, c.Wait, c.Transfer, c.Step = c.all/n, c.wait/n, c.transfer/n, c.step/n
	c.CPU, c.OtherCPU = c.cpu/float64(c.all), c.other/float64(c.all)
	if c.copies.batches > 0 {
		c.Copy = c.copies.took / time.Duration(c.copies.batches)
		c.Bandwidth = float64(c.copies.bytes) / max(c.copies.took, 1).Seconds()
	}
	sorted := slices.Sorted(slices.Values(c.took))
	c.Median = sorted[len(sorted)/2]
	c.P99 = sorted[min(len(sorted)-1, len(sorted)*99/100)]
}

// spent is how much of the budget is used up: all time but that of preparations.
func (t *tuner) spent() time.Duration { return time.Since(t.began) - t.steps.took }

// A preparation is the first step with a batch of each length: a framework with
// a compiler compiles in it, for seconds, and never again. It isn't measured.
type preparation struct {
	lengths map[int]bool
	took    time.Duration
}

// first tells once per length that it is the first.
func (p *preparation) first(length int) bool {
	if p.lengths[length] {
		return false
	}
	if p.lengths == nil {
		p.lengths = make(map[int]bool)
	}
	p.lengths[length] = true
	return true
}

// A measurement is some iterations over a loader's batches.
type measurement struct {
	warmup     int           // batches before
	warmupTime time.Duration // and more of them until so much time has passed
	wave       int           // batches that are measured at least
	iterations int           // wanted
	limit      time.Duration // ends it early; 0: none
	steps      *preparation
	took       []time.Duration
	first      time.Duration // until the first batch
	reached    State
	cpu, other float64

	wait, transfer, step, all time.Duration // sums over what was measured
	copies                    copies        // while it was
}

// run measures l's batches from a state on, epoch after epoch.
func (m *measurement) run(ctx context.Context, l *Loader, step func(context.Context, *Batch) error, from State) error {
	m.took = slices.Grow(m.took, m.iterations)
	var (
		err   error
		cpu   *host.CPUMeter
		base  copies
		start = time.Now()
		prev  = start
		n     = -m.warmup
	)
	l.iterate(ctx, from.Epoch, math.MaxInt32, from.Samples, func(b *Batch, e error) bool {
		if err = e; err != nil {
			return false
		}
		got := time.Now()
		if m.first == 0 {
			m.first = got.Sub(start)
		}
		if m.reached = b.State(); m.reached.Samples < 0 { // without order there is no state, but about here
			m.reached.Samples = b.from + b.size
		}
		end := got
		if step != nil {
			if err = runStep(ctx, step, b); err != nil {
				return false
			}
			end = time.Now()
			if m.steps.first(b.Len()) {
				m.steps.took += end.Sub(got)
				start, prev = start.Add(end.Sub(got)), end
				return true
			}
		}
		n++
		switch warm := end.Sub(start); {
		case n <= 0 && m.limit > 0 && warm > m.limit:
			n = 0 // no time for more of a warm-up
		case n == 0 && warm < m.warmupTime:
			n = -1
		}
		switch {
		case n < 0:
		case n == 0:
			cpu, base = host.StartCPU(), l.copies()
			end = time.Now()
		default:
			copying := overlap(b.copyBegan, b.copyEnded, prev, got)
			m.took = append(m.took, end.Sub(prev))
			m.wait += got.Sub(prev) - copying
			m.transfer += copying
			m.step += end.Sub(got)
			m.all += end.Sub(prev)
		}
		prev = end
		return n < m.iterations && (m.limit == 0 || n < max(1, m.wave) || m.all < m.limit)
	})
	if cpu != nil {
		m.cpu, m.other = cpu.Stop()
		m.copies = l.copies().minus(base)
	}
	if err == nil && n < 1 {
		err = errors.New("nwt: the dataset yields no batch")
	}
	return err
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
	finished := false
	defer func() {
		if !finished {
			stack, cause := recovered(recover())
			err = fmt.Errorf("nwt: WithStep, batch %d of epoch %d: %w\n%s", b.Index(), b.Epoch(), cause, stack)
		}
	}()
	err = step(ctx, b)
	finished = true
	if err != nil {
		return fmt.Errorf("nwt: WithStep, batch %d of epoch %d: %w", b.Index(), b.Epoch(), err)
	}
	return nil
}

// floor measures iterations whose batches are already loaded: the same loader,
// over a dataset that loads what fills its slots and then leaves them as they
// are.
func (t *tuner) floor(ctx context.Context, workers int) (time.Duration, error) {
	l := t.loader(workers)
	defer l.Close()
	l.loadSample, l.loadBatch = loadOnce(l), nil
	m := measurement{warmup: l.depth() + 1, iterations: 50, limit: time.Second, steps: &t.steps}
	err := m.run(ctx, l, t.opts.step, t.next)
	if err != nil {
		return 0, err
	}
	return m.all / time.Duration(len(m.took)), nil
}

// loadOnce is l's load for the samples that fill its slots for the first time,
// and nothing from then on.
func loadOnce(l *Loader) func(ctx context.Context, index int, dst *Sample) error {
	load := l.loadSample
	var loaded atomic.Int64
	places := int64(l.depth() * l.opts.batchSize)
	return func(ctx context.Context, index int, dst *Sample) error {
		if loaded.Load() < places && loaded.Add(1) <= places {
			return load(ctx, index, dst)
		}
		for f, c := range l.layout.columns {
			if c.ragged >= 0 {
				dst.SetLen(f, c.rows)
			}
		}
		return nil
	}
}

func (t *tuner) result(sp search.Space) *Result {
	o := t.opts
	c := search.Choose(sp, t.series())
	r := &Result{
		Workers: c.Workers, Fastest: c.Fastest, Alpha: c.Alpha, Iterations: sp.Iterations, Confidence: c.Confidence,
		Strategy: o.strategy.String(), Device: o.device.String(), BatchSize: o.batchSize, BatchBytes: t.layout.bytes * o.batchSize,
		Step:     o.step != nil,
		Hardware: thisMachine(t.cpus),
	}
	for _, w := range slices.Sorted(maps.Keys(t.refused)) {
		r.RuledOut = append(r.RuledOut, RuledOut{w, t.refused[w]})
	}
	for _, e := range c.Estimates {
		trial := t.at(e.Workers).Trial
		trial.Low, trial.High = e.Around(trial.Mean)
		trial.Total = trial.Mean * time.Duration(sp.Iterations)
		r.Trials = append(r.Trials, trial)
	}
	r.Reason = r.reason()
	return r
}

// show reports progress.
func (t *tuner) show(sp search.Space, phase string, workers int, trial *Trial) {
	if t.opts.progress == nil {
		return
	}
	visits := 0
	for _, c := range t.counts {
		visits += len(c.blocks)
	}
	p := Progress{Phase: phase, Workers: workers, Elapsed: time.Since(t.began), Trial: trial}
	if phase == "done" {
		p.Done = 1
	} else {
		// How much is left depends on what will be measured: this assumes an
		// ordinary search.
		t.done = max(t.done, min(0.95, float64(visits)/float64(t.opts.strategy.search().Usual(sp))))
		p.Done = t.done
		if p.Done > 0 {
			p.Left = time.Duration(float64(p.Elapsed) * (1 - p.Done) / p.Done)
		}
	}
	t.opts.progress(p)
}
