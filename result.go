package nwt

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/nwt-go/nwt/internal/human"
	"github.com/nwt-go/nwt/internal/search"
)

// The report mentions a figure from these values on.
const (
	littleWait  = 0.05 // share of an iteration that training waits; a smaller share is not noticed
	cpuFull     = 0.90 // share of the CPUs
	cpuIdle     = 0.50
	farSlower   = 0.50 // share by which a count takes longer than another, so that their CPU time can be compared
	readingSets = 0.80 // share of the time in which a stream is read
	muchCopy    = 0.20 // share of an iteration spent copying to the device
	slowFirst   = 20   // the first batch takes this many times the median …
	firstNotice = 1e9  // … and at least this many nanoseconds
	nearLimit   = 0.80 // share of the memory limit
	fewSamples  = 0.95 // share of BatchSize
	muchGC      = 0.05 // share of the CPUs that garbage collection uses

	busyOthers  = 0.10 // share of the CPUs that other processes use
	mostOthers  = 0.50 // … from which on repeatability can't be told
	unsure      = 0.90 // confidence
	manyWorkers = 64
	muchDrift   = 1.25 // ratio of the times at the end and at the beginning, or its inverse
)

func countCPUs(n float64) string {
	switch {
	case n == 1:
		return "1 CPU"
	case n >= 100:
		return fmt.Sprintf("%.0f CPUs", n)
	}
	return fmt.Sprintf("%.3g CPUs", n)
}

// These are the reasons why counts are ruled out, beside memory: 0 workers aren't tried, and more workers
// aren't chosen.
const (
	takesCPUs       = "more workers only take CPUs from other programs"
	notInline       = "0 workers weren't tried: WithTimeout holds only with workers"
	notInlineStream = "0 workers weren't tried: a stream is read by a goroutine anyway"
)

func countWorkers(n int) string {
	if n == 1 {
		return "1 worker"
	}
	return fmt.Sprintf("%d workers", n)
}

// String returns the report that a person reads.
func (r *Result) String() string {
	var b strings.Builder
	b.WriteString(r.Reason)
	b.WriteString("\n\n")
	r.writeTable(&b)
	b.WriteByte('\n')
	r.writeNotes(&b)
	return b.String()
}

// writeTable writes the table of trials. Each column has one unit, so that figures
// can be compared at a glance.
func (r *Result) writeTable(b *strings.Builder) {
	quickest, least, collected := time.Duration(math.MaxInt64), uint64(math.MaxUint64), false
	for _, t := range r.Trials {
		quickest, least = min(quickest, t.Mean), min(least, t.needs())
		collected = collected || t.CollectorCPU >= muchGC
	}
	each, bytes := human.ScaleOf(quickest), human.ScaleOfBytes(least)

	type column struct {
		title, unit string
		cell        func(Trial) string
	}
	columns := []column{
		{"workers", "", func(t Trial) string { return strconv.Itoa(t.Workers) }},
		{"per batch", each.Unit, func(t Trial) string { return each.Write(float64(t.Mean)) }},
		{"±", "", margin},
		{"waiting", each.Unit, func(t Trial) string { return each.Write(float64(t.Wait + t.Transfer)) }}, // only with a step; without one, training waits all the time
		{"CPUs busy", "", func(t Trial) string { return human.Share(t.CPU) }},
	}
	if !r.Step {
		columns[3] = column{"samples", "per s", func(t Trial) string {
			return strconv.FormatFloat(cmp.Or(r.BatchSamples, float64(r.BatchSize))/max(t.Mean, 1).Seconds(), 'f', 0, 64)
		}}
	}
	if collected {
		columns = append(columns, column{"collector", "", func(t Trial) string { return human.Share(t.CollectorCPU) }})
	}
	if least > 0 {
		columns = append(columns, column{"memory", bytes.Unit, func(t Trial) string { return bytes.Write(float64(t.needs())) }})
	}

	w := tabwriter.NewWriter(b, 0, 0, 3, ' ', tabwriter.AlignRight)
	row := func(cell func(column) string, mark string) {
		for _, c := range columns {
			fmt.Fprint(w, cell(c), "\t")
		}
		fmt.Fprintln(w, mark)
	}
	row(func(c column) string { return c.title }, "")
	row(func(c column) string { return c.unit }, "")
	for _, t := range r.Trials {
		mark := r.mark(t.Workers)
		if mark != "" {
			mark = " ◄ " + mark
		}
		row(func(c column) string { return c.cell(t) }, mark)
	}
	w.Flush()
}

// writeNotes writes the notes below the table, each with its label.
func (r *Result) writeNotes(b *strings.Builder) {
	note := func(word, format string, args ...any) {
		fmt.Fprintf(b, "%13s  %s\n", word, fmt.Sprintf(format, args...))
	}
	if r.Repeatability > 0 && !r.fallback && r.trial(r.Workers).OtherCPU <= mostOthers {
		note("repeatability", "%s of runs would choose the same", human.Share(r.Repeatability))
	}
	if r.Step {
		note("floor", "%s per batch, if training never waited for data", human.Duration(r.Floor))
	}
	samples := "1 sample"
	if r.BatchSize != 1 {
		samples = fmt.Sprintf("%d samples", r.BatchSize)
	}
	if r.BatchSamples < fewSamples*float64(r.BatchSize) && r.BatchSamples > 0 {
		samples = fmt.Sprintf("at most %s, %.3g on average", samples, r.BatchSamples)
	}
	note("batches", "%s, %s, to %s", samples, human.Bytes(uint64(r.BatchBytes)), r.Device)
	note("machine", "%s", r.Hardware)
	tuned := fmt.Sprintf("by %s search in %s", r.Strategy, human.Duration(r.Elapsed))
	if r.Cached {
		tuned = "earlier, " + tuned
	}
	note("tuned", "%s", tuned)
	var tooLarge []string
	for _, out := range r.RuledOut {
		switch {
		case out.Reason == takesCPUs: // the table says so
		case !out.forMemory():
			note("ruled out", "%s", out.Reason)
		case tooLarge == nil:
			tooLarge = append(tooLarge, out.Reason)
		default:
			tooLarge = append(tooLarge, fmt.Sprintf("%d too", out.Workers))
		}
	}
	if tooLarge != nil {
		note("ruled out", "%s", strings.Join(tooLarge, ", "))
	}
	for _, s := range r.Warnings {
		note("warning", "%s", s)
	}
	for _, s := range r.Advice {
		note("advice", "%s", s)
	}
}

// mark returns what the report says beside a count: "chosen", "fastest", both, why a count can't be chosen
// ("CPUs full") or called the fastest ("hardly measured"), or "".
func (r *Result) mark(workers int) string {
	var marks []string
	one, fastest := r.trial(workers), r.trial(r.Fastest)
	if workers == r.Workers {
		marks = append(marks, "chosen")
	}
	switch {
	case slices.Contains(r.RuledOut, RuledOut{workers, takesCPUs}):
		marks = append(marks, "CPUs full")
	case workers == r.Fastest && one.known():
		marks = append(marks, "fastest")
	case one.Mean <= fastest.Mean && !one.known():
		marks = append(marks, "hardly measured")
	}
	return strings.Join(marks, ", ")
}

// known reports whether the trial's time can be compared with others.
func (t *Trial) known() bool { return search.Known(t.Mean, t.Low, t.High) }

// String names the hardware in a few words.
func (h Hardware) String() string {
	s := countCPUs(float64(h.GOMAXPROCS))
	if h.GOMAXPROCS != h.Logical {
		s += fmt.Sprintf(" of %d", h.Logical)
	}
	if h.CPU != "" {
		s += ", " + h.CPU
	}
	if h.Memory > 0 {
		s += ", " + human.Bytes(h.Memory)
	}
	return s
}

// reason returns a sentence that says why the choice c was made. untuned is the count without tuning.
func (r *Result) reason(c search.Choice, untuned int) string {
	chosen, fastest := r.trial(r.Workers), r.trial(r.Fastest)
	overlap := chosen.Total-fastest.Total > r.Alpha
	r.fallback = c.Kept || overlap
	workers := capital(countWorkers(r.Workers))
	if r.fallback && r.Workers == untuned {
		workers += map[bool]string{true: ", as before", false: ", the default"}[r.Strategy == live]
	}
	var beside []string // the counts that the choice is compared with
	if c.Kept {
		beside = append(beside, "time was over before another count was surely better")
	}
	if waits := chosen.Wait + chosen.Transfer; r.Step && float64(waits) < hardly*float64(chosen.Mean) {
		beside = append(beside, "training hardly waits for data")
	}
	switch more := slower(chosen, fastest); {
	case len(r.Trials) == 1:
		beside = append(beside, "nothing else was measured")
	case r.Workers == r.Fastest && !chosen.known():
		beside = append(beside, "the fastest as far as was measured, which is hardly")
	case r.Workers == r.Fastest:
		beside = append(beside, "the fastest")
	case !chosen.known() || !fastest.known():
		beside = append(beside, fmt.Sprintf("%d may be faster, but that was hardly measured", r.Fastest))
	case more < hardly:
		beside = append(beside, fmt.Sprintf("as fast as %d, the fastest", r.Fastest))
	case overlap:
		beside = append(beside, fmt.Sprintf("%d may be faster, but the measurements overlap", r.Fastest))
	case chosen.Mean-fastest.Mean <= search.Unnoticed:
		beside = append(beside, fmt.Sprintf("%s per batch slower than %d, the fastest", human.Duration(chosen.Mean-fastest.Mean), r.Fastest))
	default:
		beside = append(beside, fmt.Sprintf("%s slower than %d, the fastest", human.Share(more), r.Fastest))
	}
	if alone := fastest.OtherCPU >= 0 && fastest.OtherCPU <= busyOthers; c.Most > 0 && !alone && slices.ContainsFunc(r.Trials, func(t Trial) bool {
		return t.Workers > c.Most && slower(fastest, t) > hardly
	}) {
		beside = append(beside, takesCPUs)
	}
	if i := slices.IndexFunc(r.Trials, func(t Trial) bool { return t.Workers == r.Workers }); i > 0 && r.Trials[i-1].Workers != r.Fastest {
		below := r.Trials[i-1]
		switch more := slower(below, chosen); {
		case more > 1 && !(below.known() && chosen.known()):
			beside = append(beside, takes(below.Workers)+" longer")
		case !below.known() || !chosen.known():
		case more > hardly:
			beside = append(beside, fmt.Sprintf("%s %s longer", takes(below.Workers), human.Share(more)))
		case more > -hardly:
			beside = append(beside, fmt.Sprintf("%s as long", takes(below.Workers)))
		}
	}
	return fmt.Sprintf("%s: %s.", workers, strings.Join(beside, "; "))
}

// hardly is the share of time below which a difference isn't noticed.
const hardly = 0.01

// slower returns the share by which a takes longer than b.
func slower(a, b Trial) float64 { return float64(a.Mean)/float64(max(b.Mean, 1)) - 1 }

func takes(workers int) string {
	if workers == 1 {
		return "1 worker takes"
	}
	return fmt.Sprintf("%d take", workers)
}

func (r *Result) trial(workers int) Trial {
	i := slices.IndexFunc(r.Trials, func(t Trial) bool { return t.Workers == workers })
	if i < 0 {
		return Trial{Workers: workers}
	}
	return r.Trials[i]
}

func capital(s string) string {
	r, size := utf8.DecodeRuneInString(s)
	return strings.ToUpper(string(r)) + s[size:]
}

// margin returns half the 95 % interval, as a share of the mean.
func margin(t Trial) string {
	if t.High <= t.Low || t.Mean == 0 || t.High-t.Low > 2*t.Mean {
		return "" // it was measured only once, or too briefly
	}
	return fmt.Sprintf("%.1f %%", 50*float64(t.High-t.Low)/float64(t.Mean))
}

// A Result is what [Tune] found. In JSON durations are whole nanoseconds.
type Result struct {
	Workers       int           `json:"workers"`       // the choice: the fewest workers within Alpha of the fastest, as far as could be measured
	Fastest       int           `json:"fastest"`       // the count with the shortest time, of those that may be chosen and were measured twice, to within half of their time
	Trials        []Trial       `json:"trials"`        // one per worker count measured, ascending, except counts that memory rules out
	Alpha         time.Duration `json:"alpha_ns"`      // the difference that the choice ignores, over Iterations iterations
	Iterations    int           `json:"iterations"`    // the number of iterations over which Alpha and Trial.Total accumulate
	Repeatability float64       `json:"repeatability"` // the share of runs that would choose the same, 0 … 1; 0: not known. It doesn't say whether the choice is right

	Floor    time.Duration `json:"floor_ns"`            // time of an iteration without waiting and copying
	RuledOut []RuledOut    `json:"ruled_out,omitempty"` // ascending: counts that take too much memory, or are faster only by taking CPUs from other programs; count 0 also with WithTimeout and for a stream

	Strategy   string `json:"strategy"` // "greedy", "exhaustive", or "live" if a loader tuned itself
	Device     string `json:"device"`
	BatchSize  int    `json:"batch_size"`
	BatchBytes int    `json:"batch_bytes"`

	BatchSamples float64 `json:"batch_samples"` // mean size of a batch: a sampler may make batches smaller than BatchSize
	Step         bool    `json:"step"`          // WithStep was given: iterations include a training step
	Cached       bool    `json:"cached"`        // the result was taken from the file of WithResultCache

	Hardware Hardware      `json:"hardware"`
	Reason   string        `json:"reason"`             // why the choice was made, in one sentence
	Warnings []string      `json:"warnings,omitempty"` // reasons to trust the answer less
	Advice   []string      `json:"advice,omitempty"`   // what to change, judging by the measurements
	Elapsed  time.Duration `json:"elapsed_ns"`         // how long tuning took

	fallback bool // the measurements don't show that this count is better than others
}

// RuledOut is a worker count that may not be chosen.
type RuledOut struct {
	Workers int    `json:"workers"`
	Reason  string `json:"reason"`
}

func (r RuledOut) forMemory() bool {
	return r.Reason != notInline && r.Reason != notInlineStream && r.Reason != takesCPUs
}

// Hardware describes the machine, and how much of it the process may use.
type Hardware struct {
	CPU        string  `json:"cpu"`      // model
	Logical    int     `json:"logical"`  // CPUs of the machine, hyper-threads included
	Physical   int     `json:"physical"` // cores of the machine
	Affinity   int     `json:"affinity"` // logical CPUs that the process may run on
	Quota      float64 `json:"quota"`    // how many CPUs' time the container may use; 0: no quota
	GOMAXPROCS int     `json:"gomaxprocs"`
	Memory     uint64  `json:"memory"` // of the machine, in bytes
}

// A Trial holds what was measured at one worker count.
type Trial struct {
	Workers    int           `json:"workers"`
	Iterations int           `json:"iterations"` // how many were measured, without warm-up, unless there was no time for more
	Mean       time.Duration `json:"mean_ns"`    // mean time of an iteration: wait + transfer (+ step, if there is one)
	Low        time.Duration `json:"low_ns"`     // Low … High is the 95 % interval of Mean, after removing drift that all counts share
	High       time.Duration `json:"high_ns"`
	Median     time.Duration `json:"median_ns"` // time of an iteration
	P99        time.Duration `json:"p99_ns"`    // time of an iteration
	Total      time.Duration `json:"total_ns"`  // time of Result.Iterations iterations

	Wait     time.Duration `json:"wait_ns"`           // mean time blocked for a batch
	Transfer time.Duration `json:"transfer_ns"`       // mean time of the copy to the device, except the part that other work hid
	Step     time.Duration `json:"step_ns"`           // mean time of the training step
	Reading  float64       `json:"reading,omitempty"` // share of the time, 0 … 1, in which a batch waited for a stream's records; near 1, reading is the bottleneck

	Copy      time.Duration `json:"copy_ns,omitempty"`   // mean time of the copy to the device, hidden or not
	Bandwidth float64       `json:"bandwidth,omitempty"` // of the copies, in bytes per second

	FirstBatch time.Duration `json:"first_batch_ns"` // until the first batch, WithWorkerInit included; set only for the count that was measured first
	Prefetch   int           `json:"prefetch"`       // the most batches ahead of the one in use during the trial
	Memory     uint64        `json:"memory"`         // bytes that the process needs, without file pages and idle heap; 0: not known
	PeakRSS    uint64        `json:"peak_rss"`       // of the process, in bytes, file pages included
	PeakExact  bool          `json:"peak_exact"`     // the kernel reported PeakRSS
	SystemUsed uint64        `json:"system_used"`    // bytes in use on the machine when the trial ended

	// Shares of the CPUs, 0 … 1. If the host has several ranks, they are shares of this rank's CPUs.
	CPU          float64 `json:"cpu"`           // used by this process, its garbage collector included
	CollectorCPU float64 `json:"collector_cpu"` // used by its garbage collector
	OtherCPU     float64 `json:"other_cpu"`     // used by everything else; −1: not known

	queued float64 // that its threads waited for; 0 if not known
}

// Progress says how far tuning or precomputing has come.
type Progress struct {
	Phase   string        // "measuring", "precomputing" or "done"
	Workers int           // the count that is being measured, or that precomputing uses
	Done    float64       // share that is done, 0 … 1; it never falls
	Elapsed time.Duration // since Tune was called, or since Precompute began to load
	Left    time.Duration // for tuning, the most time that is left, 0 if there is no bound; for precomputing, an estimate
	Trial   *Trial        // what is known so far of the count that was just measured; nil if none was
}

// needs returns the memory that a trial needs. File pages don't count, because the system can take them
// back. If it isn't known how much of the peak they are, needs returns the peak.
func (t *Trial) needs() uint64 {
	if t.Memory > 0 {
		return t.Memory
	}
	return t.PeakRSS
}

// live is the Strategy in the result of a loader that tuned itself while training.
const live = "live"
