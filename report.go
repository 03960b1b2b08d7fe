package nwt

import (
	"encoding/csv"
	"fmt"
	"io"
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

// String is the report for people: the choice and why, a row per worker count with
// the choice and the fastest marked, and what else to know.
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
		{"waiting", each.Unit, func(t Trial) string { return each.Write(float64(t.Wait + t.Transfer)) }},
		{"CPUs busy", "", func(t Trial) string { return human.Share(t.CPU) }},
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
		mark := r.Mark(t.Workers)
		if mark != "" {
			mark = " ◄ " + mark
		}
		row(func(c column) string { return c.cell(t) }, mark)
	}
	w.Flush()
}

// knowsReading tells whether the time in which a stream was read is known.
func (r *Result) knowsReading() bool {
	return slices.ContainsFunc(r.Trials, func(t Trial) bool { return t.Reading > 0 })
}

// writeNotes writes the notes below the table, each behind a word.
func (r *Result) writeNotes(b *strings.Builder) {
	note := func(word, format string, args ...any) {
		fmt.Fprintf(b, "%11s  %s\n", word, fmt.Sprintf(format, args...))
	}
	if r.Confidence > 0 {
		note("confidence", "another run would choose the same in %s of cases", human.Share(r.Confidence))
	}
	if r.Step {
		note("floor", "%s per batch, if training never waited for data", human.Duration(r.Floor))
	}
	samples := "1 sample"
	if r.BatchSize != 1 {
		samples = fmt.Sprintf("%d samples", r.BatchSize)
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

// Mark is what the report calls a worker count: "chosen", "fastest", "chosen, fastest" or "".
func (r *Result) Mark(workers int) string {
	var marks []string
	if workers == r.Workers {
		marks = append(marks, "chosen")
	}
	if workers == r.Fastest {
		marks = append(marks, "fastest")
	}
	return strings.Join(marks, ", ")
}

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

// reason says in a sentence why the choice c was made.
func (r *Result) reason(c search.Choice) string {
	chosen, fastest := r.trial(r.Workers), r.trial(r.Fastest)
	workers := capital(countWorkers(r.Workers))
	var beside []string // what the choice is compared with
	if c.Kept {
		beside = append(beside, "as without tuning, since time was over before another count was surely better")
	}
	if waits := chosen.Wait + chosen.Transfer; r.Step && float64(waits) < hardly*float64(chosen.Mean) {
		beside = append(beside, "training hardly waits for data")
	}
	switch more := slower(chosen, fastest); {
	case len(r.Trials) == 1:
		beside = append(beside, "nothing else could be measured")
	case r.Workers == r.Fastest:
		beside = append(beside, "the fastest")
	case more < hardly:
		beside = append(beside, fmt.Sprintf("as fast as %d, the fastest", r.Fastest))
	default:
		beside = append(beside, fmt.Sprintf("%s slower than %d, the fastest", human.Share(more), r.Fastest))
	}
	if i := slices.IndexFunc(r.Trials, func(t Trial) bool { return t.Workers == r.Workers }); i > 0 {
		below := r.Trials[i-1]
		switch more := slower(below, chosen); {
		case more > hardly:
			beside = append(beside, fmt.Sprintf("%s %s longer", takes(below.Workers), human.Share(more)))
		case more > -hardly:
			beside = append(beside, fmt.Sprintf("%s as long", takes(below.Workers)))
		}
	}
	return fmt.Sprintf("%s: %s.", workers, strings.Join(beside, "; "))
}

// hardly is a share of time below which nobody notices a difference.
const hardly = 0.01

// slower is the share by which a takes longer than b.
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

// WriteCSV writes the trials as comma-separated values under a header. Times are in seconds, memory in bytes. Only
// trials of a stream have the last column, reading.
func (r *Result) WriteCSV(w io.Writer) error {
	c := csv.NewWriter(w)
	reading := r.knowsReading()
	line := func(cells []string, last string) {
		if reading {
			cells = append(cells, last)
		}
		_ = c.Write(cells)
	}
	line([]string{"workers", "iterations", "total_s", "mean_s", "low_s", "high_s", "median_s", "p99_s",
		"wait_s", "transfer_s", "copy_s", "bandwidth", "step_s", "first_batch_s", "prefetch", "memory", "peak_rss", "peak_exact", "system_used", "cpu", "collector_cpu", "other_cpu", "chosen", "fastest"}, "reading")
	seconds := func(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'g', -1, 64) }
	for _, t := range r.Trials {
		line([]string{
			strconv.Itoa(t.Workers), strconv.Itoa(t.Iterations), seconds(t.Total), seconds(t.Mean), seconds(t.Low), seconds(t.High),
			seconds(t.Median), seconds(t.P99), seconds(t.Wait), seconds(t.Transfer),
			seconds(t.Copy), strconv.FormatFloat(t.Bandwidth, 'f', 0, 64), seconds(t.Step), seconds(t.FirstBatch),
			strconv.Itoa(t.Prefetch), strconv.FormatUint(t.Memory, 10), strconv.FormatUint(t.PeakRSS, 10), strconv.FormatBool(t.PeakExact), strconv.FormatUint(t.SystemUsed, 10),
			strconv.FormatFloat(t.CPU, 'f', 4, 64), strconv.FormatFloat(t.CollectorCPU, 'f', 4, 64), strconv.FormatFloat(t.OtherCPU, 'f', 4, 64),
			strconv.FormatBool(t.Workers == r.Workers), strconv.FormatBool(t.Workers == r.Fastest),
		}, strconv.FormatFloat(t.Reading, 'f', 4, 64))
	}
	c.Flush()
	return c.Error() // of any of the writes
}

func capital(s string) string {
	r, size := utf8.DecodeRuneInString(s)
	return strings.ToUpper(string(r)) + s[size:]
}

// margin is half the 95 % interval, as a share of the mean.
func margin(t Trial) string {
	if t.High <= t.Low || t.Mean == 0 || t.High-t.Low > 2*t.Mean {
		return "?"
	}
	return fmt.Sprintf("%.1f %%", 50*float64(t.High-t.Low)/float64(t.Mean))
}
