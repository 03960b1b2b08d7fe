// Package report puts into words what a tuning found: the table that a person reads, why a count was
// chosen, what speaks against trusting the choice, and what to change.
package report

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

// A Result is what a tuning found. The fields are those of nwt.Result.
type Result struct {
	Workers, Fastest int
	Trials           []Trial
	RuledOut         []RuledOut
	Alpha, Floor     time.Duration
	Repeatability    float64

	BatchSize        int
	BatchBytes       int64
	BatchSamples     float64
	Step             bool // iterations include a training step
	Strategy, Device string
	Hardware         string
	Cached           bool
	Elapsed, Waited  time.Duration // Waited: the part of Elapsed in which another process tuned

	Reason           string
	Warnings, Advice []string
}

// A Trial is what was measured at one worker count: an nwt.Trial, which is converted to it.
type Trial struct {
	Workers, Iterations                 int
	Mean, Low, High, Median, P99, Total time.Duration
	Wait, Transfer, Step                time.Duration
	Reading                             float64
	Copy                                time.Duration
	Bandwidth                           float64
	FirstBatch                          time.Duration
	Prefetch                            int
	Memory, PeakRSS                     int64
	PeakExact                           bool
	SystemUsed                          int64
	CPU, CollectorCPU, OtherCPU         float64
}

// Needs returns the memory that a trial needs. File pages don't count, because the system can take them
// back. If it isn't known how much of the peak they are, Needs returns the peak.
func (t Trial) Needs() uint64 { return uint64(cmp.Or(t.Memory, t.PeakRSS)) }

// A RuledOut is a worker count that may not be chosen.
type RuledOut struct {
	Workers int
	Code    string // ForMemory, or one of reasons
	Reason  string
}

// These are the codes of why counts are ruled out.
const (
	ForMemory  = "memory"
	TakesCPUs  = "cpus"
	ForTimeout = "timeout"
	ForStream  = "stream"
)

var reasons = map[string]string{
	TakesCPUs:  "more workers only take CPUs from other programs",
	ForTimeout: "0 workers weren't tried: WithTimeout holds only with workers",
	ForStream:  "0 workers weren't tried: a stream is read by a goroutine anyway",
}

// Out returns why a count is ruled out, for another reason than memory.
func Out(workers int, code string) RuledOut { return RuledOut{workers, code, reasons[code]} }

// Live is the Strategy of a loader that tuned itself while training.
const Live = "live"

// Shares of the CPUs that other processes use.
const (
	BusyOthers = 0.10 // from which on they are mentioned, and the result is doubted
	mostOthers = 0.50 // from which on repeatability can't be told
)

// Unsure is the repeatability below which a choice is doubted.
const Unsure = 0.90

const (
	fewSamples = 0.95 // share of BatchSize below which the mean size of batches is mentioned
	muchGC     = 0.05 // share of the CPUs that garbage collection uses, from which on it is mentioned
	hardly     = 0.01 // share of time below which a difference, or a part, isn't noticed
)

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
	quickest, smallest, collected := time.Duration(math.MaxInt64), uint64(math.MaxUint64), false
	for _, t := range r.Trials {
		quickest, smallest = min(quickest, t.Mean), min(smallest, t.Needs())
		collected = collected || t.CollectorCPU >= muchGC
	}
	each, bytes := human.ScaleOf(quickest), human.ScaleOfBytes(smallest)

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
	if smallest > 0 {
		columns = append(columns, column{"memory", bytes.Unit, func(t Trial) string { return bytes.Write(float64(t.Needs())) }})
	}

	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 0, 3, ' ', tabwriter.AlignRight)
	row := func(cell func(column) string, mark string) {
		for _, c := range columns {
			fmt.Fprint(w, cell(c), "\t")
		}
		fmt.Fprintln(w, mark)
	}
	row(func(c column) string { return c.title }, "")
	row(func(c column) string { return c.unit }, "")
	for _, t := range r.Trials {
		mark := r.mark(t)
		if mark != "" {
			mark = " ◄ " + mark
		}
		row(func(c column) string { return c.cell(t) }, mark)
	}
	w.Flush()
	for i, line := range slices.Collect(strings.Lines(table.String())) {
		if n := i - 2; n >= 0 && r.out(r.Trials[n].Workers) != "" && (n == 0 || r.out(r.Trials[n-1].Workers) == "") {
			fmt.Fprintf(b, "   left out of the choice: %s\n", r.out(r.Trials[n].Workers))
		}
		b.WriteString(line)
	}
}

// margin returns half the 95 % interval, as a share of the mean.
func margin(t Trial) string {
	switch {
	case t.High <= t.Low:
		return "once"
	case t.High-t.Low > 2*t.Mean:
		return "> 100 %"
	}
	return fmt.Sprintf("%.1f %%", 50*float64(t.High-t.Low)/float64(t.Mean))
}

// mark returns what the report says beside a count: "chosen", "fastest", both, that its shorter time is
// "hardly measured", or "".
func (r *Result) mark(one Trial) string {
	var marks []string
	if one.Workers == r.Workers {
		marks = append(marks, "chosen")
	}
	switch {
	case r.out(one.Workers) != "":
	case one.Workers == r.Fastest && one.known():
		marks = append(marks, r.fastest())
	case one.Mean <= r.trial(r.Fastest).Mean && !one.known():
		marks = append(marks, "hardly measured")
	}
	return strings.Join(marks, ", ")
}

// fastest returns what the fastest count is called.
func (r *Result) fastest() string {
	than := r.trial(r.Fastest)
	if slices.ContainsFunc(r.Trials, func(t Trial) bool { return t.Mean < than.Mean && r.out(t.Workers) == "" }) {
		return "fastest that was measured well"
	}
	return "fastest"
}

// out returns why a count may not be chosen, or "" if it may.
func (r *Result) out(workers int) string {
	if i := slices.IndexFunc(r.RuledOut, func(out RuledOut) bool { return out.Workers == workers }); i >= 0 {
		return r.RuledOut[i].Reason
	}
	return ""
}

// writeNotes writes the notes below the table, each with its label.
func (r *Result) writeNotes(b *strings.Builder) {
	note := func(word, format string, args ...any) {
		fmt.Fprintf(b, "%13s  %s\n", word, fmt.Sprintf(format, args...))
	}
	if r.unsure() == "" {
		note("repeatability", "%s of tunings would choose the same", human.Share(r.Repeatability))
	}
	if r.Floor > 0 {
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
	if float64(r.Waited) > hardly*float64(r.Elapsed) {
		tuned += fmt.Sprintf(", %s of them waiting for another process", human.Duration(r.Waited))
	}
	if r.Cached {
		tuned = "earlier, " + tuned
	}
	note("tuned", "%s", tuned)
	var tooLarge []string
	for _, out := range r.RuledOut {
		switch {
		case out.Code == TakesCPUs: // the table says so
		case out.Code != ForMemory:
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

// overlap reports whether the measurements don't show that the choice is better than others.
func (r *Result) overlap() bool { return r.trial(r.Workers).Total-r.trial(r.Fastest).Total > r.Alpha }

// unsure returns why it isn't known how often another tuning would choose the same, or "" if it is.
func (r *Result) unsure() string {
	switch chosen := r.trial(r.Workers); {
	case r.Repeatability == 0:
		return "nothing was measured twice"
	case r.overlap():
		return "the measurements don't show that the choice is better than others"
	case chosen.OtherCPU > mostOthers:
		return "other processes kept more than half of the CPUs busy"
	}
	return ""
}

// known reports whether the trial's time can be compared with others.
func (t *Trial) known() bool { return search.Known(t.Mean, t.Low, t.High) }

// Explain sets Reason, a sentence or two that say why the choice c was made. untuned is the count without
// tuning.
func (r *Result) Explain(c search.Choice, untuned int) {
	chosen, fastest := r.trial(r.Workers), r.trial(r.Fastest)
	reason := capital(human.Workers(r.Workers))
	if r.overlap() && r.Workers == untuned {
		reason += map[bool]string{true: ", as before", false: ", the default"}[r.Strategy == Live]
	}
	var beside []string // the counts that the choice is compared with
	if r.Step && float64(chosen.Wait+chosen.Transfer) < hardly*float64(chosen.Mean) {
		beside = append(beside, "training hardly waits for data")
	}
	switch more := slower(chosen, fastest); {
	case len(r.Trials) == 1:
		beside = append(beside, "nothing else was measured")
	case r.Workers == r.Fastest && !chosen.known():
		beside = append(beside, "the fastest, but hardly measured")
	case r.Workers == r.Fastest:
		beside = append(beside, "the "+r.fastest())
	case !chosen.known() && chosen.Mean < fastest.Mean:
		beside = append(beside, fmt.Sprintf("faster than %d, but hardly measured", r.Fastest))
	case !chosen.known() || !fastest.known():
		beside = append(beside, human.Workers(r.Fastest)+" may be faster, but that was hardly measured")
	case more < hardly:
		beside = append(beside, fmt.Sprintf("as fast as %d, the %s", r.Fastest, r.fastest()))
	case r.overlap():
		beside = append(beside, human.Workers(r.Fastest)+" may be faster, but the measurements overlap")
	case chosen.within(fastest):
		beside = append(beside, fmt.Sprintf("as fast as %d, the %s, within the error", r.Fastest, r.fastest()))
	case chosen.Mean-fastest.Mean <= search.Unnoticed:
		beside = append(beside, fmt.Sprintf("%s per batch slower than %d, the %s", human.Duration(chosen.Mean-fastest.Mean), r.Fastest, r.fastest()))
	default:
		beside = append(beside, fmt.Sprintf("%s slower than %d, the %s", human.Share(more), r.Fastest, r.fastest()))
	}
	if alone := fastest.OtherCPU >= 0 && fastest.OtherCPU <= BusyOthers; c.Most > 0 && !alone && slices.ContainsFunc(r.Trials, func(t Trial) bool {
		return t.Workers > c.Most && slower(fastest, t) > hardly
	}) {
		beside = append(beside, reasons[TakesCPUs])
	}
	if i := slices.IndexFunc(r.Trials, func(t Trial) bool { return t.Workers == r.Workers }); i > 0 && r.Trials[i-1].Workers != r.Fastest {
		below := r.Trials[i-1]
		takes := human.Workers(below.Workers) + " take"
		if below.Workers == 1 {
			takes += "s"
		}
		switch more := slower(below, chosen); {
		case more > 1 && !(below.known() && chosen.known()):
			beside = append(beside, takes+" longer")
		case !below.known() || !chosen.known():
		case math.Abs(more) > hardly && below.within(chosen):
			beside = append(beside, human.Workers(below.Workers)+" may be as fast, within the error")
		case more > hardly:
			beside = append(beside, fmt.Sprintf("%s %s longer", takes, human.Share(more)))
		case more > -hardly:
			beside = append(beside, takes+" as long")
		}
	}
	r.Reason = reason + ": " + strings.Join(beside, "; ") + "."
}

// slower returns the share by which a takes longer than b.
func slower(a, b Trial) float64 { return float64(a.Mean)/float64(max(b.Mean, 1)) - 1 }

// within reports whether two times differ by less than the error of their difference.
func (t *Trial) within(than Trial) bool {
	return math.Abs(float64(t.Mean-than.Mean)) < math.Hypot(float64(t.High-t.Low), float64(than.High-than.Low))/2
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
