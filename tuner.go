package nwt

import (
	"context"
	"fmt"
	"maps"
	"math"
	"runtime/debug"
	"slices"
	"time"

	"github.com/nwt-go/nwt/internal/host"
	"github.com/nwt-go/nwt/internal/permute"
	"github.com/nwt-go/nwt/internal/search"
)

// A Result is what [Tune] found, with every figure behind it. In JSON the field
// names are in snake case, and durations are whole nanoseconds.
type Result struct {
	Workers    int           `json:"workers"`    // the choice: fewest workers within Alpha of the fastest, as far as measuring tells; else the roundest that may be
	Fastest    int           `json:"fastest"`    // the time-best count; not one that seems faster by less than measuring tells
	Trials     []Trial       `json:"trials"`     // one per worker count measured, ascending, without those that RuledOut has
	Alpha      time.Duration `json:"alpha_ns"`   // the difference that the choice ignores, over Iterations iterations
	Iterations int           `json:"iterations"` // over how many iterations Alpha and Trial.Total accumulate
	Confidence float64       `json:"confidence"` // how often another run would choose the same, 0 … 1; 0: not known
	Slower     float64       `json:"slower"`     // upper bound, at 95 %, of the share by which the choice is slower than the best count tried; not known if Confidence isn't

	// Floor is the time of an iteration if batches are already loaded: no loading can
	// be faster. 0: not known.
	Floor time.Duration `json:"floor_ns"`

	// RuledOut are the worker counts, ascending, that the search would otherwise have tried or
	// chosen: they take too much memory. 0 is among them if WithTimeout was given, which
	// doesn't hold without workers.
	RuledOut []RuledOut `json:"ruled_out,omitempty"`

	Strategy   string `json:"strategy"` // "greedy", "exhaustive", or "live" if a loader tuned itself
	Device     string `json:"device"`
	BatchSize  int    `json:"batch_size"`
	BatchBytes int    `json:"batch_bytes"`
	Step       bool   `json:"step"`   // iterations include a training step: WithStep was given
	Cached     bool   `json:"cached"` // taken from the file of WithResultCache

	Hardware Hardware      `json:"hardware"`
	Reason   string        `json:"reason"`             // why the choice was made, a sentence
	Warnings []string      `json:"warnings,omitempty"` // what makes the answer less trustworthy
	Advice   []string      `json:"advice,omitempty"`   // what to change, from what was measured
	Elapsed  time.Duration `json:"elapsed_ns"`         // how long tuning took
}

// RuledOut is a worker count that may not be chosen.
type RuledOut struct {
	Workers int    `json:"workers"`
	Reason  string `json:"reason"`
}

func (r RuledOut) forMemory() bool { return r.Reason != notInline }

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
	Iterations int           `json:"iterations"` // measured; warm-up is left out, unless the time was over before there was more
	Mean       time.Duration `json:"mean_ns"`    // per iteration: wait + transfer (+ step, if one is given)
	Low        time.Duration `json:"low_ns"`     // Low … High is the 95 % interval of Mean, without drift that all counts share
	High       time.Duration `json:"high_ns"`
	Median     time.Duration `json:"median_ns"` // per iteration
	P99        time.Duration `json:"p99_ns"`    // per iteration
	Total      time.Duration `json:"total_ns"`  // for Result.Iterations iterations

	Wait     time.Duration `json:"wait_ns"`     // mean time blocked for a batch
	Transfer time.Duration `json:"transfer_ns"` // mean time of the copy to the device, as far as other work didn't hide it
	Step     time.Duration `json:"step_ns"`     // mean time of the training step

	// Reading is the share of the time, 0 … 1, in which a stream's records were being
	// read for the next batch. Near 1, reading sets the pace. If enough records are
	// always read ahead, or the dataset is no stream, it is 0.
	Reading float64 `json:"reading,omitempty"`

	Copy      time.Duration `json:"copy_ns,omitempty"`   // mean time of the copy to the device, hidden or not
	Bandwidth float64       `json:"bandwidth,omitempty"` // of the copies, bytes per second

	FirstBatch time.Duration `json:"first_batch_ns"` // until the first batch, the shortest seen: from the start of new workers, WithWorkerInit included, or from the start of a visit if no worker was new
	Prefetch   int           `json:"prefetch"`       // the most batches ahead of the one in use during the trial
	Memory     uint64        `json:"memory"`         // bytes that the process must have, without pages of files and idle heap; 0: not known
	PeakRSS    uint64        `json:"peak_rss"`       // bytes, of the process, pages of files included
	PeakExact  bool          `json:"peak_exact"`     // told by the kernel rather than sampled
	SystemUsed uint64        `json:"system_used"`    // bytes in use on the machine when the trial ended

	// Shares of the CPUs, 0 … 1. With several ranks on the host, a process's CPUs are
	// its share of them.
	CPU          float64 `json:"cpu"`           // that this process used, its garbage collector included
	CollectorCPU float64 `json:"collector_cpu"` // that its garbage collector used
	OtherCPU     float64 `json:"other_cpu"`     // that everything else used; −1: not known
}

// Progress is where tuning stands.
type Progress struct {
	Phase   string        // "measuring", "floor" or "done"
	Workers int           // the count that is being measured
	Done    float64       // share, 0 … 1; it never falls
	Elapsed time.Duration // since Tune was called
	Left    time.Duration // estimate
	Trial   *Trial        // what is known so far of the count that was just measured, else nil
}

// Tune measures, on this machine and with this dataset, how long a batch takes to
// reach the device at several worker counts. It picks the fewest workers that are as
// good as the fastest. If measuring doesn't tell which of several counts that is, it picks
// the roundest of them (8 rather than 7), because other runs then pick the same. Give it the
// options that training will use: it measures the same loader. What it loads is thrown
// away.
//
// The errors are those of [NewLoader], of loading, of the step and of ctx. It is also an error
// if no worker count fits into memory. If ctx ends when the result is complete, Tune returns
// the result.
func Tune(ctx context.Context, ds Dataset, opts ...Option) (*Result, error) {
	src, err := newSource(ds, opts)
	if err != nil {
		return nil, err
	}
	return src.tune(ctx)
}

func (s *source) tune(ctx context.Context) (*Result, error) {
	tuned := *s
	tuned.once = &onceLog{during: whileTuning}
	t := &tuner{
		source: &tuned, began: time.Now(), cpus: s.opts.machine.CPUs(), limit: s.memoryLimit(), refused: make(map[int]string),
		inline: s.opts.mayInline(), repeats: firstRepeats,
	}
	return t.remembered(ctx)
}

// memoryLimit is the peak that no worker count may pass.
func (s *source) memoryLimit() memoryLimit {
	if s.opts.maxMemory > 0 {
		return memoryLimit{bytes: s.opts.maxMemory, from: "set by WithMemoryLimit"}
	}
	return defaultMemoryLimit(s.opts)
}

func hardware(c host.CPUFacts) Hardware {
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
	before  uint64         // bytes that the process had to have when it began to tune
	refused map[int]string // worker counts that may not be chosen, and why
	inline  bool           // 0 workers may be measured
	counts  counts
	sampled string  // why peaks aren't exact
	unseen  string  // whose CPU time isn't known, and why
	done    float64 // share done, as last shown

	// live is the one loader of all visits. Only its worker count changes, so what
	// workers hold stays warm from visit to visit.
	live     *Loader
	calls    *calls        // of live
	visits   *streamVisits // nil if the dataset is no stream
	warm     warmth
	repeats  float64   // how many visits may still be repeated, see firstRepeats
	round    int       // of the last visit
	placed   bool      // there was a visit
	next     State     // where the next visit begins
	deadline time.Time // when measuring must end, preparations not counted; zero: none
	steps    preparation
	pauses   pauses
}

func (t *tuner) tune(ctx context.Context) (*Result, error) {
	o := t.opts
	sp := t.space()
	defer func() {
		if t.live != nil {
			_ = t.live.Close() // never fails
		}
		if t.visits != nil {
			t.visits.close()
		}
	}()
	debug.FreeOSMemory() // so that memory from before doesn't count as the trials'
	t.before = neededNow()
	if sp.Time > 0 {
		t.deadline = time.Now().Add(sp.Time) // of measuring: waiting for another process that tunes doesn't count
	}
	busy := o.machine.StartCPU()
	for {
		sp.Left = t.left()
		req, more := o.strategy.search().Next(sp, t.counts.series())
		if !more {
			break
		}
		t.show(sp, "measuring", req.Workers, nil)
		c, measured, err := t.visit(ctx, req)
		if err != nil {
			return nil, err
		}
		if !measured {
			break
		}
		if !t.fits() {
			if req.Workers > 0 {
				sp.Start = req.Workers / 2
				t.inline = t.inline || sp.Start == 0 // nothing else is left
				continue
			}
			return nil, fmt.Errorf("nwt: no worker count fits into memory: %s", t.refused[req.Workers])
		}
		known := c.Trial // a copy: the program may keep it
		known.Total = known.Mean * time.Duration(sp.Iterations)
		t.show(sp, "measuring", req.Workers, &known)
	}
	if !t.fits() {
		return nil, fmt.Errorf("nwt: the time for tuning was over before a worker count fitted into memory: %s", t.refused[t.counts[len(t.counts)-1].Workers])
	}
	others := busy.Used()
	others.Others = t.cpus.OthersShare(others.Others, o.ranks(), o.cpus())
	if !others.OthersKnown {
		others.Others, t.unseen = 0, busy.Note()
	}
	sp.Left = t.left()
	outOfTime := sp.Time > 0 && sp.Left <= 0
	r := t.result(sp)
	t.show(sp, "floor", r.Workers, nil)
	var err error
	if r.Floor, err = t.floor(ctx, r); err != nil {
		return nil, err
	}
	r.Elapsed = time.Since(t.began)
	r.Warnings = t.warnings(r, others.Others, outOfTime)
	r.Advice = t.advice(r, t.limit, others.Others, outOfTime)
	t.show(sp, "done", r.Workers, nil)
	return r, nil
}

// space is what the search may do.
func (t *tuner) space() search.Space {
	o := t.opts
	sp := search.Space{
		CPUs: o.cpus(), Start: min(o.cpus(), maxWorkers), Max: o.most, Alpha: o.alpha, Iterations: 100, Allowed: t.allowed,
		Time: o.tuningTime, MinVisit: probeSteps * o.machine.ClockStep(),
	}
	if sp.Max >= 0 {
		sp.Start = min(sp.Start, sp.Max)
	}
	if !t.inline && o.strategy == Exhaustive() {
		sp.CPUs = max(sp.CPUs, 2) // it measures up to CPUs−1 workers: at least one
	}
	if o.iterations > 0 {
		sp.Iterations, sp.Fixed = o.iterations, true
	}
	if sp.Time == 0 && !sp.Fixed && o.strategy == Greedy() {
		sp.Time = search.DefaultTime
	}
	return sp
}

// left is how much time for measuring is left; the maximum if there is no bound.
func (t *tuner) left() time.Duration {
	if t.deadline.IsZero() {
		return math.MaxInt64
	}
	return max(0, time.Until(t.ends()))
}

// ends is when measuring must end, preparations added; zero: there is no bound.
func (t *tuner) ends() time.Time {
	if t.deadline.IsZero() {
		return t.deadline
	}
	return t.deadline.Add(t.steps.took)
}

// A preparation is the first step with a batch of each shape. A framework with a
// compiler compiles in this step, for seconds, and never again, so the step isn't
// measured.
type preparation struct {
	shapes map[uint64]bool // by their hash
	took   time.Duration
}

// maxPrepared bounds the steps that aren't measured. If nearly every batch has another shape,
// all further steps are measured, compiling included.
const maxPrepared = 32

// first reports true the first time that it is asked for batches of b's shape.
func (p *preparation) first(b *Batch) bool {
	hash := uint64(0)
	for _, shape := range b.shapes {
		for _, n := range shape {
			hash = permute.Mix64(hash + uint64(n))
		}
	}
	if p.shapes[hash] || len(p.shapes) == maxPrepared {
		return false
	}
	if p.shapes == nil {
		p.shapes = make(map[uint64]bool)
	}
	p.shapes[hash] = true
	return true
}

// needs is the memory that a trial must have. The system can take back pages of files. If it
// isn't known how much of the peak they are, needs is the peak.
func (t *Trial) needs() uint64 {
	if t.Memory > 0 {
		return t.Memory
	}
	return t.PeakRSS
}

// neededNow is what the process must have now, as needs counts it.
func neededNow() uint64 {
	if memory, known := host.OwnMemory(); known {
		return memory
	}
	return host.Memory().RSS
}

// notInline is why 0 workers aren't measured.
const notInline = "0 workers weren't tried: WithTimeout holds only with workers"

// allowed tells whether a worker count may be tried and chosen, as far as is known.
func (t *tuner) allowed(workers int) bool {
	why := t.limit.allows(workers, t.counts.peaks())
	if workers == 0 && !t.inline {
		why = notInline
	}
	delete(t.refused, workers)
	if why != "" {
		t.refused[workers] = why
	}
	return why == ""
}

// fits tells whether a count was measured that may be chosen.
func (t *tuner) fits() bool {
	return slices.ContainsFunc(t.counts, func(c *count) bool { return t.allowed(c.Workers) })
}

func (t *tuner) result(sp search.Space) *Result {
	o := t.opts
	c := search.Choose(sp, t.counts.series())
	r := &Result{
		Workers: c.Workers, Fastest: c.Fastest, Alpha: c.Alpha, Iterations: sp.Iterations, Confidence: c.Confidence, Slower: c.Slower,
		Strategy: o.strategy.String(), Device: o.device.String(), BatchSize: o.batchSize, BatchBytes: t.layout.bytes * o.batchSize,
		Step:     o.step != nil,
		Hardware: hardware(t.cpus),
	}
	for _, w := range slices.Sorted(maps.Keys(t.refused)) {
		r.RuledOut = append(r.RuledOut, RuledOut{w, t.refused[w]})
	}
	for _, e := range c.Estimates {
		r.Trials = append(r.Trials, t.counts.at(e.Workers).trial(e, sp.Iterations))
	}
	r.Reason = r.reason(c)
	return r
}

// show reports progress.
func (t *tuner) show(sp search.Space, phase string, workers int, trial *Trial) {
	if t.opts.progress == nil {
		return
	}
	p := Progress{Phase: phase, Workers: workers, Elapsed: time.Since(t.began), Trial: trial}
	if phase == "done" {
		p.Done = 1
	} else {
		// How much is left depends on what will be measured: this assumes an
		// ordinary search.
		t.done = max(t.done, min(0.95, float64(t.counts.looks())/float64(t.opts.strategy.search().Usual(sp))))
		p.Done = t.done
		if p.Done > 0 {
			p.Left = time.Duration(float64(p.Elapsed) * (1 - p.Done) / p.Done)
		}
	}
	t.opts.progress(p)
}
