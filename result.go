package nwt

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/nwt-go/nwt/internal/host"
	"github.com/nwt-go/nwt/internal/human"
	"github.com/nwt-go/nwt/internal/memlimit"
	"github.com/nwt-go/nwt/internal/report"
	"github.com/nwt-go/nwt/internal/resultfile"
	"github.com/nwt-go/nwt/internal/search"
)

// String returns the report that a person reads.
func (r *Result) String() string { return r.report().String() }

// report returns the result as package report takes it.
func (r *Result) report() *report.Result {
	p := &report.Result{
		Workers: r.Workers, Fastest: r.Fastest, Alpha: r.Alpha, Floor: r.Floor, Repeatability: r.Repeatability,
		BatchSize: r.BatchSize, BatchBytes: r.BatchBytes, BatchSamples: r.BatchSamples, Step: r.Step, Strategy: r.Strategy, Device: r.Device,
		Hardware: r.Hardware.String(), Cached: r.Cached, Elapsed: r.Elapsed, Waited: r.waited, Reason: r.Reason, Warnings: r.Warnings, Advice: r.Advice,
	}
	for _, t := range r.Trials {
		p.Trials = append(p.Trials, report.Trial(t))
	}
	for _, out := range r.RuledOut {
		p.RuledOut = append(p.RuledOut, report.RuledOut(out))
	}
	return p
}

func (r *Result) trial(workers int) Trial {
	i := slices.IndexFunc(r.Trials, func(t Trial) bool { return t.Workers == workers })
	if i < 0 {
		return Trial{Workers: workers}
	}
	return r.Trials[i]
}

// A Result is what [Tune] found. Its Strategy is "greedy", "exhaustive", or "live" if a loader tuned itself.
// In JSON, durations are whole nanoseconds.
type Result struct {
	Workers       int           `json:"workers"`       // the choice: the lowest count whose time is at most Alpha above the shortest, or the default count if the measurements don't show that it is worse
	Fastest       int           `json:"fastest"`       // the fastest count that may be chosen, of those measured more than once and to within ± 50 %, if there are any
	Trials        []Trial       `json:"trials"`        // one per measured worker count, ascending. Counts that memory rules out have none
	Alpha         time.Duration `json:"alpha_ns"`      // the difference in time that doesn't matter, over Iterations iterations
	Iterations    int           `json:"iterations"`    // how many iterations Alpha and Trial.Total cover
	Repeatability float64       `json:"repeatability"` // the share of repeated tunings that would choose the same count, 0 … 1; 0: not known. A high share doesn't prove that the choice is right

	Floor    time.Duration `json:"floor_ns"`            // time of an iteration if training never waited, judging by counts at which it hardly waits; 0: not known
	RuledOut []RuledOut    `json:"ruled_out,omitempty"` // counts that may not be chosen, ascending

	Strategy   string `json:"strategy"`
	Device     string `json:"device"`
	BatchSize  int    `json:"batch_size"`
	BatchBytes int64  `json:"batch_bytes"`

	BatchSamples float64 `json:"batch_samples"` // mean size of a batch, which may be smaller than BatchSize with a BatchSampler
	Step         bool    `json:"step"`          // whether iterations include the training step of WithStep
	Cached       bool    `json:"cached"`        // whether the result comes from the file of WithResultCache

	Hardware Hardware      `json:"hardware"`
	Reason   string        `json:"reason"`             // why this count was chosen, in a sentence or two
	Warnings []string      `json:"warnings,omitempty"` // reasons to trust the answer less
	Advice   []string      `json:"advice,omitempty"`   // suggested changes, the most useful first
	Elapsed  time.Duration `json:"elapsed_ns"`         // how long tuning took

	waited time.Duration // the part of Elapsed in which another process tuned
}

// RuledOut is a worker count that may not be chosen. Its Code is
//   - "memory": it needs too much memory
//   - "cpus": it is faster only by taking CPUs from other programs
//   - "stream", "timeout": 0 workers aren't tried for a stream or WithTimeout
type RuledOut struct {
	Workers int    `json:"workers"`
	Code    string `json:"code"`   // for programs with texts of their own
	Reason  string `json:"reason"` // what Code says, with figures
}

// Hardware describes the machine, and how much of it the process may use.
type Hardware struct {
	CPU        string  `json:"cpu"`      // model of the CPU
	Logical    int     `json:"logical"`  // CPUs of the machine, hyper-threads included
	Physical   int     `json:"physical"` // cores of the machine
	Affinity   int     `json:"affinity"` // logical CPUs that the process may run on
	Quota      float64 `json:"quota"`    // CPU time that the container may use, in CPUs; 0: no quota
	GOMAXPROCS int     `json:"gomaxprocs"`
	Memory     int64   `json:"memory"` // memory of the machine, in bytes
}

func (h Hardware) String() string {
	s := human.CPUs(float64(min(h.GOMAXPROCS, h.Logical)))
	if h.GOMAXPROCS < h.Logical {
		s += fmt.Sprintf(" of %d", h.Logical)
	}
	if h.CPU != "" {
		s += ", " + h.CPU
	}
	if h.Memory > 0 {
		s += ", " + human.Bytes(uint64(h.Memory))
	}
	return s
}

// A Trial holds what was measured at one worker count.
type Trial struct {
	Workers    int           `json:"workers"`
	Iterations int           `json:"iterations"` // how many iterations were measured, usually without those in which workers warm up
	Mean       time.Duration `json:"mean_ns"`    // mean time of an iteration, the sum of Wait, Transfer and Step
	Low        time.Duration `json:"low_ns"`     // Low … High is the 95 % confidence interval of Mean. Drift that all counts share is removed first
	High       time.Duration `json:"high_ns"`
	Median     time.Duration `json:"median_ns"` // median time of an iteration
	P99        time.Duration `json:"p99_ns"`    // 99th percentile of the time of an iteration
	Total      time.Duration `json:"total_ns"`  // time of Result.Iterations iterations

	Wait     time.Duration `json:"wait_ns"`           // mean time that an iteration waits for a batch to be loaded
	Transfer time.Duration `json:"transfer_ns"`       // mean time that an iteration waits for the copy to the device
	Step     time.Duration `json:"step_ns"`           // mean time of the training step
	Reading  float64       `json:"reading,omitempty"` // share of the time, 0 … 1, in which a batch waits for a stream's records. Near 1, reading is the bottleneck

	Copy      time.Duration `json:"copy_ns,omitempty"`   // mean time of the whole copy to the device
	Bandwidth float64       `json:"bandwidth,omitempty"` // bytes per second of the copies

	FirstBatch time.Duration `json:"first_batch_ns"` // time until the first batch came, WithWorkerInit included. It is set only for the count that was measured first
	Prefetch   int           `json:"prefetch"`       // the largest prefetch during the trial, in batches
	Memory     int64         `json:"memory"`         // bytes that this process and its loading processes need, without file pages and idle heap; 0: not known
	PeakRSS    int64         `json:"peak_rss"`       // peak resident memory of this process in bytes, file pages included
	PeakExact  bool          `json:"peak_exact"`     // whether PeakRSS comes from the kernel
	SystemUsed int64         `json:"system_used"`    // bytes in use on the machine when the trial ended

	// Shares of the CPUs, 0 … 1. If the host has several ranks, the shares are of this rank's CPUs.
	CPU          float64 `json:"cpu"`           // used by this process and those that load for the dataset
	CollectorCPU float64 `json:"collector_cpu"` // used by its garbage collector
	OtherCPU     float64 `json:"other_cpu"`     // used by other processes. If this trial was too short to tell, it is their share during all of Tune; −1: not known
}

// Progress says how far tuning or precomputing has come. Its Phase is "measuring", "precomputing" or "done".
type Progress struct {
	Phase   string
	Workers int           // number of workers that is being measured, or with which samples are precomputed
	Done    float64       // share of the work that is done, 0 … 1. It never falls
	Elapsed time.Duration // time since Tune was called, or since Precompute began to load
	Left    time.Duration // for tuning, the most time that may be left, or 0 without a bound; for precomputing, an estimate
	Trial   *Trial        // figures so far of the count that was measured last; nil if there is none
}

// result returns the choice with the figures behind it, and what is to be said of it. others is the share
// of the CPUs that other processes used; if that isn't known, unseen says why.
func (t *tuning) result(c search.Choice, others float64, unseen string) *Result {
	o := t.l.setup.opts
	strategy := o.strategy.String()
	if t.live {
		strategy = report.Live
	}
	r := &Result{
		Workers: c.Workers, Fastest: c.Fastest, Alpha: c.Alpha, Iterations: t.sp.Iterations, Repeatability: c.Repeatability,
		Strategy: strategy, Step: o.step != nil || t.live, Device: o.device.String(), BatchSize: o.batchSize, BatchBytes: int64(t.l.setup.layout.Size) * int64(o.batchSize),
		BatchSamples: float64(t.l.counters.samples.Load()) / float64(max(1, t.l.counters.batches.Load())), Hardware: hardware(o.machine.CPUs()),
	}
	for _, out := range t.refused {
		r.RuledOut = append(r.RuledOut, RuledOut(out))
	}
	for _, e := range c.Estimates {
		if c.Most > 0 && e.Workers > c.Most {
			r.RuledOut = append(r.RuledOut, RuledOut(report.Out(e.Workers, report.TakesCPUs)))
		}
		one := t.trials.at(e.Workers).told
		one.Step = e.Body
		one.Mean, one.Low, one.High = e.Mean, e.Low, e.High
		one.Transfer = min(one.Transfer, one.Mean-one.Step)
		one.Wait = one.Mean - one.Step - one.Transfer
		one.Total = one.Mean * time.Duration(t.sp.Iterations)
		if one.OtherCPU < 0 && unseen == "" && !t.live {
			one.OtherCPU = min(others, 1-one.CPU)
		}
		r.Trials = append(r.Trials, one)
	}
	slices.SortFunc(r.RuledOut, func(a, b RuledOut) int { return cmp.Compare(a.Workers, b.Workers) })
	for _, one := range r.Trials { // a step that only hands its batch on takes no time until the next one is there
		if float64(one.Wait+one.Transfer) <= report.LittleWait*float64(one.Mean) && (r.Floor == 0 || one.Step < r.Floor) {
			r.Floor = one.Step
		}
	}
	if r.Floor > r.trial(r.Workers).Mean { // more workers make the step longer than it takes at the choice
		r.Floor = 0
	}
	cpus, chosen := o.machine.CPUs(), t.trials.at(c.Workers)
	about := report.Circumstances{
		CPUs: cpus, Mine: cpus.Mine(o.ranks(), o.cpus()), Limit: t.limit, Most: o.most, Timeout: o.timeout > 0,
		Others: others, Queued: chosen.queued.sum / chosen.queued.weight, Unseen: unseen, Late: t.sp.Time > 0 && t.sp.Left == 0,
		First: report.FirstPass(t.seen), Drift: report.Drift(t.seen),
	}
	if t.l.setup.streams() {
		about.Shards, about.AtOnce = t.l.setup.shardsOfRank(), o.shardsAtOnce()
	}
	said := r.report()
	said.Explain(c, t.untuned)
	said.Warn(about)
	said.Advise(about)
	r.Reason, r.Warnings, r.Advice = said.Reason, said.Warnings, said.Advice
	return r
}

func hardware(c host.CPUFacts) Hardware {
	return Hardware{
		CPU: c.Model, Logical: c.Logical, Physical: c.Physical, Affinity: c.Affinity, Quota: c.Quota,
		GOMAXPROCS: c.GOMAXPROCS, Memory: int64(host.Memory().Total),
	}
}

// keptResult is a result as it stands in the file.
type keptResult struct {
	*Result
	Before uint64 `json:"memory_before"` // bytes that the process needed before it tuned
}

const (
	// forgetDoubtful is how long a result holds if it isn't sure, or if counts were ruled out because
	// memory was short.
	forgetDoubtful = 24 * time.Hour

	// forgetSoon is how long a result holds if other programs may have influenced it, or if it is
	// largely chance: long enough for the processes that wait for it, but not for the next day's
	// training.
	forgetSoon   = 10 * time.Minute
	mostlyChance = 0.80 // repeatability
)

// holdsFor returns how long a result holds.
func (s *setup) holdsFor(r *Result) time.Duration {
	switch {
	case r.Repeatability < mostlyChance, slices.ContainsFunc(r.Trials, func(t Trial) bool { return t.OtherCPU > report.BusyOthers }):
		return forgetSoon
	case r.Repeatability < report.Unsure, s.opts.maxMemory == 0 && slices.ContainsFunc(r.RuledOut, func(out RuledOut) bool { return out.Code == report.ForMemory }):
		return forgetDoubtful
	}
	return math.MaxInt64
}

// recall returns the result in the file, and when it was saved; nil if the file has no result that may
// still hold.
func (s *setup) recall(limit memlimit.Limit, file resultfile.File, key resultfile.Key) (found *Result, saved time.Time) {
	entry, ok := file.Lookup(key)
	if !ok {
		return nil, saved
	}
	saved = entry.Saved
	r := keptResult{Result: &Result{}}
	err := json.Unmarshal(entry.Value, &r)
	if err == nil {
		err = r.check()
	}
	if err != nil {
		file.Log.Warn("nwt: ignoring a kept tuning result", "path", file.Path, "error", err)
		return nil, saved
	}
	if time.Since(saved).Abs() > s.holdsFor(r.Result) { // a clock may have been wrong
		return nil, saved
	}
	if why := s.outgrows(r, limit); why != "" {
		file.Log.Info("nwt: tuning anew", "path", file.Path, "reason", why)
		return nil, saved
	}
	r.Cached = true
	return r.Result, saved
}

// check returns an error for a result that no tuning can have found.
func (r *Result) check() error {
	for _, workers := range []int{r.Workers, r.Fastest} {
		if t := r.trial(workers); t.Iterations < 1 || t.Mean < 1 || workers < 0 || workers > maxWorkers {
			return fmt.Errorf("%s chosen or fastest, but not tried", human.Workers(workers))
		}
	}
	return nil
}

// resultKey returns everything that the answer depends on.
func (s *setup) resultKey() resultfile.Key {
	device := s.opts.device.String()
	if gpu, ok := s.opts.device.(cudaDevice); ok {
		device = "cuda (" + gpu.Name() + ")" // any GPU of this kind on the host
	}
	return resultfile.Key{
		Hardware:   resultfile.ThisHardware(),
		Device:     device,
		Fields:     s.layout.String(),
		BatchBytes: int64(s.layout.Size) * int64(s.first.perBatch),
		Options:    s.opts.key(),
	}
}

// outgrows says why the choice of a kept result doesn't fit into memory today, or returns "" if it does.
// Since it was saved, the program may have grown, and the machine may have less memory left.
func (s *setup) outgrows(r keptResult, l memlimit.Limit) (why string) {
	needs := report.Trial(r.trial(r.Workers)).Needs()
	grows := needs - min(r.Before, needs)
	if grows == 0 {
		return ""
	}
	now := s.neededNow()
	return l.Over(r.Workers, now+min(grows, math.MaxUint64-now))
}
