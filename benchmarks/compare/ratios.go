package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// A goal is a ratio that nwt should reach, and what it came to.
type goal struct {
	workload string
	what     string // the two that are compared
	want     string
	ratio    float64
	reached  bool
	figures  string // behind the ratio
}

// goals are all that the figures allow to tell.
func (r *run) goals(figs []figure) (goals []goal) {
	add := func(workload, what string, ratio, want float64, unit, figures string) {
		goals = append(goals, goal{workload, what, fmt.Sprintf("≥ %v%s", want, unit), ratio, ratio >= want, figures})
	}
	// faster compares rates, nwt's tuned count with the best of others.
	faster := func(w, what string, want float64, conditions ...func(figure) bool) {
		ours, ok := r.tuned(figs, w)
		theirs, found := fastest(where(figs, append(conditions, workload(w))...))
		if ok && found {
			add(w, what, ours.rate/theirs.rate, want, " ×", fmt.Sprintf("%s ÷ %s", ours.rated(), theirs.rated()))
		}
	}
	faster("augment", "the best peer by sample", 10, others, variants(bySample...))
	faster("augment", "the best vectorised peer", 5, others, variants(vectorised...))
	faster("raw", "the best peer by sample", 60, others, variants(bySample...))
	faster("raw", "the best vectorised peer", 20, others, variants(vectorised...))
	if ours, ok := r.tuned(figs, "raw"); ok {
		faster("raw", "a bare `copy` with as many goroutines", 0.8, peers("bound"), workers(max(1, ours.Workers)))
	}
	faster("augment", "the inner loop alone, on as many goroutines (no goal)", 0, peers("bound"), r.tunedWorkers("augment"))

	goals = append(goals, photoGoals(figs)...)
	goals = append(goals, ownGoals(figs)...)
	goals = append(goals, shardGoals(figs)...)
	goals = append(goals, tailGoals(figs)...)

	at16 := func(w string, conditions ...func(figure) bool) (figure, bool) {
		return fastest(where(figs, append(conditions, workload(w), workers(16))...))
	}
	if ours, ok := at16("wait", peers("nwt")); ok {
		if limit, ok := at16("wait", peers("bound")); ok {
			add("wait", "the limit at 16 workers", ours.rate/limit.rate, 0.95, " ×", fmt.Sprintf("%s ÷ %s", ours.rated(), limit.rated()))
		}
		if best, ok := at16("wait", peers(append(pythonPeers, goPeers...)...), variants(append(bySample, "batch")...)); ok {
			add("wait", "every peer at 16 workers", ours.rate/best.rate, 1, " ×", fmt.Sprintf("%s ÷ %s", ours.rated(), best.rated()))
		}
	}
	faster("wait", "PyTorch's best of 16, 32, 64 processes", 5, peers("torch"), variants(bySample...), workers(16, 32, 64))
	if ours, ok := r.tuned(figs, "wait"); ok {
		if theirs, ok := fastest(where(figs, peers("torch"), workload("wait"), variants(bySample...), workers(16, 32, 64))); ok {
			goals = append(goals, less("wait", "memory above the dataset, of those processes'", ours, theirs, 1, memoryOf))
		}
	}
	faster("wait", "PyTorch with 64 threads in each process (no goal)", 0, peers("torch"), variants("threads"))

	faster("empty", "the best peer", 40, others)
	for _, peer := range goPeers {
		faster("empty", "less time per batch than "+title(peer), 1, peers(peer))
		ours, ok := r.tuned(figs, "empty")
		theirs, found := fastest(where(figs, peers(peer), workload("empty")))
		if ok && found {
			goals = append(goals, less("empty", "allocations per batch, of "+title(peer)+"'s", ours, theirs, 1, allocsOf))
		}
	}
	for _, w := range []string{"augment", "raw", "wait", "empty"} {
		ours, ok := at16(w, peers("nwt"))
		if !ok {
			continue
		}
		rivals := where(figs, peers("torch"), workload(w), workers(16))
		if len(rivals) == 0 {
			continue
		}
		// The variant of theirs that is best by each measure.
		goals = append(goals,
			less(w, "memory above the dataset, 16 workers, of PyTorch's", ours, slices.MinFunc(rivals, memoryOf.compare), 1./5, memoryOf),
			less(w, "first batch, 16 workers, of PyTorch's", ours, slices.MinFunc(rivals, firstOf.compare), 1./20, firstOf))
	}
	return goals
}

// photoGoals are those of photographs: each loader at its best.
func photoGoals(figs []figure) (goals []goal) {
	for _, want := range []struct {
		workload string
		others   float64
	}{{"photos", 2}, {"large", 1.8}, {"bytes", 2}, {"largebytes", 1.8}} {
		here := where(figs, workload(want.workload))
		against := func(ours figure, what string, ratio float64, conditions ...func(figure) bool) {
			theirs, found := fastest(where(here, conditions...))
			if found && ours.rate > 0 {
				goals = append(goals, goal{want.workload, what, fmt.Sprintf("≥ %v ×", ratio), ours.rate / theirs.rate, ours.rate >= ratio*theirs.rate,
					fmt.Sprintf("%s ÷ %s images/s", ours.images(), theirs.images())})
			}
		}
		ours, _ := fastest(where(here, peers("nwt"), variants("decoded")))
		client, _ := fastest(where(here, peers("client")))
		against(ours, "the best other loader", want.others, others)
		against(client, "the best other loader, from Python", want.others, others)
		against(client, "nwt in Go, from Python", 0.95, peers("nwt"), variants("decoded"))
		against(ours, "decoding alone, on all CPUs", 1, peers("bound"))
		if best := where(here, others); len(best) > 0 && ours.rate > 0 {
			goals = append(goals, less(want.workload, "CPU time per image, of the best other loader's", ours, slices.MinFunc(best, cpuOf.compare), 1/1.5, cpuOf))
		}
	}
	return goals
}

// ownGoals are those of datasets in Python.
func ownGoals(figs []figure) (goals []goal) {
	for _, want := range []struct {
		workload string
		ratio    float64
	}{{"own-small", 1.4}, {"own-large", 2.5}, {"own-pillow", 1.2}, {"own-numpy", 2}} {
		ours, ok := fastest(where(figs, workload(want.workload), peers("client")))
		theirs, found := fastest(where(figs, workload(want.workload), peers("torch")))
		if ok && found {
			goals = append(goals, goal{want.workload, title("torch"), fmt.Sprintf("≥ %v ×", want.ratio), ours.rate / theirs.rate, ours.rate >= want.ratio*theirs.rate,
				fmt.Sprintf("%s ÷ %s samples/s", ours.images(), theirs.images())})
		}
	}
	return goals
}

// shardGoals are those of photographs in shards.
func shardGoals(figs []figure) (goals []goal) {
	here := where(figs, workload("shards"))
	ours, ok := fastest(where(here, peers("nwt"), variants("decoded")))
	for _, peer := range pythonPeers {
		if theirs, found := fastest(where(here, peers(peer))); ok && found {
			ratio := ours.rate / theirs.rate
			goals = append(goals, goal{"shards", title(peer), "≥ 1.5 ×", ratio, ratio >= 1.5, fmt.Sprintf("%s ÷ %s images/s", ours.images(), theirs.images())})
		}
	}
	return goals
}

// tailGoals are those of slow samples and of a step that pauses, at 16 workers and
// nwt's default options.
func tailGoals(figs []figure) (goals []goal) {
	against := func(w, variant, what string, want float64, conditions ...func(figure) bool) {
		ours, ok := fastest(where(figs, peers("nwt"), workload(w), variants(variant)))
		theirs, found := fastest(where(figs, append(conditions, workload(w))...))
		if ok && found {
			ratio := ours.rate / theirs.rate
			goals = append(goals, goal{w, what, fmt.Sprintf("≥ %v ×", want), ratio, ratio >= want, fmt.Sprintf("%s ÷ %s", ours.rated(), theirs.rated())})
		}
	}
	against("tail", "sample", "what the workers could load, in order", 0.95, peers("bound"))
	against("tail", "sample", "PyTorch's best, in either order; nwt in order", 1, peers("torch"))
	against("tail", "unordered", "PyTorch's best, in either order; nwt unordered", 1, peers("torch"))
	against("tail", "sample", "every peer in Python; nwt in order", 1, peers(pythonPeers...))
	against("pauses", "sample", "the limit", 0.95, peers("bound"))
	against("pauses", "sample", "PyTorch's defaults", 1, peers("torch"))
	return goals
}

// tuned is nwt's figure at the count that it found for a workload, that of its
// fastest variant.
func (r *run) tuned(figs []figure, w string) (figure, bool) {
	return fastest(where(figs, peers("nwt"), workload(w), r.tunedWorkers(w)))
}

func (r *run) tunedWorkers(w string) func(figure) bool {
	return func(f figure) bool {
		return slices.ContainsFunc(r.Tuned, func(t tuning) bool {
			return t.Workload == w && (f.Variant == t.Variant && f.Workers == t.Workers || f.Peer == "bound" && f.Workers == max(1, t.Workers))
		})
	}
}

// A property is something of which less is better.
type property struct {
	of     func(figure) float64
	format func(float64) string
}

func (p property) compare(a, b figure) int {
	switch x, y := p.of(a), p.of(b); {
	case x < y:
		return -1
	case x > y:
		return 1
	}
	return 0
}

var (
	memoryOf = property{func(f figure) float64 { return f.memory }, megabytes}
	cpuOf    = property{func(f figure) float64 { return f.cpu }, short}
	firstOf  = property{func(f figure) float64 { return f.first }, short}
	allocsOf = property{func(f figure) float64 { return math.Round(10*f.allocs) / 10 }, func(n float64) string { return fmt.Sprintf("%.3g allocations", n) }}
)

// less returns the goal that ours be at most a share of theirs.
func less(workload, what string, ours, theirs figure, share float64, p property) goal {
	a, b := p.of(ours), p.of(theirs)
	want := "≤ 1"
	if share < 1 {
		want = fmt.Sprintf("≤ 1/%.3g", 1/share)
	}
	ratio := a / b
	if a == b { // both may be 0
		ratio = 1
	}
	return goal{
		workload, what, want, ratio, a <= share*b,
		fmt.Sprintf("%s (%d workers) ÷ %s (%s)", p.format(a), ours.Workers, p.format(b), theirs.name()),
	}
}

func (f figure) name() string {
	s := title(f.Peer)
	if f.Variant != "batch" {
		s += ", " + f.Variant
	}
	return fmt.Sprintf("%s, %d workers", s, f.Workers)
}

func (f figure) rated() string { return fmt.Sprintf("%s (%s)", rate(f.rate), f.name()) }

// images returns a rate of photographs, or of samples of one's own.
func (f figure) images() string { return fmt.Sprintf("%s (%s)", rate(f.rate*photoBatch), f.name()) }

func title(peer string) string {
	names := map[string]string{
		"torch": "PyTorch", "threads": "tuned threads", "tfdata": "tf.data", "grain": "Grain", "spdl": "SPDL", "dali": "DALI", "webdataset": "WebDataset", "litdata": "LitData", "client": "**nwt** from Python",
		"hand": "hand-written", "gomlx": "GoMLX", "bound": "the bound",
	}
	if name, ok := names[peer]; ok {
		return name
	}
	return peer
}

func rate(perSecond float64) string {
	if perSecond < 100 {
		return fmt.Sprintf("%.3g", perSecond)
	}
	digits := fmt.Sprintf("%.0f", perSecond)
	var b strings.Builder
	for i, d := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			b.WriteRune(' ') // a space that doesn't break
		}
		b.WriteRune(d)
	}
	return b.String()
}

func megabytes(bytes float64) string {
	if bytes < 9.95e6 {
		return fmt.Sprintf("%.1f MB", bytes/1e6)
	}
	return fmt.Sprintf("%.0f MB", bytes/1e6)
}

func short(seconds float64) string {
	switch {
	case seconds < 1e-3:
		return fmt.Sprintf("%.0f µs", seconds*1e6)
	case seconds < 1:
		return fmt.Sprintf("%.3g ms", seconds*1e3)
	}
	return fmt.Sprintf("%.3g s", seconds)
}
