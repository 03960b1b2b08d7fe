package nwt

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"time"

	"github.com/nwt-go/nwt/internal/guard"
	"github.com/nwt-go/nwt/internal/host"
	"github.com/nwt-go/nwt/internal/human"
	"github.com/nwt-go/nwt/internal/permute"
	"github.com/nwt-go/nwt/internal/search"
)

// A Result is what [Tune] found, with every figure behind it. In JSON the field
// names are in snake case, and durations are whole nanoseconds.
type Result struct {
	Workers    int           `json:"workers"`    // the choice: fewest workers within Alpha of the fastest, as far as measuring tells
	Fastest    int           `json:"fastest"`    // the time-best count
	Trials     []Trial       `json:"trials"`     // one per worker count measured, ascending, without those that RuledOut has
	Alpha      time.Duration `json:"alpha_ns"`   // the difference that the choice ignores, over Iterations iterations
	Iterations int           `json:"iterations"` // over how many iterations Alpha and Trial.Total accumulate
	Confidence float64       `json:"confidence"` // how often another run would choose the same, 0 … 1; 0: not known

	Floor    time.Duration `json:"floor_ns"`            // an iteration's time without waiting and copying
	RuledOut []RuledOut    `json:"ruled_out,omitempty"` // counts, ascending, that take too much memory; 0 with WithTimeout and for a stream

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

func (r RuledOut) forMemory() bool { return r.Reason != notInline && r.Reason != notInlineStream }

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

	Wait     time.Duration `json:"wait_ns"`           // mean time blocked for a batch
	Transfer time.Duration `json:"transfer_ns"`       // mean time of the copy to the device, as far as other work didn't hide it
	Step     time.Duration `json:"step_ns"`           // mean time of the training step
	Reading  float64       `json:"reading,omitempty"` // share of the time, 0 … 1, in which a batch waited for a stream's records; near 1, reading sets the pace

	Copy      time.Duration `json:"copy_ns,omitempty"`   // mean time of the copy to the device, hidden or not
	Bandwidth float64       `json:"bandwidth,omitempty"` // of the copies, bytes per second

	FirstBatch time.Duration `json:"first_batch_ns"` // until the first batch, WithWorkerInit included; only of the count that was measured first
	Prefetch   int           `json:"prefetch"`       // the most batches ahead of the one in use during the trial
	Memory     uint64        `json:"memory"`         // bytes that the process must have, without pages of files and idle heap; 0: not known
	PeakRSS    uint64        `json:"peak_rss"`       // bytes, of the process, pages of files included
	PeakExact  bool          `json:"peak_exact"`     // told by the kernel rather than sampled
	SystemUsed uint64        `json:"system_used"`    // bytes in use on the machine when the trial ended

	// Shares, 0 … 1, of the CPUs: with several ranks on the host, of this rank's CPUs.
	CPU          float64 `json:"cpu"`           // that this process used, its garbage collector included
	CollectorCPU float64 `json:"collector_cpu"` // that its garbage collector used
	OtherCPU     float64 `json:"other_cpu"`     // that everything else used; −1: not known
}

// Progress is where tuning stands.
type Progress struct {
	Phase   string        // "measuring" or "done"
	Workers int           // the count that is being measured
	Done    float64       // share, 0 … 1; it never falls
	Elapsed time.Duration // since Tune was called
	Left    time.Duration // at most; 0: there is no bound
	Trial   *Trial        // what is known so far of the count that was just measured, else nil
}

// Tune measures, on this machine and with this dataset, how long a batch takes to reach
// the device at several worker counts, and picks the fewest workers that are as good as
// the fastest. Among equals it picks the default of [WithWorkers], if it can. Give it
// the options that training will use. It reads a stream from its beginning, epoch after
// epoch. What it loads is thrown away.
//
// The errors are those of [NewLoader], of loading, of the step and of ctx. It is also an
// error if no worker count fits into memory. If ctx ends when the result is complete,
// Tune returns the result.
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
	t := &tuner{source: &tuned, began: time.Now(), cpus: s.opts.machine.CPUs(), limit: s.memoryLimit()}
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

// A tuner is a call of Tune.
type tuner struct {
	*source
	began  time.Time
	cpus   host.CPUFacts
	limit  memoryLimit
	before uint64 // bytes that the process had to have when it began to tune

	told   time.Time // when progress was last logged
	done   float64   // share done, as last shown
	shapes shapes    // that the step has been called with
}

func (t *tuner) tune(ctx context.Context) (*Result, error) {
	debug.FreeOSMemory() // so that memory from before doesn't count as the trials'
	t.before = neededNow()
	sp := t.space()
	busy := t.opts.machine.StartCPU()
	m := t.newTuning(sp)
	if err := t.measure(ctx, m, m.search); err != nil {
		return nil, err
	}
	if !m.fits() {
		return nil, fmt.Errorf("nwt: no worker count fits into memory: %s", m.refused[m.counts[len(m.counts)-1].Workers])
	}
	others := busy.Used()
	r := m.result(m.Seen(), t.opts.strategy.String())
	r.Elapsed = time.Since(t.began)
	t.explain(m, r, others, busy.Note())
	t.show(m, "done", r.Workers)
	return r, nil
}

// space is what the search may do.
func (t *tuner) space() search.Space {
	o := t.opts
	sp := search.Space{
		CPUs: o.cpus(), Start: min(o.cpus(), maxWorkers), Max: o.most, Alpha: o.alpha, Iterations: 100, Least: search.LeastTime,
		Time: o.tuningTime, MinWindow: probeSteps * o.machine.ClockStep(),
	}
	if sp.Max >= 0 {
		sp.Start = min(sp.Start, sp.Max)
	}
	if o.iterations > 0 {
		sp.Iterations, sp.Fixed = o.iterations, true
	}
	if sp.Time == 0 && !sp.Fixed && o.strategy == Greedy() {
		sp.Time = search.DefaultTime
	}
	return sp
}

// errOver ends loading when tuning is over.
var errOver = errors.New("nwt: tuning is over")

// measure has a loader measured that trains, as it were, until next asks for nothing more.
func (t *tuner) measure(ctx context.Context, m *tuning, next func(*tuner, []search.Series) (search.Request, bool)) error {
	loading, end := context.WithCancelCause(ctx)
	defer end(nil)
	m.Next = func(seen []search.Series) (search.Request, bool) { return next(t, seen) }
	m.over = func() { end(errOver) }
	defer m.release()
	defer m.l.Close() // never fails
	m.Start(m.sp.Time)
	var err error
	any := false
	at, round, since := State{}, 0, time.Now()
	for more := true; more && err == nil; {
		more = false
		m.l.iterate(loading, at.Epoch, math.MaxInt32, at.Samples, func(b *Batch, failed error) bool {
			switch {
			case failed != nil:
				if context.Cause(loading) != errOver {
					err = failed
				}
				return false
			case context.Cause(loading) == errOver:
				return false
			}
			any = true
			if b.Epoch() > 0 && b.epoch > at.Epoch {
				m.again = true // samples come a second time
			}
			if err = t.train(ctx, m, b); err != nil {
				return false
			}
			if r := m.Round(); r != round && time.Since(since) > seldom*time.Duration(m.l.depth())*m.quickest() {
				at, round, since, more = t.place(r, b.epoch), r, time.Now(), true
			}
			return !more
		})
	}
	if err == nil && !any {
		return errors.New("nwt: the dataset yields no batch")
	}
	return err
}

// seldom is how many times as long as filling the loader a round must have taken so that the next
// one begins elsewhere in the epoch.
const seldom = 10

// place is where a round begins: rounds are spread over the epoch, so that its front alone doesn't
// decide.
func (t *tuner) place(round, epoch int) State {
	steps := t.order.steps(0)
	if t.order.n == endless || steps < 2 {
		return State{Epoch: epoch}
	}
	const golden = 0.6180339887498949 // however many rounds there are, their places lie evenly
	_, share := math.Modf(float64(round) * golden)
	step := int(share * float64(steps))
	if t.order.batches == 0 {
		return State{Epoch: epoch, Samples: step * t.opts.batchSize * t.opts.world}
	}
	at, err := t.order.start(epoch, step*t.opts.world)
	if err != nil {
		at = 0 // the loader meets it too, and tells
	}
	return State{Epoch: epoch, Samples: at}
}

// train runs the training step, if there is one. The first with a batch of each shape isn't
// measured: a framework with a compiler compiles in it, for seconds, and never again.
func (t *tuner) train(ctx context.Context, m *tuning, b *Batch) error {
	if t.opts.step == nil {
		return nil
	}
	began := time.Now()
	err := runStep(ctx, t.opts.step, b)
	if err != nil && ctx.Err() != nil {
		return contextError(ctx) // rather than what the step made of it
	}
	if t.shapes.isNew(b) {
		m.LeaveOut(time.Since(began))
	}
	return err
}

// shapes are those of batches, by their hash.
type shapes map[uint64]bool

// maxShapes bounds the steps that aren't measured. If nearly every batch has another shape,
// all further steps are measured, compiling included.
const maxShapes = 32

func (s *shapes) isNew(b *Batch) bool {
	hash := uint64(0)
	for _, shape := range b.shapes {
		for _, n := range shape {
			hash = permute.Mix64(hash + uint64(n))
		}
	}
	if (*s)[hash] || len(*s) == maxShapes {
		return false
	}
	if *s == nil {
		*s = make(shapes)
	}
	(*s)[hash] = true
	return true
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

// search is what Tune's search asks for next.
func (m *tuning) search(t *tuner, seen []search.Series) (search.Request, bool) {
	if len(seen) > 0 && !m.fits() {
		last := m.counts[len(m.counts)-1].Workers
		if last == 0 {
			return search.Request{}, false
		}
		m.sp.Start = last / 2
		m.inline = m.inline || m.sp.Start == 0 // nothing else is left
	}
	m.sp.Left = m.Left(time.Now())
	req, more := t.opts.strategy.search().Next(m.sp, seen)
	if more {
		t.show(m, "measuring", req.Workers)
	}
	return req, more
}

// show reports progress: to the program, or to the log now and then.
func (t *tuner) show(m *tuning, phase string, workers int) {
	p := Progress{Phase: phase, Workers: workers, Elapsed: time.Since(t.began), Done: 1}
	if phase != "done" {
		// How much will be measured isn't known: half of it is done when an ordinary search ends.
		usual := float64(m.counts.windows()) / float64(t.opts.strategy.search().Usual(m.sp))
		t.done = max(t.done, usual/(1+usual))
		if m.sp.Time > 0 {
			p.Left = m.Left(time.Now())
			t.done = max(t.done, 1-float64(p.Left)/float64(m.sp.Time))
		}
		p.Done = t.done
	}
	if m.last != nil && phase != "done" {
		known := m.last.Trial // a copy: the program may keep it
		known.Total = known.Mean * time.Duration(m.sp.Iterations)
		p.Trial = &known
	}
	if t.opts.progress != nil {
		t.opts.progress(p)
		return
	}
	now := time.Now()
	switch {
	case phase == "done":
		t.opts.log.Info("nwt: worker count tuned", "workers", workers, "elapsed", human.Duration(p.Elapsed))
	case now.Sub(t.told) >= tellEvery:
		t.told = now
		t.opts.log.Info("nwt: tuning the worker count", "trying", workers, "elapsed", human.Duration(p.Elapsed))
	}
}

const tellEvery = 10 * time.Second // of the log
