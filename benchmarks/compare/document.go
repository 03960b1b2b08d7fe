package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// marks enclose what is written here.
type marks struct{ begin, end string }

var (
	measuredMarks = marks{"<!-- measured: written by benchmarks/compare -->", "<!-- end of measured -->"}
	photosMarks   = marks{"<!-- photographs: written by benchmarks/compare -photos -->", "<!-- end of photographs -->"}
)

var workloads = []struct{ name, title string }{
	{"augment", "CIFAR-10 augmentation, batches of 128"},
	{"raw", "Copies of 3 × 32 × 32 bytes, batches of 128"},
	{"wait", "1 ms of waiting per sample, batches of 64"},
	{"empty", "Empty samples, batches of 128"},
	{"photos", "Photographs of 500 × 375 pixels to 3 × 224 × 224, batches of 64"},
}

// writeDocument replaces what lies between the marks of what was measured, and the
// plot, which photographs don't have.
func (r *run) writeDocument(path string, photos bool) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	m := measuredMarks
	if photos {
		m = photosMarks
	}
	replaced, err := m.replace(string(text), r.report(photos))
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if photos {
		return os.WriteFile(path, []byte(replaced), 0o644)
	}
	if err := r.plot(filepath.Join(filepath.Dir(path), "compared.svg")); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(replaced), 0o644)
}

func (m marks) replace(text, report string) (string, error) {
	before, rest, begun := strings.Cut(text, m.begin)
	_, after, ended := strings.Cut(rest, m.end)
	if !begun || !ended {
		return "", errors.New("the marks are missing: " + m.begin + " … " + m.end)
	}
	return before + m.begin + "\n\n" + report + "\n" + m.end + after, nil
}

func (r *run) report(photos bool) string {
	figs := figures(r.Measurements)
	var b strings.Builder
	fmt.Fprintf(&b, "Measured on %s with %d CPUs (%s), %d GB, %s, %s; %s s per measurement, medians of up to %d rounds.\n\n",
		r.Date, r.Machine.GOMAXPROCS, r.Machine.CPU, (r.Machine.Memory+5e8)/1e9, r.System, r.versions(), fmt.Sprint(r.Seconds), r.rounds())
	b.WriteString("### Ratios\n\n")
	unit := "batches per second, unless stated otherwise"
	if photos {
		unit = "figures"
	}
	fmt.Fprintf(&b, "| workload | nwt against | wanted | measured | reached | %s |\n| --- | --- | --- | ---: | --- | --- |\n", unit)
	for _, g := range r.goals(figs) {
		reached, want := "**not reached**", g.want
		if g.reached {
			reached = "reached"
		}
		if strings.HasPrefix(want, "≥ 0 ") {
			reached, want = "", ""
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", g.workload, g.what, want, ratio(g.ratio), reached, g.figures)
	}
	if !photos {
		b.WriteString("\n![Batches per second by worker count](compared.svg)\n")
	}
	for _, w := range workloads {
		here := where(figs, workload(w.name))
		if len(here) == 0 {
			continue
		}
		fmt.Fprintf(&b, "\n### %s\n\n%s", w.title, r.tunedSentences(w.name))
		if photos {
			b.WriteString(photoTable(here))
			continue
		}
		b.WriteString("| | variant | best count | batches/s | first batch | memory | allocations per batch | at 16 workers: batches/s | first batch | memory |\n")
		b.WriteString("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n")
		for _, row := range rows(here) {
			b.WriteString(row)
		}
	}
	if lost := r.lost(); lost != "" {
		b.WriteString("\n### What could not be measured\n\n" + lost)
	}
	return b.String()
}

// photoTable is the photographs' rows: images a second, and what they cost, each at
// its best count.
func photoTable(here []figure) string {
	best := map[[2]string]figure{}
	for _, f := range here {
		if k := [2]string{f.Peer, f.Variant}; f.rate > best[k].rate {
			best[k] = f
		}
	}
	var b strings.Builder
	b.WriteString("| | variant | workers | images/s | CPU time per image | first batch | memory | allocations per batch |\n")
	b.WriteString("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |\n")
	for _, f := range slices.SortedFunc(maps.Values(best), func(a, b figure) int { return cmp.Compare(b.rate, a.rate) }) {
		images := rate(f.rate * photoBatch)
		switch {
		case f.Peer == "bound":
			fmt.Fprintf(&b, "| *decoding alone* | | %d | %s | | | | |\n", f.Workers, images)
		case f.Peer == "nwt":
			fmt.Fprintf(&b, "| **nwt** | %s | %d | %s | %s | %s | %s | %.3g |\n", f.Variant, f.Workers, images, short(f.cpu), short(f.first), megabytes(f.memory), allocsOf.of(f))
		default:
			fmt.Fprintf(&b, "| %s | %s | %d | %s | %s | %s | %s | |\n", title(f.Peer), f.Variant, f.Workers, images, short(f.cpu), short(f.first), megabytes(f.memory))
		}
	}
	return b.String()
}

// photoBatch is the photographs of a batch.
const photoBatch = 64

// rows are a workload's, the fastest variant first.
func rows(here []figure) (rows []string) {
	type series struct{ peer, variant string }
	best := map[series]figure{}
	for _, f := range here {
		s := series{f.Peer, f.Variant}
		if f.rate > best[s].rate {
			best[s] = f
		}
	}
	order := make([]figure, 0, len(best))
	for _, f := range best {
		order = append(order, f)
	}
	slices.SortFunc(order, func(a, b figure) int {
		if a.rate > b.rate {
			return -1
		}
		return 1
	})
	for _, f := range order {
		name, variant, allocs := title(f.Peer), f.Variant, ""
		switch {
		case f.Peer == "nwt":
			name = "**nwt**"
		case variant == "batch":
			variant = ""
		}
		if f.Peer == "bound" {
			rows = append(rows, fmt.Sprintf("| *%s* | | %d | %s | | | | | | |\n", name, f.Workers, rate(f.rate)))
			continue
		}
		if !slices.Contains(pythonPeers, f.Peer) {
			allocs = fmt.Sprintf("%.3g", allocsOf.of(f))
		}
		at16 := "| | | |"
		if i := slices.IndexFunc(here, func(g figure) bool {
			return g.Peer == f.Peer && g.Variant == f.Variant && g.Workers == 16
		}); i >= 0 {
			g := here[i]
			at16 = fmt.Sprintf("| %s | %s | %s |", rate(g.rate), short(g.first), megabytes(g.memory))
		}
		rows = append(rows, fmt.Sprintf("| %s | %s | %d | %s | %s | %s | %s %s\n", name, variant, f.Workers,
			rate(f.rate), short(f.first), megabytes(f.memory), allocs, at16))
	}
	return rows
}

func (r *run) tunedSentences(w string) string {
	var b strings.Builder
	for _, t := range r.Tuned {
		if t.Workload == w {
			fmt.Fprintf(&b, "`Tune` found %d workers for the variant *%s* in %.1f s: “%s”\n\n", t.Workers, t.Variant, t.Seconds, t.Reason)
		}
	}
	return b.String()
}

// versions names what was measured.
func (r *run) versions() string {
	seen := []string{strings.Replace(r.Go, "go", "Go ", 1)}
	for _, m := range r.Measurements {
		if slices.Contains(pythonPeers, m.Peer) && m.Python != "" && !slices.Contains(seen, "Python "+m.Python) {
			seen = append(seen, "Python "+m.Python)
		}
		name := title(m.Peer) + " " + m.Version
		if m.Version != r.Go && m.Version != "" && !slices.Contains(seen, name) {
			seen = append(seen, name)
		}
	}
	return strings.Join(seen, ", ")
}

func (r *run) rounds() int {
	most := 0
	for _, m := range r.Measurements {
		most = max(most, m.Round+1)
	}
	return most
}

// lost is a line for each combination without a figure, and why.
func (r *run) lost() string {
	var b strings.Builder
	for _, m := range r.Measurements {
		if why := m.Error + m.Skipped; why != "" {
			fmt.Fprintf(&b, "- %v: %s\n", m.combination, why)
		}
	}
	return b.String()
}

func ratio(r float64) string {
	switch {
	case r >= 100:
		return fmt.Sprintf("%.0f", r)
	case r >= 0.1:
		return fmt.Sprintf("%.3g", r)
	case r > 0:
		return fmt.Sprintf("1/%.0f", 1/r)
	}
	return "0"
}
