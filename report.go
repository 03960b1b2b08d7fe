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
// the choice and the fastest marked, and what else to know. If another count seems faster
// than Fastest, by less than measuring tells, the mark is "none surely faster".
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
	quickest, least := Trial{Mean: math.MaxInt64, Total: math.MaxInt64}, uint64(math.MaxUint64)
	var transfers, copies, memory, own, ahead, others, collected bool
	for _, t := range r.Trials {
		if t.Mean < quickest.Mean {
			quickest = t
		}
		least = min(least, t.PeakRSS)
		transfers, copies, memory = transfers || t.Transfer > 0, copies || t.Copy > 0, memory || t.PeakRSS > 0
		own, ahead = own || t.Memory > 0, ahead || t.Prefetch > 0
		others, collected = others || t.OtherCPU >= 0.005, collected || t.CollectorCPU >= 0.01
	}
	total, each, bytes := human.ScaleOf(quickest.Total), human.ScaleOf(quickest.Mean), human.ScaleOfBytes(least)
	bandwidth := human.ScaleOfBytes(uint64(quickest.Bandwidth))

	type column struct {
		title, unit string
		cell        func(Trial) string
	}
	columns := []column{
		{"workers", "", func(t Trial) string { return strconv.Itoa(t.Workers) }},
		{countBatches(r.Iterations), total.Unit, func(t Trial) string { return total.Write(float64(t.Total)) }},
		{"per batch", each.Unit, func(t Trial) string { return each.Write(float64(t.Mean)) }},
		{"± 95 %", "", margin},
		{"waiting", each.Unit, func(t Trial) string { return each.Write(float64(t.Wait)) }},
	}
	if transfers {
		columns = append(columns, column{"transfer", each.Unit, func(t Trial) string { return each.Write(float64(t.Transfer)) }})
	}
	if copies {
		columns = append(columns,
			column{"copy", each.Unit, func(t Trial) string { return each.Write(float64(t.Copy)) }},
			column{"bandwidth", bandwidth.Unit + "/s", func(t Trial) string { return bandwidth.Write(t.Bandwidth) }})
	}
	if r.Step {
		columns = append(columns, column{"step", each.Unit, func(t Trial) string { return each.Write(float64(t.Step)) }})
	}
	if r.knowsReading() {
		columns = append(columns, column{"reading", "", func(t Trial) string { return human.Share(t.Reading) }})
	}
	columns = append(columns, column{"CPUs busy", "", func(t Trial) string { return human.Share(t.CPU) }})
	if others {
		columns = append(columns, column{"by others", "", func(t Trial) string {
			if t.OtherCPU < 0 {
				return "?"
			}
			return human.Share(t.OtherCPU)
		}})
	}
	if collected {
		columns = append(columns, column{"collector", "", func(t Trial) string { return human.Share(t.CollectorCPU) }})
	}
	if ahead {
		columns = append(columns, column{"ahead", "", func(t Trial) string { return strconv.Itoa(t.Prefetch) }})
	}
	if own {
		columns = append(columns, column{"own memory", bytes.Unit, func(t Trial) string { return bytes.Write(float64(t.Memory)) }})
	}
	if memory {
		columns = append(columns, column{"peak memory", bytes.Unit, func(t Trial) string { return bytes.Write(float64(t.PeakRSS)) }})
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

// mostSlower is the share up to which it says something that the choice is slower by no more.
const mostSlower = 10

// writeNotes writes the notes below the table, each behind a word.
func (r *Result) writeNotes(b *strings.Builder) {
	note := func(word, format string, args ...any) {
		fmt.Fprintf(b, "%11s  %s\n", word, fmt.Sprintf(format, args...))
	}
	if r.Confidence > 0 {
		slower := "how much slower than the best count tried can't be told"
		if r.Slower <= mostSlower {
			slower = fmt.Sprintf("at most %s slower than the best count tried, at 95 %%", human.Share(r.Slower))
		}
		note("confidence", "another run would choose the same in %s of cases; %s", human.Share(r.Confidence), slower)
	}
	if r.Floor > 0 {
		note("floor", "%s per batch, if loading were perfect", human.Duration(r.Floor))
	} else {
		note("floor", "not known")
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

// Mark is what the report calls a worker count: "chosen", "fastest", "none surely faster"
// (see [Result.String]), the first with one of the others, or "". The package plot calls it
// the same.
func (r *Result) Mark(workers int) string {
	var marks []string
	if workers == r.Workers {
		marks = append(marks, "chosen")
	}
	if workers == r.Fastest {
		fastest := "fastest"
		if r.seemsFaster(r.trial(workers)) {
			fastest = "none surely faster"
		}
		marks = append(marks, fastest)
	}
	return strings.Join(marks, ", ")
}

// seemsFaster tells whether the table has a count that is faster than fastest, by less than
// can be told.
func (r *Result) seemsFaster(fastest Trial) bool {
	return slices.ContainsFunc(r.Trials, func(t Trial) bool { return t.Mean < fastest.Mean })
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

// reason says in a sentence why the choice c was made. The plain means may contradict the
// choice by less than their errors. Then the sentence says no more than can be told.
func (r *Result) reason(c search.Choice) string {
	chosen, fastest := r.trial(r.Workers), r.trial(r.Fastest)
	surely, theFastest := "", "the fastest"
	if r.seemsFaster(fastest) {
		surely, theFastest = "surely ", "none is surely faster"
	}
	apart := func(t Trial) bool { return float64(t.Mean-fastest.Mean)*float64(r.Iterations) > float64(r.Alpha) }
	within, that := "within", ""
	if apart(chosen) {
		within, that = "may be within", "that "
	}
	corrected := ""
	if slices.ContainsFunc(r.Trials, func(t Trial) bool { return t.Workers < r.Workers && !apart(t) }) {
		corrected = ", once drift that all counts share and chance are left out"
	}
	batches, take := countBatches(r.Iterations), "take"
	if r.Iterations == 1 {
		take = "takes"
	}
	switch workers := capital(countWorkers(r.Workers)); {
	case len(r.Trials) == 1:
		return fmt.Sprintf("%s: nothing else could be measured.", workers)
	case c.Kept:
		return fmt.Sprintf("%s, as without tuning: measuring ended before another count was surely better.", workers)
	case c.Rounded && r.Workers == r.Fastest:
		return fmt.Sprintf("%s: %s; fewer may do within %s, over %s, but this is the roundest of the counts that can't be told apart.", workers, theFastest, human.Duration(r.Alpha), batches)
	case c.Rounded:
		return fmt.Sprintf("%s: %s %s, over %s, of the fastest (%d); fewer may be too, but this is the roundest of the counts that can't be told apart.", workers, within, human.Duration(r.Alpha), batches, r.Fastest)
	case r.Workers == r.Fastest && r.Workers == 0:
		return fmt.Sprintf("%s: no count tried is %sfaster.", workers, surely)
	case r.Workers == r.Fastest && r.Workers == r.Trials[0].Workers:
		return fmt.Sprintf("%s: no count tried is %sfaster, and fewer were not tried.", workers, surely)
	case r.Workers == r.Fastest:
		return fmt.Sprintf("%s: %s; with fewer, as far as tried, %s %s over %s longer%s.", workers, theFastest, batches, take, human.Duration(r.Alpha), corrected)
	default:
		return fmt.Sprintf("%s: the fewest tried %s%s %s, over %s, of the fastest (%d)%s.", workers, that, within, human.Duration(r.Alpha), batches, r.Fastest, corrected)
	}
}

func countBatches(n int) string {
	if n == 1 {
		return "1 batch"
	}
	return fmt.Sprintf("%d batches", n)
}

func (r *Result) trial(workers int) Trial {
	i := slices.IndexFunc(r.Trials, func(t Trial) bool { return t.Workers == workers })
	if i < 0 {
		return Trial{Workers: workers}
	}
	return r.Trials[i]
}

// WriteCSV writes the trials, and the one from ordinary memory, as
// comma-separated values under a header. Times are in seconds, memory in bytes. Only
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
