package nwt

import (
	"encoding/csv"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"
)

// String is the table that a person reads: a row per worker count, the choice
// and the fastest marked, and a sentence that says why.
func (r *Result) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "nwt: %s", countWorkers(r.Workers))
	if r.Cached {
		b.WriteString(" (tuned before)")
	}
	fmt.Fprintf(&b, "\n%s\n\n", r.Reason)
	w := tabwriter.NewWriter(&b, 0, 0, 3, ' ', tabwriter.AlignRight)
	header := []string{"workers", fmt.Sprintf("%d batches", r.Iterations), "a batch", "± 95 %", "waiting"}
	transfers := false
	for _, t := range r.Trials {
		transfers = transfers || t.Transfer > 0
	}
	if transfers {
		header = append(header, "transfer")
	}
	if r.Step {
		header = append(header, "step")
	}
	row(w, append(header, "CPUs busy", "peak memory"), "")
	for _, t := range r.Trials {
		cells := []string{strconv.Itoa(t.Workers), short(t.Total), short(t.Mean), margin(t), short(t.Wait)}
		if transfers {
			cells = append(cells, short(t.Transfer))
		}
		if r.Step {
			cells = append(cells, short(t.Step))
		}
		row(w, append(cells, percent(t.CPU), formatBytes(t.PeakRSS)), r.mark(t))
	}
	w.Flush()
	fmt.Fprintf(&b, "\nPerfect loading would take %s a batch. Batches of %d samples, %s, to %s; %s search over %s in %s.\n",
		short(r.Floor), r.BatchSize, formatBytes(uint64(r.BatchBytes)), r.Device, r.Strategy, r.Hardware, short(r.Elapsed))
	if len(r.RuledOut) > 0 {
		fmt.Fprintf(&b, "Ruled out: %s", r.RuledOut[len(r.RuledOut)-1].Reason)
		b.WriteByte('\n')
	}
	for _, warning := range r.Warnings {
		fmt.Fprintf(&b, "Warning: %s\n", warning)
	}
	for _, advice := range r.Advice {
		fmt.Fprintf(&b, "Advice: %s\n", advice)
	}
	return b.String()
}

// row writes right-aligned cells and a mark behind them.
func row(w io.Writer, cells []string, mark string) {
	fmt.Fprintf(w, "%s\t%s\n", strings.Join(cells, "\t"), mark)
}

func (r *Result) mark(t Trial) string {
	var marks []string
	if t.Workers == r.Workers {
		marks = append(marks, "chosen")
	}
	if t.Workers == r.Fastest {
		marks = append(marks, "fastest")
	}
	if len(marks) == 0 {
		return ""
	}
	return " ◄ " + strings.Join(marks, ", ")
}

// String names the hardware in a few words.
func (h Hardware) String() string {
	s := fmt.Sprintf("%d CPUs", h.GOMAXPROCS)
	if h.GOMAXPROCS != h.Logical {
		s += fmt.Sprintf(" of %d", h.Logical)
	}
	if h.CPU != "" {
		s += " (" + h.CPU + ")"
	}
	return s
}

// reason says in a sentence why the choice was made.
func (r *Result) reason() string {
	chosen, fastest := r.trial(r.Workers), r.trial(r.Fastest)
	var s string
	switch {
	case len(r.Trials) == 1:
		s = fmt.Sprintf("Only %s could be measured", countWorkers(r.Workers))
	case r.Workers == r.Fastest && chosen.Workers == 0:
		s = "No worker count was faster than loading without workers"
	case r.Workers == r.Fastest:
		s = fmt.Sprintf("%s %s the fastest, and fewer are slower by more than %s over %d batches",
			capital(countWorkers(r.Workers)), isAre(r.Workers), short(r.Alpha), r.Iterations)
	default:
		s = fmt.Sprintf("%s %s the fewest within %s, over %d batches, of the fastest (%d)",
			capital(countWorkers(r.Workers)), isAre(r.Workers), short(r.Alpha), r.Iterations, fastest.Workers)
	}
	if r.Confidence > 0 {
		s += fmt.Sprintf("; another run would choose the same in %s of cases", percent(r.Confidence))
	}
	return s + "."
}

func (r *Result) trial(workers int) Trial {
	for _, t := range r.Trials {
		if t.Workers == workers {
			return t
		}
	}
	return Trial{Workers: workers}
}

// WriteCSV writes the trials as comma-separated values under a header. Times
// are in seconds, memory in bytes.
func (r *Result) WriteCSV(w io.Writer) error {
	c := csv.NewWriter(w)
	_ = c.Write([]string{"workers", "iterations", "total_s", "mean_s", "low_s", "high_s", "median_s", "p99_s",
		"wait_s", "transfer_s", "step_s", "first_batch_s", "peak_rss", "peak_exact", "system_used", "cpu", "other_cpu", "chosen", "fastest"})
	seconds := func(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'g', -1, 64) }
	for _, t := range r.Trials {
		_ = c.Write([]string{
			strconv.Itoa(t.Workers), strconv.Itoa(t.Iterations), seconds(t.Total), seconds(t.Mean), seconds(t.Low), seconds(t.High),
			seconds(t.Median), seconds(t.P99), seconds(t.Wait), seconds(t.Transfer), seconds(t.Step), seconds(t.FirstBatch),
			strconv.FormatUint(t.PeakRSS, 10), strconv.FormatBool(t.PeakExact), strconv.FormatUint(t.SystemUsed, 10),
			strconv.FormatFloat(t.CPU, 'f', 4, 64), strconv.FormatFloat(t.OtherCPU, 'f', 4, 64),
			strconv.FormatBool(t.Workers == r.Workers), strconv.FormatBool(t.Workers == r.Fastest),
		})
	}
	c.Flush()
	return c.Error() // of any of the writes
}

func isAre(n int) string {
	if n == 1 {
		return "is"
	}
	return "are"
}

func capital(s string) string {
	r, size := utf8.DecodeRuneInString(s)
	return strings.ToUpper(string(r)) + s[size:]
}

// short is a duration with three digits.
func short(d time.Duration) string {
	switch {
	case d >= time.Minute:
		return d.Round(time.Second).String()
	case d >= time.Second:
		return fmt.Sprintf("%.3g s", d.Seconds())
	case d >= time.Millisecond:
		return fmt.Sprintf("%.3g ms", float64(d)/1e6)
	case d >= time.Microsecond:
		return fmt.Sprintf("%.3g µs", float64(d)/1e3)
	default:
		return fmt.Sprintf("%d ns", d.Nanoseconds())
	}
}

func margin(t Trial) string {
	if t.High <= t.Low || t.Mean == 0 {
		return "?"
	}
	return percent(float64(t.High-t.Low) / 2 / float64(t.Mean))
}

func percent(share float64) string {
	if share < 0.0995 {
		return fmt.Sprintf("%.1f %%", 100*share)
	}
	return fmt.Sprintf("%.0f %%", 100*share)
}
