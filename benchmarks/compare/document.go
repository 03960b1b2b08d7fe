package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A group is workloads that are measured in one run, kept in one file, and written
// between one pair of marks.
type group struct {
	results string
	marks   marks
	seconds float64 // that a loader is measured by default
	tuned   bool    // nwt is measured at the count that Tune finds
	fastest bool    // rates are of the fastest round, instead of medians; all is measured in all rounds
}

// marks enclose what is written here.
type marks struct{ begin, end string }

var (
	ordinary = &group{
		results: "results.json", seconds: 0.7, tuned: true,
		marks: marks{"<!-- measured: written by benchmarks/compare -->", "<!-- end of measured -->"},
	}
	photographs = &group{
		results: "photos.json", seconds: 0.7, tuned: true,
		marks: marks{"<!-- photographs: written by benchmarks/compare -photos -->", "<!-- end of photographs -->"},
	}
	shards = &group{
		results: "shards.json", seconds: 5, fastest: true,
		marks: marks{"<!-- shards: written by benchmarks/compare -shards -->", "<!-- end of shards -->"},
	}
	tensors = &group{
		results: "tensors.json", seconds: 3,
		marks: marks{"<!-- tensors: written by benchmarks/compare -tensors -->", "<!-- end of tensors -->"},
	}
	ownData = &group{
		results: "own.json", seconds: 3,
		marks: marks{"<!-- own: written by benchmarks/compare -own -->", "<!-- end of own -->"},
	}
	tails = &group{
		results: "tail.json", seconds: 30,
		marks: marks{"<!-- tail: written by benchmarks/compare -tail -->", "<!-- end of tail -->"},
	}
)

var workloads = []struct {
	name  string
	group *group
	title string
}{
	{"augment", ordinary, "CIFAR-10 augmentation, batches of 128"},
	{"raw", ordinary, "Copies of 3 × 32 × 32 bytes, batches of 128"},
	{"wait", ordinary, "1 ms of waiting per sample, batches of 64"},
	{"empty", ordinary, "Empty samples, batches of 128"},
	{"photos", photographs, "Photographs of 500 × 375 pixels to 3 × 224 × 224, batches of 64"},
	{"large", photographs, "Photographs of 3 000 × 2 000 pixels to 3 × 224 × 224, batches of 64"},
	{"bytes", tensors, "Photographs of 500 × 375 pixels as bytes, batches of 64"},
	{"largebytes", tensors, "Photographs of 3 000 × 2 000 pixels as bytes, batches of 64"},
	{"own-small", ownData, "3 kB per sample, batches of 64, 2 workers"},
	{"own-large", ownData, "150 kB per sample, batches of 64, 2 workers"},
	{"own-pillow", ownData, "Photographs by Pillow, batches of 64, 2 workers"},
	{"own-numpy", ownData, "Photographs changed by NumPy, batches of 64, 2 workers"},
	{"shards", shards, "The same photographs in shards, batches of 64"},
	{"tail", tails, "1 ms per sample, one in a hundred 100 ms, batches of 64, 16 workers"},
	{"pauses", tails, "2 ms per sample, batches of 64, 16 workers, a step that pauses for 270 ms after every 32 batches"},
}

// placeOf returns a workload's place in workloads; −1 if it isn't among them.
func placeOf(workload string) int {
	for i, w := range workloads {
		if w.name == workload {
			return i
		}
	}
	return -1
}

func (g *group) has(workload string) bool {
	i := placeOf(workload)
	return i >= 0 && workloads[i].group == g
}

// writeDocument replaces what lies between the group's marks, and the chart of photographs.
func (r *run) writeDocument(path string, g *group) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	replaced, err := g.marks.replace(string(text), r.report(g))
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if g == photographs {
		if err := r.chart(filepath.Join(filepath.Dir(path), "photographs.svg")); err != nil {
			return err
		}
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

func (r *run) report(g *group) string {
	figs := figures(r.Measurements)
	var b strings.Builder
	of := fmt.Sprintf("medians of up to %d rounds", r.rounds())
	if g.fastest {
		of = fmt.Sprintf("up to %d rounds: rates are the fastest round's, other figures medians", r.rounds())
	}
	fmt.Fprintf(&b, "Measured on %s with %d CPUs (%s), %d GB, %s, %s; %s s per measurement, %s.\n",
		r.Date, r.Machine.GOMAXPROCS, r.Machine.CPU, (r.Machine.Memory+5e8)/1e9, r.System, r.versions(), fmt.Sprint(r.Seconds), of)
	for _, w := range workloads {
		here := where(figs, workload(w.name))
		if len(here) == 0 {
			continue
		}
		fmt.Fprintf(&b, "\n### %s\n\n%s", w.title, r.tunedSentences(w.name))
		switch g {
		case photographs, tensors, shards:
			b.WriteString(photoTable(here))
			continue
		case ownData:
			b.WriteString(ownTable(here))
			continue
		case tails:
			b.WriteString(tailTable(here))
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

// tailTable returns the rows of loaders that all have 16 workers.
func tailTable(here []figure) string {
	limit, _ := fastest(where(here, peers("bound")))
	var b strings.Builder
	b.WriteString("| | variant | batches/s | share of the limit | first batch | memory | CPU time per batch |\n")
	b.WriteString("| --- | --- | ---: | ---: | ---: | ---: | ---: |\n")
	for _, f := range bestOfEach(here) {
		name, variant := title(f.Peer), f.Variant
		switch {
		case f.Peer == "bound":
			fmt.Fprintf(&b, "| *the limit* | | %s | | | | |\n", rate(f.rate))
			continue
		case f.Peer == "nwt":
			name = "**nwt**"
		case variant == "batch":
			variant = ""
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %.3f | %s | %s | %s |\n", name, variant, rate(f.rate), f.rate/limit.rate,
			short(f.first), megabytes(f.memory), short(f.cpu*tailBatch))
	}
	return b.String()
}

// tailBatch is the samples of a batch of the tails.
const tailBatch = 64

// bestOfEach returns the fastest figure of each variant of each peer, the fastest first.
func bestOfEach(here []figure) []figure {
	best := map[[2]string]figure{}
	for _, f := range here {
		if k := [2]string{f.Peer, f.Variant}; f.rate > best[k].rate {
			best[k] = f
		}
	}
	return slices.SortedFunc(maps.Values(best), func(a, b figure) int { return cmp.Compare(b.rate, a.rate) })
}

// photoTable returns the photographs' rows: images a second, and what they cost, each at
// its best count.
func photoTable(here []figure) string {
	var b strings.Builder
	b.WriteString("| | variant | workers | images/s | difference to Pillow | CPU time per image | first batch | memory | allocations per batch |\n")
	b.WriteString("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n")
	for _, f := range bestOfEach(here) {
		images, pillow := rate(f.rate*photoBatch), ""
		if f.pillow != nil {
			pillow = fmt.Sprintf("%.2f", *f.pillow)
		}
		switch {
		case f.Peer == "bound":
			fmt.Fprintf(&b, "| *decoding alone* | | %d | %s | | | | | |\n", f.Workers, images)
		case f.Peer == "nwt":
			fmt.Fprintf(&b, "| **nwt** | %s | %d | %s | %s | %s | %s | %s | %s |\n", f.Variant, f.Workers, images, pillow, short(f.cpu), short(f.first), megabytes(f.memory), rate(math.Round(10*f.allocs)/10))
		default:
			fmt.Fprintf(&b, "| %s | %s | %d | %s | %s | %s | %s | %s | |\n", title(f.Peer), f.Variant, f.Workers, images, pillow, short(f.cpu), short(f.first), megabytes(f.memory))
		}
	}
	return b.String()
}

// photoBatch is the photographs of a batch, and the samples of one's own.
const photoBatch = 64

// ownTable returns the rows of datasets in Python.
func ownTable(here []figure) string {
	var b strings.Builder
	b.WriteString("| | samples/s | CPU time per sample | first batch | memory |\n| --- | ---: | ---: | ---: | ---: |\n")
	for _, f := range bestOfEach(here) {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", title(f.Peer), rate(f.rate*photoBatch), short(f.cpu), short(f.first), megabytes(f.memory))
	}
	return b.String()
}

// rows returns a row for each loader, with its fastest variant; the fastest loader comes first.
func rows(here []figure) (rows []string) {
	seen := map[string]bool{}
	for _, f := range bestOfEach(here) {
		if seen[f.Peer] {
			continue
		}
		seen[f.Peer] = true
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
			allocs = rate(math.Round(10*f.allocs) / 10)
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
			fmt.Fprintf(&b, "For the variant *%s*, `Tune` took %.1f s and chose %d workers.\n\n", t.Variant, t.Seconds, t.Workers)
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

// lost returns a line for each combination without a figure, and why.
func (r *run) lost() string {
	var b strings.Builder
	for _, m := range r.Measurements {
		if why := m.Error + m.Skipped; why != "" {
			fmt.Fprintf(&b, "- %v: %s\n", m.combination, why)
		}
	}
	return b.String()
}
